/* SPDX-License-Identifier: MIT */
/* What graphs become in plans, as text. */
#include "lowering.h"

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
