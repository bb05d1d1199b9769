/* SPDX-License-Identifier: MIT */
/*
 * Calls that are wrong by meaning, one line each: dtypes that do not fit, shapes that do not, indices outside,
 * targets that cannot be written. Each must say what was wrong with its value. Every row of ops.def that needs
 * no group has a line here or is listed as one that takes any tensor.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/ops/of_ranks.h"
#include "harness/test.h"
#include "op/op.h"
#include "shoal_compat/torch.h"
#include "shoal/op.h"
#include "shoal/ops.h"

#define DIMS(...) ((const int64_t[]){__VA_ARGS__}), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define LIST(...) \
    ((shoal_tensor *const[]){__VA_ARGS__}), (sizeof((shoal_tensor *[]){__VA_ARGS__}) / sizeof(shoal_tensor *))

/* Rows: BAD(op, status, words in the text, call). f: f32 [2, 3]; g: f32 [4]; i: i32 [2, 3]; u: u64 [2, 3]; b: bool [2, 3];
   s: f32 []; d: f32 [1, 1, 1, 1, 1, 1, 1, 1]; x: f32 [2, 3], all six one element; v: f32 [3, 2], transposed. */
#define BAD_CALLS(BAD)                                                                                    \
    BAD(empty, INVALID, "-2", shoal_empty(DIMS(3, -2), SHOAL_F32))                                        \
    BAD(zeros, INVALID, "9 dim", shoal_zeros(DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1), SHOAL_F32))                 \
    BAD(full, INVALID, "-1", shoal_full(DIMS(-1), 0.5, SHOAL_F32))                                        \
    BAD(to_device, INVALID, "device: 9 is not a device", shoal_to_device(f, (shoal_device)9))             \
    BAD(to_dtype, INVALID, "dtype: 44", shoal_to_dtype(f, (shoal_dtype)44))                               \
    BAD(copy_, INVALID, "[4]", shoal_copy_(f, g))                                                         \
    BAD(copy_, INVALID, "[2, 3]", shoal_copy_(s, f))                                                      \
    BAD(copy_, INVALID, "share memory", shoal_copy_(x, f))                                                \
    BAD(view, INVALID, "[7]", shoal_view(f, DIMS(7)))                                                     \
    BAD(view, INVALID, "-1", shoal_view(f, DIMS(-1, -1)))                                                 \
    BAD(view, INVALID, "strides [1, 3]", shoal_view(v, DIMS(6)))                                          \
    BAD(view, INVALID, "-6", shoal_view(f, DIMS(-6)))                                                     \
    BAD(view_dtype, INVALID, "dtype: 0", shoal_view_dtype(f, (shoal_dtype)0))                             \
    BAD(view_dtype, INVALID, "0-d tensor of f32 has no dimension to scale for u8",                        \
        shoal_view_dtype(s, SHOAL_U8))                                                                    \
    BAD(view_dtype, INVALID, "0-d tensor of f32", shoal_view_dtype(s, SHOAL_F64))                         \
    BAD(view_dtype, INVALID, "last dimension's size 3 is not a multiple of the 2",                        \
        shoal_view_dtype(f, SHOAL_F64))                                                                   \
    BAD(view_dtype, INVALID, "elements of f32 in one of c128", shoal_view_dtype(f, SHOAL_C128))           \
    BAD(view_dtype, INVALID, "stride 1, not 3", shoal_view_dtype(v, SHOAL_F64))                           \
    BAD(view_dtype, INVALID, "stride 1, not 3", shoal_view_dtype(v, SHOAL_U8))                            \
    BAD(view_dtype, INVALID, "stride 1, not 0", shoal_view_dtype(x, SHOAL_U8))                            \
    BAD(view_dtype, INVALID, "the offset 1 is", shoal_view_dtype(shoal_narrow(g, 0, 1, 2), SHOAL_F64))    \
    BAD(view_dtype, INVALID, "the stride 3 is", shoal_view_dtype(shoal_narrow(f, 1, 0, 2), SHOAL_I64))    \
    BAD(reshape, INVALID, "[4, 2]", shoal_reshape(f, DIMS(4, 2)))                                         \
    BAD(reshape, INVALID, "[-1, 4]", shoal_reshape(f, DIMS(-1, 4)))                                       \
    BAD(flatten, INVALID, "first_dim: 1", shoal_flatten(f, 1, 0))                                         \
    BAD(flatten, INVALID, "last_dim: 2", shoal_flatten(f, 0, 2))                                          \
    BAD(narrow, INVALID, "length: 3", shoal_narrow(f, 0, 0, 3))                                           \
    BAD(narrow, INVALID, "length: -1", shoal_narrow(f, 0, 1, -1))                                         \
    BAD(narrow, INVALID, "start: 4", shoal_narrow(f, 1, 4, 0))                                            \
    BAD(narrow, INVALID, "no dimensions", shoal_narrow(s, 0, 0, 0))                                       \
    BAD(slice, INVALID, "step: 0", shoal_slice(f, 0, 0, 2, 0))                                            \
    BAD(slice, INVALID, "step: -1", shoal_slice(f, 0, 1, 0, -1))                                          \
    BAD(slice, INVALID, "dim: 2", shoal_slice(f, 2, 0, 1, 1))                                             \
    BAD(select, INVALID, "index: 3", shoal_select(f, 1, 3))                                               \
    BAD(select, INVALID, "index: -4", shoal_select(f, 1, -4))                                             \
    BAD(permute, INVALID, "1 dimensions are given", shoal_permute(f, DIMS(0)))                            \
    BAD(permute, INVALID, "twice", shoal_permute(f, DIMS(1, -1)))                                         \
    BAD(permute, INVALID, "dims: 2", shoal_permute(f, DIMS(0, 2)))                                        \
    BAD(transpose, INVALID, "dim_a: -3", shoal_transpose(f, -3, 0))                                       \
    BAD(transpose, INVALID, "dim_b: 2", shoal_transpose(f, 0, 2))                                         \
    BAD(squeeze, INVALID, "size 3", shoal_squeeze(f, 1))                                                  \
    BAD(unsqueeze, INVALID, "dim: 3", shoal_unsqueeze(f, 3))                                              \
    BAD(unsqueeze, INVALID, "8 dimensions", shoal_unsqueeze(d, 0))                                        \
    BAD(expand, INVALID, "size 4", shoal_expand(f, DIMS(2, 4)))                                           \
    BAD(expand, INVALID, "fewer", shoal_expand(f, DIMS(3)))                                               \
    BAD(expand, INVALID, "-1", shoal_expand(f, DIMS(-1, 2, 3)))                                           \
    BAD(expand, INVALID, "-2", shoal_expand(s, DIMS(-2)))                                                 \
    BAD(as_strided, INVALID, "0..6", shoal_as_strided(f, (int64_t[]){7}, (int64_t[]){1}, 1, 0))           \
    BAD(as_strided, INVALID, "offset -1", shoal_as_strided(f, (int64_t[]){1}, (int64_t[]){1}, 1, -1))     \
    BAD(as_strided, INVALID, "offset 6", shoal_as_strided(f, NULL, NULL, 0, 6))                           \
    BAD(as_strided, INVALID, "9223372036854775807", shoal_as_strided(f, NULL, NULL, 0, INT64_MAX))        \
    BAD(as_strided, INVALID, "-3..0", shoal_as_strided(f, (int64_t[]){4}, (int64_t[]){-1}, 1, 0))         \
    BAD(as_strided_scatter, INVALID, "source: f32 [4]", shoal_as_strided_scatter(f, g, NULL, NULL, 0, 0)) \
    BAD(as_strided_scatter, INVALID, "1..7",                                                              \
        shoal_as_strided_scatter(f, g, (int64_t[]){4}, (int64_t[]){2}, 1, 1))                             \
    BAD(as_strided_scatter, INVALID, "share memory",                                                      \
        shoal_as_strided_scatter(f, g, (int64_t[]){4}, (int64_t[]){0}, 1, 0))                             \
    BAD(as_strided_scatter, INVALID, "source: i32 [2, 3]",                                                \
        shoal_as_strided_scatter(f, i, (int64_t[]){2, 3}, (int64_t[]){3, 1}, 2, 0))                       \
    BAD(split, INVALID, "size: pieces of 0", shoal_split(f, 0, 0, &n))                                    \
    BAD(split, INVALID, "-1", shoal_split(f, -1, 0, &n))                                                  \
    BAD(split_with_sizes, INVALID, "add up to 4", shoal_split_with_sizes(f, DIMS(1, 3), 1, &n))           \
    BAD(split_with_sizes, INVALID, "-1", shoal_split_with_sizes(f, DIMS(3, -1, 1), 1, &n))                \
    BAD(chunk, INVALID, "chunks: 0", shoal_chunk(f, 0, 0, &n))                                            \
    BAD(chunk_with_empty, INVALID, "chunks: -1", shoal_chunk_with_empty(f, -1, 0, &n))                    \
    BAD(chunk_with_empty, INVALID, "pieces", shoal_chunk_with_empty(f, INT64_MAX, 0, &n))                 \
    BAD(cat, INVALID, "empty", shoal_cat(NULL, 0, 0))                                                     \
    BAD(cat, INVALID, "[4]", shoal_cat(LIST(f, g), 0))                                                    \
    BAD(cat, INVALID, "i32", shoal_cat(LIST(f, i), 0))                                                    \
    BAD(cat, INVALID, "[3, 2]", shoal_cat(LIST(f, v), 0))                                                 \
    BAD(cat, INVALID, "no dimensions", shoal_cat(LIST(s, s), 0))                                          \
    BAD(stack, INVALID, "empty", shoal_stack(NULL, 0, 0))                                                 \
    BAD(stack, INVALID, "[4]", shoal_stack(LIST(f, g), 0))                                                \
    BAD(stack, INVALID, "8 dimensions", shoal_stack(LIST(d, d), 0))                                       \
    BAD(getitem, INVALID, "index: 2", shoal_getitem(LIST(f, g), 2))                                       \
    BAD(getitem, INVALID, "index: -3", shoal_getitem(LIST(f, g), -3))                                     \
    BAD(getitem, INVALID, "index: 0", shoal_getitem(NULL, 0, 0))                                          \
    BAD(add, INVALID, "i32", shoal_add(f, i))                                                             \
    BAD(add, INVALID, "[4]", shoal_add(f, g))                                                             \
    BAD(sub, UNSUPPORTED, "bool", shoal_sub(b, b))                                                        \
    BAD(mul, INVALID, "f32", shoal_mul(i, f))                                                             \
    BAD(div, UNSUPPORTED, "bool", shoal_div(b, b))                                                        \
    BAD(neg, UNSUPPORTED, "bool", shoal_neg(b))                                                           \
    BAD(add_, INVALID, "share memory", shoal_add_(x, f))                                                  \
    BAD(add_, INVALID, "[2, 3]", shoal_add_(s, f))                                                        \
    BAD(add_, INVALID, "i32", shoal_add_(f, i))                                                           \
    BAD(sub_, UNSUPPORTED, "bool", shoal_sub_(b, b))                                                      \
    BAD(mul_, INVALID, "share memory", shoal_mul_(x, s))                                                  \
    BAD(div_, UNSUPPORTED, "bool", shoal_div_(b, b))                                                      \
    BAD(neg_, INVALID, "share memory", shoal_neg_(x))                                                     \
    BAD(neg_, UNSUPPORTED, "bool", shoal_neg_(b))                                                         \
    BAD(add_scalar, INVALID, "other: 0.5 is no integer, but self is i32", shoal_add_scalar(i, 0.5))       \
    BAD(mul_scalar, INVALID, "nan is no integer", shoal_mul_scalar(i, (double)NAN))                       \
    BAD(sub_scalar, INVALID, "16777216.5 is", shoal_sub_scalar(i, 16777216.5))                            \
    BAD(div_scalar, INVALID, "inf is no 64-bit integer", shoal_div_scalar(i, (double)INFINITY))           \
    BAD(add_scalar_, INVALID, "9.22337203685478e+18 is no 64-bit", shoal_add_scalar_(i, 0x1p63))          \
    BAD(add_scalar_, INVALID, "self is u64", shoal_add_scalar_(u, 0x1p64))                                \
    BAD(sub_scalar_, INVALID, "-1e+300 is no 64-bit integer", shoal_sub_scalar_(u, -1e300))               \
    BAD(mul_scalar_, INVALID, "-0.5 is no integer", shoal_mul_scalar_(u, -0.5))                           \
    BAD(div_scalar_, INVALID, "1e-300 is no integer", shoal_div_scalar_(i, 1e-300))                       \
    BAD(sub_scalar, UNSUPPORTED, "bool", shoal_sub_scalar(b, 1))                                          \
    BAD(div_scalar, UNSUPPORTED, "bool", shoal_div_scalar(b, 1))                                          \
    BAD(add_scalar_, INVALID, "share memory", shoal_add_scalar_(x, 1))                                    \
    BAD(sub_scalar_, UNSUPPORTED, "bool", shoal_sub_scalar_(b, 1))                                        \
    BAD(mul_scalar_, INVALID, "share memory", shoal_mul_scalar_(x, 1))                                    \
    BAD(div_scalar_, INVALID, "share memory", shoal_div_scalar_(x, 1))                                    \
    BAD(sum, INVALID, "dims: 2", shoal_sum(f, DIMS(0, 2), false))                                         \
    BAD(sum, INVALID, "twice", shoal_sum(f, DIMS(0, -2), false))                                          \
    BAD(sum, INVALID, "dims", shoal_sum(g, (int64_t[]){0}, -1, false))                                    \
    BAD(sum, UNSUPPORTED, "bool", shoal_sum(b, NULL, 0, false))                                           \
    BAD(mean, UNSUPPORTED, "i32", shoal_mean(i, NULL, 0, false))                                          \
    BAD(mean, INVALID, "dims", shoal_mean(g, (int64_t[]){0}, -1, false))                                  \
    BAD(foreach_copy_, INVALID, "pair 1", shoal_foreach_copy_(LIST2(f, f), LIST(f, g)))                   \
    BAD(foreach_copy_, INVALID, "source 1 shares memory with target 0",                                   \
        shoal_foreach_copy_(LIST2(f, b), LIST(i, f)))                                                     \
    BAD(foreach_div, UNSUPPORTED, "bool", shoal_foreach_div(LIST(f, b), 2))                               \
    BAD(foreach_div, INVALID, "tensor 1: divisor: 2.5 is no integer", shoal_foreach_div(LIST(f, i), 2.5)) \
    BAD(foreach_add_, INVALID, "pair 0", shoal_foreach_add_(LIST2(f, f), LIST(i, f)))                     \
    BAD(foreach_add_, INVALID, "source 1 shares memory with target 0",                                    \
        shoal_foreach_add_(LIST2(s, f), LIST(s, s)))                                                      \
    BAD(foreach_add_, INVALID, "source 0 shares memory with target 1",                                    \
        shoal_foreach_add_(LIST2(f, s), LIST(s, s)))                                                      \
    BAD(chunk_cat, INVALID, "n_chunks: 0", shoal_chunk_cat(LIST(f), 0, 0, SHOAL_F32))                     \
    BAD(chunk_cat, INVALID, "i32", shoal_chunk_cat(LIST(f, i), 0, 2, SHOAL_F32))                          \
    BAD(chunk_cat, INVALID, "shape []", shoal_chunk_cat(LIST(s), 0, 2, SHOAL_F32))                        \
    BAD(chunk_cat, INVALID, "empty", shoal_chunk_cat(NULL, 0, 0, 2, SHOAL_F32))                           \
    BAD(chunk_cat, INVALID, "dim: 2", shoal_chunk_cat(LIST(f), 2, 2, SHOAL_F32))                          \
    BAD(chunk_cat, INVALID, "tensor 1 of shape [4] has no rows",                                          \
        shoal_chunk_cat(LIST(f, g), 1, 2, SHOAL_F32))                                                     \
    BAD(chunk_cat, INVALID, "[3, 2] differs from the first, [2, 3], before dimension 1",                  \
        shoal_chunk_cat(LIST(f, v), 1, 2, SHOAL_F32))                                                     \
    BAD(chunk_cat_out, INVALID, "out: shape [4] is not that of the result, [2, 3]",                       \
        shoal_chunk_cat_out(LIST(f), 0, 2, g))                                                            \
    BAD(chunk_cat_out, INVALID, "out: it shares memory with an input",                                    \
        shoal_chunk_cat_out(LIST(f), 0, 2, f))                                                            \
    BAD(chunk_cat_out, INVALID, "share memory", shoal_chunk_cat_out(LIST(f), 0, 2, x))                    \
    BAD(chunk_cat_out, INVALID, "n_chunks: -1", shoal_chunk_cat_out(LIST(f), 0, -1, g))                   \
    BAD(split_with_sizes_copy_out, INVALID, "outs: tensor 0 is i32, self is f32",                         \
        shoal_split_with_sizes_copy_out(f, DIMS(2), 0, LIST1(i)))                                         \
    BAD(split_with_sizes_copy_out, INVALID, "outs: tensor 0: it shares memory with an input",             \
        shoal_split_with_sizes_copy_out(f, DIMS(2), 0, LIST1(f)))                                         \
    BAD(split_with_sizes_copy_out, INVALID, "tensor 0: shape [4] is not that of the result, [2, 3]",      \
        shoal_split_with_sizes_copy_out(f, DIMS(2), 0, LIST1(g)))                                         \
    BAD(split_with_sizes_copy_out, INVALID, "add up to 3",                                                \
        shoal_split_with_sizes_copy_out(f, DIMS(3), 0, LIST1(g)))                                         \
    BAD(split_with_sizes_copy, INVALID, "add up to 2", shoal_split_with_sizes_copy(f, DIMS(1, 1), 1, &n)) \
    BAD(all_gather_copy_in, INVALID, "rank: 2", shoal_all_gather_copy_in(g, LIST(s, s), 2, 2))            \
    BAD(all_gather_copy_in, INVALID, "rank: -1", shoal_all_gather_copy_in(g, LIST(s, s), 2, -1))          \
    BAD(all_gather_copy_in, INVALID, "n_ranks: 0 is not positive",                                        \
        shoal_all_gather_copy_in(g, LIST(s, s), 0, 0))                                                    \
    BAD(all_gather_copy_in, INVALID, "[4]", shoal_all_gather_copy_in(g, LIST(s), 2, 0))                   \
    BAD(all_gather_copy_in, INVALID, "[2, 3]", shoal_all_gather_copy_in(f, LIST(s), 6, 0))                \
    BAD(all_gather_copy_in, INVALID, "shares memory", shoal_all_gather_copy_in(g, LIST(g), 1, 0))         \
    BAD(where_equal, INVALID, "a: i32 [2, 3]", shoal_where_equal(f, i, f))                                \
    BAD(where_equal, INVALID, "b: f32 [4]", shoal_where_equal(f, f, g))                                   \
    BAD(where_equal, INVALID, "a: f32 [], but self is f32 [2, 3]", shoal_where_equal(f, s, f))            \
    BAD(where_equal, INVALID, "b: f32 [3, 2]", shoal_where_equal(f, f, v))

#define LIST1(a) ((shoal_tensor *const[]){a})
#define LIST2(a, b) ((shoal_tensor *const[]){a, b})

/* Rows that take every tensor there is; a NULL one is tried through the table. */
static const char *const takes_anything[] = {"clone", "contiguous", "squeeze_all", "control_deps"};

struct tensors {
    shoal_tensor *f, *g, *i, *u, *b, *s, *d, *x, *v;
};

/* The `number`-th bad call; false past the last. Fills in what it should have given. */
static bool make_bad_call(const struct tensors *t, int number, const char **op, shoal_status *status,
                          const char **words, const void **result)
{
    shoal_tensor *f = t->f;
    shoal_tensor *g = t->g;
    shoal_tensor *i = t->i;
    shoal_tensor *u = t->u;
    shoal_tensor *b = t->b;
    shoal_tensor *s = t->s;
    shoal_tensor *d = t->d;
    shoal_tensor *x = t->x;
    shoal_tensor *v = t->v;
    size_t n = 99;
    int at = 0;
#define BAD(op_, status_, words_, call) \
    if (at++ == number) {               \
        *op = #op_;                     \
        *status = SHOAL_ERR_##status_;  \
        *words = words_;                \
        *result = (const void *)(call); \
        return true;                    \
    }
    BAD_CALLS(BAD)
#undef BAD
    return false;
}

static bool make_tensors(struct tensors *t)
{
    const int64_t ones[SHOAL_MAX_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1};
    *t = (struct tensors){.f = shoal_full((int64_t[]){2, 3}, 2, 1.5, SHOAL_F32),
                          .g = shoal_full((int64_t[]){4}, 1, 2.5, SHOAL_F32),
                          .i = shoal_full((int64_t[]){2, 3}, 2, 3, SHOAL_I32),
                          .u = shoal_full((int64_t[]){2, 3}, 2, 3, SHOAL_U64),
                          .b = shoal_full((int64_t[]){2, 3}, 2, 1, SHOAL_BOOL),
                          .s = shoal_full(NULL, 0, 3.5, SHOAL_F32),
                          .d = shoal_full(ones, SHOAL_MAX_DIMS, 4.5, SHOAL_F32)};
    t->x = shoal_expand(t->s, (int64_t[]){2, 3}, 2);
    t->v = shoal_transpose(t->f, 0, 1);
    return t->x && t->v && t->d;
}

TEST(wrong_meanings_are_refused)
{
    struct tensors t;
    const char *op = "";
    const char *words = "";
    const void *result = NULL;
    shoal_status status = SHOAL_OK;
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE(make_tensors(&t));
    for (int number = 0;; number++) {
        REQUIRE_OK(shoal_scope_begin());
        bool is_call = make_bad_call(&t, number, &op, &status, &words, &result);
        if (is_call && (result || shoal_scope_error() != status || !strstr(shoal_error_text(), words) ||
                        strncmp(shoal_error_text(), op, strlen(op)) != 0)) {
            test_failed(__FILE__, __LINE__, "bad call %d, %s: %s, %s \"%s\"; expected %s with \"%s\"", number,
                        op, result ? "done" : "refused", shoal_status_name(shoal_scope_error()),
                        shoal_error_text(), shoal_status_name(status), words);
        }
        CHECK_STATUS(shoal_scope_end(), is_call ? status : SHOAL_OK);
        if (!is_call) {
            break;
        }
    }
    const float *f = shoal_data(t.f);
    CHECK(f && f[0] == 1.5f && f[5] == 1.5f);
    CHECK_OK(shoal_scope_end());
}

TEST(every_row_has_a_bad_call)
{
    static const char *const covered[] = {
#define BAD(op, status, words, call) #op,
        BAD_CALLS(BAD)
#undef BAD
    };
    for (size_t k = 0; k < OP_COUNT; k++) {
        const char *name = shoal_op_name(shoal_op_at(k));
        bool is_found = false;
        for (size_t i = 0; i < sizeof(covered) / sizeof(covered[0]); i++) {
            is_found = is_found || strcmp(covered[i], name) == 0;
        }
        for (size_t i = 0; i < sizeof(takes_anything) / sizeof(takes_anything[0]); i++) {
            is_found = is_found || strcmp(takes_anything[i], name) == 0;
        }
        if (!is_found && !is_of_ranks((enum op_id)k)) {
            test_failed(__FILE__, __LINE__, "row %s has no bad call", name);
        }
    }
}
