/* SPDX-License-Identifier: MIT */
/*
 * Collectives on parts of one storage. Parts that are apart are as good as tensors of their own: in flight together,
 * in any order on lanes of their own, failing alone. Parts that share bytes wait for each other, and what is wanted of
 * all of them at once waits for all.
 */
#include <stdatomic.h>

#include "fixtures/groups.h"
#include "fixtures/functional_calls.h"
#include "shoal_compat/torch.h"
#include "tensor/tensor.h"

enum {
    SMALL = 16,     /* elements: posted */
    LARGE = 1 << 17 /* elements: queued */
};

static shoal_group *lane(const struct functional *self, const char *tag)
{
    int ranks[FUNCTIONAL_MAX_RANKS];
    for (int i = 0; i < self->n_ranks; i++) {
        ranks[i] = i;
    }
    return group_of_ranks(self->world, ranks, self->n_ranks, tag);
}

static shoal_group *numbered_lane(const struct functional *self, int number)
{
    char tag[16];
    (void)snprintf(tag, sizeof tag, "lane %d", number);
    return lane(self, tag);
}

static shoal_tensor *full(int64_t count, double value)
{
    return full_of(SHAPE(count), value, SHOAL_F32);
}

/* Order -------------------------------------------------------------------------------------------------- */

/* With fences of whole storages each rank's second call waited for its first, which the other had not made yet. */
static void cross(struct functional *self, int64_t count)
{
    shoal_group *lanes[2] = {lane(self, "a"), lane(self, "b")};
    for (int round = 0; round < 10; round++) {
        CASE_BEGIN();
        shoal_tensor *flat = full(2 * count, 1 + round);
        for (int i = 0; i < 2; i++) {
            int at = i ^ (self->rank & 1);
            CHECK(shoal_all_reduce_(shoal_narrow(flat, 0, at * count, count), SHOAL_SUM, lanes[at]));
        }
        CHECK_FULL(flat, SHAPE(2 * count), self->n_ranks * (1 + round));
        CASE_END();
    }
}

FUNCTIONAL(opposite_orders_on_two_lanes, 2)
{
    cross(self, SMALL);
}

FUNCTIONAL(opposite_orders_of_large_ones, 2)
{
    cross(self, LARGE);
}

FUNCTIONAL(opposite_orders_of_three, 3)
{
    cross(self, SMALL);
}

/* Into one buffer, out of another, from other ranks each: in whatever order. */
FUNCTIONAL(every_kind_in_opposite_orders, 2)
{
    enum {
        N_KINDS = 6
    };
    shoal_group *lanes[N_KINDS];
    for (int i = 0; i < N_KINDS; i++) {
        lanes[i] = numbered_lane(self, i);
    }
    for (int round = 0; round < 10; round++) {
        CASE_BEGIN();
        shoal_tensor *in = full(N_KINDS * 4, 1 + self->rank);
        shoal_tensor *out = full(N_KINDS * 4, 0);
        for (int k = 0; k < N_KINDS; k++) {
            int kind = self->rank == 0 ? k : N_KINDS - 1 - k;
            shoal_group *g = lanes[kind];
            shoal_tensor *from = shoal_narrow(in, 0, 4 * kind, 4);
            shoal_tensor *to = shoal_narrow(out, 0, 4 * kind, 4);
            shoal_tensor *half = shoal_narrow(from, 0, 0, 2);
            shoal_tensor *result =
                kind == 0   ? shoal_all_gather_into_tensor_out(half, g, to)
                : kind == 1 ? shoal_broadcast_(from, 1, g)
                : kind == 2 ? shoal_irecv(to, 1 - self->rank, 0, g)
                : kind == 3 ? shoal_reduce_scatter_tensor_out(from, SHOAL_SUM, g, shoal_narrow(to, 0, 1, 2))
                : kind == 4 ? shoal_all_to_all_inplace(to, from, NULL, 0, 0, g)
                            : shoal_all_gather_inplace(
                                  LIST(shoal_narrow(to, 0, 2, 2), shoal_narrow(to, 0, 0, 2)), 2, half, g)[0];
            CHECK(result);
            if (kind == 2) {
                CHECK(shoal_isend(from, 1 - self->rank, 0, g));
            }
        }
        float other = (float)(2 - self->rank);
        CHECK_NUMBERS(shoal_narrow(out, 0, 0, 4), SHAPE(4), 1, 1, 2, 2);
        CHECK_FULL(shoal_narrow(in, 0, 4, 4), SHAPE(4), 2);
        CHECK_FULL(shoal_narrow(out, 0, 8, 4), SHAPE(4), (double)other);
        CHECK_NUMBERS(shoal_narrow(out, 0, 12, 4), SHAPE(4), 0, 3, 3, 0);
        CHECK_NUMBERS(shoal_narrow(out, 0, 16, 4), SHAPE(4), 1, 1, 2, 2);
        CHECK_NUMBERS(shoal_narrow(out, 0, 20, 4), SHAPE(4), 2, 2, 1, 1);
        CHECK(shoal_mutable_data(in));
        CASE_END();
    }
}

/* Many parts at once on one lane: none is waited for before the end. */
FUNCTIONAL(many_parts_of_one_buffer, 2)
{
    enum {
        N_PARTS = 200
    };
    shoal_tensor *flat = full((int64_t)N_PARTS * SMALL, 1);
    for (int i = 0; i < N_PARTS; i++) {
        CASE_BEGIN();
        CHECK(shoal_all_reduce_(shoal_narrow(flat, 0, (int64_t)i * SMALL, SMALL), SHOAL_SUM, self->group));
        CASE_END();
    }
    CHECK_FULL(flat, SHAPE((int64_t)N_PARTS * SMALL), 2);
    CHECK_INT(atomic_load(&flat->storage->n_fences), 0);
}

/* Rank 1 comes when rank 0 has made all its calls, and has worked on the rest of the buffer: nothing waits for it. */
FUNCTIONAL(the_rest_of_a_buffer_is_free, 2)
{
    shoal_tensor *flat = full((int64_t)4 * LARGE, 1);
    shoal_tensor *rest = shoal_narrow(flat, 0, (int64_t)3 * LARGE, LARGE);
    for (int i = 0; i < 3; i++) {
        if (self->rank == 1 && i == 0) {
            test_barrier(self->harness);
        }
        CHECK(shoal_all_reduce_(shoal_narrow(flat, 0, (int64_t)i * LARGE, LARGE), SHOAL_SUM, self->group));
    }
    CHECK(shoal_add_scalar_(rest, 4) == rest);
    CHECK_FULL(rest, SHAPE(LARGE), 5);
    if (self->rank == 0) {
        test_barrier(self->harness);
    }
    CHECK_FULL(shoal_narrow(flat, 0, 0, (int64_t)3 * LARGE), SHAPE((int64_t)3 * LARGE), 2);
}

/* What shares bytes is done in the order of the calls, whatever the lanes. */
FUNCTIONAL(parts_that_overlap_keep_their_order, 2)
{
    shoal_group *lanes[3] = {lane(self, "a"), lane(self, "b"), lane(self, "c")};
    for (int round = 0; round < 10; round++) {
        CASE_BEGIN();
        shoal_tensor *flat = full(3 * LARGE, 1);
        CHECK(shoal_all_reduce_(shoal_narrow(flat, 0, 0, 2 * LARGE), SHOAL_SUM, lanes[0]));
        CHECK(shoal_all_reduce_(shoal_narrow(flat, 0, LARGE, 2 * LARGE), SHOAL_SUM, lanes[1]));
        CHECK(shoal_all_reduce_(flat, SHOAL_SUM, lanes[2]));
        CHECK_FULL(shoal_narrow(flat, 0, 0, LARGE), SHAPE(LARGE), 4);
        CHECK_FULL(shoal_narrow(flat, 0, LARGE, LARGE), SHAPE(LARGE), 8);
        CHECK_FULL(shoal_narrow(flat, 0, 2 * LARGE, LARGE), SHAPE(LARGE), 4);
        CASE_END();
    }
}

/* Columns lie between each other: their spans overlap, and so they wait, but the values are right. */
FUNCTIONAL(columns_of_one_matrix, 2)
{
    shoal_tensor *matrix = full_of(SHAPE(64, 4), 1 + self->rank, SHOAL_F32);
    for (int i = 0; i < 4; i++) {
        CHECK(shoal_all_reduce_(shoal_narrow(matrix, 1, i, 1), SHOAL_SUM, self->group));
    }
    CHECK_FULL(matrix, SHAPE(64, 4), 3);
}

/* Reads: an input may be sent from many places at once, and is free where nobody sends it. */
FUNCTIONAL(inputs_are_held_by_their_bytes, 2)
{
    shoal_tensor *flat = full(4 * SMALL, 1);
    shoal_tensor *results[3];
    uint64_t version = shoal_tensor_version(flat);
    for (int i = 0; i < 3; i++) {
        if (self->rank == 1 && i == 0) {
            test_barrier(self->harness);
        }
        results[i] = shoal_all_reduce(shoal_narrow(flat, 0, i * SMALL, SMALL), SHOAL_SUM, self->group);
    }
    CHECK_INT(shoal_tensor_version(flat), version);
    CHECK(shoal_mul_scalar_(shoal_narrow(flat, 0, 3 * SMALL, SMALL), 6));
    CHECK_INT(shoal_tensor_version(flat), version + 1);
    if (self->rank == 0) {
        test_barrier(self->harness);
    }
    CHECK(shoal_mul_scalar_(flat, 3));
    for (int i = 0; i < 3; i++) {
        CHECK_FULL(results[i], SHAPE(SMALL), 2);
    }
    CHECK_FULL(shoal_narrow(flat, 0, 0, 3 * SMALL), SHAPE(3 * SMALL), 3);
    CHECK_FULL(shoal_narrow(flat, 0, 3 * SMALL, SMALL), SHAPE(SMALL), 18);
}

/* Failures ------------------------------------------------------------------------------------------------ */

/* Ranks disagree about the second of four parts. */
FUNCTIONAL(a_failure_spoils_its_part_alone, 2)
{
    shoal_tensor *flat = full(4 * SMALL, 1);
    shoal_group *bad = lane(self, "bad");
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; i < 4; i++) {
        shoal_tensor *part = shoal_narrow(flat, 0, i * SMALL, SMALL - (i == 1 ? self->rank : 0));
        CHECK(shoal_all_reduce_(part, SHOAL_SUM, i == 1 ? bad : self->group));
    }
    for (int round = 0; round < 2; round++) {
        CHECK_FULL(shoal_narrow(flat, 0, 0, SMALL), SHAPE(SMALL), 2);
        CHECK_FULL(shoal_narrow(flat, 0, 2 * SMALL, 2 * SMALL), SHAPE(2 * SMALL), 2);
        CHECK(!shoal_data(flat));
        CHECK_ERROR_TEXT("all_reduce");
        CHECK(!shoal_data(shoal_narrow(flat, 0, SMALL + 1, 1)));
        CHECK_ERROR_TEXT("all_reduce");
    }
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    /* The part alone is written anew: by a collective, then by hand what the shorter part of rank 1 left. */
    shoal_tensor *part = shoal_narrow(flat, 0, SMALL, SMALL);
    CHECK(shoal_all_gather_into_tensor_out(full(SMALL / 2, 5), self->group, part) == part);
    CHECK_FULL(part, SHAPE(SMALL), 5);
    CHECK(shoal_data(flat));
    CHECK_INT(atomic_load(&flat->storage->n_fences), 0);
}

/* Ranks disagree about what they gather into it. */
static void spoil(struct functional *self, shoal_tensor *tensor, const char *tag)
{
    int64_t count = shoal_tensor_count(tensor) / 2;
    shoal_dtype dtype = self->rank == 0 ? SHOAL_F32 : SHOAL_I32;
    CASE_BEGIN();
    if (self->rank == 0) {
        CHECK(shoal_all_gather_into_tensor_out(full_of(SHAPE(count), 1, dtype), lane(self, tag), tensor));
        CHECK_STATUS(shoal_wait(tensor), SHOAL_ERR_MISMATCH);
    } else {
        (void)shoal_all_gather_into_tensor_out(full_of(SHAPE(count), 1, dtype), lane(self, tag),
                                               full_of(SHAPE(2 * count), 0, dtype));
    }
    CHECK(shoal_scope_end() != SHOAL_ERR_INVALID);
}

/* Rank 0's tensor has failed; what receives into all of it does not mind, what sends it or needs part of it does. */
FUNCTIONAL(batches_receive_into_what_has_failed, 2)
{
    shoal_tensor *tensor = full(SMALL, 0);
    spoil(self, tensor, "bad");
    if (self->rank == 0) {
        shoal_tensor *half = shoal_narrow(tensor, 0, 0, SMALL / 2);
        const shoal_p2p_op refused[3] = {{SHOAL_SEND, tensor, 1, 0},
                                         {SHOAL_RECV, half, 1, 0},
                                         {SHOAL_RECV, shoal_slice(tensor, 0, 0, SMALL, 2), 1, 0}};
        for (int i = 0; i < 3; i++) {
            REQUIRE_OK(shoal_scope_begin());
            CHECK(!shoal_batch_p2p_ops(&refused[i], 1, self->group));
            CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
        }
    }
    const shoal_p2p_op ops[2] = {{SHOAL_SEND, full(SMALL, 4 + self->rank), 1 - self->rank, 0},
                                 {SHOAL_RECV, tensor, 1 - self->rank, 0}};
    shoal_tensor *const *results = shoal_batch_p2p_ops(ops, 2, self->group);
    REQUIRE(results);
    CHECK_FULL(results[1], SHAPE(SMALL), 5 - self->rank);
    CHECK(shoal_wait_tensor(results[0]));
    CHECK_FULL(tensor, SHAPE(SMALL), 5 - self->rank);
    /* In strides that leave nothing out, too. */
    shoal_tensor *other = full(SMALL, 0);
    spoil(self, other, "worse");
    shoal_tensor *turned = shoal_transpose(shoal_view(other, INTS64(4, SMALL / 4), 2), 0, 1);
    const shoal_p2p_op more[2] = {{SHOAL_RECV, turned, 1 - self->rank, 0},
                                  {SHOAL_SEND, full(SMALL, 6 + self->rank), 1 - self->rank, 0}};
    CHECK(shoal_batch_p2p_ops(more, 2, self->group));
    CHECK_FULL(other, SHAPE(SMALL), 7 - self->rank);
    CHECK(shoal_mutable_data(tensor));
}

/* Symmetric memory that failed is overwritten by copies into it, and so is `out`; what is copied must be good. */
FUNCTIONAL(copies_go_into_symmetric_memory_that_has_failed, 2)
{
    shoal_symmetric *memory = NULL;
    REQUIRE_OK(shoal_symmetric_create(self->group, SMALL * sizeof(float), &memory));
    shoal_tensor *symmetric = shoal_symmetric_tensor(memory, 0, INTS64(SMALL), 1, SHOAL_F32);
    shoal_tensor *out = full(SMALL, 0);
    spoil(self, symmetric, "a");
    CHECK_FULL(shoal_one_shot_all_reduce_copy(symmetric, full(SMALL, 3), SHOAL_SUM, self->group),
               SHAPE(SMALL), 6);
    CHECK_FULL(symmetric, SHAPE(SMALL), 3);
    spoil(self, symmetric, "b");
    spoil(self, out, "c");
    CHECK(shoal_one_shot_all_reduce_copy_out(symmetric, full(SMALL, 4), SHOAL_SUM, self->group, out) == out);
    CHECK_FULL(out, SHAPE(SMALL), 8);
    spoil(self, out, "d");
    if (self->rank == 0) {
        REQUIRE_OK(shoal_scope_begin());
        CHECK(!shoal_one_shot_all_reduce_copy(symmetric, out, SHOAL_SUM, self->group));
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    }
    CHECK_FULL(symmetric, SHAPE(SMALL), 4);
    CHECK(shoal_copy_(out, symmetric));
    CHECK(shoal_mutable_data(symmetric));
    test_barrier(self->harness);
    shoal_symmetric_free(memory);
}

/* Lists ---------------------------------------------------------------------------------------------------- */

static shoal_tensor *columns(shoal_tensor *matrix, int64_t first, int64_t n)
{
    return shoal_narrow(matrix, 1, first, n);
}

#define CHECK_SHARED(call, ...)                             \
    do {                                                    \
        REQUIRE_OK(shoal_scope_begin());                    \
        CHECK(!(call));                                     \
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID); \
        CHECK_ERROR_TEXT(__VA_ARGS__);                      \
    } while (0)

/* Columns that lie between each other are apart; those that share some are refused, before anything is sent. */
FUNCTIONAL(lists_are_written_between_each_other, 2)
{
    shoal_group *g = self->group;
    shoal_tensor *matrix = full_of(SHAPE(5, 6), 1 + self->rank, SHOAL_F32);
    uint64_t sequence = shoal_group_sequence(g);
    CHECK_SHARED(
        shoal_all_reduce_coalesced_(LIST(columns(matrix, 3, 2), columns(matrix, 0, 2), columns(matrix, 1, 2)),
                                    3, SHOAL_SUM, g),
        "tensors[1] and [2] share memory");
    CHECK_SHARED(shoal_all_reduce_coalesced_(LIST(shoal_narrow(matrix, 0, 2, 1), columns(matrix, 5, 1)), 2,
                                             SHOAL_SUM, g),
                 "tensors[0] and [1] share memory");
    CHECK_SHARED(shoal_all_gather_inplace(LIST(columns(matrix, 0, 2), columns(matrix, 1, 2)), 2,
                                          full_of(SHAPE(5, 2), 1, SHOAL_F32), g),
                 "outs[0] and [1] share memory");
    const shoal_p2p_op shared[2] = {{SHOAL_RECV, columns(matrix, 0, 2), 1 - self->rank, 0},
                                    {SHOAL_RECV, columns(matrix, 1, 1), 1 - self->rank, 1}};
    CHECK_SHARED(shoal_batch_p2p_ops(shared, 2, g), "tensors[0] and [1] share memory");
    const shoal_p2p_op read[2] = {{SHOAL_SEND, shoal_narrow(matrix, 0, 1, 1), 1 - self->rank, 0},
                                  {SHOAL_RECV, columns(matrix, 1, 1), 1 - self->rank, 0}};
    CHECK_SHARED(shoal_batch_p2p_ops(read, 2, g), "tensors[0] and [1] share memory");
    CHECK_INT(shoal_group_sequence(g), sequence);

    CHECK(shoal_all_reduce_coalesced_(
        LIST(columns(matrix, 0, 1), columns(matrix, 3, 3), columns(matrix, 1, 2)), 3, SHOAL_SUM, g));
    CHECK_FULL(matrix, SHAPE(5, 6), 3);
    CHECK(shoal_all_gather_inplace(LIST(shoal_slice(matrix, 1, 0, 6, 2), shoal_slice(matrix, 1, 1, 6, 2)), 2,
                                   full_of(SHAPE(5, 3), 4 + self->rank, SHOAL_F32), g));
    CHECK_FULL(shoal_slice(matrix, 1, 0, 6, 2), SHAPE(5, 3), 4);
    CHECK_FULL(shoal_slice(matrix, 1, 1, 6, 2), SHAPE(5, 3), 5);
    /* What is sent with gaps is copied at the call, so the same may be received into. */
    shoal_tensor *mine = columns(matrix, self->rank, 1);
    const shoal_p2p_op exchange[2] = {{SHOAL_SEND, mine, 1 - self->rank, 0},
                                      {SHOAL_RECV, mine, 1 - self->rank, 0}};
    CHECK(shoal_batch_p2p_ops(exchange, 2, g));
    CHECK_FULL(mine, SHAPE(5, 1), 5 - self->rank);
    CHECK_FULL(columns(matrix, 2 + self->rank, 1), SHAPE(5, 1), 4 + self->rank);
}

/* Longer lists, of which two share a column. */
FUNCTIONAL(long_lists_of_columns, 2)
{
    enum {
        N_COLUMNS = 40
    };
    shoal_tensor *matrix = full_of(SHAPE(3, N_COLUMNS), 1, SHOAL_F32);
    shoal_tensor *list[N_COLUMNS];
    for (int i = 0; i < N_COLUMNS; i++) {
        list[i] = columns(matrix, (i * 7) % N_COLUMNS, 1);
    }
    CHECK(shoal_all_reduce_coalesced_(list, N_COLUMNS, SHOAL_SUM, self->group));
    CHECK_FULL(matrix, SHAPE(3, N_COLUMNS), 2);
    list[20] = list[3];
    CHECK_SHARED(shoal_all_reduce_coalesced_(list, N_COLUMNS, SHOAL_SUM, self->group),
                 "tensors[3] and [20] share memory");
}

/* Broadcasts ----------------------------------------------------------------------------------------------- */

/* The root's own result is copied after the data was sent: the input may be written at once, and dropped. */
static void broadcast_and_write(struct functional *self, int64_t count)
{
    for (int root = 0; root < self->n_ranks; root++) {
        CASE_BEGIN();
        shoal_tensor *flat = full(3 * count, 1 + self->rank);
        shoal_tensor *part = shoal_narrow(flat, 0, count, count);
        shoal_tensor *result = shoal_broadcast(part, root, self->group);
        shoal_tensor *other = shoal_broadcast(shoal_narrow(flat, 0, 0, count), root, self->group);
        CHECK(shoal_mul_scalar_(shoal_narrow(flat, 0, 2 * count, count), 5));
        CHECK(shoal_mul_scalar_(part, 7));
        CHECK_FULL(result, SHAPE(count), 1 + root);
        CHECK_FULL(part, SHAPE(count), 7 * (1 + self->rank));
        CHECK_OK(shoal_tensor_rebind_data(flat, NULL, NULL, NULL));
        CHECK_FULL(other, SHAPE(count), 1 + root);
        CASE_END();
    }
}

FUNCTIONAL(a_root_may_write_what_it_broadcasts, 3)
{
    broadcast_and_write(self, LARGE);
    broadcast_and_write(self, SMALL);
}

FUNCTIONAL(a_root_alone_gets_its_own, 1)
{
    broadcast_and_write(self, LARGE);
}

/* A broadcast that fails is not copied either. */
FUNCTIONAL(a_root_that_fails_has_no_result, 2)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *input = full(LARGE, 1);
    shoal_tensor *result = shoal_broadcast(shoal_narrow(input, 0, 0, LARGE - self->rank), 0, lane(self, "x"));
    CHECK_STATUS(shoal_wait(result), SHOAL_ERR_MISMATCH);
    CHECK_FULL(input, SHAPE(LARGE), 1);
    CHECK(shoal_mutable_data(input));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
}
