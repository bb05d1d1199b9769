/* SPDX-License-Identifier: MIT */
/* Which starts a wait ends: those in the bytes that it waits for. Seen in effects: what a start read is written behind that wait. */
#include "graph/analysis/flight.h"

#include <stdio.h>
#include <string.h>

#include "graph/analysis/effects.h"
#include "harness/test.h"
#include "shoal/graph.h"

/* Two works on halves of one buffer, which read %x and %y. */
#define HALVES                                                  \
    "graph {\n"                                                 \
    "    group @w = [[0, 1]]\n"                                 \
    "    %b = placeholder : f32[8]\n"                           \
    "    %x = placeholder : f32[8]\n"                           \
    "    %y = placeholder : f32[8]\n"                           \
    "    %p = narrow(%b, 0, 0, 4)\n"                            \
    "    %q = narrow(%b, 0, 4, 4)\n"                            \
    "    %s = reduce_scatter_tensor_out(%p, %x, \"sum\", @w)\n" \
    "    %t = reduce_scatter_tensor_out(%q, %y, \"sum\", @w)\n"

static shoal_graph *parse(const char *text)
{
    shoal_graph *graph = NULL;
    CHECK_OK(shoal_graph_parse(text, strlen(text), &graph));
    return graph;
}

/* What `name` must stay behind, beyond its inputs. The graph is freed. */
static void check_before(int line, shoal_graph *graph, const char *name, const char *expected)
{
    char text[256] = "";
    size_t used = 0;
    struct effects *effects = NULL;
    shoal_node *const *nodes = NULL;
    size_t count = 0;
    REQUIRE(graph && shoal_graph_find(graph, name));
    CHECK_OK(effects_build(graph, &effects));
    effects_before(effects, shoal_graph_find(graph, name), &nodes, &count);
    for (size_t i = 0; i < count && used < sizeof text; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? "," : "",
                                 shoal_node_name(nodes[i]));
    }
    if (strcmp(text, expected) != 0) {
        test_failed(__FILE__, line, "%s stays behind \"%s\", expected \"%s\"", name, text, expected);
    }
    effects_free(effects);
    shoal_graph_free(graph);
}

#define CHECK_BEFORE(text, name, expected) check_before(__LINE__, parse(text), name, expected)

TEST(waits_end_starts_in_the_bytes_they_cover)
{
    static const char text[] = HALVES "    %v = wait_tensor(%p)\n"
                                      "    %w = wait_tensor(%q)\n"
                                      "    %nx = neg_(%x)\n"
                                      "    %ny = neg_(%y)\n"
                                      "    return %b\n}\n";
    CHECK_BEFORE(text, "nx", "v,s");
    CHECK_BEFORE(text, "ny", "w,t");
}

/* A wait across the middle ends both. */
TEST(a_wait_may_end_several_starts)
{
    static const char text[] = HALVES "    %middle = narrow(%b, 0, 3, 2)\n"
                                      "    %v = wait_tensor(%middle)\n"
                                      "    %w = wait_tensor(%q)\n"
                                      "    %nx = neg_(%x)\n"
                                      "    %ny = neg_(%y)\n"
                                      "    return %b\n}\n";
    CHECK_BEFORE(text, "nx", "v,s");
    CHECK_BEFORE(text, "ny", "v,t");
}

/* An item of a list that was written down is that item, not the first. */
TEST(waits_through_an_item_of_a_written_list)
{
    static const char text[] = HALVES "    %item = getitem([%s, %t], 1)\n"
                                      "    %w = wait_tensor(%item)\n"
                                      "    %v = wait_tensor(%s)\n"
                                      "    %nx = neg_(%x)\n"
                                      "    %ny = neg_(%y)\n"
                                      "    return %b\n}\n";
    CHECK_BEFORE(text, "nx", "v,s");
    CHECK_BEFORE(text, "ny", "w,t");
}

/* Which start such a wait ends depends on the rank: what both read stays behind it, and behind the waits that are certain. */
#define ANYWHERE(view)                                                                  \
    HALVES "    %mine = " view "\n    %m = wait_tensor(%mine)\n    %early = neg_(%x)\n" \
           "    %v = wait_tensor(%s)\n    %w = wait_tensor(%t)\n    %ny = neg_(%y)\n    return %b\n}\n"

TEST(a_wait_that_lies_by_the_rank_may_end_any)
{
    static const char *const texts[] = {ANYWHERE("narrow(%b, 0, rank(@w) * 4, 4)"),
                                        ANYWHERE("getitem([%s, %t], rank(@w))"),
                                        ANYWHERE("getitem([%s, %t], rank(@w) * -1 + 1)")};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        CHECK_BEFORE(texts[i], "early", "m,s");
        CHECK_BEFORE(texts[i], "ny", "w,m,t");
    }
}

/* The same with a start that lies by the rank; a wait for all of the storage ends it. */
#define BY_RANK(waited)                                                          \
    "graph {\n    group @w = [[0, 1]]\n"                                         \
    "    %b = placeholder : f32[8]\n    %x = placeholder : f32[8]\n"             \
    "    %q = narrow(%b, 0, 4, 4)\n    %mine = narrow(%b, 0, rank(@w) * 4, 4)\n" \
    "    %s = reduce_scatter_tensor_out(%mine, %x, \"sum\", @w)\n"               \
    "    %v = wait_tensor(" waited ")\n    %w = wait_tensor(%s)\n    %late = neg_(%x)\n    return %b\n}\n"

TEST(a_start_that_lies_by_the_rank)
{
    CHECK_BEFORE(BY_RANK("%q"), "late", "w,v,s");
    CHECK_BEFORE(BY_RANK("%b"), "late", "v,s");
}

/* The result of a start is memory: a second start there is waited for through the first one's result. */
TEST(a_second_start_in_a_result)
{
    CHECK_BEFORE("graph {\n"
                 "    group @w = [[0, 1]]\n"
                 "    %x = placeholder : f32[8]\n"
                 "    %y = placeholder : f32[4]\n"
                 "    %r = all_reduce_(%x, \"sum\", @w)\n"
                 "    %w = wait_tensor(%r)\n"
                 "    %s = all_gather_into_tensor_out(%x, %y, @w)\n"
                 "    %v = wait_tensor(%r)\n"
                 "    %late = neg_(%y)\n"
                 "    return %x\n}\n",
                 "late", "v,s");
}

/* Tensors without elements wait for starts on such tensors of their storage. */
TEST(tensors_without_elements)
{
    static const char text[] = "graph {\n"
                               "    group @w = [[0, 1]]\n"
                               "    %x = placeholder : f32[8]\n"
                               "    %y = placeholder : f32[8]\n"
                               "    %s = isend(%x, 1, 0, @w)\n"
                               "    %r = all_reduce(%y, \"sum\", @w)\n"
                               "    %none = narrow(%r, 0, 0, 0)\n"
                               "    %u = wait_tensor(%none)\n"
                               "    %v = wait_tensor(%s)\n"
                               "    %w = wait_tensor(%r)\n"
                               "    %nx = neg_(%x)\n"
                               "    %ny = neg_(%y)\n"
                               "    return %w\n}\n";
    CHECK_BEFORE(text, "nx", "v,s");
    CHECK_BEFORE(text, "ny", "w,r");
}

/* A wait for what a start only reads waits for nothing, and does not end that: the input is written behind the start's own wait. */
TEST(a_wait_for_an_input_ends_nothing)
{
    CHECK_BEFORE("graph {\n"
                 "    group @w = [[0, 1]]\n"
                 "    %x = placeholder : f32[8]\n"
                 "    %s = all_reduce(%x, \"sum\", @w)\n"
                 "    %v = wait_tensor(%x)\n"
                 "    %w = wait_tensor(%s)\n"
                 "    %late = neg_(%x)\n"
                 "    return %w\n}\n",
                 "late", "w");
}

/* A write of another part, while the start reads its own, is no sign that the start has ended. */
TEST(a_write_beside_what_is_read)
{
    CHECK_BEFORE("graph {\n"
                 "    group @w = [[0, 1]]\n"
                 "    %x = placeholder : f32[8]\n"
                 "    %p = narrow(%x, 0, 0, 4)\n"
                 "    %q = narrow(%x, 0, 4, 4)\n"
                 "    %s = all_reduce(%p, \"sum\", @w)\n"
                 "    %n = neg_(%q)\n"
                 "    %w = wait_tensor(%s)\n"
                 "    %late = neg_(%x)\n"
                 "    return %w\n}\n",
                 "late", "w");
}
