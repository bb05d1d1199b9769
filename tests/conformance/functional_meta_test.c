/* SPDX-License-Identifier: MIT */
/*
 * Shapes of functional collectives. Random calls of every row: what comes back has the shape that the header's words
 * give, contiguous whatever the input's strides, the same on the meta device as on the CPU, boxed as typed. On the meta
 * device nobody is asked: the group is never connected, and its sequence stays.
 */
#include <stdio.h>

#include "fixtures/groups.h"
#include "conformance/functional/row_cases.h"
#include "conformance/functional/row_typed.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/collective.h"
#include "shoal_compat/torch.h"
#include "shoal/ops.h"
#include "tensor/layout.h"

enum {
    CASES_PER_ROW = 300
};

static shoal_world *open_fake(int rank, int n_ranks)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = n_ranks, .rank = rank, .key = "meta", .transport = "fake"};
    shoal_world *world = NULL;
    (void)CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

/* Every row -------------------------------------------------------------------------------------------- */

static bool call_case(struct row_case *c, shoal_value *result)
{
    if (row_chance(c, 2)) {
        return typed_call(c, result);
    }
    return shoal_op_call(c->op, c->values, c->n_values, result) == SHOAL_OK;
}

static void check_case(enum op_id id, const struct row_wanted *wanted, uint64_t number)
{
    static _Thread_local struct row_case c; /* large */
    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    row_build(&c, id, wanted, number);
    if (call_case(&c, &result)) {
        row_check_outputs(&c, &result);
    } else {
        test_failed(__FILE__, __LINE__, "%s", shoal_error_text());
    }
    if (test_has_failed()) {
        (void)fprintf(stderr, "  in case %llu of %s on device %d\n", (unsigned long long)number, c.op->name,
                      (int)wanted->device);
    }
    CHECK_OK(shoal_scope_end());
}

static void check_row(enum op_id id)
{
    shoal_world *world = open_fake(2, 5);
    REQUIRE(world);
    shoal_group *groups[] = {shoal_world_group(world), group_of_ranks(world, (int[]){4, 2, 0}, 3, "some"),
                             group_of_ranks(world, (int[]){2}, 1, NULL)};
    shoal_symmetric *blocks[3] = {NULL, NULL, NULL};
    shoal_group *never = group_of_ranks(world, (int[]){0, 1, 2, 3, 4}, 5, "never");
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(shoal_symmetric_create(groups[i], ROW_SYMMETRIC_BYTES, &blocks[i]));
    }
    for (uint64_t number = 0; number < CASES_PER_ROW && !test_has_failed(); number++) {
        uint64_t which = number % 3;
        struct row_wanted wanted = {.group = groups[which], .device = SHOAL_CPU, .symmetric = blocks[which]};
        check_case(id, &wanted, number);
        wanted.device = SHOAL_META;
        check_case(id, &wanted, number);
        wanted.group = never;
        check_case(id, &wanted, number);
    }
    for (int i = 0; i < 3; i++) {
        shoal_symmetric_free(blocks[i]);
    }
    CHECK_INT(shoal_group_sequence(never), 0);
    CHECK_OK(shoal_world_close(world));
}

#define OP(...)
#define OP_OF_RANKS(name, signature, flags, meta, kernel, gradient, saves, doc) \
    TEST(meta_##name)                                                           \
    {                                                                           \
        check_row(OP_##name);                                                   \
    }
#include "op/ops.def"
#undef OP

/* One rank of a real world asks for shapes of a group that the others have never heard of. */
TEST_RANKS(meta_asks_nobody, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    if (self->rank == 1) {
        shoal_group *group = group_of_ranks(world, (int[]){0, 1, 2}, 3, "never");
        const struct row_wanted wanted = {.group = group, .device = SHOAL_META};
        for (int id = 0; id < OP_COUNT && !test_has_failed(); id++) {
            const shoal_op *op = shoal_op_at((enum op_id)id);
            for (uint64_t number = 0; (op->flags & SHOAL_OP_COLLECTIVE) != 0 && number < 5; number++) {
                check_case((enum op_id)id, &wanted, number);
            }
        }
        CHECK_INT(shoal_group_sequence(group), 0);
        CHECK_OK(shoal_group_error(group));
    }
    CHECK_OK(shoal_world_close(world));
}

/* The table of shapes, in numbers: five ranks, the caller is rank 2 -------------------------------------- */

#define INTS(...) ((const int64_t[]){__VA_ARGS__})

/* Rows: SHAPE(op, shape of the result, same as, call). a: [10, 3, 4]; z: []; e: [0, 3]; t: [4, 3, 10], transposed;
   f: f32 [5]; o: [50, 3, 4]; p: [2, 3, 4]. */
#define SHAPES(SHAPE)                                                                                       \
    SHAPE(all_reduce, "[10, 3, 4]", NULL, shoal_all_reduce(a, SHOAL_SUM, g))                                \
    SHAPE(all_reduce, "[4, 3, 10]", NULL, shoal_all_reduce(t, SHOAL_MAX, g))                                \
    SHAPE(all_reduce, "[]", NULL, shoal_all_reduce_premul(z, 0.5, g))                                       \
    SHAPE(all_reduce_, "[4, 3, 10]", t, shoal_all_reduce_(t, SHOAL_SUM, g))                                 \
    SHAPE(all_reduce_coalesced, "[4, 3, 10]", NULL,                                                         \
          second_of(shoal_all_reduce_coalesced(at, 2, SHOAL_AVG, g)))                                       \
    SHAPE(all_reduce_coalesced_, "[4, 3, 10]", t,                                                           \
          second_of(shoal_all_reduce_coalesced_(at, 2, SHOAL_AVG, g)))                                      \
    SHAPE(reduce, "[4, 3, 10]", NULL, shoal_reduce(t, SHOAL_SUM, 4, g))                                     \
    SHAPE(broadcast, "[4, 3, 10]", NULL, shoal_broadcast(t, 0, g))                                          \
    SHAPE(broadcast_, "[4, 3, 10]", t, shoal_broadcast_(t, 0, g))                                           \
    SHAPE(wait_tensor, "[4, 3, 10]", t, shoal_wait_tensor(t))                                               \
    SHAPE(wait_tensors, "[4, 3, 10]", t, second_of(shoal_wait_tensors(at, 2)))                              \
    SHAPE(all_gather_tensor, "[10, 3, 20]", NULL, shoal_all_gather_tensor(a, 2, g))                         \
    SHAPE(all_gather_tensor, "[10, 15, 4]", NULL, shoal_all_gather_tensor(a, -2, g))                        \
    SHAPE(all_gather_tensor, "[5]", NULL, shoal_all_gather_tensor(z, 0, g))                                 \
    SHAPE(all_gather_tensor, "[0, 15]", NULL, shoal_all_gather_tensor(e, 1, g))                             \
    SHAPE(all_gather_tensor_inplace, "[50, 3, 4]", o, shoal_all_gather_tensor_inplace(o, a, 0, g))          \
    SHAPE(all_gather_into_tensor, "[50, 3, 4]", NULL, shoal_all_gather_into_tensor(a, g))                   \
    SHAPE(all_gather_into_tensor, "[5]", NULL, shoal_all_gather_into_tensor(z, g))                          \
    SHAPE(all_gather_into_tensor, "[0, 3]", NULL, shoal_all_gather_into_tensor(e, g))                       \
    SHAPE(all_gather_into_tensor_out, "[50, 3, 4]", o, shoal_all_gather_into_tensor_out(a, g, o))           \
    SHAPE(all_gather_into_tensor_coalesced, "[20, 3, 10]", NULL,                                            \
          second_of(shoal_all_gather_into_tensor_coalesced(at, 2, g)))                                      \
    SHAPE(all_gather_inplace, "[2, 3, 4]", pl[1], second_of(shoal_all_gather_inplace(pl, 5, p, g)))         \
    SHAPE(reduce_scatter_tensor, "[2, 3, 4]", NULL, shoal_reduce_scatter_tensor(a, SHOAL_SUM, 0, g))        \
    SHAPE(reduce_scatter_tensor, "[4, 3, 2]", NULL, shoal_reduce_scatter_tensor(t, SHOAL_SUM, -1, g))       \
    SHAPE(reduce_scatter_tensor, "[0, 3]", NULL, shoal_reduce_scatter_tensor(e, SHOAL_SUM, 0, g))           \
    SHAPE(reduce_scatter_tensor, "[1]", NULL, shoal_reduce_scatter_tensor_premul(f, 2, 0, g))               \
    SHAPE(reduce_scatter_tensor_out, "[2, 3, 4]", p, shoal_reduce_scatter_tensor_out(a, SHOAL_SUM, g, p))   \
    SHAPE(reduce_scatter_tensor_inplace, "[2, 3, 4]", p,                                                    \
          shoal_reduce_scatter_tensor_inplace(p, a, SHOAL_SUM, 0, g))                                       \
    SHAPE(reduce_scatter_tensor_coalesced, "[4, 3, 2]", NULL,                                               \
          second_of(shoal_reduce_scatter_tensor_coalesced(at, 2, SHOAL_SUM, INTS(0, 2), g)))                \
    SHAPE(reduce_scatter_tensor_coalesced, "[1]", NULL,                                                     \
          second_of(shoal_reduce_scatter_tensor_coalesced(af, 2, SHOAL_SUM, NULL, g)))                      \
    SHAPE(all_to_all_single, "[10, 3, 4]", NULL, shoal_all_to_all_single(a, NULL, NULL, 0, g))              \
    SHAPE(all_to_all_single, "[15, 3, 4]", NULL,                                                            \
          shoal_all_to_all_single(a, INTS(1, 2, 3, 4, 5), INTS(0, 0, 3, 0, 7), 5, g))                       \
    SHAPE(all_to_all_single, "[0, 3, 4]", NULL,                                                             \
          shoal_all_to_all_single(a, INTS(0, 0, 0, 0, 0), INTS(5, 5, 0, 0, 0), 5, g))                       \
    SHAPE(all_to_all_inplace, "[50, 3, 4]", o,                                                              \
          shoal_all_to_all_inplace(o, a, INTS(50, 0, 0, 0, 0), INTS(5, 5, 0, 0, 0), 5, g))                  \
    SHAPE(permute_tensor, "[10, 3, 4]", NULL, shoal_permute_tensor(a, INTS(1, 2, 3, 4, 0), 5, g))           \
    SHAPE(permute_tensor, "[0, 3, 4]", NULL, shoal_permute_tensor(a, INTS(1, 0), 2, g))                     \
    SHAPE(permute_tensor, "[0, 3, 4]", NULL, shoal_permute_tensor(a, NULL, 0, g))                           \
    SHAPE(shard_dim_alltoall, "[2, 15, 4]", NULL, shoal_shard_dim_alltoall(a, 1, 0, g))                     \
    SHAPE(shard_dim_alltoall, "[20, 3, 2]", NULL, shoal_shard_dim_alltoall(t, 0, -1, g))                    \
    SHAPE(shard_dim_alltoall, "[10, 3, 4]", NULL, shoal_shard_dim_alltoall(a, 0, 0, g))                     \
    SHAPE(isend, "[0]", NULL, shoal_isend(a, 4, 0, g))                                                      \
    SHAPE(irecv, "[4, 3, 10]", t, shoal_irecv(t, 4, 0, g))                                                  \
    SHAPE(batch_p2p_ops, "[4, 3, 10]", t, second_of(shoal_batch_p2p_ops(ops, 2, g)))                        \
    SHAPE(batch_p2p_ops, "[0]", NULL, shoal_batch_p2p_ops(ops, 2, g)[0])                                    \
    SHAPE(one_shot_all_reduce, "[10, 3, 4]", NULL, shoal_one_shot_all_reduce(a, SHOAL_SUM, g))              \
    SHAPE(one_shot_all_reduce_out, "[10, 3, 4]", b, shoal_one_shot_all_reduce_out(a, SHOAL_SUM, g, b))      \
    SHAPE(one_shot_all_reduce_copy, "[10, 3, 4]", NULL, shoal_one_shot_all_reduce_copy(a, b, SHOAL_SUM, g)) \
    SHAPE(one_shot_all_reduce_copy_out, "[10, 3, 4]", b,                                                    \
          shoal_one_shot_all_reduce_copy_out(a, d, SHOAL_SUM, g, b))                                        \
    SHAPE(two_shot_all_reduce_, "[10, 3, 4]", a, shoal_two_shot_all_reduce_(a, SHOAL_SUM, g))               \
    SHAPE(two_shot_all_reduce_out, "[10, 3, 4]", b, shoal_two_shot_all_reduce_out(a, SHOAL_SUM, g, b))

static const shoal_tensor *second_of(shoal_tensor *const *list)
{
    return list ? list[1] : NULL;
}

static void check_shape(const char *op, const char *text, const shoal_tensor *same,
                        const shoal_tensor *tensor)
{
    char actual[LAYOUT_TEXT_BYTES];
    if (!tensor) {
        test_failed(__FILE__, __LINE__, "%s: %s", op, shoal_error_text());
        return;
    }
    (void)layout_format(actual, shoal_tensor_n_dims(tensor), shoal_tensor_shape(tensor));
    if (strcmp(actual, text) != 0) {
        test_failed(__FILE__, __LINE__, "%s gives %s, expected %s", op, actual, text);
    }
    if (same ? tensor != same : !row_is_contiguous(tensor)) {
        test_failed(__FILE__, __LINE__, "%s gives %s", op, same ? "another tensor" : "strides");
    }
    CHECK_INT(shoal_tensor_dtype(tensor), SHOAL_F32);
    CHECK_INT(shoal_tensor_device(tensor), SHOAL_META);
}

static void check_shapes(shoal_group *g)
{
    shoal_tensor *a = shoal_empty_on(INTS(10, 3, 4), 3, SHOAL_F32, SHOAL_META);
    shoal_tensor *b = shoal_empty_on(INTS(10, 3, 4), 3, SHOAL_F32, SHOAL_META);
    shoal_tensor *d = shoal_empty_on(INTS(10, 3, 4), 3, SHOAL_F32, SHOAL_META);
    shoal_tensor *z = shoal_empty_on(NULL, 0, SHOAL_F32, SHOAL_META);
    shoal_tensor *e = shoal_empty_on(INTS(0, 3), 2, SHOAL_F32, SHOAL_META);
    shoal_tensor *f = shoal_empty_on(INTS(5), 1, SHOAL_F32, SHOAL_META);
    shoal_tensor *o = shoal_empty_on(INTS(50, 3, 4), 3, SHOAL_F32, SHOAL_META);
    shoal_tensor *p = shoal_empty_on(INTS(2, 3, 4), 3, SHOAL_F32, SHOAL_META);
    shoal_tensor *t =
        shoal_permute(shoal_empty_on(INTS(10, 3, 4), 3, SHOAL_F32, SHOAL_META), INTS(2, 1, 0), 3);
    shoal_tensor *at[] = {a, t};
    shoal_tensor *af[] = {a, f};
    shoal_tensor *pl[5];
    const shoal_p2p_op ops[] = {{.direction = SHOAL_SEND, .tensor = a, .peer = 1},
                                {.direction = SHOAL_RECV, .tensor = t, .peer = 1}};
    for (int i = 0; i < 5; i++) {
        pl[i] = shoal_empty_on(INTS(2, 3, 4), 3, SHOAL_F32, SHOAL_META);
    }
#define SHAPE(op, text, same, call) check_shape(#op, text, same, call);
    SHAPES(SHAPE)
#undef SHAPE
}

TEST(shapes_in_numbers)
{
    shoal_world *world = open_fake(2, 5);
    REQUIRE(world);
    shoal_group *group = group_of_ranks(world, (int[]){0, 1, 2, 3, 4}, 5, "never");
    REQUIRE_OK(shoal_scope_begin());
    check_shapes(group);
    CHECK_INT(shoal_group_sequence(group), 0);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

TEST(every_row_has_its_shape_in_numbers)
{
    static const char *const names[] = {
#define SHAPE(op, text, same, call) #op,
        SHAPES(SHAPE)
#undef SHAPE
    };
    static const char *const rows[] = {
#define OP(...)
#define OP_OF_RANKS(name, signature, flags, meta, kernel, gradient, saves, doc) #name,
#include "op/ops.def"
#undef OP
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool is_found = false;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
            is_found = is_found || strcmp(names[k], rows[i]) == 0;
        }
        if (!is_found) {
            test_failed(__FILE__, __LINE__, "row %s has no shape in numbers", rows[i]);
        }
    }
}

/* Edges ------------------------------------------------------------------------------------------------ */

/* Sizes that G times are no numbers: an error that says so, never undefined. */
TEST(sizes_that_can_not_be_counted)
{
    const int64_t huge = INT64_MAX / 2;
    shoal_world *world = open_fake(2, 5);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *wide = shoal_empty_on(&huge, 1, SHOAL_U8, SHOAL_META);
    shoal_tensor *none = shoal_empty_on(INTS(0, INT64_MAX / 2), 2, SHOAL_U8, SHOAL_META);
    CHECK_OK(shoal_scope_error());
    for (int which = 0; which < 6; which++) {
        shoal_tensor *result = NULL;
        REQUIRE_OK(shoal_scope_begin());
        switch (which) {
        case 0:
            result = shoal_all_gather_tensor(wide, 0, g);
            break;
        case 1:
            result = shoal_all_gather_into_tensor(wide, g);
            break;
        case 2:
            result = shoal_all_gather_tensor(none, 1, g);
            break;
        case 3:
            result = shoal_shard_dim_alltoall(none, 1, 0, g);
            break;
        case 4:
            result = shoal_all_to_all_single(none, INTS(huge, huge, huge, 0, 0), INTS(0, 0, 0, 0, 0), 5, g);
            break;
        case 5:
            result = shoal_all_to_all_single(wide, INTS(huge, 0, 0, 0, 1), INTS(huge, 0, 0, 0, -huge), 5, g);
            break;
        }
        CHECK(!result);
        if (!CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID)) {
            (void)fprintf(stderr, "  in call %d\n", which);
        }
    }
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* An in-place row on the meta device counts as a change, as everywhere. */
TEST(versions_move_on_the_meta_device)
{
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *a = shoal_empty_on(INTS(4), 1, SHOAL_F32, SHOAL_META);
    CHECK(shoal_all_reduce(a, SHOAL_SUM, g));
    CHECK_INT(shoal_tensor_version(a), 0);
    CHECK(shoal_all_reduce_(a, SHOAL_SUM, g) == a);
    CHECK_INT(shoal_tensor_version(a), 1);
    CHECK(shoal_irecv(a, 1, 0, g) == a);
    CHECK_INT(shoal_tensor_version(a), 2);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}
