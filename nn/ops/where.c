/* SPDX-License-Identifier: MIT */
/* Elements of one tensor or of another, as a mask says. Elements are bytes here: nothing is computed. */
#include <string.h>

#include "ops/functions.h"
#include "math/pool.h"
#include "ops/rows.h"
#include "shoal/ops.h"
#include "common/try.h"
#include "ops/values.h"

/* An operand seen in the shape of the result: strides are 0 where it is broadcast. */
struct operand {
    struct nn_rows rows;
    size_t bytes; /* of an element */
};

struct choice {
    struct operand mask;
    struct operand yes; /* where the mask is true */
    struct operand no;
    struct operand result;
    size_t n_parts;
};

static shoal_status check_mask(const shoal_tensor *mask, const char *name)
{
    if (shoal_tensor_dtype(mask) != SHOAL_BOOL) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "%s: %s is not bool", name,
                          shoal_dtype_name(shoal_tensor_dtype(mask)));
    }
    return SHOAL_OK;
}

/* The shape so far, n_dims of them, widened by that of a tensor; false when they do not broadcast. */
static bool broadcast(const shoal_tensor *tensor, int64_t shape[SHOAL_MAX_DIMS], int *n_dims)
{
    int n = shoal_tensor_n_dims(tensor);
    int wide = n > *n_dims ? n : *n_dims;
    int64_t sizes[SHOAL_MAX_DIMS];
    for (int i = 0; i < wide; i++) {
        int64_t mine = i < wide - n ? 1 : shoal_tensor_shape(tensor)[i - (wide - n)];
        int64_t present = i < wide - *n_dims ? 1 : shape[i - (wide - *n_dims)];
        if (mine != present && mine != 1 && present != 1) {
            return false;
        }
        sizes[i] = present == 1 ? mine : present;
    }
    memcpy(shape, sizes, sizeof(sizes[0]) * (size_t)wide);
    *n_dims = wide;
    return true;
}

static struct operand operand_of(const shoal_tensor *tensor, const void *data, const shoal_tensor *result)
{
    int n = shoal_tensor_n_dims(tensor);
    int wide = shoal_tensor_n_dims(result);
    struct operand operand = {
        .rows = {.data = (char *)(uintptr_t)data, .dtype = shoal_tensor_dtype(result), .size = 1, .count = 1},
        .bytes = shoal_dtype_bytes(shoal_tensor_dtype(tensor))};
    for (int i = 0; i < wide; i++) {
        int64_t size = shoal_tensor_shape(result)[i];
        int own = i - (wide - n);
        int64_t stride =
            own < 0 || shoal_tensor_shape(tensor)[own] == 1 ? 0 : shoal_tensor_strides(tensor)[own];
        if (i == wide - 1) {
            operand.rows.size = size;
            operand.rows.stride = stride;
        } else {
            operand.rows.outer.shape[i] = size;
            operand.rows.outer.strides[i] = stride;
            operand.rows.outer.n_dims = i + 1;
            operand.rows.count *= size;
        }
    }
    return operand;
}

/* The same element everywhere. */
static struct operand constant(const void *element, const shoal_tensor *result)
{
    struct operand operand = operand_of(result, element, result);
    operand.rows.stride = 0;
    for (int i = 0; i < operand.rows.outer.n_dims; i++) {
        operand.rows.outer.strides[i] = 0;
    }
    return operand;
}

static const char *address(const struct operand *operand, const struct nn_row *row)
{
    return operand->rows.data + row->offset * (int64_t)operand->bytes;
}

/* One row; strides in elements. Those that are common are constants in copies of the loop, which become vectors. */
#define CHOOSE(type)                                                                                       \
    static inline void choose_strided_##type(int64_t n, const char *mask, int64_t mask_stride,             \
                                             const type *yes, int64_t yes_stride, const type *no,          \
                                             int64_t no_stride, type *to)                                  \
    {                                                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                                  \
            type a = yes[i * yes_stride];                                                                  \
            type b = no[i * no_stride];                                                                    \
            to[i] = mask[i * mask_stride] ? a : b;                                                         \
        }                                                                                                  \
    }                                                                                                      \
    static void choose_##type(int64_t n, const char *mask, int64_t mask_stride, const char *yes_bytes,     \
                              int64_t yes_stride, const char *no_bytes, int64_t no_stride, char *to_bytes) \
    {                                                                                                      \
        const type *yes = (const type *)(const void *)yes_bytes;                                           \
        const type *no = (const type *)(const void *)no_bytes;                                             \
        type *to = (type *)(void *)to_bytes;                                                               \
        if (mask_stride == 1 && yes_stride == 1 && no_stride == 1) {                                       \
            choose_strided_##type(n, mask, 1, yes, 1, no, 1, to);                                          \
        } else if (mask_stride == 1 && yes_stride == 0 && no_stride == 1) {                                \
            choose_strided_##type(n, mask, 1, yes, 0, no, 1, to);                                          \
        } else if (mask_stride == 1 && yes_stride == 1 && no_stride == 0) {                                \
            choose_strided_##type(n, mask, 1, yes, 1, no, 0, to);                                          \
        } else {                                                                                           \
            choose_strided_##type(n, mask, mask_stride, yes, yes_stride, no, no_stride, to);               \
        }                                                                                                  \
    }
CHOOSE(uint8_t)
CHOOSE(uint16_t)
CHOOSE(uint32_t)
CHOOSE(uint64_t)

typedef void (*choose_function)(int64_t n, const char *mask, int64_t mask_stride, const char *yes,
                                int64_t yes_stride, const char *no, int64_t no_stride, char *to);

static choose_function function_of(size_t bytes)
{
    return bytes == 1   ? choose_uint8_t
           : bytes == 2 ? choose_uint16_t
           : bytes == 4 ? choose_uint32_t
                        : choose_uint64_t;
}

static void choose_part(void *context, size_t part)
{
    const struct choice *choice = context;
    size_t count = (size_t)choice->result.rows.count;
    size_t first = nn_part_first(count, choice->n_parts, part);
    size_t end = nn_part_first(count, choice->n_parts, part + 1);
    struct nn_row mask = nn_row_at(&choice->mask.rows, (int64_t)first);
    struct nn_row yes = nn_row_at(&choice->yes.rows, (int64_t)first);
    struct nn_row no = nn_row_at(&choice->no.rows, (int64_t)first);
    struct nn_row to = nn_row_at(&choice->result.rows, (int64_t)first);
    choose_function choose = function_of(choice->result.bytes);
    for (size_t i = first; i < end; i++) {
        choose(choice->result.rows.size, address(&choice->mask, &mask), choice->mask.rows.stride,
               address(&choice->yes, &yes), choice->yes.rows.stride, address(&choice->no, &no),
               choice->no.rows.stride, choice->result.rows.data + to.offset * (int64_t)choice->result.bytes);
        nn_row_next(&choice->mask.rows, &mask);
        nn_row_next(&choice->yes.rows, &yes);
        nn_row_next(&choice->no.rows, &no);
        nn_row_next(&choice->result.rows, &to);
    }
}

static shoal_status run_choice(struct choice *choice, shoal_tensor *output)
{
    choice->result = operand_of(output, shoal_mutable_data(output), output);
    if (!choice->mask.rows.data || !choice->yes.rows.data || !choice->no.rows.data ||
        !choice->result.rows.data) {
        return SHOAL_ERR_STATE; /* the text is there already */
    }
    choice->n_parts = nn_row_parts(&choice->result.rows);
    nn_parallel(choice->n_parts, choose_part, choice);
    return SHOAL_OK;
}

/* where ------------------------------------------------------------------------------------------------ */

META(where)
{
    const shoal_tensor *a = arguments[1].as.tensor;
    const shoal_tensor *b = arguments[2].as.tensor;
    int64_t shape[SHOAL_MAX_DIMS];
    int n_dims = 0;
    NN_TRY(check_mask(arguments[0].as.tensor, "condition"));
    NN_TRY(nn_check_dtype(b, "b", shoal_tensor_dtype(a), "a"));
    if (shoal_dtype_bytes(shoal_tensor_dtype(a)) > sizeof(uint64_t)) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "a: elements of %s have more than 8 bytes",
                          shoal_dtype_name(shoal_tensor_dtype(a)));
    }
    for (int i = 0; i < 3; i++) {
        if (!broadcast(arguments[i].as.tensor, shape, &n_dims)) {
            return shoal_fail(SHOAL_ERR_INVALID, "condition has shape %s, a %s, b %s, which do not broadcast",
                              nn_shape_text(arguments[0].as.tensor).text, nn_shape_text(a).text,
                              nn_shape_text(b).text);
        }
    }
    return shoal_op_output(call, shape, n_dims, shoal_tensor_dtype(a));
}

RUN(where)
{
    const shoal_tensor *tensors[3];
    struct operand operands[3];
    for (int i = 0; i < 3; i++) {
        tensors[i] = arguments[i].as.tensor;
        operands[i] = operand_of(tensors[i], shoal_data(tensors[i]), outputs[0]);
    }
    struct choice choice = {.mask = operands[0], .yes = operands[1], .no = operands[2]};
    return run_choice(&choice, outputs[0]);
}

WORKSPACE(where)
{
    return 0;
}

static shoal_tensor *fill(shoal_tensor *self, shoal_value mask, double value, bool is_inverted)
{
    const shoal_value values[] = {nn_tensor(self), mask, nn_float(value), nn_bool(is_inverted)};
    return self ? nn_call(NN_OP_masked_fill, values, 4) : NULL;
}

/* What a tensor gets that was broadcast: the sum over what it was repeated for. */
static shoal_tensor *sum_to(shoal_tensor *gradient, const shoal_tensor *like)
{
    int64_t dims[SHOAL_MAX_DIMS];
    int n_dims = 0;
    int n_more = gradient ? shoal_tensor_n_dims(gradient) - shoal_tensor_n_dims(like) : 0;
    for (int i = 0; gradient && i < shoal_tensor_n_dims(gradient); i++) {
        if (i < n_more ||
            (shoal_tensor_shape(like)[i - n_more] == 1 && shoal_tensor_shape(gradient)[i] != 1)) {
            dims[n_dims++] = i;
        }
    }
    if (n_dims == 0) {
        return gradient;
    }
    return shoal_reshape(shoal_sum(gradient, dims, n_dims, /*keeps_dims=*/true), shoal_tensor_shape(like),
                         shoal_tensor_n_dims(like));
}

GRADIENT(where)
{
    for (size_t i = 1; i < 3; i++) {
        if (shoal_op_needs_gradient(call, i)) {
            shoal_tensor *gradient = fill(output_gradients[0], arguments[0], 0, /*is_inverted=*/i == 1);
            input_gradients[i] = sum_to(gradient, arguments[i].as.tensor);
        }
    }
    return shoal_scope_error();
}

/* masked_fill ------------------------------------------------------------------------------------------ */

META(masked_fill)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    const shoal_tensor *mask = arguments[1].as.tensor;
    int64_t shape[SHOAL_MAX_DIMS];
    int n_dims = 0;
    NN_TRY(nn_check_floating(self, "self"));
    NN_TRY(check_mask(mask, "mask"));
    bool does_fit = broadcast(self, shape, &n_dims) && broadcast(mask, shape, &n_dims) &&
                    n_dims == shoal_tensor_n_dims(self);
    for (int i = 0; does_fit && i < n_dims; i++) {
        does_fit = shape[i] == shoal_tensor_shape(self)[i];
    }
    if (!does_fit) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "mask has shape %s, which does not broadcast to that of self, %s",
                          nn_shape_text(mask).text, nn_shape_text(self).text);
    }
    return shoal_op_output(call, shape, n_dims, shoal_tensor_dtype(self));
}

RUN(masked_fill)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    const shoal_tensor *mask = arguments[1].as.tensor;
    uint64_t element = 0;
    nn_convert(1, &arguments[2].as.real, SHOAL_F64, &element, shoal_tensor_dtype(self));
    struct operand kept = operand_of(self, shoal_data(self), outputs[0]);
    struct operand value = constant(&element, outputs[0]);
    bool is_inverted = arguments[3].as.boolean;
    struct choice choice = {.mask = operand_of(mask, shoal_data(mask), outputs[0]),
                            .yes = is_inverted ? kept : value,
                            .no = is_inverted ? value : kept};
    return run_choice(&choice, outputs[0]);
}

WORKSPACE(masked_fill)
{
    return 0;
}

GRADIENT(masked_fill)
{
    input_gradients[0] = fill(output_gradients[0], arguments[1], 0, arguments[3].as.boolean);
    return shoal_scope_error();
}
