/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench probe`: measures, in a few seconds, the numbers from which passes of the compiler estimate times
 * (src/graph/analysis/machine.h), and writes them to a file for SHOAL_MACHINE. Ranks run the plans of small graphs
 * (bench/probe_graphs.c); all of them at once, because they share the machine's memory and processors.
 */
#include "bench/benches.h"
#include "bench/launched.h"
#include "bench/probe.h"
#include "bench/ranks.h"
#include "common/options.h"
#include "common/output.h"
#include "common/tool.h"

#include "base/clock.h"
#include "base/error.h"
#include "graph/analysis/machine.h"
#include "shoal/compile.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/nn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

enum {
    MAX_LISTS = 8, /* numbers of ranks, and transports */
    N_OPS = 3,     /* that are measured for each of them */
    MAX_INPUTS = 3,
    MAX_RUNS = 128,
    N_WARMUPS = 3,
    FEW_RANKS = 2,
    LEAST_NS = 100 /* differences of times that vanish in noise count as this */
};

_Static_assert(MAX_LISTS *MAX_LISTS *N_OPS <= MACHINE_MAX_COLLECTIVES, "a machine has room for every row");

struct arguments {
    int n_ranks[MAX_LISTS];
    size_t n_n_ranks;
    const char *transports[MAX_LISTS];
    size_t n_transports;
    int n_threads;
    const char *name;
    const char *output;
    bool is_json;
};

#define AT(field) offsetof(struct arguments, field)

static const struct tool_option option_rows[] = {
    {"--ranks", "N", TOOL_OPTION_INT, AT(n_ranks), 2, MEASURE_MAX_RANKS, .alias = "-n",
     .max_values = MAX_LISTS, .n_values_at = AT(n_n_ranks),
     .help = "default 2 and the number of processors; several times: each; not under a launcher"},
    {"--transport", "NAME", TOOL_OPTION_TEXT, AT(transports), .name_at = tool_transport_at,
     .max_values = MAX_LISTS, .n_values_at = AT(n_transports),
     .help = "default shm and socket, under a launcher shm; may be given several times"},
    {"--threads", "N", TOOL_OPTION_INT, AT(n_threads), 1, 4096, .standard = "1",
     .help = "threads of a matrix product, in each rank"},
    {"--name", "WORD", TOOL_OPTION_TEXT, AT(name),
     .help = "of the machine; default: its architecture and processors"},
    {"--output", "FILE", TOOL_OPTION_TEXT, AT(output), .help = "writes a file for SHOAL_MACHINE"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(is_json), .help = "prints what the file has"},
};

const struct tool_options bench_probe_options = {
    .about =
        "Measures how fast ranks of this machine compute and communicate, for estimates of the compiler.\n",
    TOOL_OPTIONS_ROWS(option_rows),
    .notes = "Compute is measured with the first number of ranks. shoal opt --machine FILE, and "
             "SHOAL_MACHINE=FILE on\n"
             "all ranks, use the file.\n",
};

/* Ranks ------------------------------------------------------------------------------------------------ */

/* Some ranks over some transport. */
struct probe {
    const char *transport;
    int n_ranks;
    int n_threads;
    bool has_compute; /* otherwise only collectives are measured */
    const struct bench_ranks *ranks;
};

static bool is_measured(const struct probe *probe, enum probe_case which)
{
    return probe->has_compute || which >= PROBE_REDUCE_SMALL;
}

static shoal_status fill(shoal_tensor *tensor)
{
    float *values = shoal_mutable_data(tensor);
    int64_t count = values ? shoal_tensor_count(tensor) : 0;
    for (int64_t i = 0; i < count; i++) {
        values[i] = 1.0F / 256; /* products of 256 elements stay as they are */
    }
    return values ? SHOAL_OK : SHOAL_ERR_STATE;
}

/* In an open scope. */
static shoal_status make_inputs(const shoal_graph *graph, shoal_tensor *inputs[MAX_INPUTS], size_t *n_inputs)
{
    shoal_status status = SHOAL_OK;
    *n_inputs = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node && status == SHOAL_OK;
         node = shoal_node_next(node)) {
        if (shoal_node_get_kind(node) == SHOAL_NODE_PLACEHOLDER && *n_inputs < MAX_INPUTS) {
            const shoal_tensor *like = shoal_node_value(node, 0);
            inputs[*n_inputs] =
                shoal_empty(shoal_tensor_shape(like), shoal_tensor_n_dims(like), shoal_tensor_dtype(like));
            status = inputs[*n_inputs] ? fill(inputs[*n_inputs]) : shoal_scope_error();
            (*n_inputs)++;
        }
    }
    return status;
}

/* A case that is being measured. */
struct running {
    enum probe_case which;
    shoal_graph *graph;
    shoal_plan *plan;
    shoal_tensor *inputs[MAX_INPUTS];
    size_t n_inputs;
};

/* In an open scope. */
static shoal_status begin_case(const struct probe *probe, shoal_world *world, struct running *running)
{
    char text[PROBE_TEXT_BYTES];
    probe_write_graph(running->which, probe->n_ranks, text);
    shoal_status status = shoal_graph_parse(text, strlen(text), &running->graph);
    if (status == SHOAL_OK) {
        status = shoal_plan_create(running->graph, world, NULL, &running->plan);
    }
    return status == SHOAL_OK ? make_inputs(running->graph, running->inputs, &running->n_inputs) : status;
}

/* Run number `number`; those below 0 are not kept. */
static shoal_status run_once(struct running *running, struct measure_page *page, int rank, int number)
{
    shoal_tensor *output = NULL;
    if (!measure_page_meet(page, rank)) {
        return SHOAL_ERR_CANCELLED;
    }
    int64_t begin_ns = clock_now_ns();
    shoal_status status = shoal_plan_run(running->plan, running->inputs, running->n_inputs, &output, 1);
    int64_t time_ns = clock_now_ns() - begin_ns;
    shoal_tensor_unref(output);
    if (number >= 0) {
        measure_page_times(page, rank)[(size_t)running->which * MAX_RUNS + (size_t)number] = time_ns;
    }
    return status;
}

/* Cases take turns, so that what else the machine does meanwhile is the same for all. In an open scope. */
static shoal_status run_in_turn(const struct probe *probe, shoal_world *world, struct measure_page *page,
                                int rank, struct running *cases, size_t n_cases)
{
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < n_cases && status == SHOAL_OK; i++) {
        status = begin_case(probe, world, &cases[i]);
    }
    for (int number = -N_WARMUPS; number < probe_n_runs(cases[0].which) && status == SHOAL_OK; number++) {
        for (size_t i = 0; i < n_cases && status == SHOAL_OK; i++) {
            status = run_once(&cases[i], page, rank, number);
        }
    }
    return status;
}

/* Runs the cases `first` to `last`, which are timed equally often. */
static shoal_status run_cases(const struct probe *probe, shoal_world *world, struct measure_page *page,
                              int rank, enum probe_case first, enum probe_case last)
{
    struct running cases[PROBE_N_CASES] = {0};
    size_t n_cases = 0;
    for (unsigned which = first; which <= last; which++) {
        cases[n_cases++].which = (enum probe_case)which;
    }
    shoal_status status = shoal_scope_begin();
    if (status == SHOAL_OK) {
        status = run_in_turn(probe, world, page, rank, cases, n_cases);
        shoal_status ended = shoal_scope_end();
        status = status == SHOAL_OK ? ended : status;
    }
    for (size_t i = 0; i < n_cases; i++) {
        shoal_plan_free(cases[i].plan);
        shoal_graph_free(cases[i].graph);
    }
    return status;
}

static bool run_rank(const void *context, struct measure_page *page, int rank)
{
    const struct probe *probe = context;
    shoal_world *world;
    bool is_good = bench_ranks_check("probe", rank, bench_ranks_open_world(probe->ranks, rank, &world),
                                     "opening the world");
    if (!is_good) {
        return false;
    }
    is_good = bench_ranks_check("probe", rank, shoal_nn_init(), "ops of libshoal_nn") &&
              bench_ranks_check("probe", rank, shoal_nn_set_threads(probe->n_threads), "threads of the BLAS");
    for (unsigned which = 0; which < PROBE_N_CASES && is_good; which++) {
        unsigned last = which == PROBE_COMPUTE ? PROBE_BOTH : which;
        if (is_measured(probe, (enum probe_case)which)) {
            shoal_status status =
                run_cases(probe, world, page, rank, (enum probe_case)which, (enum probe_case)last);
            is_good = bench_ranks_check("probe", rank, status, "a plan");
        }
        which = last;
    }
    return bench_ranks_close_world(probe->ranks, rank, world, is_good);
}

/* Numbers ---------------------------------------------------------------------------------------------- */

struct row {
    const char *transport;
    int n_ranks;
    const char *op;
    double latency_ns;
    double bytes_per_ns;
};

/* The fields of a machine, as in the file. */
struct found {
    char name[64];
    double call_ns;
    double touched_bytes_per_ns;
    double operations_per_ns;
    double functions_per_ns;
    double start_ns;
    double hidden;
    struct row rows[MACHINE_MAX_COLLECTIVES];
    size_t n_rows;
};

/* The difference of two times, or LEAST_NS if noise has made it smaller. */
static double subtract(double longer_ns, double shorter_ns)
{
    return longer_ns - shorter_ns > LEAST_NS ? longer_ns - shorter_ns : LEAST_NS;
}

static void find_compute(const double *times_ns, struct found *found)
{
    double call_ns = times_ns[PROBE_CALLS] / PROBE_N_CALLS;
    double exposed_ns = times_ns[PROBE_BOTH] - times_ns[PROBE_COMPUTE];
    double hidden = 1 - exposed_ns / times_ns[PROBE_REDUCE_LARGE];
    found->call_ns = call_ns;
    found->touched_bytes_per_ns = PROBE_TOUCHED_BYTES / subtract(times_ns[PROBE_TOUCH], call_ns);
    found->operations_per_ns = PROBE_OPERATIONS / subtract(times_ns[PROBE_PRODUCT], call_ns);
    found->functions_per_ns = PROBE_N_VALUES / subtract(times_ns[PROBE_FUNCTION], call_ns);
    found->start_ns =
        subtract(times_ns[PROBE_STARTS] / PROBE_N_PRODUCTS, times_ns[PROBE_COMPUTE] / PROBE_N_PRODUCTS);
    found->hidden = hidden < 0 ? 0 : hidden > 1 ? 1 : hidden;
}

static void find_collectives(const struct probe *probe, const double *times_ns, struct found *found)
{
    static const struct {
        const char *op;
        enum probe_case small;
    } ops[N_OPS] = {{"all_reduce", PROBE_REDUCE_SMALL},
                    {"all_gather", PROBE_GATHER_SMALL},
                    {"reduce_scatter", PROBE_SCATTER_SMALL}};
    for (size_t i = 0; i < N_OPS; i++) {
        double small_ns = times_ns[ops[i].small];
        double large_ns = times_ns[ops[i].small + 1];
        double byte_ns = subtract(large_ns, small_ns) / (PROBE_LARGE_BYTES - PROBE_SMALL_BYTES);
        found->rows[found->n_rows++] = (struct row){.transport = probe->transport,
                                                    .n_ranks = probe->n_ranks,
                                                    .op = ops[i].op,
                                                    .latency_ns = small_ns,
                                                    .bytes_per_ns = 1 / byte_ns};
    }
}

static int compare_times(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* The time of a case: of each run the longest of any rank, and of these the lower quartile, which other programs that
   run meanwhile change less than the median. */
static double find_time_ns(struct measure_page *page, int n_ranks, enum probe_case which)
{
    int64_t longest[MAX_RUNS] = {0};
    int n_runs = probe_n_runs(which);
    for (int rank = 0; rank < n_ranks; rank++) {
        const int64_t *times = measure_page_times(page, rank) + (size_t)which * MAX_RUNS;
        for (int i = 0; i < n_runs; i++) {
            longest[i] = times[i] > longest[i] ? times[i] : longest[i];
        }
    }
    qsort(longest, (size_t)n_runs, sizeof longest[0], compare_times);
    int quarter = n_runs / 4;
    return (double)longest[quarter];
}

static bool run_probe(struct probe *probe, struct found *found)
{
    struct measure_request request;
    double times_ns[PROBE_N_CASES] = {0};
    measure_request_init(&request);
    request.n_ranks = probe->n_ranks;
    request.iterations = PROBE_N_CASES * MAX_RUNS;
    struct bench_ranks ranks = {.bench = "probe",
                                .request = &request,
                                .transport = probe->transport,
                                .run = run_rank,
                                .context = probe};
    probe->ranks = &ranks;
    bool is_good = bench_ranks_begin(&ranks) && bench_ranks_run(&ranks);
    for (unsigned which = 0; which < PROBE_N_CASES && is_good; which++) {
        if (is_measured(probe, (enum probe_case)which)) {
            times_ns[which] = find_time_ns(ranks.page, probe->n_ranks, (enum probe_case)which);
        }
    }
    bench_ranks_end(&ranks);
    if (is_good && probe->has_compute) {
        find_compute(times_ns, found);
    }
    if (is_good) {
        find_collectives(probe, times_ns, found);
    }
    return is_good;
}

/* Results ---------------------------------------------------------------------------------------------- */

static void print_machine(FILE *out, const struct found *found)
{
    fprintf(out, "{\n  \"shoal_machine\": 1,\n  \"name\": \"%s\",\n", found->name);
    fprintf(out, "  \"call_ns\": %.6g,\n  \"touched_bytes_per_ns\": %.6g,\n", found->call_ns,
            found->touched_bytes_per_ns);
    fprintf(out, "  \"operations_per_ns\": %.6g,\n  \"functions_per_ns\": %.6g,\n", found->operations_per_ns,
            found->functions_per_ns);
    fprintf(out, "  \"start_ns\": %.6g,\n  \"hidden\": %.6g,\n  \"collectives\": [\n", found->start_ns,
            found->hidden);
    for (size_t i = 0; i < found->n_rows; i++) {
        const struct row *row = &found->rows[i];
        fprintf(out,
                "    {\"transport\": \"%s\", \"ranks\": %d, \"op\": \"%s\", \"latency_ns\": %.6g, "
                "\"bytes_per_ns\": %.6g}%s\n",
                row->transport, row->n_ranks, row->op, row->latency_ns, row->bytes_per_ns,
                i + 1 < found->n_rows ? "," : "");
    }
    fprintf(out, "  ]\n}\n");
}

static void print_json(const struct found *found)
{
    print_machine(stdout, found);
}

static void print_table(const struct found *found)
{
    double loads[3] = {0};
    (void)getloadavg(loads, 3);
    measure_print_cpu(stdout);
    printf("# load      %.2f %.2f %.2f\n", loads[0], loads[1], loads[2]);
    printf("machine          %s\n", found->name);
    printf("a call           %.0f ns\n", found->call_ns);
    printf("memory           %.2f GB/s that a rank reads and writes\n", found->touched_bytes_per_ns);
    printf("matrix products  %.2f GFLOP/s of a rank\n", found->operations_per_ns);
    printf("functions        %.3f values of gelu in a ns\n", found->functions_per_ns);
    printf("a start          %.2f us of the rank's thread\n", found->start_ns * 1e-3);
    printf("hidden           %.0f%% of an all_reduce behind matrix products\n", found->hidden * 100);
    printf("%-10s %5s  %-14s %10s %8s\n", "transport", "ranks", "op", "latency_us", "GB/s");
    for (size_t i = 0; i < found->n_rows; i++) {
        const struct row *row = &found->rows[i];
        printf("%-10s %5d  %-14s %10.2f %8.2f\n", row->transport, row->n_ranks, row->op,
               row->latency_ns * 1e-3, row->bytes_per_ns);
    }
}

/* The file appears when it is whole, so that no rank reads half of it. It is opened before anything is measured. */
static bool fail_output(void)
{
    fprintf(stderr, "shoal bench probe: --output: %s\n", shoal_error_text());
    return false;
}

static bool open_output(const char *path, struct tool_output *output)
{
    return !path || tool_output_open(path, output) == SHOAL_OK || fail_output();
}

/* found: NULL if nothing was measured, and the file stays as it was. */
static bool close_output(struct tool_output *output, const struct found *found)
{
    if (!output->stream) {
        return true;
    }
    if (!found) {
        tool_output_drop(output);
        return true;
    }
    print_machine(output->stream, found);
    return tool_output_commit(output) == SHOAL_OK || fail_output();
}

/* Arguments -------------------------------------------------------------------------------------------- */

/* Under a launcher its ranks are measured; otherwise those that were asked for. */
static bool settle_ranks(struct arguments *arguments)
{
    struct measure_request request;
    long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    measure_request_init(&request);
    request.n_ranks = arguments->n_n_ranks > 0 ? arguments->n_ranks[0] : 0;
    if (!bench_ranks_settle(&request, FEW_RANKS, false)) {
        return false;
    }
    bool is_launched = bench_place()->is_launched;
    if (request.n_ranks < FEW_RANKS) {
        (void)tool_refuse("%d rank cannot communicate; at least %d are needed", request.n_ranks, FEW_RANKS);
        return false;
    }
    if (arguments->n_n_ranks == 0) {
        arguments->n_ranks[arguments->n_n_ranks++] = request.n_ranks;
        if (n_processors > FEW_RANKS && !is_launched) {
            arguments->n_ranks[arguments->n_n_ranks++] =
                (int)(n_processors < MEASURE_MAX_RANKS ? n_processors : MEASURE_MAX_RANKS);
        }
    }
    if (arguments->n_transports == 0) {
        arguments->transports[0] = "shm";
        arguments->transports[1] = "socket";
        arguments->n_transports = is_launched ? 1 : 2;
    }
    return true;
}

/* What files may have for a name. */
static bool set_name(const struct arguments *arguments, struct found *found)
{
    struct utsname about;
    int n_chars = arguments->name ? snprintf(found->name, sizeof found->name, "%s", arguments->name)
                                  : snprintf(found->name, sizeof found->name, "%.32s-%ld",
                                             uname(&about) == 0 ? about.machine : "machine",
                                             sysconf(_SC_NPROCESSORS_ONLN));
    bool is_good = n_chars > 0 && (size_t)n_chars < sizeof found->name;
    for (const char *c = found->name; *c && is_good; c++) {
        is_good = *c > ' ' && *c <= '~' && *c != '"' && *c != '\\';
    }
    if (!is_good) {
        (void)tool_refuse("--name: '%s' is not a word of at most %zu characters",
                          arguments->name ? arguments->name : found->name, sizeof found->name - 1);
    }
    return is_good;
}

int bench_probe(int argc, char **argv)
{
    struct arguments arguments = {.name = NULL};
    struct found found = {.n_rows = 0};
    struct tool_output output = {.stream = NULL};
    int exit_status;
    if (!tool_options_read(&bench_probe_options, argc, argv, &arguments, NULL, &exit_status)) {
        return exit_status;
    }
    if (!settle_ranks(&arguments) || !set_name(&arguments, &found)) {
        return TOOL_USAGE;
    }
    if (bench_is_checking()) {
        return TOOL_DONE;
    }
    if (!open_output(bench_prints() ? arguments.output : NULL, &output)) {
        return TOOL_FAILED;
    }
    for (size_t i = 0; i < arguments.n_n_ranks * arguments.n_transports; i++) {
        struct probe probe = {.transport = arguments.transports[i / arguments.n_n_ranks],
                              .n_ranks = arguments.n_ranks[i % arguments.n_n_ranks],
                              .n_threads = arguments.n_threads,
                              .has_compute = i == 0};
        if (!run_probe(&probe, &found)) {
            (void)close_output(&output, NULL);
            return TOOL_FAILED;
        }
    }
    if (bench_prints()) {
        (arguments.is_json ? print_json : print_table)(&found);
    }
    return close_output(&output, &found) ? TOOL_DONE : TOOL_FAILED;
}
