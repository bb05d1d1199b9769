/* SPDX-License-Identifier: MIT */
/*
 * Measures what a trace costs: steps of a fully sharded GPT, in pairs with and without a trace, in one run.
 * bench/trace_cost.sh builds and runs it.
 *
 *     shoal run -n 2 trace_cost [PAIRS [LAYERS WIDTH BATCH CONTEXT]]
 *
 * Other programs on the machine slow down both halves of a pair about equally, so ratios are taken within pairs; which
 * half comes first changes from pair to pair. The program prints the median ratio with its 95 % confidence interval (by
 * order statistics), for wall time and for the processor time of all ranks, which other programs disturb less. Then it
 * prints two numbers that do not depend on the load much: how many events a step of rank 0 has, and what one event
 * costs.
 */
#include <shoal/shoal.h>
#include <shoal_nn/modules.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))

enum {
    STEPS_OF_A_HALF = 2,
    RANGES = 20000,
    RANGE_ROUNDS = 25,
    VOCABULARY = 256
};

static const char path[] = "trace_cost.json";

/* In milliseconds. */
static double read_clock(clockid_t clock)
{
    struct timespec time;
    (void)clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x;
    double b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* The median, and the order statistics that hold it with 95 %. */
struct bounds {
    double low;
    double middle;
    double high;
};

static struct bounds find_bounds(double *numbers, size_t count)
{
    qsort(numbers, count, sizeof numbers[0], compare);
    double half_width = 0.98 * sqrt((double)count);
    double last = (double)(count - 1);
    double low = floor(last / 2.0 - half_width);
    double high = ceil(last / 2.0 + half_width);
    return (struct bounds){.low = numbers[low > 0.0 ? (size_t)low : 0],
                           .middle = (numbers[(count - 1) / 2] + numbers[count / 2]) / 2.0,
                           .high = numbers[high < last ? (size_t)high : count - 1]};
}

struct run {
    shoal_group *group;
    shoal_module *gpt;
    shoal_nn_optimizer *optimizer;
    int64_t batch;
    int64_t context;
};

static void step(const struct run *run)
{
    int64_t count = run->batch * run->context;
    DO(shoal_scope_begin());
    shoal_tensor *tokens = shoal_zeros((int64_t[]){run->batch, run->context}, 2, SHOAL_I64);
    int64_t *data = shoal_mutable_data(tokens);
    for (int64_t i = 0; data && i < count; i++) {
        data[i] = i * 7919 % VOCABULARY;
    }
    shoal_tensor *logits = shoal_module_call_one(run->gpt, tokens);
    shoal_tensor *rows = shoal_reshape(logits, (int64_t[]){count, VOCABULARY}, 2);
    DO(shoal_backward(shoal_nn_cross_entropy(rows, shoal_reshape(tokens, (int64_t[]){count}, 1)), NULL));
    DO(shoal_nn_optimizer_step(run->optimizer));
    DO(shoal_nn_optimizer_zero_grad(run->optimizer));
    DO(shoal_scope_end());
}

static void trace(bool is_on)
{
    shoal_trace_options options = SHOAL_TRACE_OPTIONS_INIT;
    options.path = path;
    DO(is_on ? shoal_trace_start(&options) : shoal_trace_stop());
}

/* Nanoseconds of a range: the least of some rounds, since nothing makes one faster than it is. */
static double time_ranges(void)
{
    double least = INFINITY;
    for (int round = 0; round < RANGE_ROUNDS; round++) {
        double begin = read_clock(CLOCK_MONOTONIC);
        for (int i = 0; i < RANGES; i++) {
            shoal_trace_begin("range");
            shoal_trace_end();
        }
        least = fmin(least, (read_clock(CLOCK_MONOTONIC) - begin) * 1e6 / RANGES);
    }
    return least;
}

/* Events of rank 0 in the file: it has one on each line. */
static double count_events(void)
{
    char line[4096];
    double count = 0.0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        count += strstr(line, "\"pid\":0,") && !strstr(line, "\"ph\":\"M\"");
    }
    if (file) {
        (void)fclose(file);
    }
    return count;
}

static void create_model(struct run *run, int64_t n_layers, int64_t width)
{
    shoal_nn_gpt_options size = SHOAL_NN_GPT_OPTIONS_INIT;
    size.n_layers = n_layers;
    size.width = width;
    size.n_heads = 4;
    size.context = run->context;
    size.vocabulary = VOCABULARY;
    shoal_fully_shard_options how = {.struct_size = sizeof(how), .group = run->group};
    DO(shoal_nn_gpt_create(&size, &run->gpt));
    for (int64_t i = 0; i < size.n_layers; i++) {
        DO(shoal_fully_shard(shoal_nn_gpt_block(run->gpt, i), &how));
    }
    DO(shoal_fully_shard(run->gpt, &how));
    DO(shoal_nn_adamw_create_for(run->gpt, NULL, NULL, 0, &run->optimizer));
}

/* Of a half of a pair, in milliseconds of a step. */
struct times {
    double wall;
    double processor; /* of all threads of all ranks */
};

static struct times run_half(const struct run *run, bool is_traced)
{
    struct times times;
    if (is_traced) {
        trace(true);
    }
    DO(shoal_group_barrier(run->group));
    double wall = read_clock(CLOCK_MONOTONIC);
    double processor = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < STEPS_OF_A_HALF; i++) {
        shoal_trace_step((int64_t)i);
        step(run);
    }
    times.processor = (read_clock(CLOCK_PROCESS_CPUTIME_ID) - processor) / STEPS_OF_A_HALF;
    DO(shoal_group_barrier(run->group));
    times.wall = (read_clock(CLOCK_MONOTONIC) - wall) / STEPS_OF_A_HALF;
    if (is_traced) {
        trace(false);
    }
    DO(shoal_group_all_reduce(run->group, &times.processor, &times.processor, 1, SHOAL_F64, SHOAL_SUM));
    return times;
}

/* Ratios of all pairs, and the times of steps without a trace. */
struct measured {
    size_t n_pairs;
    double *wall_ratios;
    double *processor_ratios;
    double *wall;
};

static void measure(const struct run *run, struct measured *measured)
{
    (void)run_half(run, false);
    (void)run_half(run, true);
    for (size_t i = 0; i < measured->n_pairs; i++) {
        struct times times[2];
        for (size_t turn = 0; turn < 2; turn++) {
            bool is_traced = (i + turn) % 2 == 1;
            times[is_traced] = run_half(run, is_traced);
        }
        measured->wall[i] = times[0].wall;
        measured->wall_ratios[i] = times[1].wall / times[0].wall;
        measured->processor_ratios[i] = times[1].processor / times[0].processor;
    }
}

static void print_bounds(const char *name, double *ratios, size_t count)
{
    struct bounds bounds = find_bounds(ratios, count);
    const char *verdict = bounds.high <= 1.02 ? "at most 2 %"
                          : bounds.low > 1.02 ? "MORE THAN 2 %"
                                              : "not decided";
    printf("%s with a trace : without: %.4f, between %.4f and %.4f (%s)\n", name, bounds.middle, bounds.low,
           bounds.high, verdict);
}

/* What a range costs without and with a trace: one event. The file has the events of the last half. */
static void print_events(double step_ms, double n_events)
{
    double range_off = time_ranges();
    trace(true);
    double range_on = time_ranges();
    trace(false);
    printf(
        "a step of rank 0 has %.0f events; one costs %.0f ns (%.1f ns without a trace): %.3f %% of a step\n",
        n_events, range_on, range_off, n_events * range_on * 1e-6 / step_ms * 100.0);
}

static int64_t number(int argc, char **argv, int index, int64_t otherwise)
{
    return argc > index ? strtol(argv[index], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    int64_t n_pairs = number(argc, argv, 1, 100);
    struct run run = {.batch = number(argc, argv, 4, 4), .context = number(argc, argv, 5, 128)};
    shoal_world *world;
    DO(shoal_nn_set_threads(1));
    DO(shoal_world_open(NULL, &world));
    run.group = shoal_world_group(world);
    create_model(&run, number(argc, argv, 2, 6), number(argc, argv, 3, 256));
    struct measured measured = {.n_pairs = n_pairs > 0 ? (size_t)n_pairs : 1};
    double *room = calloc(3 * measured.n_pairs, sizeof(double));
    if (!room) {
        return 1;
    }
    measured.wall = room;
    measured.wall_ratios = room + measured.n_pairs;
    measured.processor_ratios = room + 2 * measured.n_pairs;
    measure(&run, &measured);
    DO(shoal_group_barrier(run.group));
    double n_events = count_events() / STEPS_OF_A_HALF;
    DO(shoal_group_barrier(run.group));
    if (shoal_world_rank(world) == 0) {
        double step_ms = find_bounds(measured.wall, measured.n_pairs).middle;
        printf("a step takes %.3f ms without a trace; %zu pairs of %d steps\n", step_ms, measured.n_pairs,
               STEPS_OF_A_HALF);
        print_bounds("wall time,", measured.wall_ratios, measured.n_pairs);
        print_bounds("processor time,", measured.processor_ratios, measured.n_pairs);
        print_events(step_ms, n_events);
    }
    free(room);
    shoal_nn_optimizer_free(run.optimizer);
    shoal_module_unref(run.gpt);
    return shoal_world_close(world) == SHOAL_OK ? 0 : 1;
}
