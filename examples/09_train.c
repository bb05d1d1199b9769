/* SPDX-License-Identifier: MIT */
/*
 * Trains a small network on several ranks. Each rank has a part of every batch, and a part of every weight, gradient
 * and moment of the optimizer. Then the program trains the same network in one process, which ends with the same bits.
 *
 *     shoal run --no-label -n 2 ./09_train [--live] [STEPS]        without STEPS: for some seconds
 *
 * --live prints one line that changes, for terminals. Communication that goes on while the program computes counts as
 * hidden; the library's record of the last calls tells when each began and ended.
 *
 * The layers are the same in both trainings. They differ in where weights come from and where gradients go: run_part
 * for ranks, run_parts for one process.
 */
#include <math.h>
#include <shoal/shoal.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(call) ((call) == SHOAL_OK ? (void)0 : (fprintf(stderr, "%s\n", shoal_error_text()), exit(1)))
#define N_LAYERS 5
#define N_INPUTS 33 /* 8 groups of 4, and a 1 */
#define N_OUTPUTS 8
#define WIDEST 1024
#define ROWS 64 /* of a rank's part of a batch */
#define SECONDS 2.5
#define REPORT_SECONDS 0.5
#define N_CALLS (4 * N_LAYERS + 1) /* of a step, in which ranks may wait */
#define N_STEPS_SEEN 8             /* at the end of a report */

static const size_t sizes[N_LAYERS + 1] = {N_INPUTS, WIDEST, WIDEST, WIDEST, WIDEST, N_OUTPUTS};

static float values[N_LAYERS + 1][ROWS * WIDEST];   /* input of every layer, and the result */
static float upstream[N_LAYERS + 1][ROWS * WIDEST]; /* the gradient of each */
static float targets[ROWS * N_OUTPUTS];

static size_t count(int layer)
{
    return sizes[layer] * sizes[layer + 1];
}

static void *allocate(size_t n_floats)
{
    void *memory = calloc(n_floats, sizeof(float));
    return memory ? memory : (fprintf(stderr, "no memory\n"), exit(1), NULL);
}

/* Numbers between -1 and 1 that depend on nothing but the seed. */
static float draw(uint32_t *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return (float)(*seed >> 8) / 8388608.0F - 1.0F;
}

/* The network ------------------------------------------------------------------------------------------- */

static void start(int layer, float *weights)
{
    uint32_t seed = (uint32_t)layer;
    for (size_t i = 0; i < count(layer); i++) {
        weights[i] = draw(&seed) * 2.0F / sqrtf((float)sizes[layer]);
    }
}

/* Each output is the sine of the sum of its four inputs. */
static void make_batch(int step, int part)
{
    uint32_t seed = (uint32_t)(step * 1009 + part);
    for (size_t row = 0; row < ROWS; row++) {
        float *input = &values[0][row * N_INPUTS];
        float *target = &targets[row * N_OUTPUTS];
        for (size_t i = 0; i < N_OUTPUTS; i++) {
            float sum = 0.0F;
            for (size_t k = 0; k < 4; k++) {
                input[4 * i + k] = draw(&seed);
                sum += input[4 * i + k];
            }
            target[i] = sinf(sum);
        }
        input[N_INPUTS - 1] = 1.0F;
    }
}

static void forward(int layer, const float *weights)
{
    size_t n_out = sizes[layer + 1];
    DO(shoal_nn_sgemm(false, true, ROWS, n_out, sizes[layer], values[layer], weights, false,
                      values[layer + 1]));
    for (size_t i = 0; layer + 1 < N_LAYERS && i < ROWS * n_out; i++) {
        values[layer + 1][i] = values[layer + 1][i] > 0.0F ? values[layer + 1][i] : 0.0F;
    }
}

/* The mean of the squares. */
static double measure_loss(void)
{
    double sum = 0.0;
    for (size_t i = 0; i < ROWS * N_OUTPUTS; i++) {
        float error = values[N_LAYERS][i] - targets[i];
        upstream[N_LAYERS][i] = 2.0F * error / (ROWS * N_OUTPUTS);
        sum += (double)error * (double)error;
    }
    return sum / (ROWS * N_OUTPUTS);
}

/* Adds to the gradient. */
static void backward(int layer, const float *weights, float *gradient)
{
    size_t n_in = sizes[layer];
    size_t n_out = sizes[layer + 1];
    float *from = upstream[layer + 1];
    for (size_t i = 0; layer + 1 < N_LAYERS && i < ROWS * n_out; i++) {
        from[i] = values[layer + 1][i] > 0.0F ? from[i] : 0.0F;
    }
    DO(shoal_nn_sgemm(true, false, n_out, n_in, ROWS, from, values[layer], true, gradient));
    if (layer > 0) {
        DO(shoal_nn_sgemm(false, false, ROWS, n_in, n_out, from, weights, false, upstream[layer]));
    }
}

static shoal_nn_optimizer *make_optimizer(const shoal_nn_shard *shards)
{
    shoal_nn_optimizer *optimizer;
    shoal_nn_adamw_options options = SHOAL_NN_ADAMW_OPTIONS_INIT;
    DO(shoal_nn_adamw_create_raw(shards, N_LAYERS, &options, &optimizer));
    return optimizer;
}

/* What is seen ------------------------------------------------------------------------------------------ */

struct progress {
    bool is_live;
    bool has_line;     /* a live one, to be written over */
    const char *where; /* " a rank" */
    double begin_s;    /* of what the next line is about */
    int n_steps;
    double loss;
    double hidden; /* of communication; less than 0: there was none */
};

/* Shared pages count for their part; 0 when the kernel does not say. */
static double read_megabytes(void)
{
    char line[256];
    long kilobytes = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && kilobytes == 0 && fgets(line, sizeof line, file)) {
        (void)sscanf(line, "Pss: %ld", &kilobytes);
    }
    if (file) {
        (void)fclose(file);
    }
    return (double)kilobytes / 1024.0;
}

static void print_line(struct progress *progress, int step)
{
    double seconds = shoal_seconds() - progress->begin_s;
    /* One line up, and clear it. */
    printf("%sstep %3d  loss %.4f  %.1f steps/s", progress->has_line ? "\033[1A\033[2K" : "", step,
           progress->loss / progress->n_steps, progress->n_steps / seconds);
    if (progress->hidden >= 0.0) {
        printf("  communication %.0f%% hidden", 100.0 * progress->hidden);
    }
    printf("  %.0f MB%s\n", read_megabytes(), progress->where);
    (void)fflush(stdout);
    progress->has_line = progress->is_live;
}

/* Whether the step ends what a line is about. */
static bool note_step(struct progress *progress, double loss, bool is_last)
{
    progress->n_steps++;
    progress->loss += loss;
    return is_last || shoal_seconds() - progress->begin_s >= REPORT_SECONDS;
}

static void report(struct progress *progress, int step)
{
    print_line(progress, step);
    progress->begin_s = shoal_seconds();
    progress->n_steps = 0;
    progress->loss = 0.0;
}

/* On ranks ---------------------------------------------------------------------------------------------- */

static shoal_fsdp *fsdp; /* layer k is unit k, and has parameter k */

struct interval {
    double begin_s;
    double end_s;
};

static struct interval calls[N_STEPS_SEEN * N_CALLS]; /* the last ones, in turn */
static size_t n_calls;

/* Calls that may wait for other ranks. */
#define CALL(call)                                                                \
    do {                                                                          \
        struct interval *interval = &calls[n_calls++ % (N_STEPS_SEEN * N_CALLS)]; \
        interval->begin_s = shoal_seconds();                                      \
        DO(call);                                                                 \
        interval->end_s = shoal_seconds();                                        \
    } while (0)

static double run_part(int step, int part)
{
    make_batch(step, part);
    for (int layer = 0; layer < N_LAYERS; layer++) {
        CALL(shoal_fsdp_pre_forward(fsdp, layer));
        forward(layer, shoal_fsdp_full_param(fsdp, layer));
        CALL(shoal_fsdp_post_forward(fsdp, layer));
    }
    double loss = measure_loss();
    for (int layer = N_LAYERS - 1; layer >= 0; layer--) {
        CALL(shoal_fsdp_pre_backward(fsdp, layer));
        backward(layer, shoal_fsdp_full_param(fsdp, layer), shoal_fsdp_grad(fsdp, layer));
        CALL(shoal_fsdp_post_backward(fsdp, layer));
    }
    CALL(shoal_fsdp_end_backward(fsdp));
    return loss;
}

/* The record is text; this keeps as much as there is room for. */
struct record {
    char text[256 << 10];
    size_t n_bytes;
};

static int keep_text(void *context, const char *text, size_t bytes)
{
    struct record *record = context;
    if (bytes >= sizeof record->text - record->n_bytes) {
        return 0;
    }
    memcpy(record->text + record->n_bytes, text, bytes);
    record->n_bytes += bytes;
    record->text[record->n_bytes] = '\0';
    return 0;
}

static double find_seconds(const char *record, const char *key)
{
    const char *found = strstr(record, key);
    return found ? strtod(found + strlen(key), NULL) * 1e-9 : 0.0;
}

/* How much of it falls into calls, in which nothing is computed. */
static double measure_exposed(struct interval one)
{
    double sum_s = 0.0;
    for (size_t i = 0; i < N_STEPS_SEEN * N_CALLS && i < n_calls; i++) {
        double begin_s = calls[i].begin_s > one.begin_s ? calls[i].begin_s : one.begin_s;
        double end_s = calls[i].end_s < one.end_s ? calls[i].end_s : one.end_s;
        sum_s += end_s > begin_s ? end_s - begin_s : 0.0;
    }
    return sum_s;
}

/* Over the gathers and reductions of the last steps. */
static double measure_hidden(shoal_world *world)
{
    static struct record record;
    double all_s = 0.0;
    double exposed_s = 0.0;
    size_t first = n_calls < N_STEPS_SEEN * N_CALLS ? 0 : n_calls % (N_STEPS_SEEN * N_CALLS);
    record.n_bytes = 0;
    DO(shoal_world_dump(world, keep_text, &record));
    for (const char *at = record.text; (at = strstr(at, "{\"op\": \"")) != NULL; at++) {
        struct interval one = {find_seconds(at, "\"start_ns\": "), find_seconds(at, "\"end_ns\": ")};
        bool is_ours = strncmp(at, "{\"op\": \"window_gather", 21) == 0 ||
                       strncmp(at, "{\"op\": \"reduce_scatter", 22) == 0;
        if (is_ours && one.begin_s >= calls[first].begin_s && one.end_s > one.begin_s) {
            all_s += one.end_s - one.begin_s;
            exposed_s += measure_exposed(one);
        }
    }
    return all_s > 0.0 ? 1.0 - exposed_s / all_s : -1.0;
}

static void find_shards(shoal_nn_shard *shards)
{
    for (int layer = 0; layer < N_LAYERS; layer++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        DO(shoal_fsdp_update_shard(fsdp, layer, &shard));
        shards[layer] = (shoal_nn_shard){shard.data, shard.grad, shard.count, SHOAL_F32, SHOAL_F32};
    }
}

static void shard_network(shoal_group *group)
{
    DO(shoal_fsdp_create(group, NULL, &fsdp));
    for (int layer = 0; layer < N_LAYERS; layer++) {
        int64_t shape[] = {(int64_t)sizes[layer + 1], (int64_t)sizes[layer]};
        float *weights = allocate(count(layer));
        start(layer, weights);
        DO(shoal_fsdp_add_param(fsdp, layer, "weights", SHOAL_F32, 2, shape, weights, NULL));
        free(weights);
    }
}

/* How many steps it did: as asked for, or until rank 0 finds that time is over. */
static int train_ranks(shoal_world *world, int n_wanted, bool is_live, float *const *weights_out)
{
    shoal_group *group = shoal_world_group(world);
    int rank = shoal_world_rank(world);
    int n_ranks = shoal_world_n_ranks(world);
    shoal_nn_shard shards[N_LAYERS];
    shard_network(group);
    find_shards(shards);
    shoal_nn_optimizer *optimizer = make_optimizer(shards);
    struct progress progress = {.is_live = is_live, .where = " a rank"};
    double end_s = shoal_seconds() + SECONDS;
    progress.begin_s = shoal_seconds();
    int step = 0;
    for (bool is_last = false; !is_last;) {
        double loss = run_part(step, rank);
        find_shards(shards);
        DO(shoal_nn_optimizer_step_raw(optimizer, shards, N_LAYERS));
        DO(shoal_fsdp_zero_grad(fsdp));
        step++;
        double sums[] = {loss, rank == 0 && (n_wanted > 0 ? step == n_wanted : shoal_seconds() >= end_s)};
        DO(shoal_group_all_reduce(group, sums, sums, 2, SHOAL_F64, SHOAL_SUM));
        is_last = sums[1] > 0.0;
        if (rank == 0 && note_step(&progress, sums[0] / n_ranks, is_last)) {
            progress.hidden = measure_hidden(world);
            report(&progress, step);
        }
    }
    for (int layer = 0; layer < N_LAYERS; layer++) {
        DO(shoal_fsdp_gather(shoal_fsdp_param_of(fsdp, layer), weights_out[layer], SHOAL_FSDP_ALL_RANKS));
    }
    shoal_nn_optimizer_free(optimizer);
    shoal_fsdp_free(fsdp);
    return step;
}

/* In one process ---------------------------------------------------------------------------------------- */

/* A part's gradient comes to those of the parts before it. */
static void add_part(int layer, const float *weights, int part, float *part_gradient, float *gradient)
{
    memset(part_gradient, 0, count(layer) * sizeof *part_gradient);
    backward(layer, weights, part_gradient);
    for (size_t i = 0; i < count(layer); i++) {
        gradient[i] = part == 0 ? part_gradient[i] : gradient[i] + part_gradient[i];
    }
}

static double run_parts(int step, int n_parts, const shoal_nn_shard *shards, float *const *gradients)
{
    static float part_gradient[WIDEST * WIDEST];
    double loss = 0.0;
    for (int part = 0; part < n_parts; part++) {
        make_batch(step, part);
        for (int layer = 0; layer < N_LAYERS; layer++) {
            forward(layer, shards[layer].data);
        }
        loss += measure_loss() / n_parts;
        for (int layer = N_LAYERS - 1; layer >= 0; layer--) {
            add_part(layer, shards[layer].data, part, part_gradient, gradients[layer]);
        }
    }
    for (int layer = 0; layer < N_LAYERS; layer++) {
        for (size_t i = 0; i < count(layer); i++) {
            gradients[layer][i] /= (float)n_parts;
        }
    }
    return loss;
}

static void train_alone(int n_steps, int n_parts, bool is_live, float *const *weights_out)
{
    shoal_nn_shard shards[N_LAYERS];
    float *gradients[N_LAYERS];
    for (int layer = 0; layer < N_LAYERS; layer++) {
        gradients[layer] = allocate(count(layer));
        start(layer, weights_out[layer]);
        shards[layer] =
            (shoal_nn_shard){weights_out[layer], gradients[layer], count(layer), SHOAL_F32, SHOAL_F32};
    }
    shoal_nn_optimizer *optimizer = make_optimizer(shards);
    struct progress progress = {.is_live = is_live, .where = "", .hidden = -1.0, .begin_s = shoal_seconds()};
    for (int step = 0; step < n_steps; step++) {
        double loss = run_parts(step, n_parts, shards, gradients);
        DO(shoal_nn_optimizer_step_raw(optimizer, shards, N_LAYERS));
        if (note_step(&progress, loss, step + 1 == n_steps)) {
            report(&progress, step + 1);
        }
    }
    shoal_nn_optimizer_free(optimizer);
    for (int layer = 0; layer < N_LAYERS; layer++) {
        free(gradients[layer]);
    }
}

/* The whole --------------------------------------------------------------------------------------------- */

static void print_start(int n_ranks)
{
    size_t n_weights = 0;
    shoal_nn_blas blas = SHOAL_NN_BLAS_INIT;
    DO(shoal_nn_blas_info(&blas));
    for (int layer = 0; layer < N_LAYERS; layer++) {
        n_weights += count(layer);
    }
    printf("%d rank%s, %zu weights; matrix products: %s%s%s\n", n_ranks, n_ranks == 1 ? "" : "s", n_weights,
           blas.library, blas.core[0] ? ", " : "", blas.core);
    (void)fflush(stdout);
}

static bool compare(float *const *left, float *const *right)
{
    bool is_same = true;
    for (int layer = 0; layer < N_LAYERS; layer++) {
        is_same = is_same && memcmp(left[layer], right[layer], count(layer) * sizeof(float)) == 0;
    }
    return is_same;
}

int main(int n_arguments, char **arguments)
{
    bool is_live = n_arguments > 1 && strcmp(arguments[1], "--live") == 0;
    int n_wanted = n_arguments > 1 + is_live ? (int)strtol(arguments[1 + is_live], NULL, 10) : 0;
    float *weights[N_LAYERS];
    float *weights_alone[N_LAYERS];
    shoal_world *world;
    DO(shoal_world_open(NULL, &world));
    int rank = shoal_world_rank(world);
    int n_ranks = shoal_world_n_ranks(world);
    for (int layer = 0; layer < N_LAYERS; layer++) {
        weights[layer] = allocate(count(layer));
        weights_alone[layer] = allocate(count(layer));
    }
    if (rank == 0) {
        print_start(n_ranks);
    }
    int n_steps = train_ranks(world, n_wanted, is_live, weights);
    DO(shoal_world_close(world));
    bool is_same = true;
    if (rank == 0) {
        printf("the same in one process:\n");
        train_alone(n_steps, n_ranks, is_live, weights_alone);
        is_same = compare(weights, weights_alone);
        printf("%d rank%s and one process, %d steps each, ended in %s.\n", n_ranks, n_ranks == 1 ? "" : "s",
               n_steps, is_same ? "the same bits" : "DIFFERENT bits");
    }
    for (int layer = 0; layer < N_LAYERS; layer++) {
        free(weights[layer]);
        free(weights_alone[layer]);
    }
    return is_same ? 0 : 1;
}
