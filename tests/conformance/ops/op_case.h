/* SPDX-License-Identifier: MIT */
/*
 * One random call of an op, described without tensors: layouts of its inputs and its other arguments. The
 * same description is made real on the CPU and on the meta device, so both see equal strides and offsets.
 *
 *   case_<name> describes   ->   case_build makes tensors and boxed values   ->   the op   ->   expect_<name>
 */
#ifndef CONFORMANCE_OP_CASE_H
#define CONFORMANCE_OP_CASE_H

#include <stdlib.h>
#include <string.h>

#include "conformance/ops/scalar.h"
#include "fixtures/test_device.h"
#include "harness/test.h"
#include "op/op.h"
#include "device/device.h"
#include "tensor/layout.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

enum {
    CASE_MAX_INPUTS = 8,
    CASE_MAX_INTS = 24,
    CASE_MAX_ELEMS = 160,         /* of one input */
    CASE_MAX_STORAGE_ELEMS = 8192 /* of the storage under it: five doubled strides, or all rows of a gather */
};

struct case_input {
    shoal_dtype dtype;
    struct layout layout;
    int owner; /* the input whose storage this one looks at: itself, or an earlier one */
    int64_t storage_elems;
    /* The bytes of the storage before the call; only of owners. */
    _Alignas(16) unsigned char bytes[CASE_MAX_STORAGE_ELEMS * 16];
};

struct case_argument {
    shoal_value_kind kind;
    int first_input; /* of tensor and tensors */
    int n_inputs;
    int64_t integer;
    double real;
    bool boolean;
    shoal_dtype dtype;
    bool is_device; /* a string that names the device of the run */
    int n_ints;
    int64_t ints[CASE_MAX_INTS];
};

struct op_case {
    const shoal_op *op;
    int n_inputs;
    int n_arguments;
    struct case_input inputs[CASE_MAX_INPUTS];
    struct case_argument arguments[OP_MAX_PARAMS];
};

/* A case made real. */
struct case_call {
    shoal_tensor *tensors[CASE_MAX_INPUTS];
    shoal_value values[OP_MAX_PARAMS];
};

/* Walking a shape -------------------------------------------------------------------------------------- */

struct walk {
    int n_dims;
    const int64_t *shape;
    int64_t index[SHOAL_MAX_DIMS];
    int64_t at; /* how many were passed: the row-major position */
    bool is_over;
};

static inline struct walk walk_begin(int n_dims, const int64_t *shape)
{
    struct walk walk = {.n_dims = n_dims, .shape = shape};
    for (int i = 0; i < n_dims; i++) {
        walk.is_over = walk.is_over || shape[i] == 0;
    }
    return walk;
}

static inline void walk_next(struct walk *walk)
{
    int dim = walk->n_dims - 1;
    while (dim >= 0 && ++walk->index[dim] == walk->shape[dim]) {
        walk->index[dim--] = 0;
    }
    walk->at++;
    walk->is_over = dim < 0;
}

static inline int64_t count_of(int n_dims, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        count *= shape[i];
    }
    return count;
}

static inline int64_t place_of(const struct layout *layout, const int64_t *index)
{
    int64_t place = layout->offset;
    for (int i = 0; i < layout->n_dims; i++) {
        place += index[i] * layout->strides[i];
    }
    return place;
}

/* The value of an input before the call. */
static inline struct scalar case_load(const struct op_case *c, int input, const int64_t *index)
{
    const struct case_input *from = &c->inputs[input];
    int64_t place = place_of(&from->layout, index);
    return scalar_load(from->dtype, &c->inputs[from->owner].bytes[(size_t)place * dtype_bytes(from->dtype)]);
}

/* Random shapes and layouts ------------------------------------------------------------------------------ */

static inline int64_t pick(struct test_random *random, int64_t low, int64_t high)
{
    return low + (int64_t)test_random_below(random, (uint64_t)(high - low + 1));
}

static inline bool chance(struct test_random *random, int one_in)
{
    return test_random_below(random, (uint64_t)one_in) == 0;
}

static inline shoal_dtype pick_dtype(struct test_random *random)
{
    return (shoal_dtype)pick(random, 1, DTYPE_COUNT - 1);
}

/* Without 8-bit floats, which have no arithmetic. */
static inline shoal_dtype pick_computed_dtype(struct test_random *random)
{
    shoal_dtype dtype;
    do {
        dtype = pick_dtype(random);
    } while (dtype_kind(dtype) == DTYPE_KIND_FLOAT8);
    return dtype;
}

/* Without bool too, which has no difference, quotient or sum. */
static inline shoal_dtype pick_number_dtype(struct test_random *random)
{
    shoal_dtype dtype;
    do {
        dtype = pick_computed_dtype(random);
    } while (dtype == SHOAL_BOOL);
    return dtype;
}

/* A size: mostly small, sometimes 0 or 1 or a prime, such that the product stays below CASE_MAX_ELEMS. */
static inline int64_t pick_size(struct test_random *random, int64_t room)
{
    static const int64_t sizes[] = {1, 1, 2, 2, 3, 3, 4, 5, 7, 17, 33};
    int64_t size =
        chance(random, 16) ? 0 : sizes[test_random_below(random, sizeof(sizes) / sizeof(sizes[0]))];
    return size > room ? room : size;
}

static inline int pick_shape(struct test_random *random, int min_dims, int max_dims, int64_t *shape)
{
    int n_dims = (int)pick(random, min_dims, max_dims);
    int64_t room = CASE_MAX_ELEMS;
    for (int i = 0; i < n_dims; i++) {
        shape[i] = pick_size(random, room);
        room /= shape[i] > 0 ? shape[i] : 1;
    }
    return n_dims;
}

/* Strides over a shape: dimensions in any order, with gaps, reversed, and, if it may, repeated. */
static inline void pick_strides(struct test_random *random, struct layout *layout, bool may_repeat)
{
    int order[SHOAL_MAX_DIMS] = {0};
    bool is_plain = chance(random, 3);
    for (int i = 0; i < layout->n_dims; i++) {
        int at = is_plain ? i : (int)pick(random, 0, i);
        order[i] = order[at];
        order[at] = i;
    }
    int64_t stride = 1;
    for (int k = layout->n_dims - 1; k >= 0; k--) {
        int dim = order[k];
        int64_t size = layout->shape[dim];
        stride *= !is_plain && chance(random, 6) ? 2 : 1;
        layout->strides[dim] = stride;
        if (!is_plain && size == 1 && chance(random, 3)) {
            layout->strides[dim] = pick(random, -100, 100); /* never walked */
        } else if (!is_plain && may_repeat && chance(random, 6)) {
            layout->strides[dim] = 0;
            size = 1;
        } else if (!is_plain && chance(random, 6)) {
            layout->strides[dim] = -stride;
        }
        stride *= size > 0 ? size : 1;
    }
}

static inline void fill_bytes(struct test_random *random, struct case_input *input);

/* One more input of that shape and those strides, somewhere in a storage that is large enough. Returns its number. */
static inline int add_input_laid(struct op_case *c, struct test_random *random, shoal_dtype dtype,
                                 const struct layout *layout)
{
    struct case_input *input = &c->inputs[c->n_inputs];
    int64_t first = 0;
    int64_t end = 0;
    input->dtype = dtype;
    input->owner = c->n_inputs;
    input->layout = *layout;
    input->layout.offset = 0;
    struct walk walk = walk_begin(layout->n_dims, layout->shape);
    for (; !walk.is_over; walk_next(&walk)) {
        int64_t place = place_of(&input->layout, walk.index);
        first = place < first ? place : first;
        end = place + 1 > end ? place + 1 : end;
    }
    int64_t slack = chance(random, 2) ? 0 : pick(random, 1, 5);
    input->layout.offset = slack - first;
    input->storage_elems = end - first + slack + (chance(random, 2) ? 0 : pick(random, 1, 5));
    if (input->storage_elems > CASE_MAX_STORAGE_ELEMS) {
        test_failed(__FILE__, __LINE__, "a storage of %lld elements", (long long)input->storage_elems);
        abort();
    }
    fill_bytes(random, input);
    return c->n_inputs++;
}

/* One more input of that shape; may_repeat: two indices may name one element. */
static inline int add_input_shaped(struct op_case *c, struct test_random *random, shoal_dtype dtype,
                                   int n_dims, const int64_t *shape, bool may_repeat)
{
    struct layout layout = {.n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) {
        layout.shape[i] = shape[i];
    }
    pick_strides(random, &layout, may_repeat);
    return add_input_laid(c, random, dtype, &layout);
}

static inline int add_input(struct op_case *c, struct test_random *random, shoal_dtype dtype, int min_dims,
                            int max_dims)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_shape(random, min_dims, max_dims, shape);
    return add_input_shaped(c, random, dtype, n_dims, shape, /*may_repeat=*/true);
}

/* One more input that looks at the storage of another, in the same shape, at a random place that fits. */
static inline int add_input_sharing(struct op_case *c, struct test_random *random, int other)
{
    const struct case_input *from = &c->inputs[other];
    struct case_input *input = &c->inputs[c->n_inputs];
    input->dtype = from->dtype;
    input->owner = from->owner;
    input->storage_elems = from->storage_elems;
    input->layout = from->layout;
    int64_t offset = from->layout.offset + pick(random, -3, 3);
    int64_t first;
    int64_t end;
    if (layout_extent(input->layout.n_dims, input->layout.shape, input->layout.strides, offset, &first,
                      &end) == SHOAL_OK &&
        first >= 0 && end <= from->storage_elems) {
        input->layout.offset = offset;
    }
    return c->n_inputs++;
}

/* A shape that broadcasts to the given one: leading dimensions missing, some sizes 1. */
static inline int add_input_broadcasting(struct op_case *c, struct test_random *random, shoal_dtype dtype,
                                         int n_dims, const int64_t *shape)
{
    int64_t smaller[SHOAL_MAX_DIMS];
    int missing = chance(random, 2) ? 0 : (int)pick(random, 0, n_dims);
    for (int i = missing; i < n_dims; i++) {
        smaller[i - missing] = chance(random, 4) ? 1 : shape[i];
    }
    return add_input_shaped(c, random, dtype, n_dims - missing, smaller, /*may_repeat=*/true);
}

/* Data --------------------------------------------------------------------------------------------------- */

static inline double pick_real(struct test_random *random)
{
    static const double special[] = {0.0,          -0.0,  1.0,       -1.0,    65504.0, 65520.0,
                                     3.4e38,       1e-45, 6e-8,      1e-40,   1.0e300, 5e-324,
                                     2147483648.0, 1e19,  0x1.001p0, 0x1.01p0};
    uint64_t bits;
    double value;
    switch (test_random_below(random, 5)) {
    case 0:
        return special[test_random_below(random, sizeof(special) / sizeof(special[0]))];
    case 1:
        return (double)pick(random, -9, 9);
    case 2:
        return (test_random_unit(random) - 0.5) * 1000;
    case 3:
        return chance(random, 8)   ? (double)NAN
               : chance(random, 8) ? -(double)INFINITY
                                   : test_random_unit(random);
    default:
        bits = test_random_u64(random);
        memcpy(&value, &bits, sizeof(value));
        return isnan(value) ? 0.5 : value;
    }
}

static inline void fill_bytes(struct test_random *random, struct case_input *input)
{
    /* The first is just above a tie of bf16, by less than f64 can tell. */
    static const uint64_t special[] = {0x4040000000000001, 0,   1, UINT64_MAX, 0x80, 0x7f, 0x8000, 0x7fff,
                                       UINT64_C(1) << 63,  255, 2};
    enum dtype_kind kind = dtype_kind(input->dtype);
    for (int64_t i = 0; i < input->storage_elems; i++) {
        unsigned char *element = &input->bytes[(size_t)i * dtype_bytes(input->dtype)];
        struct scalar value = {0, 0, 0};
        if (dtype_is_real(input->dtype) || kind == DTYPE_KIND_COMPLEX) {
            value.re = round_to(input->dtype, pick_real(random));
            value.im = kind == DTYPE_KIND_COMPLEX ? round_to(input->dtype, pick_real(random)) : 0;
        } else if (chance(random, 3)) {
            value.bits = special[test_random_below(random, sizeof(special) / sizeof(special[0]))];
        } else {
            value.bits = chance(random, 2) ? test_random_below(random, 10) : test_random_u64(random);
        }
        scalar_store(input->dtype, element, value);
    }
}

/* Arguments ------------------------------------------------------------------------------------------------ */

static inline struct case_argument *add_argument(struct op_case *c, shoal_value_kind kind)
{
    struct case_argument *argument = &c->arguments[c->n_arguments++];
    *argument = (struct case_argument){.kind = kind};
    return argument;
}

static inline void add_tensor(struct op_case *c, int input)
{
    struct case_argument *argument = add_argument(c, SHOAL_VALUE_TENSOR);
    argument->first_input = input;
    argument->n_inputs = 1;
}

static inline void add_tensors(struct op_case *c, int first_input, int n_inputs)
{
    struct case_argument *argument = add_argument(c, SHOAL_VALUE_TENSORS);
    argument->first_input = first_input;
    argument->n_inputs = n_inputs;
}

static inline void add_int(struct op_case *c, int64_t integer)
{
    add_argument(c, SHOAL_VALUE_INT)->integer = integer;
}

static inline void add_ints(struct op_case *c, int n, const int64_t *ints)
{
    struct case_argument *argument = add_argument(c, SHOAL_VALUE_INTS);
    argument->n_ints = n;
    for (int i = 0; i < n; i++) {
        argument->ints[i] = ints[i];
    }
}

static inline void add_bool(struct op_case *c, bool boolean)
{
    add_argument(c, SHOAL_VALUE_BOOL)->boolean = boolean;
}

static inline void add_dtype(struct op_case *c, shoal_dtype dtype)
{
    add_argument(c, SHOAL_VALUE_DTYPE)->dtype = dtype;
}

static inline void add_device(struct op_case *c)
{
    add_argument(c, SHOAL_VALUE_STRING)->is_device = true;
}

/* A scalar: an int or a float, with everything a double or an int64_t can be. */
static inline void add_number(struct op_case *c, struct test_random *random)
{
    if (chance(random, 3)) {
        add_int(c, chance(random, 4) ? (int64_t)test_random_u64(random) : pick(random, -9, 9));
    } else {
        add_argument(c, SHOAL_VALUE_FLOAT)->real = pick_real(random);
    }
}

/* Whole numbers up to what 64 bits hold: exact as double, and wrapping in most dtypes. */
static inline double pick_whole(struct test_random *random, bool may_pass_int64)
{
    static const double edges[] = {-0x1p63, -0x1p53,    -32769, -129,          -128,   -1,           -0.0,
                                   127,     128,        255,    256,           300,    65535,        0x1p31,
                                   0x1p32,  0x1p53 + 2, 0x1p62, 0x1p63 - 1024, 0x1p63, 0x1p64 - 2048};
    enum {
        N_EDGES = sizeof(edges) / sizeof(edges[0]),
        N_BEYOND_INT64 = 2
    };
    if (chance(random, 3)) {
        return (double)pick(random, -9, 9);
    }
    if (chance(random, 3)) {
        return (double)((int64_t)test_random_u64(random) / 2);
    }
    return edges[pick(random, 0, N_EDGES - 1 - (may_pass_int64 ? 0 : N_BEYOND_INT64))];
}

/* The number of an operator: as above, but a float is whole where an input has an integer dtype. */
static inline void add_operand(struct op_case *c, struct test_random *random)
{
    bool has_signed = false;
    bool has_unsigned = false;
    for (int i = 0; i < c->n_inputs; i++) {
        has_signed = has_signed || dtype_kind(c->inputs[i].dtype) == DTYPE_KIND_SIGNED;
        has_unsigned = has_unsigned || dtype_kind(c->inputs[i].dtype) == DTYPE_KIND_UNSIGNED;
    }
    add_number(c, random);
    struct case_argument *number = &c->arguments[c->n_arguments - 1];
    if (number->kind == SHOAL_VALUE_FLOAT && (has_signed || has_unsigned)) {
        number->real = pick_whole(random, /*may_pass_int64=*/!has_signed);
    }
}

/* Sometimes counted from the end. */
static inline int64_t pick_dim_spelling(struct test_random *random, int dim, int n_dims)
{
    return chance(random, 2) ? dim - n_dims : dim;
}

/* Adds an int argument that names a dimension of a non-scalar shape; returns the dimension. */
static inline int add_dim(struct op_case *c, struct test_random *random, int n_dims)
{
    int dim = (int)pick(random, 0, n_dims - 1);
    add_int(c, pick_dim_spelling(random, dim, n_dims));
    return dim;
}

/* Making it real ------------------------------------------------------------------------------------------- */

static inline shoal_status build_input(const struct op_case *c, int i, shoal_device device,
                                       shoal_tensor **tensors)
{
    const struct case_input *input = &c->inputs[i];
    shoal_tensor *base;
    shoal_status status = SHOAL_OK;
    if (input->owner != i) {
        return tensor_create_view(tensors[input->owner], &input->layout, &tensors[i]);
    }
    status = tensor_create_empty(device, input->dtype, 1, &input->storage_elems, &base);
    if (status != SHOAL_OK) {
        return status;
    }
    if (device_has_data(device)) {
        memcpy(test_storage_bytes(base->storage), input->bytes, tensor_bytes(base));
    }
    status = tensor_create_view(base, &input->layout, &tensors[i]);
    shoal_tensor_unref(base);
    return status;
}

static inline shoal_value box_argument(const struct case_argument *argument, shoal_device device,
                                       shoal_tensor *const *tensors)
{
    shoal_value value = {.kind = argument->kind};
    switch (argument->kind) {
    case SHOAL_VALUE_TENSOR:
        value.as.tensor = tensors[argument->first_input];
        break;
    case SHOAL_VALUE_TENSORS:
        value.as.tensors = &tensors[argument->first_input];
        value.count = (size_t)argument->n_inputs;
        break;
    case SHOAL_VALUE_INT:
        value.as.integer = argument->integer;
        break;
    case SHOAL_VALUE_INTS:
        value.as.integers = argument->n_ints > 0 ? argument->ints : NULL;
        value.count = (size_t)argument->n_ints;
        break;
    case SHOAL_VALUE_FLOAT:
        value.as.real = argument->real;
        break;
    case SHOAL_VALUE_BOOL:
        value.as.boolean = argument->boolean;
        break;
    case SHOAL_VALUE_DTYPE:
        value.as.dtype = argument->dtype;
        break;
    case SHOAL_VALUE_STRING:
        value.as.string = device_name(device);
        break;
    case SHOAL_VALUE_GROUP: /* rows that take one have tests of their own */
    case SHOAL_VALUE_NONE:
        break;
    }
    return value;
}

/* Tensors (one reference each is the caller's, NULL where it failed) and boxed arguments on a device. */
static inline shoal_status case_build(const struct op_case *c, shoal_device device, struct case_call *call)
{
    memset(call, 0, sizeof(*call));
    for (int i = 0; i < c->n_inputs; i++) {
        shoal_status status = build_input(c, i, device, call->tensors);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    for (int i = 0; i < c->n_arguments; i++) {
        call->values[i] = box_argument(&c->arguments[i], device, call->tensors);
    }
    return SHOAL_OK;
}

static inline void case_release(struct case_call *call)
{
    for (int i = 0; i < CASE_MAX_INPUTS; i++) {
        shoal_tensor_unref(call->tensors[i]);
    }
}

#endif
