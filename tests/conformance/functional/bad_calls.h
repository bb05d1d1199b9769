/* SPDX-License-Identifier: MIT */
/*
 * Calls of functional collectives that are wrong by meaning, one row each, in a group `g` of three ranks.
 *
 *   BAD(op, status, words that the text must have (separated by '|'), call)
 *
 * f, h: f32 [6, 3]; n: f32 [4]; i: i32 [6]; s: f32 []; x: f32 [6, 3], all elements one; v: f32 [3, 6], f transposed;
 * o: f32 [18, 3]; q: f32 [2, 3]; w, p: f32 [6, 3], parts of o, p in nobody's place; t: f32 [2, 3], a part of f that is
 * nobody's place; y: f32 [6, 3] in symmetric memory; z: that, transposed; m: the symmetric memory.
 */
#ifndef CONFORMANCE_BAD_CALLS_H
#define CONFORMANCE_BAD_CALLS_H

#include "op/box.h"
#include "shoal/collective.h"
#include "shoal_compat/torch.h"

struct bad_tensors {
    shoal_tensor *f, *h, *n, *i, *s, *x, *v, *o, *q, *w, *p, *t, *y, *z;
    shoal_symmetric *m;
};

#define LIST(...) \
    ((shoal_tensor *const[]){__VA_ARGS__}), (sizeof((shoal_tensor *[]){__VA_ARGS__}) / sizeof(shoal_tensor *))
#define INTS(...) ((const int64_t[]){__VA_ARGS__})
#define BOXED(...) box_ints(INTS(__VA_ARGS__), sizeof(INTS(__VA_ARGS__)) / sizeof(int64_t))
#define P2P(...) \
    ((const shoal_p2p_op[]){__VA_ARGS__}), (sizeof((shoal_p2p_op[]){__VA_ARGS__}) / sizeof(shoal_p2p_op))
#define SEND(tensor_, peer_, tag_)                                                   \
    {                                                                                \
        .direction = SHOAL_SEND, .tensor = (tensor_), .peer = (peer_), .tag = (tag_) \
    }
#define RECV(tensor_, peer_, tag_)                                                   \
    {                                                                                \
        .direction = SHOAL_RECV, .tensor = (tensor_), .peer = (peer_), .tag = (tag_) \
    }
#define BATCH(words, peers, tags) \
    BOX_MANY(batch_p2p_ops, NULL, box_tensors(LIST(f, h)), box_string(words), peers, tags, box_group(g))

#define BAD_CALLS(BAD)                                                                                       \
    BAD(wait_tensor, INVALID, "self is NULL", shoal_wait_tensor(NULL))                                       \
    BAD(wait_tensors, INVALID, "tensors: tensor 1 of 2 is NULL", shoal_wait_tensors(LIST(f, NULL)))          \
    /* operators that are none */                                                                            \
    BAD(all_reduce, INVALID, "all_reduce: reduce: there is no reduce operator \"99\"",                       \
        shoal_all_reduce(f, (shoal_reduce_op)99, g))                                                         \
    BAD(all_reduce_, INVALID, "\"-1\"", shoal_all_reduce_(f, (shoal_reduce_op)-1, g))                        \
    BAD(all_reduce, INVALID, "needs a factor", shoal_all_reduce(f, SHOAL_PREMUL_SUM, g))                     \
    BAD(all_reduce, INVALID, "needs a factor", shoal_all_reduce_premul(f, (double)NAN, g))                   \
    BAD(all_reduce, UNSUPPORTED, "premul_sum|i32", shoal_all_reduce_premul(i, 2, g))                         \
    BAD(all_reduce_, UNSUPPORTED, "premul_sum|i32", shoal_all_reduce_premul_(i, 2, g))                       \
    BAD(reduce_scatter_tensor, UNSUPPORTED, "premul_sum|i32",                                                \
        shoal_reduce_scatter_tensor_premul(i, 2, 0, g))                                                      \
    BAD(all_reduce_coalesced, UNSUPPORTED, "premul_sum|i32",                                                 \
        shoal_all_reduce_coalesced_premul(LIST(i), 2, g))                                                    \
    BAD(all_reduce_coalesced, INVALID, "needs a factor",                                                     \
        shoal_all_reduce_coalesced_premul(LIST(f), (double)NAN, g))                                          \
    BAD(all_reduce_coalesced_, UNSUPPORTED, "premul_sum|i32",                                                \
        shoal_all_reduce_coalesced_premul_(LIST(i), 2, g))                                                   \
    BAD(reduce, UNSUPPORTED, "premul_sum|i32", shoal_reduce_premul(i, 2, 0, g))                              \
    BAD(reduce, INVALID, "needs a factor", shoal_reduce_premul(f, (double)NAN, 0, g))                        \
    BAD(reduce_scatter_tensor_out, INVALID, "needs a factor",                                                \
        shoal_reduce_scatter_tensor_premul_out(f, (double)NAN, g, q))                                        \
    BAD(reduce_scatter_tensor_inplace, INVALID, "needs a factor",                                            \
        shoal_reduce_scatter_tensor_premul_inplace(q, f, (double)NAN, 0, g))                                 \
    BAD(reduce_scatter_tensor_coalesced, UNSUPPORTED, "premul_sum|i32",                                      \
        shoal_reduce_scatter_tensor_coalesced_premul(LIST(i), 2, NULL, g))                                   \
    BAD(reduce_scatter_tensor_coalesced, INVALID, "needs a factor",                                          \
        shoal_reduce_scatter_tensor_coalesced_premul(LIST(f), (double)NAN, INTS(0), g))                      \
    BAD(all_reduce_, UNSUPPORTED, "bxor|f32", shoal_all_reduce_inplace(f, SHOAL_BXOR, g))                    \
    BAD(one_shot_all_reduce, INVALID, "\"4096\"", shoal_one_shot_all_reduce(y, (shoal_reduce_op)4096, g))    \
    BAD(all_reduce, INVALID, "group is NULL", shoal_all_reduce(f, SHOAL_SUM, NULL))                          \
    /* lists */                                                                                              \
    BAD(all_reduce_coalesced, INVALID, "empty", shoal_all_reduce_coalesced(NULL, 0, SHOAL_SUM, g))           \
    BAD(all_reduce_coalesced_, INVALID, "1 is i32|f32",                                                      \
        shoal_all_reduce_coalesced_(LIST(f, i), SHOAL_SUM, g))                                               \
    BAD(all_reduce_coalesced_, INVALID, "tensors[1]: elements|share memory|strides [0, 0]",                  \
        shoal_all_reduce_coalesced_(LIST(f, x), SHOAL_SUM, g))                                               \
    BAD(all_reduce_coalesced_, INVALID, "tensors: 0 and 1 overlap",                                          \
        shoal_all_reduce_coalesced_(LIST(f, f), SHOAL_SUM, g))                                               \
    BAD(all_reduce_coalesced_, INVALID, "tensors: 1 and 2 overlap",                                          \
        shoal_all_reduce_coalesced_(LIST(f, w, p), SHOAL_SUM, g))                                            \
    BAD(all_gather_into_tensor_coalesced, INVALID, "2 is i32|f32",                                           \
        shoal_all_gather_into_tensor_coalesced(LIST(f, f, i), g))                                            \
    BAD(all_gather_into_tensor_coalesced, INVALID, "empty",                                                  \
        shoal_all_gather_into_tensor_coalesced(NULL, 0, g))                                                  \
    BAD(reduce_scatter_tensor_coalesced, INVALID, "empty",                                                   \
        shoal_reduce_scatter_tensor_coalesced(NULL, 0, SHOAL_SUM, NULL, g))                                  \
    BAD(reduce_scatter_tensor_coalesced, INVALID, "1 is i32|f32",                                            \
        shoal_reduce_scatter_tensor_coalesced(LIST(f, i), SHOAL_SUM, NULL, g))                               \
    BAD(reduce_scatter_tensor_coalesced, INVALID,                                                            \
        "tensors[1]: self: dimension 0 of shape [4], which is 4|3 ranks",                                    \
        shoal_reduce_scatter_tensor_coalesced(LIST(f, n), SHOAL_SUM, NULL, g))                               \
    BAD(reduce_scatter_tensor_coalesced, INVALID, "tensors[0]|scatter_dim: 2 is not within -2..1",           \
        shoal_reduce_scatter_tensor_coalesced(LIST(f, f), SHOAL_SUM, INTS(2, 0), g))                         \
    BAD(reduce_scatter_tensor_coalesced, INVALID, "tensors[2]: self: a 0-d tensor",                          \
        shoal_reduce_scatter_tensor_coalesced(LIST(f, f, s), SHOAL_SUM, NULL, g))                            \
    BAD(reduce_scatter_tensor_coalesced, INVALID, "scatter_dims: 1 numbers are given for 2 tensors",         \
        BOX_MANY(reduce_scatter_tensor_coalesced, NULL, box_tensors(LIST(f, f)), box_string("sum"),          \
                 BOXED(0), box_group(g)))                                                                    \
    BAD(reduce_scatter_tensor_coalesced, INVALID, "scatter_dims: 3 numbers are given for 2 tensors",         \
        BOX_MANY(reduce_scatter_tensor_coalesced, NULL, box_tensors(LIST(f, f)), box_string("sum"),          \
                 BOXED(0, 0, 0), box_group(g)))                                                              \
    /* roots */                                                                                              \
    BAD(reduce, INVALID, "invalid root rank 3|3 ranks", shoal_reduce(f, SHOAL_SUM, 3, g))                    \
    BAD(reduce, INVALID, "invalid root rank -1", shoal_reduce(f, SHOAL_SUM, -1, g))                          \
    BAD(broadcast, INVALID, "invalid root rank 3|3 ranks", shoal_broadcast(f, 3, g))                         \
    BAD(broadcast_, INVALID, "invalid root rank -1|3 ranks", shoal_broadcast_(f, -1, g))                     \
    BAD(broadcast_, INVALID, "share memory", shoal_broadcast_(x, 0, g))                                      \
    /* what cannot be divided */                                                                             \
    BAD(reduce_scatter_tensor, INVALID, "[4], which is 4|3 ranks",                                           \
        shoal_reduce_scatter_tensor(n, SHOAL_SUM, 0, g))                                                     \
    BAD(reduce_scatter_tensor, INVALID, "dimension 0 of shape [2, 3], which is 2",                           \
        shoal_reduce_scatter_tensor(q, SHOAL_SUM, -2, g))                                                    \
    BAD(reduce_scatter_tensor, INVALID, "0-d", shoal_reduce_scatter_tensor(s, SHOAL_SUM, 0, g))              \
    BAD(reduce_scatter_tensor, INVALID, "scatter_dim: -3 is not within -2..1",                               \
        shoal_reduce_scatter_tensor_autograd(f, SHOAL_SUM, -3, g))                                           \
    BAD(reduce_scatter_tensor_out, INVALID, "[4], which is 4|3 ranks",                                       \
        shoal_reduce_scatter_tensor_out(n, SHOAL_SUM, g, n))                                                 \
    BAD(reduce_scatter_tensor_out, INVALID, "0-d", shoal_reduce_scatter_tensor_out(s, SHOAL_SUM, g, s))      \
    BAD(reduce_scatter_tensor_out, INVALID, "shape [6, 3]|[2, 3]",                                           \
        shoal_reduce_scatter_tensor_out(f, SHOAL_SUM, g, h))                                                 \
    BAD(reduce_scatter_tensor_out, INVALID, "out: it overlaps self|block of self",                           \
        shoal_reduce_scatter_tensor_out(f, SHOAL_SUM, g, t))                                                 \
    BAD(reduce_scatter_tensor_inplace, INVALID, "shape [2, 3]|[6, 1]",                                       \
        shoal_reduce_scatter_tensor_inplace(q, f, SHOAL_SUM, 1, g))                                          \
    BAD(reduce_scatter_tensor_inplace, INVALID, "scatter_dim: 2",                                            \
        shoal_reduce_scatter_tensor_inplace(q, f, SHOAL_SUM, 2, g))                                          \
    BAD(shard_dim_alltoall, INVALID, "dimension 0 of shape [2, 3], which is 2|3 ranks",                      \
        shoal_shard_dim_alltoall(q, 1, 0, g))                                                                \
    BAD(shard_dim_alltoall, INVALID, "0-d", shoal_shard_dim_alltoall(s, 0, 0, g))                            \
    BAD(shard_dim_alltoall, INVALID, "shard_dim: 2 is not within -2..1",                                     \
        shoal_shard_dim_alltoall(f, 0, 2, g))                                                                \
    BAD(shard_dim_alltoall, INVALID, "gather_dim: -3 is not within -2..1",                                   \
        shoal_shard_dim_alltoall(f, -3, 0, g))                                                               \
    /* gathering */                                                                                          \
    BAD(all_gather_tensor, INVALID, "gather_dim: 2 is not within -2..1", shoal_all_gather_tensor(f, 2, g))   \
    BAD(all_gather_tensor, INVALID, "gather_dim: 1", shoal_all_gather_tensor_autograd(s, 1, g))              \
    BAD(all_gather_tensor_inplace, INVALID, "shape [18, 3]|[6, 9]",                                          \
        shoal_all_gather_tensor_inplace(o, f, 1, g))                                                         \
    BAD(all_gather_into_tensor, INVALID, "self is NULL", shoal_all_gather_into_tensor(NULL, g))              \
    BAD(all_gather_into_tensor_out, INVALID, "shape [6, 3]|[18, 3]",                                         \
        shoal_all_gather_into_tensor_out(f, g, h))                                                           \
    BAD(all_gather_into_tensor_out, INVALID, "out is NULL", shoal_all_gather_into_tensor_out(f, g, NULL))    \
    BAD(all_gather_into_tensor_out, INVALID, "out: elements of shape [6, 3]",                                \
        shoal_all_gather_into_tensor_out(q, g, x))                                                           \
    BAD(all_gather_into_tensor_out, INVALID, "out: it overlaps self|block of out",                           \
        shoal_all_gather_into_tensor_out(p, g, o))                                                           \
    BAD(all_gather_inplace, INVALID, "outs: 2 tensors are given, but the group has 3 ranks",                 \
        shoal_all_gather_inplace(LIST(f, h), f, g))                                                          \
    BAD(all_gather_inplace, INVALID, "outs: 4 tensors are given, but the group has 3 ranks",                 \
        shoal_all_gather_inplace(LIST(f, h, h, h), f, g))                                                    \
    BAD(all_gather_inplace, INVALID, "outs[1]|[4]|[6, 3]", shoal_all_gather_inplace(LIST(f, n, h), f, g))    \
    BAD(all_gather_inplace, INVALID, "outs[2]|[3, 6]|[6, 3]", shoal_all_gather_inplace(LIST(f, h, v), f, g)) \
    BAD(all_gather_inplace, INVALID, "outs[0] and [2] share memory",                                         \
        shoal_all_gather_inplace(LIST(f, h, f), h, g))                                                       \
    BAD(all_gather_inplace, INVALID, "outs[1] and [2] share memory",                                         \
        shoal_all_gather_inplace(LIST(f, w, p), h, g))                                                       \
    BAD(all_gather_inplace, INVALID, "outs[0]: elements|share memory",                                       \
        shoal_all_gather_inplace(LIST(x, h, h), f, g))                                                       \
    /* splits */                                                                                             \
    BAD(all_to_all_single, INVALID, "dimension 0, which is 4|3 ranks",                                       \
        shoal_all_to_all_single(n, NULL, NULL, 0, g))                                                        \
    BAD(all_to_all_single, INVALID, "0-d", shoal_all_to_all_single(s, NULL, NULL, 0, g))                     \
    BAD(all_to_all_single, INVALID, "only output_splits",                                                    \
        shoal_all_to_all_single(f, INTS(2, 2, 2), NULL, 3, g))                                               \
    BAD(all_to_all_single, INVALID, "only input_splits",                                                     \
        shoal_all_to_all_single(f, NULL, INTS(2, 2, 2), 3, g))                                               \
    BAD(all_to_all_single, INVALID, "n_splits is 0", shoal_all_to_all_single(f, INTS(2), INTS(2), 0, g))     \
    BAD(all_to_all_single, INVALID, "input_splits: 2 numbers are given, but the group has 3 ranks",          \
        shoal_all_to_all_single(f, INTS(3, 3), INTS(3, 3), 2, g))                                            \
    BAD(all_to_all_single, INVALID, "input_splits: 4 numbers are given, but the group has 3 ranks",          \
        shoal_all_to_all_single_autograd(f, INTS(3, 3, 0, 0), INTS(3, 3, 0, 0), 4, g))                       \
    BAD(all_to_all_single, INVALID, "output_splits: 2 numbers are given, but the group has 3 ranks",         \
        BOX_ONE(all_to_all_single, box_tensor(f), BOXED(3, 3), BOXED(2, 2, 2), box_group(g)))                \
    BAD(all_to_all_single, INVALID, "input_splits: the sum is 5, but dimension 0 is 6",                      \
        shoal_all_to_all_single(f, INTS(2, 2, 2), INTS(2, 2, 1), 3, g))                                      \
    BAD(all_to_all_single, INVALID, "input_splits[1] is -2",                                                 \
        shoal_all_to_all_single(f, INTS(2, 2, 2), INTS(4, -2, 4), 3, g))                                     \
    BAD(all_to_all_single, INVALID, "output_splits[2] is -1",                                                \
        shoal_all_to_all_single(f, INTS(2, 2, -1), INTS(2, 2, 2), 3, g))                                     \
    BAD(all_to_all_single, INVALID, "output_splits[1] is 9223372036854775807",                               \
        shoal_all_to_all_single(f, INTS(2, INT64_MAX, 2), INTS(2, 2, 2), 3, g))                              \
    BAD(all_to_all_inplace, INVALID, "out: shape [6, 3]|[7, 3]",                                             \
        shoal_all_to_all_inplace(h, f, INTS(2, 2, 3), INTS(2, 2, 2), 3, g))                                  \
    BAD(all_to_all_inplace, INVALID, "only output_splits",                                                   \
        shoal_all_to_all_inplace(h, f, INTS(2, 2, 2), NULL, 3, g))                                           \
    BAD(all_to_all_single, INVALID, "n_splits is 0", shoal_all_to_all_inplace(h, f, INTS(2), NULL, 0, g))    \
    BAD(all_to_all_inplace, INVALID, "out: it overlaps self; they may only coincide",                        \
        shoal_all_to_all_inplace(w, p, NULL, NULL, 0, g))                                                    \
    /* permutations */                                                                                       \
    BAD(permute_tensor, INVALID, "destinations[0] and [2] are both 1",                                       \
        shoal_permute_tensor(f, INTS(1, 0, 1), 3, g))                                                        \
    BAD(permute_tensor, INVALID, "destinations[1] is 3|3 ranks", shoal_permute_tensor(f, INTS(1, 3), 2, g))  \
    BAD(permute_tensor, INVALID, "destinations[0] is -1", shoal_permute_tensor(f, INTS(-1, 0, 1), 3, g))     \
    BAD(permute_tensor, INVALID, "destinations: 4 numbers are given, but the group has 3 ranks",             \
        shoal_permute_tensor(f, INTS(0, 1, 2, 0), 4, g))                                                     \
    BAD(permute_tensor, INVALID, "0-d", shoal_permute_tensor(s, INTS(0, 1, 2), 3, g))                        \
    BAD(permute_tensor, INVALID, "destinations is NULL with 3 numbers", shoal_permute_tensor(f, NULL, 3, g)) \
    /* point to point */                                                                                     \
    BAD(isend, INVALID, "destination: rank 3|3 ranks", shoal_isend(f, 3, 0, g))                              \
    BAD(isend, INVALID, "tag: -1", shoal_isend(f, 0, -1, g))                                                 \
    BAD(irecv, INVALID, "source: rank -1|3 ranks", shoal_irecv(f, -1, 0, g))                                 \
    BAD(irecv, INVALID, "tag: -5", shoal_irecv(f, 0, -5, g))                                                 \
    BAD(irecv, INVALID, "share memory", shoal_irecv(x, 0, 0, g))                                             \
    BAD(batch_p2p_ops, INVALID, "ops is NULL", shoal_batch_p2p_ops(NULL, 2, g))                              \
    BAD(batch_p2p_ops, INVALID, "more than memory can hold",                                                 \
        shoal_batch_p2p_ops(&(shoal_p2p_op)SEND(f, 0, 0), SIZE_MAX, g))                                      \
    BAD(batch_p2p_ops, INVALID, "ops[1]: direction is 7, SHOAL_SEND or SHOAL_RECV expected",                 \
        shoal_batch_p2p_ops(P2P(SEND(f, 0, 0), {.direction = (shoal_direction)7, .tensor = f}), g))          \
    BAD(batch_p2p_ops, INVALID, "tensor 1 of 2 is NULL",                                                     \
        shoal_batch_p2p_ops(P2P(SEND(f, 0, 0), RECV(NULL, 0, 0)), g))                                        \
    BAD(batch_p2p_ops, INVALID, "tensors[1]|rank 3|3 ranks",                                                 \
        shoal_batch_p2p_ops(P2P(SEND(f, 0, 0), RECV(h, 3, 0)), g))                                           \
    BAD(batch_p2p_ops, INVALID, "tensors[0]|tag: -1",                                                        \
        shoal_batch_p2p_ops(P2P(SEND(f, 0, -1), RECV(h, 0, 0)), g))                                          \
    BAD(batch_p2p_ops, INVALID, "tensors[1]|share memory",                                                   \
        shoal_batch_p2p_ops(P2P(SEND(f, 0, 0), RECV(x, 0, 0)), g))                                           \
    BAD(batch_p2p_ops, INVALID, "group is NULL", shoal_batch_p2p_ops(P2P(SEND(f, 0, 0)), NULL))              \
    BAD(batch_p2p_ops, INVALID, "\"ibsend\" is neither", BATCH("isend ibsend", BOXED(0, 0), BOXED(0, 0)))    \
    BAD(batch_p2p_ops, INVALID, "\"isendirecv\"", BATCH("isendirecv", BOXED(0, 0), BOXED(0, 0)))             \
    BAD(batch_p2p_ops, INVALID, "\"ISEND\"", BATCH("ISEND irecv", BOXED(0, 0), BOXED(0, 0)))                 \
    BAD(batch_p2p_ops, INVALID, "2 tensors, but 1 directions", BATCH(" isend ", BOXED(0, 0), BOXED(0, 0)))   \
    BAD(batch_p2p_ops, INVALID, "2 tensors, but 0 directions", BATCH("", BOXED(0, 0), BOXED(0, 0)))          \
    BAD(batch_p2p_ops, INVALID, "2 tensors, but 3 directions",                                               \
        BATCH("isend isend isend", BOXED(0, 0), BOXED(0, 0)))                                                \
    BAD(batch_p2p_ops, INVALID, "2 tensors, but 1 peers and 2 tags",                                         \
        BATCH("isend irecv", BOXED(0), BOXED(0, 0)))                                                         \
    BAD(batch_p2p_ops, INVALID, "2 tensors, but 2 peers and 3 tags",                                         \
        BATCH("isend irecv", BOXED(0, 0), BOXED(0, 0, 0)))                                                   \
    /* symmetric memory */                                                                                   \
    BAD(one_shot_all_reduce, INVALID, "is not in symmetric memory",                                          \
        shoal_one_shot_all_reduce(f, SHOAL_SUM, g))                                                          \
    BAD(one_shot_all_reduce, INVALID, "not contiguous", shoal_one_shot_all_reduce(z, SHOAL_SUM, g))          \
    BAD(one_shot_all_reduce_out, INVALID, "is not in symmetric memory",                                      \
        shoal_one_shot_all_reduce_out(f, SHOAL_SUM, g, h))                                                   \
    BAD(one_shot_all_reduce_out, INVALID, "out: shape [2, 3]|[6, 3]",                                        \
        shoal_one_shot_all_reduce_out(y, SHOAL_SUM, g, q))                                                   \
    BAD(one_shot_all_reduce_copy, INVALID, "is not in symmetric memory",                                     \
        shoal_one_shot_all_reduce_copy(f, h, SHOAL_SUM, g))                                                  \
    BAD(one_shot_all_reduce_copy, INVALID, "source: f32 [2, 3], but self is f32 [6, 3]",                     \
        shoal_one_shot_all_reduce_copy(y, q, SHOAL_SUM, g))                                                  \
    BAD(one_shot_all_reduce_copy, INVALID, "source: i32 [6]",                                                \
        shoal_one_shot_all_reduce_copy(y, i, SHOAL_SUM, g))                                                  \
    BAD(one_shot_all_reduce_copy_out, INVALID, "is not in symmetric memory",                                 \
        shoal_one_shot_all_reduce_copy_out(f, h, SHOAL_SUM, g, h))                                           \
    BAD(one_shot_all_reduce_copy_out, INVALID, "source: f32 [4]",                                            \
        shoal_one_shot_all_reduce_copy_out(y, n, SHOAL_SUM, g, h))                                           \
    BAD(one_shot_all_reduce_copy_out, INVALID, "out: shape [4]",                                             \
        shoal_one_shot_all_reduce_copy_out(y, f, SHOAL_SUM, g, n))                                           \
    BAD(two_shot_all_reduce_, INVALID, "is not in symmetric memory",                                         \
        shoal_two_shot_all_reduce_(f, SHOAL_SUM, g))                                                         \
    BAD(two_shot_all_reduce_, UNSUPPORTED, "band|f32", shoal_two_shot_all_reduce_(y, SHOAL_BAND, g))         \
    BAD(two_shot_all_reduce_out, INVALID, "is not in symmetric memory",                                      \
        shoal_two_shot_all_reduce_out(f, SHOAL_SUM, g, h))                                                   \
    BAD(two_shot_all_reduce_out, INVALID, "group is NULL",                                                   \
        shoal_two_shot_all_reduce_out(y, SHOAL_SUM, NULL, h))                                                \
    BAD(symmetric_tensor, INVALID, "symmetric is NULL",                                                      \
        shoal_symmetric_tensor(NULL, 0, INTS(2), 1, SHOAL_F32))                                              \
    BAD(symmetric_tensor, INVALID, "offset 2 is not a multiple of the 4 bytes of f32",                       \
        shoal_symmetric_tensor(m, 2, INTS(2), 1, SHOAL_F32))                                                 \
    BAD(symmetric_tensor, INVALID, "[5000] of f32 at offset 0 does not fit 16384 bytes",                     \
        shoal_symmetric_tensor(m, 0, INTS(5000), 1, SHOAL_F32))                                              \
    BAD(symmetric_tensor, INVALID, "[1] of f64 at offset 16384",                                             \
        shoal_symmetric_tensor(m, 16384, INTS(1), 1, SHOAL_F64))                                             \
    BAD(symmetric_tensor, INVALID, "18446744073709551608",                                                   \
        shoal_symmetric_tensor(m, SIZE_MAX - 7, INTS(2), 1, SHOAL_F64))                                      \
    BAD(symmetric_tensor, INVALID, "does not fit",                                                           \
        shoal_symmetric_tensor(m, 0, INTS(INT64_MAX), 1, SHOAL_F64))                                         \
    BAD(symmetric_tensor, INVALID, "shape is NULL with 2", shoal_symmetric_tensor(m, 0, NULL, 2, SHOAL_F32)) \
    BAD(symmetric_tensor, INVALID, "-3", shoal_symmetric_tensor(m, 0, INTS(-3), 1, SHOAL_F32))               \
    BAD(symmetric_tensor, INVALID, "n_dims: 9",                                                              \
        shoal_symmetric_tensor(m, 0, INTS(1, 1, 1, 1, 1, 1, 1, 1, 1), 9, SHOAL_F32))                         \
    BAD(symmetric_tensor, INVALID, "dtype: 99", shoal_symmetric_tensor(m, 0, INTS(1), 1, (shoal_dtype)99))

#endif
