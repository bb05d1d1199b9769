/* SPDX-License-Identifier: MIT */
/* Compiled steps notice that a program has replaced a tensor of a module, or has added or removed hooks. */
#include "fixtures/late_net.h"

/* Tensors ------------------------------------------------------------------------------------------------- */

TEST_RANKS(a_replaced_parameter_gets_the_gradient, 1)
{
    struct late late;
    REQUIRE(late_open(&late, self, true));
    CHECK_OK(late_step(&late));
    shoal_tensor *old = shoal_tensor_ref(shoal_module_parameter(late.net, "w"));
    CHECK_OK(shoal_set_grad(old, NULL));
    shoal_tensor *replaced = late_tensor(5.0, true);
    CHECK_OK(shoal_module_set_parameter(late.net, "w", replaced));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(late_step(&late));
        late_check_gradient(replaced, 1.0);
        CHECK(!shoal_grad(old));
    }
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    CHECK_OK(shoal_compiled_get_report(late.compiled, &report));
    CHECK(report.reason && strstr(report.reason, "parameter w of module net was replaced"));
    shoal_tensor_unref(old);
    late_close(&late);
}

TEST_RANKS(a_parameter_that_is_added_is_used, 1)
{
    struct late late;
    REQUIRE(late_open(&late, self, true));
    CHECK_OK(late_step(&late));
    shoal_module *layer = late_add_layer(late.layer, "late");
    CHECK_OK(late_step(&late));
    late_check_gradient(shoal_module_parameter(layer, "w"), 1.0);
    late_close(&late);
}

static double run_once(struct late *late)
{
    shoal_tensor *loss = NULL;
    double value = -1.0;
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, 1.0, SHOAL_F32);
    if (CHECK_OK(shoal_compiled_run(late->compiled, &x, 1, &loss, 1))) {
        value = (double)*(const float *)shoal_data(loss);
    }
    shoal_tensor_unref(loss);
    return value;
}

TEST_RANKS(a_replaced_buffer_is_read, 1)
{
    struct late late;
    REQUIRE(late_open(&late, self, true));
    CHECK_OK(shoal_module_add_buffer(late.layer, "shift", late_tensor(1.0, false)));
    (void)run_once(&late);
    double before = run_once(&late); /* with gradients, as the next one */
    CHECK_OK(shoal_module_set_buffer(late.net, "layer.shift", late_tensor(2.0, false)));
    CHECK_DOUBLE(run_once(&late), before + LATE_COUNT);
    late_close(&late);
}

/* A tensor that the step asks about, and never uses. */
struct asked {
    shoal_tensor *tensor;
    bool asks_for_gradient;
    int n_captures;
};

static shoal_status run_asking(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    struct asked *asked = context;
    (void)n_inputs;
    (void)n_outputs;
    asked->n_captures++;
    bool is_trained =
        asked->asks_for_gradient ? shoal_grad(asked->tensor) != NULL : shoal_requires_grad(asked->tensor);
    outputs[0] = shoal_mul_scalar(inputs[0], is_trained ? 3.0 : 2.0);
    return outputs[0] ? SHOAL_OK : shoal_scope_error();
}

static void check_asking(shoal_compiled *compiled, double wanted)
{
    shoal_tensor *out = NULL;
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, 1.0, SHOAL_F32);
    if (CHECK_OK(shoal_compiled_run(compiled, &x, 1, &out, 1))) {
        CHECK_DOUBLE((double)*(const float *)shoal_data(out), wanted);
    }
    shoal_tensor_unref(out);
}

TEST(a_step_that_asks_whether_a_tensor_requires_a_gradient)
{
    for (int k = 0; k < 2; k++) {
        shoal_compiled *compiled = NULL;
        shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
        REQUIRE_OK(shoal_scope_begin());
        struct asked asked = {.tensor = late_tensor(1.0, false), .asks_for_gradient = k == 1};
        CHECK_OK(shoal_tensor_set_name(asked.tensor, "gate"));
        REQUIRE_OK(shoal_compile(NULL, run_asking, &asked, 1, NULL, &compiled));
        check_asking(compiled, 2.0);
        (void)late_tensor(1.0, true); /* other tensors do not matter */
        check_asking(compiled, 2.0);
        CHECK_INT(asked.n_captures, 1);
        for (int i = 0; i < 2; i++) {
            CHECK_OK(shoal_set_requires_grad(asked.tensor, true));
            CHECK_OK(shoal_set_grad(asked.tensor, late_tensor(1.0, false)));
            check_asking(compiled, 3.0);
            CHECK_OK(shoal_compiled_get_report(compiled, &report));
            CHECK(i > 0 || (report.reason && strstr(report.reason, "gate was thawed")));
            CHECK_OK(shoal_set_requires_grad(asked.tensor, false));
            check_asking(compiled, 2.0);
        }
        CHECK_INT(asked.n_captures, 2);
        shoal_compiled_free(compiled);
        CHECK_OK(shoal_scope_end());
    }
}

/* A step that freezes a tensor for a while, or for good. */
struct toggled {
    shoal_tensor *tensor;
    bool asks_before;
    bool asks_between;
    bool is_used;
    bool stays_frozen;
    int n_captures;
};

static shoal_status run_toggling(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    struct toggled *toggled = context;
    (void)n_inputs;
    (void)n_outputs;
    toggled->n_captures++;
    bool was_trained = toggled->asks_before && shoal_requires_grad(toggled->tensor);
    (void)CHECK_OK(shoal_set_requires_grad(toggled->tensor, false));
    bool is_trained = toggled->asks_between && shoal_requires_grad(toggled->tensor);
    outputs[0] = shoal_mul_scalar(inputs[0], was_trained ? 3.0 : is_trained ? 5.0 : 2.0);
    if (toggled->is_used) {
        outputs[0] = shoal_mul(outputs[0], shoal_sum(toggled->tensor, NULL, 0, false));
    }
    (void)CHECK_OK(shoal_set_requires_grad(toggled->tensor, !toggled->stays_frozen));
    return outputs[0] ? SHOAL_OK : shoal_scope_error();
}

/* Bits of `variant`: what the step asks and uses, and whether the tensor is a part of another one. */
static struct toggled make_toggled(int variant)
{
    struct toggled toggled = {.tensor = late_tensor(1.0, false),
                              .asks_before = (variant & 1) != 0,
                              .asks_between = (variant & 2) != 0,
                              .is_used = (variant & 4) != 0};
    if (variant & 8) {
        toggled.tensor = shoal_detach(shoal_narrow(shoal_full((int64_t[]){2 * LATE_COUNT}, 1, 1.0, SHOAL_F32),
                                                   0, LATE_COUNT, LATE_COUNT));
    }
    (void)CHECK_OK(shoal_set_requires_grad(toggled.tensor, true));
    return toggled;
}

static double toggled_factor(const struct toggled *toggled, bool was_trained)
{
    return (toggled->asks_before && was_trained ? 3.0 : 2.0) * (toggled->is_used ? LATE_COUNT : 1);
}

TEST(a_step_that_freezes_a_tensor_for_a_while_is_captured_once)
{
    for (int variant = 0; variant < 16 && !test_has_failed(); variant++) {
        shoal_compiled *compiled = NULL;
        REQUIRE_OK(shoal_scope_begin());
        struct toggled toggled = make_toggled(variant);
        REQUIRE_OK(shoal_compile(NULL, run_toggling, &toggled, 1, NULL, &compiled));
        for (int i = 0; i < 3; i++) {
            (void)late_tensor(1.0, true); /* so that the step looks for changes */
            check_asking(compiled, toggled_factor(&toggled, true));
        }
        CHECK_INT(toggled.n_captures, 1);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "variant %d", variant);
        }
        shoal_compiled_free(compiled);
        CHECK_OK(shoal_scope_end());
    }
}

/* The next run finds a frozen tensor, as it would without a compiler. */
TEST(a_step_that_freezes_a_tensor_for_good_is_captured_again)
{
    for (int variant = 0; variant < 16 && !test_has_failed(); variant++) {
        shoal_compiled *compiled = NULL;
        REQUIRE_OK(shoal_scope_begin());
        struct toggled toggled = make_toggled(variant);
        toggled.stays_frozen = true;
        REQUIRE_OK(shoal_compile(NULL, run_toggling, &toggled, 1, NULL, &compiled));
        for (int i = 0; i < 4; i++) {
            check_asking(compiled, toggled_factor(&toggled, i == 0));
            CHECK(!shoal_requires_grad(toggled.tensor));
        }
        CHECK_INT(toggled.n_captures, 2);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "variant %d", variant);
        }
        shoal_compiled_free(compiled);
        CHECK_OK(shoal_scope_end());
    }
}

/* One rank alone ------------------------------------------------------------------------------------------ */

/* The step has two lanes, of buffers and of gradients. A rank that compares its plan alone learns on the first one that
   the other runs its plan, and does not wait on the second one until the deadline, which is after the test's. */
TEST_RANKS(a_rank_that_captures_again_alone_does_not_wait, 2)
{
    struct late late;
    test_deadline(40);
    REQUIRE(late_open(&late, self, true));
    CHECK_OK(shoal_group_set_timeout(shoal_world_group(late.world), 600 * test_time_scale()));
    CHECK_OK(shoal_module_add_buffer(late.net, "shift", late_tensor(1.0, false)));
    REQUIRE(late_wrap_ddp(&late, false));
    (void)run_once(&late);
    (void)run_once(&late);
    if (self->rank == 1) {
        CHECK_OK(shoal_set_grad(shoal_module_parameter(late.net, "w"), NULL));
    }
    shoal_tensor *loss = NULL;
    shoal_tensor *x = shoal_full((int64_t[]){1}, 1, 1.0, SHOAL_F32);
    CHECK_STATUS(shoal_compiled_run(late.compiled, &x, 1, &loss, 1), SHOAL_ERR_MISMATCH);
    test_barrier(self);
    late_close(&late);
}

/* SHOAL_COMPILE_CHECK ------------------------------------------------------------------------------------- */

/* A step with a tensor that no module has: only the check can see that it is another one. */
struct kept {
    shoal_tensor *w;
};

static shoal_status use_kept(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    const struct kept *kept = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_sum(shoal_mul(inputs[0], kept->w), NULL, 0, false);
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

/* In a program of its own, because the variable is read once. */
TEST(planted_step_with_another_tensor)
{
    struct kept kept;
    shoal_compiled *compiled = NULL;
    shoal_tensor *loss = NULL;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_full((int64_t[]){LATE_COUNT}, 1, 1.0, SHOAL_F32);
    kept.w = late_tensor(1.0, true);
    CHECK_OK(shoal_compile(NULL, use_kept, &kept, 1, NULL, &compiled));
    CHECK_OK(shoal_compiled_run(compiled, &x, 1, &loss, 1));
    shoal_tensor_unref(loss);
    loss = NULL;
    CHECK_OK(shoal_set_grad(kept.w, NULL));
    kept.w = late_tensor(2.0, true);
    CHECK_STATUS(shoal_compiled_run(compiled, &x, 1, &loss, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("uses another tensor in the place of");
    shoal_tensor_unref(loss);
    shoal_compiled_free(compiled);
    (void)!shoal_scope_end();
}

TEST(a_check_compares_which_tensors_a_step_uses)
{
    char output[2048];
    const char *const arguments[] = {test_program(), "planted_step_with_another_tensor", NULL};
    const char *const environment[] = {"SHOAL_COMPILE_CHECK=1", NULL};
    if (!CHECK_INT(test_run_program(arguments, environment, output, sizeof output), 0)) {
        test_failed(__FILE__, __LINE__, "%s", output);
    }
}

/* Hooks --------------------------------------------------------------------------------------------------- */

static shoal_status count_call(void *context, shoal_tensor *leaf)
{
    (void)leaf;
    ++*(int *)context;
    return SHOAL_OK;
}

/* The step is refused, whether the hook was there at the capture or was added later, and goes on without it. */
TEST_RANKS(hooks_after_adding_are_refused_by_name, 1)
{
    for (int k = 0; k < 2; k++) {
        struct late late;
        shoal_hook *hook = NULL;
        int n_calls = 0;
        REQUIRE(late_open(&late, self, true));
        shoal_tensor *w = shoal_module_parameter(late.net, "w");
        CHECK_OK(shoal_tensor_set_name(w, "weight"));
        if (k == 1) {
            CHECK_OK(late_step(&late));
        }
        CHECK_OK(shoal_on_accumulated(w, count_call, &n_calls, &hook));
        CHECK_STATUS(late_step(&late), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("weight has a hook that shoal_on_accumulated added");
        CHECK_INT(n_calls, 0);
        shoal_hook_remove(hook);
        CHECK_OK(late_step(&late));
        late_check_gradient(w, 1.0);
        late_close(&late);
    }
}

static shoal_tensor *triple(void *context, shoal_tensor *gradient)
{
    (void)context;
    return shoal_mul_scalar(gradient, 3.0);
}

TEST_RANKS(hooks_on_gradients_are_followed, 1)
{
    struct late late;
    shoal_hook *hook = NULL;
    REQUIRE(late_open(&late, self, true));
    shoal_tensor *w = shoal_module_parameter(late.net, "w");
    CHECK_OK(late_step(&late));
    CHECK_OK(shoal_on_gradient(w, triple, NULL, &hook));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(late_step(&late));
        late_check_gradient(w, 3.0);
    }
    shoal_hook_remove(hook);
    CHECK_OK(late_step(&late));
    late_check_gradient(w, 1.0);
    late_close(&late);
}

static shoal_status double_output(void *context, const shoal_forward_call *call)
{
    (void)context;
    call->outputs[0] = shoal_mul_scalar(call->outputs[0], 2.0);
    return SHOAL_OK;
}

TEST_RANKS(hooks_on_modules_are_followed, 1)
{
    struct late late;
    shoal_module_hook *hook = NULL;
    const shoal_module_hook_definition definition = {.struct_size = sizeof definition,
                                                     .post_forward = double_output};
    REQUIRE(late_open(&late, self, true));
    CHECK_OK(late_step(&late));
    CHECK_OK(shoal_module_add_hook(late.layer, &definition, &hook));
    CHECK_OK(late_step(&late));
    late_check_gradient(shoal_module_parameter(late.net, "layer.w"), 2.0);
    shoal_module_hook_remove(hook);
    CHECK_OK(late_step(&late));
    late_check_gradient(shoal_module_parameter(late.net, "layer.w"), 1.0);
    late_close(&late);
}
