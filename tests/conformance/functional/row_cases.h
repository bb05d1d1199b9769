/* SPDX-License-Identifier: MIT */
/*
 * row_<name> for every row OP_OF_RANKS of ops.def: describes one random valid call (row_case.h). The table at the end
 * expands the rows, so that a row without its generator does not compile.
 */
#ifndef CONFORMANCE_ROW_CASES_H
#define CONFORMANCE_ROW_CASES_H

#include "conformance/functional/row_case.h"

#define ROW(name) static inline void row_##name(struct row_case *c)

/* A tensor argument of any shape, expected back under a new tensor of the same shape. */
static inline shoal_tensor *row_add_any(struct row_case *c, shoal_dtype dtype, bool is_symmetric)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = row_pick_shape(c, 0, shape);
    shoal_tensor *tensor =
        is_symmetric ? row_symmetric(c, dtype, n_dims, shape) : row_tensor(c, dtype, n_dims, shape);
    row_add_tensor(c, tensor);
    row_expect_new(c, dtype, n_dims, shape);
    return tensor;
}

/* The same, expected back itself. */
static inline void row_add_any_same(struct row_case *c, shoal_dtype dtype, bool is_symmetric)
{
    shoal_tensor *tensor = row_add_any(c, dtype, is_symmetric);
    c->n_outputs--;
    row_expect_same(c, tensor);
}

/* One to four tensors of any shapes. */
static inline void row_add_any_list(struct row_case *c, shoal_dtype dtype, bool is_given_back)
{
    size_t first = c->n_tensors;
    int64_t n = row_pick(c, 1, 4);
    for (int64_t i = 0; i < n; i++) {
        int64_t shape[SHOAL_MAX_DIMS] = {0};
        int n_dims = row_pick_shape(c, 0, shape);
        shoal_tensor *tensor = row_tensor(c, dtype, n_dims, shape);
        if (is_given_back) {
            row_expect_same(c, tensor);
        } else {
            row_expect_new(c, dtype, n_dims, shape);
        }
    }
    row_add_list(c, first);
}

/* Waiting ---------------------------------------------------------------------------------------------- */

ROW(wait_tensor)
{
    row_add_any_same(c, row_pick_dtype(c), /*is_symmetric=*/false);
}

ROW(wait_tensors)
{
    row_add_any_list(c, row_pick_dtype(c), /*is_given_back=*/true);
}

/* Reductions ------------------------------------------------------------------------------------------- */

ROW(all_reduce)
{
    shoal_dtype dtype = row_pick_dtype(c);
    (void)row_add_any(c, dtype, /*is_symmetric=*/false);
    bool needs_factor = row_add_reduce(c, dtype, /*may_premul=*/true);
    row_add_group(c);
    row_add_factor(c, needs_factor);
}

ROW(all_reduce_)
{
    shoal_dtype dtype = row_pick_dtype(c);
    row_add_any_same(c, dtype, /*is_symmetric=*/false);
    bool needs_factor = row_add_reduce(c, dtype, /*may_premul=*/true);
    row_add_group(c);
    row_add_factor(c, needs_factor);
}

static inline void row_add_coalesced(struct row_case *c, bool is_given_back)
{
    shoal_dtype dtype = row_pick_dtype(c);
    row_add_any_list(c, dtype, is_given_back);
    bool needs_factor = row_add_reduce(c, dtype, /*may_premul=*/true);
    row_add_group(c);
    row_add_factor(c, needs_factor);
}

ROW(all_reduce_coalesced)
{
    row_add_coalesced(c, /*is_given_back=*/false);
}

ROW(all_reduce_coalesced_)
{
    row_add_coalesced(c, /*is_given_back=*/true);
}

ROW(reduce)
{
    shoal_dtype dtype = row_pick_dtype(c);
    (void)row_add_any(c, dtype, /*is_symmetric=*/false);
    bool needs_factor = row_add_reduce(c, dtype, /*may_premul=*/true);
    row_add(c, box_int(row_pick_rank(c)));
    row_add_group(c);
    row_add_factor(c, needs_factor);
}

/* Shapes whose dimension `dim` is G times another: `whole` of self, `part` of the result. */
struct row_shapes {
    int n_dims;
    int dim;
    int64_t spelled; /* the dimension as it is passed */
    int64_t part[SHOAL_MAX_DIMS];
    int64_t whole[SHOAL_MAX_DIMS];
};

static inline struct row_shapes row_pick_shapes(struct row_case *c, bool is_first)
{
    struct row_shapes shapes = {.n_dims = 0};
    shapes.n_dims = row_pick_shape(c, 1, shapes.part);
    shapes.dim = is_first ? 0 : row_pick_dim(c, shapes.n_dims, &shapes.spelled);
    memcpy(shapes.whole, shapes.part, sizeof shapes.whole);
    shapes.whole[shapes.dim] *= row_ranks(c);
    return shapes;
}

ROW(reduce_scatter_tensor)
{
    shoal_dtype dtype = row_pick_dtype(c);
    struct row_shapes shapes = row_pick_shapes(c, /*is_first=*/false);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.whole));
    bool needs_factor = row_add_reduce(c, dtype, /*may_premul=*/true);
    row_add(c, box_int(shapes.spelled));
    row_add_group(c);
    row_add_factor(c, needs_factor);
    row_expect_new(c, dtype, shapes.n_dims, shapes.part);
}

static inline void row_add_out(struct row_case *c, shoal_dtype dtype, int n_dims, const int64_t *shape)
{
    shoal_tensor *out = row_tensor(c, dtype, n_dims, shape);
    row_add_tensor(c, out);
    row_expect_same(c, out);
}

ROW(reduce_scatter_tensor_out)
{
    shoal_dtype dtype = row_pick_dtype(c);
    struct row_shapes shapes = row_pick_shapes(c, /*is_first=*/true);
    row_add_out(c, dtype, shapes.n_dims, shapes.part);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.whole));
    bool needs_factor = row_add_reduce(c, dtype, /*may_premul=*/true);
    row_add_group(c);
    row_add_factor(c, needs_factor);
}

ROW(reduce_scatter_tensor_inplace)
{
    shoal_dtype dtype = row_pick_dtype(c);
    struct row_shapes shapes = row_pick_shapes(c, /*is_first=*/false);
    row_add_out(c, dtype, shapes.n_dims, shapes.part);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.whole));
    bool needs_factor = row_add_reduce(c, dtype, /*may_premul=*/true);
    row_add(c, box_int(shapes.spelled));
    row_add_group(c);
    row_add_factor(c, needs_factor);
}

ROW(reduce_scatter_tensor_coalesced)
{
    shoal_dtype dtype = row_pick_dtype(c);
    int64_t *dims = row_next_ints(c);
    size_t n = (size_t)row_pick(c, 1, 4);
    for (size_t i = 0; i < n; i++) {
        struct row_shapes shapes = row_pick_shapes(c, /*is_first=*/false);
        dims[i] = shapes.spelled;
        (void)row_tensor(c, dtype, shapes.n_dims, shapes.whole);
        row_expect_new(c, dtype, shapes.n_dims, shapes.part);
    }
    row_add_list(c, 0);
    bool needs_factor = row_add_reduce(c, dtype, /*may_premul=*/true);
    row_add(c, box_ints(dims, n));
    row_add_group(c);
    row_add_factor(c, needs_factor);
}

/* Gathering -------------------------------------------------------------------------------------------- */

/* Of tensors without dimensions: [] and [G]. */
static inline struct row_shapes row_pick_gather(struct row_case *c, bool is_first)
{
    if (!row_chance(c, 6)) {
        return row_pick_shapes(c, is_first);
    }
    return (struct row_shapes){.n_dims = 0, .spelled = row_chance(c, 2) ? 0 : -1, .whole = {row_ranks(c)}};
}

static inline int row_gathered_dims(const struct row_shapes *shapes)
{
    return shapes->n_dims == 0 ? 1 : shapes->n_dims;
}

ROW(all_gather_tensor)
{
    shoal_dtype dtype = row_pick_dtype(c);
    struct row_shapes shapes = row_pick_gather(c, /*is_first=*/false);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.part));
    row_add(c, box_int(shapes.spelled));
    row_add_group(c);
    row_expect_new(c, dtype, row_gathered_dims(&shapes), shapes.whole);
}

ROW(all_gather_tensor_inplace)
{
    shoal_dtype dtype = row_pick_dtype(c);
    struct row_shapes shapes = row_pick_gather(c, /*is_first=*/false);
    row_add_out(c, dtype, row_gathered_dims(&shapes), shapes.whole);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.part));
    row_add(c, box_int(shapes.spelled));
    row_add_group(c);
}

ROW(all_gather_into_tensor)
{
    shoal_dtype dtype = row_pick_dtype(c);
    struct row_shapes shapes = row_pick_gather(c, /*is_first=*/true);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.part));
    row_add_group(c);
    row_expect_new(c, dtype, row_gathered_dims(&shapes), shapes.whole);
}

ROW(all_gather_into_tensor_out)
{
    shoal_dtype dtype = row_pick_dtype(c);
    struct row_shapes shapes = row_pick_gather(c, /*is_first=*/true);
    row_add_out(c, dtype, row_gathered_dims(&shapes), shapes.whole);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.part));
    row_add_group(c);
}

ROW(all_gather_into_tensor_coalesced)
{
    shoal_dtype dtype = row_pick_dtype(c);
    int64_t n = row_pick(c, 1, 4);
    for (int64_t i = 0; i < n; i++) {
        struct row_shapes shapes = row_pick_gather(c, /*is_first=*/true);
        (void)row_tensor(c, dtype, shapes.n_dims, shapes.part);
        row_expect_new(c, dtype, row_gathered_dims(&shapes), shapes.whole);
    }
    row_add_list(c, 0);
    row_add_group(c);
}

ROW(all_gather_inplace)
{
    shoal_dtype dtype = row_pick_dtype(c);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = row_pick_shape(c, 0, shape);
    for (int64_t i = 0; i < row_ranks(c); i++) {
        row_expect_same(c, row_tensor(c, dtype, n_dims, shape));
    }
    row_add_list(c, 0);
    row_add_tensor(c, row_tensor(c, dtype, n_dims, shape));
    row_add_group(c);
}

/* Exchanging ------------------------------------------------------------------------------------------- */

/* Shapes of self and result for splits, which may be absent: equal blocks. */
static inline struct row_shapes row_pick_exchange(struct row_case *c, shoal_value splits[2])
{
    struct row_shapes shapes = {.n_dims = 0};
    int64_t rank = shoal_group_rank(c->wanted.group);
    int64_t *output_splits = row_next_ints(c);
    int64_t *input_splits = row_next_ints(c);
    shapes.n_dims = row_pick_shape(c, 1, shapes.part);
    if (row_chance(c, 3)) {
        shapes.part[0] *= row_ranks(c);
        memcpy(shapes.whole, shapes.part, sizeof shapes.whole);
        splits[0] = splits[1] = box_ints(NULL, 0);
        return shapes;
    }
    memcpy(shapes.whole, shapes.part, sizeof shapes.whole);
    shapes.part[0] = 0;
    shapes.whole[0] = 0;
    for (int64_t r = 0; r < row_ranks(c); r++) {
        input_splits[r] = row_pick(c, 0, 3);
        output_splits[r] = r == rank ? input_splits[r] : row_pick(c, 0, 3);
        shapes.part[0] += input_splits[r];
        shapes.whole[0] += output_splits[r];
    }
    splits[0] = box_ints(output_splits, (size_t)row_ranks(c));
    splits[1] = box_ints(input_splits, (size_t)row_ranks(c));
    return shapes;
}

ROW(all_to_all_single)
{
    shoal_dtype dtype = row_pick_dtype(c);
    shoal_value splits[2];
    struct row_shapes shapes = row_pick_exchange(c, splits);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.part));
    row_add(c, splits[0]);
    row_add(c, splits[1]);
    row_add_group(c);
    row_expect_new(c, dtype, shapes.n_dims, shapes.whole);
}

ROW(all_to_all_inplace)
{
    shoal_dtype dtype = row_pick_dtype(c);
    shoal_value splits[2];
    struct row_shapes shapes = row_pick_exchange(c, splits);
    row_add_out(c, dtype, shapes.n_dims, shapes.whole);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.part));
    row_add(c, splits[0]);
    row_add(c, splits[1]);
    row_add_group(c);
}

ROW(broadcast)
{
    (void)row_add_any(c, row_pick_dtype(c), /*is_symmetric=*/false);
    row_add(c, box_int(row_pick_rank(c)));
    row_add_group(c);
}

ROW(broadcast_)
{
    row_add_any_same(c, row_pick_dtype(c), /*is_symmetric=*/false);
    row_add(c, box_int(row_pick_rank(c)));
    row_add_group(c);
}

ROW(permute_tensor)
{
    shoal_dtype dtype = row_pick_dtype(c);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = row_pick_shape(c, 1, shape);
    int64_t *destinations = row_next_ints(c);
    for (int64_t i = 0; i < row_ranks(c); i++) {
        int64_t at = row_pick(c, 0, i);
        destinations[i] = destinations[at];
        destinations[at] = i;
    }
    size_t n = (size_t)row_pick(c, 0, row_ranks(c));
    bool has_source = false;
    for (size_t i = 0; i < n; i++) {
        has_source = has_source || destinations[i] == shoal_group_rank(c->wanted.group);
    }
    row_add_tensor(c, row_tensor(c, dtype, n_dims, shape));
    row_add(c, box_ints(destinations, n));
    row_add_group(c);
    shape[0] = has_source ? shape[0] : 0;
    row_expect_new(c, dtype, n_dims, shape);
}

ROW(shard_dim_alltoall)
{
    shoal_dtype dtype = row_pick_dtype(c);
    struct row_shapes shapes = row_pick_shapes(c, /*is_first=*/false);
    int64_t gather_spelled;
    int gather_dim = row_pick_dim(c, shapes.n_dims, &gather_spelled);
    row_add_tensor(c, row_tensor(c, dtype, shapes.n_dims, shapes.whole));
    row_add(c, box_int(gather_spelled));
    row_add(c, box_int(shapes.spelled));
    row_add_group(c);
    shapes.part[gather_dim] *= row_ranks(c);
    row_expect_new(c, dtype, shapes.n_dims, shapes.part);
}

/* Point to point --------------------------------------------------------------------------------------- */

ROW(isend)
{
    shoal_dtype dtype = row_pick_dtype(c);
    (void)row_add_any(c, dtype, /*is_symmetric=*/false);
    c->n_outputs--;
    row_add(c, box_int(row_pick_rank(c)));
    row_add(c, box_int(row_pick(c, 0, INT32_MAX)));
    row_add_group(c);
    row_expect_new(c, dtype, 1, (int64_t[]){0});
}

ROW(irecv)
{
    row_add_any_same(c, row_pick_dtype(c), /*is_symmetric=*/false);
    row_add(c, box_int(row_pick_rank(c)));
    row_add(c, box_int(row_pick(c, 0, INT32_MAX)));
    row_add_group(c);
}

/* Sends and receives; alone in a world, each send is followed by its receive. */
ROW(batch_p2p_ops)
{
    int64_t *peers = row_next_ints(c);
    int64_t *tags = row_next_ints(c);
    size_t n = 2 * (size_t)row_pick(c, 0, 3);
    c->words[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        bool is_pair = c->wanted.is_alone && i % 2 == 1;
        bool is_send = c->wanted.is_alone ? !is_pair : row_chance(c, 2);
        int64_t shape[SHOAL_MAX_DIMS] = {0};
        shoal_dtype dtype = is_pair ? shoal_tensor_dtype(c->tensors[i - 1]) : row_pick_dtype(c);
        int n_dims = is_pair ? shoal_tensor_n_dims(c->tensors[i - 1]) : row_pick_shape(c, 0, shape);
        if (is_pair && n_dims > 0) {
            memcpy(shape, shoal_tensor_shape(c->tensors[i - 1]), (size_t)n_dims * sizeof shape[0]);
        }
        shoal_tensor *tensor = row_tensor(c, dtype, n_dims, shape);
        peers[i] = row_pick_rank(c);
        tags[i] = is_pair ? tags[i - 1] : row_pick(c, 0, 9);
        memcpy(&c->words[i * (sizeof "isend")], is_send ? "isend " : "irecv ", sizeof "isend ");
        if (is_send) {
            row_expect_new(c, dtype, 1, (int64_t[]){0});
        } else {
            row_expect_same(c, tensor);
        }
    }
    row_add_list(c, 0);
    row_add(c, box_string(c->words));
    row_add(c, box_ints(peers, n));
    row_add(c, box_ints(tags, n));
    row_add_group(c);
}

/* Symmetric memory  --------------------------------- */

ROW(one_shot_all_reduce)
{
    shoal_dtype dtype = row_pick_dtype(c);
    (void)row_add_any(c, dtype, /*is_symmetric=*/true);
    (void)row_add_reduce(c, dtype, /*may_premul=*/false);
    row_add_group(c);
}

/* (out, self, ...) of one shape. */
static inline void row_add_into(struct row_case *c, bool has_source)
{
    shoal_dtype dtype = row_pick_dtype(c);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = row_pick_shape(c, 0, shape);
    row_add_out(c, dtype, n_dims, shape);
    row_add_tensor(c, row_symmetric(c, dtype, n_dims, shape));
    if (has_source) {
        row_add_tensor(c, row_tensor(c, dtype, n_dims, shape));
    }
    (void)row_add_reduce(c, dtype, /*may_premul=*/false);
    row_add_group(c);
}

ROW(one_shot_all_reduce_out)
{
    row_add_into(c, /*has_source=*/false);
}

ROW(one_shot_all_reduce_copy)
{
    shoal_dtype dtype = row_pick_dtype(c);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = row_pick_shape(c, 0, shape);
    row_add_tensor(c, row_symmetric(c, dtype, n_dims, shape));
    row_add_tensor(c, row_tensor(c, dtype, n_dims, shape));
    (void)row_add_reduce(c, dtype, /*may_premul=*/false);
    row_add_group(c);
    row_expect_new(c, dtype, n_dims, shape);
}

ROW(one_shot_all_reduce_copy_out)
{
    row_add_into(c, /*has_source=*/true);
}

ROW(two_shot_all_reduce_)
{
    shoal_dtype dtype = row_pick_dtype(c);
    row_add_any_same(c, dtype, /*is_symmetric=*/true);
    (void)row_add_reduce(c, dtype, /*may_premul=*/false);
    row_add_group(c);
}

ROW(two_shot_all_reduce_out)
{
    row_add_into(c, /*has_source=*/false);
}

/* The table -------------------------------------------------------------------------------------------- */

typedef void (*row_function)(struct row_case *c);

/*
 * In the innermost scope, which has the error when memory runs out. `wanted` says for which group, device and memory,
 * and what else is to be so.
 */
static inline void row_build(struct row_case *c, enum op_id id, const struct row_wanted *wanted,
                             uint64_t salt)
{
    static const row_function rows[OP_COUNT] = {
#define OP(...)
#define OP_OF_RANKS(name, signature, flags, meta, kernel, gradient, saves, doc) [OP_##name] = row_##name,
#include "op/ops.def"
#undef OP
    };
    memset(c, 0, sizeof *c);
    c->op = shoal_op_at(id);
    c->wanted = *wanted;
    c->random = test_random_begin((uint64_t)id * 1000003 + salt);
    rows[id](c);
}

#undef ROW

#endif
