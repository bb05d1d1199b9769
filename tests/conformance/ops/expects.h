/* SPDX-License-Identifier: MIT */
/*
 * expect_<name> for every row of ops.def that needs no group: what a described call must give, element by element, by index
 * arithmetic and the scalars of scalar.h. Outputs are new values, places in an input's storage (views), or an
 * input itself; what is written in place goes into a copy of the storages.
 */
#ifndef CONFORMANCE_EXPECTS_H
#define CONFORMANCE_EXPECTS_H

#include "conformance/ops/cases.h"

enum {
    EXPECT_MAX_OUTPUTS = 64,
    EXPECT_MAX_ELEMS = 32768
};

enum relation {
    RELATION_NEW,
    RELATION_VIEW,
    RELATION_SAME
};

struct expected_output {
    enum relation relation;
    int source; /* the input that is looked at, or given back */
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    struct scalar *values; /* new: row-major; NULL when the contents are undefined */
    int64_t *places;       /* views: elements of the source's storage */
};

struct expectation {
    int n_outputs;
    struct expected_output outputs[EXPECT_MAX_OUTPUTS];
    /* Storages after the call, by owning input, and which elements were written. */
    _Alignas(16) unsigned char bytes[CASE_MAX_INPUTS][CASE_MAX_STORAGE_ELEMS * 16];
    bool is_written[CASE_MAX_INPUTS][CASE_MAX_STORAGE_ELEMS];
    size_t n_values;
    struct scalar values[EXPECT_MAX_ELEMS];
    size_t n_places;
    int64_t places[EXPECT_MAX_ELEMS];
};

#define EXPECT(name) static inline void expect_##name(const struct op_case *c, struct expectation *e)
#define FOR_EACH(at, n_dims, shape) \
    for (struct walk at = walk_begin(n_dims, shape); !(at).is_over; walk_next(&(at)))

static inline struct expected_output *add_output(struct expectation *e, enum relation relation,
                                                 shoal_dtype dtype, int n_dims, const int64_t *shape)
{
    struct expected_output *output = &e->outputs[e->n_outputs++];
    int64_t count = count_of(n_dims, shape);
    *output = (struct expected_output){.relation = relation, .source = -1, .dtype = dtype, .n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) {
        output->shape[i] = shape[i];
    }
    output->values = &e->values[e->n_values];
    output->places = &e->places[e->n_places];
    e->n_values += relation == RELATION_NEW ? (size_t)count : 0;
    e->n_places += relation == RELATION_VIEW ? (size_t)count : 0;
    if (e->n_outputs > EXPECT_MAX_OUTPUTS - 1 || e->n_values > EXPECT_MAX_ELEMS ||
        e->n_places > EXPECT_MAX_ELEMS) {
        test_failed(__FILE__, __LINE__, "an expectation is too large");
        abort();
    }
    return output;
}

static inline struct expected_output *add_view(struct expectation *e, const struct op_case *c, int source,
                                               int n_dims, const int64_t *shape)
{
    struct expected_output *output = add_output(e, RELATION_VIEW, c->inputs[source].dtype, n_dims, shape);
    output->source = source;
    return output;
}

static inline void add_same(struct expectation *e, const struct op_case *c, int source)
{
    const struct layout *layout = layout_of(c, source);
    struct expected_output *output =
        add_output(e, RELATION_SAME, c->inputs[source].dtype, layout->n_dims, layout->shape);
    output->source = source;
}

static inline void write_place(struct expectation *e, const struct op_case *c, int input, int64_t place,
                               struct scalar value)
{
    int owner = c->inputs[input].owner;
    shoal_dtype dtype = c->inputs[input].dtype;
    scalar_store(dtype, &e->bytes[owner][(size_t)place * dtype_bytes(dtype)], value);
    e->is_written[owner][place] = true;
}

/* Arguments -------------------------------------------------------------------------------------------------- */

static inline int input_of(const struct op_case *c, int argument)
{
    return c->arguments[argument].first_input;
}

static inline int64_t int_of(const struct op_case *c, int argument)
{
    return c->arguments[argument].integer;
}

static inline int dim_of(const struct op_case *c, int argument, int n_dims)
{
    int64_t dim = int_of(c, argument);
    return (int)(dim < 0 ? dim + n_dims : dim);
}

static inline struct scalar number_as(const struct op_case *c, int argument, shoal_dtype dtype)
{
    const struct case_argument *number = &c->arguments[argument];
    return scalar_from_number(dtype, number->kind == SHOAL_VALUE_INT, number->integer, number->real);
}

/* The element of an input that a broadcast index means. */
static inline struct scalar load_broadcast(const struct op_case *c, int input, int n_dims,
                                           const int64_t *index)
{
    const struct layout *layout = layout_of(c, input);
    int64_t own[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i < layout->n_dims; i++) {
        own[i] = layout->shape[i] == 1 ? 0 : index[n_dims - layout->n_dims + i];
    }
    return case_load(c, input, own);
}

/* Values of an input in row-major order, cast. */
static inline void copy_values(const struct op_case *c, int input, shoal_dtype to, struct scalar *values)
{
    const struct layout *layout = layout_of(c, input);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        values[at.at] = scalar_cast(to, c->inputs[input].dtype, case_load(c, input, at.index));
    }
}

/* Making and copying --------------------------------------------------------------------------------------- */

EXPECT(empty)
{
    add_output(e, RELATION_NEW, c->arguments[1].dtype, c->arguments[0].n_ints, c->arguments[0].ints)->values =
        NULL;
}

static inline void expect_filled(const struct op_case *c, struct expectation *e, shoal_dtype dtype,
                                 struct scalar value)
{
    const struct case_argument *shape = &c->arguments[0];
    struct expected_output *output = add_output(e, RELATION_NEW, dtype, shape->n_ints, shape->ints);
    for (int64_t i = 0; i < count_of(shape->n_ints, shape->ints); i++) {
        output->values[i] = value;
    }
}

EXPECT(zeros)
{
    expect_filled(c, e, c->arguments[1].dtype, (struct scalar){0, 0, 0});
}

EXPECT(full)
{
    expect_filled(c, e, c->arguments[2].dtype, number_as(c, 1, c->arguments[2].dtype));
}

static inline void expect_cast(const struct op_case *c, struct expectation *e, int input, shoal_dtype dtype)
{
    const struct layout *layout = layout_of(c, input);
    struct expected_output *output = add_output(e, RELATION_NEW, dtype, layout->n_dims, layout->shape);
    copy_values(c, input, dtype, output->values);
}

EXPECT(clone)
{
    expect_cast(c, e, 0, c->inputs[0].dtype);
}

EXPECT(contiguous)
{
    const struct layout *layout = layout_of(c, 0);
    bool is_contiguous = true;
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        is_contiguous = is_contiguous && place_of(layout, at.index) == layout->offset + at.at;
    }
    if (is_contiguous) {
        add_same(e, c, 0);
    } else {
        expect_cast(c, e, 0, c->inputs[0].dtype);
    }
}

/* Each run is on one device, which its argument names. */
EXPECT(to_device)
{
    add_same(e, c, 0);
}

EXPECT(to_dtype)
{
    if (c->arguments[1].dtype == c->inputs[0].dtype) {
        add_same(e, c, 0);
    } else {
        expect_cast(c, e, 0, c->arguments[1].dtype);
    }
}

/* Copying a view onto itself touches nothing: a bool that is neither 0 nor 1 stays what it is. */
static inline bool is_same_view(const struct op_case *c, int a, int b)
{
    const struct layout *x = layout_of(c, a);
    const struct layout *y = layout_of(c, b);
    bool is_same =
        c->inputs[a].owner == c->inputs[b].owner && x->offset == y->offset && x->n_dims == y->n_dims;
    for (int i = 0; is_same && i < x->n_dims; i++) {
        is_same = x->shape[i] == y->shape[i] && x->strides[i] == y->strides[i];
    }
    return is_same;
}

static inline void expect_copied(const struct op_case *c, struct expectation *e, int self, int source)
{
    const struct layout *layout = layout_of(c, self);
    add_same(e, c, self);
    if (is_same_view(c, self, source)) {
        return;
    }
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        struct scalar value = load_broadcast(c, source, layout->n_dims, at.index);
        write_place(e, c, self, place_of(layout, at.index),
                    scalar_cast(c->inputs[self].dtype, c->inputs[source].dtype, value));
    }
}

EXPECT(copy_)
{
    expect_copied(c, e, 0, 1);
}

/* Views ------------------------------------------------------------------------------------------------------ */

/* The same elements in the same order under another shape. */
static inline void expect_relaid(const struct op_case *c, struct expectation *e, int n_dims,
                                 const int64_t *shape)
{
    const struct layout *from = layout_of(c, 0);
    struct expected_output *output = add_view(e, c, 0, n_dims, shape);
    FOR_EACH(at, from->n_dims, from->shape)
    {
        output->places[at.at] = place_of(from, at.index);
    }
}

static inline void expect_relaid_or_copied(const struct op_case *c, struct expectation *e, int n_dims,
                                           const int64_t *shape)
{
    if (view_exists(layout_of(c, 0), n_dims, shape)) {
        expect_relaid(c, e, n_dims, shape);
    } else {
        struct expected_output *output = add_output(e, RELATION_NEW, c->inputs[0].dtype, n_dims, shape);
        copy_values(c, 0, output->dtype, output->values);
    }
}

/* The shape argument with its -1 worked out. */
static inline int spelled_out(const struct op_case *c, int64_t *shape)
{
    const struct case_argument *spelled = &c->arguments[1];
    const struct layout *from = layout_of(c, 0);
    int64_t others = 1;
    for (int i = 0; i < spelled->n_ints; i++) {
        others *= spelled->ints[i] == -1 ? 1 : spelled->ints[i];
    }
    for (int i = 0; i < spelled->n_ints; i++) {
        bool is_left = spelled->ints[i] == -1;
        shape[i] = is_left ? count_of(from->n_dims, from->shape) / others : spelled->ints[i];
    }
    return spelled->n_ints;
}

EXPECT(view)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = spelled_out(c, shape);
    expect_relaid(c, e, n_dims, shape);
}

/* Where each element begins, in bytes, is where it begins in the input. */
EXPECT(view_dtype)
{
    const struct layout *from = layout_of(c, 0);
    int64_t from_bytes = (int64_t)dtype_bytes(c->inputs[0].dtype);
    int64_t to_bytes = (int64_t)dtype_bytes(c->arguments[1].dtype);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int last = from->n_dims - 1;
    if (c->arguments[1].dtype == c->inputs[0].dtype) {
        add_same(e, c, 0);
        return;
    }
    memcpy(shape, from->shape, sizeof(shape));
    if (last >= 0) {
        shape[last] = shape[last] * from_bytes / to_bytes;
    }
    struct expected_output *output = add_view(e, c, 0, from->n_dims, shape);
    output->dtype = c->arguments[1].dtype;
    FOR_EACH(at, from->n_dims, shape)
    {
        int64_t index[SHOAL_MAX_DIMS] = {0};
        memcpy(index, at.index, sizeof(index));
        int64_t byte = last >= 0 ? index[last] * to_bytes : 0;
        if (last >= 0) {
            index[last] = byte / from_bytes;
        }
        output->places[at.at] = (place_of(from, index) * from_bytes + byte % from_bytes) / to_bytes;
    }
}

EXPECT(reshape)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = spelled_out(c, shape);
    expect_relaid_or_copied(c, e, n_dims, shape);
}

EXPECT(flatten)
{
    const struct layout *from = layout_of(c, 0);
    int64_t shape[SHOAL_MAX_DIMS] = {1};
    int n_dims = 0;
    int known = from->n_dims == 0 ? 1 : from->n_dims;
    int first = dim_of(c, 1, known);
    int last = dim_of(c, 2, known);
    for (int i = 0; i < from->n_dims; i++) {
        if (i > first && i <= last) {
            shape[n_dims - 1] *= from->shape[i];
        } else {
            shape[n_dims++] = from->shape[i];
        }
    }
    expect_relaid_or_copied(c, e, n_dims == 0 ? 1 : n_dims, shape);
}

/* Elements start, start + step, ... of one dimension. */
static inline void expect_window(const struct op_case *c, struct expectation *e, int dim, int64_t start,
                                 int64_t length, int64_t step)
{
    const struct layout *from = layout_of(c, 0);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    memcpy(shape, from->shape, sizeof(shape));
    shape[dim] = length;
    struct expected_output *output = add_view(e, c, 0, from->n_dims, shape);
    FOR_EACH(at, from->n_dims, shape)
    {
        int64_t index[SHOAL_MAX_DIMS] = {0};
        memcpy(index, at.index, sizeof(index));
        index[dim] = start + at.index[dim] * step;
        output->places[at.at] = place_of(from, index);
    }
}

EXPECT(narrow)
{
    const struct layout *from = layout_of(c, 0);
    int dim = dim_of(c, 1, from->n_dims);
    int64_t start = int_of(c, 2);
    expect_window(c, e, dim, start < 0 ? start + from->shape[dim] : start, int_of(c, 3), 1);
}

EXPECT(slice)
{
    const struct layout *from = layout_of(c, 0);
    int dim = dim_of(c, 1, from->n_dims);
    int64_t size = from->shape[dim];
    int64_t bounds[2];
    for (int i = 0; i < 2; i++) {
        int64_t bound = int_of(c, 2 + i);
        bound = bound < 0 ? bound + size : bound;
        bounds[i] = bound < 0 ? 0 : bound > size ? size : bound;
    }
    /* Count as a loop would, with a step that may be larger than anything. */
    int64_t step = int_of(c, 4) > size ? size + 1 : int_of(c, 4);
    int64_t length = 0;
    for (int64_t i = bounds[0]; i < bounds[1]; i += step) {
        length++;
    }
    expect_window(c, e, dim, bounds[0], length, step);
}

EXPECT(select)
{
    const struct layout *from = layout_of(c, 0);
    int dim = dim_of(c, 1, from->n_dims);
    int64_t chosen = int_of(c, 2) < 0 ? int_of(c, 2) + from->shape[dim] : int_of(c, 2);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i + 1 < from->n_dims; i++) {
        shape[i] = from->shape[i < dim ? i : i + 1];
    }
    struct expected_output *output = add_view(e, c, 0, from->n_dims - 1, shape);
    FOR_EACH(at, from->n_dims - 1, shape)
    {
        int64_t index[SHOAL_MAX_DIMS] = {0};
        for (int i = 0; i < from->n_dims; i++) {
            index[i] = i == dim ? chosen : at.index[i < dim ? i : i - 1];
        }
        output->places[at.at] = place_of(from, index);
    }
}

/* Dimension i of the result is dimension dims[i] of the input. */
static inline void expect_permuted(const struct op_case *c, struct expectation *e, const int *dims)
{
    const struct layout *from = layout_of(c, 0);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i < from->n_dims; i++) {
        shape[i] = from->shape[dims[i]];
    }
    struct expected_output *output = add_view(e, c, 0, from->n_dims, shape);
    FOR_EACH(at, from->n_dims, shape)
    {
        int64_t index[SHOAL_MAX_DIMS] = {0};
        for (int i = 0; i < from->n_dims; i++) {
            index[dims[i]] = at.index[i];
        }
        output->places[at.at] = place_of(from, index);
    }
}

EXPECT(permute)
{
    int dims[SHOAL_MAX_DIMS];
    int n_dims = layout_of(c, 0)->n_dims;
    for (int i = 0; i < n_dims; i++) {
        int64_t dim = c->arguments[1].ints[i];
        dims[i] = (int)(dim < 0 ? dim + n_dims : dim);
    }
    expect_permuted(c, e, dims);
}

EXPECT(transpose)
{
    int dims[SHOAL_MAX_DIMS];
    int n_dims = layout_of(c, 0)->n_dims;
    for (int i = 0; i < n_dims; i++) {
        dims[i] = i;
    }
    int a = dim_of(c, 1, n_dims);
    int b = dim_of(c, 2, n_dims);
    dims[a] = b;
    dims[b] = a;
    expect_permuted(c, e, dims);
}

EXPECT(squeeze)
{
    const struct layout *from = layout_of(c, 0);
    int dim = dim_of(c, 1, from->n_dims);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i + 1 < from->n_dims; i++) {
        shape[i] = from->shape[i < dim ? i : i + 1];
    }
    expect_relaid(c, e, from->n_dims - 1, shape);
}

EXPECT(squeeze_all)
{
    const struct layout *from = layout_of(c, 0);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = 0;
    for (int i = 0; i < from->n_dims; i++) {
        if (from->shape[i] != 1) {
            shape[n_dims++] = from->shape[i];
        }
    }
    expect_relaid(c, e, n_dims, shape);
}

EXPECT(unsqueeze)
{
    const struct layout *from = layout_of(c, 0);
    int dim = dim_of(c, 1, from->n_dims + 1);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i <= from->n_dims; i++) {
        shape[i] = i == dim ? 1 : from->shape[i < dim ? i : i - 1];
    }
    expect_relaid(c, e, from->n_dims + 1, shape);
}

EXPECT(expand)
{
    const struct layout *from = layout_of(c, 0);
    const struct case_argument *wanted = &c->arguments[1];
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int missing = wanted->n_ints - from->n_dims;
    for (int i = 0; i < wanted->n_ints; i++) {
        shape[i] = wanted->ints[i] == -1 ? from->shape[i - missing] : wanted->ints[i];
    }
    struct expected_output *output = add_view(e, c, 0, wanted->n_ints, shape);
    FOR_EACH(at, wanted->n_ints, shape)
    {
        int64_t index[SHOAL_MAX_DIMS] = {0};
        for (int i = 0; i < from->n_dims; i++) {
            index[i] = from->shape[i] == 1 ? 0 : at.index[missing + i];
        }
        output->places[at.at] = place_of(from, index);
    }
}

EXPECT(as_strided)
{
    struct layout layout = {.n_dims = c->arguments[1].n_ints, .offset = int_of(c, 3)};
    memcpy(layout.strides, c->arguments[2].ints, sizeof(layout.strides));
    struct expected_output *output = add_view(e, c, 0, layout.n_dims, c->arguments[1].ints);
    FOR_EACH(at, layout.n_dims, c->arguments[1].ints)
    {
        output->places[at.at] = place_of(&layout, at.index);
    }
}

EXPECT(getitem)
{
    int64_t index = int_of(c, 1);
    add_same(e, c, (int)(index < 0 ? index + c->arguments[0].n_inputs : index));
}

EXPECT(control_deps)
{
    const struct layout *layout = layout_of(c, 0);
    struct expected_output *output = add_view(e, c, 0, layout->n_dims, layout->shape);
    FOR_EACH(at, layout->n_dims, layout->shape)
    {
        output->places[at.at] = place_of(layout, at.index);
    }
}

#endif
