/* SPDX-License-Identifier: MIT */
/*
 * What a trace costs: steps of a GPT that is fully sharded, in turns with and without a trace, in one run. bench/trace_cost.sh builds
 * and runs it. Prints medians of both and their ratio, and what one range of a program costs with and without a trace.
 *
 *     shoal run -n 2 trace_cost [ROUNDS [LAYERS WIDTH BATCH CONTEXT]]
 */
#include <shoal/shoal.h>
#include <shoal_nn/modules.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))

enum {
    STEPS_OF_A_ROUND = 5,
    RANGES = 100000,
    VOCABULARY = 256
};

static double now(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x;
    double b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median(double *times, size_t count)
{
    qsort(times, count, sizeof times[0], compare);
    return times[count / 2];
}

struct run {
    shoal_group *group;
    shoal_module *gpt;
    shoal_nn_optimizer *optimizer;
    int64_t batch;
    int64_t context;
};

static double step(const struct run *run)
{
    int64_t count = run->batch * run->context;
    DO(shoal_scope_begin());
    shoal_tensor *tokens = shoal_zeros((int64_t[]){run->batch, run->context}, 2, SHOAL_I64);
    int64_t *data = shoal_mutable_data(tokens);
    for (int64_t i = 0; data && i < count; i++) {
        data[i] = i * 7919 % VOCABULARY;
    }
    DO(shoal_group_barrier(run->group));
    double begin = now();
    shoal_tensor *logits = shoal_module_call_one(run->gpt, tokens);
    shoal_tensor *rows = shoal_reshape(logits, (int64_t[]){count, VOCABULARY}, 2);
    DO(shoal_backward(shoal_nn_cross_entropy(rows, shoal_reshape(tokens, (int64_t[]){count}, 1)), NULL));
    DO(shoal_nn_optimizer_step(run->optimizer));
    DO(shoal_nn_optimizer_zero_grad(run->optimizer));
    DO(shoal_group_barrier(run->group));
    double length = now() - begin;
    DO(shoal_scope_end());
    return length;
}

static void trace(bool is_on)
{
    shoal_trace_options options = SHOAL_TRACE_OPTIONS_INIT;
    options.path = "trace_cost.json";
    DO(is_on ? shoal_trace_start(&options) : shoal_trace_stop());
}

/* Nanoseconds of a range. */
static double time_ranges(void)
{
    double begin = now();
    for (int i = 0; i < RANGES; i++) {
        shoal_trace_begin("range");
        shoal_trace_end();
    }
    return (now() - begin) * 1e6 / RANGES;
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

/* Medians of steps without and with a trace. */
static void measure(const struct run *run, size_t n_rounds, double medians_out[2])
{
    size_t n_times = n_rounds * STEPS_OF_A_ROUND;
    double *times[2] = {calloc(n_times + 1, sizeof(double)), calloc(n_times + 1, sizeof(double))};
    if (!times[0] || !times[1]) {
        exit(1);
    }
    (void)step(run);
    (void)step(run);
    for (size_t round = 0; round < n_rounds; round++) {
        /* Which of both comes first changes from round to round. */
        for (size_t turn = 0; turn < 2; turn++) {
            bool is_on = (round + turn) % 2 == 1;
            if (is_on) {
                trace(true);
            }
            for (size_t i = 0; i < STEPS_OF_A_ROUND; i++) {
                times[is_on][round * STEPS_OF_A_ROUND + i] = step(run);
            }
            if (is_on) {
                trace(false);
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        medians_out[i] = median(times[i], n_times);
        free(times[i]);
    }
}

static int64_t number(int argc, char **argv, int index, int64_t otherwise)
{
    return argc > index ? strtol(argv[index], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    int64_t n_rounds = number(argc, argv, 1, 20);
    struct run run = {.batch = number(argc, argv, 4, 4), .context = number(argc, argv, 5, 128)};
    shoal_world *world;
    double medians[2];
    DO(shoal_nn_set_threads(1));
    DO(shoal_world_open(NULL, &world));
    run.group = shoal_world_group(world);
    create_model(&run, number(argc, argv, 2, 6), number(argc, argv, 3, 256));
    measure(&run, (size_t)n_rounds, medians);
    double range_off = time_ranges();
    trace(true);
    double range_on = time_ranges();
    trace(false);
    if (shoal_world_rank(world) == 0) {
        printf("step: %.3f ms off, %.3f ms on, ratio %.4f (medians of %d); range: %.1f ns off, %.1f ns on\n",
               medians[0], medians[1], medians[1] / medians[0], (int)n_rounds * STEPS_OF_A_ROUND, range_off,
               range_on);
    }
    shoal_nn_optimizer_free(run.optimizer);
    shoal_module_unref(run.gpt);
    return shoal_world_close(world) == SHOAL_OK ? 0 : 1;
}
