/* SPDX-License-Identifier: MIT */
/* The rest of expect_<name>: splitting and joining, arithmetic, lists, sharding; and the table of all. */
#ifndef CONFORMANCE_EXPECTS_MORE_H
#define CONFORMANCE_EXPECTS_MORE_H

#include "conformance/ops/expects.h"

/* Splitting and joining ---------------------------------------------------------------------------------------- */

EXPECT(split)
{
    int dim = dim_of(c, 2, layout_of(c, 0)->n_dims);
    int64_t total = layout_of(c, 0)->shape[dim];
    int64_t start = 0;
    do {
        int64_t length = int_of(c, 1) < total - start ? int_of(c, 1) : total - start;
        expect_window(c, e, dim, start, length, 1);
        start += length;
    } while (start < total);
}

EXPECT(split_with_sizes)
{
    int dim = dim_of(c, 2, layout_of(c, 0)->n_dims);
    int64_t start = 0;
    for (int i = 0; i < c->arguments[1].n_ints; i++) {
        expect_window(c, e, dim, start, c->arguments[1].ints[i], 1);
        start += c->arguments[1].ints[i];
    }
}

static inline void expect_chunks(const struct op_case *c, struct expectation *e, bool with_empty)
{
    int dim = dim_of(c, 2, layout_of(c, 0)->n_dims);
    int64_t total = layout_of(c, 0)->shape[dim];
    int64_t chunks = int_of(c, 1);
    int64_t size = (total + chunks - 1) / chunks;
    for (int64_t i = 0; i < chunks; i++) {
        int64_t start = i * size < total ? i * size : total;
        int64_t length = size < total - start ? size : total - start;
        if (with_empty || length > 0 || total == 0) {
            expect_window(c, e, dim, start, length, 1);
        }
    }
}

EXPECT(chunk)
{
    expect_chunks(c, e, /*with_empty=*/false);
}

EXPECT(chunk_with_empty)
{
    expect_chunks(c, e, /*with_empty=*/true);
}

EXPECT(cat)
{
    int n = c->arguments[0].n_inputs;
    int n_dims = layout_of(c, 0)->n_dims;
    int dim = dim_of(c, 1, n_dims);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    memcpy(shape, layout_of(c, 0)->shape, sizeof(shape));
    for (int i = 1; i < n; i++) {
        shape[dim] += layout_of(c, i)->shape[dim];
    }
    struct expected_output *output = add_output(e, RELATION_NEW, c->inputs[0].dtype, n_dims, shape);
    FOR_EACH(at, n_dims, shape)
    {
        int64_t index[SHOAL_MAX_DIMS] = {0};
        int input = 0;
        memcpy(index, at.index, sizeof(index));
        while (index[dim] >= layout_of(c, input)->shape[dim]) {
            index[dim] -= layout_of(c, input++)->shape[dim];
        }
        output->values[at.at] = case_load(c, input, index);
    }
}

EXPECT(stack)
{
    const struct layout *first = layout_of(c, 0);
    int dim = dim_of(c, 1, first->n_dims + 1);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i <= first->n_dims; i++) {
        shape[i] = i == dim ? c->arguments[0].n_inputs : first->shape[i < dim ? i : i - 1];
    }
    struct expected_output *output =
        add_output(e, RELATION_NEW, c->inputs[0].dtype, first->n_dims + 1, shape);
    FOR_EACH(at, first->n_dims + 1, shape)
    {
        int64_t index[SHOAL_MAX_DIMS] = {0};
        for (int i = 0; i < first->n_dims; i++) {
            index[i] = at.index[i < dim ? i : i + 1];
        }
        output->values[at.at] = case_load(c, (int)at.index[dim], index);
    }
}

/* Arithmetic ------------------------------------------------------------------------------------------------- */

/* Sizes of 1 and missing dimensions stretch; written from the definition, not from layout_broadcast. */
static inline int broadcast_shape(const struct layout *a, const struct layout *b, int64_t *shape)
{
    int n_dims = a->n_dims > b->n_dims ? a->n_dims : b->n_dims;
    for (int i = 0; i < n_dims; i++) {
        int a_dim = i - (n_dims - a->n_dims);
        int b_dim = i - (n_dims - b->n_dims);
        int64_t a_size = a_dim < 0 ? 1 : a->shape[a_dim];
        int64_t b_size = b_dim < 0 ? 1 : b->shape[b_dim];
        shape[i] = a_size == 1 ? b_size : a_size;
    }
    return n_dims;
}

static inline void expect_binary(const struct op_case *c, struct expectation *e, char verb)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = broadcast_shape(layout_of(c, 0), layout_of(c, 1), shape);
    struct expected_output *output = add_output(e, RELATION_NEW, c->inputs[0].dtype, n_dims, shape);
    FOR_EACH(at, n_dims, shape)
    {
        output->values[at.at] = scalar_compute(output->dtype, verb, load_broadcast(c, 0, n_dims, at.index),
                                               load_broadcast(c, 1, n_dims, at.index));
    }
}

static inline void expect_binary_in_place(const struct op_case *c, struct expectation *e, int self, int other,
                                          char verb)
{
    const struct layout *layout = layout_of(c, self);
    add_same(e, c, self);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        struct scalar x = case_load(c, self, at.index);
        struct scalar y = load_broadcast(c, other, layout->n_dims, at.index);
        write_place(e, c, self, place_of(layout, at.index),
                    scalar_compute(c->inputs[self].dtype, verb, x, y));
    }
}

/* The number of an operator: a float is whole where the dtype is an integer's, and wraps like the int it is. */
static inline struct scalar operand_as(const struct op_case *c, shoal_dtype dtype)
{
    const struct case_argument *number = &c->arguments[1];
    enum dtype_kind kind = dtype_kind(dtype);
    bool is_integer = kind == DTYPE_KIND_SIGNED || kind == DTYPE_KIND_UNSIGNED;
    if (!is_integer || number->kind == SHOAL_VALUE_INT) {
        return number_as(c, 1, dtype);
    }
    double real = number->real;
    uint64_t bits = real < 0 ? 0 - (uint64_t)-real : (uint64_t)real;
    return (struct scalar){.bits = wrap_to(dtype, bits)};
}

static inline void expect_with_number(const struct op_case *c, struct expectation *e, int self, char verb)
{
    const struct layout *layout = layout_of(c, self);
    shoal_dtype dtype = c->inputs[self].dtype;
    struct scalar number = operand_as(c, dtype);
    struct expected_output *output = add_output(e, RELATION_NEW, dtype, layout->n_dims, layout->shape);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        output->values[at.at] = scalar_compute(dtype, verb, case_load(c, self, at.index), number);
    }
}

static inline void expect_with_number_in_place(const struct op_case *c, struct expectation *e, char verb)
{
    const struct layout *layout = layout_of(c, 0);
    shoal_dtype dtype = c->inputs[0].dtype;
    struct scalar number = operand_as(c, dtype);
    add_same(e, c, 0);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        write_place(e, c, 0, place_of(layout, at.index),
                    scalar_compute(dtype, verb, case_load(c, 0, at.index), number));
    }
}

#define EXPECT_OPERATOR(name, verb)               \
    EXPECT(name)                                  \
    {                                             \
        expect_binary(c, e, verb);                \
    }                                             \
    EXPECT(name##_)                               \
    {                                             \
        expect_binary_in_place(c, e, 0, 1, verb); \
    }                                             \
    EXPECT(name##_scalar)                         \
    {                                             \
        expect_with_number(c, e, 0, verb);        \
    }                                             \
    EXPECT(name##_scalar_)                        \
    {                                             \
        expect_with_number_in_place(c, e, verb);  \
    }
EXPECT_OPERATOR(add, '+')
EXPECT_OPERATOR(sub, '-')
EXPECT_OPERATOR(mul, '*')
EXPECT_OPERATOR(div, '/')

EXPECT(neg)
{
    const struct layout *layout = layout_of(c, 0);
    struct expected_output *output =
        add_output(e, RELATION_NEW, c->inputs[0].dtype, layout->n_dims, layout->shape);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        output->values[at.at] = scalar_negate(output->dtype, case_load(c, 0, at.index));
    }
}

EXPECT(neg_)
{
    const struct layout *layout = layout_of(c, 0);
    add_same(e, c, 0);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        write_place(e, c, 0, place_of(layout, at.index),
                    scalar_negate(c->inputs[0].dtype, case_load(c, 0, at.index)));
    }
}

/* Rounds a sum once; a mean divides before. */
static inline struct scalar finish_sum(shoal_dtype dtype, struct scalar sum, int64_t divisor)
{
    bool is_complex = dtype_kind(dtype) == DTYPE_KIND_COMPLEX;
    if (divisor > 0) {
        sum.re /= (double)divisor;
        sum.im /= (double)divisor;
    }
    return (struct scalar){.re = round_to(dtype, sum.re),
                           .im = is_complex ? round_to(dtype, sum.im) : 0,
                           .bits = wrap_to(dtype, sum.bits)};
}

/* Floats in f64, complex in c128, integers modulo 2^64, in row-major order, each sum from zero. */
static inline void expect_reduced(const struct op_case *c, struct expectation *e, bool is_mean)
{
    const struct layout *from = layout_of(c, 0);
    const struct case_argument *dims = &c->arguments[1];
    bool is_reduced[SHOAL_MAX_DIMS] = {false};
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int64_t kept[SHOAL_MAX_DIMS] = {0};
    int64_t n_each = 1;
    int n_dims = 0;
    for (int i = 0; i < dims->n_ints; i++) {
        is_reduced[dims->ints[i] < 0 ? dims->ints[i] + from->n_dims : dims->ints[i]] = true;
    }
    for (int i = 0; i < from->n_dims; i++) {
        is_reduced[i] = is_reduced[i] || dims->n_ints == 0;
        kept[i] = is_reduced[i] ? 1 : from->shape[i];
        n_each *= is_reduced[i] ? from->shape[i] : 1;
        if (!is_reduced[i] || c->arguments[2].boolean) {
            shape[n_dims++] = kept[i];
        }
    }
    struct expected_output *output = add_output(e, RELATION_NEW, c->inputs[0].dtype, n_dims, shape);
    int64_t n_sums = count_of(n_dims, shape);
    memset(output->values, 0, (size_t)n_sums * sizeof(output->values[0]));
    FOR_EACH(at, from->n_dims, from->shape)
    {
        int64_t to = 0;
        for (int i = 0; i < from->n_dims; i++) {
            to = to * kept[i] + (is_reduced[i] ? 0 : at.index[i]);
        }
        struct scalar value = case_load(c, 0, at.index);
        output->values[to].re += value.re;
        output->values[to].im += value.im;
        output->values[to].bits += value.bits;
    }
    bool is_complex = output->dtype == SHOAL_C64 || output->dtype == SHOAL_C128;
    for (int64_t i = 0; i < n_sums; i++) {
        output->values[i] = is_mean && n_each == 0
                                ? (struct scalar){.re = (double)NAN, .im = is_complex ? (double)NAN : 0}
                                : finish_sum(output->dtype, output->values[i], is_mean ? n_each : 0);
    }
}

EXPECT(sum)
{
    expect_reduced(c, e, /*is_mean=*/false);
}

EXPECT(mean)
{
    expect_reduced(c, e, /*is_mean=*/true);
}

/* Lists -------------------------------------------------------------------------------------------------------- */

EXPECT(foreach_copy_)
{
    for (int i = 0; i < c->arguments[0].n_inputs; i++) {
        expect_copied(c, e, i, input_of(c, 1) + i);
    }
}

EXPECT(foreach_add_)
{
    for (int i = 0; i < c->arguments[0].n_inputs; i++) {
        expect_binary_in_place(c, e, i, input_of(c, 1) + i, '+');
    }
}

EXPECT(foreach_div)
{
    for (int i = 0; i < c->arguments[0].n_inputs; i++) {
        expect_with_number(c, e, i, '/');
    }
}

/* Sharding ----------------------------------------------------------------------------------------------------- */

/* Where chunk_cat puts an element: `column` elements of other tensors are before this one's in a row. */
static inline int64_t chunk_place(const struct layout *layout, const int64_t *index, int dim,
                                  int64_t n_chunks, int64_t row_elems, int64_t column)
{
    int64_t block = 0;
    int64_t inner = 0;
    int64_t inner_elems = count_of(layout->n_dims - dim - 1, layout->shape + dim + 1);
    int64_t chunk_rows = (layout->shape[dim] + n_chunks - 1) / n_chunks;
    for (int i = 0; i < dim; i++) {
        block = block * layout->shape[i] + index[i];
    }
    for (int i = dim + 1; i < layout->n_dims; i++) {
        inner = inner * layout->shape[i] + index[i];
    }
    int64_t row = block * n_chunks + index[dim] / chunk_rows;
    return row * row_elems + column + index[dim] % chunk_rows * inner_elems + inner;
}

/* The values of chunk_cat, row-major; inputs 0..n-1. Returns how many elements a row has. */
static inline int64_t chunk_row_elems(const struct op_case *c, int n, int64_t n_chunks, int dim)
{
    int64_t row_elems = 0;
    for (int i = 0; i < n; i++) {
        row_elems += chunk_elems_of(c, i, n_chunks, dim);
    }
    return row_elems;
}

static inline void fill_chunks(const struct op_case *c, int n, int64_t n_chunks, int dim, shoal_dtype dtype,
                               struct scalar *values)
{
    int64_t row_elems = chunk_row_elems(c, n, n_chunks, dim);
    int64_t column = 0;
    memset(values, 0,
           (size_t)(count_of(dim, layout_of(c, 0)->shape) * n_chunks * row_elems) * sizeof(values[0]));
    for (int i = 0; i < n; i++) {
        const struct layout *layout = layout_of(c, i);
        FOR_EACH(at, layout->n_dims, layout->shape)
        {
            values[chunk_place(layout, at.index, dim, n_chunks, row_elems, column)] =
                scalar_cast(dtype, c->inputs[i].dtype, case_load(c, i, at.index));
        }
        column += chunk_elems_of(c, i, n_chunks, dim);
    }
}

EXPECT(chunk_cat)
{
    int n = c->arguments[0].n_inputs;
    int dim = dim_of(c, 3, layout_of(c, 0)->n_dims);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    memcpy(shape, layout_of(c, 0)->shape, (size_t)dim * sizeof(shape[0]));
    shape[dim] = int_of(c, 1);
    shape[dim + 1] = chunk_row_elems(c, n, shape[dim], dim);
    struct expected_output *output = add_output(e, RELATION_NEW, c->arguments[2].dtype, dim + 2, shape);
    fill_chunks(c, n, shape[dim], dim, output->dtype, output->values);
}

EXPECT(chunk_cat_out)
{
    int out = input_of(c, 0);
    const struct layout *layout = layout_of(c, out);
    struct scalar *values = calloc((size_t)count_of(layout->n_dims, layout->shape), sizeof(*values));
    REQUIRE(values != NULL);
    fill_chunks(c, c->arguments[1].n_inputs, int_of(c, 2), dim_of(c, 3, layout_of(c, 0)->n_dims),
                c->inputs[out].dtype, values);
    add_same(e, c, out);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        write_place(e, c, out, place_of(layout, at.index), values[at.at]);
    }
    free(values);
}

EXPECT(split_with_sizes_copy_out)
{
    int dim = dim_of(c, 3, layout_of(c, 0)->n_dims);
    int64_t start = 0;
    for (int i = 0; i < c->arguments[0].n_inputs; i++) {
        int out = input_of(c, 0) + i;
        const struct layout *layout = layout_of(c, out);
        add_same(e, c, out);
        FOR_EACH(at, layout->n_dims, layout->shape)
        {
            int64_t index[SHOAL_MAX_DIMS] = {0};
            memcpy(index, at.index, sizeof(index));
            index[dim] += start;
            write_place(e, c, out, place_of(layout, at.index), case_load(c, 0, index));
        }
        start += layout->shape[dim];
    }
}

EXPECT(split_with_sizes_copy)
{
    const struct layout *from = layout_of(c, 0);
    int dim = dim_of(c, 2, from->n_dims);
    int64_t start = 0;
    for (int i = 0; i < c->arguments[1].n_ints; i++) {
        int64_t shape[SHOAL_MAX_DIMS] = {0};
        memcpy(shape, from->shape, sizeof(shape));
        shape[dim] = c->arguments[1].ints[i];
        struct expected_output *output = add_output(e, RELATION_NEW, c->inputs[0].dtype, from->n_dims, shape);
        FOR_EACH(at, from->n_dims, shape)
        {
            int64_t index[SHOAL_MAX_DIMS] = {0};
            memcpy(index, at.index, sizeof(index));
            index[dim] += start;
            output->values[at.at] = case_load(c, 0, index);
        }
        start += shape[dim];
    }
}

EXPECT(all_gather_copy_in)
{
    int flat = input_of(c, 0);
    int64_t row_elems = layout_of(c, flat)->shape[0] / int_of(c, 2);
    int64_t start = layout_of(c, flat)->offset + int_of(c, 3) * row_elems;
    struct expected_output *row = add_view(e, c, flat, 1, &row_elems);
    int64_t at_row = 0;
    add_same(e, c, flat);
    for (int i = 0; i < c->arguments[1].n_inputs; i++) {
        const struct layout *layout = layout_of(c, i);
        FOR_EACH(at, layout->n_dims, layout->shape)
        {
            row->places[at_row] = start + at_row;
            write_place(e, c, flat, start + at_row,
                        scalar_cast(c->inputs[flat].dtype, c->inputs[i].dtype, case_load(c, i, at.index)));
            at_row++;
        }
    }
}

static inline bool is_equal(shoal_dtype dtype, struct scalar a, struct scalar b)
{
    bool is_same_re = a.re == b.re || (isnan(a.re) && isnan(b.re));
    bool is_same_im = a.im == b.im || (isnan(a.im) && isnan(b.im));
    switch (dtype_kind(dtype)) {
    case DTYPE_KIND_FLOAT:
    case DTYPE_KIND_FLOAT8:
        return is_same_re;
    case DTYPE_KIND_COMPLEX:
        return is_same_re && is_same_im;
    case DTYPE_KIND_SIGNED:
    case DTYPE_KIND_UNSIGNED:
    case DTYPE_KIND_BOOLEAN:
        return a.bits == b.bits;
    }
    return false;
}

EXPECT(where_equal)
{
    const struct layout *layout = layout_of(c, 0);
    shoal_dtype dtype = c->inputs[0].dtype;
    struct expected_output *output = add_output(e, RELATION_NEW, dtype, layout->n_dims, layout->shape);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        bool is_kept = is_equal(dtype, case_load(c, 1, at.index), case_load(c, 2, at.index));
        output->values[at.at] = is_kept ? case_load(c, 0, at.index) : (struct scalar){0, 0, 0};
    }
}

EXPECT(as_strided_scatter)
{
    const struct layout *layout = layout_of(c, 0);
    struct layout part = {.n_dims = c->arguments[2].n_ints, .offset = int_of(c, 4)};
    memcpy(part.strides, c->arguments[3].ints, sizeof(part.strides));
    struct expected_output *output =
        add_output(e, RELATION_NEW, c->inputs[0].dtype, layout->n_dims, layout->shape);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        output->values[at.at] = case_load(c, 0, at.index);
    }
    FOR_EACH(at, part.n_dims, c->arguments[2].ints)
    {
        output->values[place_of(&part, at.index)] = case_load(c, 1, at.index);
    }
}

/* The table -------------------------------------------------------------------------------------------------------- */

typedef void (*expect_function)(const struct op_case *c, struct expectation *e);

static const expect_function expect_functions[OP_COUNT] = {
#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) [OP_##name] = expect_##name,
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP
};

static inline void expect_call(const struct op_case *c, struct expectation *e)
{
    e->n_outputs = 0;
    e->n_values = 0;
    e->n_places = 0;
    for (int i = 0; i < c->n_inputs; i++) {
        size_t elems = (size_t)c->inputs[i].storage_elems;
        memcpy(e->bytes[i], c->inputs[i].bytes, elems * dtype_bytes(c->inputs[i].dtype));
        memset(e->is_written[i], 0, elems);
    }
    expect_functions[c->op->index](c, e);
}

#endif
