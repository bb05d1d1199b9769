/* SPDX-License-Identifier: MIT */
/*
 * Captures next to other things: several backward passes in a step, units that the step does not call or that were
 * gathered by hand, modules that were called by themselves, and eager calls that are going on around the capture.
 */
#include "fixtures/sharded_model.h"
#include "graph/ir/graph.h"

static const struct setting plain = {.name = "as it is"};

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

/* A backward pass that fails, and another one after it. */
static shoal_status go_on_after_failure(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                        shoal_tensor **outputs, size_t n_outputs)
{
    struct model *model = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = loss_of(model, inputs[0]);
    model->fails = true;
    shoal_tensor *failing = loss_of(model, inputs[0]);
    model->fails = false;
    CHECK_INT(shoal_backward(failing, NULL), SHOAL_ERR_INVALID);
    return shoal_backward(outputs[0], NULL);
}

TEST_RANKS(a_failed_pass_is_the_last_one_of_a_capture, 2)
{
    struct model model;
    shoal_graph *graph = NULL;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records && open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, &records[0]);
    clear_gradients(&model);
    CHECK_INT(shoal_capture(go_on_after_failure, &model, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the last backward pass failed");
    CHECK(strstr(shoal_error_text(), "reset") == NULL); /* a reset in a captured step is refused */
    run_eager(&model, x, &records[1]);
    step_check_same(&records[1], &records[0], "afterwards");
    close_model(&model);
    free(records);
}

/* Parts -------------------------------------------------------------------------------------------------- */

/* The unit that is not called would have had zeros to reduce: eager passes owe them to other ranks, captures do not. */
TEST_RANKS(a_capture_owes_nothing_to_units_that_it_does_not_call, 2)
{
    struct model model;
    struct step_record *records = calloc(1, sizeof *records);
    shoal_graph *graph = NULL;
    REQUIRE(records && open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, records);
    clear_gradients(&model);
    shoal_fsdp_unit *other = shoal_fully_shard_unit(model.layers[1], false);
    CHECK_OK(shoal_fsdp_set_reduce_unused(other, true));
    CHECK_OK(shoal_fsdp_set_sync(other, false));
    CHECK_OK(shoal_capture(layer_step, model.layers[2], &x, 1, 1, &graph));
    CHECK_OK(on_context(model.root, shoal_fsdp_synchronize));
    CHECK(shoal_grad(shoal_module_parameter(model.layers[1], "weight")) == NULL);
    shoal_graph_free(graph);
    close_model(&model);
    free(records);
}

/* Eager calls around a capture --------------------------------------------------------------------------- */

static shoal_status set_last(struct model *model, bool is_last)
{
    return shoal_fsdp_set_is_last_backward(fsdp_of_module(model->root), is_last);
}

static shoal_status fail_to_capture(void *context, const shoal_forward_call *call)
{
    shoal_graph *graph = NULL;
    shoal_tensor *x = shoal_detach(call->inputs[0]);
    CHECK_INT(shoal_capture(step, context, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("gradients are still being reduced");
    return SHOAL_OK;
}

/* The capture fails before it begins. The eager call goes on with whole parameters. */
TEST_RANKS(a_capture_that_cannot_begin_changes_nothing_of_an_eager_forward, 2)
{
    struct model model;
    shoal_module_hook *hook = NULL;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records && open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, &records[0]);
    run_eager(&model, x, &records[0]);
    clear_gradients(&model);
    const shoal_module_hook_definition definition = {
        .struct_size = sizeof definition, .pre_forward = fail_to_capture, .context = &model};
    CHECK_OK(set_last(&model, false));
    run_eager(&model, x, &records[1]); /* its reductions are in flight */
    CHECK_OK(set_last(&model, true));
    CHECK_OK(shoal_module_add_hook(model.layers[1], &definition, &hook));
    run_eager(&model, x, &records[1]);
    step_check_same(&records[1], &records[0], "two passes");
    shoal_module_hook_remove(hook);
    close_model(&model);
    free(records);
}

/* By hand ------------------------------------------------------------------------------------------------ */

static shoal_status reshard_inside(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    struct model *model = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = loss_of(model, inputs[0]);
    return shoal_fsdp_reshard(shoal_fully_shard_unit(model->layers[1], false));
}

/* It is refused before it changes anything: the memory would stay taken, and the next gather would wait for it. */
TEST_RANKS(a_unit_is_not_given_up_by_hand_in_a_capture, 2)
{
    struct model model;
    shoal_graph *graph = NULL;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records && open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, &records[0]);
    clear_gradients(&model);
    shoal_fsdp_unit *unit = shoal_fully_shard_unit(model.layers[1], false);
    CHECK_OK(shoal_fsdp_unshard(unit));
    CHECK_OK(shoal_fsdp_wait(unit));
    CHECK_INT(shoal_capture(reshard_inside, &model, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("reshard cannot be called while a step is captured");
    CHECK_OK(shoal_fsdp_wait(unit));
    CHECK_OK(shoal_fsdp_reshard(unit));
    run_eager(&model, x, &records[1]);
    step_check_same(&records[1], &records[0], "afterwards");
    close_model(&model);
    free(records);
}

/* Roots -------------------------------------------------------------------------------------------------- */

/* First a layer, then the module that it is inside of. */
static shoal_status inner_then_outer(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                     shoal_tensor **outputs, size_t n_outputs)
{
    struct model *model = context;
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *y = shoal_module_call_one(model->layers[0], inputs[0]);
    outputs[0] = y ? shoal_module_call_one(model->root, y) : NULL;
    return outputs[0] ? SHOAL_OK : shoal_scope_error();
}

/* The capture runs modules under the root of the layer, so that this root stays. */
static void check_outer_refused(struct rank *self, bool is_called_before)
{
    struct model model;
    shoal_graph *graph = NULL;
    REQUIRE(open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    CHECK(!is_called_before || shoal_module_call_one(model.layers[0], x));
    CHECK_INT(shoal_capture(inner_then_outer, &model, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT(" was called by itself before");
    CHECK(graph == NULL);
    close_model(&model);
}

TEST_RANKS(a_root_stays_while_it_is_captured, 2)
{
    check_outer_refused(self, true);
    check_outer_refused(self, false);
}

/* A layer was only captured, so that its root may end. The compiled step finds that out, and not what was there. */
TEST_RANKS(a_root_that_was_only_captured_may_end, 2)
{
    struct model model;
    shoal_compiled *compiled = NULL;
    shoal_tensor *loss = NULL;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records && open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    REQUIRE_OK(shoal_compile(model.world, layer_step, model.layers[0], 1, NULL, &compiled));
    CHECK_OK(shoal_compiled_run(compiled, &x, 1, &loss, 1));
    shoal_tensor_unref(loss);
    loss = NULL;
    clear_gradients(&model); /* makes a root of the whole model */
    run_eager(&model, x, &records[0]);
    clear_gradients(&model);
    CHECK_OK(shoal_compiled_run(compiled, &x, 1, &loss, 1));
    shoal_tensor_unref(loss);
    clear_gradients(&model);
    run_eager(&model, x, &records[1]);
    step_check_same(&records[1], &records[0], "the whole model");
    shoal_compiled_free(compiled);
    close_model(&model);
    free(records);
}
