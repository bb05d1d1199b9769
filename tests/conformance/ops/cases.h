/* SPDX-License-Identifier: MIT */
/*
 * case_<name> for every row of ops.def that needs no group: describes one random valid call. The table at the end expands the
 * rows, so that a row without its generator does not compile.
 */
#ifndef CONFORMANCE_CASES_H
#define CONFORMANCE_CASES_H

#include "conformance/ops/op_case.h"

#define CASE(name) static inline void case_##name(struct op_case *c, struct test_random *r)

static inline const struct layout *layout_of(const struct op_case *c, int input)
{
    return &c->inputs[input].layout;
}

static inline int add_any(struct op_case *c, struct test_random *r)
{
    int input = add_input(c, r, pick_dtype(r), 0, 5);
    add_tensor(c, input);
    return input;
}

/* With at least one dimension. */
static inline int add_any_nd(struct op_case *c, struct test_random *r)
{
    int input = add_input(c, r, pick_dtype(r), 1, 5);
    add_tensor(c, input);
    return input;
}

/* Making and copying --------------------------------------------------------------------------------------- */

static inline void add_shape(struct op_case *c, struct test_random *r)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_shape(r, 0, 5, shape);
    add_ints(c, n_dims, shape);
}

CASE(empty)
{
    add_shape(c, r);
    add_dtype(c, pick_dtype(r));
    add_device(c);
}

CASE(zeros)
{
    case_empty(c, r);
}

CASE(full)
{
    add_shape(c, r);
    add_number(c, r);
    add_dtype(c, pick_dtype(r));
    add_device(c);
}

CASE(clone)
{
    (void)add_any(c, r);
}

CASE(contiguous)
{
    (void)add_any(c, r);
}

CASE(to_dtype)
{
    int self = add_any(c, r);
    add_dtype(c, chance(r, 8) ? c->inputs[self].dtype : pick_dtype(r));
}

CASE(to_device)
{
    (void)add_any(c, r);
    add_device(c);
}

/* A target that can be written, and a source that broadcasts to it; sometimes of the same memory. */
static inline void add_target_and_source(struct op_case *c, struct test_random *r, shoal_dtype to,
                                         shoal_dtype from)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_shape(r, 0, 5, shape);
    int self = add_input_shaped(c, r, to, n_dims, shape, /*may_repeat=*/false);
    if (to == from && chance(r, 4)) {
        (void)add_input_sharing(c, r, self);
    } else {
        (void)add_input_broadcasting(c, r, from, n_dims, shape);
    }
}

CASE(copy_)
{
    shoal_dtype to = pick_dtype(r);
    add_target_and_source(c, r, to, chance(r, 2) ? to : pick_dtype(r));
    add_tensor(c, 0);
    add_tensor(c, 1);
}

/* Views ------------------------------------------------------------------------------------------------------ */

/* The definition of a possible view: the stride of each new dimension is what its first step is. */
static inline bool view_exists(const struct layout *from, int n_dims, const int64_t *shape)
{
    int64_t places[CASE_MAX_ELEMS];
    struct layout view = {.n_dims = n_dims, .offset = from->offset};
    struct walk walk = walk_begin(from->n_dims, from->shape);
    for (; !walk.is_over; walk_next(&walk)) {
        places[walk.at] = place_of(from, walk.index);
    }
    if (walk.at == 0) {
        return true;
    }
    int64_t step = 1;
    for (int i = n_dims - 1; i >= 0; i--) {
        view.strides[i] = shape[i] > 1 ? places[step] - places[0] : 0;
        step *= shape[i];
    }
    for (walk = walk_begin(n_dims, shape); !walk.is_over; walk_next(&walk)) {
        if (place_of(&view, walk.index) != places[walk.at]) {
            return false;
        }
    }
    return true;
}

/* Another shape with as many elements. */
static inline int pick_factors(struct test_random *r, int64_t count, int64_t *shape)
{
    int n_dims = 0;
    if (count == 0) {
        n_dims = (int)pick(r, 1, 4);
        for (int i = 0; i < n_dims; i++) {
            shape[i] = pick(r, 0, 3);
        }
        shape[pick(r, 0, n_dims - 1)] = 0;
        return n_dims;
    }
    while (n_dims < 5 && (count > 1 || chance(r, 3))) {
        int64_t factor = pick(r, 1, count);
        if (count % factor == 0) {
            shape[n_dims++] = factor;
            count /= factor;
        }
    }
    if (count > 1) {
        shape[n_dims++] = count;
    }
    return n_dims;
}

/* One size may be written -1, if the others say what it is. */
static inline void add_shape_spelled(struct op_case *c, struct test_random *r, int n_dims,
                                     const int64_t *shape)
{
    int64_t spelled[SHOAL_MAX_DIMS];
    memcpy(spelled, shape, sizeof(spelled));
    int at = n_dims > 0 && chance(r, 3) ? (int)pick(r, 0, n_dims - 1) : -1;
    for (int i = 0; i < n_dims; i++) {
        at = i != at && shape[i] == 0 && at >= 0 ? -1 : at;
    }
    if (at >= 0) {
        spelled[at] = -1;
    }
    add_ints(c, n_dims, spelled);
}

CASE(view)
{
    int self = add_any(c, r);
    const struct layout *from = layout_of(c, self);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_factors(r, count_of(from->n_dims, from->shape), shape);
    if (!view_exists(from, n_dims, shape)) {
        /* Its own shape with a 1 somewhere always is. */
        int at = (int)pick(r, 0, from->n_dims);
        n_dims = from->n_dims + 1;
        for (int i = 0; i < n_dims; i++) {
            shape[i] = i == at ? 1 : from->shape[i < at ? i : i - 1];
        }
    }
    add_shape_spelled(c, r, n_dims, shape);
}

/* A layout whose last dimension lies densely; the others as they like. Small: elements may be 16 small ones. */
static inline struct layout pick_dense_rows(struct test_random *r)
{
    struct layout layout = {.n_dims = (int)pick(r, 0, 3)};
    int64_t room = CASE_MAX_ELEMS / 16;
    for (int i = 0; i < layout.n_dims; i++) {
        layout.shape[i] = pick_size(r, room);
        room /= layout.shape[i] > 0 ? layout.shape[i] : 1;
    }
    pick_strides(r, &layout, /*may_repeat=*/true);
    int64_t row = pick_size(r, room);
    for (int i = 0; i < layout.n_dims; i++) {
        layout.strides[i] *= row + (chance(r, 3) ? 1 : 0);
    }
    layout.shape[layout.n_dims] = row;
    layout.strides[layout.n_dims++] = row <= 1 && chance(r, 3) ? pick(r, -9, 9) : 1;
    return layout;
}

/* The input, of elements that are `ratio` small ones, as one of those small ones. */
static inline void shrink_input(struct op_case *c, struct test_random *r, int number, shoal_dtype small,
                                int64_t ratio)
{
    struct case_input *input = &c->inputs[number];
    struct layout *layout = &input->layout;
    input->dtype = small;
    input->storage_elems = input->storage_elems * ratio + pick(r, 0, ratio - 1);
    layout->offset *= ratio;
    for (int i = 0; i < layout->n_dims - 1; i++) {
        layout->strides[i] *= ratio;
        if (layout->shape[i] == 1 && chance(r, 3)) {
            layout->strides[i] += 1; /* never walked */
        }
    }
    layout->shape[layout->n_dims - 1] *= ratio;
    layout->strides[layout->n_dims - 1] = 1;
    fill_bytes(r, input);
}

CASE(view_dtype)
{
    shoal_dtype from = pick_dtype(r);
    shoal_dtype to = chance(r, 8) ? from : pick_dtype(r);
    int64_t from_bytes = (int64_t)dtype_bytes(from);
    int64_t to_bytes = (int64_t)dtype_bytes(to);
    if (from_bytes == to_bytes) {
        add_tensor(c, add_input(c, r, from, 0, 5));
    } else {
        struct layout layout = pick_dense_rows(r);
        int self = add_input_laid(c, r, from_bytes > to_bytes ? from : to, &layout);
        if (from_bytes < to_bytes) {
            shrink_input(c, r, self, from, to_bytes / from_bytes);
        }
        add_tensor(c, self);
    }
    add_dtype(c, to);
}

CASE(reshape)
{
    int self = add_any(c, r);
    const struct layout *from = layout_of(c, self);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_factors(r, count_of(from->n_dims, from->shape), shape);
    add_shape_spelled(c, r, n_dims, shape);
}

CASE(flatten)
{
    int self = add_any(c, r);
    int n_dims = layout_of(c, self)->n_dims;
    n_dims = n_dims == 0 ? 1 : n_dims;
    bool is_whole = chance(r, 4);
    int first = is_whole ? 0 : (int)pick(r, 0, n_dims - 1);
    int last = is_whole ? n_dims - 1 : (int)pick(r, first, n_dims - 1);
    add_int(c, is_whole ? 0 : pick_dim_spelling(r, first, n_dims));
    add_int(c, is_whole ? -1 : pick_dim_spelling(r, last, n_dims));
}

CASE(narrow)
{
    int self = add_any_nd(c, r);
    int64_t size = layout_of(c, self)->shape[add_dim(c, r, layout_of(c, self)->n_dims)];
    int64_t start = pick(r, 0, size);
    add_int(c, start < size && chance(r, 4) ? start - size : start);
    add_int(c, pick(r, 0, size - start));
}

static inline int64_t pick_bound(struct test_random *r, int64_t size)
{
    static const int64_t far[] = {INT64_MAX, INT64_MIN, 1000, -1000, 0};
    return chance(r, 5) ? far[pick(r, 0, 4)] : pick(r, -size - 2, size + 2);
}

CASE(slice)
{
    int self = add_any_nd(c, r);
    int64_t size = layout_of(c, self)->shape[add_dim(c, r, layout_of(c, self)->n_dims)];
    add_int(c, pick_bound(r, size));
    add_int(c, pick_bound(r, size));
    add_int(c, chance(r, 2) ? 1 : chance(r, 8) ? INT64_MAX : pick(r, 1, size + 2));
}

CASE(select)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_shape(r, 1, 5, shape);
    int dim = (int)pick(r, 0, n_dims - 1);
    shape[dim] = shape[dim] == 0 ? 1 : shape[dim];
    add_tensor(c, add_input_shaped(c, r, pick_dtype(r), n_dims, shape, /*may_repeat=*/true));
    add_int(c, pick_dim_spelling(r, dim, n_dims));
    add_int(c, pick(r, -shape[dim], shape[dim] - 1));
}

CASE(permute)
{
    int self = add_any(c, r);
    int n_dims = layout_of(c, self)->n_dims;
    int64_t dims[SHOAL_MAX_DIMS] = {0};
    for (int i = 0; i < n_dims; i++) {
        int at = (int)pick(r, 0, i);
        dims[i] = dims[at];
        dims[at] = i;
    }
    for (int i = 0; i < n_dims; i++) {
        dims[i] = pick_dim_spelling(r, (int)dims[i], n_dims);
    }
    add_ints(c, n_dims, dims);
}

CASE(transpose)
{
    int self = add_any_nd(c, r);
    (void)add_dim(c, r, layout_of(c, self)->n_dims);
    (void)add_dim(c, r, layout_of(c, self)->n_dims);
}

CASE(squeeze)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_shape(r, 1, 5, shape);
    int dim = (int)pick(r, 0, n_dims - 1);
    shape[dim] = 1;
    add_tensor(c, add_input_shaped(c, r, pick_dtype(r), n_dims, shape, /*may_repeat=*/true));
    add_int(c, pick_dim_spelling(r, dim, n_dims));
}

CASE(squeeze_all)
{
    (void)add_any(c, r);
}

CASE(unsqueeze)
{
    int self = add_any(c, r);
    (void)add_dim(c, r, layout_of(c, self)->n_dims + 1);
}

CASE(expand)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_shape(r, 0, 5, shape);
    add_tensor(c, add_input_broadcasting(c, r, pick_dtype(r), n_dims, shape));
    const struct layout *from = layout_of(c, 0);
    int missing = n_dims - from->n_dims;
    for (int i = missing; i < n_dims; i++) {
        if (shape[i] == from->shape[i - missing] && chance(r, 3)) {
            shape[i] = -1;
        }
    }
    add_ints(c, n_dims, shape);
}

/* Any layout inside the storage of the input. */
CASE(as_strided)
{
    int self = add_any(c, r);
    int64_t elems = c->inputs[self].storage_elems;
    struct layout layout = {.n_dims = (int)pick(r, 0, 3)};
    int64_t first = 0;
    int64_t end = elems;
    for (int attempt = 0; attempt < 20; attempt++) {
        layout.offset = pick(r, 0, elems > 0 ? elems - 1 : 0);
        for (int i = 0; i < layout.n_dims; i++) {
            layout.shape[i] = elems == 0 ? 0 : pick(r, attempt > 15 ? 1 : 0, attempt > 15 ? 1 : 4);
            layout.strides[i] = pick(r, -4, 8);
        }
        if (layout_extent(layout.n_dims, layout.shape, layout.strides, layout.offset, &first, &end) ==
                SHOAL_OK &&
            first >= 0 && end <= elems) {
            break;
        }
    }
    if (elems == 0 && layout.n_dims == 0) {
        layout.n_dims = 1;
        layout.shape[0] = 0;
    }
    add_ints(c, layout.n_dims, layout.shape);
    add_ints(c, layout.n_dims, layout.strides);
    add_int(c, layout.offset);
}

/* Splitting and joining ---------------------------------------------------------------------------------------- */

/* A splitting op: self, what `argument` makes of the size, dim; the dimension is often 0, the default. */
static inline int64_t add_to_split(struct op_case *c, struct test_random *r, int *dim)
{
    int self = add_any_nd(c, r);
    const struct layout *from = layout_of(c, self);
    *dim = chance(r, 2) ? 0 : (int)pick(r, 0, from->n_dims - 1);
    return from->shape[*dim];
}

static inline void add_split_dim(struct op_case *c, struct test_random *r, int dim)
{
    int n_dims = layout_of(c, 0)->n_dims;
    add_int(c, dim == 0 && chance(r, 2) ? 0 : pick_dim_spelling(r, dim, n_dims));
}

CASE(split)
{
    int dim;
    int64_t size = add_to_split(c, r, &dim);
    add_int(c, chance(r, 8) ? INT64_MAX : pick(r, size == 0 ? 0 : 1, size + 2));
    add_split_dim(c, r, dim);
}

CASE(split_with_sizes)
{
    int dim;
    int64_t left = add_to_split(c, r, &dim);
    int64_t sizes[CASE_MAX_INTS];
    int n = 0;
    while (n < CASE_MAX_INTS - 1 && (left > 0 || chance(r, 3))) {
        sizes[n] = pick(r, 0, left);
        left -= sizes[n++];
    }
    if (left > 0) {
        sizes[n++] = left;
    }
    add_ints(c, n, sizes);
    add_split_dim(c, r, dim);
}

CASE(chunk)
{
    int dim;
    int64_t size = add_to_split(c, r, &dim);
    add_int(c, pick(r, 1, size + 3));
    add_split_dim(c, r, dim);
}

CASE(chunk_with_empty)
{
    case_chunk(c, r);
}

CASE(cat)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    shoal_dtype dtype = pick_dtype(r);
    int n_dims = pick_shape(r, 1, 5, shape);
    int dim = chance(r, 2) ? 0 : (int)pick(r, 0, n_dims - 1);
    int n = (int)pick(r, 1, 5);
    int64_t room = shape[dim];
    for (int i = 0; i < n; i++) {
        shape[dim] = pick(r, 0, room);
        (void)add_input_shaped(c, r, dtype, n_dims, shape, /*may_repeat=*/true);
    }
    add_tensors(c, 0, n);
    add_int(c, dim == 0 && chance(r, 2) ? 0 : pick_dim_spelling(r, dim, n_dims));
}

CASE(stack)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    shoal_dtype dtype = pick_dtype(r);
    int n_dims = pick_shape(r, 0, 5, shape);
    int n = (int)pick(r, 1, 5);
    for (int i = 0; i < n; i++) {
        (void)add_input_shaped(c, r, dtype, n_dims, shape, /*may_repeat=*/true);
    }
    add_tensors(c, 0, n);
    int dim = chance(r, 2) ? 0 : (int)pick(r, 0, n_dims);
    add_int(c, dim == 0 && chance(r, 2) ? 0 : pick_dim_spelling(r, dim, n_dims + 1));
}

CASE(getitem)
{
    int n = (int)pick(r, 1, 5);
    for (int i = 0; i < n; i++) {
        (void)add_input(c, r, pick_dtype(r), 0, 4);
    }
    add_tensors(c, 0, n);
    add_int(c, pick(r, -n, n - 1));
}

/* Two dimensions that do not lie in one another, one, or none. */
CASE(as_strided_scatter)
{
    int self = add_any(c, r);
    const struct layout *whole = layout_of(c, self);
    int64_t count = 1;
    for (int i = 0; i < whole->n_dims; i++) {
        count *= whole->shape[i];
    }
    struct layout part = {.n_dims = count == 0 ? 1 : (int)pick(r, 0, 2)};
    int64_t reach = 0; /* of the elements before the last in each dimension */
    for (int i = part.n_dims - 1; i >= 0; i--) {
        int64_t stride = reach + pick(r, 1, 3);
        int64_t most = count == 0 ? 0 : (count - 1 - reach) / stride + 1;
        part.shape[i] = pick(r, 0, most < 4 ? most : 4);
        part.strides[i] = chance(r, 4) ? -stride : stride;
        reach += part.shape[i] > 0 ? (part.shape[i] - 1) * stride : 0;
        part.offset += part.shape[i] > 0 && part.strides[i] < 0 ? (part.shape[i] - 1) * stride : 0;
    }
    part.offset += count > 0 ? pick(r, 0, count - 1 - reach) : 0;
    add_tensor(c,
               add_input_shaped(c, r, c->inputs[self].dtype, part.n_dims, part.shape, /*may_repeat=*/true));
    add_ints(c, part.n_dims, part.shape);
    add_ints(c, part.n_dims, part.strides);
    add_int(c, part.offset);
}

CASE(control_deps)
{
    int n = (int)pick(r, 0, 4);
    (void)add_any(c, r);
    for (int i = 0; i < n; i++) {
        (void)add_input(c, r, pick_dtype(r), 0, 4);
    }
    add_tensors(c, 1, n);
}

/* Arithmetic ------------------------------------------------------------------------------------------------- */

static inline void add_pair(struct op_case *c, struct test_random *r, shoal_dtype dtype)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_shape(r, 0, 5, shape);
    add_tensor(c, add_input_broadcasting(c, r, dtype, n_dims, shape));
    add_tensor(c, chance(r, 10) ? add_input_sharing(c, r, 0)
                                : add_input_broadcasting(c, r, dtype, n_dims, shape));
}

static inline void add_pair_(struct op_case *c, struct test_random *r, shoal_dtype dtype)
{
    add_target_and_source(c, r, dtype, dtype);
    add_tensor(c, 0);
    add_tensor(c, 1);
}

static inline void add_one(struct op_case *c, struct test_random *r, shoal_dtype dtype)
{
    add_tensor(c, add_input(c, r, dtype, 0, 5));
}

static inline void add_one_(struct op_case *c, struct test_random *r, shoal_dtype dtype)
{
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_shape(r, 0, 5, shape);
    add_tensor(c, add_input_shaped(c, r, dtype, n_dims, shape, /*may_repeat=*/false));
}

#define CASES_OF_OPERATOR(name, pick_operand_dtype) \
    CASE(name)                                      \
    {                                               \
        add_pair(c, r, pick_operand_dtype(r));      \
    }                                               \
    CASE(name##_)                                   \
    {                                               \
        add_pair_(c, r, pick_operand_dtype(r));     \
    }                                               \
    CASE(name##_scalar)                             \
    {                                               \
        add_one(c, r, pick_operand_dtype(r));       \
        add_operand(c, r);                          \
    }                                               \
    CASE(name##_scalar_)                            \
    {                                               \
        add_one_(c, r, pick_operand_dtype(r));      \
        add_operand(c, r);                          \
    }
CASES_OF_OPERATOR(add, pick_computed_dtype)
CASES_OF_OPERATOR(sub, pick_number_dtype)
CASES_OF_OPERATOR(mul, pick_computed_dtype)
CASES_OF_OPERATOR(div, pick_number_dtype)

CASE(neg)
{
    add_one(c, r, pick_number_dtype(r));
}

CASE(neg_)
{
    add_one_(c, r, pick_number_dtype(r));
}

static inline void add_reduction(struct op_case *c, struct test_random *r, shoal_dtype dtype)
{
    add_one(c, r, dtype);
    int n_dims = layout_of(c, 0)->n_dims;
    int64_t dims[SHOAL_MAX_DIMS] = {0};
    int n = 0;
    for (int i = 0; i < n_dims; i++) {
        if (chance(r, 2)) {
            int at = (int)pick(r, 0, n++);
            dims[n - 1] = dims[at];
            dims[at] = pick_dim_spelling(r, i, n_dims);
        }
    }
    add_ints(c, chance(r, 4) ? 0 : n, dims);
    add_bool(c, chance(r, 2));
}

CASE(sum)
{
    add_reduction(c, r, pick_number_dtype(r));
}

CASE(mean)
{
    static const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16, SHOAL_C64, SHOAL_C128};
    add_reduction(c, r, dtypes[pick(r, 0, 5)]);
}

/* Lists -------------------------------------------------------------------------------------------------------- */

static inline void add_lists(struct op_case *c, struct test_random *r, bool needs_same_dtype)
{
    int n = (int)pick(r, 0, 4);
    int n_dims[4];
    int64_t shapes[4][SHOAL_MAX_DIMS];
    for (int i = 0; i < n; i++) {
        n_dims[i] = pick_shape(r, 0, 4, shapes[i]);
        shoal_dtype target = needs_same_dtype ? pick_computed_dtype(r) : pick_dtype(r);
        (void)add_input_shaped(c, r, target, n_dims[i], shapes[i], /*may_repeat=*/false);
    }
    for (int i = 0; i < n; i++) {
        shoal_dtype dtype = needs_same_dtype || chance(r, 2) ? c->inputs[i].dtype : pick_dtype(r);
        if (dtype == c->inputs[i].dtype && chance(r, 4)) {
            (void)add_input_sharing(c, r, i);
        } else {
            (void)add_input_broadcasting(c, r, dtype, n_dims[i], shapes[i]);
        }
    }
    add_tensors(c, 0, n);
    add_tensors(c, n, n);
}

CASE(foreach_copy_)
{
    add_lists(c, r, /*needs_same_dtype=*/false);
}

CASE(foreach_add_)
{
    add_lists(c, r, /*needs_same_dtype=*/true);
}

CASE(foreach_div)
{
    int n = (int)pick(r, 0, 4);
    for (int i = 0; i < n; i++) {
        (void)add_input(c, r, pick_number_dtype(r), 0, 4);
    }
    add_tensors(c, 0, n);
    add_operand(c, r);
}

#include "conformance/ops/cases_sharding.h"

CASE(where_equal)
{
    shoal_dtype dtype = pick_dtype(r);
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    int n_dims = pick_shape(r, 0, 5, shape);
    for (int i = 0; i < 2; i++) {
        (void)add_input_shaped(c, r, dtype, n_dims, shape, /*may_repeat=*/true);
    }
    /* Equal in some places: of the same memory, or a copy of it. */
    if (chance(r, 3)) {
        (void)add_input_sharing(c, r, 1);
    } else {
        int b = add_input_shaped(c, r, dtype, n_dims, shape, /*may_repeat=*/true);
        for (struct walk at = walk_begin(n_dims, shape); !at.is_over; walk_next(&at)) {
            if (chance(r, 2)) {
                size_t place = (size_t)place_of(layout_of(c, b), at.index) * dtype_bytes(dtype);
                scalar_store(dtype, &c->inputs[b].bytes[place], case_load(c, 1, at.index));
            }
        }
    }
    for (int i = 0; i < 3; i++) {
        add_tensor(c, i);
    }
}

/* The table -------------------------------------------------------------------------------------------------------- */

typedef void (*case_function)(struct op_case *c, struct test_random *r);

static const case_function case_functions[OP_COUNT] = {
#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) [OP_##name] = case_##name,
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP
};

/* A random call of a row; arguments that equal their defaults are sometimes left out. */
static inline void case_describe(struct op_case *c, enum op_id id, struct test_random *r)
{
    c->op = op_get(id);
    c->n_inputs = 0;
    c->n_arguments = 0;
    case_functions[id](c, r);
}

#endif
