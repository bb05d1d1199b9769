/* SPDX-License-Identifier: MIT */
/*
 * Rows: CASE(op, label, needs contiguous inputs, body, number of inputs, shapes...)
 * The body computes a tensor from x[0], x[1], ... and returns it.
 */
#ifndef AUTOGRAD_GRADIENT_CASES_H
#define AUTOGRAD_GRADIENT_CASES_H

/* A result, not a leaf, to be changed in place. */
static shoal_tensor *fresh(shoal_tensor *tensor)
{
    return shoal_mul_scalar(tensor, 1.5);
}

/* clang-format off */
#define GRADIENT_CASES \
    CASE(clone, plain, false, return square(shoal_clone(x[0])), 1, S(2, 3)) \
    CASE(contiguous, plain, false, return square(shoal_contiguous(x[0])), 1, S(2, 3)) \
    CASE(contiguous, of_result, false, return square(shoal_contiguous(shoal_transpose(fresh(x[0]), 0, 1))), 1, S(2, 3)) \
    CASE(to_dtype, same, false, return square(shoal_to_dtype(x[0], SHOAL_F64)), 1, S(2, 3)) \
    CASE(to_device, plain, false, return shoal_to_device(square(shoal_to_device(x[0], SHOAL_CPU)), test_device()), 1, S(2, 3)) \
    CASE(copy_, plain, false, return square(shoal_copy_(fresh(x[0]), x[1])), 1 + 1, S(2, 3), S(2, 3)) \
    CASE(copy_, broadcast, false, return square(shoal_copy_(fresh(x[0]), x[1])), 2, S(4, 2, 3), S(2, 1)) \
    CASE(copy_, into_constant, false, return shoal_mul(x[1], shoal_copy_(shoal_zeros(INTS(3), 1, SHOAL_F64), x[0])), 2, S(3), S(3)) \
    CASE(view, plain, true, return square(shoal_view(x[0], INTS(3, -1), 2)), 1, S(2, 6)) \
    CASE(view, empty, true, return square(shoal_view(x[0], INTS(5, 0), 2)), 1, S(0, 3)) \
    CASE(reshape, plain, false, return square(shoal_reshape(x[0], INTS(2, 3, 2), 3)), 1, S(4, 3)) \
    CASE(reshape, copies, false, return square(shoal_reshape(shoal_transpose(x[0], 0, 1), INTS(12), 1)), 1, S(4, 3)) \
    CASE(flatten, plain, false, return square(shoal_flatten(x[0], 1, -1)), 1, S(2, 3, 2)) \
    CASE(flatten, scalar, false, return square(shoal_flatten(x[0], 0, -1)), 1, S0) \
    CASE(narrow, plain, false, return square(shoal_narrow(x[0], 1, 1, 2)), 1, S(2, 4)) \
    CASE(narrow, negative, false, return square(shoal_narrow(x[0], -2, 0, 1)), 1, S(2, 4)) \
    CASE(narrow, empty, false, return square(shoal_narrow(x[0], 0, 1, 0)), 1, S(2, 4)) \
    CASE(slice, steps, false, return square(shoal_slice(x[0], 1, 1, 6, 2)), 1, S(2, 6)) \
    CASE(slice, clamped, false, return square(shoal_slice(x[0], -1, -3, 100, 1)), 1, S(2, 5)) \
    CASE(slice, empty, false, return square(shoal_slice(x[0], 0, 2, 1, 1)), 1, S(2, 5)) \
    CASE(select, plain, false, return square(shoal_select(x[0], 1, 2)), 1, S(2, 4)) \
    CASE(select, negative, false, return square(shoal_select(x[0], -1, -1)), 1, S(2, 4)) \
    CASE(permute, plain, false, return square(shoal_permute(x[0], INTS(2, 0, 1), 3)), 1, S(2, 3, 2)) \
    CASE(permute, negative, false, return square(shoal_permute(x[0], INTS(-1, 0, -2), 3)), 1, S(2, 3, 4)) \
    CASE(transpose, plain, false, return square(shoal_transpose(x[0], 0, -1)), 1, S(2, 3, 2)) \
    CASE(squeeze, plain, false, return square(shoal_squeeze(x[0], 1)), 1, S(2, 1, 3)) \
    CASE(squeeze, negative, false, return square(shoal_squeeze(x[0], -1)), 1, S(2, 3, 1)) \
    CASE(squeeze_all, plain, false, return square(shoal_squeeze_all(x[0])), 1, S(1, 3, 1)) \
    CASE(unsqueeze, plain, false, return square(shoal_unsqueeze(x[0], -1)), 1, S(2, 3)) \
    CASE(expand, plain, false, return square(shoal_expand(x[0], INTS(4, 2, 3), 3)), 1, S(2, 1)) \
    CASE(expand, to_nothing, false, return square(shoal_expand(x[0], INTS(0, 3), 2)), 1, S(1, 3)) \
    CASE(expand, same, false, return square(shoal_expand(x[0], INTS(-1, -1), 2)), 1, S(2, 3)) \
    CASE(as_strided, plain, true, return square(shoal_as_strided(x[0], INTS(2, 2), INTS(3, 1), 2, 1)), 1, S(2, 3)) \
    CASE(as_strided, windows, true, return square(shoal_as_strided(x[0], INTS(5, 3), INTS(1, 1), 2, 0)), 1, S(7)) \
    CASE(as_strided, stretched, true, return square(shoal_as_strided(x[0], INTS(4, 3), INTS(0, 2), 2, 1)), 1, S(6)) \
    CASE(as_strided, both, true, return square(shoal_as_strided(x[0], INTS(2, 3, 1, 2), INTS(0, 1, 7, 1), 4, 0)), 1, S(4)) \
    CASE(as_strided, of_part, true, return square(shoal_as_strided(shoal_narrow(x[0], 0, 2, 4), INTS(3), INTS(1), 1, 3)), 1, S(6)) \
    CASE(as_strided, empty, true, return square(shoal_as_strided(x[0], INTS(0, 3), INTS(1, 1), 2, 0)), 1, S(4)) \
    CASE(split, plain, false, MIX(true, shoal_split(x[0], 2, 1, &n)), 1, S(2, 5)) \
    CASE(split, partly, false, MIX(false, shoal_split(x[0], 2, -1, &n)), 1, S(2, 7)) \
    CASE(split_with_sizes, plain, false, MIX(true, shoal_split_with_sizes(x[0], INTS(1, 0, 3), 3, 0, &n)), 1, S(4, 2)) \
    CASE(split_with_sizes, partly, false, MIX(false, shoal_split_with_sizes(x[0], INTS(1, 2, 1), 3, -2, &n)), 1, S(4, 2)) \
    CASE(chunk, plain, false, MIX(true, shoal_chunk(x[0], 3, 0, &n)), 1, S(7, 2)) \
    CASE(chunk, partly, false, MIX(false, shoal_chunk(x[0], 3, -1, &n)), 1, S(2, 7)) \
    CASE(chunk_with_empty, plain, false, MIX(true, shoal_chunk_with_empty(x[0], 4, 0, &n)), 1, S(5)) \
    CASE(chunk_with_empty, partly, false, MIX(false, shoal_chunk_with_empty(x[0], 4, 0, &n)), 1, S(5, 2)) \
    CASE(cat, plain, false, return square(shoal_cat(LIST(x[0], x[1], x[2]), 3, 1)), 3, S(2, 1), S(2, 3), S(2, 0)) \
    CASE(cat, twice, false, return square(shoal_cat(LIST(x[0], x[1], x[0]), 3, -2)), 2, S(2, 2), S(1, 2)) \
    CASE(stack, plain, false, return square(shoal_stack(LIST(x[0], x[1]), 2, 0)), 2, S(2, 3), S(2, 3)) \
    CASE(stack, negative, false, return square(shoal_stack(LIST(x[0], x[1], x[0]), 3, -1)), 2, S(3), S(3)) \
    CASE(getitem, plain, false, return shoal_add(square(shoal_getitem(LIST(x[0], x[1]), 2, 1)), x[0]), 2, S(3), S(3)) \
    CASE(getitem, negative, false, return shoal_add(square(shoal_getitem(LIST(fresh(x[0]), x[1]), 2, -2)), x[1]), 2, S(3), S(3)) \
    CASE(control_deps, plain, false, return square(shoal_control_deps(x[0], LIST(x[1]), 1)), 2, S(3), S(2)) \
    CASE(add, plain, false, return shoal_add(x[0], x[1]), 2, S(2, 3), S(2, 3)) \
    CASE(add, broadcast, false, return shoal_add(x[0], x[1]), 2, S(2, 1, 3), S(4, 1)) \
    CASE(add, scalar, false, return square(shoal_add(x[0], x[1])), 2, S0, S(3)) \
    CASE(add, itself, false, return square(shoal_add(x[0], x[0])), 1, S(3)) \
    CASE(sub, plain, false, return shoal_sub(x[0], x[1]), 2, S(2, 3), S(2, 3)) \
    CASE(sub, broadcast, false, return square(shoal_sub(x[0], x[1])), 2, S(3), S(2, 3)) \
    CASE(mul, plain, false, return shoal_mul(x[0], x[1]), 2, S(2, 3), S(2, 3)) \
    CASE(mul, broadcast, false, return shoal_mul(x[0], x[1]), 2, S(2, 1, 3), S(4, 1)) \
    CASE(mul, empty, false, return shoal_mul(x[0], x[1]), 2, S(0, 3), S(1, 3)) \
    CASE(div, plain, false, return shoal_div(x[0], x[1]), 2, S(2, 3), S(2, 3)) \
    CASE(div, broadcast, false, return shoal_div(x[0], x[1]), 2, S(3), S(2, 1)) \
    CASE(neg, plain, false, return square(shoal_neg(x[0])), 1, S(2, 3)) \
    CASE(add_scalar, plain, false, return square(shoal_add_scalar(x[0], 1.25)), 1, S(2, 3)) \
    CASE(sub_scalar, plain, false, return square(shoal_sub_scalar(x[0], 1.25)), 1, S(2, 3)) \
    CASE(mul_scalar, plain, false, return square(shoal_mul_scalar(x[0], -1.25)), 1, S(2, 3)) \
    CASE(div_scalar, plain, false, return square(shoal_div_scalar(x[0], -0.75)), 1, S(2, 3)) \
    CASE(add_, plain, false, return square(shoal_add_(fresh(x[0]), x[1])), 2, S(2, 3), S(2, 3)) \
    CASE(add_, broadcast, false, return square(shoal_add_(fresh(x[0]), x[1])), 2, S(2, 3), S(1)) \
    CASE(add_, to_constant, false, return square(shoal_add_(shoal_full(INTS(2, 3), 2, 0.5, SHOAL_F64), x[0])), 1, S(2, 3)) \
    CASE(sub_, plain, false, return square(shoal_sub_(fresh(x[0]), x[1])), 2, S(2, 3), S(3)) \
    CASE(mul_, plain, false, return square(shoal_mul_(fresh(x[0]), x[1])), 2, S(2, 3), S(2, 3)) \
    CASE(mul_, broadcast, false, return square(shoal_mul_(fresh(x[0]), x[1])), 2, S(2, 3), S(2, 1)) \
    CASE(mul_, itself, false, shoal_tensor *t = fresh(x[0]); return square(shoal_mul_(t, t)), 1, S(2, 3)) \
    CASE(div_, plain, false, return square(shoal_div_(fresh(x[0]), x[1])), 2, S(2, 3), S(2, 3)) \
    CASE(div_, broadcast, false, return square(shoal_div_(fresh(x[0]), x[1])), 2, S(2, 3), S(3)) \
    CASE(neg_, plain, false, return square(shoal_neg_(fresh(x[0]))), 1, S(2, 3)) \
    CASE(add_scalar_, plain, false, return square(shoal_add_scalar_(fresh(x[0]), 2)), 1, S(2, 3)) \
    CASE(sub_scalar_, plain, false, return square(shoal_sub_scalar_(fresh(x[0]), 2)), 1, S(2, 3)) \
    CASE(mul_scalar_, plain, false, return square(shoal_mul_scalar_(fresh(x[0]), 1.75)), 1, S(2, 3)) \
    CASE(div_scalar_, plain, false, return square(shoal_div_scalar_(fresh(x[0]), 1.75)), 1, S(2, 3)) \
    CASE(sum, all, false, return square(shoal_sum(x[0], NULL, 0, false)), 1, S(2, 3)) \
    CASE(sum, dims, false, return square(shoal_sum(x[0], INTS(-1, 0), 2, false)), 1, S(2, 3, 2)) \
    CASE(sum, keeping, false, return square(shoal_sum(x[0], INTS(1), 1, true)), 1, S(2, 3, 2)) \
    CASE(sum, scalar, false, return square(shoal_sum(x[0], NULL, 0, true)), 1, S0) \
    CASE(sum, empty, false, return square(shoal_sum(x[0], INTS(1), 1, false)), 1, S(2, 0)) \
    CASE(mean, all, false, return square(shoal_mean(x[0], NULL, 0, true)), 1, S(2, 3)) \
    CASE(mean, dims, false, return square(shoal_mean(x[0], INTS(0, -1), 2, false)), 1, S(2, 3, 2)) \
    CASE(mean, of_nothing, false, return square(shoal_mean(x[0], INTS(1), 1, false)), 1, S(2, 0)) \
    CASE(mean, nothing_left, false, return square(shoal_mean(x[0], INTS(1), 1, false)), 1, S(0, 3)) \
    CASE(foreach_copy_, plain, false, MIX(false, (n = 3, shoal_foreach_copy_(LIST(fresh(x[0]), fresh(x[0]), fresh(x[1])), LIST(x[2], x[2], x[3]), 3))), 4, S(2, 3), S(2), S(3), S0) \
    CASE(foreach_div, plain, false, MIX(false, (n = 3, shoal_foreach_div(LIST(x[0], x[1], x[0]), 3, -1.5))), 2, S(2, 3), S(2)) \
    CASE(foreach_add_, plain, false, MIX(false, (n = 3, shoal_foreach_add_(LIST(fresh(x[0]), fresh(x[1]), fresh(x[1])), LIST(x[2], x[3], x[3]), 3))), 4, S(2, 3), S(2), S(3), S0) \
    CASE(chunk_cat, plain, false, return square(shoal_chunk_cat(LIST(x[0], x[1]), 2, 0, 3, SHOAL_F64)), 2, S(4, 2), S(5)) \
    CASE(chunk_cat, few_rows, false, return square(shoal_chunk_cat(LIST(x[0], x[1], x[2]), 3, 0, 4, SHOAL_F64)), 3, S(1, 2), S(2, 1, 2), S(8)) \
    CASE(chunk_cat, along_1, false, return square(shoal_chunk_cat(LIST(x[0], x[1]), 2, -2, 3, SHOAL_F64)), 2, S(2, 5, 2), S(2, 3)) \
    CASE(split_with_sizes_copy, plain, false, MIX(true, shoal_split_with_sizes_copy(x[0], INTS(2, 1), 2, 1, &n)), 1, S(2, 3)) \
    CASE(split_with_sizes_copy, partly, false, MIX(false, shoal_split_with_sizes_copy(x[0], INTS(1, 1, 1), 3, 1, &n)), 1, S(2, 3))
/* clang-format on */

#define CASE(op, label, contiguous, body, n, ...)                   \
    static shoal_tensor *run_##op##_##label(shoal_tensor *const *x) \
    {                                                               \
        body;                                                       \
    }
GRADIENT_CASES
#undef CASE

#endif
