/* SPDX-License-Identifier: MIT */
/* Reading and writing tensors as plain arrays; see values.h. One row of the last dimension at a time. */
#include "ops/values.h"

#include <stdlib.h>

#include "math/halves.h"
#include "math/pool.h"
#include "shoal/op.h"
#include "common/try.h"
#include "math/vector.h"

shoal_dtype nn_real(shoal_dtype dtype)
{
    return dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32;
}

struct nn_layout nn_layout_of(const shoal_tensor *tensor)
{
    struct nn_layout layout = {.n_dims = shoal_tensor_n_dims(tensor)};
    for (int i = 0; i < layout.n_dims; i++) {
        layout.shape[i] = shoal_tensor_shape(tensor)[i];
        layout.strides[i] = shoal_tensor_strides(tensor)[i];
    }
    return layout;
}

size_t nn_scratch_bytes(size_t count, size_t element_bytes)
{
    size_t bytes;
    const size_t mask = SHOAL_OP_WORKSPACE_ALIGNMENT - 1;
    if (__builtin_mul_overflow(count, element_bytes, &bytes) || bytes > SIZE_MAX - mask) {
        return SIZE_MAX;
    }
    return (bytes + mask) & ~mask;
}

shoal_status nn_scratch(shoal_op_call_context *call, size_t count, size_t element_bytes, void **scratch_out)
{
    size_t bytes;
    *scratch_out = NULL;
    if (!__builtin_mul_overflow(count, element_bytes, &bytes)) {
        *scratch_out = call ? shoal_op_workspace(call, bytes) : malloc(bytes > 0 ? bytes : 1);
    }
    if (!*scratch_out) {
        shoal_status failed =
            shoal_fail(SHOAL_ERR_NO_MEMORY, "no memory for %zu elements of %zu bytes of scratch memory",
                       count, element_bytes);
        return failed != SHOAL_OK ? failed : SHOAL_ERR_INTERNAL; /* it never is; an analyzer cannot know */
    }
    return SHOAL_OK;
}

/* A row of strided elements as numbers, and back -------------------------------------------------------- */

static bool is_half(shoal_dtype dtype)
{
    return dtype == SHOAL_F16 || dtype == SHOAL_BF16;
}

void nn_read_row(const void *row, shoal_dtype dtype, int64_t count, int64_t stride, void *to)
{
    if (stride == 1 && is_half(dtype)) {
        (dtype == SHOAL_F16 ? nn_vectors()->from_f16 : nn_vectors()->from_bf16)((size_t)count, row, to);
        return;
    }
    switch ((int)dtype) {
#define ELEMENT(name, type, from, into)                                          \
    case name:                                                                   \
        for (int64_t i = 0; i < count; i++) {                                    \
            if (name == SHOAL_F64) {                                             \
                ((double *)to)[i] = ((const double *)row)[i * stride];           \
            } else {                                                             \
                ((float *)to)[i] = (float)from(((const type *)row)[i * stride]); \
            }                                                                    \
        }                                                                        \
        break;
#include "math/elements.def"
#undef ELEMENT
#define INTEGER(name, type)                                                \
    case name:                                                             \
        for (int64_t i = 0; i < count; i++) {                              \
            ((int64_t *)to)[i] = (int64_t)((const type *)row)[i * stride]; \
        }                                                                  \
        break;
#include "math/elements.def"
#undef INTEGER
    default:
        break;
    }
}

void nn_write_row(void *row, shoal_dtype dtype, int64_t count, int64_t stride, const void *from_values)
{
    if (stride == 1 && is_half(dtype)) {
        (dtype == SHOAL_F16 ? nn_vectors()->to_f16 : nn_vectors()->to_bf16)((size_t)count, from_values, row);
        return;
    }
    switch ((int)dtype) {
#define ELEMENT(name, type, from, into)                                                  \
    case name:                                                                           \
        for (int64_t i = 0; i < count; i++) {                                            \
            if (name == SHOAL_F64) {                                                     \
                ((double *)row)[i * stride] = ((const double *)from_values)[i];          \
            } else {                                                                     \
                ((type *)row)[i * stride] = (type)into(((const float *)from_values)[i]); \
            }                                                                            \
        }                                                                                \
        break;
#include "math/elements.def"
#undef ELEMENT
    default:
        break;
    }
}

/* An element of any floating dtype as a double, which holds them all. */
static double read_element(const void *from, shoal_dtype dtype, size_t index)
{
    switch ((int)dtype) {
#define ELEMENT(name, type, from_bits, into) \
    case name:                               \
        return (double)from_bits(((const type *)from)[index]);
#include "math/elements.def"
#undef ELEMENT
    default:
        return 0;
    }
}

/* Rounded once. */
static void write_element(void *to, shoal_dtype dtype, size_t index, double value)
{
    const float real = dtype == SHOAL_F32 ? (float)value : nn_cut(value);
    switch ((int)dtype) {
#define ELEMENT(name, type, from, into)                                           \
    case name:                                                                    \
        ((type *)to)[index] = name == SHOAL_F64 ? (type)value : (type)into(real); \
        break;
#include "math/elements.def"
#undef ELEMENT
    default:
        break;
    }
}

void nn_convert(size_t count, const void *from, shoal_dtype from_dtype, void *to, shoal_dtype to_dtype)
{
    if (to_dtype == SHOAL_F32 && nn_real(from_dtype) == SHOAL_F32) {
        nn_read_row(from, from_dtype, (int64_t)count, 1, to);
        return;
    }
    if (from_dtype == SHOAL_F32 && nn_real(to_dtype) == SHOAL_F32) {
        nn_write_row(to, to_dtype, (int64_t)count, 1, from);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        write_element(to, to_dtype, i, read_element(from, from_dtype, i));
    }
}

/* Walking rows ----------------------------------------------------------------------------------------- */

struct row_walk {
    int64_t n_rows;
    int64_t row_count;
    int64_t row_stride;
    int64_t offset; /* of the present row, in elements */
    int64_t index[SHOAL_MAX_DIMS];
};

static struct row_walk begin_rows(const struct nn_layout *layout)
{
    int last = layout->n_dims - 1;
    struct row_walk walk = {.n_rows = 1,
                            .row_count = last < 0 ? 1 : layout->shape[last],
                            .row_stride = last < 0 ? 1 : layout->strides[last]};
    for (int i = 0; i < last; i++) {
        walk.n_rows *= layout->shape[i];
    }
    return walk;
}

static void next_row(struct row_walk *walk, const struct nn_layout *layout)
{
    for (int i = layout->n_dims - 2; i >= 0; i--) {
        walk->offset += layout->strides[i];
        if (++walk->index[i] < layout->shape[i]) {
            return;
        }
        walk->offset -= layout->shape[i] * layout->strides[i];
        walk->index[i] = 0;
    }
}

/* Goes to the row of that number, in row-major order. */
static void find_row(struct row_walk *walk, const struct nn_layout *layout, int64_t number)
{
    for (int i = layout->n_dims - 2; i >= 0; i--) {
        int64_t size = layout->shape[i] > 0 ? layout->shape[i] : 1;
        walk->index[i] = number % size;
        walk->offset += walk->index[i] * layout->strides[i];
        number /= size;
    }
}

/* What numbers read from this dtype take. */
static size_t number_bytes(shoal_dtype dtype)
{
    return dtype == SHOAL_F32 || dtype == SHOAL_F16 || dtype == SHOAL_BF16 ? sizeof(float) : sizeof(double);
}

/* Rows of a tensor as numbers, or back. */
struct copy {
    const struct nn_layout *layout;
    shoal_dtype dtype;
    char *data;    /* the tensor's */
    char *numbers; /* contiguous floats or doubles */
    bool is_back;
};

static void copy_row(const struct copy *copy, char *data, int64_t count, int64_t stride, char *numbers)
{
    if (copy->is_back) {
        nn_write_row(data, copy->dtype, count, stride, numbers);
    } else {
        nn_read_row(data, copy->dtype, count, stride, numbers);
    }
}

static void copy_rows(void *context, size_t first, size_t end)
{
    const struct copy *copy = context;
    struct row_walk walk = begin_rows(copy->layout);
    int64_t bytes = (int64_t)shoal_dtype_bytes(copy->dtype);
    size_t row_bytes = (size_t)walk.row_count * number_bytes(copy->dtype);
    find_row(&walk, copy->layout, (int64_t)first);
    for (size_t i = first; i < end; i++) {
        copy_row(copy, copy->data + walk.offset * bytes, walk.row_count, walk.row_stride,
                 copy->numbers + i * row_bytes);
        next_row(&walk, copy->layout);
    }
}

/* Elements of a contiguous tensor. */
static void copy_elements(void *context, size_t first, size_t end)
{
    const struct copy *copy = context;
    copy_row(copy, copy->data + first * shoal_dtype_bytes(copy->dtype), (int64_t)(end - first), 1,
             copy->numbers + first * number_bytes(copy->dtype));
}

static bool is_contiguous(const struct nn_layout *layout)
{
    int64_t stride = 1;
    bool is_so = true;
    for (int i = layout->n_dims - 1; i >= 0; i--) {
        is_so = is_so && (layout->shape[i] == 1 || layout->strides[i] == stride);
        stride *= layout->shape[i];
    }
    return is_so;
}

static void copy_all(struct copy *copy)
{
    struct row_walk walk = begin_rows(copy->layout);
    size_t n_rows = (size_t)walk.n_rows;
    if (is_contiguous(copy->layout)) {
        nn_parallel_ranges(n_rows * (size_t)walk.row_count, 1, copy_elements, copy);
    } else {
        nn_parallel_ranges(n_rows, (size_t)walk.row_count, copy_rows, copy);
    }
}

void nn_gather(const void *data, shoal_dtype dtype, const struct nn_layout *layout, void *to)
{
    struct copy copy = {
        .layout = layout, .dtype = dtype, .data = (char *)(uintptr_t)data, .numbers = to}; /* only read */
    copy_all(&copy);
}

void nn_scatter(void *data, shoal_dtype dtype, const struct nn_layout *layout, const void *from)
{
    struct copy copy = {.layout = layout,
                        .dtype = dtype,
                        .data = data,
                        .numbers = (char *)(uintptr_t)from, /* only read */
                        .is_back = true};
    copy_all(&copy);
}

/* Tensors ---------------------------------------------------------------------------------------------- */

static bool is_plain(const shoal_tensor *tensor)
{
    shoal_dtype dtype = shoal_tensor_dtype(tensor);
    return (dtype == SHOAL_F32 || dtype == SHOAL_F64 || dtype == SHOAL_I64) &&
           shoal_tensor_is_contiguous(tensor);
}

size_t nn_values_bytes(const shoal_tensor *tensor)
{
    if (!tensor || is_plain(tensor)) {
        return 0;
    }
    return nn_scratch_bytes((size_t)shoal_tensor_count(tensor), number_bytes(shoal_tensor_dtype(tensor)));
}

size_t nn_values_of_call(const shoal_value *arguments, size_t n_arguments, const shoal_tensor *result)
{
    size_t bytes = nn_values_bytes(result);
    for (size_t i = 0; i < n_arguments; i++) {
        bytes += arguments[i].kind == SHOAL_VALUE_TENSOR ? nn_values_bytes(arguments[i].as.tensor) : 0;
    }
    return bytes;
}

static shoal_status copy_values(shoal_op_call_context *call, const shoal_tensor *tensor, const void *data,
                                bool keeps_values, struct nn_values *values)
{
    struct nn_layout layout = nn_layout_of(tensor);
    shoal_dtype dtype = shoal_tensor_dtype(tensor);
    NN_TRY(nn_scratch(call, values->count, number_bytes(dtype), &values->scratch));
    values->data = values->scratch;
    if (keeps_values) {
        nn_gather(data, dtype, &layout, values->data);
    }
    return SHOAL_OK;
}

shoal_status nn_load(shoal_op_call_context *call, const shoal_tensor *tensor, struct nn_values *values_out)
{
    *values_out = (struct nn_values){.count = (size_t)shoal_tensor_count(tensor)};
    const void *data = shoal_data(tensor);
    if (!data) {
        return SHOAL_ERR_STATE; /* the text is there already */
    }
    if (is_plain(tensor)) {
        values_out->data = (void *)(uintptr_t)data; /* who loads does not write */
        return SHOAL_OK;
    }
    return copy_values(call, tensor, data, /*keeps_values=*/true, values_out);
}

shoal_status nn_load_integers(shoal_op_call_context *call, const shoal_tensor *tensor,
                              struct nn_values *values_out)
{
    return nn_load(call, tensor, values_out);
}

shoal_status nn_open(shoal_op_call_context *call, shoal_tensor *tensor, bool keeps_values,
                     struct nn_values *values_out)
{
    *values_out = (struct nn_values){.count = (size_t)shoal_tensor_count(tensor)};
    void *data = shoal_mutable_data(tensor);
    if (!data) {
        return SHOAL_ERR_STATE; /* the text is there already */
    }
    if (is_plain(tensor)) {
        values_out->data = data;
        return SHOAL_OK;
    }
    values_out->target = data;
    return copy_values(call, tensor, data, keeps_values, values_out);
}

void nn_store(const shoal_tensor *tensor, const struct nn_values *values)
{
    if (values->scratch) {
        struct nn_layout layout = nn_layout_of(tensor);
        nn_scatter(values->target, shoal_tensor_dtype(tensor), &layout, values->scratch);
    }
}

void nn_values_free(struct nn_values *values)
{
    free(values->scratch);
    *values = (struct nn_values){.data = NULL};
}
