/* SPDX-License-Identifier: MIT */
/* Comm memory, blocking calls, buckets and inputs that are written at the end, as plans in text: the cases S of the specification. */
#include "lowering.h"

/* S1, S2, S4: of a temporary and of a slice of one; waits are left out. */
TEST(one_shot)
{
    shoal_compile_options options = {.struct_size = sizeof options, .one_shot = true};
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = add_scalar(%x, 1.0)\n"
                "    %r = all_reduce(%a, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %m = mul(%x, %x)\n"
                "    %s = narrow(%m, 0, 0, 2)\n"
                "    %q = all_reduce(%s, \"sum\", @w)\n"
                "    %v = wait_tensor(%q)\n"
                "    return [%w, %v]\n"
                "}\n",
                &options, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 64 bytes of comm memory\n"
                "    pool 0 bytes, outputs 128 bytes, peak 96 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 64 bytes, 0..1\n"
                "    b2 %r = output at 0, 64 bytes, 1..4\n"
                "    b3 %m = comm 2 of @w at 0, 64 bytes, 2..3\n"
                "    b4 %q = output at 64, 32 bytes, 3..4\n"
                "    0 %a = add_scalar(b0:f32[4, 4], 1.0) -> b1:f32[4, 4]\n"
                "    1 %r = block all_reduce sum @w 0: b1:f32[4, 4] to b2:f32[4, 4]\n"
                "    2 %m = mul(b0:f32[4, 4], b0:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    3 %q = block all_reduce sum @w 1: b3:f32[2, 4] to b4:f32[2, 4]\n"
                "    return [b2:f32[4, 4], b4:f32[2, 4]]\n"
                "}\n");
}

/* S1 in place. */
TEST(one_shot_in_place)
{
    shoal_compile_options options = {.struct_size = sizeof options, .one_shot = true};
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = add_scalar(%x, 1.0)\n"
                "    %r = all_reduce_(%a, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    return [%w]\n"
                "}\n",
                &options, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 0 bytes, outputs 0 bytes, peak 0 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 64 bytes, 0..2\n"
                "    0 %a = add_scalar(b0:f32[4, 4], 1.0) -> b1:f32[4, 4]\n"
                "    1 %r = block all_reduce sum @w 0: in place on b1:f32[4, 4]\n"
                "    return [b1:f32[4, 4]]\n"
                "}\n");
}

/* A value in comm memory of one group that is reduced over another one, too: a copy of it in that group's memory. */
TEST(one_shot_of_a_second_group)
{
    shoal_compile_options options = {.struct_size = sizeof options, .one_shot = true};
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    group @v = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = neg(%x)\n"
                "    %r = all_reduce(%a, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %q = all_reduce(%a, \"sum\", @v)\n"
                "    %v = wait_tensor(%q)\n"
                "    %p = all_reduce_(%a, \"sum\", @v)\n"
                "    %u = wait_tensor(%p)\n"
                "    %m = mul(%v, %w)\n"
                "    %n = mul(%m, %u)\n"
                "    return [%n]\n"
                "}\n",
                &options, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    group @v = [0, 1], 2 collectives, 128 bytes of comm memory\n"
                "    pool 128 bytes, outputs 64 bytes, peak 128 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 64 bytes, 0..8\n"
                "    b2 %r = pool at 0, 64 bytes, 1..7\n"
                "    b3 %q = comm 2 of @v at 0, 64 bytes, 2..7\n"
                "    b4 %p = comm 3 of @v at 64, 64 bytes, 4..6\n"
                "    b5 %m = pool at 64, 64 bytes, 7..8\n"
                "    b6 %n = output at 0, 64 bytes, 8..9\n"
                "    0 %a = neg(b0:f32[4, 4]) -> b1:f32[4, 4]\n"
                "    1 %r = block all_reduce sum @w 0: b1:f32[4, 4] to b2:f32[4, 4]\n"
                "    2 %q = copy_(b3:f32[4, 4], b1:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    3 %q = block all_reduce sum @v 0: in place on b3:f32[4, 4]\n"
                "    4 %p = copy_(b4:f32[4, 4], b1:f32[4, 4]) -> b4:f32[4, 4]\n"
                "    5 %p = block all_reduce sum @v 1: in place on b4:f32[4, 4]\n"
                "    6 %p = copy_(b1:f32[4, 4], b4:f32[4, 4]) -> b1:f32[4, 4]\n"
                "    7 %m = mul(b3:f32[4, 4], b2:f32[4, 4]) -> b5:f32[4, 4]\n"
                "    8 %n = mul(b5:f32[4, 4], b1:f32[4, 4]) -> b6:f32[4, 4]\n"
                "    return [b6:f32[4, 4]]\n"
                "}\n");
}

/* S3, S6: not of inputs, and not for other operators. */
TEST(no_one_shot)
{
    shoal_compile_options options = {.struct_size = sizeof options, .one_shot = true};
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %r = all_reduce(%x, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %a = neg(%x)\n"
                "    %q = all_reduce(%a, \"avg\", @w)\n"
                "    %v = wait_tensor(%q)\n"
                "    return [%w, %v]\n"
                "}\n",
                &options, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 128 bytes of comm memory\n"
                "    pool 0 bytes, outputs 0 bytes, peak 0 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %r = comm 1 of @w at 0, 64 bytes, 0..6\n"
                "    b2 %a = comm 2 of @w at 64, 64 bytes, 3..6\n"
                "    0 %r = copy_(b1:f32[4, 4], b0:f32[4, 4]) -> b1:f32[4, 4]\n"
                "    1 %r = start all_reduce sum @w 0: in place on b1:f32[4, 4]\n"
                "    2 %w = wait @w 0\n"
                "    3 %a = neg(b0:f32[4, 4]) -> b2:f32[4, 4]\n"
                "    4 %q = start all_reduce avg @w 1: in place on b2:f32[4, 4]\n"
                "    5 %v = wait @w 1\n"
                "    return [b1:f32[4, 4], b2:f32[4, 4]]\n"
                "}\n");
}

/* S5 */
TEST(no_one_shot_of_more_bytes)
{
    shoal_compile_options options = {.struct_size = sizeof options, .one_shot = true};
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[32769]\n"
                "    %a = neg(%x)\n"
                "    %r = all_reduce(%a, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %y = placeholder : f32[32768]\n"
                "    %b = neg(%y)\n"
                "    %q = all_reduce(%b, \"sum\", @w)\n"
                "    %v = wait_tensor(%q)\n"
                "    return [%w, %v]\n"
                "}\n",
                &options, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 262208 bytes of comm memory\n"
                "    pool 0 bytes, outputs 131072 bytes, peak 131072 bytes\n"
                "    b0 %x = input 0, 131076 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 131076 bytes, 0..5\n"
                "    b2 %y = input 1, 131072 bytes\n"
                "    b3 %b = comm 2 of @w at 131136, 131072 bytes, 3..4\n"
                "    b4 %q = output at 0, 131072 bytes, 4..5\n"
                "    0 %a = neg(b0:f32[32769]) -> b1:f32[32769]\n"
                "    1 %r = start all_reduce sum @w 0: in place on b1:f32[32769]\n"
                "    2 %w = wait @w 0\n"
                "    3 %b = neg(b2:f32[32768]) -> b3:f32[32768]\n"
                "    4 %q = block all_reduce sum @w 1: b3:f32[32768] to b4:f32[32768]\n"
                "    return [b1:f32[32769], b4:f32[32768]]\n"
                "}\n");
}

/* S7 */
TEST(no_one_shot_without_comm_memory)
{
    shoal_compile_options options = {
        .struct_size = sizeof options, .one_shot = true, .no_comm_buffers = true};
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = neg(%x)\n"
                "    %r = all_reduce(%a, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    return [%w]\n"
                "}\n",
                &options, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 0 bytes of comm memory\n"
                "    pool 0 bytes, outputs 64 bytes, peak 64 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = output at 0, 64 bytes, 0..3\n"
                "    0 %a = neg(b0:f32[4, 4]) -> b1:f32[4, 4]\n"
                "    1 %r = start all_reduce sum @w 0: in place on b1:f32[4, 4]\n"
                "    2 %w = wait @w 0\n"
                "    return [b1:f32[4, 4]]\n"
                "}\n");
}

/* S10: a foreign input is copied into comm memory; a temporary is made there. */
TEST(symmetric_ops)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %r = one_shot_all_reduce(%x, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %a = neg(%x)\n"
                "    %q = two_shot_all_reduce_(%a, \"max\", @w)\n"
                "    %v = wait_tensor(%q)\n"
                "    %o = empty([4, 4], f32)\n"
                "    %b = neg(%x)\n"
                "    %c = one_shot_all_reduce_copy_out(%o, %b, %x, \"sum\", @w)\n"
                "    %u = wait_tensor(%c)\n"
                "    return [%w, %v, %u]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 3 collectives, 128 bytes of comm memory\n"
                "    pool 0 bytes, outputs 128 bytes, peak 128 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %r = comm 1 of @w at 0, 64 bytes, 0..2\n"
                "    b2 %r = output at 0, 64 bytes, 1..10\n"
                "    b3 %a = comm 2 of @w at 64, 64 bytes, 3..10\n"
                "    b4 %b = comm 3 of @w at 0, 64 bytes, 6..9\n"
                "    b5 %o = output at 64, 64 bytes, 8..10\n"
                "    0 %r = copy_(b1:f32[4, 4], b0:f32[4, 4]) -> b1:f32[4, 4]\n"
                "    1 %r = start all_reduce sum @w 0: b1:f32[4, 4] to b2:f32[4, 4]\n"
                "    2 %w = wait @w 0\n"
                "    3 %a = neg(b0:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    4 %q = start all_reduce max @w 1: in place on b3:f32[4, 4]\n"
                "    5 %v = wait @w 1\n"
                "    6 %b = neg(b0:f32[4, 4]) -> b4:f32[4, 4]\n"
                "    7 %c = copy_(b4:f32[4, 4], b0:f32[4, 4]) -> b4:f32[4, 4]\n"
                "    8 %c = start all_reduce sum @w 2: b4:f32[4, 4] to b5:f32[4, 4]\n"
                "    9 %u = wait @w 2\n"
                "    return [b2:f32[4, 4], b3:f32[4, 4], b5:f32[4, 4]]\n"
                "}\n");
}

/* Into another tensor, and of a copy in comm memory. */
TEST(symmetric_ops_into_others)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %o = empty([4, 4], f32)\n"
                "    %a = neg(%x)\n"
                "    %r = one_shot_all_reduce_out(%o, %a, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %b = neg(%x)\n"
                "    %q = one_shot_all_reduce_copy(%b, %x, \"sum\", @w)\n"
                "    %v = wait_tensor(%q)\n"
                "    %p = empty([4, 4], f32)\n"
                "    %c = neg(%x)\n"
                "    %s = two_shot_all_reduce_out(%p, %c, \"max\", @w)\n"
                "    %u = wait_tensor(%s)\n"
                "    return [%w, %v, %u]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 3 collectives, 64 bytes of comm memory\n"
                "    pool 0 bytes, outputs 192 bytes, peak 192 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 64 bytes, 0..2\n"
                "    b2 %o = output at 0, 64 bytes, 1..10\n"
                "    b3 %b = comm 2 of @w at 0, 64 bytes, 3..6\n"
                "    b4 %q = output at 64, 64 bytes, 5..10\n"
                "    b5 %c = comm 3 of @w at 0, 64 bytes, 7..9\n"
                "    b6 %p = output at 128, 64 bytes, 8..10\n"
                "    0 %a = neg(b0:f32[4, 4]) -> b1:f32[4, 4]\n"
                "    1 %r = start all_reduce sum @w 0: b1:f32[4, 4] to b2:f32[4, 4]\n"
                "    2 %w = wait @w 0\n"
                "    3 %b = neg(b0:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    4 %q = copy_(b3:f32[4, 4], b0:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    5 %q = start all_reduce sum @w 1: b3:f32[4, 4] to b4:f32[4, 4]\n"
                "    6 %v = wait @w 1\n"
                "    7 %c = neg(b0:f32[4, 4]) -> b5:f32[4, 4]\n"
                "    8 %s = start all_reduce max @w 2: b5:f32[4, 4] to b6:f32[4, 4]\n"
                "    9 %u = wait @w 2\n"
                "    return [b2:f32[4, 4], b4:f32[4, 4], b6:f32[4, 4]]\n"
                "}\n");
}

/* A buffer belongs to one group; another one gets a copy. Areas are apart, and times that are apart share. */
TEST(comm_memory_of_two_groups)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    group @v = [[0, 1]]\n"
                "    %x = placeholder : f32[4, 4]\n"
                "    %a = neg(%x)\n"
                "    %r = all_reduce(%a, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    %q = all_reduce(%w, \"sum\", @v)\n"
                "    %v = wait_tensor(%q)\n"
                "    %m = mul(%v, %x)\n"
                "    %s = all_reduce(%m, \"sum\", @w)\n"
                "    %u = wait_tensor(%s)\n"
                "    %n = neg(%u)\n"
                "    return [%n]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 2 collectives, 64 bytes of comm memory\n"
                "    group @v = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 0 bytes, outputs 64 bytes, peak 64 bytes\n"
                "    b0 %x = input 0, 64 bytes\n"
                "    b1 %a = comm 1 of @w at 0, 64 bytes, 0..3\n"
                "    b2 %q = comm 2 of @v at 0, 64 bytes, 3..6\n"
                "    b3 %m = comm 3 of @w at 0, 64 bytes, 6..9\n"
                "    b4 %n = output at 0, 64 bytes, 9..10\n"
                "    0 %a = neg(b0:f32[4, 4]) -> b1:f32[4, 4]\n"
                "    1 %r = start all_reduce sum @w 0: in place on b1:f32[4, 4]\n"
                "    2 %w = wait @w 0\n"
                "    3 %q = copy_(b2:f32[4, 4], b1:f32[4, 4]) -> b2:f32[4, 4]\n"
                "    4 %q = start all_reduce sum @v 0: in place on b2:f32[4, 4]\n"
                "    5 %v = wait @v 0\n"
                "    6 %m = mul(b2:f32[4, 4], b0:f32[4, 4]) -> b3:f32[4, 4]\n"
                "    7 %s = start all_reduce sum @w 1: in place on b3:f32[4, 4]\n"
                "    8 %u = wait @w 1\n"
                "    9 %n = neg(b3:f32[4, 4]) -> b4:f32[4, 4]\n"
                "    return [b4:f32[4, 4]]\n"
                "}\n");
}

/* Gradients are computed into their places in the bucket; what others use is copied. */
TEST(buckets)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %p = placeholder : f32[4]\n"
                "    %g1 = neg(%x)\n"
                "    %g2 = mul_scalar(%x, 2.0)\n"
                "    %s = mul_scalar_(%g2, 0.5)\n"
                "    %f1 = flatten(%g1)\n"
                "    %c = cat([%f1, %x, %s])\n"
                "    %r = all_reduce(%c, \"avg\", @w)\n"
                "    %rw = wait_tensor(%r)\n"
                "    %l = split_with_sizes(%rw, [4, 4, 4])\n"
                "    %l0 = getitem(%l, 0)\n"
                "    %l2 = getitem(%l, 2)\n"
                "    %n = add(%p, %l0)\n"
                "    %k = copy_(%p, %n)\n"
                "    return [%l2]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 0 bytes, outputs 0 bytes, peak 0 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %p = input 1, 16 bytes\n"
                "    b2 %c = comm 1 of @w at 0, 48 bytes, 0..7\n"
                "    b3 %g1 = slot of b2 at 0, 16 bytes, 0..7\n"
                "    b4 %g2 = slot of b2 at 32, 16 bytes, 0..7\n"
                "    0 %g1 = neg(b0:f32[4]) -> b2:f32[4]\n"
                "    1 %g2 = mul_scalar(b0:f32[4], 2.0) -> b2+32:f32[4]\n"
                "    2 %s = mul_scalar_(b2+32:f32[4], 0.5) -> b2+32:f32[4]\n"
                "    3 %c = copy_(b2+16:f32[4], b0:f32[4]) -> b2+16:f32[4]\n"
                "    4 %r = start all_reduce avg @w 0: in place on b2:f32[12]\n"
                "    5 %rw = wait @w 0\n"
                "    6 %n = add_(b1:f32[4], b2:f32[4]) -> b1:f32[4]\n"
                "    return [b2+32:f32[4]]\n"
                "}\n");
}

/* Only collectives have slots, and only of what nobody else reads. */
TEST(cats_for_others)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %a = neg(%x)\n"
                "    %b = mul_scalar(%x, 2.0)\n"
                "    %c = cat([%a, %b])\n"
                "    %m = neg(%c)\n"
                "    %d = cat([%a, %m, %m])\n"
                "    %r = all_reduce(%d, \"sum\", @w)\n"
                "    %w = wait_tensor(%r)\n"
                "    return [%w]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 128 bytes of comm memory\n"
                "    pool 192 bytes, outputs 0 bytes, peak 64 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %a = pool at 0, 16 bytes, 0..4\n"
                "    b2 %b = pool at 64, 16 bytes, 1..2\n"
                "    b3 %c = pool at 128, 32 bytes, 2..3\n"
                "    b4 %d = comm 1 of @w at 0, 80 bytes, 3..8\n"
                "    b5 %m = slot of b4 at 16, 32 bytes, 3..8\n"
                "    0 %a = neg(b0:f32[4]) -> b1:f32[4]\n"
                "    1 %b = mul_scalar(b0:f32[4], 2.0) -> b2:f32[4]\n"
                "    2 %c = cat([b1:f32[4], b2:f32[4]], 0) -> b3:f32[8]\n"
                "    3 %m = neg(b3:f32[8]) -> b4+16:f32[8]\n"
                "    4 %d = copy_(b4:f32[4], b1:f32[4]) -> b4:f32[4]\n"
                "    5 %d = copy_(b4+48:f32[8], b4+16:f32[8]) -> b4+48:f32[8]\n"
                "    6 %r = start all_reduce sum @w 0: in place on b4:f32[20]\n"
                "    7 %w = wait @w 0\n"
                "    return [b4:f32[20]]\n"
                "}\n");
}

/* Computed where they belong, by twins in place: also what comes before the last write, if nobody else needs it. */
TEST(inputs_that_are_written_at_the_end)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %p = placeholder : f32[4]\n"
                "    %q = placeholder : f32[4]\n"
                "    %x = placeholder : f32[4]\n"
                "    %a = add(%p, %x)\n"
                "    %k = copy_(%p, %a)\n"
                "    %b = neg(%q)\n"
                "    %c = mul(%b, %x)\n"
                "    %l = copy_(%q, %c)\n"
                "    return []\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 0 collectives, 0 bytes of comm memory\n"
                "    pool 0 bytes, outputs 0 bytes, peak 0 bytes\n"
                "    b0 %p = input 0, 16 bytes\n"
                "    b1 %q = input 1, 16 bytes\n"
                "    b2 %x = input 2, 16 bytes\n"
                "    0 %a = add_(b0:f32[4], b2:f32[4]) -> b0:f32[4]\n"
                "    1 %b = neg_(b1:f32[4]) -> b1:f32[4]\n"
                "    2 %c = mul_(b1:f32[4], b2:f32[4]) -> b1:f32[4]\n"
                "    return []\n"
                "}\n");
}

/* The old contents are needed behind the new ones; or the source is written later, or given out. */
TEST(inputs_that_are_still_read)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %p = placeholder : f32[4]\n"
                "    %q = placeholder : f32[4]\n"
                "    %s = placeholder : f32[4]\n"
                "    %x = placeholder : f32[4]\n"
                "    %a = add(%p, %x)\n"
                "    %b = mul(%p, %a)\n"
                "    %k = copy_(%p, %a)\n"
                "    %c = add(%q, %x)\n"
                "    %l = copy_(%q, %c)\n"
                "    %d = mul_scalar_(%c, 2.0)\n"
                "    %e = add(%x, %s)\n"
                "    %m = copy_(%s, %e)\n"
                "    return [%b, %d]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 0 collectives, 0 bytes of comm memory\n"
                "    pool 64 bytes, outputs 128 bytes, peak 48 bytes\n"
                "    b0 %p = input 0, 16 bytes\n"
                "    b1 %q = input 1, 16 bytes\n"
                "    b2 %s = input 2, 16 bytes\n"
                "    b3 %x = input 3, 16 bytes\n"
                "    b4 %a = pool at 0, 16 bytes, 0..2\n"
                "    b5 %b = output at 0, 16 bytes, 1..8\n"
                "    b6 %c = output at 64, 16 bytes, 3..8\n"
                "    b7 %e = pool at 0, 16 bytes, 6..7\n"
                "    0 %a = add(b0:f32[4], b3:f32[4]) -> b4:f32[4]\n"
                "    1 %b = mul(b0:f32[4], b4:f32[4]) -> b5:f32[4]\n"
                "    2 %k = copy_(b0:f32[4], b4:f32[4]) -> b0:f32[4]\n"
                "    3 %c = add(b1:f32[4], b3:f32[4]) -> b6:f32[4]\n"
                "    4 %l = copy_(b1:f32[4], b6:f32[4]) -> b1:f32[4]\n"
                "    5 %d = mul_scalar_(b6:f32[4], 2.0) -> b6:f32[4]\n"
                "    6 %e = add(b3:f32[4], b2:f32[4]) -> b7:f32[4]\n"
                "    7 %m = copy_(b2:f32[4], b7:f32[4]) -> b2:f32[4]\n"
                "    return [b5:f32[4], b6:f32[4]]\n"
                "}\n");
}

/* It is computed into one place, and copied to the other. */
TEST(buckets_with_the_same_twice)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %x = placeholder : f32[4]\n"
                "    %a = neg(%x)\n"
                "    %c = cat([%a, %a])\n"
                "    %r = all_reduce(%c, \"avg\", @w)\n"
                "    %rw = wait_tensor(%r)\n"
                "    return [%rw]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 0 bytes, outputs 0 bytes, peak 0 bytes\n"
                "    b0 %x = input 0, 16 bytes\n"
                "    b1 %c = comm 1 of @w at 0, 32 bytes, 0..4\n"
                "    b2 %a = slot of b1 at 0, 16 bytes, 0..4\n"
                "    0 %a = neg(b0:f32[4]) -> b1:f32[4]\n"
                "    1 %c = copy_(b1+16:f32[4], b1:f32[4]) -> b1+16:f32[4]\n"
                "    2 %r = start all_reduce avg @w 0: in place on b1:f32[8]\n"
                "    3 %rw = wait @w 0\n"
                "    return [b1:f32[8]]\n"
                "}\n");
}

/* Gradients that are converted and padded for a scatter are packed by one kernel, into one row for each rank. */
TEST(packs_lists)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %a = placeholder : bf16[3, 2]\n"
                "    %b = placeholder : bf16[4]\n"
                "    %ga = neg(%a)\n"
                "    %gb = neg(%b)\n"
                "    %fa = to_dtype(%ga, f32)\n"
                "    %za = zeros([1, 2], f32)\n"
                "    %pa = cat([%fa, %za])\n"
                "    %fb = to_dtype(%gb, f32)\n"
                "    %r = reduce_scatter_tensor_coalesced([%pa, %fb], \"avg\", [0, 0], @w)\n"
                "    %r0 = getitem(%r, 0)\n"
                "    %r1 = getitem(%r, 1)\n"
                "    %w0 = wait_tensor(%r0)\n"
                "    %w1 = wait_tensor(%r1)\n"
                "    %n = neg(%w1)\n"
                "    return [%w0, %n]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 64 bytes of comm memory\n"
                "    pool 192 bytes, outputs 128 bytes, peak 84 bytes\n"
                "    b0 %a = input 0, 12 bytes\n"
                "    b1 %b = input 1, 8 bytes\n"
                "    b2 %ga = pool at 0, 12 bytes, 0..2\n"
                "    b3 %gb = pool at 64, 8 bytes, 1..2\n"
                "    b4 %r = comm 1 of @w at 0, 48 bytes, 2..4\n"
                "    b5 %r = output at 0, 24 bytes, 3..7\n"
                "    b6 %n = output at 64, 8 bytes, 6..7\n"
                "    0 %ga = neg(b0:bf16[3, 2]) -> b2:bf16[3, 2]\n"
                "    1 %gb = neg(b1:bf16[4]) -> b3:bf16[4]\n"
                "    2 %r = chunk_cat([b2:bf16[3, 2], b3:bf16[4]], 2, f32, 0) -> b4:f32[2, 6], scratch of 64 "
                "bytes at 128\n"
                "    3 %r = start reduce_scatter avg @w 0: b4:f32[2, 6] to b5:f32[6]\n"
                "    4 %w0 = wait @w 0\n"
                "    5 %w1 = wait @w 0\n"
                "    6 %n = neg(b5+16:f32[2]) -> b6:f32[2]\n"
                "    return [b5:f32[2, 2], b6:f32[2]]\n"
                "}\n");
}

/* Others read the conversion, or write what it reads; there is more padding than ranks need. The members are in comm memory. */
TEST(packs_no_lists)
{
    lower_check("graph {\n"
                "    group @w = [[0, 1]]\n"
                "    %a = placeholder : bf16[4]\n"
                "    %b = placeholder : bf16[4]\n"
                "    %c = placeholder : f32[1]\n"
                "    %fa = to_dtype(%a, f32)\n"
                "    %na = neg(%fa)\n"
                "    %fb = to_dtype(%b, f32)\n"
                "    %kb = neg_(%b)\n"
                "    %zc = zeros([3], f32)\n"
                "    %pc = cat([%c, %zc])\n"
                "    %r = reduce_scatter_tensor_coalesced([%fa, %fb, %pc], \"sum\", [0, 0, 0], @w)\n"
                "    %w = wait_tensors(%r)\n"
                "    return [%na, %w]\n"
                "}\n",
                NULL, 0,
                "plan {\n"
                "    group @w = [0, 1], 1 collectives, 192 bytes of comm memory\n"
                "    pool 0 bytes, outputs 256 bytes, peak 40 bytes\n"
                "    b0 %a = input 0, 8 bytes\n"
                "    b1 %b = input 1, 8 bytes\n"
                "    b2 %c = input 2, 4 bytes\n"
                "    b3 %fa = comm 1 of @w at 0, 16 bytes, 0..7\n"
                "    b4 %na = output at 0, 16 bytes, 1..8\n"
                "    b5 %fb = comm 2 of @w at 64, 16 bytes, 2..7\n"
                "    b6 %pc = comm 3 of @w at 128, 16 bytes, 4..7\n"
                "    b7 %zc = slot of b6 at 4, 12 bytes, 4..7\n"
                "    b8 %r = output at 64, 8 bytes, 6..8\n"
                "    b9 %r = output at 128, 8 bytes, 6..8\n"
                "    b10 %r = output at 192, 8 bytes, 6..8\n"
                "    0 %fa = to_dtype(b0:bf16[4], f32) -> b3:f32[4]\n"
                "    1 %na = neg(b3:f32[4]) -> b4:f32[4]\n"
                "    2 %fb = to_dtype(b1:bf16[4], f32) -> b5:f32[4]\n"
                "    3 %kb = neg_(b1:bf16[4]) -> b1:bf16[4]\n"
                "    4 %zc = zeros([3], f32, \"cpu\") -> b6+4:f32[3]\n"
                "    5 %pc = copy_(b6:f32[1], b2:f32[1]) -> b6:f32[1]\n"
                "    6 %r = start reduce_scatter sum @w 0: b3:f32[4] to b8:f32[2], b5:f32[4] to b9:f32[2], "
                "b6:f32[4] to b10:f32[2]\n"
                "    7 %w = wait @w 0\n"
                "    return [b4:f32[4], b8:f32[2], b9:f32[2], b10:f32[2]]\n"
                "}\n");
}
