/* SPDX-License-Identifier: MIT */
/* Graphs with every collective, for whoever runs them; running.h reads them. */
#ifndef TESTS_UNIT_GRAPH_RUN_TEXTS_H
#define TESTS_UNIT_GRAPH_RUN_TEXTS_H

#include "running.h"

/* A test body on 1, 2 and 3 ranks, with a world. */
#define WORLD_TEST(name)                               \
    static void name##_in_world(shoal_world *world);   \
    static void name##_on_ranks(struct rank *self)     \
    {                                                  \
        shoal_world *world = rank_world_open(self, 0); \
        REQUIRE(world != NULL);                        \
        name##_in_world(world);                        \
        CHECK_OK(shoal_world_close(world));            \
    }                                                  \
    TEST_RANKS(name##_1, 1)                            \
    {                                                  \
        name##_on_ranks(self);                         \
    }                                                  \
    TEST_RANKS(name##_2, 2)                            \
    {                                                  \
        name##_on_ranks(self);                         \
    }                                                  \
    TEST_RANKS(name##_3, 3)                            \
    {                                                  \
        name##_on_ranks(self);                         \
    }                                                  \
    static void name##_in_world(shoal_world *world)

__attribute__((unused)) static const char views_text[] =
    "graph {\n"
    "%x = placeholder : f32[4, 6]\n"
    "%y = placeholder : f32[6]\n"
    "%w = constant [1.5, -2.0, 0.1, 3.0, 0.7, -0.3] : f32[6]\n"
    "%t = transpose(%x, 0, 1)\n"
    "%r = reshape(%t, [24])\n"
    "%parts = split_with_sizes(%x, [1, 3], 0)\n"
    "%first = getitem(%parts, 0)\n"
    "%last = getitem(%parts, -1)\n"
    "%row = select(%last, 0, 1)\n"
    "%in = add_(%row, %y)\n"
    "%copied = copy_(%y, %w)\n"
    "%m = mul(%copied, %first)\n"
    "%c = cat([%first, %last, %m], 0)\n"
    "%dead = neg(%c)\n"
    "%d = to_dtype(%c, bf16)\n"
    "return [%c, [%d, %r], [[%parts]], %t, %x]\n}\n";

__attribute__((unused)) static const char reduces_text[] =
    "graph {\n"
    "group @g = [[$RANKS]]\n"
    "%x = placeholder : f32[6, 5]\n"
    "%y = placeholder : bf16[7]\n"
    "%z = placeholder : f32[0]\n"
    "%u = placeholder : f32[6, 5]\n"
    "%s1 = all_reduce(%x, \"sum\", @g)\n"
    "%s2 = all_reduce(%y, \"avg\", @g)\n"
    "%s3 = all_reduce(%x, \"premul_sum\", @g, 0.3)\n"
    "%s4 = all_reduce(%z, \"max\", @g)\n"
    "%w4 = wait_tensor(%s4)\n"
    "%w3 = wait_tensor(%s3)\n"
    "%w1 = wait_tensor(%s1)\n"
    "%w2 = wait_tensor(%s2)\n"
    "%i1 = all_reduce_(%y, \"min\", @g)\n"
    "%i2 = wait_tensor(%i1)\n"
    "%l1 = all_reduce_coalesced([%x, %w1], \"sum\", @g)\n"
    "%l2 = wait_tensors(%l1)\n"
    "%a = getitem(%l2, 1)\n"
    "%m1 = all_reduce_coalesced_([%u, %w3], \"avg\", @g)\n"
    "%m2 = wait_tensors(%m1)\n"
    "%r1 = reduce(%x, \"sum\", 0, @g)\n"
    "%r2 = wait_tensor(%r1)\n"
    "return [%w1, %w2, %w3, %w4, %i2, %l2, %a, %m2, %r2]\n}\n";

__attribute__((unused)) static const char moves_text[] =
    "graph {\n"
    "group @g = [[$RANKS]]\n"
    "%x = placeholder : f32[6, 6]\n"
    "%y = placeholder : i32[6, 3]\n"
    "%out = placeholder : f32[6, 6]\n"
    "%s1 = all_gather_into_tensor(%x, @g)\n"
    "%w1 = wait_tensor(%s1)\n"
    "%s2 = all_gather_tensor(%y, 1, @g)\n"
    "%w2 = wait_tensor(%s2)\n"
    "%s3 = all_gather_into_tensor_coalesced([%x, %out], @g)\n"
    "%w3 = wait_tensors(%s3)\n"
    "%g = all_gather_into_tensor_out(%w1, %x, @g)\n"
    "%w4 = wait_tensor(%g)\n"
    "%s5 = reduce_scatter_tensor(%x, \"sum\", 0, @g)\n"
    "%w5 = wait_tensor(%s5)\n"
    "%s6 = reduce_scatter_tensor(%x, \"avg\", 1, @g)\n"
    "%w6 = wait_tensor(%s6)\n"
    "%s7 = reduce_scatter_tensor_coalesced([%x, %x], \"sum\", [0, 1], @g)\n"
    "%w7 = wait_tensors(%s7)\n"
    "%s8 = reduce_scatter_tensor_out(%w5, %out, \"sum\", @g)\n"
    "%w8 = wait_tensor(%s8)\n"
    "%s9 = all_to_all_single(%y, [], [], @g)\n"
    "%w9 = wait_tensor(%s9)\n"
    "%sa = shard_dim_alltoall(%x, 0, 1, @g)\n"
    "%wa = wait_tensor(%sa)\n"
    "%sb = broadcast(%x, 0, @g)\n"
    "%wb = wait_tensor(%sb)\n"
    "%sc = broadcast_(%y, 0, @g)\n"
    "%wc = wait_tensor(%sc)\n"
    "%sd = permute_tensor(%x, [$TURNED], @g)\n"
    "%wd = wait_tensor(%sd)\n"
    "%n = narrow(%w1, 0, rank(@g) * 6, 6)\n"
    "%o = narrow(%w1, 0, rank(@g) * -6 + 0, 0)\n"
    "return [%w1, %w2, %w3, %w4, %w5, %w6, %w7, %w8, %w9, %wa, %wb, %wc, %wd, %n]\n}\n";

/* Two ranks, each of which sends to the other one. */
__attribute__((unused)) static const char p2p_text[] =
    "graph {\n"
    "group @g = [[0, 1]]\n"
    "%x = placeholder : f32[5]\n"
    "%y = placeholder : f32[5]\n"
    "%u = placeholder : i64[3]\n"
    "%v = placeholder : i64[3]\n"
    "%s = isend(%x, rank(@g) * -1 + 1, 3, @g)\n"
    "%r = irecv(%y, rank(@g) * -1 + 1, 3, @g)\n"
    "%wr = wait_tensor(%r)\n"
    "%ws = wait_tensor(%s)\n"
    "%b = batch_p2p_ops([%u, %v], \"isend irecv\", [rank(@g) * -1 + 1, "
    "rank(@g) * -1 + 1], [0, 0], @g)\n"
    "%wb = wait_tensors(%b)\n"
    "return [%wr, %ws, %wb]\n}\n";

/* Of four ranks as two by two: rows and columns, and all of them, in flight at once. */
__attribute__((unused)) static const char mesh_text[] = "graph {\n"
                                                        "group @rows = [[0, 1], [2, 3]]\n"
                                                        "group @columns = [[2, 0], [1, 3]]\n"
                                                        "group @all = [[$RANKS]]\n"
                                                        "group @again = [[$RANKS]]\n"
                                                        "%x = placeholder : f32[4]\n"
                                                        "%s1 = all_gather_into_tensor(%x, @rows)\n"
                                                        "%s2 = all_gather_into_tensor(%x, @columns)\n"
                                                        "%s3 = all_reduce(%x, \"sum\", @all)\n"
                                                        "%s4 = all_reduce(%x, \"max\", @again)\n"
                                                        "%w4 = wait_tensor(%s4)\n"
                                                        "%w3 = wait_tensor(%s3)\n"
                                                        "%w2 = wait_tensor(%s2)\n"
                                                        "%w1 = wait_tensor(%s1)\n"
                                                        "%n = narrow(%x, 0, rank(@columns) * 2 + 1, 1)\n"
                                                        "return [%w1, %w2, %w3, %w4, %n]\n}\n";

#endif
