/* SPDX-License-Identifier: MIT */
/*
 * Memory at its peak, for models whose units differ in size: GPT-2 with its tied embedding, and a large unit around small
 * ones. Ranks are processes; what they have is read from /proc before and after every call of a step. Models are small
 * unless SHOAL_TEST_FSDP_FULL is set: then they have their real size (GPT-2: 124 M parameters, 4 GB for two ranks) and the
 * figures are printed.
 */
#include <stdlib.h>

#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"
#include "fixtures/proc_memory.h"

enum {
    MAX_PARAMS = 160,
    N_BLOCKS = 12,
    N_STEPS = 3
};

#define MB 1e6

/* Sanitizers have memory of their own for every byte of a process. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_OWN_MEMORY 0
#else
#define COUNTS_OWN_MEMORY 1
#endif

static bool is_full(void)
{
    return getenv("SHOAL_TEST_FSDP_FULL") != NULL;
}

/* What a rank trains: AdamW has two moments for each element of a shard. */
struct trainer {
    struct rank *self;
    shoal_world *world;
    shoal_fsdp *fsdp;
    int n_params;
    int n_units;
    int first[32]; /* parameter of each unit */
    float *moments[2][MAX_PARAMS];
    size_t model_bytes;
    size_t before; /* private bytes before there was a model */
    size_t shared_before;
    size_t peak_shared; /* of the library's segments on the host, by ranks */
    size_t peak_own;    /* since before */
    size_t peak;        /* of both at one time */
};

static void add(struct trainer *trainer, int unit, const char *name, int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows, columns};
    CHECK_OK(
        shoal_fsdp_add_param(trainer->fsdp, unit, name, SHOAL_F32, columns > 0 ? 2 : 1, shape, NULL, NULL));
    if (unit == trainer->n_units) {
        trainer->first[trainer->n_units++] = trainer->n_params;
    }
    trainer->n_params++;
    trainer->model_bytes += (size_t)(rows * (columns > 0 ? columns : 1)) * sizeof(float);
}

static void add_block(struct trainer *trainer, int unit, int64_t c)
{
    add(trainer, unit, "ln1w", c, 0);
    add(trainer, unit, "ln1b", c, 0);
    add(trainer, unit, "qkvw", 3 * c, c);
    add(trainer, unit, "qkvb", 3 * c, 0);
    add(trainer, unit, "attprojw", c, c);
    add(trainer, unit, "attprojb", c, 0);
    add(trainer, unit, "ln2w", c, 0);
    add(trainer, unit, "ln2b", c, 0);
    add(trainer, unit, "fcw", 4 * c, c);
    add(trainer, unit, "fcb", 4 * c, 0);
    add(trainer, unit, "fcprojw", c, 4 * c);
    add(trainer, unit, "fcprojb", c, 0);
}

/* Unit 0 has what the model begins and ends with: the tied embedding, positions and the last norm. */
static void add_gpt2(struct trainer *trainer)
{
    int64_t c = is_full() ? 768 : 96;
    add(trainer, 0, "wte", is_full() ? 50257 : 6283, c);
    add(trainer, 0, "wpe", is_full() ? 1024 : 128, c);
    add(trainer, 0, "lnfw", c, 0);
    add(trainer, 0, "lnfb", c, 0);
    for (int i = 0; i < N_BLOCKS; i++) {
        add_block(trainer, i + 1, c);
    }
}

static void add_nested(struct trainer *trainer)
{
    int64_t count = (int64_t)((is_full() ? 64000000 : 1024000) / sizeof(float));
    add(trainer, 0, "outer", count, 0);
    for (int i = 1; i <= 4; i++) {
        add(trainer, i, "inner", count / 64, 0);
    }
}

/* Measuring ---------------------------------------------------------------------------------------------- */

static void look(struct trainer *trainer)
{
    size_t shared = proc_shared_bytes(trainer->self, "shoal:", NULL) - trainer->shared_before;
    size_t own = proc_own_bytes();
    own = own > trainer->before ? own - trainer->before : 0;
    shared /= (size_t)trainer->self->n_ranks;
    trainer->peak_shared = shared > trainer->peak_shared ? shared : trainer->peak_shared;
    trainer->peak_own = own > trainer->peak_own ? own : trainer->peak_own;
    trainer->peak = shared + own > trainer->peak ? shared + own : trainer->peak;
}

/* Steps -------------------------------------------------------------------------------------------------- */

static void forward(struct trainer *trainer, int unit, bool is_begin)
{
    CHECK_OK(is_begin ? shoal_fsdp_pre_forward(trainer->fsdp, unit)
                      : shoal_fsdp_post_forward(trainer->fsdp, unit));
    look(trainer);
}

/* A gradient of ones in the first element of each unit. */
static void backward(struct trainer *trainer, int unit, bool is_begin)
{
    if (is_begin) {
        CHECK_OK(shoal_fsdp_pre_backward(trainer->fsdp, unit));
        float *grad = shoal_fsdp_grad(trainer->fsdp, trainer->first[unit]);
        REQUIRE(grad != NULL);
        grad[0] += 1.0F;
    } else {
        CHECK_OK(shoal_fsdp_post_backward(trainer->fsdp, unit));
    }
    look(trainer);
}

/* Unit 0 stays gathered around all others, or is used at the beginning and at the end. */
static void run_step(struct trainer *trainer, bool is_nested)
{
    for (int use = 0; use < 2; use++) {
        bool is_first = use == 0;
        void (*call)(struct trainer *, int, bool) = is_first ? forward : backward;
        call(trainer, 0, true);
        if (!is_nested) {
            call(trainer, 0, false);
        }
        for (int i = 1; i < trainer->n_units; i++) {
            int unit = is_first ? i : trainer->n_units - i;
            call(trainer, unit, true);
            call(trainer, unit, false);
        }
        if (!is_nested) {
            call(trainer, 0, true);
        }
        call(trainer, 0, false);
    }
    CHECK_OK(shoal_fsdp_end_backward(trainer->fsdp));
    look(trainer);
}

/* Any update will do, of all elements. */
static void update(struct trainer *trainer)
{
    for (int id = 0; id < trainer->n_params; id++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(trainer->fsdp, id, &shard));
        float *values = shard.data;
        const float *grad = shard.grad;
        for (int k = 0; k < 2; k++) {
            if (!trainer->moments[k][id]) {
                trainer->moments[k][id] = calloc(shard.count + 1, sizeof(float));
            }
            REQUIRE(trainer->moments[k][id] != NULL);
        }
        REQUIRE(grad != NULL);
        for (size_t i = 0; i < shard.count; i++) {
            trainer->moments[0][id][i] += grad[i];
            trainer->moments[1][id][i] += grad[i] * grad[i];
            values[i] -= grad[i];
        }
    }
    look(trainer);
    CHECK_OK(shoal_fsdp_zero_grad(trainer->fsdp));
}

/* What was added up arrived: mean gradients of one, or two with two uses, in every step. */
static void check_values(struct trainer *trainer, bool is_nested)
{
    for (int unit = 0; unit < trainer->n_units; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(trainer->fsdp, unit));
        const float *values = shoal_fsdp_full_param(trainer->fsdp, trainer->first[unit]);
        REQUIRE(values != NULL);
        CHECK_DOUBLE((double)values[0], -(double)(N_STEPS * (unit == 0 && !is_nested ? 2 : 1)));
        CHECK_DOUBLE((double)values[1], 0.0);
        CHECK_OK(shoal_fsdp_post_forward(trainer->fsdp, unit));
    }
    CHECK_OK(shoal_fsdp_end_forward(trainer->fsdp));
}

enum shape {
    GPT2,
    NESTED
};

static void train(struct trainer *trainer, enum shape shape, bool is_nested, bool is_replicated)
{
    trainer->world = rank_world_open(trainer->self, 0);
    REQUIRE(trainer->world != NULL);
    REQUIRE_OK(shoal_group_barrier(shoal_world_group(trainer->world)));
    trainer->before = proc_own_bytes();
    trainer->shared_before = proc_shared_bytes(trainer->self, "shoal:", NULL);
    shoal_group *group = shoal_world_group(trainer->world);
    REQUIRE_OK(is_replicated ? shoal_fsdp_create_replicated(group, NULL, &trainer->fsdp)
                             : shoal_fsdp_create(group, NULL, &trainer->fsdp));
    shape == GPT2 ? add_gpt2(trainer) : add_nested(trainer);
    for (int step = 0; step < N_STEPS && !test_has_failed(); step++) {
        run_step(trainer, is_nested);
        update(trainer);
    }
    check_values(trainer, is_nested);
}

static void report(const struct trainer *trainer, const char *name)
{
    char text[1024];
    shoal_fsdp_memory_report memory = {.struct_size = sizeof memory};
    CHECK_OK(shoal_fsdp_memory(trainer->fsdp, &memory));
    if (is_full() && trainer->self->rank == 0) {
        (void)shoal_fsdp_memory_text(&memory, text, sizeof text);
        printf("%s, %d ranks: model %.1f MB; at the peak %.1f MB a rank; shared / ranks up to %.1f, private "
               "up to "
               "%.1f\n%s",
               name, trainer->self->n_ranks, (double)trainer->model_bytes / MB, (double)trainer->peak / MB,
               (double)trainer->peak_shared / MB, (double)trainer->peak_own / MB, text);
    }
}

static void finish(struct trainer *trainer)
{
    shoal_fsdp_free(trainer->fsdp);
    CHECK_INT(proc_shared_bytes(trainer->self, "shoal:window", NULL), 0);
    CHECK_INT(proc_shared_bytes(trainer->self, "shoal:symmetric", NULL), 0);
    CHECK_OK(shoal_world_close(trainer->world));
    for (int id = 0; id < trainer->n_params; id++) {
        free(trainer->moments[0][id]);
        free(trainer->moments[1][id]);
    }
}

/* Checks ------------------------------------------------------------------------------------------------- */

static void check_at_most(const char *what, size_t bytes, double most)
{
    if ((double)bytes > most) {
        test_failed(__FILE__, __LINE__, "%s: %.3f MB, more than %.3f", what, (double)bytes / MB, most / MB);
    }
}

static void check_in_all(const struct trainer *trainer, double most)
{
    /* On a GPU there are pages of the driver, too. */
    if (COUNTS_OWN_MEMORY && test_has_controls()) {
        check_at_most("in all", trainer->peak, most);
    }
}

/* Pages and flags of windows, lanes of the context, and small things of the library and of this test. */
static double slack(void)
{
    return is_full() ? 8 * MB : 2 * MB;
}

/* So many bytes of a unit, by its parameters. */
static double unit_bytes(enum shape shape, bool is_large)
{
    double c = is_full() ? 768 : 96;
    if (shape == GPT2) {
        double rows = is_full() ? 50257 + 1024 + 2 : 6283 + 128 + 2;
        return is_large ? 4 * rows * c : 4 * (12 * c * c + 13 * c);
    }
    return (is_full() ? 64 * MB : 1.024 * MB) / (is_large ? 1 : 64);
}

/*
 * One window and one buffer for the large unit, and two of each for the small ones: nothing else is ever in use at once.
 * Besides there are the shards, their gradients and two moments.
 */
static void check_shape(struct rank *self, const char *name, enum shape shape, bool is_nested, double most,
                        double most_shared)
{
    struct trainer trainer = {.self = self};
    test_deadline(is_full() ? 600 : 60);
    train(&trainer, shape, is_nested, false);
    report(&trainer, name);
    double pool = unit_bytes(shape, true) + 2 * unit_bytes(shape, false);
    double shared = pool / self->n_ranks + pool;
    double own = 4.0 * (double)trainer.model_bytes / self->n_ranks;
    check_at_most("shared", trainer.peak_shared, shared + slack());
    check_in_all(&trainer, shared + own + 2 * slack());
    if (is_full()) {
        check_at_most("shared", trainer.peak_shared, most_shared);
        check_in_all(&trainer, most);
    }
    finish(&trainer);
}

TEST_PROCESSES(gpt2_with_the_embedding_outside_on_two, 2)
{
    check_shape(self, "gpt2, embedding outside", GPT2, true, 1450 * MB, 1450 * MB);
}

TEST_PROCESSES(gpt2_with_the_embedding_used_twice_on_two, 2)
{
    check_shape(self, "gpt2, embedding used twice", GPT2, false, 1450 * MB, 1450 * MB);
}

TEST_PROCESSES(gpt2_with_the_embedding_outside_on_four, 4)
{
    check_shape(self, "gpt2, embedding outside", GPT2, true, 900 * MB, 900 * MB);
}

TEST_PROCESSES(gpt2_with_the_embedding_used_twice_on_four, 4)
{
    check_shape(self, "gpt2, embedding used twice", GPT2, false, 900 * MB, 900 * MB);
}

TEST_PROCESSES(a_large_unit_around_small_ones, 2)
{
    check_shape(self, "64 MB around 4 of 1 MB", NESTED, true, 1000 * MB, 140 * MB);
}

/* A process of its own has values, gradients and two moments. Gradients lie in buffers here; those of the embedding, which
   is used twice, need another one while the second is added to the first. */
static void check_replicated(struct rank *self, bool is_nested)
{
    struct trainer trainer = {.self = self};
    test_deadline(is_full() ? 600 : 60);
    train(&trainer, GPT2, is_nested, true);
    report(&trainer, is_nested ? "gpt2 replicated" : "gpt2 replicated, embedding used twice");
    double model = (double)trainer.model_bytes;
    double buffers = model + (is_nested ? 0 : unit_bytes(GPT2, true));
    check_at_most("shared", trainer.peak_shared, buffers + slack());
    check_in_all(&trainer, 3 * model + buffers + 2 * slack());
    CHECK_INT(proc_shared_bytes(self, "shoal:window", NULL), 0);
    finish(&trainer);
}

TEST_PROCESSES(replicas_are_a_process_each, 2)
{
    check_replicated(self, true);
}

TEST_PROCESSES(replicas_that_use_a_unit_twice, 2)
{
    check_replicated(self, false);
}
