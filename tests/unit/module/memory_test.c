/* SPDX-License-Identifier: MIT */
/* Every allocation of building, walking, replacing and calling may fail: the status says so and nothing is lost. */
#include "base/try.h"
#include "module/module.h"
#include "unit/module/fixture.h"

static char key;

static shoal_status pass(void *context, const shoal_forward_call *call)
{
    return SHOAL_OK;
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    return SHOAL_OK;
}

static shoal_status convert(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    *tensor = shoal_mul_scalar(entry->tensor, 2);
    return SHOAL_OK;
}

/* Ten outputs, most of them made in the call. */
static shoal_status wide_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *x = shoal_module_call_one(shoal_module_child(module, "layers.1"), inputs[0]);
    for (size_t i = 0; i < n_outputs; i++) {
        outputs[i] = i == 3 ? inputs[0] : shoal_mul(x, shoal_module_parameter(module, "weight"));
    }
    return SHOAL_OK;
}

static shoal_status create(const char *type, shoal_module_forward forward, size_t n_outputs,
                           shoal_module **module_out)
{
    return shoal_module_create(&(shoal_module_definition){.struct_size = sizeof(shoal_module_definition),
                                                          .type = type,
                                                          .forward = forward,
                                                          .n_outputs = n_outputs},
                               module_out);
}

static shoal_status add_layer(shoal_module *layers, const char *name, shoal_tensor *weight)
{
    shoal_module *layer;
    TRY(create("scale", scale_forward, 1, &layer));
    shoal_status status = shoal_module_add_parameter(layer, "weight", weight);
    if (status == SHOAL_OK) {
        status = shoal_module_add_child(layers, name, layer);
    }
    shoal_module_unref(layer);
    return status;
}

static shoal_status fill(shoal_module *net, shoal_tensor *weight)
{
    shoal_module *layers;
    shoal_module_hook *hook = NULL;
    TRY(create("list", NULL, 0, &layers));
    shoal_status status = add_layer(layers, "0", weight);
    status = status == SHOAL_OK ? add_layer(layers, "1", weight) : status;
    status = status == SHOAL_OK ? shoal_module_add_child(net, "layers", layers) : status;
    shoal_module_unref(layers);
    TRY(status);
    TRY(shoal_module_add_parameter(net, "weight", weight));
    TRY(shoal_module_add_buffer(net, "mean", weight));
    TRY(shoal_module_set_extra(net, &key, net, NULL));
    status = shoal_module_add_hook(
        net,
        &(shoal_module_hook_definition){
            .struct_size = sizeof(shoal_module_hook_definition), .pre_forward = pass, .post_forward = pass},
        &hook);
    shoal_module_hook_remove(hook);
    return status;
}

static shoal_status use(shoal_module *net)
{
    size_t n;
    shoal_tensor *outputs[10];
    TRY(shoal_module_walk(net, SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS, visit, NULL));
    TRY(shoal_module_apply(net, SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS, convert, NULL));
    if (!shoal_module_parameters(net, &n)) {
        return shoal_scope_error();
    }
    CHECK_INT(n, 1);
    shoal_tensor *x = shoal_full((int64_t[]){2}, 1, 3, SHOAL_F64);
    shoal_status status = shoal_module_call(net, &x, 1, outputs, 10);
    for (int i = 0; i < 10; i++) {
        CHECK((outputs[i] != NULL) == (status == SHOAL_OK));
    }
    TRY(status);
    CHECK(shoal_module_parameter(net, "weight") == shoal_module_parameter(net, "layers.0.weight"));
    return SHOAL_OK;
}

static shoal_status build_and_use(void *context)
{
    shoal_module *net = NULL;
    TRY(shoal_scope_begin());
    shoal_tensor *weight = shoal_full((int64_t[]){2}, 1, 2, SHOAL_F64);
    shoal_status status = shoal_scope_error();
    status = status == SHOAL_OK ? create("wide", wide_forward, 10, &net) : status;
    status = status == SHOAL_OK ? fill(net, weight) : status;
    status = status == SHOAL_OK ? use(net) : status;
    shoal_module_unref(net);
    shoal_status end_status = shoal_scope_end();
    return status == SHOAL_OK ? end_status : status;
}

TEST(modules_survive_failing_allocations)
{
    REQUIRE_OK(build_and_use(NULL));
    CHECK(test_sweep_allocations(build_and_use, NULL) > 50);
}

/* A failed replacement leaves every place as it was. */
struct subject {
    shoal_module *module;
    shoal_tensor *weight;
};

static shoal_status replace(void *context)
{
    struct subject *subject = context;
    shoal_status status = shoal_module_apply(subject->module, SHOAL_WALK_PARAMETERS, convert, NULL);
    if (status == SHOAL_OK) {
        CHECK(shoal_module_parameter(subject->module, "layers.0.weight") != subject->weight);
        CHECK_OK(shoal_module_set_parameter(subject->module, "weight", subject->weight));
        CHECK_OK(shoal_module_set_parameter(subject->module, "layers.0.weight", subject->weight));
        CHECK_OK(shoal_module_set_parameter(subject->module, "layers.1.weight", subject->weight));
    }
    CHECK(shoal_module_parameter(subject->module, "layers.1.weight") == subject->weight);
    return status;
}

TEST(a_failed_replacement_changes_nothing)
{
    struct subject subject = {NULL, NULL};
    REQUIRE_OK(shoal_scope_begin());
    subject.weight = shoal_tensor_ref(shoal_full((int64_t[]){2}, 1, 2, SHOAL_F64));
    CHECK_OK(shoal_scope_end());
    REQUIRE_OK(create("wide", wide_forward, 10, &subject.module));
    REQUIRE_OK(fill(subject.module, subject.weight));
    CHECK(test_sweep_allocations(replace, &subject) > 5);
    shoal_module_unref(subject.module);
    shoal_tensor_unref(subject.weight);
}

/* A call that fails names the module even if there is no memory left to look for its path. */
TEST(errors_without_memory_keep_their_text)
{
    shoal_module *net = NULL;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_full((int64_t[]){2}, 1, 2, SHOAL_F64);
    shoal_tensor *outputs[10];
    REQUIRE_OK(create("wide", wide_forward, 10, &net));
    REQUIRE_OK(fill(net, x));
    test_fail_allocation(1000000, false);
    REQUIRE_OK(shoal_module_call(net, &x, 1, outputs, 10));
    size_t n = test_count_allocations();
    for (size_t i = 1; i <= n; i++) {
        REQUIRE_OK(shoal_scope_begin());
        test_fail_allocation(i, true);
        shoal_status status = shoal_module_call(net, &x, 1, outputs, 10);
        test_fail_allocation(0, false);
        CHECK_STATUS(shoal_scope_end(), status);
        if (status != SHOAL_OK) {
            CHECK_STATUS(status, SHOAL_ERR_NO_MEMORY);
            CHECK_ERROR_TEXT("wide: ");
            CHECK_ERROR_TEXT("bytes");
        }
    }
    shoal_module_unref(net);
    CHECK_OK(shoal_scope_end());
}

/* A tree that has a guard, and a tree of several modules that is added to it. */
struct guarded {
    shoal_module *child;
    shoal_tensor *weight;
    int n_asked;
};

static shoal_status count_call(void *context, const shoal_forward_call *call)
{
    struct guarded *guarded = context;
    (void)call;
    guarded->n_asked++;
    return SHOAL_OK;
}

static int count_asked(struct guarded *guarded)
{
    guarded->n_asked = 0;
    CHECK_OK(shoal_scope_begin());
    for (int i = 0; i < 2; i++) {
        shoal_module *layer = shoal_module_child(guarded->child, i == 0 ? "layers.0" : "layers.1");
        CHECK(shoal_module_call_one(layer, guarded->weight) != NULL);
    }
    CHECK_OK(shoal_scope_end());
    return guarded->n_asked;
}

/* Modules that could not be added are not asked for. */
static shoal_status add_guarded(void *context)
{
    struct guarded *guarded = context;
    struct module_guard *guard = NULL;
    shoal_module *root = NULL;
    TRY(create("wide", wide_forward, 10, &root));
    shoal_status status = module_guard_tree(root, count_call, guarded, &guard);
    if (status == SHOAL_OK) {
        status = shoal_module_add_child(root, "late", guarded->child);
    }
    test_fail_allocation(0, false);
    CHECK_INT(count_asked(guarded), status == SHOAL_OK ? 2 : 0);
    shoal_module_unref(root);
    module_guard_end(guard);
    CHECK_INT(count_asked(guarded), 0);
    return status;
}

TEST(a_child_that_cannot_be_added_gets_no_guard)
{
    struct guarded guarded = {.n_asked = 0};
    REQUIRE_OK(shoal_scope_begin());
    guarded.weight = shoal_tensor_ref(shoal_full((int64_t[]){2}, 1, 2, SHOAL_F64));
    CHECK_OK(shoal_scope_end());
    REQUIRE_OK(create("wide", wide_forward, 10, &guarded.child));
    REQUIRE_OK(fill(guarded.child, guarded.weight));
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    for (size_t i = 1; status == SHOAL_ERR_NO_MEMORY; i++) {
        test_fail_allocation(i, false);
        status = add_guarded(&guarded);
    }
    CHECK_OK(status);
    shoal_module_unref(guarded.child);
    shoal_tensor_unref(guarded.weight);
}
