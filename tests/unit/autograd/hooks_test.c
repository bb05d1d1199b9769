/* SPDX-License-Identifier: MIT */
/* Hooks: on gradients, after accumulation, at the end of backward, and backward passes inside them. */
#include <string.h>

#include "unit/autograd/fixture.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})

/* What hooks did, in order. */
struct journal {
    char text[64];
};

static void note(struct journal *journal, char letter)
{
    size_t length = strlen(journal->text);
    if (length + 1 < sizeof(journal->text)) {
        journal->text[length] = letter;
        journal->text[length + 1] = '\0';
    }
}

struct noting {
    struct journal *journal;
    char letter;
    double factor; /* 0: leaves the gradient; otherwise multiplies it */
    double seen;
    shoal_hook *removes; /* a hook to take off, once */
};

static shoal_tensor *note_gradient(void *context, shoal_tensor *gradient)
{
    struct noting *noting = context;
    note(noting->journal, noting->letter);
    noting->seen = value_at(gradient, 0);
    shoal_hook_remove(noting->removes);
    noting->removes = NULL;
    CHECK(shoal_in_backward() && !shoal_scope_has_grad());
    return noting->factor != 0 ? shoal_mul_scalar(gradient, noting->factor) : NULL;
}

static shoal_status note_leaf(void *context, shoal_tensor *leaf)
{
    struct noting *noting = context;
    note(noting->journal, noting->letter);
    noting->seen = grad_at(leaf, 0);
    return SHOAL_OK;
}

static shoal_status note_end(void *context)
{
    struct noting *noting = context;
    CHECK(shoal_in_backward());
    note(noting->journal, noting->letter);
    return SHOAL_OK;
}

/* On gradients ----------------------------------------------------------------------------------------- */

SCOPED_TEST(hooks_run_in_order_on_the_complete_gradient)
{
    struct journal journal = {""};
    struct noting first = {&journal, 'a', 10, 0, NULL};
    struct noting second = {&journal, 'b', 0, 0, NULL};
    struct noting on_leaf = {&journal, 'l', 2, 0, NULL};
    struct noting after = {&journal, 'c', 0, 0, NULL};
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_mul_scalar(x, 1);
    CHECK_OK(shoal_on_gradient(y, note_gradient, &first, NULL));
    CHECK_OK(shoal_on_gradient(y, note_gradient, &second, NULL));
    CHECK_OK(shoal_on_gradient(x, note_gradient, &on_leaf, NULL));
    CHECK_OK(shoal_on_accumulated(x, note_leaf, &after, NULL));
    CHECK_OK(shoal_backward(sum_all(shoal_add(shoal_mul(y, y), shoal_add(x, y))), NULL));
    CHECK_STRING(journal.text, "ablc");
    CHECK_DOUBLE(first.seen, 7);
    CHECK_DOUBLE(second.seen, 70);
    CHECK_DOUBLE(on_leaf.seen, 71);
    CHECK_DOUBLE(after.seen, 142);
}

/* The hook belongs to the value: it runs though the tensor is gone, and not after the value was changed. */
SCOPED_TEST(hooks_outlive_their_tensor)
{
    struct journal journal = {""};
    struct noting noting = {&journal, 'a', 3, 0, NULL};
    shoal_hook *hook;
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *loss = NULL;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *y = shoal_mul_scalar(x, 2);
    CHECK_OK(shoal_on_gradient(y, note_gradient, &noting, &hook));
    loss = shoal_scope_keep(sum_all(y));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 6);
    CHECK_STRING(journal.text, "a");
    shoal_hook_remove(hook);
}

SCOPED_TEST(removed_hooks_do_not_run)
{
    struct journal journal = {""};
    struct noting noting[] = {
        {&journal, 'a', 0, 0, NULL}, {&journal, 'b', 0, 0, NULL}, {&journal, 'c', 0, 0, NULL}};
    shoal_hook *hooks[3];
    shoal_tensor *x = make_leaf(2, 3, 1);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(shoal_on_accumulated(x, note_leaf, &noting[i], &hooks[i]));
    }
    shoal_hook_remove(hooks[1]);
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_STRING(journal.text, "ac");
    shoal_hook_remove(hooks[2]);
    CHECK_OK(shoal_on_accumulated(x, note_leaf, &noting[1], NULL));
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_STRING(journal.text, "acab");
    shoal_hook_remove(hooks[0]);
    shoal_hook_remove(NULL);
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_STRING(journal.text, "acabb");
}

SCOPED_TEST(a_hook_may_remove_itself_and_others)
{
    struct journal journal = {""};
    struct noting noting[] = {
        {&journal, 'a', 0, 0, NULL}, {&journal, 'b', 0, 0, NULL}, {&journal, 'c', 0, 0, NULL}};
    shoal_hook *hooks[2];
    shoal_tensor *x = make_leaf(2, 3, 1);
    CHECK_OK(shoal_on_gradient(x, note_gradient, &noting[0], &hooks[0]));
    CHECK_OK(shoal_on_gradient(x, note_gradient, &noting[1], &hooks[1]));
    CHECK_OK(shoal_on_gradient(x, note_gradient, &noting[2], NULL));
    noting[0].removes = hooks[0];
    noting[2].removes = hooks[1];
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_STRING(journal.text, "abcc");
}

/* Takes itself and its neighbour off and puts a new one on: the walk over the list must not notice. */
struct changing {
    shoal_tensor *leaf; /* for add_itself */
    shoal_hook *own;
    shoal_hook *neighbour;
    struct noting *added;
};

static shoal_status change_list(void *context, shoal_tensor *leaf)
{
    struct changing *changing = context;
    shoal_hook_remove(changing->own);
    shoal_hook_remove(changing->neighbour);
    changing->own = NULL;
    changing->neighbour = NULL;
    note(changing->added->journal, 'x');
    return shoal_on_accumulated(leaf, note_leaf, changing->added, NULL);
}

SCOPED_TEST(a_hook_may_change_its_list)
{
    struct journal journal = {""};
    struct noting added = {&journal, 'n', 0, 0, NULL};
    struct noting neighbour = {&journal, 'b', 0, 0, NULL};
    struct noting last = {&journal, 'c', 0, 0, NULL};
    struct changing changing = {.added = &added};
    shoal_tensor *x = make_leaf(2, 3, 1);
    CHECK_OK(shoal_on_accumulated(x, change_list, &changing, &changing.own));
    CHECK_OK(shoal_on_accumulated(x, note_leaf, &neighbour, &changing.neighbour));
    CHECK_OK(shoal_on_accumulated(x, note_leaf, &last, NULL));
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_STRING(journal.text, "xc");
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_STRING(journal.text, "xccn");
}

/* One that is added on the way runs the next time, even if the list would otherwise never end. */
static shoal_tensor *add_itself(void *context, shoal_tensor *gradient)
{
    struct changing *changing = context;
    note(changing->added->journal, 'a');
    CHECK_OK(shoal_on_gradient(changing->leaf, add_itself, context, NULL));
    return NULL;
}

SCOPED_TEST(hooks_that_are_added_on_the_way_wait)
{
    struct journal journal = {""};
    struct noting added = {&journal, 'n', 0, 0, NULL};
    struct changing changing = {.leaf = make_leaf(2, 3, 1), .added = &added};
    CHECK_OK(shoal_on_gradient(changing.leaf, add_itself, &changing, NULL));
    CHECK_OK(shoal_backward(sum_all(changing.leaf), NULL));
    CHECK_STRING(journal.text, "a");
    CHECK_OK(shoal_backward(sum_all(changing.leaf), NULL));
    CHECK_STRING(journal.text, "aaa");
}

TEST(a_handle_may_outlive_its_tensor)
{
    struct journal journal = {""};
    struct noting noting = {&journal, 'a', 0, 0, NULL};
    shoal_hook *on_leaf;
    shoal_hook *on_result;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = make_leaf(2, 3, 1);
    CHECK_OK(shoal_on_accumulated(x, note_leaf, &noting, &on_leaf));
    CHECK_OK(shoal_on_gradient(shoal_neg(x), note_gradient, &noting, &on_result));
    CHECK_OK(shoal_scope_end());
    shoal_hook_remove(on_leaf);
    shoal_hook_remove(on_result);
}

static shoal_tensor *change_shape(void *context, shoal_tensor *gradient)
{
    return shoal_narrow(gradient, 0, 0, 1);
}

static shoal_tensor *fail_inside(void *context, shoal_tensor *gradient)
{
    return shoal_select(gradient, 0, 99);
}

SCOPED_TEST(bad_hooks_end_the_backward)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_neg(x);
    shoal_tensor *z = shoal_neg(x);
    shoal_hook *hook;
    CHECK_OK(shoal_on_gradient(y, change_shape, NULL, NULL));
    CHECK_STATUS(shoal_backward(sum_all(y), NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("gradient of neg: the gradient that a hook returned: f64 [1] on cpu does not fit its "
                     "tensor, f64 [2]");
    CHECK_OK(shoal_on_gradient(z, fail_inside, NULL, NULL));
    CHECK_STATUS(shoal_backward(sum_all(z), NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("gradient of neg: select: ");
    CHECK_OK(shoal_tensor_set_name(x, "weight"));
    CHECK_OK(shoal_on_gradient(x, fail_inside, NULL, &hook));
    CHECK_STATUS(shoal_backward(sum_all(x), NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("gradient of leaf weight: select: ");
    CHECK(!shoal_grad(x));
    shoal_hook_remove(hook);
    CHECK_OK(shoal_backward(sum_all(x), NULL));
}

static shoal_tensor *change_nothing(void *context, shoal_tensor *gradient)
{
    return NULL;
}

SCOPED_TEST(hooks_need_a_gradient_to_hook)
{
    shoal_tensor *plain = make_vector((double[]){1}, 1);
    shoal_tensor *x = make_leaf(1, 1, 1);
    CHECK_STATUS(shoal_on_gradient(plain, change_shape, NULL, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("does not require a gradient: the hook would never run");
    CHECK_STATUS(shoal_on_accumulated(plain, note_leaf, NULL, NULL), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_on_accumulated(shoal_neg(x), note_leaf, NULL, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("is a result, not a leaf");
    CHECK_STATUS(shoal_on_gradient(NULL, change_shape, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_on_gradient(x, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_on_accumulated(x, NULL, NULL, NULL), SHOAL_ERR_INVALID);
}

/* No backward pass comes to a record that was used up. */
SCOPED_TEST(hooks_on_a_used_record_are_refused)
{
    shoal_tensor *x = make_leaf(1, 1, 1);
    shoal_tensor *y = shoal_neg(x);
    shoal_tensor *loss = sum_all(y);
    const shoal_backward_options keep = {.struct_size = sizeof keep, .keeps_graph = true};
    CHECK_OK(shoal_backward_roots(&loss, NULL, 1, &keep));
    CHECK_OK(shoal_on_gradient(y, change_nothing, NULL, NULL));
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_STATUS(shoal_on_gradient(y, change_nothing, NULL, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("a result of neg, was used and freed by a backward pass: the hook would never run");
    CHECK_OK(shoal_on_gradient(x, change_nothing, NULL, NULL));
}

static shoal_status fail_leaf(void *context, shoal_tensor *leaf)
{
    return shoal_fail(SHOAL_ERR_CANCELLED, "%s", (const char *)context);
}

static shoal_status lose_interest(void *context, shoal_tensor *leaf)
{
    *(shoal_status *)context = shoal_set_requires_grad(leaf, false);
    return SHOAL_OK;
}

SCOPED_TEST(leaf_hooks_report)
{
    shoal_status status = SHOAL_OK;
    char reason[] = "enough";
    shoal_hook *hook;
    shoal_tensor *x = make_leaf(1, 1, 1);
    CHECK_OK(shoal_on_accumulated(x, lose_interest, &status, NULL));
    CHECK_OK(shoal_on_accumulated(x, fail_leaf, reason, &hook));
    CHECK_STATUS(shoal_backward(shoal_neg(x), NULL), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("gradient of leaf: enough");
    CHECK_DOUBLE(grad_at(x, 0), -1);
    CHECK_STATUS(status, SHOAL_ERR_STATE);
    shoal_hook_remove(hook);
    CHECK_OK(shoal_set_requires_grad(x, false));
}

/* An optimizer inside the backward pass: it may clear the gradient it was given. */
static shoal_status step_and_clear(void *context, shoal_tensor *leaf)
{
    CHECK(shoal_sub_(leaf, shoal_grad(leaf)));
    CHECK(shoal_mul_scalar_(shoal_grad(leaf), 0));
    return shoal_set_grad(leaf, NULL);
}

SCOPED_TEST(a_leaf_can_be_stepped_inside_the_backward)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = make_leaf(2, 5, 1);
    CHECK_OK(shoal_on_accumulated(x, step_and_clear, NULL, NULL));
    CHECK_OK(shoal_backward(sum_all(shoal_add(x, y)), NULL));
    CHECK_DOUBLE(value_at(x, 0), 2);
    CHECK_DOUBLE(grad_at(y, 0), 1);
    CHECK(!shoal_grad(x));
}

/* The end ---------------------------------------------------------------------------------------------- */

static shoal_status note_and_add_another(void *context)
{
    struct noting *noting = context;
    CHECK_OK(note_end(context));
    if (noting->letter < 'd') {
        noting->letter++;
        return shoal_on_backward_end(note_and_add_another, context);
    }
    return SHOAL_OK;
}

static shoal_tensor *ask_for_the_end(void *context, shoal_tensor *gradient)
{
    CHECK_OK(shoal_on_backward_end(note_and_add_another, context));
    return NULL;
}

SCOPED_TEST(end_hooks_run_after_all_nodes)
{
    struct journal journal = {""};
    struct noting at_end = {&journal, 'b', 0, 0, NULL};
    struct noting settled = {&journal, 'l', 0, 0, NULL};
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_neg(x);
    CHECK_OK(shoal_on_gradient(y, ask_for_the_end, &at_end, NULL));
    CHECK_OK(shoal_on_accumulated(x, note_leaf, &settled, NULL));
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_STRING(journal.text, "lbcd");
    CHECK_STATUS(shoal_on_backward_end(note_end, &at_end), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("no backward pass is running");
    CHECK_STATUS(shoal_on_backward_end(NULL, NULL), SHOAL_ERR_INVALID);
}

static shoal_status fail_end(void *context)
{
    return shoal_fail(SHOAL_ERR_CANCELLED, "end of %s", (const char *)context);
}

static shoal_tensor *ask_for_failure(void *context, shoal_tensor *gradient)
{
    CHECK_OK(shoal_on_backward_end(fail_end, context));
    CHECK_OK(shoal_on_backward_end(fail_end, context));
    return gradient;
}

SCOPED_TEST(end_hooks_report)
{
    char name[] = "it";
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_neg(x);
    CHECK_OK(shoal_on_gradient(y, ask_for_failure, name, NULL));
    CHECK_STATUS(shoal_backward(sum_all(y), NULL), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("a hook for the end of the backward pass: end of it");
    CHECK_DOUBLE(grad_at(x, 0), -1);
}

static shoal_tensor *ask_then_fail(void *context, shoal_tensor *gradient)
{
    CHECK_OK(shoal_on_backward_end(note_end, context));
    return shoal_select(gradient, 0, 99);
}

SCOPED_TEST(end_hooks_do_not_run_after_a_failure)
{
    struct journal journal = {""};
    struct noting at_end = {&journal, 'b', 0, 0, NULL};
    shoal_tensor *y = shoal_neg(make_leaf(2, 3, 1));
    CHECK_OK(shoal_on_gradient(y, ask_then_fail, &at_end, NULL));
    CHECK_STATUS(shoal_backward(sum_all(y), NULL), SHOAL_ERR_INVALID);
    CHECK_STRING(journal.text, "");
}

/* Backward inside backward ----------------------------------------------------------------------------- */

struct nested {
    shoal_tensor *root;
    bool keeps_graph;
    shoal_status status;
    struct noting at_end;
};

static shoal_tensor *run_nested(void *context, shoal_tensor *gradient)
{
    struct nested *nested = context;
    shoal_backward_options options = {.struct_size = sizeof(options), .keeps_graph = nested->keeps_graph};
    shoal_tensor *root = nested->root;
    nested->root = NULL;
    if (root) {
        CHECK_OK(shoal_on_backward_end(note_end, &nested->at_end));
        nested->status = shoal_backward_roots(&root, NULL, 1, &options);
        CHECK_STRING(nested->at_end.journal->text, "");
    }
    return NULL;
}

SCOPED_TEST(another_record_can_be_walked_inside)
{
    struct journal journal = {""};
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_neg(x);
    struct nested nested = {.root = sum_all(shoal_mul(x, x)), .at_end = {&journal, 'e', 0, 0, NULL}};
    CHECK_OK(shoal_on_gradient(y, run_nested, &nested, NULL));
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_OK(nested.status);
    CHECK_DOUBLE(grad_at(x, 0), 6 - 1);
    CHECK_STRING(journal.text, "e");
}

SCOPED_TEST(the_same_record_can_be_walked_inside_if_kept)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        struct journal journal = {""};
        shoal_tensor *x = make_leaf(2, 3, 1);
        shoal_tensor *square = shoal_mul(x, x);
        shoal_tensor *y = shoal_neg(square);
        struct nested nested = {
            .root = sum_all(square), .keeps_graph = keeps != 0, .at_end = {&journal, 'e', 0, 0, NULL}};
        CHECK_OK(shoal_on_gradient(y, run_nested, &nested, NULL));
        CHECK_OK(shoal_backward(sum_all(y), NULL));
        CHECK_STATUS(nested.status, keeps != 0 ? SHOAL_OK : SHOAL_ERR_STATE);
        CHECK_DOUBLE(grad_at(x, 0), keeps != 0 ? 0 : -6);
    }
}
