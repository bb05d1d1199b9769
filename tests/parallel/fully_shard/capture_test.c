/* SPDX-License-Identifier: MIT */
/*
 * Sharded modules in a capture: the graph gives the loss and the gradients of an eager step, bit for bit, whatever is set, and the
 * capture changes nothing of the eager steps around it.
 */
#include "fixtures/sharded_model.h"
#include "harness/harness.h"

/* Bits --------------------------------------------------------------------------------------------------- */

/* Captured before the first call, or between two steps. */
static void check_setting(struct rank *self, const struct setting *setting, bool is_first)
{
    struct model model;
    struct step_record *eager = calloc(3, sizeof *eager);
    REQUIRE(eager && open_model(&model, self, setting));
    shoal_tensor *x = make_input(self);
    shoal_graph *graph = is_first ? capture(&model, x) : NULL;
    run_eager(&model, x, &eager[0]);
    clear_gradients(&model);
    graph = graph ? graph : capture(&model, x);
    if (graph) {
        step_run(graph, model.world, x, &eager[1]);
        step_check_same(&eager[1], &eager[0], setting->name);
        step_run_passes(graph);
        step_run(graph, model.world, x, &eager[1]);
        step_check_same(&eager[1], &eager[0], "after passes");
    }
    run_eager(&model, x, &eager[2]);
    step_check_same(&eager[2], &eager[0], "the eager step after the capture");
    if (test_has_failed() && graph && self->rank == 0) {
        char *text = graph_text_print(graph);
        (void)printf("%s", text);
        free(text);
    }
    shoal_graph_free(graph);
    close_model(&model);
    free(eager);
}

/* Compiled, three steps without gradients from before and one with them. */
static void check_compiled(struct rank *self, const struct setting *setting)
{
    struct model model;
    struct step_record *records = calloc(3, sizeof *records);
    shoal_compiled *compiled = NULL;
    REQUIRE(records && open_model(&model, self, setting));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, &records[0]);
    run_eager(&model, x, &records[1]);
    clear_gradients(&model);
    REQUIRE_OK(shoal_compile(model.world, step, &model, 1, NULL, &compiled));
    for (int i = 0; i < 4 && !test_has_failed(); i++) {
        shoal_tensor *loss = NULL;
        if (i < 3) {
            clear_gradients(&model);
        }
        records[2].n_rows = 0;
        if (CHECK_OK(shoal_compiled_run(compiled, &x, 1, &loss, 1))) {
            step_add(&records[2], "loss", loss);
            shoal_tensor_unref(loss);
            add_gradients(&model, &records[2]);
            step_check_same(&records[2], &records[i < 3 ? 0 : 1], setting->name);
        }
    }
    clear_gradients(&model);
    run_eager(&model, x, &records[2]);
    step_check_same(&records[2], &records[0], "the eager step after compiled ones");
    clear_gradients(&model);
    shoal_compiled_free(compiled);
    close_model(&model);
    free(records);
}

static const struct setting settings[] = {
    {.name = "as it is"},
    {.name = "never", .options.reshard = SHOAL_RESHARD_NEVER},
    {.name = "always", .options.reshard = SHOAL_RESHARD_ALWAYS},
    {.name = "one unit", .is_alone = true},
    {.name = "bf16", .options = {.param_dtype = SHOAL_BF16, .output_dtype = SHOAL_F32}},
    {.name = "bf16 reduced in f32",
     .options = {.param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32, .output_dtype = SHOAL_F32}},
    {.name = "reduced in f16", .options.reduce_dtype = SHOAL_F16},
    {.name = "reduced in f64", .options.reduce_dtype = SHOAL_F64},
    {.name = "reduced in bf16", .options.reduce_dtype = SHOAL_BF16, .forces_sum = true, .divide_factor = 2.7},
    {.name = "the last dimension", .options.placement = cut_last},
    {.name = "tied", .is_tied = true},
    {.name = "frozen", .is_frozen = true},
    {.name = "a frozen unit", .is_inner_frozen = true},
    {.name = "divided by 3.5", .divide_factor = 3.5},
    {.name = "divided by 1", .divide_factor = 1.0},
    {.name = "a sum first", .forces_sum = true},
    {.name = "replicated", .options.is_replicated = true},
    {.name = "replicated, by 5", .options.is_replicated = true, .divide_factor = 5.0},
    {.name = "computed again", .is_again = true},
    {.name = "computed again, never", .is_again = true, .options.reshard = SHOAL_RESHARD_NEVER},
    {.name = "micro-batches", .n_micro = 3},
    {.name = "micro-batches of bf16",
     .n_micro = 2,
     .options = {.param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32, .output_dtype = SHOAL_F32}},
    {.name = "evaluated", .is_evaluated = true},
    {.name = "evaluated, never", .is_evaluated = true, .options.reshard = SHOAL_RESHARD_NEVER},
    {.name = "ZeRO-2", .options.sharded = SHOAL_SHARDED_GRADIENTS},
    {.name = "ZeRO-1", .options.sharded = SHOAL_SHARDED_STATE},
    {.name = "ZeRO-2 of bf16",
     .options = {.param_dtype = SHOAL_BF16,
                 .reduce_dtype = SHOAL_F32,
                 .output_dtype = SHOAL_F32,
                 .sharded = SHOAL_SHARDED_GRADIENTS}},
    {.name = "ZeRO-1, the last dimension",
     .options = {.placement = cut_last, .sharded = SHOAL_SHARDED_STATE}},
    {.name = "ZeRO-2, tied", .is_tied = true, .options.sharded = SHOAL_SHARDED_GRADIENTS},
    {.name = "ZeRO-2, frozen", .is_frozen = true, .options.sharded = SHOAL_SHARDED_GRADIENTS},
    {.name = "ZeRO-2, computed again", .is_again = true, .options.sharded = SHOAL_SHARDED_GRADIENTS},
    {.name = "ZeRO-2, micro-batches", .n_micro = 3, .options.sharded = SHOAL_SHARDED_GRADIENTS},
    {.name = "ZeRO-1, micro-batches", .n_micro = 3, .options.sharded = SHOAL_SHARDED_STATE},
    {.name = "ZeRO-1, micro-batches of bf16",
     .n_micro = 2,
     .options = {.param_dtype = SHOAL_BF16,
                 .reduce_dtype = SHOAL_F32,
                 .output_dtype = SHOAL_F32,
                 .sharded = SHOAL_SHARDED_STATE}},
    {.name = "ZeRO-1, evaluated", .is_evaluated = true, .options.sharded = SHOAL_SHARDED_STATE},
};

static void check_settings(struct rank *self)
{
    size_t stride = HARNESS_HAS_TSAN ? 3 : 1;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0] && !test_has_failed(); i += stride) {
        check_setting(self, &settings[i], i % 2 == 0);
        check_compiled(self, &settings[i]);
    }
}

TEST_RANKS(a_captured_step_of_2, 2)
{
    check_settings(self);
}

TEST_RANKS(a_captured_step_of_3, 3)
{
    check_settings(self);
}

TEST_RANKS(a_captured_step_of_replicas, 4)
{
    static const struct setting rows[] = {
        {.name = "replicas", .is_replicated_mesh = true},
        {.name = "replicas in f16", .is_replicated_mesh = true, .options.reduce_dtype = SHOAL_F16},
        {.name = "replicas by 3", .is_replicated_mesh = true, .divide_factor = 3.0},
        {.name = "replicas of ZeRO-2",
         .is_replicated_mesh = true,
         .options.sharded = SHOAL_SHARDED_GRADIENTS},
        {.name = "replicas of ZeRO-1", .is_replicated_mesh = true, .options.sharded = SHOAL_SHARDED_STATE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_setting(self, &rows[i], false);
    }
}

TEST_RANKS(a_captured_step_alone, 1)
{
    check_setting(self, &settings[0], true);
    check_setting(self, &settings[5], false);
}

/* Passes do not know that the shard of a parameter that is cut unevenly and the padded one are the same memory. */
static shoal_status write_first(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    struct model *model = context;
    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(model->root, &n_parameters);
    (void)n_inputs;
    (void)n_outputs;
    CHECK_OK(shoal_scope_set_grad(false));
    for (size_t i = 0; i < n_parameters; i++) {
        (void)shoal_mul_scalar_(parameters[i], 0.5);
    }
    CHECK_OK(shoal_scope_set_grad(true));
    outputs[0] = loss_of(model, inputs[0]);
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

TEST_RANKS(an_uneven_shard_is_not_written_before_its_gather, 2)
{
    struct model model;
    shoal_compiled *compiled = NULL;
    shoal_tensor *loss = NULL;
    REQUIRE(open_model(&model, self, &settings[0]));
    shoal_tensor *x = make_input(self);
    REQUIRE_OK(shoal_compile(model.world, write_first, &model, 1, NULL, &compiled));
    CHECK_STATUS(shoal_compiled_run(compiled, &x, 1, &loss, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("is written and then gathered");
    shoal_compiled_free(compiled);
    close_model(&model);
}
