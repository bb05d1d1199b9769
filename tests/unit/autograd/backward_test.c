/* SPDX-License-Identifier: MIT */
/* The walk: order, sums, roots, kept and used records, deep records, errors on the way. */
#include <string.h>

#include "shoal_compat/torch.h"
#include "unit/autograd/fixture.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})

static const shoal_backward_options keeping = {.struct_size = sizeof(keeping), .keeps_graph = true};

/* Shapes of graphs ------------------------------------------------------------------------------------- */

SCOPED_TEST(a_tensor_used_twice)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    CHECK_OK(shoal_backward(sum_all(shoal_mul(x, x)), NULL));
    CHECK_DOUBLE(grad_at(x, 0), 6);
    CHECK_DOUBLE(grad_at(x, 1), 8);
}

SCOPED_TEST(a_diamond)
{
    shoal_tensor *x = make_leaf(1, 3, 1);
    shoal_tensor *top = shoal_mul_scalar(x, 2);
    shoal_tensor *left = shoal_mul(top, top);
    shoal_tensor *right = shoal_neg(top);
    CHECK_OK(shoal_backward(shoal_add(shoal_mul(left, right), shoal_add(left, left)), NULL));
    CHECK_DOUBLE(grad_at(x, 0), 2 * (-3 * 36 + 2 * 2 * 6)); /* d(-t^3 + 2 t^2), t = 6 */
}

SCOPED_TEST(a_leaf_can_be_a_root)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *seed = make_vector((double[]){1, 2}, 2);
    shoal_tensor *roots[] = {x, shoal_mul_scalar(x, 10), x};
    shoal_tensor *gradients[] = {seed, seed, seed};
    CHECK_OK(shoal_backward_roots(roots, gradients, 3, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 12);
    CHECK_DOUBLE(grad_at(x, 1), 24);
    CHECK(!shoal_tensor_shares_storage(shoal_grad(x), seed));
    CHECK_DOUBLE(value_at(seed, 1), 2);
}

SCOPED_TEST(several_roots_share_a_record)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_mul(x, x);
    shoal_tensor *roots[] = {sum_all(y), shoal_select(y, 0, 1), y};
    shoal_tensor *gradients[] = {NULL, NULL, make_vector((double[]){0, 10}, 2)};
    CHECK_OK(shoal_backward_roots(roots, gradients, 3, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 6);
    CHECK_DOUBLE(grad_at(x, 1), 8 + 8 + 80);
}

SCOPED_TEST(unused_outputs_get_nothing)
{
    size_t n;
    shoal_tensor *x = make_leaf(5, 1, 1);
    shoal_tensor *const *pieces = shoal_split(x, 2, 0, &n);
    REQUIRE(pieces && n == 3);
    CHECK_OK(shoal_backward(sum_all(pieces[1]), NULL));
    for (int64_t i = 0; i < 5; i++) {
        CHECK_DOUBLE(grad_at(x, i), i == 2 || i == 3 ? 1 : 0);
    }
}

/* A leaf on a branch that no gradient reaches: it must still be settled by what does reach it. */
SCOPED_TEST(a_branch_without_gradient_is_passed_over)
{
    shoal_tensor *x = make_leaf(2, 1, 1);
    shoal_tensor *unused = shoal_mul(x, x);
    shoal_tensor *list[] = {shoal_mul_scalar(x, 7), unused};
    CHECK_OK(shoal_identity(list, 2, NULL, NULL, list));
    CHECK_OK(shoal_backward(sum_all(list[0]), NULL));
    CHECK_DOUBLE(grad_at(x, 0), 7);
    /* It was not used up either. */
    CHECK_OK(shoal_backward(sum_all(unused), NULL));
    CHECK_DOUBLE(grad_at(x, 0), 9);
}

/* Gradients -------------------------------------------------------------------------------------------- */

SCOPED_TEST(gradients_accumulate_in_place)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    CHECK_OK(shoal_backward(sum_all(shoal_mul(x, x)), NULL));
    shoal_tensor *gradient = shoal_grad(x);
    const void *address = shoal_data(gradient);
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK(shoal_grad(x) == gradient && shoal_data(gradient) == address);
    CHECK_DOUBLE(grad_at(x, 0), 7);
}

/* The same tensor may flow to several leaves: each must have memory of its own. */
SCOPED_TEST(gradients_do_not_share_memory)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = make_leaf(2, 5, 1);
    shoal_tensor *z = make_leaf(4, 5, 1);
    shoal_tensor *seed = make_vector((double[]){1, 1}, 2);
    shoal_tensor *part = shoal_narrow(z, 0, 1, 2);
    CHECK_OK(shoal_backward(shoal_add(shoal_add(x, y), part), seed));
    CHECK(!shoal_tensor_shares_storage(shoal_grad(x), shoal_grad(y)));
    CHECK(!shoal_tensor_shares_storage(shoal_grad(x), seed) &&
          !shoal_tensor_shares_storage(shoal_grad(y), seed));
    CHECK(shoal_mul_scalar_(shoal_grad(x), 9));
    CHECK_DOUBLE(grad_at(y, 0), 1);
    CHECK_DOUBLE(grad_at(z, 1), 1);
    CHECK_DOUBLE(value_at(seed, 0), 1);
}

static shoal_tensor *note_address(void *context, shoal_tensor *gradient)
{
    *(const void **)context = shoal_data(gradient);
    return NULL;
}

/* What nobody else can reach becomes the gradient as it is. */
SCOPED_TEST(gradients_are_not_copied_without_need)
{
    const void *address = NULL;
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_add_scalar(x, 1);
    CHECK_OK(shoal_on_gradient(y, note_address, &address, NULL));
    CHECK_OK(shoal_backward(sum_all(shoal_mul_scalar(y, 2)), NULL));
    CHECK(address && shoal_data(shoal_grad(x)) == address);
}

static shoal_tensor *give_own_memory(void *context, shoal_tensor *gradient)
{
    return shoal_from_memory(context, shoal_tensor_shape(gradient), 1, SHOAL_F64, NULL, NULL, NULL);
}

SCOPED_TEST(gradients_do_not_keep_a_users_memory)
{
    double values[] = {4, 5};
    shoal_tensor *x = make_leaf(2, 3, 1);
    CHECK_OK(shoal_on_gradient(x, give_own_memory, values, NULL));
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    values[1] = 99;
    CHECK_DOUBLE(grad_at(x, 1), 5);
}

SCOPED_TEST(gradients_are_contiguous)
{
    shoal_tensor *x = require_grad(shoal_transpose(shoal_zeros(INTS(2, 3), 2, SHOAL_F64), 0, 1));
    CHECK_OK(shoal_backward(sum_all(shoal_transpose(x, 0, 1)), NULL));
    CHECK(shoal_tensor_is_contiguous(shoal_grad(x)));
    CHECK_DOUBLE(grad_at(x, 5), 1);
}

SCOPED_TEST(gradients_have_the_dtype_of_their_tensor)
{
    static const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        shoal_tensor *x = require_grad(shoal_full(INTS(2, 2), 2, 3, dtypes[i]));
        shoal_tensor *wide = shoal_to_dtype(x, SHOAL_F32);
        shoal_tensor *packed = shoal_chunk_cat(&x, 1, 0, 3, SHOAL_F32);
        CHECK_OK(shoal_backward(shoal_add(sum_all(shoal_mul(wide, wide)), sum_all(packed)), NULL));
        CHECK_INT(shoal_tensor_dtype(shoal_grad(x)), dtypes[i]);
        CHECK_DOUBLE(value_at(shoal_to_dtype(shoal_grad(x), SHOAL_F64), 3), 7);
    }
}

/* A gradient kept in a wider dtype stays there. */
SCOPED_TEST(a_given_gradient_keeps_its_dtype)
{
    shoal_tensor *x = require_grad(shoal_full(INTS(2), 1, 3, SHOAL_BF16));
    CHECK_OK(shoal_set_grad(x, shoal_full(INTS(2), 1, 256, SHOAL_F32)));
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_INT(shoal_tensor_dtype(shoal_grad(x)), SHOAL_F32);
    CHECK_DOUBLE(value_at(shoal_to_dtype(shoal_grad(x), SHOAL_F64), 0), 257);
}

/* Bits: contributions are added in order of arrival, newest node first, then once to the gradient. */
SCOPED_TEST(the_order_of_additions)
{
    static const float factors[] = {1e8F, -1e8F, 1.0F, 0x1p-30F, 3.0F};
    enum {
        N = sizeof(factors) / sizeof(factors[0])
    };
    shoal_tensor *x = require_grad(shoal_full(INTS(1), 1, 1, SHOAL_F32));
    shoal_tensor *roots[N];
    for (int i = 0; i < N; i++) {
        roots[i] = shoal_mul_scalar(x, (double)factors[i]);
    }
    CHECK_OK(shoal_set_grad(x, shoal_full(INTS(1), 1, 0.5, SHOAL_F32)));
    CHECK_OK(shoal_backward_roots(roots, NULL, N, NULL));
    volatile float sum = factors[N - 1];
    for (int i = N - 2; i >= 0; i--) {
        sum = sum + factors[i];
    }
    volatile float expected = 0.5F + sum;
    float copy = expected;
    CHECK_BYTES(shoal_data(shoal_grad(x)), &copy, sizeof(copy));
}

/* A leaf is settled as soon as nothing newer can add to it, not at the end. */
struct settling {
    shoal_tensor *late;
    bool was_late_empty;
};

static shoal_status note_settled(void *context, shoal_tensor *leaf)
{
    struct settling *settling = context;
    settling->was_late_empty = shoal_grad(settling->late) == NULL;
    return SHOAL_OK;
}

SCOPED_TEST(leaves_are_settled_early)
{
    shoal_tensor *first = make_leaf(2, 1, 1);
    shoal_tensor *second = make_leaf(2, 1, 1);
    struct settling settling = {.late = first};
    CHECK_OK(shoal_on_accumulated(second, note_settled, &settling, NULL));
    shoal_tensor *y = shoal_mul(shoal_mul(first, first), second);
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK(settling.was_late_empty);
    CHECK_DOUBLE(grad_at(first, 1), 8);
}

/* A leaf that no longer wants a gradient is left alone; the others get theirs. */
SCOPED_TEST(a_leaf_can_lose_interest)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = make_leaf(2, 5, 1);
    shoal_tensor *z = sum_all(shoal_mul(x, y));
    CHECK_OK(shoal_set_requires_grad(x, false));
    CHECK_OK(shoal_backward(z, NULL));
    CHECK(!shoal_grad(x));
    CHECK_DOUBLE(grad_at(y, 0), 3);
}

/* Records ---------------------------------------------------------------------------------------------- */

SCOPED_TEST(a_kept_record_can_be_walked_again)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = sum_all(shoal_mul(x, shoal_mul(x, x)));
    CHECK_OK(shoal_backward_roots(&y, NULL, 1, &keeping));
    CHECK_DOUBLE(grad_at(x, 0), 27);
    CHECK_OK(shoal_backward(y, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 54);
    CHECK_STATUS(shoal_backward(y, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("backward: the record of sum was already used and freed");
    CHECK_DOUBLE(grad_at(x, 0), 54);
}

/* Errors that can be known before the walk change nothing, not even on other roots. */
SCOPED_TEST(a_used_record_is_found_before_the_walk)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *shared = shoal_mul(x, x);
    shoal_tensor *other = sum_all(shoal_neg(shared));
    CHECK_OK(shoal_backward(sum_all(shared), NULL));
    CHECK_STATUS(shoal_backward(other, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the record of mul was already used and freed");
    shoal_tensor *fresh = sum_all(x);
    CHECK_STATUS(shoal_backward_roots((shoal_tensor *[]){fresh, other}, NULL, 2, NULL), SHOAL_ERR_STATE);
    CHECK_DOUBLE(grad_at(x, 0), 6);
    CHECK_OK(shoal_backward(fresh, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 7);
}

/* Blocks that a used record of some depth holds while its root lives. Without a scope nothing is spare. */
static size_t count_kept_blocks(shoal_tensor *x, int depth)
{
    size_t n_before = test_live_blocks();
    if (!CHECK_OK(shoal_scope_begin())) {
        return 0;
    }
    shoal_tensor *y = x;
    for (int i = 0; i < depth; i++) {
        y = shoal_mul(y, shoal_mul(x, x));
    }
    shoal_tensor *root = shoal_tensor_ref(sum_all(y));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_backward(root, NULL));
    size_t n_kept = test_live_blocks() - n_before;
    shoal_tensor_unref(root);
    CHECK_INT(test_live_blocks(), n_before);
    return n_kept;
}

/* What was saved is given back on the way, though the root lives on. */
TEST(a_used_record_keeps_no_memory)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_tensor_ref(make_leaf(2, 3, 1));
    CHECK_OK(shoal_backward(sum_all(x), NULL));
    CHECK_OK(shoal_scope_end());
    size_t n_shallow = count_kept_blocks(x, 0);
    CHECK_INT(count_kept_blocks(x, 10), n_shallow);
    shoal_tensor_unref(x);
}

SCOPED_TEST(a_failed_walk_uses_the_record_up)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *factor = make_vector((double[]){5, 6}, 2);
    shoal_tensor *y = make_leaf(2, 3, 1);
    shoal_tensor *product = shoal_mul(x, factor);
    shoal_tensor *root = sum_all(shoal_add(product, y));
    CHECK(shoal_neg_(factor));
    CHECK_STATUS(shoal_backward_roots(&root, NULL, 1, &keeping), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("gradient of mul: other");
    CHECK_STATUS(shoal_backward(root, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("gradient of mul: other");
    CHECK_STATUS(shoal_backward(root, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("already used and freed");
    CHECK_STATUS(shoal_backward(sum_all(product), NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the record of mul was already used and freed");
    CHECK_DOUBLE(grad_at(y, 0), 2);
    CHECK(!shoal_grad(x));
}

/* Deep records ----------------------------------------------------------------------------------------- */

static shoal_tensor *make_chain(shoal_tensor *x, int n_steps)
{
    shoal_tensor *y = shoal_tensor_ref(shoal_add_scalar(x, 0));
    for (int i = 0; i < n_steps && y; i++) {
        if (!CHECK_OK(shoal_scope_begin())) {
            break;
        }
        shoal_tensor *next = shoal_tensor_ref(shoal_mul_scalar(y, i % 2 == 0 ? 2 : 0.5));
        CHECK_OK(shoal_scope_end());
        shoal_tensor_unref(y);
        y = next;
    }
    return y;
}

/* A walk that recurses would overflow the stack. That does not depend on the device, and 100,000 ops of device `apart` take
   half a minute under the thread sanitizer. */
static int deep(void)
{
    return test_device() == SHOAL_CPU ? 100000 : 5000;
}

SCOPED_TEST(a_deep_record_is_destroyed)
{
    shoal_tensor *x = make_leaf(1, 3, 1);
    shoal_tensor_unref(make_chain(x, deep()));
}

SCOPED_TEST(a_deep_record_is_walked)
{
    shoal_tensor *x = make_leaf(1, 3, 1);
    shoal_tensor *y = make_chain(x, deep());
    CHECK_OK(shoal_backward_roots(&y, NULL, 1, &keeping));
    CHECK_OK(shoal_backward(y, NULL));
    CHECK_DOUBLE(grad_at(x, 0), 2);
    shoal_tensor_unref(y);
}

/* Errors ----------------------------------------------------------------------------------------------- */

SCOPED_TEST(roots_are_checked)
{
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_neg(x);
    shoal_tensor *plain = make_vector((double[]){1}, 1);
    CHECK_STATUS(shoal_backward(NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("backward: root 0 is NULL");
    CHECK_STATUS(shoal_backward(plain, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("root 0 does not require a gradient");
    CHECK_STATUS(shoal_backward(y, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("root 0 is f64 [2]: a root of 2 elements needs a gradient");
    CHECK_STATUS(shoal_backward(y, plain), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("the gradient of root 0: f64 [1] on cpu does not fit its tensor, f64 [2] on cpu");
    CHECK_STATUS(shoal_backward(y, shoal_zeros(INTS(2), 1, SHOAL_F32)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("f32 [2]");
    CHECK_STATUS(shoal_backward(y, shoal_empty_on(INTS(2), 1, SHOAL_F64, SHOAL_META)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("on meta");
    CHECK_STATUS(shoal_backward_roots(NULL, NULL, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_backward_roots(&y, NULL, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_backward_roots((shoal_tensor *[]){sum_all(y), NULL}, NULL, 2, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("root 1 is NULL");
    CHECK(!shoal_grad(x));
    CHECK_OK(shoal_backward(y, make_vector((double[]){1, 1}, 2)));
}

SCOPED_TEST(options_are_checked)
{
    struct {
        shoal_backward_options options;
        char tail[8];
    } larger = {.options = {.struct_size = sizeof(larger)}};
    shoal_tensor *x = make_leaf(1, 3, 1);
    CHECK_OK(shoal_backward_roots(&x, NULL, 1, &larger.options));
    larger.tail[3] = 1;
    CHECK_STATUS(shoal_backward_roots(&x, NULL, 1, &larger.options), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_backward_roots(&x, NULL, 1, &(shoal_backward_options){.struct_size = 4}),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("struct_size is 4");
    CHECK_DOUBLE(grad_at(x, 0), 1);
}

/* A chain of failing calls ends in a NULL root: the first failure is what the caller must hear of. */
TEST(an_earlier_error_is_not_hidden)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = make_leaf(2, 3, 1);
    CHECK_STATUS(shoal_backward(sum_all(shoal_select(x, 0, 5)), NULL), SHOAL_ERR_INVALID);
    CHECK(strncmp(shoal_error_text(), "select: ", 8) == 0); /* not "backward: select: " */
    shoal_tensor *roots[] = {sum_all(x), NULL};
    CHECK_STATUS(shoal_backward_roots(roots, NULL, 2, NULL), SHOAL_ERR_INVALID);
    CHECK(strncmp(shoal_error_text(), "select: ", 8) == 0);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
}

TEST(backward_needs_no_scope)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_tensor_ref(make_leaf(2, 3, 1));
    shoal_tensor *y = shoal_tensor_ref(sum_all(shoal_mul(x, x)));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_backward(y, NULL));
    CHECK_DOUBLE(grad_at(x, 1), 8);
    CHECK(!shoal_in_backward());
    shoal_tensor_unref(y);
    shoal_tensor_unref(x);
}

/* Ranks may be threads of one process: only numbers are drawn from a common counter. */
TEST_RANKS(ranks_record_side_by_side, 4)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = make_leaf(3, self->rank, 1);
    for (int step = 0; step < 50; step++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *y = shoal_mul(x, x);
        for (int i = 0; i < 10; i++) {
            y = shoal_add(shoal_mul_scalar(y, 0.5), shoal_mul_scalar(y, 0.5));
        }
        CHECK_OK(shoal_backward(sum_all(y), NULL));
        CHECK_OK(shoal_scope_end());
    }
    CHECK_DOUBLE(grad_at(x, 2), 50 * 2 * (self->rank + 2));
    CHECK_OK(shoal_scope_end());
}
