/* SPDX-License-Identifier: MIT */
/*
 * Captures next to other things: several backward passes in a step, units that the step does not call, modules that were
 * called by themselves, and eager calls that are going on around the capture.
 */
#include "fixtures/sharded_model.h"
#include "graph/ir/graph.h"

/* Passes ------------------------------------------------------------------------------------------------- */

/* What the gathers of backward passes come after: the second input of control_deps. */
static size_t find_gradients(const shoal_graph *graph, const shoal_node **gradients, size_t capacity)
{
    size_t n = 0;
    for (const shoal_node *node = graph->first; node; node = node->next) {
        size_t n_inputs;
        if (node->kind != SHOAL_NODE_CALL || strcmp(shoal_node_target(node), "control_deps") != 0) {
            continue;
        }
        shoal_node *const *inputs = shoal_node_inputs(node, &n_inputs);
        CHECK_INT(n_inputs, 2);
        if (n_inputs == 2 && (n == 0 || gradients[n - 1] != inputs[1]) && n < capacity) {
            gradients[n++] = inputs[1];
        }
    }
    return n;
}

/* A gradient of an earlier pass would let the gather move up to there, or be merged with the one of that pass. */
TEST_RANKS(gathers_come_after_a_gradient_of_their_own_pass, 2)
{
    const struct setting setting = {
        .options = {.reshard = SHOAL_RESHARD_ALWAYS}, .is_alone = true, .n_micro = 3};
    const shoal_node *gradients[8];
    struct model model;
    REQUIRE(open_model(&model, self, &setting));
    shoal_graph *graph = capture(&model, make_input(self));
    REQUIRE(graph);
    CHECK_INT(find_gradients(graph, gradients, 8), 3);
    shoal_graph_free(graph);
    close_model(&model);
}
