/* SPDX-License-Identifier: MIT */
/* Rows of arithmetic: add sub mul div with a tensor or a number, neg, in place or not, sum, mean, foreach. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/operand.h"
#include "op/rows.h"
#include "tensor/dtype.h"
#include "tensor/storage.h"

static shoal_status check_same_dtype(const shoal_tensor *self, const shoal_tensor *other)
{
    if (self->dtype == other->dtype) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID, "other: dtype %s does not fit self's %s; cast one with to_dtype",
                     shoal_dtype_name(other->dtype), shoal_dtype_name(self->dtype));
}

/* Where truth values have no meaning: sub, div, neg. */
static shoal_status check_number(const shoal_tensor *self)
{
    if (self->dtype != SHOAL_BOOL) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_UNSUPPORTED, "self: not offered for bool; cast to an integer first");
}

/* Two tensors ------------------------------------------------------------------------------------------ */

shoal_status meta_binary(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    const shoal_tensor *other = arguments[1].as.tensor;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    TRY(check_same_dtype(self, other));
    TRY(layout_broadcast(self->layout.n_dims, self->layout.shape, other->layout.n_dims, other->layout.shape,
                         &n_dims, shape));
    return shoal_op_output(call, shape, n_dims, self->dtype);
}

shoal_status meta_binary_number(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_number(arguments[0].as.tensor));
    return meta_binary(call, arguments);
}

static shoal_status run_binary(enum kernel_binary op, shoal_tensor *dst, shoal_tensor *self,
                               shoal_tensor *other)
{
    struct kernel_operand to;
    struct kernel_operand a;
    struct kernel_operand b;
    int64_t a_strides[SHOAL_MAX_DIMS];
    int64_t b_strides[SHOAL_MAX_DIMS];
    const struct layout *layout = &dst->layout;
    TRY(op_operand(dst, &to));
    TRY(op_operand_over(self, layout->n_dims, layout->shape, a_strides, &a));
    TRY(op_operand_over(other, layout->n_dims, layout->shape, b_strides, &b));
    return kernel_binary_nd(op, dst->dtype, to, a, b, layout->n_dims, layout->shape);
}

shoal_status meta_binary_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_same_dtype(arguments[0].as.tensor, arguments[1].as.tensor));
    TRY(op_check_in_place(arguments[0].as.tensor, arguments[1].as.tensor));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

shoal_status meta_binary_number_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_number(arguments[0].as.tensor));
    return meta_binary_(call, arguments);
}

static shoal_status run_binary_in_place(enum kernel_binary op, shoal_tensor *self, shoal_tensor *other)
{
    shoal_tensor *safe;
    shoal_tensor *copy;
    TRY(op_separate(other, self, &safe, &copy));
    shoal_status status = run_binary(op, self, self, safe);
    shoal_tensor_unref(copy);
    return status;
}

/* A tensor and a number -------------------------------------------------------------------------------- */

static shoal_status declare_like(shoal_op_call_context *call, const shoal_tensor *self)
{
    return shoal_op_output(call, self->layout.shape, self->layout.n_dims, self->dtype);
}

static shoal_status declare_itself(shoal_op_call_context *call, shoal_tensor *self)
{
    TRY(op_check_writable(self));
    return shoal_op_output_alias(call, self);
}

static bool is_integer(shoal_dtype dtype)
{
    enum dtype_kind kind = dtype_kind(dtype);
    return kind == DTYPE_KIND_SIGNED || kind == DTYPE_KIND_UNSIGNED;
}

/* The boxed int that a float means to an integer dtype; beyond int64_t, which only unsigned dtypes take, the one
   that wraps to it. False for fractions, what 64 bits do not hold, and NaN. */
static bool find_integer(shoal_dtype dtype, double real, int64_t *integer_out)
{
    double end = dtype_kind(dtype) == DTYPE_KIND_UNSIGNED ? 0x1p64 : 0x1p63;
    if (!(real >= -0x1p63 && real < end)) {
        return false;
    }
    bool is_negative = real < 0;
    uint64_t bits = is_negative ? (uint64_t)(int64_t)real : (uint64_t)real;
    *integer_out = (int64_t)bits;
    return (is_negative ? (double)(int64_t)bits : (double)bits) == real;
}

static shoal_status check_fits(const shoal_tensor *self, const char *name, const shoal_value *number)
{
    int64_t integer;
    if (number->kind == SHOAL_VALUE_INT || !is_integer(self->dtype) ||
        find_integer(self->dtype, number->as.real, &integer)) {
        return SHOAL_OK;
    }
    double size = number->as.real < 0 ? -number->as.real : number->as.real;
    return error_set(SHOAL_ERR_INVALID, "%s: %.15g is no %sinteger, but self is %s; cast with to_dtype first",
                     name, number->as.real, size >= 0x1p63 ? "64-bit " : "", shoal_dtype_name(self->dtype));
}

shoal_status meta_scalar(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_fits(arguments[0].as.tensor, "other", &arguments[1]));
    return declare_like(call, arguments[0].as.tensor);
}

shoal_status meta_scalar_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_fits(arguments[0].as.tensor, "other", &arguments[1]));
    return declare_itself(call, arguments[0].as.tensor);
}

shoal_status meta_scalar_number(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_number(arguments[0].as.tensor));
    return meta_scalar(call, arguments);
}

shoal_status meta_scalar_number_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_number(arguments[0].as.tensor));
    return meta_scalar_(call, arguments);
}

/* The number becomes one element of the dtype (rounded to it), walked with strides of zero. */
static shoal_status run_with_number(enum kernel_binary op, shoal_tensor *dst, shoal_tensor *self,
                                    const shoal_value *number)
{
    static const int64_t no_strides[SHOAL_MAX_DIMS];
    _Alignas(16) char element[16];
    struct kernel_operand to;
    struct kernel_operand a;
    TRY(op_operand(dst, &to));
    TRY(op_operand(self, &a));
    struct kernel_scalar value = op_scalar(number);
    if (!value.is_integer && is_integer(self->dtype)) {
        value.is_integer = find_integer(self->dtype, value.real, &value.integer);
    }
    kernel_scalar_store(self->dtype, element, value);
    return kernel_binary_nd(op, dst->dtype, to, a,
                            (struct kernel_operand){.data = element, .strides = no_strides},
                            dst->layout.n_dims, dst->layout.shape);
}

/* The rows of one operator: with a tensor, with a number, and both in place. */
#define BINARY_ROWS(name, op)                                                                      \
    shoal_status run_##name(shoal_op_call_context *call, const shoal_value *arguments,             \
                            shoal_tensor *const *outputs, size_t n_outputs)                        \
    {                                                                                              \
        return run_binary(op, outputs[0], arguments[0].as.tensor, arguments[1].as.tensor);         \
    }                                                                                              \
    shoal_status run_##name##_(shoal_op_call_context *call, const shoal_value *arguments,          \
                               shoal_tensor *const *outputs, size_t n_outputs)                     \
    {                                                                                              \
        return run_binary_in_place(op, arguments[0].as.tensor, arguments[1].as.tensor);            \
    }                                                                                              \
    shoal_status run_##name##_scalar(shoal_op_call_context *call, const shoal_value *arguments,    \
                                     shoal_tensor *const *outputs, size_t n_outputs)               \
    {                                                                                              \
        return run_with_number(op, outputs[0], arguments[0].as.tensor, &arguments[1]);             \
    }                                                                                              \
    shoal_status run_##name##_scalar_(shoal_op_call_context *call, const shoal_value *arguments,   \
                                      shoal_tensor *const *outputs, size_t n_outputs)              \
    {                                                                                              \
        return run_with_number(op, arguments[0].as.tensor, arguments[0].as.tensor, &arguments[1]); \
    }

BINARY_ROWS(add, KERNEL_ADD)
BINARY_ROWS(sub, KERNEL_SUB)
BINARY_ROWS(mul, KERNEL_MUL)
BINARY_ROWS(div, KERNEL_DIV)

shoal_status meta_neg(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_number(arguments[0].as.tensor));
    return declare_like(call, arguments[0].as.tensor);
}

shoal_status meta_neg_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(check_number(arguments[0].as.tensor));
    return declare_itself(call, arguments[0].as.tensor);
}

static shoal_status negate(shoal_tensor *dst, shoal_tensor *self)
{
    struct kernel_operand to;
    struct kernel_operand from;
    TRY(op_operand(dst, &to));
    TRY(op_operand(self, &from));
    return kernel_negate_nd(self->dtype, to, from, self->layout.n_dims, self->layout.shape);
}

shoal_status run_neg(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                     size_t n_outputs)
{
    return negate(outputs[0], arguments[0].as.tensor);
}

shoal_status run_neg_(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                      size_t n_outputs)
{
    return negate(arguments[0].as.tensor, arguments[0].as.tensor);
}

/* Sum and mean ----------------------------------------------------------------------------------------- */

static shoal_status find_reduced(const shoal_tensor *self, const shoal_value *dims,
                                 bool is_reduced[SHOAL_MAX_DIMS])
{
    if (dims->count > SHOAL_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID, "dims: %td dimensions are not within 0..%d",
                         (ptrdiff_t)dims->count, SHOAL_MAX_DIMS);
    }
    for (int i = 0; i < SHOAL_MAX_DIMS; i++) {
        is_reduced[i] = dims->count == 0;
    }
    for (size_t i = 0; i < dims->count; i++) {
        int dim;
        TRY(layout_normalise_dim("dims", dims->as.integers[i], self->layout.n_dims, &dim));
        if (is_reduced[dim]) {
            return error_set(SHOAL_ERR_INVALID, "dims: dimension %d is given twice", dim);
        }
        is_reduced[dim] = true;
    }
    return SHOAL_OK;
}

static shoal_status declare_sum(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    bool keeps_dims = arguments[2].as.boolean;
    bool is_reduced[SHOAL_MAX_DIMS];
    int64_t shape[SHOAL_MAX_DIMS];
    int n_dims = 0;
    TRY(find_reduced(self, &arguments[1], is_reduced));
    for (int i = 0; i < self->layout.n_dims; i++) {
        if (!is_reduced[i]) {
            shape[n_dims++] = self->layout.shape[i];
        } else if (keeps_dims) {
            shape[n_dims++] = 1;
        }
    }
    return shoal_op_output(call, shape, n_dims, self->dtype);
}

shoal_status meta_sum(shoal_op_call_context *call, const shoal_value *arguments)
{
    if (arguments[0].as.tensor->dtype == SHOAL_BOOL) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "self: bool has no sum; cast to an integer first");
    }
    return declare_sum(call, arguments);
}

shoal_status meta_mean(shoal_op_call_context *call, const shoal_value *arguments)
{
    enum dtype_kind kind = dtype_kind(arguments[0].as.tensor->dtype);
    if (kind != DTYPE_KIND_FLOAT && kind != DTYPE_KIND_COMPLEX) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "self: %s has no mean; cast to a floating dtype first",
                         shoal_dtype_name(arguments[0].as.tensor->dtype));
    }
    return declare_sum(call, arguments);
}

/* Strides of the result as if every reduced dimension were still there. */
static void spread_strides(const shoal_tensor *self, const shoal_tensor *out, const bool *is_reduced,
                           int64_t *strides)
{
    bool keeps_dims = out->layout.n_dims == self->layout.n_dims;
    int at = 0;
    for (int i = 0; i < self->layout.n_dims; i++) {
        strides[i] = is_reduced[i] ? 0 : out->layout.strides[keeps_dims ? i : at];
        at += is_reduced[i] ? 0 : 1;
    }
}

/* As in NumPy, the mean of nothing is not a number, in both parts of a complex one. `out` is contiguous. */
static void fill_nan(const shoal_tensor *out, struct kernel_operand to)
{
    bool is_complex = dtype_kind(out->dtype) == DTYPE_KIND_COMPLEX;
    shoal_dtype part = out->dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
    int64_t count = is_complex ? 2 * out->count : out->count;
    to.strides = (int64_t[]){1};
    kernel_fill_nd(is_complex ? part : out->dtype, to, 1, &count,
                   (struct kernel_scalar){.real = (double)NAN});
}

static shoal_status run_reduction(const shoal_value *arguments, shoal_tensor *out, bool is_mean)
{
    shoal_tensor *self = arguments[0].as.tensor;
    bool is_reduced[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS];
    struct kernel_operand to;
    struct kernel_operand from;
    TRY(find_reduced(self, &arguments[1], is_reduced));
    TRY(op_operand(out, &to));
    TRY(op_operand(self, &from));
    if (is_mean && self->count == 0) {
        fill_nan(out, to);
        return SHOAL_OK;
    }
    spread_strides(self, out, is_reduced, strides);
    to.strides = strides;
    int64_t divisor = is_mean ? self->count / out->count : 0;
    return kernel_sum_nd(self->dtype, to, from, self->layout.n_dims, self->layout.shape, is_reduced, divisor);
}

shoal_status run_sum(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                     size_t n_outputs)
{
    return run_reduction(arguments, outputs[0], /*is_mean=*/false);
}

shoal_status run_mean(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                      size_t n_outputs)
{
    return run_reduction(arguments, outputs[0], /*is_mean=*/true);
}

/* Lists ------------------------------------------------------------------------------------------------ */

static shoal_status check_lengths(const shoal_value *self, const shoal_value *other)
{
    if (self->count == other->count) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID, "lists of %zu and %zu tensors in one call", self->count,
                     other->count);
}

enum {
    SEEN_BITS = 12 /* few storages of some hundred fall together */
};

/* Where the targets of a list lie, roughly: enough to pass most sources without looking at any target again. */
struct targets {
    uint64_t seen[(1 << SEEN_BITS) / 64]; /* a bit per storage, by its hash */
    uintptr_t first;                      /* around all memory that somebody lent us, */
    uintptr_t end;                        /* which alone can lie in two storages */
};

static bool is_borrowed(const struct storage *storage)
{
    return storage->memory && storage->memory->given;
}

static uint64_t hash_storage(const struct storage *storage)
{
    return (uint64_t)(uintptr_t)storage * UINT64_C(0x9e3779b97f4a7c15) >> (64 - SEEN_BITS);
}

static void targets_collect(struct targets *targets, const shoal_value *list)
{
    *targets = (struct targets){.first = UINTPTR_MAX};
    for (size_t i = 0; i < list->count; i++) {
        const struct storage *storage = list->as.tensors[i]->storage;
        uint64_t hash = hash_storage(storage);
        targets->seen[hash / 64] |= UINT64_C(1) << hash % 64;
        if (is_borrowed(storage)) {
            uintptr_t base = (uintptr_t)storage->memory->base;
            targets->first = base < targets->first ? base : targets->first;
            targets->end = base + storage->bytes > targets->end ? base + storage->bytes : targets->end;
        }
    }
}

static bool targets_may_meet(const struct targets *targets, const struct storage *storage)
{
    uint64_t hash = hash_storage(storage);
    if (targets->seen[hash / 64] >> hash % 64 & 1) {
        return true;
    }
    uintptr_t base = is_borrowed(storage) ? (uintptr_t)storage->memory->base : UINTPTR_MAX;
    return base < targets->end && base + storage->bytes > targets->first;
}

static shoal_status check_apart_from_others(size_t source_index, const shoal_tensor *source,
                                            const shoal_value *targets)
{
    for (size_t i = 0; i < targets->count; i++) {
        const shoal_tensor *target = targets->as.tensors[i];
        bool may_meet = target->storage == source->storage ||
                        (is_borrowed(target->storage) && is_borrowed(source->storage));
        if (may_meet && i != source_index && tensor_may_overlap(source, target)) {
            return error_set(SHOAL_ERR_INVALID, "source %zu shares memory with target %zu", source_index, i);
        }
    }
    return SHOAL_OK;
}

/* A call means its sources as they were before it, but the pairs are done one after the other. */
static shoal_status check_pairs_apart(const shoal_value *self, const shoal_value *sources)
{
    struct targets targets;
    targets_collect(&targets, self);
    for (size_t i = 0; i < sources->count; i++) {
        const shoal_tensor *source = sources->as.tensors[i];
        if (targets_may_meet(&targets, source->storage)) {
            TRY(check_apart_from_others(i, source, self));
        }
    }
    return SHOAL_OK;
}

static shoal_status declare_targets(shoal_op_call_context *call, const shoal_value *arguments,
                                    bool needs_same_dtype)
{
    TRY(check_lengths(&arguments[0], &arguments[1]));
    for (size_t i = 0; i < arguments[0].count; i++) {
        shoal_status status = SHOAL_OK;
        if (needs_same_dtype) {
            status = check_same_dtype(arguments[0].as.tensors[i], arguments[1].as.tensors[i]);
        }
        if (status == SHOAL_OK) {
            status = op_check_in_place(arguments[0].as.tensors[i], arguments[1].as.tensors[i]);
        }
        if (status != SHOAL_OK) {
            return error_prefix(status, "pair %zu", i);
        }
        TRY(shoal_op_output_alias(call, arguments[0].as.tensors[i]));
    }
    return check_pairs_apart(&arguments[0], &arguments[1]);
}

shoal_status meta_foreach_copy_(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_targets(call, arguments, /*needs_same_dtype=*/false);
}

shoal_status meta_foreach_add_(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_targets(call, arguments, /*needs_same_dtype=*/true);
}

shoal_status meta_foreach_div(shoal_op_call_context *call, const shoal_value *arguments)
{
    for (size_t i = 0; i < arguments[0].count; i++) {
        const shoal_tensor *tensor = arguments[0].as.tensors[i];
        shoal_status status = check_number(tensor);
        if (status == SHOAL_OK) {
            status = check_fits(tensor, "divisor", &arguments[1]);
        }
        if (status != SHOAL_OK) {
            return error_prefix(status, "tensor %zu", i);
        }
        TRY(declare_like(call, tensor));
    }
    return SHOAL_OK;
}

/* Sources that can be read while their targets are written. Made before anything is, because this may fail.
   Targets of other pairs need no care: check_pairs_apart has refused what meets them. */
struct sources {
    shoal_tensor **safe;   /* as in op_separate */
    shoal_tensor **copies; /* likewise */
    size_t count;
};

static void sources_free(struct sources *sources)
{
    for (size_t i = 0; i < sources->count; i++) {
        shoal_tensor_unref(sources->copies[i]);
    }
    mem_free(sources->safe);
    mem_free(sources->copies);
}

static shoal_status sources_separate(struct sources *sources, const shoal_value *from,
                                     shoal_tensor *const *targets)
{
    *sources = (struct sources){.safe = mem_alloc_zeroed(from->count, sizeof(sources->safe[0])),
                                .copies = mem_alloc_zeroed(from->count, sizeof(sources->copies[0]))};
    shoal_status status = sources->safe && sources->copies ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    for (size_t i = 0; i < from->count && status == SHOAL_OK; i++) {
        status = op_separate(from->as.tensors[i], targets[i], &sources->safe[i], &sources->copies[i]);
        sources->count += status == SHOAL_OK ? 1 : 0;
    }
    if (status != SHOAL_OK) {
        sources_free(sources);
    }
    return status;
}

typedef shoal_status pair_function(shoal_tensor *target, shoal_tensor *source);

static shoal_status run_pairs(shoal_tensor *const *targets, const shoal_value *from, pair_function *function)
{
    struct sources sources;
    shoal_status status = sources_separate(&sources, from, targets);
    if (status != SHOAL_OK) {
        return status;
    }
    for (size_t i = 0; i < from->count && status == SHOAL_OK; i++) {
        status = function(targets[i], sources.safe[i]);
    }
    sources_free(&sources);
    return status;
}

shoal_status run_foreach_copy_(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_pairs(outputs, &arguments[1], op_copy_into);
}

static shoal_status add_into(shoal_tensor *target, shoal_tensor *source)
{
    return run_binary(KERNEL_ADD, target, target, source);
}

shoal_status run_foreach_add_(shoal_op_call_context *call, const shoal_value *arguments,
                              shoal_tensor *const *outputs, size_t n_outputs)
{
    return run_pairs(outputs, &arguments[1], add_into);
}

shoal_status run_foreach_div(shoal_op_call_context *call, const shoal_value *arguments,
                             shoal_tensor *const *outputs, size_t n_outputs)
{
    for (size_t i = 0; i < n_outputs; i++) {
        TRY(run_with_number(KERNEL_DIV, outputs[i], arguments[0].as.tensors[i], &arguments[1]));
    }
    return SHOAL_OK;
}
