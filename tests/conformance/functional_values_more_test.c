/* SPDX-License-Identifier: MIT */
/*
 * Values of functional collectives, second part: lists, point to point, symmetric memory, large sizes, tensors that are
 * used twice or in flight, groups that are not the world, and targets that share memory with inputs.
 */
#include <pthread.h>

#include "fixtures/groups.h"
#include "fixtures/functional.h"
#include "shoal_compat/torch.h"
#include "shoal/window.h"

/* Lists ------------------------------------------------------------------------------------------------ */

enum {
    MAX_LIST = 40
};

/* A list of inputs of this rank, and the values of all. */
struct list {
    size_t n;
    shoal_tensor *tensors[MAX_LIST];
    struct inputs inputs[MAX_LIST];
};

static struct list make_list(const struct functional *self, const struct shape *shapes, size_t n,
                             shoal_dtype dtype, bool has_forms)
{
    struct list list = {.n = n};
    for (size_t i = 0; i < n; i++) {
        enum form form = has_forms ? (enum form)(i % N_FORMS) : FORM_PLAIN;
        list.inputs[i] = make_inputs(self, shapes[i], dtype, form, 20 + i);
        list.tensors[i] = list.inputs[i].mine;
    }
    return list;
}

static const double list_factor = -0.375; /* of premul_sum */

static shoal_tensor *const *reduce_list(shoal_tensor *const *tensors, size_t n, shoal_reduce_op reduce,
                                        shoal_group *group)
{
    return reduce == SHOAL_PREMUL_SUM ? shoal_all_reduce_coalesced_premul(tensors, n, list_factor, group)
                                      : shoal_all_reduce_coalesced(tensors, n, reduce, group);
}

static shoal_tensor *const *reduce_list_(shoal_tensor *const *tensors, size_t n, shoal_reduce_op reduce,
                                         shoal_group *group)
{
    return reduce == SHOAL_PREMUL_SUM ? shoal_all_reduce_coalesced_premul_(tensors, n, list_factor, group)
                                      : shoal_all_reduce_coalesced_(tensors, n, reduce, group);
}

static shoal_tensor *const *scatter_list(shoal_tensor *const *tensors, size_t n, shoal_reduce_op reduce,
                                         const int64_t *dims, shoal_group *group)
{
    return reduce == SHOAL_PREMUL_SUM
               ? shoal_reduce_scatter_tensor_coalesced_premul(tensors, n, list_factor, dims, group)
               : shoal_reduce_scatter_tensor_coalesced(tensors, n, reduce, dims, group);
}

static void try_all_reduce_list(struct functional *self, const struct shape *shapes, size_t n,
                                shoal_dtype dtype, shoal_reduce_op reduce, bool has_forms)
{
    CASE_BEGIN();
    struct list list = make_list(self, shapes, n, dtype, has_forms);
    shoal_tensor *const *results = reduce_list(list.tensors, n, reduce, self->group);
    REQUIRE(results);
    struct target own[MAX_LIST];
    shoal_tensor *targets[MAX_LIST];
    for (size_t i = 0; i < n; i++) {
        own[i] = make_target(shapes[i], dtype, has_forms ? (enum form)(i % FORM_EXPANDED) : FORM_PLAIN);
        targets[i] = own[i].tensor;
        CHECK(shoal_copy_(targets[i], list.tensors[i]));
    }
    shoal_tensor *const *written = reduce_list_(targets, n, reduce, self->group);
    REQUIRE(written);
    for (size_t i = n; i-- > 0;) {
        struct values expected = values_fold(list.inputs[i].all, self->n_ranks, reduce, list_factor);
        CHECK(written[i] == targets[i]);
        CHECK_VALUES(written[i], &expected);
        CHECK_AROUND(&own[i]);
        CHECK(!shoal_tensor_shares_storage(results[i], list.tensors[i]));
        CHECK_RESULT(results[i], &expected);
        CHECK_VALUES(list.tensors[i], &list.inputs[i].all[self->rank]);
    }
    CASE_END();
}

static void try_gather_list(struct functional *self, const struct shape *shapes, size_t n, shoal_dtype dtype,
                            bool has_forms)
{
    CASE_BEGIN();
    struct list list = make_list(self, shapes, n, dtype, has_forms);
    shoal_tensor *const *results = shoal_all_gather_into_tensor_coalesced(list.tensors, n, self->group);
    REQUIRE(results);
    for (size_t i = n; i-- > 0;) {
        struct values expected = values_cat(list.inputs[i].all, self->n_ranks, 0);
        CHECK_RESULT(results[i], &expected);
        CHECK_VALUES(list.tensors[i], &list.inputs[i].all[self->rank]);
    }
    CASE_END();
}

/* Each along another dimension, or all along the first. */
static void try_scatter_list(struct functional *self, const struct shape *shapes, size_t n, shoal_dtype dtype,
                             shoal_reduce_op reduce, bool has_dims)
{
    int64_t dims[MAX_LIST];
    struct shape scaled[MAX_LIST];
    for (size_t i = 0; i < n; i++) {
        int dim = has_dims ? (int)i % shapes[i].n_dims : 0;
        scaled[i] = shapes[i];
        scaled[i].sizes[dim] *= self->n_ranks;
        dims[i] = i % 3 == 1 ? dim - shapes[i].n_dims : dim;
    }
    CASE_BEGIN();
    struct list list = make_list(self, scaled, n, dtype, /*has_forms=*/true);
    shoal_tensor *const *results = scatter_list(list.tensors, n, reduce, has_dims ? dims : NULL, self->group);
    REQUIRE(results);
    for (size_t i = n; i-- > 0;) {
        int dim = has_dims ? (int)i % shapes[i].n_dims : 0;
        struct values folded = values_fold(list.inputs[i].all, self->n_ranks, reduce, list_factor);
        struct values expected = values_block(&folded, dim, self->n_ranks, self->rank);
        CHECK_RESULT(results[i], &expected);
        CHECK_VALUES(list.tensors[i], &list.inputs[i].all[self->rank]);
        CHECK_INT(shoal_tensor_count(list.tensors[i]), shape_count(&scaled[i]));
    }
    CASE_END();
}

static void try_lists(struct functional *self, const struct shape *shapes, size_t n, bool has_0d)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_I64, SHOAL_BOOL, SHOAL_C64};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && !test_has_failed(); i++) {
        try_all_reduce_list(self, shapes, n, dtypes[i], SHOAL_SUM, i % 2 == 0);
        try_gather_list(self, shapes, n, dtypes[i], i % 2 == 0);
        if (!has_0d) {
            try_scatter_list(self, shapes, n, dtypes[i], SHOAL_SUM, i % 2 == 0);
        }
    }
    try_all_reduce_list(self, shapes, n, SHOAL_F32, SHOAL_AVG, true);
    try_all_reduce_list(self, shapes, n, SHOAL_I16, SHOAL_BXOR, true);
    try_all_reduce_list(self, shapes, n, SHOAL_F32, SHOAL_PREMUL_SUM, true);
    try_all_reduce_list(self, shapes, n, SHOAL_C64, SHOAL_PREMUL_SUM, false);
    for (int i = 0; i < 2 && !has_0d; i++) {
        try_scatter_list(self, shapes, n, SHOAL_F64, SHOAL_PREMUL_SUM, i == 0);
    }
}

FUNCTIONAL_ON_1_TO_5(lists_of_squares)
{
    struct shape squares[10];
    for (int i = 0; i < 10; i++) {
        squares[i] = SHAPE(i, i);
    }
    try_lists(self, squares, 10, /*has_0d=*/false);
}

FUNCTIONAL_ON_1_TO_5(lists_longer_than_32)
{
    struct shape shapes[MAX_LIST];
    for (int i = 0; i < MAX_LIST; i++) {
        shapes[i] = i % 3 == 0 ? SHAPE(i % 7) : i % 3 == 1 ? SHAPE(2, i % 5) : SHAPE(1, 2, 3);
    }
    try_lists(self, shapes, MAX_LIST, /*has_0d=*/false);
}

FUNCTIONAL_ON_1_TO_5(lists_of_one_and_with_0d)
{
    const struct shape shapes[] = {SCALAR_SHAPE, SHAPE(3), SHAPE(0), SCALAR_SHAPE};
    try_lists(self, shapes, 1, /*has_0d=*/true);
    try_lists(self, shapes, 4, /*has_0d=*/true);
    try_lists(self, &shapes[1], 1, /*has_0d=*/false);
}

/* Point to point --------------------------------------------------------------------------------------- */

/* Around the ring, from and into every layout; everybody sends before it receives. */
static void try_ring(struct functional *self, struct shape shape, shoal_dtype dtype, enum form form, int tag)
{
    int next = (self->rank + 1) % self->n_ranks;
    int before = (self->rank + self->n_ranks - 1) % self->n_ranks;
    CASE_BEGIN();
    struct inputs inputs = make_inputs(self, shape, dtype, form, 9);
    struct target own = make_target(shape, dtype, form == FORM_EXPANDED ? FORM_PLAIN : form);
    shoal_tensor *sent = shoal_isend(inputs.mine, next, tag, self->group);
    shoal_tensor *received = shoal_irecv(own.tensor, before, tag, self->group);
    CHECK(received == own.tensor);
    CHECK_VALUES(received, &inputs.all[before]);
    CHECK_AROUND(&own);
    CHECK_INT(shoal_tensor_count(sent), 0);
    CHECK_INT(shoal_tensor_dtype(sent), dtype);
    CHECK(shoal_wait_tensor(sent) == sent);
    CHECK_VALUES(inputs.mine, &inputs.all[self->rank]);
    CASE_END();
}

FUNCTIONAL_ON_1_TO_5(isend_and_irecv_around_the_ring)
{
    TEST_NEEDS_HOST();
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F16, SHOAL_U8, SHOAL_C128, SHOAL_BOOL};
    for (int form = 0; form < N_FORMS && !test_has_failed(); form++) {
        try_ring(self, SHAPE(3, 5), dtypes[form % 5], (enum form)form, form);
        try_ring(self, SCALAR_SHAPE, dtypes[form % 5], (enum form)form, 3);
        try_ring(self, SHAPE(0, 2), SHOAL_F32, (enum form)form, 3);
        try_ring(self, SHAPE(50000), SHOAL_F32, (enum form)form, 3);
    }
}

/* Everybody with everybody, itself included, several tags, all in one batch. */
FUNCTIONAL_ON_1_TO_5(batches_of_sends_and_receives)
{
    TEST_NEEDS_HOST();
    enum {
        TAGS = 2
    };
    shoal_p2p_op ops[2 * TAGS * FUNCTIONAL_MAX_RANKS] = {{SHOAL_SEND, NULL, 0, 0}};
    struct target targets[TAGS * FUNCTIONAL_MAX_RANKS];
    struct values expected[TAGS * FUNCTIONAL_MAX_RANKS];
    size_t n = 0;
    for (int peer = 0; peer < self->n_ranks; peer++) {
        for (int tag = 0; tag < TAGS; tag++) {
            enum form form = (enum form)((self->rank + peer + tag) % FORM_EXPANDED);
            int at = peer * TAGS + tag;
            struct shape shape = tag ? SHAPE(3, 1 + self->rank + peer) : SHAPE(1 + self->rank + peer);
            targets[at] = make_target(shape, SHOAL_F32, form);
            uint64_t sent_salt = (uint64_t)(100 + 10 * peer + tag);
            uint64_t received_salt = (uint64_t)(100 + 10 * self->rank + tag);
            shoal_tensor *mine = make_input(shape, SHOAL_F32, form, self->rank, sent_salt);
            expected[at] = values_of(make_input(shape, SHOAL_F32, form, peer, received_salt));
            /* Receives of different peers first, sends in the middle. */
            ops[n++] = (shoal_p2p_op){SHOAL_RECV, targets[at].tensor, peer, tag};
            ops[n++] = (shoal_p2p_op){SHOAL_SEND, mine, peer, tag};
        }
    }
    shoal_tensor *const *results = shoal_batch_p2p_ops(ops, n, self->group);
    REQUIRE(results);
    for (size_t i = n; i-- > 0;) {
        if (ops[i].direction == SHOAL_SEND) {
            CHECK_INT(shoal_tensor_count(results[i]), 0);
            CHECK(shoal_wait_tensor(results[i]) == results[i]);
        } else {
            CHECK(results[i] == ops[i].tensor);
            CHECK_VALUES(results[i], &expected[i / 2]);
            CHECK_AROUND(&targets[i / 2]);
        }
    }
    CHECK(shoal_batch_p2p_ops(NULL, 0, self->group) != NULL || shoal_scope_error() == SHOAL_OK);
}

/* A stream keeps its order, whatever the order in which results are looked at. */
FUNCTIONAL(messages_of_a_stream_keep_their_order, 2)
{
    TEST_NEEDS_HOST();
    enum {
        N = 50
    };
    shoal_tensor *tensors[N];
    for (int i = 0; i < N; i++) {
        tensors[i] = full_of(SHAPE(4), self->rank == 0 ? i : -1, SHOAL_F32);
        tensors[i] = self->rank == 0 ? shoal_isend(tensors[i], 1, 5, self->group)
                                     : shoal_irecv(tensors[i], 0, 5, self->group);
    }
    for (int i = N - 1; i >= 0; i--) {
        if (self->rank == 1) {
            CHECK_FULL(tensors[i], SHAPE(4), i);
        } else {
            CHECK(shoal_wait_tensor(tensors[i]));
        }
    }
}

/* Symmetric memory ------------------------------------------------------------------------------------- */

static void try_symmetric(struct functional *self, shoal_symmetric *memory, struct shape shape,
                          shoal_dtype dtype, shoal_reduce_op reduce, size_t offset)
{
    shoal_group *group = self->group;
    CASE_BEGIN();
    shoal_tensor *mine = shoal_symmetric_tensor(memory, offset, shape.sizes, shape.n_dims, dtype);
    REQUIRE(mine);
    CHECK(shoal_tensor_is_contiguous(mine));
    struct inputs inputs = make_inputs(self, shape, dtype, FORM_PLAIN, 11);
    struct values expected = values_fold(inputs.all, self->n_ranks, reduce, 0);
    CHECK(shoal_copy_(mine, inputs.mine));
    struct target outs[3];
    for (int i = 0; i < 3; i++) {
        outs[i] = make_target(shape, dtype, i == 0 ? FORM_STRIDED : i == 1 ? FORM_PLAIN : FORM_TRANSPOSED);
    }
    shoal_tensor *a = shoal_one_shot_all_reduce(mine, reduce, group);
    shoal_tensor *b = shoal_one_shot_all_reduce_out(mine, reduce, group, outs[0].tensor);
    shoal_tensor *c = shoal_two_shot_all_reduce_out(mine, reduce, group, outs[1].tensor);
    CHECK_RESULT(a, &expected);
    CHECK(b == outs[0].tensor && c == outs[1].tensor);
    CHECK_VALUES(b, &expected);
    CHECK_AROUND(&outs[0]);
    CHECK_VALUES(c, &expected);
    CHECK_VALUES(mine, &inputs.all[self->rank]);
    CHECK(shoal_two_shot_all_reduce_(mine, reduce, group) == mine);
    CHECK_VALUES(mine, &expected);
    /* From anywhere, in any layout, through symmetric memory. */
    shoal_tensor *source = shoal_transpose(shoal_clone(shoal_transpose(inputs.mine, 0, -1)), 0, -1);
    a = shoal_one_shot_all_reduce_copy(mine, source, reduce, group);
    CHECK_RESULT(a, &expected);
    CHECK_VALUES(mine, &inputs.all[self->rank]);
    CHECK(shoal_mul_scalar_(mine, 0));
    b = shoal_one_shot_all_reduce_copy_out(mine, source, reduce, group, outs[2].tensor);
    CHECK(b == outs[2].tensor);
    CHECK_VALUES(b, &expected);
    CHECK_VALUES(mine, &inputs.all[self->rank]);
    CHECK_VALUES(source, &inputs.all[self->rank]);
    CASE_END();
}

FUNCTIONAL_ON_1_TO_5(symmetric_memory)
{
    shoal_symmetric *memory = NULL;
    REQUIRE_OK(shoal_symmetric_create(self->group, 4 << 20, &memory));
    static const int64_t counts[] = {0, 1, 7, 1000};
    try_symmetric(self, memory, SHAPE(270000), SHOAL_F32, SHOAL_SUM, 0);
    for (int i = 0; i < 4 && !test_has_failed(); i++) {
        try_symmetric(self, memory, SHAPE(counts[i]), SHOAL_F32, SHOAL_SUM, 0);
        try_symmetric(self, memory, SHAPE(counts[i], 2), SHOAL_BF16, SHOAL_AVG, 64);
        try_symmetric(self, memory, SHAPE(1, counts[i]), SHOAL_I32, SHOAL_MAX, 4);
    }
    test_barrier(self->harness);
    shoal_symmetric_free(memory);
}

/* Large ------------------------------------------------------------------------------------------------ */

/* 1.2 MB a rank and more. */
FUNCTIONAL(large_tensors, 3)
{
    const struct shape shape = SHAPE(3, 333, 301);
    static const enum form forms[] = {FORM_PLAIN, FORM_TRANSPOSED, FORM_STRIDED};
    for (int i = 0; i < 3 && !test_has_failed(); i++) {
        CASE_BEGIN();
        struct inputs inputs = make_inputs(self, shape, SHOAL_F32, forms[i], 12);
        struct values folded = values_fold(inputs.all, 3, SHOAL_SUM, 0);
        struct values block = values_block(&folded, 1, 3, self->rank);
        struct values parts[3];
        for (int p = 0; p < 3; p++) {
            parts[p] = values_block(&inputs.all[p], 0, 3, self->rank);
        }
        struct values exchanged = values_cat(parts, 3, 0);
        struct values resharded = values_cat(parts, 3, 2);
        struct values gathered = values_cat(inputs.all, 3, 2);
        shoal_tensor *reduced = shoal_all_reduce(inputs.mine, SHOAL_SUM, self->group);
        shoal_tensor *scattered = shoal_reduce_scatter_tensor(inputs.mine, SHOAL_SUM, 1, self->group);
        shoal_tensor *gather = shoal_all_gather_tensor(inputs.mine, 2, self->group);
        shoal_tensor *exchange = shoal_all_to_all_single(inputs.mine, NULL, NULL, 0, self->group);
        shoal_tensor *reshard = shoal_shard_dim_alltoall(inputs.mine, 2, 0, self->group);
        shoal_tensor *cast = shoal_broadcast(inputs.mine, 1, self->group);
        shoal_tensor *turned = shoal_permute_tensor(inputs.mine, INTS64(1, 2, 0), 3, self->group);
        CHECK_RESULT(turned, &inputs.all[(self->rank + 2) % 3]);
        CHECK_RESULT(cast, &inputs.all[1]);
        CHECK_RESULT(reshard, &resharded);
        CHECK_RESULT(exchange, &exchanged);
        CHECK_RESULT(gather, &gathered);
        CHECK_RESULT(scattered, &block);
        CHECK_RESULT(reduced, &folded);
        CHECK_VALUES(inputs.mine, &inputs.all[self->rank]);
        CASE_END();
        functional_free_all();
    }
}

/* In flight -------------------------------------------------------------------------------------------- */

FUNCTIONAL_ON_1_TO_5(one_input_of_several_collectives_in_flight)
{
    static const int64_t counts[] = {3, 100000};
    for (int i = 0; i < 2; i++) {
        CASE_BEGIN();
        struct inputs inputs = make_inputs(self, SHAPE(counts[i]), SHOAL_F32, FORM_OFFSET, 13);
        struct values sum = values_fold(inputs.all, self->n_ranks, SHOAL_SUM, 0);
        struct values max = values_fold(inputs.all, self->n_ranks, SHOAL_MAX, 0);
        struct values all = values_cat(inputs.all, self->n_ranks, 0);
        shoal_tensor *a = shoal_all_reduce(inputs.mine, SHOAL_SUM, self->group);
        shoal_tensor *b = shoal_all_reduce(inputs.mine, SHOAL_MAX, self->group);
        shoal_tensor *c = shoal_all_gather_into_tensor(inputs.mine, self->group);
        shoal_tensor *d = shoal_add(inputs.mine, inputs.mine); /* reading it meanwhile is no use of theirs */
        CHECK(d);
        CHECK_RESULT(c, &all);
        CHECK_RESULT(a, &sum);
        CHECK_RESULT(b, &max);
        CASE_END();
    }
}

/* Each step takes what the one before has not brought yet. */
FUNCTIONAL_ON_1_TO_5(chains_of_collectives)
{
    int n = self->n_ranks;
    struct inputs inputs = make_inputs(self, SHAPE(4, 6), SHOAL_F64, FORM_TRANSPOSED, 14);
    struct values gathered = values_cat(inputs.all, n, 1);
    struct values parts[FUNCTIONAL_MAX_RANKS];
    for (int r = 0; r < n; r++) {
        parts[r] = gathered;
    }
    struct values summed = values_fold(parts, n, SHOAL_SUM, 0);
    struct values mine = values_block(&summed, 1, n, self->rank);
    shoal_tensor *step = shoal_all_gather_tensor(inputs.mine, 1, self->group);
    step = shoal_all_reduce(step, SHOAL_SUM, self->group);
    shoal_tensor *block = shoal_narrow(step, 1, 6 * self->rank, 6);
    step = shoal_all_gather_tensor(block, 1, self->group);
    CHECK_RESULT(step, &summed);
    CHECK_VALUES(block, &mine);
    /* In place, twice, without looking in between. */
    shoal_tensor *one = full_of(SHAPE(5), 1, SHOAL_F32);
    CHECK(shoal_all_reduce_(one, SHOAL_SUM, self->group) == one);
    CHECK(shoal_all_reduce_(one, SHOAL_SUM, self->group) == one);
    CHECK_FULL(one, SHAPE(5), n * n);
    shoal_tensor *const both[2] = {step, one};
    shoal_tensor *const *waited = shoal_wait_tensors(both, 2);
    CHECK(waited && waited[0] == step && waited[1] == one);
}

/* Groups ----------------------------------------------------------------------------------------------- */

/* Of every size, in an order that is not the world's. */
FUNCTIONAL(groups_of_some_ranks_in_another_order, 5)
{
    struct functional part = *self;
    for (int size = 1; size <= 5 && !test_has_failed(); size++) {
        int ranks[5];
        for (int i = 0; i < size; i++) {
            ranks[i] = (3 * (size - i)) % 5;
        }
        bool is_member = false;
        for (int i = 0; i < size; i++) {
            is_member = is_member || ranks[i] == self->rank;
        }
        if (!is_member) {
            continue;
        }
        functional_use_group(&part, group_of_ranks(self->world, ranks, size, "odd"));
        REQUIRE(part.group);
        struct inputs inputs = make_inputs(&part, SHAPE(2, 3), SHOAL_I32, FORM_STRIDED, 15);
        struct values sum = values_fold(inputs.all, size, SHOAL_SUM, 0);
        struct values gathered = values_cat(inputs.all, size, 1);
        shoal_tensor *a = shoal_all_reduce(inputs.mine, SHOAL_SUM, part.group);
        shoal_tensor *b = shoal_all_gather_tensor(inputs.mine, 1, part.group);
        shoal_tensor *c = shoal_broadcast(inputs.mine, size - 1, part.group);
        CHECK_RESULT(c, &inputs.all[size - 1]);
        CHECK_RESULT(b, &gathered);
        CHECK_RESULT(a, &sum);
    }
}

struct turn {
    shoal_group *group;
    int n_ranks;
    int seed;
};

static void *take_turns(void *argument)
{
    const struct turn *turn = argument;
    for (int i = 0; i < 100 && !test_has_failed(); i++) {
        if (!CHECK_OK(shoal_scope_begin())) {
            return NULL;
        }
        shoal_tensor *tensor = full_of(SHAPE(1 + 50 * (i % 30)), i + turn->seed, SHOAL_F32);
        shoal_tensor *sum = shoal_all_reduce(tensor, SHOAL_SUM, turn->group);
        shoal_tensor *all = shoal_all_gather_tensor(shoal_unsqueeze(tensor, 0), 1, turn->group);
        CHECK(all && sum);
        if (all && sum) {
            CHECK_DOUBLE((double)((const float *)shoal_data(all))[0], i + turn->seed);
            CHECK_DOUBLE((double)((const float *)shoal_data(sum))[0], turn->n_ranks * (i + turn->seed));
        }
        CHECK_OK(shoal_scope_end());
    }
    return NULL;
}

FUNCTIONAL(two_groups_interleaved_from_two_threads, 3)
{
    pthread_t threads[2];
    struct turn turns[2];
    for (int i = 0; i < 2; i++) {
        int seed = (i + self->rank) % 2;
        shoal_group *group = group_of_ranks(self->world, (const int[]){0, 1, 2}, 3, seed ? "b" : "a");
        turns[i] = (struct turn){.group = group, .n_ranks = 3, .seed = 7 * seed};
        REQUIRE(pthread_create(&threads[i], NULL, take_turns, &turns[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

/* Targets that share memory with inputs: the right values, or an error before anything was sent -------- */

FUNCTIONAL(gather_into_what_the_input_is_part_of, 3)
{
    /* The part that the rank's own values belong to: no copy is needed. */
    shoal_tensor *all = full_of(SHAPE(6), -1, SHOAL_F32);
    shoal_tensor *mine = shoal_narrow(all, 0, 2 * self->rank, 2);
    CHECK(shoal_copy_(mine, full_of(SHAPE(2), self->rank, SHOAL_F32)));
    CHECK(shoal_all_gather_into_tensor_out(mine, self->group, all) == all);
    CHECK_NUMBERS(all, SHAPE(6), 0, 0, 1, 1, 2, 2);
    CHECK(shoal_reduce_scatter_tensor_out(all, SHOAL_SUM, self->group, mine) == mine);
    CHECK_FULL(mine, SHAPE(2), 3 * self->rank);
    /* Lists of views of one tensor. */
    shoal_tensor *outs[3];
    for (int r = 0; r < 3; r++) {
        outs[r] = shoal_select(shoal_view(all, INTS64(2, 3), 2), 1, r);
    }
    CHECK(shoal_all_gather_inplace(outs, 3, full_of(SHAPE(2), 10 + self->rank, SHOAL_F32), self->group));
    CHECK_NUMBERS(all, SHAPE(6), 10, 11, 12, 10, 11, 12);
    CHECK(shoal_all_gather_inplace(outs, 3, outs[self->rank], self->group));
    CHECK_NUMBERS(all, SHAPE(6), 10, 11, 12, 10, 11, 12);
}

/* Another part of it. */
FUNCTIONAL(targets_that_overlap_inputs_otherwise, 3)
{
    shoal_tensor *all = full_of(SHAPE(12), 1 + self->rank, SHOAL_F32);
    shoal_tensor *half = shoal_narrow(all, 0, 0, 6);
    shoal_tensor *shifted = shoal_narrow(all, 0, 1, 2);
    for (int i = 0; i < 4; i++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *result =
            i == 0   ? shoal_all_gather_into_tensor_out(shifted, self->group, half)
            : i == 1 ? shoal_reduce_scatter_tensor_out(half, SHOAL_SUM, self->group, shifted)
            : i == 2 ? shoal_all_to_all_inplace(shoal_narrow(all, 0, 3, 6), half, NULL, NULL, 0, self->group)
                     : shoal_all_to_all_inplace(half, half, INTS64(2, 2, 2), INTS64(2, 2, 2), 3, self->group);
        CHECK(!result);
        CHECK_ERROR_TEXT("overlap");
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
    CHECK_FULL(all, SHAPE(12), 1 + self->rank);
    CHECK_FULL(shoal_all_reduce(half, SHOAL_SUM, self->group), SHAPE(6), 6);
}

/* The same memory twice in a list that is reduced in place. */
FUNCTIONAL(lists_whose_targets_overlap, 2)
{
    shoal_tensor *whole = full_of(SHAPE(8), 1, SHOAL_F32);
    shoal_tensor *other = full_of(SHAPE(4), 1, SHOAL_F32);
    shoal_tensor *const same[3] = {whole, other, whole};
    shoal_tensor *const crossed[3] = {shoal_narrow(whole, 0, 3, 5), other, shoal_narrow(whole, 0, 0, 5)};
    shoal_tensor *const *lists[2] = {same, crossed};
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_scope_begin());
        CHECK(!shoal_all_reduce_coalesced_(lists[i], 3, SHOAL_SUM, self->group));
        CHECK_ERROR_TEXT("0 and 2 overlap");
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
    CHECK_FULL(whole, SHAPE(8), 1);
    /* Between each other is not over each other, nor is one after the other, nor nothing anywhere. */
    shoal_tensor *const apart[2] = {shoal_slice(whole, 0, 1, 8, 2), shoal_slice(whole, 0, 0, 8, 2)};
    shoal_tensor *const halves[3] = {shoal_narrow(whole, 0, 4, 4), shoal_narrow(whole, 0, 0, 4),
                                     shoal_narrow(whole, 0, 2, 0)};
    CHECK(shoal_all_reduce_coalesced_(apart, 2, SHOAL_SUM, self->group));
    CHECK_FULL(whole, SHAPE(8), 2);
    CHECK(shoal_all_reduce_coalesced_(halves, 3, SHOAL_SUM, self->group));
    CHECK_FULL(whole, SHAPE(8), 4);
    /* Inputs may be what they like. */
    shoal_tensor *const *results = shoal_all_reduce_coalesced(same, 3, SHOAL_SUM, self->group);
    REQUIRE(results);
    CHECK_FULL(results[0], SHAPE(8), 8);
    CHECK_FULL(results[2], SHAPE(8), 8);
}
