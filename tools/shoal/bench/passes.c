/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench passes`: times graphs and passes over them, by the number of nodes. A round makes a graph, which is not
 * timed, does one thing with it, and checks the result; a row is the median of its rounds. Nothing is communicated.
 */
#include "bench/passes.h"
#include "bench/launched.h"
#include "bench/benches.h"
#include "common/options.h"
#include "common/tool.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The promises that bench/bars.txt holds the library to: gradients that are fused and whose waits are scheduled, and layers that
   are captured. */
#define FUSED_GRADIENTS 1024
#define FUSED_LIMIT_MS 2.0
#define CAPTURED_LAYERS 12
#define CAPTURED_LIMIT_MS 50.0

enum {
    MAX_SIZES = 8,
    MAX_ROUNDS = 1000,
    PROMISED_ROUNDS = 31
};

struct request {
    bool is_json;
    const char *name; /* NULL means all */
    size_t sizes[MAX_SIZES];
    size_t n_sizes;
    size_t n_rounds; /* 0 if it depends on the size */
};

struct result {
    size_t n_nodes;
    size_t n_rounds;
    double ms;     /* the median */
    double cpu_ms; /* the median of the processor's time */
    size_t wrong;
};

struct promise {
    const char *name; /* of the case */
    size_t n_units;
    const char *unit;   /* its column of JSON */
    const char *column; /* of the time, which bench/bars.txt names */
    double limit_ms;
};

static const struct promise promises[] = {
    {"fuse_schedule", FUSED_GRADIENTS, "gradients", "fuse_schedule_1024_ms", FUSED_LIMIT_MS},
    {"capture", CAPTURED_LAYERS, "layers", "capture_12_layers_ms", CAPTURED_LIMIT_MS},
};

/* Measuring ----------------------------------------------------------------------------------------------- */

static int compare_times(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

static double cpu_time_ms(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static shoal_status measure_round(const struct bench_passes_case *one, size_t n_units, double *ms_out,
                                  double *cpu_ms_out, struct result *result)
{
    struct bench_passes_round round;
    shoal_status status = bench_passes_begin(one, n_units, &round);
    if (status == SHOAL_OK) {
        double begin_cpu_ms = cpu_time_ms();
        int64_t begin_ns = clock_now_ns();
        status = one->run(&round);
        *ms_out = (double)(clock_now_ns() - begin_ns) * 1e-6;
        *cpu_ms_out = cpu_time_ms() - begin_cpu_ms;
    }
    if (status == SHOAL_OK) {
        result->n_nodes = round.n_nodes > 0 ? round.n_nodes : shoal_graph_n_nodes(round.graph);
        result->wrong += one->count_wrong(&round);
    }
    bench_passes_end(&round);
    return status;
}

static shoal_status measure(const struct bench_passes_case *one, size_t n_units, size_t n_rounds,
                            struct result *result)
{
    double times[MAX_ROUNDS];
    double cpu_times[MAX_ROUNDS];
    *result = (struct result){.n_rounds = n_rounds};
    for (size_t i = 0; i < n_rounds; i++) {
        shoal_status status = measure_round(one, n_units, &times[i], &cpu_times[i], result);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    qsort(times, n_rounds, sizeof(times[0]), compare_times);
    qsort(cpu_times, n_rounds, sizeof(cpu_times[0]), compare_times);
    result->ms = times[n_rounds / 2];
    result->cpu_ms = cpu_times[n_rounds / 2];
    return SHOAL_OK;
}

static size_t count_rounds(const struct request *request, size_t n_nodes)
{
    if (request->n_rounds > 0) {
        return request->n_rounds;
    }
    return n_nodes <= 2000 ? 25 : n_nodes <= 20000 ? 9 : 3;
}

/* Printing ------------------------------------------------------------------------------------------------ */

static void print_header(void)
{
    printf("# ms        the median of rounds, each on a graph of its own; nothing is communicated\n");
    printf("# ratio     to the row before, with a tenth of the nodes: 13 is n log n\n");
    printf("# cpu_ms    likewise, of the time that the processor had for it: the same on an idle machine\n");
    printf("%-16s %-7s %9s %10s %10s %12s %7s %6s %6s\n", "#bench", "section", "nodes", "ms", "cpu_ms",
           "ns_per_node", "ratio", "wrong", "rounds");
}

/* `before_ms` is that of a tenth of the nodes; 0 if it was not measured. */
static void print_row(const struct request *request, const struct bench_passes_case *one,
                      const struct result *result, double before_ms)
{
    double ns_per_node = result->ms * 1e6 / (double)result->n_nodes;
    char ratio[32] = "";
    if (before_ms > 0) {
        (void)snprintf(ratio, sizeof(ratio), request->is_json ? ", \"ratio\": %.2f" : "%.2f",
                       result->ms / before_ms);
    }
    if (request->is_json) {
        printf(
            "{\"bench\": \"passes\", \"processors\": %ld, \"ranks\": 1, \"pass\": \"%s\", "
            "\"section\": \"%s\", \"nodes\": %zu, \"ms\": %.3f, \"cpu_ms\": %.3f, \"ns_per_node\": %.1f%s, "
            "\"wrong\": %zu, \"rounds\": %zu}\n",
            sysconf(_SC_NPROCESSORS_ONLN), one->name, one->section, result->n_nodes, result->ms,
            result->cpu_ms, ns_per_node, ratio, result->wrong, result->n_rounds);
    } else {
        printf("%-16s %-7s %9zu %10.3f %10.3f %12.1f %7s %6zu %6zu\n", one->name, one->section,
               result->n_nodes, result->ms, result->cpu_ms, ns_per_node, before_ms > 0 ? ratio : "-",
               result->wrong, result->n_rounds);
    }
    (void)fflush(stdout);
}

static void print_promised(const struct request *request, const struct promise *promise,
                           const struct result *result)
{
    if (request->is_json) {
        printf("{\"bench\": \"passes\", \"processors\": %ld, \"ranks\": 1, \"%s\": %zu, \"nodes\": %zu, "
               "\"%s\": %.3f, \"cpu_ms\": %.3f, \"wrong\": %zu, \"rounds\": %zu}\n",
               sysconf(_SC_NPROCESSORS_ONLN), promise->unit, promise->n_units, result->n_nodes,
               promise->column, result->ms, result->cpu_ms, result->wrong, result->n_rounds);
    } else {
        printf("%s %.3f cpu_ms %.3f  (%zu %s, %zu nodes, %zu rounds)", promise->column, result->ms,
               result->cpu_ms, promise->n_units, promise->unit, result->n_nodes, result->n_rounds);
        if (result->ms > promise->limit_ms) {
            printf("  above the promised %.1f", promise->limit_ms);
        }
        printf("\n");
    }
    (void)fflush(stdout);
}

/* Running ------------------------------------------------------------------------------------------------- */

static shoal_status run_promised(const struct request *request, const struct promise *promise, size_t *wrong)
{
    struct result result;
    size_t n_rounds = request->n_rounds > 0 ? request->n_rounds : PROMISED_ROUNDS;
    if (request->name && strcmp(request->name, promise->name) != 0) {
        return SHOAL_OK;
    }
    shoal_status status = measure(bench_passes_find(promise->name), promise->n_units, n_rounds, &result);
    if (status == SHOAL_OK) {
        print_promised(request, promise, &result);
        *wrong += result.wrong;
    }
    return status;
}

/* One case at all sizes. */
static shoal_status run_case(const struct request *request, const struct bench_passes_case *one,
                             size_t *wrong)
{
    double before_ms = 0;
    for (size_t i = 0; i < request->n_sizes; i++) {
        struct result result;
        size_t n_nodes = request->sizes[i];
        bool is_tenfold = i > 0 && n_nodes == 10 * request->sizes[i - 1];
        shoal_status status = measure(one, (n_nodes + one->nodes_per_unit - 1) / one->nodes_per_unit,
                                      count_rounds(request, n_nodes), &result);
        if (status != SHOAL_OK) {
            return status;
        }
        print_row(request, one, &result, is_tenfold ? before_ms : 0);
        before_ms = result.ms;
        *wrong += result.wrong;
    }
    return SHOAL_OK;
}

static int run_request(const struct request *request)
{
    size_t wrong = 0;
    shoal_status status = SHOAL_OK;
    if (!request->is_json) {
        print_header();
    }
    for (size_t i = 0; i < sizeof(promises) / sizeof(promises[0]) && status == SHOAL_OK; i++) {
        status = run_promised(request, &promises[i], &wrong);
    }
    for (size_t i = 0; i < bench_passes_n_cases && status == SHOAL_OK; i++) {
        const struct bench_passes_case *one = &bench_passes_cases[i];
        if (!request->name || strcmp(request->name, one->name) == 0) {
            status = run_case(request, one, &wrong);
        }
    }
    if (status != SHOAL_OK) {
        fprintf(stderr, "shoal bench passes: %s\n", shoal_error_text());
    }
    return status == SHOAL_OK && wrong == 0 ? TOOL_DONE : TOOL_FAILED;
}

/* Arguments ----------------------------------------------------------------------------------------------- */

static const char *pass_at(size_t index)
{
    if (index == bench_passes_n_cases) {
        return bench_passes_capturing.name;
    }
    return index < bench_passes_n_cases ? bench_passes_cases[index].name : NULL;
}

#define AT(field) offsetof(struct request, field)

static const struct tool_option option_rows[] = {
    {"--pass", "NAME", TOOL_OPTION_NAME, AT(name), .name_at = pass_at, .help = "only this"},
    {"--nodes", "N", TOOL_OPTION_COUNT, AT(sizes), 20, 10000000, .max_values = MAX_SIZES,
     .n_values_at = AT(n_sizes),
     .help = "of the graph, at least 20, again for more sizes; default 1000, 10000 and 100000"},
    {"--rounds", "K", TOOL_OPTION_COUNT, AT(n_rounds), 1, MAX_ROUNDS,
     .help = "by size if not given: 25 to 3"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(is_json), .help = "one object per line"},
};

const struct tool_options bench_passes_options = {
    .about = "Measures graphs and passes over them, by the number of nodes.\n",
    TOOL_OPTIONS_ROWS(option_rows),
    .notes = "Fusing and scheduling 1024 gradients is marked when it takes more than 2 ms, capturing a step\n"
             "of 12 layers when it takes more than 50 ms.\n",
};

int bench_passes(int argc, char **argv)
{
    struct request request = {.is_json = false};
    int exit_status;
    if (!tool_options_read(&bench_passes_options, argc, argv, &request, NULL, &exit_status)) {
        return exit_status;
    }
    if (request.n_sizes == 0) {
        request.sizes[request.n_sizes++] = 1000;
        request.sizes[request.n_sizes++] = 10000;
        request.sizes[request.n_sizes++] = 100000;
    }
    return bench_is_checking() ? TOOL_DONE : run_request(&request);
}
