/* SPDX-License-Identifier: MIT */
/* Gathers into windows, as plans in text. */
#include "lowering.h"

/* What is only read; the two share a window, because the first is released before. */
TEST(gathers_into_a_window)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %a = placeholder : f32[4]\n"
                "    %g = all_gather_into_tensor(%a, @w)\n"
                "    %gw = wait_tensor(%g)\n"
                "    %n = neg(%gw)\n"
                "    %h = all_gather_tensor(%a, 0, @w)\n"
                "    %hw = wait_tensor(%h)\n"
                "    %o = mul(%n, %hw)\n"
                "    return [%o]\n"
                "}\n",
                NULL, 1,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 0 bytes of comm memory\n"
                "    window 0 of @w, 64 bytes\n"
                "    pool 64 bytes, outputs 64 bytes, peak 64 bytes\n"
                "    b0 %a = input 0, 16 bytes\n"
                "    b1 %g = window 0 at 0, 32 bytes, 0..2\n"
                "    b2 %n = pool at 0, 32 bytes, 2..6\n"
                "    b3 %h = window 0 at 0, 32 bytes, 4..6\n"
                "    b4 %o = output at 0, 32 bytes, 6..8\n"
                "    0 %g = start window_gather window 0 @w 0: b0:f32[4] as f32 to 16\n"
                "    1 %gw = wait @w 0\n"
                "    2 %n = neg(b1:f32[8]) -> b2:f32[8]\n"
                "    3 %g = release window 0\n"
                "    4 %h = start window_gather window 0 @w 1: b0:f32[4] as f32 to 16\n"
                "    5 %hw = wait @w 1\n"
                "    6 %o = mul(b2:f32[8], b3:f32[8]) -> b4:f32[8]\n"
                "    7 %h = release window 0\n"
                "    return [b4:f32[8]]\n"
                "}\n");
}

/* Both are read at the same time. */
TEST(two_windows)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %a = placeholder : f32[4]\n"
                "    %b = placeholder : f32[8]\n"
                "    %g = all_gather_into_tensor(%a, @w)\n"
                "    %h = all_gather_into_tensor(%b, @w)\n"
                "    %gw = wait_tensor(%g)\n"
                "    %hw = wait_tensor(%h)\n"
                "    %n = narrow(%hw, 0, 0, 8)\n"
                "    %o = mul(%n, %gw)\n"
                "    %i = all_gather_into_tensor(%b, @w)\n"
                "    %iw = wait_tensor(%i)\n"
                "    %m = neg(%iw)\n"
                "    return [%o, %m]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 3 collectives, 0 bytes of comm memory\n"
                "    window 0 of @w, 64 bytes\n"
                "    window 1 of @w, 64 bytes\n"
                "    pool 0 bytes, outputs 128 bytes, peak 96 bytes\n"
                "    b0 %a = input 0, 16 bytes\n"
                "    b1 %b = input 1, 32 bytes\n"
                "    b2 %g = window 0 at 0, 32 bytes, 0..4\n"
                "    b3 %h = window 1 at 0, 64 bytes, 1..4\n"
                "    b4 %o = output at 0, 32 bytes, 4..11\n"
                "    b5 %i = window 0 at 0, 64 bytes, 7..9\n"
                "    b6 %m = output at 64, 64 bytes, 9..11\n"
                "    0 %g = start window_gather window 0 @w 0: b0:f32[4] as f32 to 0\n"
                "    1 %h = start window_gather window 1 @w 1: b1:f32[8] as f32 to 0\n"
                "    2 %gw = wait @w 0\n"
                "    3 %hw = wait @w 1\n"
                "    4 %o = mul(b3:f32[8], b2:f32[8]) -> b4:f32[8]\n"
                "    5 %g = release window 0\n"
                "    6 %h = release window 1\n"
                "    7 %i = start window_gather window 0 @w 2: b1:f32[8] as f32 to 0\n"
                "    8 %iw = wait @w 2\n"
                "    9 %m = neg(b5:f32[16]) -> b6:f32[16]\n"
                "    10 %i = release window 0\n"
                "    return [b4:f32[8], b6:f32[16]]\n"
                "}\n");
}

/* Nor for outputs, nor without comm memory. */
TEST(no_window_for_what_is_written)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %a = placeholder : f32[4]\n"
                "    %g = all_gather_into_tensor(%a, @w)\n"
                "    %gw = wait_tensor(%g)\n"
                "    %n = mul_scalar_(%gw, 2.0)\n"
                "    %m = neg(%n)\n"
                "    %h = all_gather_into_tensor(%a, @w)\n"
                "    %hw = wait_tensor(%h)\n"
                "    return [%m, %hw]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 0 bytes of comm memory\n"
                "    pool 64 bytes, outputs 128 bytes, peak 64 bytes\n"
                "    b0 %a = input 0, 16 bytes\n"
                "    b1 %g = pool at 0, 32 bytes, 0..3\n"
                "    b2 %m = output at 0, 32 bytes, 3..6\n"
                "    b3 %h = output at 64, 32 bytes, 4..6\n"
                "    0 %g = start all_gather @w 0: b0:f32[4] to b1:f32[8]\n"
                "    1 %gw = wait @w 0\n"
                "    2 %n = mul_scalar_(b1:f32[8], 2.0) -> b1:f32[8]\n"
                "    3 %m = neg(b1:f32[8]) -> b2:f32[8]\n"
                "    4 %h = start all_gather @w 1: b0:f32[4] to b3:f32[8]\n"
                "    5 %hw = wait @w 1\n"
                "    return [b2:f32[8], b3:f32[8]]\n"
                "}\n");
}

TEST(no_windows)
{
    shoal_compile_options options = {.struct_size = sizeof options, .no_comm_buffers = true};
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %a = placeholder : f32[4]\n"
                "    %g = all_gather_into_tensor(%a, @w)\n"
                "    %gw = wait_tensor(%g)\n"
                "    %m = neg(%gw)\n"
                "    return [%m]\n"
                "}\n",
                &options, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
                "    pool 64 bytes, outputs 64 bytes, peak 64 bytes\n"
                "    b0 %a = input 0, 16 bytes\n"
                "    b1 %g = pool at 0, 32 bytes, 0..2\n"
                "    b2 %m = output at 0, 32 bytes, 2..3\n"
                "    0 %g = start all_gather @w 0: b0:f32[4] to b1:f32[8]\n"
                "    1 %gw = wait @w 0\n"
                "    2 %m = neg(b1:f32[8]) -> b2:f32[8]\n"
                "    return [b2:f32[8]]\n"
                "}\n");
}

/* A conversion that only the gather reads is left out; not one that others read, or whose source is written meanwhile. */
TEST(casts_on_the_way)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %a = placeholder : f32[4]\n"
                "    %b = placeholder : f32[4]\n"
                "    %c = placeholder : f32[4]\n"
                "    %ha = to_dtype(%a, bf16)\n"
                "    %hb = to_dtype(%b, bf16)\n"
                "    %hc = to_dtype(%c, bf16)\n"
                "    %ga = all_gather_into_tensor(%ha, @w)\n"
                "    %gb = all_gather_into_tensor(%hb, @w)\n"
                "    %gc = all_gather_into_tensor(%hc, @w)\n"
                "    %k = mul_scalar_(%c, 2.0)\n"
                "    %o = neg(%hb)\n"
                "    %wa = wait_tensor(%ga)\n"
                "    %wb = wait_tensor(%gb)\n"
                "    %wc = wait_tensor(%gc)\n"
                "    %x = mul(%wa, %wb)\n"
                "    %y = mul(%x, %wc)\n"
                "    return [%o, %y]\n"
                "}\n",
                NULL, 1,
                "plan {\n"
                "    group @w = [0, 1], 3 collectives, 0 bytes of comm memory\n"
                "    window 0 of @w, 64 bytes\n"
                "    window 1 of @w, 64 bytes\n"
                "    window 2 of @w, 64 bytes\n"
                "    pool 128 bytes, outputs 128 bytes, peak 40 bytes\n"
                "    b0 %a = input 0, 16 bytes\n"
                "    b1 %b = input 1, 16 bytes\n"
                "    b2 %c = input 2, 16 bytes\n"
                "    b3 %hb = pool at 0, 8 bytes, 0..8\n"
                "    b4 %hc = pool at 64, 8 bytes, 1..9\n"
                "    b5 %ga = window 0 at 0, 16 bytes, 2..10\n"
                "    b6 %gb = window 1 at 0, 16 bytes, 3..10\n"
                "    b7 %gc = window 2 at 0, 16 bytes, 4..13\n"
                "    b8 %o = output at 0, 8 bytes, 6..15\n"
                "    b9 %x = pool at 0, 16 bytes, 10..13\n"
                "    b10 %y = output at 64, 16 bytes, 13..15\n"
                "    0 %hb = to_dtype(b1:f32[4], bf16) -> b3:bf16[4]\n"
                "    1 %hc = to_dtype(b2:f32[4], bf16) -> b4:bf16[4]\n"
                "    2 %ga = start window_gather window 0 @w 0: b0:f32[4] as bf16 to 8\n"
                "    3 %gb = start window_gather window 1 @w 1: b3:bf16[4] as bf16 to 8\n"
                "    4 %gc = start window_gather window 2 @w 2: b4:bf16[4] as bf16 to 8\n"
                "    5 %k = mul_scalar_(b2:f32[4], 2.0) -> b2:f32[4]\n"
                "    6 %o = neg(b3:bf16[4]) -> b8:bf16[4]\n"
                "    7 %wa = wait @w 0\n"
                "    8 %wb = wait @w 1\n"
                "    9 %wc = wait @w 2\n"
                "    10 %x = mul(b5:bf16[8], b6:bf16[8]) -> b9:bf16[8]\n"
                "    11 %ga = release window 0\n"
                "    12 %gb = release window 1\n"
                "    13 %y = mul(b9:bf16[8], b7:bf16[8]) -> b10:bf16[8]\n"
                "    14 %gc = release window 2\n"
                "    return [b8:bf16[4], b10:bf16[8]]\n"
                "}\n");
}

/* Each result at a multiple of 64 bytes, conversions left out. */
TEST(lists_in_one_window)
{
    lower_check(
        "graph {\n"
        "    group @w = [[0, 1]]\n"
        "    %a = placeholder : f32[3]\n"
        "    %b = placeholder : f32[2, 2]\n"
        "    %hb = to_dtype(%b, f16)\n"
        "    %ha = to_dtype(%a, f16)\n"
        "    %g = all_gather_into_tensor_coalesced([%ha, %hb], @w)\n"
        "    %w = wait_tensors(%g)\n"
        "    %g0 = getitem(%w, 0)\n"
        "    %g1 = getitem(%w, 1)\n"
        "    %n = neg(%g0)\n"
        "    %m = neg(%g1)\n"
        "    return [%n, %m]\n"
        "}\n",
        NULL, 1,
        "plan {\n"
        "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
        "    window 0 of @w, 128 bytes\n"
        "    pool 0 bytes, outputs 128 bytes, peak 28 bytes\n"
        "    b0 %a = input 0, 12 bytes\n"
        "    b1 %b = input 1, 16 bytes\n"
        "    b2 %g = window 0 at 0, 12 bytes, 0..2\n"
        "    b3 %g = window 0 at 64, 16 bytes, 0..3\n"
        "    b4 %n = output at 0, 12 bytes, 2..5\n"
        "    b5 %m = output at 64, 16 bytes, 3..5\n"
        "    0 %g = start window_gather window 0 @w 0: b0:f32[3] as f16 to 6, b1:f32[2, 2] as f16 to 72\n"
        "    1 %w = wait @w 0\n"
        "    2 %n = neg(b2:f16[6]) -> b4:f16[6]\n"
        "    3 %m = neg(b3:f16[4, 2]) -> b5:f16[4, 2]\n"
        "    4 %g = release window 0\n"
        "    return [b4:f16[6], b5:f16[4, 2]]\n"
        "}\n");
}

/* cat, rows and copies out of them are left out: each member has rows of its own. */
TEST(buckets_of_gathers)
{
    lower_check(
        "graph {\n"
        "    group @w = [[0, 1]]\n"
        "    %a = placeholder : f32[4]\n"
        "    %b = placeholder : f32[3]\n"
        "    %ha = to_dtype(%a, bf16)\n"
        "    %hb = to_dtype(%b, bf16)\n"
        "    %fa = flatten(%ha)\n"
        "    %fb = flatten(%hb)\n"
        "    %c = cat([%fa, %fb])\n"
        "    %g = all_gather_into_tensor(%c, @w)\n"
        "    %gw = wait_tensor(%g)\n"
        "    %rows = reshape(%gw, [2, 7])\n"
        "    %s = split_with_sizes(%rows, [4, 3], 1)\n"
        "    %g0 = getitem(%s, 0)\n"
        "    %r0 = reshape(%g0, [8])\n"
        "    %g1 = getitem(%s, 1)\n"
        "    %r1 = reshape(%g1, [6])\n"
        "    %n0 = neg(%r0)\n"
        "    %n1 = neg(%r1)\n"
        "    return [%n0, %n1]\n"
        "}\n",
        NULL, 1,
        "plan {\n"
        "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
        "    window 0 of @w, 128 bytes\n"
        "    pool 0 bytes, outputs 128 bytes, peak 28 bytes\n"
        "    b0 %a = input 0, 16 bytes\n"
        "    b1 %b = input 1, 12 bytes\n"
        "    b2 %g = window 0 at 0, 128 bytes, 0..3\n"
        "    b3 %n0 = output at 0, 16 bytes, 2..5\n"
        "    b4 %n1 = output at 64, 12 bytes, 3..5\n"
        "    0 %g = start window_gather window 0 @w 0: b0:f32[4] as bf16 to 8, b1:f32[3] as bf16 to 70\n"
        "    1 %gw = wait @w 0\n"
        "    2 %n0 = neg(b2:bf16[8]) -> b3:bf16[8]\n"
        "    3 %n1 = neg(b2+64:bf16[6]) -> b4:bf16[6]\n"
        "    4 %g = release window 0\n"
        "    return [b3:bf16[8], b4:bf16[6]]\n"
        "}\n");
}

/* Then the rows are what they are, and the cat is left out all the same. */
TEST(buckets_that_are_read_as_rows)
{
    lower_check(
        "graph {\n"
        "    group @w = [[0, 1]]\n"
        "    %a = placeholder : f32[4]\n"
        "    %b = placeholder : f32[3]\n"
        "    %c = cat([%a, %b])\n"
        "    %g = all_gather_into_tensor(%c, @w)\n"
        "    %gw = wait_tensor(%g)\n"
        "    %rows = reshape(%gw, [2, 7])\n"
        "    %s = split_with_sizes(%rows, [4, 3], 1)\n"
        "    %g0 = getitem(%s, 0)\n"
        "    %r0 = reshape(%g0, [8])\n"
        "    %g1 = getitem(%s, 1)\n"
        "    %n0 = neg(%r0)\n"
        "    %n1 = neg(%g1)\n"
        "    return [%n0, %n1]\n"
        "}\n",
        NULL, 1,
        "plan {\n"
        "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
        "    window 0 of @w, 64 bytes\n"
        "    pool 64 bytes, outputs 128 bytes, peak 64 bytes\n"
        "    b0 %a = input 0, 16 bytes\n"
        "    b1 %b = input 1, 12 bytes\n"
        "    b2 %g = window 0 at 0, 56 bytes, 0..4\n"
        "    b3 %r0 = pool at 0, 32 bytes, 2..3\n"
        "    b4 %n0 = output at 0, 32 bytes, 3..6\n"
        "    b5 %n1 = output at 64, 24 bytes, 4..6\n"
        "    0 %g = start window_gather window 0 @w 0: b0:f32[4] as f32 to 28, b1:f32[3] as f32 to 44\n"
        "    1 %gw = wait @w 0\n"
        "    2 %r0 = reshape(b2:f32[2, 4]{7, 1}, [8]) -> b3:f32[8]\n"
        "    3 %n0 = neg(b3:f32[8]) -> b4:f32[8]\n"
        "    4 %n1 = neg(b2+16:f32[2, 3]{7, 1}) -> b5:f32[2, 3]\n"
        "    5 %g = release window 0\n"
        "    return [b4:f32[8], b5:f32[2, 3]]\n"
        "}\n");
}

/* A member that is given out is copied, so that rows are kept together. */
TEST(buckets_with_a_part_in_one_piece)
{
    lower_check(
        "graph {\n"
        "    group @w = [[0, 1]]\n"
        "    %a = placeholder : f32[4]\n"
        "    %b = placeholder : f32[3]\n"
        "    %c = cat([%a, %b])\n"
        "    %g = all_gather_into_tensor(%c, @w)\n"
        "    %gw = wait_tensor(%g)\n"
        "    %rows = reshape(%gw, [2, 7])\n"
        "    %s = split_with_sizes(%rows, [4, 3], 1)\n"
        "    %g0 = getitem(%s, 0)\n"
        "    %r0 = reshape(%g0, [8])\n"
        "    return [%r0]\n"
        "}\n",
        NULL, 0,
        "plan {\n"
        "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
        "    window 0 of @w, 64 bytes\n"
        "    pool 0 bytes, outputs 64 bytes, peak 32 bytes\n"
        "    b0 %a = input 0, 16 bytes\n"
        "    b1 %b = input 1, 12 bytes\n"
        "    b2 %g = window 0 at 0, 56 bytes, 0..2\n"
        "    b3 %r0 = output at 0, 32 bytes, 2..4\n"
        "    0 %g = start window_gather window 0 @w 0: b0:f32[4] as f32 to 0, b1:f32[3] as f32 to 16\n"
        "    1 %gw = wait @w 0\n"
        "    2 %r0 = reshape(b2:f32[2, 4]{7, 1}, [8]) -> b3:f32[8]\n"
        "    3 %g = release window 0\n"
        "    return [b3:f32[8]]\n"
        "}\n");
}
