/* SPDX-License-Identifier: MIT */
/* Hooks around forward: order, places, replacing, failing, removing, lifetimes. */
#include "unit/module/fixture.h"

struct noting {
    struct journal *journal;
    const char *word;
    double factor; /* 0: leaves tensors alone; otherwise multiplies the first input or output */
    int n_ends;
    shoal_module_hook *removes; /* a hook to take off, once */
};

static shoal_status run(struct noting *noting, const char *when, shoal_tensor **tensors)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%s%s", when, noting->word);
    note(noting->journal, text);
    shoal_module_hook_remove(noting->removes);
    noting->removes = NULL;
    if (noting->factor != 0) {
        tensors[0] = shoal_mul_scalar(tensors[0], noting->factor);
    }
    return SHOAL_OK;
}

static shoal_status before(void *context, const shoal_forward_call *call)
{
    CHECK_INT(call->struct_size, sizeof *call);
    CHECK(!call->outputs[0] && !call->is_recompute);
    return run(context, "<", call->inputs);
}

static shoal_status after(void *context, const shoal_forward_call *call)
{
    CHECK_INT(call->struct_size, sizeof *call);
    CHECK(call->outputs[0]);
    return run(context, ">", call->outputs);
}

static void count_end(void *context)
{
    ((struct noting *)context)->n_ends++;
}

static shoal_module_hook_definition define(struct noting *noting, shoal_hook_place pre, shoal_hook_place post)
{
    return (shoal_module_hook_definition){.struct_size = sizeof(shoal_module_hook_definition),
                                          .pre_forward = before,
                                          .pre_place = pre,
                                          .post_forward = after,
                                          .post_place = post,
                                          .context = noting,
                                          .destroy = count_end};
}

static shoal_module_hook *add(shoal_module *module, struct noting *noting)
{
    shoal_module_hook *hook = NULL;
    shoal_module_hook_definition definition = define(noting, SHOAL_HOOK_IN_ORDER, SHOAL_HOOK_IN_ORDER);
    CHECK_OK(shoal_module_add_hook(module, &definition, &hook));
    return hook;
}

SCOPED_TEST(hooks_run_in_order_and_place)
{
    struct journal journal = {""};
    struct noting noting[5] = {{&journal, "a", 0, 0, NULL},
                               {&journal, "F", 0, 0, NULL},
                               {&journal, "b", 0, 0, NULL},
                               {&journal, "G", 0, 0, NULL},
                               {&journal, "L", 0, 0, NULL}};
    shoal_module *module = make_scale(make_leaf(1, 2, 0));
    for (int i = 0; i < 5; i++) {
        bool is_outer = i == 1 || i == 3;
        shoal_module_hook_definition definition =
            is_outer ? define(&noting[i], SHOAL_HOOK_FIRST, SHOAL_HOOK_LAST)
            : i == 4 ? define(&noting[i], SHOAL_HOOK_LAST, SHOAL_HOOK_FIRST)
                     : define(&noting[i], SHOAL_HOOK_IN_ORDER, SHOAL_HOOK_IN_ORDER);
        CHECK_OK(shoal_module_add_hook(module, &definition, NULL));
    }
    CHECK_DOUBLE(value_at(shoal_module_call_one(module, make_leaf(1, 3, 0)), 0), 6);
    CHECK_STRING(journal.text, "<F <G <a <b <L >L >a >b >F >G");
    shoal_module_unref(module);
    for (int i = 0; i < 5; i++) {
        CHECK_INT(noting[i].n_ends, 1);
    }
}

SCOPED_TEST(hooks_replace_inputs_and_outputs)
{
    struct journal journal = {""};
    struct noting noting[2] = {{&journal, "a", 10, 0, NULL}, {&journal, "b", 7, 0, NULL}};
    shoal_tensor *weight = make_leaf(1, 2, 0);
    shoal_module *module = make_scale(weight);
    for (int i = 0; i < 2; i++) {
        shoal_module_hook_definition definition =
            define(&noting[i], SHOAL_HOOK_IN_ORDER, SHOAL_HOOK_IN_ORDER);
        *(i == 0 ? &definition.post_forward : &definition.pre_forward) = NULL;
        CHECK_OK(shoal_module_add_hook(module, &definition, NULL));
    }
    shoal_tensor *x = make_leaf(1, 3, 0);
    shoal_tensor *y = shoal_module_call_one(module, x);
    CHECK_DOUBLE(value_at(y, 0), 3 * 10 * 2 * 7);
    CHECK_STRING(journal.text, "<a >b");
    CHECK_OK(shoal_backward(y, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 140);
    CHECK_DOUBLE(grad_at(weight, 0), 210);
    shoal_module_unref(module);
}

/* Failing ---------------------------------------------------------------------------------------------- */

static shoal_status fail_hook(void *context, const shoal_forward_call *call)
{
    switch (*(int *)context) {
    case 0:
        return shoal_fail(SHOAL_ERR_CANCELLED, "not so");
    case 1:
        (void)shoal_select(call->inputs[0], 7, 0);
        return SHOAL_OK;
    case 2:
        return SHOAL_ERR_TIMEOUT;
    case 3:
        return shoal_scope_begin();
    default:
        call->outputs[0] = NULL;
        return SHOAL_OK;
    }
}

SCOPED_TEST(a_failing_hook_ends_the_call)
{
    static const struct {
        shoal_status status;
        const char *words;
    } rows[] = {{SHOAL_ERR_CANCELLED, "forward hook: not so"},
                {SHOAL_ERR_INVALID, "forward hook: select: "},
                {SHOAL_ERR_TIMEOUT, "forward hook: it returned SHOAL_ERR_TIMEOUT"},
                {SHOAL_ERR_STATE, "forward hook: it left a scope open"},
                {SHOAL_ERR_INVALID, "scale: a post-forward hook: it set output 0 to NULL"}};
    shoal_tensor *x = make_leaf(1, 3, 0);
    for (int way = 0; way < 5; way++) {
        for (int is_post = way == 4; is_post < 2; is_post++) {
            struct journal journal = {""};
            struct noting noting = {&journal, "a", 0, 0, NULL};
            shoal_module *module = make_scale(make_leaf(1, 2, 0));
            shoal_module_hook_definition definition = {
                .struct_size = sizeof(definition),
                .pre_forward = is_post ? NULL : fail_hook,
                .post_forward = is_post ? fail_hook : NULL,
                .context = &way,
            };
            CHECK_OK(shoal_module_add_hook(module, &definition, NULL));
            shoal_module_hook *hook = add(module, &noting);
            REQUIRE_OK(shoal_scope_begin());
            CHECK(!shoal_module_call_one(module, x));
            CHECK_STATUS(shoal_scope_end(), rows[way].status);
            CHECK_ERROR_TEXT(rows[way].words);
            CHECK_ERROR_TEXT(is_post ? "scale: a post-" : "scale: a pre-");
            CHECK_STRING(journal.text, is_post ? "<a" : "");
            shoal_module_hook_remove(hook);
            shoal_module_unref(module);
        }
    }
}

static shoal_status fail_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    (void)module;
    (void)inputs;
    (void)n_inputs;
    (void)outputs;
    (void)n_outputs;
    return shoal_fail(SHOAL_ERR_CANCELLED, "not so");
}

static void after_failure(void *context, const shoal_forward_call *call)
{
    struct noting *noting = context;
    CHECK_INT(call->struct_size, sizeof *call);
    CHECK(call->module && call->n_inputs == 1 && call->inputs[0]);
    /* Whatever goes wrong here: the error of the call stays. */
    CHECK(!shoal_select(call->inputs[0], 9, 9));
    CHECK_STATUS(shoal_module_add_hook(NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_scope_begin());
    (void)run(noting, "!", call->inputs);
}

static shoal_module_hook_definition define_cleanup(struct noting *noting)
{
    shoal_module_hook_definition definition = define(noting, SHOAL_HOOK_IN_ORDER, SHOAL_HOOK_IN_ORDER);
    definition.failed_forward = after_failure;
    return definition;
}

/* The forward function, a hook before it or behind it fails: who cleans up is told, the newest first. */
SCOPED_TEST(hooks_that_clean_up)
{
    static const char *const expected[] = {"<a !b !a", "<a <b !b !a", "<a <b >a !b !a"};
    shoal_tensor *x = make_leaf(1, 3, 0);
    for (int place = 0; place < 3; place++) {
        struct journal journal = {""};
        struct noting a = {&journal, "a", 0, 0, NULL};
        struct noting b = {&journal, "b", 0, 0, NULL};
        int way = 0;
        shoal_module *module =
            place == 1 ? make_module("scale", fail_forward, NULL) : make_scale(make_leaf(1, 2, 0));
        shoal_module_hook_definition definition = define_cleanup(&a);
        CHECK_OK(shoal_module_add_hook(module, &definition, NULL));
        definition = (shoal_module_hook_definition){.struct_size = sizeof(definition),
                                                    .pre_forward = place == 0 ? fail_hook : NULL,
                                                    .post_forward = place == 2 ? fail_hook : NULL,
                                                    .context = &way};
        CHECK_STATUS(shoal_module_add_hook(module, &definition, NULL),
                     place == 1 ? SHOAL_ERR_INVALID : SHOAL_OK);
        definition = define_cleanup(&b);
        CHECK_OK(shoal_module_add_hook(module, &definition, NULL));
        REQUIRE_OK(shoal_scope_begin());
        CHECK(!shoal_module_call_one(module, x));
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("not so");
        CHECK_STRING(journal.text, expected[place]);
        shoal_module_unref(module);
    }
}

/* A call that went well tells nobody; a hook for failures alone is a hook. */
SCOPED_TEST(nothing_to_clean_up)
{
    struct journal journal = {""};
    struct noting noting = {&journal, "a", 0, 0, NULL};
    shoal_module *module = make_scale(make_leaf(1, 2, 0));
    const shoal_module_hook_definition definition = {
        .struct_size = sizeof(definition), .failed_forward = after_failure, .context = &noting};
    CHECK_OK(shoal_module_add_hook(module, &definition, NULL));
    CHECK(shoal_module_call_one(module, make_leaf(1, 3, 0)));
    CHECK_STRING(journal.text, "");
    shoal_module_unref(module);
}

TEST(bad_hooks)
{
    struct noting noting = {NULL, "a", 0, 0, NULL};
    shoal_module *module = make_module("list", NULL, NULL);
    shoal_module_hook_definition definition = define(&noting, SHOAL_HOOK_IN_ORDER, SHOAL_HOOK_IN_ORDER);
    CHECK_STATUS(shoal_module_add_hook(NULL, &definition, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module_add_hook: module is NULL");
    CHECK_STATUS(shoal_module_add_hook(module, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("definition is NULL");
    definition.pre_place = (shoal_hook_place)3;
    CHECK_STATUS(shoal_module_add_hook(module, &definition, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("pre_place is 3, which is none of SHOAL_HOOK_*");
    definition.pre_place = SHOAL_HOOK_FIRST;
    definition.post_place = (shoal_hook_place)-1;
    CHECK_STATUS(shoal_module_add_hook(module, &definition, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("post_place is -1, which is none of SHOAL_HOOK_*");
    definition.post_place = SHOAL_HOOK_LAST;
    definition.pre_forward = definition.post_forward = NULL;
    CHECK_STATUS(shoal_module_add_hook(module, &definition, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("pre_forward, post_forward and failed_forward are NULL");
    CHECK_INT(noting.n_ends, 0);
    shoal_module_unref(module);
}

/* Removing --------------------------------------------------------------------------------------------- */

SCOPED_TEST(removed_hooks_do_not_run_and_are_destroyed_at_once)
{
    struct journal journal = {""};
    struct noting noting[3] = {
        {&journal, "a", 0, 0, NULL}, {&journal, "b", 0, 0, NULL}, {&journal, "c", 0, 0, NULL}};
    shoal_module_hook *hooks[3];
    shoal_module *module = make_scale(make_leaf(1, 2, 0));
    for (int i = 0; i < 3; i++) {
        hooks[i] = add(module, &noting[i]);
    }
    shoal_module_hook_remove(hooks[1]);
    CHECK_INT(noting[1].n_ends, 1);
    CHECK(shoal_module_call_one(module, make_leaf(1, 3, 0)));
    CHECK_STRING(journal.text, "<a <c >a >c");
    shoal_module_hook_remove(NULL);
    shoal_module_unref(module);
    CHECK_INT(noting[0].n_ends, 1);
    CHECK_INT(noting[2].n_ends, 1);
    shoal_module_hook_remove(hooks[0]); /* after the module is gone */
    shoal_module_hook_remove(hooks[2]);
    CHECK_INT(noting[0].n_ends + noting[1].n_ends + noting[2].n_ends, 3);
}

SCOPED_TEST(hooks_may_remove_themselves_and_others)
{
    struct journal journal = {""};
    struct noting noting[3] = {
        {&journal, "a", 0, 0, NULL}, {&journal, "b", 0, 0, NULL}, {&journal, "c", 0, 0, NULL}};
    shoal_module *module = make_scale(make_leaf(1, 2, 0));
    noting[0].removes = add(module, &noting[0]); /* itself, while it runs */
    shoal_module_hook *second = add(module, &noting[1]);
    noting[2].removes = second; /* one that has run before this one */
    shoal_module_hook *third = add(module, &noting[2]);
    CHECK(shoal_module_call_one(module, make_leaf(1, 3, 0)));
    CHECK_STRING(journal.text, "<a <b <c >c");
    CHECK_INT(noting[0].n_ends, 1);
    CHECK_INT(noting[1].n_ends, 1);
    CHECK_INT(noting[2].n_ends, 0);
    shoal_module_hook_remove(third);
    shoal_module_unref(module);
}

/* Adds a hook in every call, and calls the module again once, so that lists change under walks of two depths. */
struct adding {
    shoal_module *module;
    struct noting *added;
    int n_calls;
    int n_ends_inside;
};

static shoal_status add_more(void *context, const shoal_forward_call *call)
{
    struct adding *adding = context;
    struct noting *added = &adding->added[adding->n_calls];
    shoal_module_hook *hook = add(adding->module, added);
    if (++adding->n_calls == 1) {
        call->inputs[0] = shoal_module_call_one(adding->module, call->inputs[0]);
        shoal_module_hook_remove(hook);
        adding->n_ends_inside = added->n_ends;
    } else {
        added->removes = hook;
    }
    return SHOAL_OK;
}

SCOPED_TEST(hooks_added_in_a_call_run_in_the_next)
{
    struct journal journal = {""};
    struct noting added[2] = {{&journal, "a", 0, 0, NULL}, {&journal, "b", 0, 0, NULL}};
    shoal_module *module = make_scale(make_leaf(1, 2, 0));
    struct adding adding = {.module = module, .added = added};
    shoal_module_hook *hook;
    CHECK_OK(shoal_module_add_hook(module,
                                   &(shoal_module_hook_definition){
                                       .struct_size = sizeof(shoal_module_hook_definition),
                                       .pre_forward = add_more,
                                       .context = &adding,
                                   },
                                   &hook));
    CHECK_DOUBLE(value_at(shoal_module_call_one(module, make_leaf(1, 3, 0)), 0), 12);
    CHECK_STRING(journal.text, "<a >a"); /* of the inner call: the outer one began before it was there */
    CHECK_INT(adding.n_ends_inside, 0);  /* the outer call was still walking the list */
    CHECK_INT(added[0].n_ends, 1);
    shoal_module_hook_remove(hook);
    CHECK(shoal_module_call_one(module, make_leaf(1, 3, 0)));
    CHECK_STRING(journal.text, "<a >a <b"); /* which takes itself off */
    CHECK_INT(added[1].n_ends, 1);
    shoal_module_unref(module);
}

/* The end of one hook's context takes another hook with it. */
static void remove_neighbour(void *context)
{
    struct noting *noting = context;
    shoal_module_hook_remove(noting->removes);
    noting->removes = NULL;
    noting->n_ends++;
}

TEST(the_end_of_a_hook_may_end_another)
{
    for (int is_dying = 0; is_dying < 2; is_dying++) {
        struct noting noting[2] = {{NULL, "a", 0, 0, NULL}, {NULL, "b", 0, 0, NULL}};
        shoal_module *module = make_module("list", NULL, NULL);
        shoal_module_hook *hook;
        shoal_module_hook_definition definition = define(&noting[1], SHOAL_HOOK_FIRST, SHOAL_HOOK_LAST);
        definition.destroy = remove_neighbour;
        noting[1].removes = add(module, &noting[0]);
        CHECK_OK(shoal_module_add_hook(module, &definition, &hook));
        if (is_dying) {
            shoal_module_unref(module);
            shoal_module_hook_remove(hook);
        } else {
            shoal_module_hook_remove(hook);
            CHECK_INT(noting[0].n_ends, 1);
            shoal_module_unref(module);
        }
        CHECK_INT(noting[0].n_ends, 1);
        CHECK_INT(noting[1].n_ends, 1);
    }
}

static void drop_module(void *context)
{
    shoal_module_unref(context);
}

/* A hook whose context holds the module: removing the hook frees both. */
TEST(a_hook_may_hold_its_module)
{
    shoal_module *module = make_module("list", NULL, NULL);
    shoal_module_hook *hook;
    CHECK_OK(shoal_module_add_hook(module,
                                   &(shoal_module_hook_definition){
                                       .struct_size = sizeof(shoal_module_hook_definition),
                                       .pre_forward = before,
                                       .context = shoal_module_ref(module),
                                       .destroy = drop_module,
                                   },
                                   &hook));
    shoal_module_unref(module);
    shoal_module_hook_remove(hook);
}
