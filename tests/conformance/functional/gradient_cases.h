/* SPDX-License-Identifier: MIT */
/*
 * Rows: CASE(op, label, body, number of inputs, shapes...)
 * The body computes a tensor from x[0], x[1], ..., with at->group, and returns it. It runs on every rank alike.
 * Sizes may depend on the number of ranks, and on the rank: see enum size.
 */
#ifndef CONFORMANCE_FUNCTIONAL_GRADIENT_CASES_H
#define CONFORMANCE_FUNCTIONAL_GRADIENT_CASES_H

#include "op/box.h"
#include "shoal_compat/torch.h"

#define GROUP (at->group)
#define FACTOR 0.75

/* Helpers of bodies ------------------------------------------------------------------------------------ */

/* The square makes gradients depend on where elements come from. */
static shoal_tensor *square(shoal_tensor *tensor)
{
    return shoal_mul(tensor, tensor);
}

/* A result, not a leaf, to be changed in place. */
static shoal_tensor *fresh(shoal_tensor *tensor)
{
    return shoal_mul_scalar(tensor, 1.5);
}

/* To be written: like `self`, with dimension `dim` multiplied by `times` and divided by `parts`. */
static shoal_tensor *room(const shoal_tensor *self, int dim, int64_t times, int64_t parts)
{
    int64_t shape[SHOAL_MAX_DIMS];
    int n_dims = shoal_tensor_n_dims(self);
    for (int i = 0; i < n_dims; i++) {
        shape[i] = shoal_tensor_shape(self)[i];
    }
    if (n_dims == 0) {
        return shoal_zeros(&times, 1, SHOAL_F64);
    }
    shape[dim] = shape[dim] * times / parts;
    return shoal_zeros(shape, n_dims, SHOAL_F64);
}

/* The sum of (i + 1) * list[i], or of all but every third; they have one shape. */
static shoal_tensor *add_up(shoal_tensor *const *list, size_t count, bool uses_all)
{
    shoal_tensor *total = NULL;
    for (size_t i = 0; list && i < count; i++) {
        if (uses_all || i % 3 != 1) {
            shoal_tensor *part = shoal_mul_scalar(list[i], (double)(i + 1));
            total = total ? shoal_add(total, part) : part;
        }
    }
    return total;
}

/* All of them, one after the other; without every third when they are not all used. */
static shoal_tensor *join(shoal_tensor *const *list, size_t count, bool uses_all)
{
    shoal_tensor *flat[8];
    size_t n_flat = 0;
    for (size_t i = 0; list && i < count; i++) {
        if (uses_all || i % 3 != 1) {
            flat[n_flat++] = shoal_reshape(list[i], (int64_t[]){-1}, 1);
        }
    }
    return list ? shoal_cat(flat, n_flat, 0) : NULL;
}

static shoal_tensor *broadcast_of_each(const struct place *at, shoal_tensor *self, bool is_in_place)
{
    shoal_tensor *list[MAX_RANKS];
    for (int root = 0; root < at->n_ranks; root++) {
        list[root] =
            is_in_place ? shoal_broadcast_(fresh(self), root, GROUP) : shoal_broadcast(self, root, GROUP);
    }
    return add_up(list, (size_t)at->n_ranks, true);
}

static shoal_tensor *reduce_to_each(const struct place *at, shoal_tensor *self, shoal_reduce_op reduce)
{
    shoal_tensor *list[MAX_RANKS];
    for (int root = 0; root < at->n_ranks; root++) {
        list[root] = reduce == SHOAL_PREMUL_SUM ? shoal_reduce_premul(self, FACTOR, root, GROUP)
                                                : shoal_reduce(self, reduce, root, GROUP);
    }
    return add_up(list, (size_t)at->n_ranks, true);
}

/* Rank m's tensor to m + step; only the first n_sending send. */
static shoal_tensor *rotate(const struct place *at, shoal_tensor *self, int step, int n_sending)
{
    int64_t destinations[MAX_RANKS] = {0};
    for (int m = 0; m < n_sending; m++) {
        destinations[m] = (m + step) % at->n_ranks;
    }
    return shoal_permute_tensor(self, destinations, (size_t)n_sending, GROUP);
}

static shoal_tensor *exchange(const struct place *at, shoal_tensor *self, enum size kind, bool is_in_place)
{
    int64_t to[MAX_RANKS];
    int64_t from[MAX_RANKS];
    int64_t shape[SHOAL_MAX_DIMS];
    size_t n = (size_t)at->n_ranks;
    int n_dims = shoal_tensor_n_dims(self);
    for (int i = 0; i < n_dims; i++) {
        shape[i] = shoal_tensor_shape(self)[i];
    }
    shape[0] = 0;
    for (int q = 0; q < at->n_ranks; q++) {
        to[q] = rows_sent(kind, at->n_ranks, at->rank, q);
        from[q] = rows_sent(kind, at->n_ranks, q, at->rank);
        shape[0] += from[q];
    }
    return is_in_place
               ? shoal_all_to_all_inplace(shoal_zeros(shape, n_dims, SHOAL_F64), self, from, to, n, GROUP)
               : shoal_all_to_all_single(self, from, to, n, GROUP);
}

static shoal_tensor *gather_apart(const struct place *at, shoal_tensor *self, bool uses_all)
{
    shoal_tensor *outs[MAX_RANKS];
    for (int r = 0; r < at->n_ranks; r++) {
        outs[r] = shoal_zeros(shoal_tensor_shape(self), shoal_tensor_n_dims(self), SHOAL_F64);
    }
    return add_up(shoal_all_gather_inplace(outs, (size_t)at->n_ranks, self, GROUP), (size_t)at->n_ranks,
                  uses_all);
}

/* Symmetric memory with a copy of the square, which the record knows; `part` tells several in one body apart. */
static shoal_tensor *symmetric(const struct place *at, shoal_tensor *self, size_t part)
{
    shoal_tensor *place =
        shoal_symmetric_tensor(at->symmetric, part * SYMMETRIC_PART_BYTES, shoal_tensor_shape(self),
                               shoal_tensor_n_dims(self), SHOAL_F64);
    return shoal_copy_(place, square(self));
}

/* For shoal_recompute. */
static shoal_status gather_squares(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    for (size_t i = 0; i < n_inputs && i < n_outputs; i++) {
        outputs[i] = square(shoal_all_gather_tensor(square(inputs[i]), 0, context));
    }
    return shoal_scope_error();
}

static shoal_tensor *gather_again(const struct place *at, shoal_tensor *self)
{
    shoal_tensor *output = NULL;
    return shoal_recompute(gather_squares, GROUP, NULL, &self, 1, &output, 1) == SHOAL_OK ? output : NULL;
}

/* What a row of a network with shards does: its weights gathered, its gradients scattered. */
static shoal_tensor *layer_of_shards(const struct place *at, shoal_tensor *weights, shoal_tensor *input)
{
    shoal_tensor *whole = shoal_all_gather_tensor(weights, 0, GROUP);
    shoal_tensor *output = shoal_mul(whole, shoal_all_gather_tensor(input, 0, GROUP));
    return shoal_reduce_scatter_tensor(square(output), SHOAL_AVG, 0, GROUP);
}

#define LIST(...) ((shoal_tensor *[]){__VA_ARGS__})
#define INTS(...) ((int64_t[]){__VA_ARGS__})

#define S0 \
    {      \
        0  \
    }
#define S(...)                                              \
    {                                                       \
        sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
        {                                                   \
            __VA_ARGS__                                     \
        }                                                   \
    }

/* Rows ------------------------------------------------------------------------------------------------- */

/* clang-format off */
#define GRADIENT_CASES \
    CASE(all_reduce, sum, return shoal_all_reduce(x[0], SHOAL_SUM, GROUP), 1, S(2, 3)) \
    CASE(all_reduce, avg, return square(shoal_all_reduce(x[0], SHOAL_AVG, GROUP)), 1, S(2, 3)) \
    CASE(all_reduce, premul, return shoal_all_reduce_premul(square(x[0]), FACTOR, GROUP), 1, S(2, 3)) \
    CASE(all_reduce, min, return square(shoal_all_reduce(x[0], SHOAL_MIN, GROUP)), 1, S(2, 3)) \
    CASE(all_reduce, max, return square(shoal_all_reduce(square(x[0]), SHOAL_MAX, GROUP)), 1, S(2, 3)) \
    CASE(all_reduce, empty, return shoal_all_reduce(x[0], SHOAL_SUM, GROUP), 1, S(0, 3)) \
    CASE(all_reduce, scalar, return square(shoal_all_reduce(x[0], SHOAL_SUM, GROUP)), 1, S0) \
    CASE(all_reduce, used_twice, return shoal_mul(shoal_all_reduce(x[0], SHOAL_SUM, GROUP), x[0]), 1, S(2, 3)) \
    CASE(all_reduce, of_a_view, return square(shoal_all_reduce(shoal_transpose(square(x[0]), 0, 1), SHOAL_SUM, GROUP)), 1, S(2, 3)) \
    CASE(all_reduce, max_of_a_view, return shoal_all_reduce(shoal_narrow(x[0], 1, 1, 2), SHOAL_MAX, GROUP), 1, S(2, 3)) \
    CASE(all_reduce, of_a_stretched_view, return shoal_all_reduce(shoal_expand(x[0], INTS(4, 3), 2), SHOAL_SUM, GROUP), 1, S(1, 3)) \
    CASE(all_reduce, thrice, return square(shoal_all_reduce(shoal_all_reduce(shoal_mul(x[0], shoal_all_reduce(x[0], SHOAL_AVG, GROUP)), SHOAL_MAX, GROUP), SHOAL_SUM, GROUP)), 1, S(3)) \
    CASE(all_reduce_, sum, return square(shoal_all_reduce_(fresh(x[0]), SHOAL_SUM, GROUP)), 1, S(2, 3)) \
    CASE(all_reduce_, avg, return shoal_all_reduce_inplace(square(x[0]), SHOAL_AVG, GROUP), 1, S(2, 3)) \
    CASE(all_reduce_, premul, return square(shoal_all_reduce_premul_(fresh(x[0]), FACTOR, GROUP)), 1, S(2, 3)) \
    CASE(all_reduce_, max, return square(shoal_all_reduce_(square(x[0]), SHOAL_MAX, GROUP)), 1, S(2, 3)) \
    CASE(all_reduce_, min_twice, return shoal_all_reduce_(shoal_mul(shoal_all_reduce_(fresh(x[0]), SHOAL_MIN, GROUP), x[0]), SHOAL_MIN, GROUP), 1, S(2, 3)) \
    CASE(all_reduce_coalesced, sum, return square(join(shoal_all_reduce_coalesced(x, 3, SHOAL_SUM, GROUP), 3, true)), 3, S(2, 3), S0, S(2)) \
    CASE(all_reduce_coalesced, avg_partly, return square(join(shoal_all_reduce_coalesced(x, 3, SHOAL_AVG, GROUP), 3, false)), 3, S(2, 3), S(2), S(0, 3)) \
    CASE(all_reduce_coalesced, max_partly, return join(shoal_all_reduce_coalesced(LIST(square(x[0]), x[1], x[0]), 3, SHOAL_MAX, GROUP), 3, false), 2, S(2, 3), S(2)) \
    CASE(all_reduce_coalesced, premul, return square(join(shoal_all_reduce_coalesced_premul(x, 2, FACTOR, GROUP), 2, true)), 2, S(2, 3), S(2)) \
    CASE(all_reduce_coalesced_, sum, return square(join(shoal_all_reduce_coalesced_(LIST(fresh(x[0]), fresh(x[1]), square(x[2])), 3, SHOAL_SUM, GROUP), 3, true)), 3, S(2, 3), S0, S(2)) \
    CASE(all_reduce_coalesced_, avg_partly, return square(join(shoal_all_reduce_coalesced_(LIST(fresh(x[0]), fresh(x[1]), square(x[0])), 3, SHOAL_AVG, GROUP), 3, false)), 2, S(2, 3), S(2)) \
    CASE(all_reduce_coalesced_, min, return join(shoal_all_reduce_coalesced_(LIST(fresh(x[0]), fresh(x[1])), 2, SHOAL_MIN, GROUP), 2, true), 2, S(2, 3), S(2)) \
    CASE(all_reduce_coalesced_, premul, return square(join(shoal_all_reduce_coalesced_premul_(LIST(fresh(x[0]), fresh(x[1])), 2, FACTOR, GROUP), 2, true)), 2, S(2, 3), S(2)) \
    CASE(reduce, sum, return square(reduce_to_each(at, x[0], SHOAL_SUM)), 1, S(2, 3)) \
    CASE(reduce, avg, return reduce_to_each(at, square(x[0]), SHOAL_AVG), 1, S(2, 3)) \
    CASE(reduce, premul, return square(reduce_to_each(at, x[0], SHOAL_PREMUL_SUM)), 1, S(3)) \
    CASE(reduce, empty, return reduce_to_each(at, x[0], SHOAL_SUM), 1, S(0)) \
    CASE(reduce_scatter_tensor, sum_dim_0, return square(shoal_reduce_scatter_tensor(x[0], SHOAL_SUM, 0, GROUP)), 1, S(OF_RANKS(2), 2)) \
    CASE(reduce_scatter_tensor, sum_dim_1, return square(shoal_reduce_scatter_tensor(x[0], SHOAL_SUM, 1, GROUP)), 1, S(2, OF_RANKS(1), 2)) \
    CASE(reduce_scatter_tensor, sum_dim_2, return shoal_reduce_scatter_tensor_autograd(x[0], SHOAL_SUM, 2, GROUP), 1, S(2, 1, OF_RANKS(2))) \
    CASE(reduce_scatter_tensor, avg_dim_0, return square(shoal_reduce_scatter_tensor(x[0], SHOAL_AVG, 0, GROUP)), 1, S(OF_RANKS(1), 2)) \
    CASE(reduce_scatter_tensor, avg_last_dim, return shoal_reduce_scatter_tensor(square(x[0]), SHOAL_AVG, -1, GROUP), 1, S(2, OF_RANKS(2))) \
    CASE(reduce_scatter_tensor, premul_dim_0, return shoal_reduce_scatter_tensor_premul(x[0], FACTOR, 0, GROUP), 1, S(OF_RANKS(2))) \
    CASE(reduce_scatter_tensor, premul_dim_1, return square(shoal_reduce_scatter_tensor_premul(x[0], FACTOR, -2, GROUP)), 1, S(2, OF_RANKS(1), 2)) \
    CASE(reduce_scatter_tensor, empty, return shoal_reduce_scatter_tensor(x[0], SHOAL_AVG, 1, GROUP), 1, S(2, 0)) \
    CASE(reduce_scatter_tensor, of_a_view, return square(shoal_reduce_scatter_tensor(shoal_transpose(x[0], 0, 1), SHOAL_SUM, 1, GROUP)), 1, S(OF_RANKS(1), 3)) \
    CASE(reduce_scatter_tensor, in_layers, return layer_of_shards(at, layer_of_shards(at, x[0], x[1]), x[1]), 2, S(2), S(2)) \
    CASE(reduce_scatter_tensor_out, sum, return square(shoal_reduce_scatter_tensor_out(x[0], SHOAL_SUM, GROUP, room(x[0], 0, 1, at->n_ranks))), 1, S(OF_RANKS(2), 2)) \
    CASE(reduce_scatter_tensor_out, avg_over_history, return shoal_mul(x[1], shoal_reduce_scatter_tensor_out(x[0], SHOAL_AVG, GROUP, fresh(x[1]))), 2, S(OF_RANKS(2)), S(2)) \
    CASE(reduce_scatter_tensor_out, premul, return square(shoal_reduce_scatter_tensor_premul_out(x[0], FACTOR, GROUP, room(x[0], 0, 1, at->n_ranks))), 1, S(OF_RANKS(2))) \
    CASE(reduce_scatter_tensor_inplace, sum_dim_1, return square(shoal_reduce_scatter_tensor_inplace(room(x[0], 1, 1, at->n_ranks), x[0], SHOAL_SUM, 1, GROUP)), 1, S(2, OF_RANKS(2))) \
    CASE(reduce_scatter_tensor_inplace, avg_dim_0, return shoal_reduce_scatter_tensor_inplace(room(x[0], 0, 1, at->n_ranks), square(x[0]), SHOAL_AVG, 0, GROUP), 1, S(OF_RANKS(1), 2)) \
    CASE(reduce_scatter_tensor_inplace, premul_last_dim, return square(shoal_reduce_scatter_tensor_premul_inplace(room(x[0], 1, 1, at->n_ranks), x[0], FACTOR, -1, GROUP)), 1, S(2, OF_RANKS(1))) \
    CASE(reduce_scatter_tensor_coalesced, sum, return square(join(shoal_reduce_scatter_tensor_coalesced(x, 3, SHOAL_SUM, INTS(0, 1, -1), GROUP), 3, true)), 3, S(OF_RANKS(1), 2), S(2, OF_RANKS(1), 2), S(2, OF_RANKS(2))) \
    CASE(reduce_scatter_tensor_coalesced, avg_partly, return square(join(shoal_reduce_scatter_tensor_coalesced(x, 3, SHOAL_AVG, INTS(0, 0, 1), GROUP), 3, false)), 3, S(OF_RANKS(2)), S(OF_RANKS(1), 2), S(3, OF_RANKS(1))) \
    CASE(reduce_scatter_tensor_coalesced, premul, return square(join(shoal_reduce_scatter_tensor_coalesced_premul(x, 2, FACTOR, INTS(1, 0), GROUP), 2, true)), 2, S(3, OF_RANKS(1)), S(OF_RANKS(1), 2)) \
    CASE(reduce_scatter_tensor_coalesced, default_dims, return join(shoal_reduce_scatter_tensor_coalesced(x, 2, SHOAL_SUM, NULL, GROUP), 2, true), 2, S(OF_RANKS(1), 2), S(0, 2)) \
    CASE(all_gather_tensor, dim_0, return square(shoal_all_gather_tensor(x[0], 0, GROUP)), 1, S(2, 3)) \
    CASE(all_gather_tensor, dim_1, return square(shoal_all_gather_tensor(x[0], 1, GROUP)), 1, S(2, 2, 2)) \
    CASE(all_gather_tensor, dim_2, return shoal_all_gather_tensor_autograd(x[0], 2, GROUP), 1, S(2, 1, 3)) \
    CASE(all_gather_tensor, negative_dim, return square(shoal_all_gather_tensor(x[0], -2, GROUP)), 1, S(2, 2, 2)) \
    CASE(all_gather_tensor, of_a_row, return shoal_all_gather_tensor(x[0], 1, GROUP), 1, S(1, 3)) \
    CASE(all_gather_tensor, scalar, return square(shoal_all_gather_tensor(x[0], 0, GROUP)), 1, S0) \
    CASE(all_gather_tensor, scalar_last_dim, return square(shoal_all_gather_tensor(x[0], -1, GROUP)), 1, S0) \
    CASE(all_gather_tensor, empty, return shoal_all_gather_tensor(x[0], 1, GROUP), 1, S(2, 0)) \
    CASE(all_gather_tensor, of_a_view, return square(shoal_all_gather_tensor(shoal_transpose(square(x[0]), 0, 1), 1, GROUP)), 1, S(2, 3)) \
    CASE(all_gather_tensor, into_views, return shoal_mul(shoal_narrow(shoal_all_gather_tensor(x[0], 0, GROUP), 0, at->n_ranks - 1, 2), shoal_transpose(x[0], 0, 1)), 1, S(2, 2)) \
    CASE(all_gather_tensor, again, return gather_again(at, x[0]), 1, S(2, 2)) \
    CASE(all_gather_tensor, waited_for, return square(shoal_wait_tensor(shoal_all_gather_tensor(shoal_wait_tensor(fresh(x[0])), 0, GROUP))), 1, S(2, 2)) \
    CASE(all_gather_tensor_inplace, dim_1, return square(shoal_all_gather_tensor_inplace(room(x[0], 1, at->n_ranks, 1), x[0], 1, GROUP)), 1, S(2, 2)) \
    CASE(all_gather_tensor_inplace, scalar, return square(shoal_all_gather_tensor_inplace(room(x[0], 0, at->n_ranks, 1), x[0], 0, GROUP)), 1, S0) \
    CASE(all_gather_into_tensor, plain, return square(shoal_all_gather_into_tensor(x[0], GROUP)), 1, S(2, 3)) \
    CASE(all_gather_into_tensor, scalar, return square(shoal_all_gather_into_tensor(x[0], GROUP)), 1, S0) \
    CASE(all_gather_into_tensor_out, plain, return square(shoal_all_gather_into_tensor_out(x[0], GROUP, room(x[0], 0, at->n_ranks, 1))), 1, S(2, 2)) \
    CASE(all_gather_into_tensor_out, scalar, return square(shoal_all_gather_into_tensor_out(x[0], GROUP, room(x[0], 0, at->n_ranks, 1))), 1, S0) \
    CASE(all_gather_into_tensor_out, over_history, return square(shoal_all_gather_into_tensor_out(x[0], GROUP, fresh(x[1]))), 2, S(2), S(OF_RANKS(2))) \
    CASE(all_gather_into_tensor_coalesced, plain, return square(join(shoal_all_gather_into_tensor_coalesced(x, 3, GROUP), 3, true)), 3, S(2, 2), S0, S(3)) \
    CASE(all_gather_into_tensor_coalesced, partly, return square(join(shoal_all_gather_into_tensor_coalesced(LIST(x[0], x[1], x[2]), 3, GROUP), 3, false)), 3, S0, S(2, 2), S(2)) \
    CASE(all_gather_inplace, plain, return square(gather_apart(at, x[0], true)), 1, S(2, 2)) \
    CASE(all_gather_inplace, partly, return square(gather_apart(at, fresh(x[0]), false)), 1, S(2, 2)) \
    CASE(all_gather_inplace, scalar, return square(gather_apart(at, x[0], true)), 1, S0) \
    CASE(all_to_all_single, even, return square(shoal_all_to_all_single(x[0], NULL, NULL, 0, GROUP)), 1, S(OF_RANKS(2), 2)) \
    CASE(all_to_all_single, uneven, return square(exchange(at, x[0], SENT_UNEVEN, false)), 1, S(SENT_UNEVEN, 2)) \
    CASE(all_to_all_single, with_empty_ranks, return square(exchange(at, x[0], SENT_SPARSE, false)), 1, S(SENT_SPARSE)) \
    CASE(all_to_all_single, empty, return shoal_all_to_all_single_autograd(x[0], NULL, NULL, 0, GROUP), 1, S(0, 2)) \
    CASE(all_to_all_single, there_and_back, return square(shoal_all_to_all_single(square(shoal_all_to_all_single(x[0], NULL, NULL, 0, GROUP)), NULL, NULL, 0, GROUP)), 1, S(OF_RANKS(1), 2)) \
    CASE(all_to_all_inplace, even, return square(shoal_all_to_all_inplace(room(x[0], 0, 1, 1), x[0], NULL, NULL, 0, GROUP)), 1, S(OF_RANKS(1), 2)) \
    CASE(all_to_all_inplace, uneven, return square(exchange(at, x[0], SENT_UNEVEN, true)), 1, S(SENT_UNEVEN, 2)) \
    CASE(broadcast, every_root, return square(broadcast_of_each(at, x[0], false)), 1, S(2, 2)) \
    CASE(broadcast, empty, return broadcast_of_each(at, x[0], false), 1, S(0)) \
    CASE(broadcast, used_twice, return shoal_mul(x[0], shoal_broadcast(square(x[0]), at->n_ranks - 1, GROUP)), 1, S(3)) \
    CASE(broadcast_, every_root, return square(broadcast_of_each(at, x[0], true)), 1, S(2, 2)) \
    CASE(broadcast_, twice, return shoal_broadcast_(shoal_mul(shoal_broadcast_(fresh(x[0]), 0, GROUP), x[0]), at->n_ranks - 1, GROUP), 1, S(3)) \
    CASE(permute_tensor, round, return square(rotate(at, x[0], 1, at->n_ranks)), 1, S(2, 3)) \
    CASE(permute_tensor, to_itself, return square(rotate(at, x[0], 0, at->n_ranks)), 1, S(3)) \
    CASE(permute_tensor, without_the_last, return square(rotate(at, x[0], 1, at->n_ranks - 1)), 1, S(2, 2)) \
    CASE(permute_tensor, only_the_first, return shoal_mul_scalar(rotate(at, fresh(x[0]), 1, 1), 3), 1, S(2, 2)) \
    CASE(permute_tensor, nobody, return rotate(at, x[0], 1, 0), 1, S(2, 2)) \
    CASE(permute_tensor, of_no_rows, return rotate(at, x[0], 1, at->n_ranks), 1, S(0, 2)) \
    CASE(shard_dim_alltoall, from_0_to_1, return square(shoal_shard_dim_alltoall(x[0], 0, 1, GROUP)), 1, S(2, OF_RANKS(2))) \
    CASE(shard_dim_alltoall, from_1_to_0, return square(shoal_shard_dim_alltoall(x[0], 1, 0, GROUP)), 1, S(OF_RANKS(1), 2)) \
    CASE(shard_dim_alltoall, from_last_to_0, return square(shoal_shard_dim_alltoall(x[0], -1, 0, GROUP)), 1, S(OF_RANKS(1), 1, 3)) \
    CASE(shard_dim_alltoall, from_1_to_1, return square(shoal_shard_dim_alltoall(x[0], 1, -1, GROUP)), 1, S(2, OF_RANKS(1))) \
    CASE(shard_dim_alltoall, there_and_back, return shoal_shard_dim_alltoall(square(shoal_shard_dim_alltoall(x[0], 0, 2, GROUP)), 2, 0, GROUP), 1, S(1, 2, OF_RANKS(1))) \
    CASE(one_shot_all_reduce, sum, return square(shoal_one_shot_all_reduce(symmetric(at, x[0], 0), SHOAL_SUM, GROUP)), 1, S(2, 3)) \
    CASE(one_shot_all_reduce, max, return square(shoal_one_shot_all_reduce(symmetric(at, x[0], 0), SHOAL_MAX, GROUP)), 1, S(2, 3)) \
    CASE(one_shot_all_reduce_out, avg, return square(shoal_one_shot_all_reduce_out(symmetric(at, x[0], 0), SHOAL_AVG, GROUP, room(x[0], 0, 1, 1))), 1, S(2, 3)) \
    CASE(one_shot_all_reduce_out, min, return shoal_one_shot_all_reduce_out(symmetric(at, x[0], 0), SHOAL_MIN, GROUP, fresh(x[1])), 2, S(2, 3), S(2, 3)) \
    CASE(two_shot_all_reduce_, sum, return square(shoal_two_shot_all_reduce_(symmetric(at, x[0], 0), SHOAL_SUM, GROUP)), 1, S(2, 3)) \
    CASE(two_shot_all_reduce_, max, return square(shoal_two_shot_all_reduce_(symmetric(at, x[0], 0), SHOAL_MAX, GROUP)), 1, S(2, 3)) \
    CASE(two_shot_all_reduce_out, sum, return square(shoal_two_shot_all_reduce_out(symmetric(at, x[0], 0), SHOAL_SUM, GROUP, symmetric(at, x[0], 1))), 1, S(2, 3)) \
    CASE(two_shot_all_reduce_out, max, return square(shoal_two_shot_all_reduce_out(symmetric(at, x[0], 0), SHOAL_MAX, GROUP, room(x[0], 0, 1, 1))), 1, S(2, 3))
/* clang-format on */

#define CASE(op, label, body, n, ...)                                                       \
    static shoal_tensor *run_##op##_##label(const struct place *at, shoal_tensor *const *x) \
    {                                                                                       \
        body;                                                                               \
    }
GRADIENT_CASES
#undef CASE

#endif
