/* SPDX-License-Identifier: MIT */
/* What graphs become in plans, as text: the cases L of the specification, and others like them. */
#include "lowering.h"

/* L1, L14, L15: what nobody else needs is reduced where it is, and given out from there. */
TEST(reduces_temporaries_in_place)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = add_scalar(%x, 42.0)\n"
                "    %r = all_reduce(%a, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    return [%w]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 0 bytes, outputs 0 bytes, peak 0 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 64 bytes, 0..3\n"
                "    0 %a = add_scalar(b0:f32[4, 4], 42.0) -> b1:f32[4, 4]\n"
                "    1 %r = start all_reduce sum @w 0: in place on b1:f32[4, 4]\n"
                "    2 %w = wait @w 0\n"
                "    return [b1:f32[4, 4]]\n"
                "}\n");
}

/* L2: an input stays what it is. */
TEST(copies_inputs)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %r = all_reduce(%x, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    return [%w, %x]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 0 bytes, outputs 0 bytes, peak 0 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %r = comm 1 of @w at 0, 64 bytes, 0..3\n"
                "    0 %r = copy_(b1:f32[4, 4], b0:f32[4, 4]) -> b1:f32[4, 4]\n"
                "    1 %r = start all_reduce sum @w 0: in place on b1:f32[4, 4]\n"
                "    2 %w = wait @w 0\n"
                "    return [b1:f32[4, 4], b0:f32[4, 4]]\n"
                "}\n");
}

/* L3: a list of temporaries, and one of an input that stands there twice. */
TEST(reduces_lists_in_place)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = add_scalar(%x, 42.0)\n"
                "    %b = mul_scalar(%x, 2.0)\n"
                "    %r = all_reduce_coalesced([%a, %b], \"avg\", @w)\n"
                "    %r0 = getitem(%r, 0)\n"
                "    %r1 = getitem(%r, 1)\n"
                "    %w0 = wait_tensor(%r0)\n"
                "    %w1 = wait_tensor(%r1)\n"
                "    %c = all_reduce_coalesced([%x, %x], \"avg\", @w)\n"
                "    %v = wait_tensors(%c)\n"
                "    return [[%w0, %w1], %v]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 0 bytes of comm memory\n"
                "    pool 0 bytes, outputs 256 bytes, peak 256 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = output at 0, 64 bytes, 0..9\n"
                "    b2 %b = output at 64, 64 bytes, 1..9\n"
                "    b3 %c = output at 128, 64 bytes, 5..9\n"
                "    b4 %c = output at 192, 64 bytes, 6..9\n"
                "    0 %a = add_scalar(b0:f32[4, 4], 42.0) -> b1:f32[4, 4]\n"
                "    1 %b = mul_scalar(b0:f32[4, 4], 2.0) -> b2:f32[4, 4]\n"
                "    2 %r = start all_reduce avg @w 0: in place on b1:f32[4, 4], in place on b2:f32[4, 4]\n"
                "    3 %w0 = wait @w 0\n"
                "    4 %w1 = wait @w 0\n"
                "    5 %c = copy_(b3:f32[4, 4], b0:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    6 %c = copy_(b4:f32[4, 4], b0:f32[4, 4]) -> b4:f32[4, 4]\n"
                "    7 %c = start all_reduce avg @w 1: in place on b3:f32[4, 4], in place on b4:f32[4, 4]\n"
                "    8 %v = wait @w 1\n"
                "    return [b1:f32[4, 4], b2:f32[4, 4], b3:f32[4, 4], b4:f32[4, 4]]\n"
                "}\n");
}

/* L4, L5: a slice and a transposed input are reduced as a whole buffer. */
TEST(copies_views)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = add_scalar(%x, 10.0)\n"
                "    %s = narrow(%a, 0, 0, 2)\n"
                "    %r = all_reduce(%s, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %t = transpose(%x, 0, 1)\n"
                "    %q = all_reduce(%t, \"sum\", @w)\n"
                "    %v = wait_tensor(%q)\n"
                "    return [%w, %v]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 128 bytes of comm memory\n"
                "    pool 64 bytes, outputs 0 bytes, peak 64 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = pool at 0, 64 bytes, 0..1\n"
                "    b2 %r = comm 1 of @w at 0, 32 bytes, 1..7\n"
                "    b3 %q = comm 2 of @w at 64, 64 bytes, 4..7\n"
                "    0 %a = add_scalar(b0:f32[4, 4], 10.0) -> b1:f32[4, 4]\n"
                "    1 %r = copy_(b2:f32[2, 4], b1:f32[2, 4]) -> b2:f32[2, 4]\n"
                "    2 %r = start all_reduce sum @w 0: in place on b2:f32[2, 4]\n"
                "    3 %w = wait @w 0\n"
                "    4 %q = copy_(b3:f32[4, 4], b0:f32[4, 4]{1, 4}) -> b3:f32[4, 4]\n"
                "    5 %q = start all_reduce sum @w 1: in place on b3:f32[4, 4]\n"
                "    6 %v = wait @w 1\n"
                "    return [b2:f32[2, 4], b3:f32[4, 4]]\n"
                "}\n");
}

/* L6: without comm memory the second product lies where the reduced tensor was. */
TEST(reuses_bytes_after_the_last_use)
{
    shoal_compile_options options = {.struct_size = sizeof options, .no_comm_buffers = true};
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %b0 = add_scalar(%x, 42.0)\n"
                "    %r = all_reduce(%b0, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %b1 = mul(%x, %w)\n"
                "    %b2 = mul(%x, %b1)\n"
                "    %b3 = mul(%x, %b2)\n"
                "    return [%b3]\n"
                "}\n",
                &options, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
                "    pool 128 bytes, outputs 64 bytes, peak 128 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %b0 = pool at 0, 64 bytes, 0..3\n"
                "    b2 %b1 = pool at 64, 64 bytes, 3..4\n"
                "    b3 %b2 = pool at 0, 64 bytes, 4..5\n"
                "    b4 %b3 = output at 0, 64 bytes, 5..6\n"
                "    0 %b0 = add_scalar(b0:f32[4, 4], 42.0) -> b1:f32[4, 4]\n"
                "    1 %r = start all_reduce sum @w 0: in place on b1:f32[4, 4]\n"
                "    2 %w = wait @w 0\n"
                "    3 %b1 = mul(b0:f32[4, 4], b1:f32[4, 4]) -> b2:f32[4, 4]\n"
                "    4 %b2 = mul(b0:f32[4, 4], b2:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    5 %b3 = mul(b0:f32[4, 4], b3:f32[4, 4]) -> b4:f32[4, 4]\n"
                "    return [b4:f32[4, 4]]\n"
                "}\n");
}

/* Each buffer has bytes of its own. */
TEST(no_reuse)
{
    shoal_compile_options options = {.struct_size = sizeof options, .no_reuse = true};
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %b0 = add_scalar(%x, 42.0)\n"
                "    %b1 = mul(%x, %b0)\n"
                "    %b2 = mul(%x, %b1)\n"
                "    %b3 = mul(%x, %b2)\n"
                "    return [%b3]\n"
                "}\n",
                &options, 0,
                "plan {\n"
                "    group @w = [0, 1], 0 collectives, 0 bytes of comm memory\n"
                "    pool 192 bytes, outputs 64 bytes, peak 128 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %b0 = pool at 0, 64 bytes, 0..1\n"
                "    b2 %b1 = pool at 64, 64 bytes, 1..2\n"
                "    b3 %b2 = pool at 128, 64 bytes, 2..3\n"
                "    b4 %b3 = output at 0, 64 bytes, 3..4\n"
                "    0 %b0 = add_scalar(b0:f32[4, 4], 42.0) -> b1:f32[4, 4]\n"
                "    1 %b1 = mul(b0:f32[4, 4], b1:f32[4, 4]) -> b2:f32[4, 4]\n"
                "    2 %b2 = mul(b0:f32[4, 4], b2:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    3 %b3 = mul(b0:f32[4, 4], b3:f32[4, 4]) -> b4:f32[4, 4]\n"
                "    return [b4:f32[4, 4]]\n"
                "}\n");
}

/* L7, L8: into new buffers, which are the outputs. */
TEST(gathers_results_that_are_given_out)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %g = all_gather_into_tensor(%x, @w)\n"
                "    %w = wait_tensor(%g)\n"
                "    %h = all_gather_into_tensor_coalesced([%x, %x], @w)\n"
                "    %h0 = getitem(%h, 0)\n"
                "    %h1 = getitem(%h, 1)\n"
                "    %v0 = wait_tensor(%h0)\n"
                "    %v1 = wait_tensor(%h1)\n"
                "    return [%w, %v0, %v1]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 0 bytes of comm memory\n"
                "    pool 0 bytes, outputs 192 bytes, peak 96 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %g = output at 0, 32 bytes, 0..5\n"
                "    b2 %h = output at 64, 32 bytes, 2..5\n"
                "    b3 %h = output at 128, 32 bytes, 2..5\n"
                "    0 %g = start all_gather @w 0: b0:f32[4] to b1:f32[8]\n"
                "    1 %w = wait @w 0\n"
                "    2 %h = start all_gather @w 1: b0:f32[4] to b2:f32[8], b0:f32[4] to b3:f32[8]\n"
                "    3 %v0 = wait @w 1\n"
                "    4 %v1 = wait @w 1\n"
                "    return [b1:f32[8], b2:f32[8], b3:f32[8]]\n"
                "}\n");
}

/* L9, L10: out of comm memory where the plan has made the input. */
TEST(scatters)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = neg(%x)\n"
                "    %r = reduce_scatter_tensor(%a, \"sum\", 0, @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %l = reduce_scatter_tensor_coalesced([%x, %a], \"avg\", [], @w)\n"
                "    %v = wait_tensors(%l)\n"
                "    return [%w, %v]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 64 bytes of comm memory\n"
                "    pool 0 bytes, outputs 192 bytes, peak 96 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 64 bytes, 0..4\n"
                "    b2 %r = output at 0, 32 bytes, 1..5\n"
                "    b3 %l = output at 64, 32 bytes, 3..5\n"
                "    b4 %l = output at 128, 32 bytes, 3..5\n"
                "    0 %a = neg(b0:f32[4, 4]) -> b1:f32[4, 4]\n"
                "    1 %r = start reduce_scatter sum @w 0: b1:f32[4, 4] to b2:f32[2, 4]\n"
                "    2 %w = wait @w 0\n"
                "    3 %l = start reduce_scatter avg @w 1: b0:f32[4, 4] to b3:f32[2, 4], b1:f32[4, 4] to "
                "b4:f32[2, 4]\n"
                "    4 %v = wait @w 1\n"
                "    return [b2:f32[2, 4], b3:f32[2, 4], b4:f32[2, 4]]\n"
                "}\n");
}

/* L11: splits may depend on the rank. shard_dim_alltoall has blocks of two dimensions. */
TEST(exchanges)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %e = all_to_all_single(%x, [2, 2], [2, 2], @w)\n"
                "    %w = wait_tensor(%e)\n"
                "    %y = placeholder : f32[2, 4]\n"
                "    %s = shard_dim_alltoall(%y, 0, 1, @w)\n"
                "    %v = wait_tensor(%s)\n"
                "    %u = shard_dim_alltoall(%v, 1, 0, @w)\n"
                "    %uw = wait_tensor(%u)\n"
                "    %p = permute_tensor(%w, [1, 0], @w)\n"
                "    %pw = wait_tensor(%p)\n"
                "    return [%pw, %uw]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 4 collectives, 128 bytes of comm memory\n"
                "    pool 128 bytes, outputs 128 bytes, peak 80 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %e = pool at 0, 16 bytes, 0..9\n"
                "    b2 %y = input 1, 32 bytes\n"
                "    b3 %s = comm 1 of @w at 0, 32 bytes, 2..4\n"
                "    b4 %s = comm 2 of @w at 64, 32 bytes, 3..6\n"
                "    b5 %u = output at 0, 32 bytes, 7..10\n"
                "    b6 %u = pool at 64, 32 bytes, 5..7\n"
                "    b7 %p = output at 64, 16 bytes, 8..10\n"
                "    0 %e = start all_to_all @w 0: b0:f32[4] to b1:f32[4]\n"
                "    1 %w = wait @w 0\n"
                "    2 %s = copy_(b3:f32[2, 2, 2], b2:f32[2, 2, 2]{2, 4, 1}) -> b3:f32[2, 2, 2]\n"
                "    3 %s = start all_to_all @w 1: b3:f32[2, 2, 2] to b4:f32[4, 2]\n"
                "    4 %v = wait @w 1\n"
                "    5 %u = start all_to_all @w 2: b4:f32[4, 2] to b6:f32[2, 2, 2]\n"
                "    6 %uw = wait @w 2\n"
                "    7 %uw = copy_(b5:f32[2, 2, 2]{2, 4, 1}, b6:f32[2, 2, 2]) -> b5:f32[2, 2, 2]{2, 4, 1}\n"
                "    8 %p = start all_to_all @w 3: b1:f32[4] to b7:f32[4]\n"
                "    9 %pw = wait @w 3\n"
                "    return [b7:f32[4], b5:f32[2, 4]]\n"
                "}\n");
}

/* L12: a temporary in place, an input as a copy; in place it is the input itself. */
TEST(broadcasts)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %a = neg(%x)\n"
                "    %b = broadcast(%a, 0, @w)\n"
                "    %bw = wait_tensor(%b)\n"
                "    %c = broadcast(%x, 1, @w)\n"
                "    %cw = wait_tensor(%c)\n"
                "    %d = broadcast_(%x, 0, @w)\n"
                "    %dw = wait_tensor(%d)\n"
                "    return [%bw, %cw]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 3 collectives, 128 bytes of comm memory\n"
                "    pool 0 bytes, outputs 0 bytes, peak 0 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 16 bytes, 0..8\n"
                "    b2 %c = comm 2 of @w at 64, 16 bytes, 3..8\n"
                "    0 %a = neg(b0:f32[4]) -> b1:f32[4]\n"
                "    1 %b = start broadcast root 0 @w 0: in place on b1:f32[4]\n"
                "    2 %bw = wait @w 0\n"
                "    3 %c = copy_(b2:f32[4], b0:f32[4]) -> b2:f32[4]\n"
                "    4 %c = start broadcast root 1 @w 1: in place on b2:f32[4]\n"
                "    5 %cw = wait @w 1\n"
                "    6 %d = start broadcast root 0 @w 2: in place on b0:f32[4]\n"
                "    7 %dw = wait @w 2\n"
                "    return [b1:f32[4], b2:f32[4]]\n"
                "}\n");
}

/* L16: the other one has a buffer of its own. */
TEST(steals_only_its_own)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = add_scalar(%x, 1.0)\n"
                "    %r = all_reduce(%a, \"sum\", @w)\n"
                "    %other = add_scalar(%x, 2.0)\n"
                "    %w = wait_tensor(%r)\n"
                "    %o = mul(%other, %w)\n"
                "    return [%o]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 64 bytes, outputs 64 bytes, peak 128 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 64 bytes, 0..4\n"
                "    b2 %other = pool at 0, 64 bytes, 2..4\n"
                "    b3 %o = output at 0, 64 bytes, 4..5\n"
                "    0 %a = add_scalar(b0:f32[4, 4], 1.0) -> b1:f32[4, 4]\n"
                "    1 %r = start all_reduce sum @w 0: in place on b1:f32[4, 4]\n"
                "    2 %other = add_scalar(b0:f32[4, 4], 2.0) -> b2:f32[4, 4]\n"
                "    3 %w = wait @w 0\n"
                "    4 %o = mul(b2:f32[4, 4], b1:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    return [b3:f32[4, 4]]\n"
                "}\n");
}

/* L17: the reduction works on a copy, because x is read while it runs. */
TEST(keeps_what_is_read_later)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = add_scalar(%x, 1.0)\n"
                "    %r = all_reduce(%a, \"sum\", @w)\n"
                "    %y = add_scalar(%a, 2.0)\n"
                "    %w = wait_tensor(%r)\n"
                "    return [%w, %y]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 64 bytes, outputs 64 bytes, peak 128 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = pool at 0, 64 bytes, 0..3\n"
                "    b2 %r = comm 1 of @w at 0, 64 bytes, 1..5\n"
                "    b3 %y = output at 0, 64 bytes, 3..5\n"
                "    0 %a = add_scalar(b0:f32[4, 4], 1.0) -> b1:f32[4, 4]\n"
                "    1 %r = copy_(b2:f32[4, 4], b1:f32[4, 4]) -> b2:f32[4, 4]\n"
                "    2 %r = start all_reduce sum @w 0: in place on b2:f32[4, 4]\n"
                "    3 %y = add_scalar(b1:f32[4, 4], 2.0) -> b3:f32[4, 4]\n"
                "    4 %w = wait @w 0\n"
                "    return [b2:f32[4, 4], b3:f32[4, 4]]\n"
                "}\n");
}

/* A gather reads it until its wait, so the reduction that comes last works on a copy. */
TEST(keeps_what_another_start_reads)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %a = neg(%x)\n"
                "    %g = all_gather_into_tensor(%a, @w)\n"
                "    %r = all_reduce(%a, \"sum\", @w)\n"
                "    %gw = wait_tensor(%g)\n"
                "    %rw = wait_tensor(%r)\n"
                "    return [%gw, %rw]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 64 bytes of comm memory\n"
                "    pool 64 bytes, outputs 64 bytes, peak 48 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %a = pool at 0, 16 bytes, 0..4\n"
                "    b2 %g = output at 0, 32 bytes, 1..6\n"
                "    b3 %r = comm 1 of @w at 0, 16 bytes, 2..6\n"
                "    0 %a = neg(b0:f32[4]) -> b1:f32[4]\n"
                "    1 %g = start all_gather @w 0: b1:f32[4] to b2:f32[8]\n"
                "    2 %r = copy_(b3:f32[4], b1:f32[4]) -> b3:f32[4]\n"
                "    3 %r = start all_reduce sum @w 1: in place on b3:f32[4]\n"
                "    4 %gw = wait @w 0\n"
                "    5 %rw = wait @w 1\n"
                "    return [b2:f32[8], b3:f32[4]]\n"
                "}\n");
}

/* L20 */
TEST(lists_do_not_share_what_is_in_flight)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %inp = placeholder : f32[4, 4]\n"
                "    %x = add_scalar(%inp, 1.0)\n"
                "    %r = reduce_scatter_tensor_coalesced([%x, %inp], \"sum\", [0, 0], @w)\n"
                "    %y = add_scalar(%x, 2.0)\n"
                "    %r0 = getitem(%r, 0)\n"
                "    %w0 = wait_tensor(%r0)\n"
                "    %other = add_scalar(%inp, 3.0)\n"
                "    %r1 = getitem(%r, 1)\n"
                "    %w1 = wait_tensor(%r1)\n"
                "    return [%w0, %y, %other, %w1]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
                "    pool 64 bytes, outputs 256 bytes, peak 192 bytes\n"
                "    b0 %inp = input 0, 64 bytes\n"
                "    b1 %x = pool at 0, 64 bytes, 0..3\n"
                "    b2 %r = output at 0, 32 bytes, 1..6\n"
                "    b3 %r = output at 64, 32 bytes, 1..6\n"
                "    b4 %y = output at 128, 64 bytes, 2..6\n"
                "    b5 %other = output at 192, 64 bytes, 4..6\n"
                "    0 %x = add_scalar(b0:f32[4, 4], 1.0) -> b1:f32[4, 4]\n"
                "    1 %r = start reduce_scatter sum @w 0: b1:f32[4, 4] to b2:f32[2, 4], b0:f32[4, 4] to "
                "b3:f32[2, 4]\n"
                "    2 %y = add_scalar(b1:f32[4, 4], 2.0) -> b4:f32[4, 4]\n"
                "    3 %w0 = wait @w 0\n"
                "    4 %other = add_scalar(b0:f32[4, 4], 3.0) -> b5:f32[4, 4]\n"
                "    5 %w1 = wait @w 0\n"
                "    return [b2:f32[2, 4], b4:f32[4, 4], b5:f32[4, 4], b3:f32[2, 4]]\n"
                "}\n");
}

/* What is written in place lies in one piece, or is copied there and back. */
TEST(in_place_on_views)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %n = narrow(%x, 0, 0, 2)\n"
                "    %r = all_reduce_(%n, \"sum\", @w)\n"
                "    %rw = wait_tensor(%r)\n"
                "    %t = transpose(%x, 0, 1)\n"
                "    %q = all_reduce_coalesced_([%t], \"sum\", @w)\n"
                "    %q0 = getitem(%q, 0)\n"
                "    %qw = wait_tensor(%q0)\n"
                "    return []\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 0 bytes of comm memory\n"
                "    pool 64 bytes, outputs 0 bytes, peak 64 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %q = pool at 0, 64 bytes, 2..5\n"
                "    0 %r = start all_reduce sum @w 0: in place on b0:f32[2, 4]\n"
                "    1 %rw = wait @w 0\n"
                "    2 %q = copy_(b1:f32[4, 4], b0:f32[4, 4]{1, 4}) -> b1:f32[4, 4]\n"
                "    3 %q = start all_reduce sum @w 1: in place on b1:f32[4, 4]\n"
                "    4 %qw = wait @w 1\n"
                "    5 %qw = copy_(b0:f32[4, 4]{1, 4}, b1:f32[4, 4]) -> b0:f32[4, 4]{1, 4}\n"
                "    return []\n"
                "}\n");
}

/* Blocks are brought to their places at the wait; out may be a view. */
TEST(gathers_along_other_dimensions)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[2, 2]\n"
                "    %out = placeholder : f32[2, 8]\n"
                "    %g = all_gather_tensor(%x, 1, @w)\n"
                "    %gw = wait_tensor(%g)\n"
                "    %n = narrow(%out, 1, 0, 4)\n"
                "    %h = all_gather_tensor_inplace(%n, %x, 1, @w)\n"
                "    %hw = wait_tensor(%h)\n"
                "    %a = narrow(%out, 1, 0, 2)\n"
                "    %b = narrow(%out, 1, 2, 2)\n"
                "    %l = all_gather_inplace([%a, %b], %x, @w)\n"
                "    %lw = wait_tensors(%l)\n"
                "    return [%gw]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 3 collectives, 0 bytes of comm memory\n"
                "    pool 64 bytes, outputs 64 bytes, peak 64 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %out = input 1, 64 bytes\n"
                "    b2 %g = output at 0, 32 bytes, 2..10\n"
                "    b3 %g = pool at 0, 32 bytes, 0..2\n"
                "    b4 %h = pool at 0, 32 bytes, 3..5\n"
                "    b5 %l = pool at 0, 32 bytes, 6..9\n"
                "    0 %g = start all_gather @w 0: b0:f32[2, 2] to b3:f32[2, 2, 2]\n"
                "    1 %gw = wait @w 0\n"
                "    2 %gw = copy_(b2:f32[2, 2, 2]{2, 4, 1}, b3:f32[2, 2, 2]) -> b2:f32[2, 2, 2]{2, 4, 1}\n"
                "    3 %h = start all_gather @w 1: b0:f32[2, 2] to b4:f32[2, 2, 2]\n"
                "    4 %hw = wait @w 1\n"
                "    5 %hw = copy_(b1:f32[2, 2, 2]{2, 8, 1}, b4:f32[2, 2, 2]) -> b1:f32[2, 2, 2]{2, 8, 1}\n"
                "    6 %l = start all_gather @w 2: b0:f32[2, 2] to b5:f32[2, 4]\n"
                "    7 %lw = wait @w 2\n"
                "    8 %lw = copy_(b1:f32[2, 2]{8, 1}, b5:f32[2, 2]) -> b1:f32[2, 2]{8, 1}\n"
                "    9 %lw = copy_(b1+8:f32[2, 2]{8, 1}, b5+16:f32[2, 2]) -> b1+8:f32[2, 2]{8, 1}\n"
                "    return [b2:f32[2, 4]]\n"
                "}\n");
}

/* This rank's part of out is where it is sent from. */
TEST(gathers_in_place)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %out = placeholder : f32[4]\n"
                "    %row = narrow(%out, 0, rank(@w) * 2, 2)\n"
                "    %g = all_gather_into_tensor_out(%out, %row, @w)\n"
                "    %gw = wait_tensor(%g)\n"
                "    return []\n"
                "}\n",
                NULL, 1,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
                "    pool 0 bytes, outputs 0 bytes, peak 0 bytes\n"
                "    b0 %out = input 0, 16 bytes\n"
                "    0 %g = start all_gather @w 0: b0+8:f32[2] to b0:f32[4]\n"
                "    1 %gw = wait @w 0\n"
                "    return []\n"
                "}\n");
}

/* Zeros on the others. */
TEST(reduces_to_a_root)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %r = reduce(%x, \"sum\", 1, @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    return [%w]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
                "    pool 0 bytes, outputs 64 bytes, peak 16 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %r = output at 0, 16 bytes, 0..3\n"
                "    0 %r = zeros([4], f32, \"cpu\") -> b1:f32[4]\n"
                "    1 %r = start reduce sum root 1 @w 0: b0:f32[4]\n"
                "    2 %w = wait @w 0\n"
                "    return [b1:f32[4]]\n"
                "}\n");
}

/* As it is; nothing waits before its wait. */
TEST(point_to_point)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %e = empty([4], f32)\n"
                "    %s = isend(%x, 1, 7, @w)\n"
                "    %r = irecv(%e, 1, 7, @w)\n"
                "    %ws = wait_tensor(%s)\n"
                "    %wr = wait_tensor(%r)\n"
                "    return [%wr]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 0 collectives, 0 bytes of comm memory\n"
                "    pool 0 bytes, outputs 64 bytes, peak 16 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %s = pool at 0, 0 bytes, 0..2\n"
                "    b2 %e = output at 0, 16 bytes, 1..4\n"
                "    0 %s = eager isend(b0:f32[4], 1, 7, @w) -> b1:f32[0]\n"
                "    1 %r = eager irecv(b2:f32[4], 1, 7, @w) -> b2:f32[4]\n"
                "    2 %ws = eager wait_tensors([b0:f32[4], b1:f32[0]])\n"
                "    3 %wr = eager wait_tensors([b2:f32[4], b2:f32[4]])\n"
                "    return [b2:f32[4]]\n"
                "}\n");
}

/* Inputs, the same twice, nothing, and a view. */
TEST(outputs)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %a = neg(%x)\n"
                "    %n = narrow(%a, 0, 1, 2)\n"
                "    return [%x, [%a, none], %a, %n]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 0 collectives, 0 bytes of comm memory\n"
                "    pool 0 bytes, outputs 64 bytes, peak 16 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %a = output at 0, 16 bytes, 0..1\n"
                "    0 %a = neg(b0:f32[4]) -> b1:f32[4]\n"
                "    return [b0:f32[4], b1:f32[4], none, b1:f32[4], b1+4:f32[2]]\n"
                "}\n");
}

/* Views that depend on the rank lie where this rank has them, and blocks of other dimensions are copied. */
TEST(views_and_blocks)
{
    static struct lower_text text;
    struct shoal_plan *plan = lower_parse("graph {\n"
                                          "    group @w = [[0, 1]]\n"
                                          "    %x = placeholder : f32[4, 4]\n"
                                          "    %a = add_scalar(%x, 42.0)\n"
                                          "    %r = all_reduce(%a, \"sum\", @w)\n"
                                          "    %w = wait_tensor(%r)\n"
                                          "    %v = narrow(%w, 0, rank(@w), 1)\n"
                                          "    %n = neg(%v)\n"
                                          "    %g = all_gather_tensor(%n, 1, @w)\n"
                                          "    %gw = wait_tensor(%g)\n"
                                          "    %s = reduce_scatter_tensor(%w, \"avg\", 1, @w)\n"
                                          "    %sw = wait_tensor(%s)\n"
                                          "    return [%w, %gw, %sw]\n"
                                          "}\n",
                                          NULL, 1);
    CHECK_STRING(lower_print(plan, &text),
                 "plan {\n"
                 "    group @w = [0, 1], 3 collectives, 128 bytes of comm memory\n"
                 "    pool 64 bytes, outputs 128 bytes, peak 64 bytes\n"
                 "    b0 %x = input 0, 64 bytes\n"
                 "    b1 %a = comm 1 of @w at 0, 64 bytes, 0..9\n"
                 "    b2 %n = pool at 0, 16 bytes, 3..5\n"
                 "    b3 %g = output at 0, 32 bytes, 4..9\n"
                 "    b4 %s = comm 2 of @w at 64, 64 bytes, 6..8\n"
                 "    b5 %s = output at 64, 32 bytes, 7..9\n"
                 "    0 %a = add_scalar(b0:f32[4, 4], 42.0) -> b1:f32[4, 4]\n"
                 "    1 %r = start all_reduce sum @w 0: in place on b1:f32[4, 4]\n"
                 "    2 %w = wait @w 0\n"
                 "    3 %n = neg(b1+16:f32[1, 4]) -> b2:f32[1, 4]\n"
                 "    4 %g = start all_gather @w 1: b2:f32[1, 4] to b3:f32[1, 8]\n"
                 "    5 %gw = wait @w 1\n"
                 "    6 %s = copy_(b4:f32[2, 4, 2], b1:f32[2, 4, 2]{2, 4, 1}) -> b4:f32[2, 4, 2]\n"
                 "    7 %s = start reduce_scatter avg @w 2: b4:f32[2, 4, 2] to b5:f32[4, 2]\n"
                 "    8 %sw = wait @w 2\n"
                 "    return [b1:f32[4, 4], b3:f32[1, 8], b5:f32[4, 2]]\n"
                 "}\n");
    plan_destroy(plan);
}

/* A wait ends what was started in its bytes, which may lie by the rank: not what lies beside them, and also a second start in
   the result of a first one. */
TEST(waits_by_bytes)
{
    static const char text[] = "graph {\n"
                               "    group @w = [[0, 1]]\n"
                               "    %b = placeholder : f32[8]\n"
                               "    %x = placeholder : f32[8]\n"
                               "    %y = placeholder : f32[8]\n"
                               "    %p = narrow(%b, 0, 0, 4)\n"
                               "    %q = narrow(%b, 0, 4, 4)\n"
                               "    %s = reduce_scatter_tensor_out(%p, %x, \"sum\", @w)\n"
                               "    %t = reduce_scatter_tensor_out(%q, %y, \"sum\", @w)\n"
                               "    %mine = narrow(%b, 0, rank(@w) * 4, 4)\n"
                               "    %v = wait_tensor(%mine)\n"
                               "    %n = neg(%mine)\n"
                               "    %ws = wait_tensor(%s)\n"
                               "    %wt = wait_tensor(%t)\n"
                               "    %r = all_reduce_(%b, \"sum\", @w)\n"
                               "    %wr = wait_tensor(%r)\n"
                               "    %u = reduce_scatter_tensor_out(%p, %x, \"sum\", @w)\n"
                               "    %wr2 = wait_tensor(%r)\n"
                               "    %m = neg(%r)\n"
                               "    %wu = wait_tensor(%u)\n"
                               "    return [%n, %m]\n"
                               "}\n";
    static const char *const steps[2] = {"2 %v = wait @w 0\n", "2 %v = wait @w 1\n"};
    static struct lower_text printed;
    for (int rank = 0; rank < 2; rank++) {
        struct shoal_plan *plan = lower_parse(text, NULL, rank);
        const char *lines = lower_print(plan, &printed);
        CHECK(strstr(lines, steps[rank]));
        CHECK(strstr(lines, "3 %n = neg("));
        CHECK(strstr(lines, "9 %wr2 = wait @w 3\n"));
        CHECK(strstr(lines, "10 %m = neg("));
        plan_destroy(plan);
    }
}
