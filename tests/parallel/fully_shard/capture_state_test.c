/* SPDX-License-Identifier: MIT */
/*
 * Sharded modules in a capture: which collectives the graph has, gradients that are there before it, what it refuses,
 * by name, and that modules, units, lanes and memory are as they were when it fails.
 */
#include "fixtures/refused_settings.h"
#include "fixtures/sharded_model.h"
#include "graph/ir/graph.h"

static const struct setting plain = {.name = "as it is"};

/* What is in the graph ----------------------------------------------------------------------------------- */

enum {
    N_PARAMS = 1 + 2 * LAYERS
};

static void check_counts(struct model *model, shoal_tensor *x, size_t n_gathers, size_t n_deps)
{
    shoal_graph *graph = capture(model, x);
    REQUIRE(graph);
    CHECK_INT(step_count_calls(graph, "all_gather_into_tensor"), n_gathers);
    CHECK_INT(step_count_calls(graph, "control_deps"), n_deps);
    CHECK_INT(step_count_calls(graph, "reduce_scatter_tensor"), N_PARAMS);
    CHECK_INT(step_count_calls(graph, "wait_tensor"), n_gathers + N_PARAMS);
    CHECK_INT(step_count_inputs(graph), 1 + N_PARAMS);
    CHECK(shoal_graph_find(graph, "scale") != NULL);
    shoal_graph_free(graph);
}

/* Parameters that are given up after forward are gathered again in backward; never without a need. */
TEST_RANKS(gathers_are_where_eager_ones_are, 2)
{
    static const struct {
        shoal_fully_shard_options options;
        size_t n_gathers;
        size_t n_again;
        int n_micro;
    } rows[] = {
        {{.reshard = SHOAL_RESHARD_DEFAULT},
         N_PARAMS + 2 * LAYERS,
         2 * LAYERS,
         1}, /* not those of the root */
        {{.reshard = SHOAL_RESHARD_ALWAYS}, 2 * N_PARAMS, N_PARAMS, 1},
        {{.reshard = SHOAL_RESHARD_NEVER}, N_PARAMS, 0, 1},
        {{.reshard = SHOAL_RESHARD_NEVER}, 3 * N_PARAMS, 0, 3},
        {{.sharded = SHOAL_SHARDED_GRADIENTS}, N_PARAMS, 0, 1}, /* once in a step */
        {{.sharded = SHOAL_SHARDED_STATE}, N_PARAMS, 0, 1},
        {{.sharded = SHOAL_SHARDED_GRADIENTS}, N_PARAMS, 0, 3},
        {{.sharded = SHOAL_SHARDED_STATE}, N_PARAMS, 0, 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model model;
        const struct setting setting = {.options = rows[i].options, .n_micro = rows[i].n_micro};
        REQUIRE(open_model(&model, self, &setting));
        check_counts(&model, make_input(self), rows[i].n_gathers, rows[i].n_again);
        close_model(&model);
    }
}

/* In a row, up to the last wait. */
TEST_RANKS(collectives_know_their_unit, 2)
{
    static const char *const units[] = {"model", "0", "1", "2", "2", "1", "0"};
    struct model model;
    size_t at = 0;
    const char *last = NULL;
    REQUIRE(open_model(&model, self, &plain));
    shoal_graph *graph = capture(&model, make_input(self));
    REQUIRE(graph);
    for (const shoal_node *node = graph->first; node; node = node->next) {
        bool is_gather =
            node->kind == SHOAL_NODE_CALL && strncmp(shoal_node_target(node), "all_gather", 10) == 0;
        bool is_scatter =
            node->kind == SHOAL_NODE_CALL && strncmp(shoal_node_target(node), "reduce_scatter", 14) == 0;
        CHECK(node->unit || (!is_gather && !is_scatter));
        CHECK(!node->unit || (strcmp(shoal_node_target(node), "mul") != 0));
        if (is_gather && node->unit && (!last || strcmp(last, node->unit) != 0)) {
            CHECK(at < 7 && strcmp(units[at], node->unit) == 0);
            at++;
        } else if (!node->unit && at == 4) {
            last = NULL; /* the backward pass begins with the unit that the forward ended with */
            continue;
        }
        last = is_gather ? node->unit : last;
    }
    CHECK_INT(at, 7);
    shoal_graph_free(graph);
    close_model(&model);
}

/* Gradients that are there already ----------------------------------------------------------------------- */

TEST_RANKS(gradients_are_added_to, 3)
{
    struct model model;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records && open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, &records[0]);
    run_eager(&model, x, &records[0]);
    clear_gradients(&model);
    run_eager(&model, x, &records[1]);
    shoal_graph *graph = capture(&model, x);
    REQUIRE(graph);
    step_run(graph, model.world, x, &records[1]);
    CHECK_INT(records[1].n_rows, 1); /* the others are written where they are */
    add_gradients(&model, &records[1]);
    step_check_same(&records[1], &records[0], "gradients that were there");
    shoal_graph_free(graph);
    close_model(&model);
    free(records);
}

static void set_sync(struct model *model, bool is_on)
{
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(model->root, true), is_on));
}

static void add_pending(struct model *model, struct step_record *record)
{
    static const char *const paths[] = {"scale",  "0.weight", "0.bias", "1.weight",
                                        "1.bias", "2.weight", "2.bias"};
    for (size_t i = 0; i < N_PARAMS; i++) {
        const struct fsdp_root *root = fsdp_wrapper_of(model->root)->root;
        for (size_t k = 0; k < root->n_wrappers; k++) {
            for (size_t p = 0; p < root->wrappers[k]->n_tensors; p++) {
                if (strcmp(root->wrappers[k]->unit->params[p].name, paths[i]) == 0) {
                    step_add_gradient(record, root->wrappers[k]->tensors[p].full);
                }
            }
        }
    }
}

/* Without synchronization gradients stay on whole parameters; the next step that has it takes them along. */
TEST_RANKS(gradients_wait_for_synchronisation, 2)
{
    struct model model;
    struct step_record *records = calloc(5, sizeof *records);
    REQUIRE(records && open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    set_sync(&model, false);
    run_eager(&model, x, &records[0]);
    add_pending(&model, &records[0]);
    set_sync(&model, true);
    run_eager(&model, x, &records[1]); /* of both */
    clear_gradients(&model);

    set_sync(&model, false);
    shoal_graph *graph = capture(&model, x);
    REQUIRE(graph);
    CHECK_INT(step_count_calls(graph, "reduce_scatter_tensor"), 0);
    step_run(graph, model.world, x, &records[2]);
    step_check_same(&records[2], &records[0], "what waits");
    shoal_graph_free(graph);

    run_eager(&model, x, &records[2]);
    records[2].n_rows = 0;
    add_pending(&model, &records[2]);
    set_sync(&model, true);
    graph = capture(&model, x);
    REQUIRE(graph);
    add_pending(&model, &records[4]);
    step_check_same(&records[4], &records[2], "what waits, after the capture");
    step_run(graph, model.world, x, &records[3]);
    step_check_same(&records[3], &records[1], "what waited");
    shoal_graph_free(graph);
    close_model(&model);
    free(records);
}

/* What cannot be captured ------------------------------------------------------------------------------- */

static shoal_status landed(void *context, int id, shoal_fsdp_shard *shard)
{
    (void)context;
    (void)id;
    (void)shard;
    return SHOAL_OK;
}

static const struct refusal {
    shoal_status (*set)(shoal_fsdp_unit *unit, bool is_on); /* NULL: an option */
    const char *name;
    struct setting setting;
} refusals[] = {
    {refused_set_hook, "1: shoal_fsdp_set_all_reduce_hook", {0}},
    {refused_set_gather, "1: shoal_fsdp_set_custom_all_gather", {0}},
    {refused_set_scatter, "1: shoal_fsdp_set_custom_reduce_scatter", {0}},
    {refused_set_gather, "1: shoal_fsdp_set_custom_all_gather", {.is_replicated_mesh = true}},
};

/* Refused with the name, by a compiled step too, which captures it once it is off. */
static void check_refused(struct rank *self, const struct refusal *refusal)
{
    struct model model;
    shoal_graph *graph = NULL;
    shoal_compiled *compiled = NULL;
    shoal_tensor *loss = NULL;
    REQUIRE(open_model(&model, self, &refusal->setting));
    shoal_tensor *x = make_input(self);
    CHECK_OK(shoal_compile(model.world, step, &model, 1, NULL, &compiled));
    CHECK_OK(refusal->set ? refusal->set(shoal_fully_shard_unit(model.layers[1], false), true) : SHOAL_OK);
    CHECK_INT(shoal_capture(step, &model, &x, 1, 1, &graph), SHOAL_ERR_UNSUPPORTED);
    CHECK(graph == NULL);
    CHECK_ERROR_TEXT(refusal->name);
    CHECK_INT(shoal_compiled_run(compiled, &x, 1, &loss, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT(refusal->name);
    if (refusal->set) {
        CHECK_OK(refusal->set(shoal_fully_shard_unit(model.layers[1], false), false));
        CHECK_OK(shoal_compiled_run(compiled, &x, 1, &loss, 1));
        clear_gradients(&model);
    }
    shoal_tensor_unref(loss);
    shoal_compiled_free(compiled);
    close_model(&model);
}

TEST_RANKS(what_is_not_captured_is_named, 4)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0] && !test_has_failed(); i++) {
        check_refused(self, &refusals[i]);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "%s", refusals[i].name);
        }
    }
}

/* It is for units without modules, so that no capture meets it. */
TEST_RANKS(modules_have_no_accumulated_hook, 2)
{
    struct model model;
    REQUIRE(open_model(&model, self, &plain));
    CHECK_INT(shoal_fsdp_set_accumulated_hook(shoal_fully_shard_unit(model.layers[1], false), landed, NULL),
              SHOAL_ERR_UNSUPPORTED);
    close_model(&model);
}

/* Failures ----------------------------------------------------------------------------------------------- */

/* Places, units and gradients are as before, and both ways work afterwards. */
TEST_RANKS(a_step_that_fails_changes_nothing, 2)
{
    struct model model;
    struct snapshot before;
    struct snapshot after;
    struct step_record *records = calloc(3, sizeof *records);
    shoal_graph *graph = NULL;
    REQUIRE(records && open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    shoal_tensor *wrong = make_numbers(1, (int64_t[]){7}, 1);
    run_eager(&model, x, &records[0]);
    clear_gradients(&model);
    take_snapshot(&model, &before);
    model.fails = true;
    CHECK_INT(shoal_capture(step, &model, &x, 1, 1, &graph), SHOAL_ERR_INVALID);
    model.fails = false;
    CHECK_INT(shoal_capture(step, &model, &wrong, 1, 1, &graph), SHOAL_ERR_INVALID);
    CHECK(graph == NULL);
    take_snapshot(&model, &after);
    CHECK_BYTES(&after, &before, sizeof after);
    graph = capture(&model, x);
    REQUIRE(graph);
    step_run(graph, model.world, x, &records[1]);
    step_check_same(&records[1], &records[0], "captured");
    run_eager(&model, x, &records[2]);
    step_check_same(&records[2], &records[0], "eager");
    shoal_graph_free(graph);
    close_model(&model);
    free(records);
}

static shoal_status capture_on_the_way(void *context, const shoal_forward_call *call)
{
    shoal_graph *graph = NULL;
    shoal_tensor *x = shoal_detach(call->inputs[0]);
    shoal_status status = shoal_capture(layer_step, context, &x, 1, 1, &graph);
    shoal_graph_free(graph);
    return status;
}

/* The eager call goes on where it was: which modules are being called, which have run, and what is gathered. */
TEST_RANKS(a_capture_inside_an_eager_forward_changes_nothing, 2)
{
    static const struct setting gathered = {.name = "gathered", .options = {.reshard = SHOAL_RESHARD_NEVER}};
    static const struct setting *const settings[] = {&plain, &gathered};
    struct model model;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        shoal_module_hook *hook = NULL;
        REQUIRE(open_model(&model, self, settings[i]));
        shoal_tensor *x = make_input(self);
        run_eager(&model, x, &records[0]);
        clear_gradients(&model);
        const shoal_module_hook_definition definition = {
            .struct_size = sizeof definition, .pre_forward = capture_on_the_way, .context = model.layers[2]};
        CHECK_OK(shoal_module_add_hook(model.layers[1], &definition, &hook));
        run_eager(&model, x, &records[1]);
        step_check_same(&records[1], &records[0], settings[i]->name);
        shoal_module_hook_remove(hook);
        close_model(&model);
    }
    free(records);
}

static shoal_status reset_inside(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    struct model *model = context;
    shoal_status status = step(model, inputs, n_inputs, outputs, n_outputs);
    return status == SHOAL_OK ? on_context(model->root, shoal_fsdp_reset) : status;
}

/* It would act on what the graph is being made of. */
TEST_RANKS(a_captured_step_is_not_reset, 2)
{
    struct model model;
    shoal_graph *graph = NULL;
    REQUIRE(open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    CHECK_INT(shoal_capture(reset_inside, &model, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK(strstr(shoal_error_text(), "reset: a capture of the model is running") != NULL);
    CHECK_OK(on_context(model.root, shoal_fsdp_reset));
    close_model(&model);
}

struct kept {
    struct model *model;
    shoal_tensor *loss;
};

static shoal_status walk_back(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    const struct kept *kept = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = inputs[0];
    return shoal_backward(kept->loss, NULL);
}

TEST_RANKS(a_forward_from_before_is_not_walked_back, 2)
{
    struct model model;
    shoal_graph *graph = NULL;
    REQUIRE(open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    struct kept kept = {.model = &model, .loss = loss_of(&model, x)};
    CHECK_INT(shoal_capture(walk_back, &kept, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK(strstr(shoal_error_text(), "before this step was captured") != NULL);
    CHECK_OK(on_context(model.root, shoal_fsdp_reset));
    close_model(&model);
}

/* The graph keeps what its inputs need. */
TEST_RANKS(a_graph_outlives_its_modules, 2)
{
    struct model model;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records && open_model(&model, self, &plain));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, &records[0]);
    clear_gradients(&model);
    shoal_graph *graph = capture(&model, x);
    REQUIRE(graph);
    shoal_module_unref(model.root);
    model.root = NULL;
    step_run(graph, model.world, x, &records[1]);
    step_check_same(&records[1], &records[0], "without modules");
    shoal_graph_free(graph);
    close_model(&model);
    free(records);
}

static shoal_status capture_once(void *context)
{
    const struct kept *kept = context;
    shoal_tensor *x = kept->loss;
    shoal_graph *graph = NULL;
    shoal_status status = shoal_capture(step, kept->model, &x, 1, 1, &graph);
    shoal_graph_free(graph);
    return status;
}

TEST_RANKS(without_memory_nothing_changes, 1)
{
    struct model model;
    struct snapshot before;
    struct snapshot after;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records && open_model(&model, self,
                                  &(struct setting){.options = {.param_dtype = SHOAL_BF16,
                                                                .reduce_dtype = SHOAL_F32,
                                                                .output_dtype = SHOAL_F32}}));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, &records[0]);
    clear_gradients(&model);
    take_snapshot(&model, &before);
    struct kept kept = {.model = &model, .loss = x};
    CHECK_OK(capture_once(&kept)); /* scopes keep what small tensors lay in */
    (void)test_sweep_allocations(capture_once, &kept);
    take_snapshot(&model, &after);
    CHECK_BYTES(&after, &before, sizeof after);
    run_eager(&model, x, &records[1]);
    step_check_same(&records[1], &records[0], "eager");
    close_model(&model);
    free(records);
}
