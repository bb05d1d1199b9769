/* SPDX-License-Identifier: MIT */
/*
 * Gathers and reduce-scatters of the program's own. Objects that make the plain calls of a group must train to the bits of
 * the library's, are called as often and with as much as the layout says, and get all memory back, whatever fails.
 */
#include "fixtures/descriptor_calls.h"
#include "fixtures/fsdp_model.h"

#include <stdlib.h>

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* An object, and what it has seen. */
struct object {
    bool starts;           /* and leaves the waiting to others */
    bool leaves_and_fails; /* a work, and an error */
    int fails_at;          /* which call; 0: none */
    int scarce_at;         /* which allocation; 0: none */
    int n_calls;
    int n_allocations;
    int n_live;
    size_t live_bytes;
    size_t counts[64]; /* of the first calls */
    shoal_dtype dtype;
    shoal_reduce_op reduce;
    double factor;
    int n_ranks;
    char seen[256]; /* the first values that went in, as f32 */
};

static void *allocate(void *context, size_t bytes)
{
    struct object *object = context;
    if (++object->n_allocations == object->scarce_at) {
        return NULL;
    }
    char *memory = malloc(bytes);
    if (memory) {
        memset(memory, 0xEE, bytes);
        object->n_live++;
        object->live_bytes += bytes;
    }
    return memory;
}

static void release(void *context, void *memory, size_t bytes)
{
    struct object *object = context;
    object->n_live--;
    object->live_bytes -= bytes;
    free(memory);
}

static bool note_call(struct object *object, size_t count, shoal_dtype dtype, const shoal_group *group)
{
    if (object->n_calls < LENGTH(object->counts)) {
        object->counts[object->n_calls] = count;
    }
    object->dtype = dtype;
    object->n_ranks = shoal_group_n_ranks(group);
    return ++object->n_calls != object->fails_at;
}

static shoal_status gather(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                           shoal_group *group, shoal_work **work_out)
{
    struct object *object = context;
    size_t bytes = count * shoal_dtype_bytes(dtype);
    CHECK(in == (const char *)out + (size_t)shoal_group_rank(group) * bytes);
    CHECK(*work_out == NULL);
    bool works = note_call(object, count, dtype, group);
    if (!works && !object->leaves_and_fails) {
        return SHOAL_ERR_CANCELLED;
    }
    shoal_status status = object->starts
                              ? shoal_group_all_gather_start(group, in, out, count, dtype, work_out)
                              : shoal_group_all_gather(group, in, out, count, dtype);
    return works ? status : SHOAL_ERR_CANCELLED;
}

static shoal_status scatter(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                            shoal_reduce_op reduce, double factor, shoal_group *group, shoal_work **work_out)
{
    struct object *object = context;
    object->reduce = reduce;
    object->factor = factor;
    bool works = note_call(object, count, dtype, group);
    if (!works && !object->leaves_and_fails) {
        return SHOAL_ERR_CANCELLED;
    }
    if (reduce == SHOAL_PREMUL_SUM) {
        return object->starts
                   ? group_reduce_scatter_premul_start(group, in, out, count, dtype, factor, work_out)
                   : group_reduce_scatter_premul(group, in, out, count, dtype, factor);
    }
    shoal_status status =
        object->starts ? shoal_group_reduce_scatter_start(group, in, out, count, dtype, reduce, work_out)
                       : shoal_group_reduce_scatter(group, in, out, count, dtype, reduce);
    return works ? status : SHOAL_ERR_CANCELLED;
}

/* Of both kinds; without functions for memory, that of the library. */
static shoal_status use_objects(shoal_fsdp *fsdp, int unit, struct object *gatherer, struct object *scatterer,
                                bool has_memory)
{
    const shoal_custom_all_gather custom_gather = {.struct_size = sizeof custom_gather,
                                                   .allocate = has_memory ? allocate : NULL,
                                                   .release = has_memory ? release : NULL,
                                                   .call = gather,
                                                   .context = gatherer};
    const shoal_custom_reduce_scatter custom_scatter = {.struct_size = sizeof custom_scatter,
                                                        .allocate = has_memory ? allocate : NULL,
                                                        .release = has_memory ? release : NULL,
                                                        .call = scatter,
                                                        .context = scatterer};
    MODEL_TRY(
        shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(fsdp, unit), gatherer ? &custom_gather : NULL));
    return shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp_unit_of(fsdp, unit),
                                                scatterer ? &custom_scatter : NULL);
}

/* Bits --------------------------------------------------------------------------------------------------- */

static shoal_status train_custom(shoal_world *world, const struct model_case *c, struct object *gatherer,
                                 struct object *scatterer, bool has_memory, struct model_result *result)
{
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    shoal_fsdp *fsdp = NULL;
    shoal_mesh *mesh = NULL;
    memset(momentum, 0, sizeof momentum);
    shoal_status status = model_create(world, c, &mesh, &fsdp);
    status = status == SHOAL_OK ? model_add_params(fsdp) : status;
    status = status == SHOAL_OK ? use_objects(fsdp, -1, gatherer, scatterer, has_memory) : status;
    for (int step = 0; step < c->n_steps && status == SHOAL_OK; step++) {
        status = model_fsdp_step(fsdp, c, shoal_world_rank(world), step, momentum, &result->norms[step]);
    }
    status = status == SHOAL_OK ? model_gather(fsdp, result) : status;
    shoal_fsdp_free(fsdp);
    shoal_mesh_free(mesh);
    return status;
}

static void check_bits(shoal_world *world, const struct model_case *c)
{
    struct model_result expected;
    REQUIRE_OK(model_train(world, c, &expected));
    for (int k = 0; k < 8 && !test_has_failed(); k++) {
        struct object gatherer = {.starts = k % 2 == 1};
        struct object scatterer = {.starts = k / 2 % 2 == 1};
        struct model_result actual;
        bool has_memory = k < 6;
        REQUIRE_OK(train_custom(world, c, k == 4 ? NULL : &gatherer, k == 5 ? NULL : &scatterer, has_memory,
                                &actual));
        model_check_equal(&actual, &expected, "custom communication");
        CHECK_INT(gatherer.n_live, 0);
        CHECK_INT(scatterer.n_live, 0);
        CHECK_INT(gatherer.live_bytes + scatterer.live_bytes, 0);
        CHECK_INT(gatherer.n_allocations, has_memory ? gatherer.n_calls : 0);
        CHECK_INT(scatterer.n_allocations, has_memory ? 2 * scatterer.n_calls : 0);
        CHECK_INT(gatherer.n_calls > 0, k != 4);
        int n_reductions = c->n_steps * MODEL_UNITS * (c->reduces_always ? c->n_micro : 1);
        CHECK_INT(scatterer.n_calls, k != 5 ? n_reductions : 0);
    }
}

static const struct {
    shoal_reshard reshard;
    shoal_dtype reduce_dtype;
    double factor;
    bool force_sum;
    bool reduces_always;
    int max_reduces;
} bit_cases[] = {{.reshard = SHOAL_RESHARD_ALWAYS},
                 {.reshard = SHOAL_RESHARD_NEVER, .factor = 3.0, .max_reduces = 2},
                 {.reshard = SHOAL_RESHARD_PARTLY, .reduces_always = true},
                 {.reduce_dtype = SHOAL_F64, .reduces_always = true, .max_reduces = 3},
                 {.reduce_dtype = SHOAL_BF16, .force_sum = true},
                 {.reduce_dtype = SHOAL_F16, .factor = 7.0}};

static void check_all_bits(struct rank *self, enum model_mode mode)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int k = 0; k < LENGTH(bit_cases) && !test_has_failed(); k++) {
        struct model_case c = {.mode = mode,
                               .n_ranks = self->n_ranks,
                               .n_replicas = 2,
                               .n_steps = 2,
                               .n_micro = 2,
                               .reduces_always = bit_cases[k].reduces_always,
                               .options = {.reshard = bit_cases[k].reshard,
                                           .reshard_ranks = self->n_ranks == 4 && mode == MODEL_FSDP ? 2 : 1,
                                           .reduce_dtype = bit_cases[k].reduce_dtype,
                                           .divide_factor = bit_cases[k].factor,
                                           .force_sum = bit_cases[k].force_sum,
                                           .max_reduces = bit_cases[k].max_reduces}};
        check_bits(world, &c);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(bits_of_two, 2)
{
    check_all_bits(self, MODEL_FSDP);
}

TEST_RANKS(bits_of_three, 3)
{
    check_all_bits(self, MODEL_FSDP);
}

TEST_RANKS(bits_of_four, 4)
{
    check_all_bits(self, MODEL_FSDP);
}

TEST_RANKS(bits_of_two_replicas, 4)
{
    check_all_bits(self, MODEL_HSDP);
}

/* With a hook behind it, which sees zeros between what it gets. */
static shoal_status count_nonzero(void *context, const shoal_reduced_gradients *reduced,
                                  shoal_work **work_out)
{
    size_t *n_nonzero = context;
    (void)work_out;
    for (size_t i = 0; i < reduced->count; i++) {
        *n_nonzero += ((const float *)reduced->data)[i] != 0.0F;
    }
    return SHOAL_OK;
}

TEST_RANKS(a_hook_behind_custom_communication, 4)
{
    size_t n_nonzero[2] = {0, 0};
    struct model_case c = {.mode = MODEL_HSDP, .n_ranks = 4, .n_replicas = 2};
    for (int is_custom = 0; is_custom < 2; is_custom++) {
        struct object gatherer = {0};
        struct object scatterer = {.starts = true};
        struct model_pass pass;
        shoal_mesh *mesh = NULL;
        shoal_fsdp *fsdp = NULL;
        shoal_world *world = rank_world_open(self, is_custom);
        REQUIRE(world && CHECK_OK(model_create(world, &c, &mesh, &fsdp)) && CHECK_OK(model_add_params(fsdp)));
        CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), count_nonzero,
                                                &n_nonzero[is_custom]));
        if (is_custom == 1) {
            CHECK_OK(use_objects(fsdp, -1, &gatherer, &scatterer, true));
        }
        CHECK_OK(model_fsdp_pass(fsdp, &pass, 0, self->rank, 0));
        CHECK_OK(model_fsdp_pass(fsdp, &pass, 1, self->rank, 0));
        shoal_fsdp_free(fsdp);
        shoal_mesh_free(mesh);
        CHECK_OK(shoal_world_close(world));
    }
    CHECK(n_nonzero[0] > 0);
    CHECK_INT(n_nonzero[1], n_nonzero[0]);
}

/* Sizes -------------------------------------------------------------------------------------------------- */

/* Padded shards of three: 7 rows of 3 are 9 elements, 5 are 2; 60 columns of 3 are 60, 1 is 1; and so on. */
TEST_RANKS(counts_of_a_step, 3)
{
    static const size_t counts[] = {9 + 2, 60 + 1, 6 + 8, 4 + 2};
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct model_pass pass;
    struct object gatherer = {0};
    struct object scatterer = {0};
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 3, .options = {.forward_prefetch = -1}};
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    CHECK_OK(use_objects(fsdp, -1, &gatherer, &scatterer, true));
    for (int step = 0; step < 2; step++) {
        CHECK_OK(model_fsdp_pass(fsdp, &pass, step, self->rank, 0));
        CHECK_INT(gatherer.n_calls, 8 * (step + 1));
        CHECK_INT(scatterer.n_calls, 4 * (step + 1));
        CHECK_INT(gatherer.n_live + scatterer.n_live, 0);
    }
    for (int unit = 0; unit < 4; unit++) {
        CHECK_INT(gatherer.counts[unit], counts[unit]);
        CHECK_INT(gatherer.counts[7 - unit], counts[unit]);
        CHECK_INT(scatterer.counts[3 - unit], counts[unit]);
    }
    CHECK_INT(gatherer.dtype, SHOAL_F32);
    CHECK_INT(gatherer.n_ranks, 3);
    CHECK_INT(scatterer.reduce, SHOAL_AVG);
    /* One unit alone goes back to windows. */
    CHECK_OK(use_objects(fsdp, 1, NULL, NULL, true));
    CHECK_OK(model_fsdp_pass(fsdp, &pass, 2, self->rank, 0));
    CHECK_INT(gatherer.n_calls, 8 * 2 + 6);
    CHECK_INT(scatterer.n_calls, 4 * 2 + 3);
    model_close(world, mesh, fsdp);
}

TEST_RANKS(nothing_is_called_alone, 1)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct model_pass pass;
    struct object gatherer = {0};
    struct object scatterer = {0};
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 1};
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    CHECK_OK(use_objects(fsdp, -1, &gatherer, &scatterer, true));
    CHECK_OK(model_fsdp_pass(fsdp, &pass, 0, 0, 0));
    CHECK_INT(gatherer.n_calls + scatterer.n_calls, 0);
    model_close(world, mesh, fsdp);
}

/* What lies where ---------------------------------------------------------------------------------------- */

/* A text of what went in. */
static void write_down(char *text, size_t bytes, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(text);
        (void)snprintf(text + length, bytes - length, "%s%g", i > 0 ? " " : "", (double)values[i]);
    }
}

static shoal_status look_and_gather(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                                    shoal_group *group, shoal_work **work_out)
{
    struct object *object = context;
    write_down(object->seen, sizeof object->seen, in, count);
    return gather(context, out, in, count, dtype, group, work_out);
}

static shoal_status look_and_scatter(void *context, void *out, const void *in, size_t count,
                                     shoal_dtype dtype, shoal_reduce_op reduce, double factor,
                                     shoal_group *group, shoal_work **work_out)
{
    struct object *object = context;
    write_down(object->seen, sizeof object->seen, in, 2 * count);
    return scatter(context, out, in, count, dtype, reduce, factor, group, work_out);
}

/* The examples of the layout: A [3, 2], b [2] gathered; [3, 2], [2], [1] reduced. */
TEST_RANKS(rows_lie_as_in_the_examples, 2)
{
    static const float a[] = {0, 1, 2, 3, 4, 5};
    static const float b[] = {10, 11};
    static const float c[] = {20};
    struct object gatherer = {0};
    struct object scatterer = {0};
    const shoal_custom_all_gather custom_gather = {
        .struct_size = sizeof custom_gather, .call = look_and_gather, .context = &gatherer};
    const shoal_custom_reduce_scatter custom_scatter = {
        .struct_size = sizeof custom_scatter, .call = look_and_scatter, .context = &scatterer};
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "a", SHOAL_F32, 2, (int64_t[]){3, 2}, a, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "b", SHOAL_F32, 1, (int64_t[]){2}, b, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 1, "c", SHOAL_F32, 2, (int64_t[]){3, 2}, a, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 1, "d", SHOAL_F32, 1, (int64_t[]){2}, b, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 1, "e", SHOAL_F32, 1, (int64_t[]){1}, c, NULL));
    CHECK_OK(shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(fsdp, 0), &custom_gather));
    CHECK_OK(shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp_unit_of(fsdp, 1), &custom_scatter));
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_STRING(gatherer.seen, self->rank == 0 ? "0 1 2 3 10" : "4 5 0 0 11");
    CHECK_BYTES(shoal_fsdp_full_param(fsdp, 0), a, sizeof a);
    CHECK_BYTES(shoal_fsdp_full_param(fsdp, 1), b, sizeof b);
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 1));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 1));
    CHECK_OK(shoal_fsdp_pre_backward(fsdp, 1));
    memcpy(shoal_fsdp_grad(fsdp, 2), a, sizeof a);
    memcpy(shoal_fsdp_grad(fsdp, 3), b, sizeof b);
    memcpy(shoal_fsdp_grad(fsdp, 4), c, sizeof c);
    CHECK_OK(shoal_fsdp_post_backward(fsdp, 1));
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    CHECK_STRING(scatterer.seen, "0 1 2 3 10 20 4 5 0 0 11 0");
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* Of several dtypes: bytes. Also over neighbours, where slices of what was gathered are. */
static void check_mixed(struct rank *self, shoal_reshard reshard)
{
    static const int64_t numbers[] = {1, 2, 3, 4, 5};
    static const unsigned char bytes[] = {9, 8, 7, 6, 5, 4, 3};
    static const double reals[] = {0.5, 1.5, 2.5};
    static const float halves[] = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F, 8.0F};
    struct object gatherer = {0};
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    REQUIRE(world != NULL);
    const shoal_fsdp_options options = {
        .struct_size = sizeof options, .reshard = reshard, .reshard_ranks = 2};
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "bytes", SHOAL_U8, 1, (int64_t[]){7}, bytes, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "numbers", SHOAL_I64, 1, (int64_t[]){5}, numbers, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "reals", SHOAL_F64, 1, (int64_t[]){3}, reals, NULL));
    CHECK_OK(shoal_fsdp_add_param_along(fsdp, 0, "halves", SHOAL_F32, 2, (int64_t[]){2, 4}, 1, halves, NULL));
    CHECK_OK(shoal_fsdp_set_requires_grad(fsdp, 2, false));
    CHECK_OK(use_objects(fsdp, -1, &gatherer, NULL, true));
    for (int step = 0; step < 2; step++) {
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            CHECK_OK(is_backward ? shoal_fsdp_pre_backward(fsdp, 0) : shoal_fsdp_pre_forward(fsdp, 0));
            CHECK_BYTES(shoal_fsdp_full_param(fsdp, 0), bytes, sizeof bytes);
            CHECK_BYTES(shoal_fsdp_full_param(fsdp, 1), numbers, sizeof numbers);
            CHECK_BYTES(shoal_fsdp_full_param(fsdp, 2), reals, sizeof reals);
            CHECK_BYTES(shoal_fsdp_full_param(fsdp, 3), halves, sizeof halves);
            CHECK_OK(is_backward ? shoal_fsdp_post_backward(fsdp, 0) : shoal_fsdp_post_forward(fsdp, 0));
        }
        CHECK_OK(shoal_fsdp_end_backward(fsdp));
    }
    CHECK_INT(gatherer.dtype, SHOAL_U8);
    CHECK_INT(gatherer.counts[0], 16 + 16 + 16 + 16);
    CHECK_INT(gatherer.n_live, 0);
    CHECK_INT(gatherer.n_calls, 4);
    CHECK_INT(gatherer.n_ranks, reshard == SHOAL_RESHARD_PARTLY ? 2 : 4);
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(dtypes_that_differ, 4)
{
    check_mixed(self, SHOAL_RESHARD_ALWAYS);
    check_mixed(self, SHOAL_RESHARD_PARTLY);
}

/* What fails --------------------------------------------------------------------------------------------- */

/* The k-th call or allocation of either object, on all ranks alike. */
static void check_failing(struct rank *self, shoal_fsdp *fsdp, const struct model_case *c,
                          const struct model_result *expected, struct object *gatherer,
                          struct object *scatterer)
{
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    struct model_result actual;
    struct model_pass pass;
    double norm;
    bool is_scarce = gatherer->scarce_at > 0 || scatterer->scarce_at > 0;
    bool is_gather = gatherer->scarce_at > 0 || gatherer->fails_at > 0;
    memset(momentum, 0, sizeof momentum);
    CHECK_OK(use_objects(fsdp, -1, gatherer, scatterer, true));
    CHECK_STATUS(model_fsdp_pass(fsdp, &pass, 7, self->rank, 0),
                 is_scarce ? SHOAL_ERR_NO_MEMORY : SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("unit ");
    CHECK_ERROR_TEXT(is_gather ? ": gathering parameters: a custom all-gather"
                               : ": reducing gradients: a custom reduce-scatter");
    if (is_scarce) {
        CHECK_ERROR_TEXT(": allocate returned NULL for ");
    }
    CHECK_OK(shoal_fsdp_reset(fsdp));
    CHECK_INT(gatherer->n_live, 0);
    CHECK_INT(scatterer->n_live, 0);
    CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    for (int id = 0; id < MODEL_PARAMS; id++) {
        float start[MODEL_ROOM];
        model_start(id, start);
        CHECK_OK(shoal_fsdp_load(shoal_fsdp_param_of(fsdp, id), start));
    }
    for (int step = 0; step < c->n_steps; step++) {
        CHECK_OK(model_fsdp_step(fsdp, c, self->rank, step, momentum, &norm));
    }
    CHECK_OK(model_gather(fsdp, &actual));
    model_check_equal(&actual, expected, "after a failure");
    CHECK_INT(gatherer->n_live + scatterer->n_live, 0);
}

static void check_all_failing(struct rank *self, enum model_mode mode, shoal_reshard reshard)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct model_case c = {.mode = mode,
                           .n_ranks = self->n_ranks,
                           .n_replicas = 2,
                           .n_steps = 2,
                           .n_micro = 1,
                           .options = {.reshard = reshard, .reshard_ranks = 2, .max_reduces = 2}};
    struct model_result expected;
    memset(&expected, 0, sizeof expected);
    model_train_alone(&c, &expected);
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    for (int k = 1; k <= 8 && !test_has_failed(); k++) {
        bool starts = k % 2 == 0;
        for (int way = 0; way < 5; way++) {
            bool is_gather = way % 2 == 0;
            struct object failing = {.starts = starts, .leaves_and_fails = way == 4};
            struct object other = {.starts = !starts};
            *(way < 2 || way == 4 ? &failing.fails_at : &failing.scarce_at) = k;
            if (is_gather || (way == 1 && k <= 4) || way == 3) {
                check_failing(self, fsdp, &c, &expected, is_gather ? &failing : &other,
                              is_gather ? &other : &failing);
            }
        }
    }
    model_close(world, mesh, fsdp);
}

TEST_RANKS(failing_with_shards, 2)
{
    check_all_failing(self, MODEL_FSDP, SHOAL_RESHARD_ALWAYS);
}

TEST_RANKS(failing_over_neighbours, 4)
{
    check_all_failing(self, MODEL_FSDP, SHOAL_RESHARD_PARTLY);
}

TEST_RANKS(failing_with_both, 4)
{
    check_all_failing(self, MODEL_HSDP, SHOAL_RESHARD_ALWAYS);
}

/* A model that ends, or a world that is closed, in the middle of a step. */
TEST_RANKS(memory_comes_back_at_the_end, 2)
{
    for (int k = 0; k < 4; k++) {
        struct object gatherer = {.starts = true};
        struct object scatterer = {.starts = true};
        struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2, .options = {.forward_prefetch = 1}};
        struct model_pass pass;
        shoal_mesh *mesh = NULL;
        shoal_fsdp *fsdp = NULL;
        shoal_world *world = rank_world_open(self, k);
        REQUIRE(world && CHECK_OK(model_create(world, &c, &mesh, &fsdp)) && CHECK_OK(model_add_params(fsdp)));
        CHECK_OK(use_objects(fsdp, -1, &gatherer, &scatterer, true));
        CHECK_OK(model_fsdp_pass(fsdp, &pass, 0, self->rank, 0));
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0)); /* and the next is on its way */
        CHECK(gatherer.n_live > 0);
        if (k % 2 == 1) {
            for (int unit = 0; unit < MODEL_UNITS; unit++) {
                CHECK_OK(shoal_fsdp_pre_forward(fsdp, unit));
                CHECK_OK(shoal_fsdp_post_forward(fsdp, unit));
            }
            CHECK_OK(shoal_fsdp_pre_backward(fsdp, 3));
            CHECK_OK(shoal_fsdp_post_backward(fsdp, 3));
            CHECK_INT(scatterer.n_live, 2);
        }
        if (k < 2) {
            shoal_fsdp_free(fsdp);
            CHECK_OK(shoal_world_close(world));
        } else {
            CHECK_OK(shoal_world_close(world));
            shoal_fsdp_free(fsdp);
        }
        CHECK_INT(gatherer.n_live + scatterer.n_live, 0);
    }
}

TEST_RANKS(refused, 2)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct object object = {0};
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2};
    shoal_custom_all_gather custom_gather = {.struct_size = sizeof custom_gather, .context = &object};
    shoal_custom_reduce_scatter custom_scatter = {.struct_size = sizeof custom_scatter, .context = &object};
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    CHECK_STATUS(shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(NULL, 0), NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(fsdp, 4), NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_custom_all_gather: there is no unit 4");
    CHECK_STATUS(shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(fsdp, 0), &custom_gather),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_custom_all_gather: call is NULL");
    CHECK_STATUS(
        shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), &custom_scatter),
        SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_custom_reduce_scatter: call is NULL");
    custom_gather.call = gather;
    custom_gather.allocate = allocate;
    CHECK_STATUS(shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(fsdp, 0), &custom_gather),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("allocate is given, but release is not");
    custom_scatter.call = scatter;
    custom_scatter.release = release;
    CHECK_STATUS(shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp_unit_of(fsdp, 0), &custom_scatter),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("release is given, but allocate is not");
    custom_gather.struct_size = 1;
    CHECK_STATUS(shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(fsdp, 0), &custom_gather),
                 SHOAL_ERR_INVALID);
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_STATUS(shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(fsdp, 0), NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("in the middle of a step");
    CHECK_OK(shoal_fsdp_reset(fsdp));
    CHECK_OK(shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(fsdp, 0), NULL));
    model_close(world, mesh, fsdp);
}

/* Ranks that differ in it hear so before anything is sent. */
TEST_RANKS(ranks_that_differ, 2)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct object object = {0};
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2};
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    CHECK_OK(use_objects(fsdp, 2, self->rank == 0 ? &object : NULL, NULL, true));
    CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("unit 2");
    CHECK_INT(object.n_calls, 0);
    shoal_fsdp_free(fsdp);
    shoal_mesh_free(mesh);
    (void)!shoal_world_close(world);
}
