/* SPDX-License-Identifier: MIT */
/* Captured steps of sharded modules, after the passes for them, as plans: loss and gradients are those of an eager step, bit for bit. */
#include "fixtures/sharded_model.h"
#include "harness/harness.h"

static size_t find_inputs(const shoal_graph *graph, shoal_tensor *x, shoal_tensor **inputs)
{
    size_t n_inputs = step_count_inputs(graph);
    inputs[0] = x;
    for (size_t i = 1; i < n_inputs && i < STEP_MAX; i++) {
        inputs[i] = shoal_graph_bound_input(graph, i);
    }
    return n_inputs;
}

static void run_plan(const shoal_graph *graph, shoal_plan *plan, shoal_tensor *x, struct step_record *record)
{
    shoal_tensor *inputs[STEP_MAX] = {NULL};
    shoal_tensor *outputs[STEP_MAX] = {NULL};
    size_t n_inputs = find_inputs(graph, x, inputs);
    size_t n_outputs = 1;
    while (shoal_graph_bound_leaf(graph, n_outputs)) {
        n_outputs++;
    }
    record->n_rows = 0;
    if (!CHECK_OK(shoal_plan_run(plan, inputs, n_inputs, outputs, n_outputs))) {
        return;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        CHECK(outputs[i] != NULL);
        step_add(record, i == 0 ? "loss" : shoal_tensor_name(shoal_graph_bound_leaf(graph, i)), outputs[i]);
        shoal_tensor_unref(outputs[i]);
    }
}

static void check_setting(struct rank *self, const struct setting *setting)
{
    static const char *const passes[] = {"dedupe_waits", "fuse_ddp_communication", "bucket_fsdp_units",
                                         "simple_overlap"};
    struct model model;
    shoal_plan *plan = NULL;
    struct step_record *records = calloc(2, sizeof *records);
    REQUIRE(records && open_model(&model, self, setting));
    shoal_tensor *x = make_input(self);
    run_eager(&model, x, &records[0]);
    clear_gradients(&model);
    shoal_graph *graph = capture(&model, x);
    if (graph && CHECK_OK(shoal_graph_run_passes(graph, passes, 4, NULL, NULL)) &&
        CHECK_OK(shoal_plan_create(graph, model.world, NULL, &plan))) {
        for (int round = 0; round < 3 && !test_has_failed(); round++) {
            run_plan(graph, plan, x, &records[1]);
            step_check_same(&records[1], &records[0], setting->name);
        }
    }
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    close_model(&model);
    free(records);
}

static const struct setting settings[] = {
    {.name = "as it is"},
    {.name = "never", .options.reshard = SHOAL_RESHARD_NEVER},
    {.name = "one unit", .is_alone = true},
    {.name = "bf16", .options = {.param_dtype = SHOAL_BF16, .output_dtype = SHOAL_F32}},
    {.name = "bf16 reduced in f32",
     .options = {.param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32, .output_dtype = SHOAL_F32}},
    {.name = "reduced in f16", .options.reduce_dtype = SHOAL_F16},
    {.name = "reduced in bf16", .options.reduce_dtype = SHOAL_BF16, .forces_sum = true, .divide_factor = 2.7},
    {.name = "the last dimension", .options.placement = cut_last},
    {.name = "tied", .is_tied = true},
    {.name = "frozen", .is_frozen = true},
    {.name = "divided by 3.5", .divide_factor = 3.5},
    {.name = "replicated", .options.is_replicated = true},
    {.name = "computed again", .is_again = true},
    {.name = "micro-batches", .n_micro = 3},
    {.name = "ZeRO-2", .options.sharded = SHOAL_SHARDED_GRADIENTS},
    {.name = "ZeRO-1, micro-batches", .n_micro = 3, .options.sharded = SHOAL_SHARDED_STATE},
};

static void check_settings(struct rank *self)
{
    size_t stride = HARNESS_HAS_TSAN ? 3 : 1;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0] && !test_has_failed(); i += stride) {
        check_setting(self, &settings[i]);
    }
}

TEST_RANKS(a_plan_of_2, 2)
{
    check_settings(self);
}

TEST_RANKS(a_plan_of_3, 3)
{
    check_settings(self);
}

TEST_RANKS(a_plan_of_replicas, 4)
{
    static const struct setting rows[] = {
        {.name = "replicas", .is_replicated_mesh = true},
        {.name = "replicas in f16", .is_replicated_mesh = true, .options.reduce_dtype = SHOAL_F16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_setting(self, &rows[i]);
    }
}
