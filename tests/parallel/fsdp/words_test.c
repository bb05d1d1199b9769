/* SPDX-License-Identifier: MIT */
/*
 * What the explicit calls say to whoever calls them wrongly: the call, the parameter or unit, and the value, whole
 * texts. The parameter that is wrong is never the first of its unit.
 */
#include <math.h>

#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/fsdp_kinds.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

/* One size reaches the allocator on purpose; the sanitizer must let it answer NULL. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* The text is this and nothing more. */
#define SAYS(call, wanted)                          \
    do {                                            \
        CHECK((call) != SHOAL_OK);                  \
        CHECK_STRING(shoal_error_text(), (wanted)); \
    } while (0)

#define POINTS_NOWHERE(call, wanted)                \
    do {                                            \
        CHECK((call) == NULL);                      \
        CHECK_STRING(shoal_error_text(), (wanted)); \
    } while (0)

static void check_create(shoal_group *group, shoal_fsdp_options options, const char *wanted)
{
    shoal_fsdp *fsdp = NULL;
    options.struct_size = sizeof options;
    SAYS(shoal_fsdp_create(group, &options, &fsdp), wanted);
    CHECK(fsdp == NULL);
}

TEST_RANKS(creating, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    SAYS(shoal_fsdp_create(NULL, NULL, &fsdp), "fsdp_create: group is NULL");
    SAYS(shoal_fsdp_create(group, NULL, NULL), "fsdp_create: fsdp_out is NULL");
    SAYS(shoal_fsdp_create_replicated(NULL, NULL, &fsdp), "fsdp_create_replicated: group is NULL");
    SAYS(shoal_fsdp_create_replicated(group, NULL, NULL), "fsdp_create_replicated: fsdp_out is NULL");
    SAYS(shoal_fsdp_create_on_mesh(NULL, NULL, &fsdp), "fsdp_create_on_mesh: mesh is NULL");
    SAYS(shoal_fsdp_create_on_mesh(NULL, NULL, NULL), "fsdp_create_on_mesh: fsdp_out is NULL");
    CHECK_STATUS(shoal_fsdp_create(group, &(shoal_fsdp_options){.struct_size = 3}, &fsdp), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("fsdp_create: shoal_fsdp_options: struct_size is 3");
    check_create(group, (shoal_fsdp_options){.param_dtype = SHOAL_I32},
                 "fsdp_create: param_dtype: i32 is not a floating-point dtype");
    check_create(group, (shoal_fsdp_options){.reduce_dtype = (shoal_dtype)77},
                 "fsdp_create: reduce_dtype: 77 is not a dtype");
    check_create(group, (shoal_fsdp_options){.reshard = (shoal_reshard)9},
                 "fsdp_create: reshard is 9, which is none of SHOAL_RESHARD_*");
    check_create(group, (shoal_fsdp_options){.reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 3},
                 "fsdp_create: reshard_ranks: 3 does not divide the 2 shards, as SHOAL_RESHARD_PARTLY needs");
    check_create(
        group, (shoal_fsdp_options){.divide_factor = -1.0},
        "fsdp_create: divide_factor is -1, but must be a finite number of 0 (the number of ranks) or more");
    check_create(group, (shoal_fsdp_options){.forward_prefetch = -2},
                 "fsdp_create: forward_prefetch is -2, but must be -1 (none), 0 (the default) or more");
    check_create(group, (shoal_fsdp_options){.max_reduces = -2},
                 "fsdp_create: max_reduces is -2, but must be 0 (the default) or more");
    CHECK_OK(shoal_world_close(world));
}

static shoal_status add_second(shoal_fsdp *fsdp, int unit, shoal_dtype dtype, int n_dims,
                               const int64_t *shape, int dim)
{
    return shoal_fsdp_add_param_along(fsdp, unit, "second", dtype, n_dims, shape, dim, NULL, NULL);
}

TEST_RANKS(adding, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    SAYS(shoal_fsdp_pre_forward(s.fsdp, 0), "pre_forward: there is no unit 0: there are 0");
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "first", SHOAL_F32, 1, SHAPE(6), NULL, NULL));
    SAYS(shoal_fsdp_add_param(s.fsdp, 0, NULL, SHOAL_F32, 1, SHAPE(6), NULL, NULL),
         "add_param: name is NULL");
    SAYS(add_second(s.fsdp, 3, SHOAL_F32, 1, SHAPE(6), 0),
         "add_param: parameter second: unit is 3, but the next new unit is 1: units are numbered without "
         "gaps");
    SAYS(add_second(s.fsdp, -1, SHOAL_F32, 1, SHAPE(6), 0),
         "add_param: parameter second: unit is -1, but the next new unit is 1: units are numbered without "
         "gaps");
    SAYS(add_second(s.fsdp, 0, (shoal_dtype)99, 1, SHAPE(6), 0),
         "add_param: parameter second: dtype: 99 is not a dtype");
    SAYS(add_second(s.fsdp, 0, SHOAL_F32, 0, NULL, 0),
         "add_param: parameter second: it has no dimensions: give it the shape [1]");
    SAYS(add_second(s.fsdp, 0, SHOAL_F32, -2, SHAPE(6), 0),
         "add_param: parameter second: n_dims: -2 is not within 0..8");
    SAYS(add_second(s.fsdp, 0, SHOAL_F32, 1, NULL, 0), "add_param: parameter second: shape is NULL");
    SAYS(add_second(s.fsdp, 0, SHOAL_F32, 2, SHAPE(3, -4), 0),
         "add_param: parameter second: shape: size -4 of dimension 1 is negative");
    SAYS(add_second(s.fsdp, 0, SHOAL_F32, 2, SHAPE(4, 5), 1),
         "add_param: parameter second: dimension 1, which is 5, cannot be divided evenly into 2 shards; only "
         "dimension "
         "0 "
         "may be uneven");
    SAYS(add_second(s.fsdp, 0, SHOAL_F32, 2, SHAPE(4, 5), 2),
         "add_param: parameter second: dim: 2 is not within -2..1");
    CHECK_STATUS(add_second(s.fsdp, 0, SHOAL_F32, 1, SHAPE(INT64_C(1) << 55), 0), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("add_param: parameter second: ");
    CHECK_ERROR_TEXT("no memory for");
    CHECK_INT(shoal_fsdp_n_params(s.fsdp), 1);
    setting_close(&s);
}

/* A name that leaves no room for the reason is cut. */
TEST_RANKS(long_names, 2)
{
    struct setting s;
    char name[2001];
    memset(name, 'x', 2000);
    name[2000] = '\0';
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_STATUS(shoal_fsdp_add_param(s.fsdp, 0, name, SHOAL_F32, 1, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("xxx: shape is NULL");
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, name, SHOAL_F32, 1, SHAPE(6), NULL, NULL));
    CHECK_STATUS(shoal_fsdp_load(shoal_fsdp_param_of(s.fsdp, 0), NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("xxx: full is NULL, but has 6 elements");
    setting_close(&s);
}

/* "first" and "second" in unit 0, "numbers" in unit 1. */
static bool open_two(struct rank *self, struct setting *s)
{
    return setting_open(self, s, MODEL_FSDP, NULL) &&
           CHECK_OK(shoal_fsdp_add_param(s->fsdp, 0, "first", SHOAL_F32, 1, SHAPE(6), NULL, NULL)) &&
           CHECK_OK(shoal_fsdp_add_param(s->fsdp, 0, "second", SHOAL_F32, 1, SHAPE(6), NULL, NULL)) &&
           CHECK_OK(shoal_fsdp_add_param(s->fsdp, 1, "numbers", SHOAL_I32, 1, SHAPE(6), NULL, NULL));
}

TEST_RANKS(values, 2)
{
    struct setting s;
    float values[6] = {0.0F};
    char wanted[128];
    REQUIRE(open_two(self, &s));
    SAYS(shoal_fsdp_load(shoal_fsdp_param_of(s.fsdp, 1), NULL),
         "load: parameter second: full is NULL, but has 6 elements");
    SAYS(shoal_fsdp_load(shoal_fsdp_param_of(s.fsdp, 3), values),
         "load: there is no parameter 3: there are 3");
    SAYS(shoal_fsdp_load_slice(shoal_fsdp_param_of(s.fsdp, 1), 4, 3, values),
         "load_slice: parameter second has 6 indices along dimension 0, not 3 from 4 on");
    SAYS(shoal_fsdp_load_slice(shoal_fsdp_param_of(s.fsdp, 1), 0, 3, NULL),
         "load_slice: parameter second: slice is NULL, but has 3 elements");
    SAYS(shoal_fsdp_broadcast(shoal_fsdp_param_of(s.fsdp, 1), values, 5),
         "broadcast: parameter second: root 5 is outside of the 2 ranks");
    (void)snprintf(wanted, sizeof wanted,
                   "broadcast: parameter second: full is NULL on the root, rank %d, but has 6 elements",
                   s.rank);
    SAYS(shoal_fsdp_broadcast(shoal_fsdp_param_of(s.fsdp, 1), NULL, s.rank), wanted);
    SAYS(shoal_fsdp_gather(shoal_fsdp_param_of(s.fsdp, 1), NULL, SHOAL_FSDP_ALL_RANKS),
         "gather: parameter second: full is NULL, but has 6 elements");
    SAYS(shoal_fsdp_gather(shoal_fsdp_param_of(s.fsdp, 1), values, -2),
         "gather: parameter second: root -2 is outside of the 2 ranks");
    (void)snprintf(wanted, sizeof wanted,
                   "gather: parameter second: full is NULL on the root, rank %d, but has 6 elements", s.rank);
    SAYS(shoal_fsdp_gather(shoal_fsdp_param_of(s.fsdp, 1), NULL, s.rank), wanted);
    SAYS(shoal_fsdp_update_shard(s.fsdp, 1, NULL), "update_shard: parameter second: shard_out is NULL");
    SAYS(shoal_fsdp_get_pending(shoal_fsdp_param_of(s.fsdp, 1), NULL),
         "get_pending: parameter second: pending_out is NULL");
    setting_close(&s);
}

TEST_RANKS(settings, 2)
{
    struct setting s;
    REQUIRE(open_two(self, &s));
    SAYS(shoal_fsdp_set_requires_grad(s.fsdp, 2, true),
         "set_requires_grad: parameter numbers is i32, which has no gradients");
    SAYS(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(s.fsdp, 0), (shoal_reshard)9),
         "set_reshard: unit 0: 9 is none of SHOAL_RESHARD_*");
    SAYS(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(s.fsdp, 1), SHOAL_RESHARD_PARTLY),
         "set_reshard: unit 1: reshard_ranks: 0 does not divide the 2 shards, as SHOAL_RESHARD_PARTLY needs");
    SAYS(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(s.fsdp, 1), NULL),
         "set_unit_name: unit 1: name is NULL");
    SAYS(shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(s.fsdp, 1), (double)NAN),
         "set_divide_factor: unit 1: factor is nan, but must be a finite number of 0 (the number of ranks) "
         "or more");
    SAYS(shoal_fsdp_set_force_sum(shoal_fsdp_unit_of(s.fsdp, -2), true),
         "set_force_sum: there is no unit -2: there are 2");
    SAYS(prefetch_units(shoal_fsdp_set_forward_prefetch, s.fsdp, 1, NULL, 2),
         "set_forward_prefetch: unit 1: units is NULL, but n_units is 2");
    SAYS(prefetch_units(shoal_fsdp_set_backward_prefetch, s.fsdp, 1, (const int[]){0, 8}, 2),
         "set_backward_prefetch: there is no unit 8: there are 2 (units[1])");
    SAYS(shoal_fsdp_wait(shoal_fsdp_unit_of(s.fsdp, 1)),
         "wait: no gather of unit 1 was started (shoal_fsdp_unshard)");
    SAYS(shoal_fsdp_clip_grad_norm(s.fsdp, -2.0, 2.0, false, NULL),
         "clip_grad_norm: max_norm is -2, but must be 0 or more");
    SAYS(shoal_fsdp_clip_grad_value(s.fsdp, (double)NAN),
         "clip_grad_value: max_value is nan, but must be 0 or more");
    setting_close(&s);
}

/* "between steps" is one text. */
static void check_open(shoal_fsdp *fsdp)
{
    const float values[6] = {0.0F};
    SAYS(shoal_fsdp_load(shoal_fsdp_param_of(fsdp, 1), values), "load: unit 0 is in the middle of a step");
    SAYS(shoal_fsdp_broadcast(shoal_fsdp_param_of(fsdp, 1), values, 0),
         "broadcast: unit 0 is in the middle of a step");
    SAYS(shoal_fsdp_set_requires_grad(fsdp, 1, false),
         "set_requires_grad: unit 0 is in the middle of a step");
    SAYS(shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(fsdp, 0), 3.0),
         "set_divide_factor: unit 0 is in the middle of a step");
    SAYS(shoal_fsdp_set_force_sum(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), true),
         "set_force_sum: unit 0 is in the middle of a step");
    SAYS(shoal_fsdp_set_reduce_unused(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), true),
         "set_reduce_unused: unit 0 is in the middle of a step");
    SAYS(shoal_fsdp_add_param(fsdp, 0, "late", SHOAL_F32, 1, SHAPE(6), NULL, NULL),
         "add_param: parameter late is added after the first forward pass");
}

TEST_RANKS(steps, 2)
{
    struct setting s;
    REQUIRE(open_two(self, &s));
    POINTS_NOWHERE(
        shoal_fsdp_full_param(s.fsdp, 1),
        "full_param: parameter second of unit 0 is only whole between pre_ and post_forward, between pre_ "
        "and post_backward, and between wait and reshard");
    POINTS_NOWHERE(shoal_fsdp_full_param(s.fsdp, 9), "full_param: there is no parameter 9: there are 3");
    SAYS(shoal_fsdp_post_forward(s.fsdp, 0), "post_forward: unit 0 has had no pre_forward");
    SAYS(shoal_fsdp_pre_backward(s.fsdp, 0), "pre_backward: unit 0 has had no forward pass in this step");
    SAYS(shoal_fsdp_post_backward(s.fsdp, 1), "post_backward: unit 1 has had no pre_backward");
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    check_open(s.fsdp);
    POINTS_NOWHERE(shoal_fsdp_grad(s.fsdp, 1),
                   "grad: the gradient of parameter second of unit 0 can only be written between pre_ and "
                   "post_backward");
    SAYS(shoal_fsdp_pre_backward(s.fsdp, 0), "pre_backward: unit 0 has had no post_forward");
    SAYS(shoal_fsdp_end_forward(s.fsdp), "end_forward: unit 0 has had no post_forward");
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
    check_open(s.fsdp);
    SAYS(shoal_fsdp_pre_forward(s.fsdp, 1),
         "pre_forward: the backward pass has not been ended (shoal_fsdp_end_backward)");
    POINTS_NOWHERE(shoal_fsdp_grad(s.fsdp, 2), "grad: parameter numbers of unit 1 gets no gradient");
    CHECK_OK(shoal_fsdp_post_backward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    setting_close(&s);
}

/* What only the first forward finds. */
TEST_RANKS(dtypes_of_a_unit, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "first", SHOAL_F32, 1, SHAPE(6), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "second", SHOAL_F64, 1, SHAPE(6), NULL, NULL));
    SAYS(shoal_fsdp_pre_forward(s.fsdp, 0), "pre_forward: unit 0: parameters first (f32) and second (f64) "
                                            "get gradients and differ in dtype; put them "
                                            "into different units");
    SAYS(shoal_fsdp_unshard(shoal_fsdp_unit_of(s.fsdp, 0)),
         "unshard: unit 0: parameters first (f32) and second (f64) get "
         "gradients and differ in dtype; put them "
         "into different units");
    setting_close(&s);
}
