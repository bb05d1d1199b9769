/* SPDX-License-Identifier: MIT */
/* Random calls of the ops that sharding packs and unpacks with; a part of cases.h, which includes it behind its helpers. */
#ifndef CONFORMANCE_CASES_SHARDING_H
#define CONFORMANCE_CASES_SHARDING_H

/* Tensors that are equal before the dimension that is cut. Returns how many. */
static inline int add_chunked(struct op_case *c, struct test_random *r, int *dim)
{
    shoal_dtype dtype = pick_dtype(r);
    int n = (int)pick(r, 1, 5);
    *dim = chance(r, 2) ? 0 : (int)pick(r, 0, 2);
    for (int i = 0; i < n; i++) {
        int64_t shape[SHOAL_MAX_DIMS] = {0};
        int n_dims = pick_shape(r, *dim + 1, 4, shape);
        int64_t room = CASE_MAX_ELEMS;
        for (int k = 0; k < n_dims; k++) {
            int64_t size = shape[k] == 0 ? 1 : shape[k];
            shape[k] = k < *dim && i > 0 ? layout_of(c, 0)->shape[k] : size < room ? size : room;
            room /= shape[k];
        }
        (void)add_input_shaped(c, r, dtype, n_dims, shape, /*may_repeat=*/true);
    }
    return n;
}

CASE(chunk_cat)
{
    int dim;
    int n = add_chunked(c, r, &dim);
    add_tensors(c, 0, n);
    add_int(c, pick(r, 1, 8));
    add_dtype(c, chance(r, 2) ? c->inputs[0].dtype : pick_dtype(r));
    add_split_dim(c, r, dim);
}

/* What a row of chunk_cat has of an input. */
static inline int64_t chunk_elems_of(const struct op_case *c, int input, int64_t n_chunks, int dim)
{
    const struct layout *layout = layout_of(c, input);
    int64_t row_elems = count_of(layout->n_dims - dim - 1, layout->shape + dim + 1);
    return (layout->shape[dim] + n_chunks - 1) / n_chunks * row_elems;
}

CASE(chunk_cat_out)
{
    int dim;
    int n = add_chunked(c, r, &dim);
    int64_t n_chunks = pick(r, 1, 8);
    struct layout out = {.n_dims = dim + 2, .offset = pick(r, 0, 3)};
    memcpy(out.shape, layout_of(c, 0)->shape, sizeof(out.shape));
    out.shape[dim] = n_chunks;
    out.shape[dim + 1] = 0;
    for (int i = 0; i < n; i++) {
        out.shape[dim + 1] += chunk_elems_of(c, i, n_chunks, dim);
    }
    layout_fill_strides(out.n_dims, out.shape, out.strides);
    add_tensor(c, add_input_laid(c, r, chance(r, 2) ? c->inputs[0].dtype : pick_dtype(r), &out));
    add_tensors(c, 0, n);
    add_int(c, n_chunks);
    add_split_dim(c, r, dim);
}

CASE(split_with_sizes_copy)
{
    case_split_with_sizes(c, r);
}

CASE(split_with_sizes_copy_out)
{
    int dim;
    int64_t left = add_to_split(c, r, &dim);
    c->n_arguments = 0; /* the tensor comes behind those that are written */
    int64_t sizes[CASE_MAX_INPUTS - 1];
    int n = 0;
    while (n < CASE_MAX_INPUTS - 2 && (left > 0 || chance(r, 3))) {
        sizes[n] = pick(r, 0, left);
        left -= sizes[n++];
    }
    if (left > 0) {
        sizes[n++] = left;
    }
    for (int i = 0; i < n; i++) {
        int64_t shape[SHOAL_MAX_DIMS];
        memcpy(shape, layout_of(c, 0)->shape, sizeof(shape));
        shape[dim] = sizes[i];
        (void)add_input_shaped(c, r, c->inputs[0].dtype, layout_of(c, 0)->n_dims, shape,
                               /*may_repeat=*/false);
    }
    add_tensors(c, 1, n);
    add_tensor(c, 0);
    add_ints(c, n, sizes);
    add_split_dim(c, r, dim);
}

CASE(all_gather_copy_in)
{
    int n = (int)pick(r, 0, 4);
    int64_t n_ranks = pick(r, 1, 5);
    int64_t row_elems = 0;
    for (int i = 0; i < n; i++) {
        int input = add_input(c, r, pick_dtype(r), 0, 3);
        row_elems += count_of(layout_of(c, input)->n_dims, layout_of(c, input)->shape);
    }
    int64_t total = n_ranks * row_elems;
    int output = add_input_shaped(c, r, pick_dtype(r), 1, &total, /*may_repeat=*/false);
    struct case_input *flat = &c->inputs[output];
    if (total > 1) {
        flat->layout.strides[0] = 1;
        flat->layout.offset = pick(r, 0, flat->storage_elems - total);
    }
    add_tensor(c, output);
    add_tensors(c, 0, n);
    add_int(c, n_ranks);
    add_int(c, pick(r, 0, n_ranks - 1));
}

#endif
