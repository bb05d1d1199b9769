/* SPDX-License-Identifier: MIT */
/* Units of sharded models: in the text of a graph, and of what passes make of calls of one unit. */
#include <string.h>

#include "graph/ir/graph.h"
#include "harness/test.h"
#include "shoal/compile.h"

static shoal_graph *parse(const char *text)
{
    shoal_graph *graph = NULL;
    (void)CHECK_OK(shoal_graph_parse(text, strlen(text), &graph));
    return graph;
}

static const char *unit_of(const shoal_graph *graph, const char *name)
{
    const shoal_node *node = shoal_graph_find(graph, name);
    return node && node->unit ? node->unit : "";
}

#define GATHERS(first, second)                                                                    \
    "graph { group @g = [[0, 1]] %x = placeholder : f32[2] %y = placeholder : f32[3]\n"           \
    "%a = all_gather_into_tensor(%x, @g) unit \"" first "\" : f32[4]\n"                           \
    "%wa = wait_tensor(%a) unit \"" first "\" %b = all_gather_into_tensor(%y, @g) unit \"" second \
    "\" %wb = wait_tensor(%b) unit \"" second "\" return [%wa, %wb] }"

static void bucket(shoal_graph *graph)
{
    const char *pass = "bucket_all_gathers";
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    REQUIRE_OK(shoal_graph_run_passes(graph, &pass, 1, NULL, &report));
    CHECK_INT(report.n_buckets, 1);
}

TEST(a_bucket_of_one_unit_belongs_to_it)
{
    shoal_graph *graph = parse(GATHERS("layers.0", "layers.0"));
    REQUIRE(graph != NULL);
    bucket(graph);
    CHECK_STRING(unit_of(graph, "all_gather_into_tensor"), "layers.0");
    CHECK_STRING(unit_of(graph, "wait_tensor"), "layers.0");
    CHECK(graph->unit == NULL);
    shoal_graph_free(graph);
    graph = parse(GATHERS("layers.0", "layers.1"));
    REQUIRE(graph != NULL);
    CHECK_STRING(unit_of(graph, "wa"), "layers.0");
    CHECK_STRING(unit_of(graph, "b"), "layers.1");
    bucket(graph);
    CHECK(shoal_graph_find(graph, "all_gather_into_tensor") != NULL);
    CHECK_STRING(unit_of(graph, "all_gather_into_tensor"), "");
    shoal_graph_free(graph);
}

TEST(units_are_strings)
{
    static const char *const texts[] = {
        "graph { %x = placeholder : f32[2] %y = neg(%x) unit 3 return %y }",
        "graph { %x = placeholder : f32[2] %y = neg(%x) unit : f32[2] return %y }",
        "graph { %x = placeholder : f32[2] %y = opaque \"f\"(%x) unit x : f32[2] return %y }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        shoal_graph *graph = NULL;
        CHECK_STATUS(shoal_graph_parse(texts[i], strlen(texts[i]), &graph), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("a string that names the unit");
    }
    shoal_graph *graph =
        parse("graph { %x = placeholder : f32[2] %y = opaque \"f\"(%x) unit \"\" : f32[2] return %y }");
    REQUIRE(graph != NULL);
    CHECK(shoal_graph_find(graph, "y")->unit && shoal_graph_find(graph, "y")->unit[0] == '\0');
    shoal_graph_free(graph);
}
