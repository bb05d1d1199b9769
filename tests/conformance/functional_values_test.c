/* SPDX-License-Identifier: MIT */
/*
 * The values of every functional collective against an oracle that computes one element at a time from the inputs of
 * all ranks: dtypes, operators, shapes, dimensions, layouts of inputs and targets. Lists, point to point, symmetric
 * memory and large sizes are in functional_values_more_test.c.
 */
#include "fixtures/functional.h"
#include "shoal_compat/torch.h"

static const shoal_dtype dtypes[] = {SHOAL_F64,       SHOAL_F32,    SHOAL_F16,  SHOAL_BF16, SHOAL_I8,
                                     SHOAL_I16,       SHOAL_I32,    SHOAL_I64,  SHOAL_U8,   SHOAL_U16,
                                     SHOAL_U32,       SHOAL_U64,    SHOAL_BOOL, SHOAL_C64,  SHOAL_C128,
                                     SHOAL_F8_E4M3FN, SHOAL_F8_E5M2};
enum {
    N_DTYPES = sizeof dtypes / sizeof dtypes[0]
};

/* 0-d, empty, one, odd, and with ones where blocks are views. */
static const struct shape shapes[] = {{0, {0}},       {1, {0}},       {1, {1}},         {1, {7}},
                                      {2, {3, 5}},    {2, {1, 4}},    {2, {0, 3}},      {3, {2, 3, 4}},
                                      {3, {1, 1, 5}}, {3, {2, 0, 3}}, {4, {2, 1, 3, 2}}};
enum {
    N_SHAPES = sizeof shapes / sizeof shapes[0]
};

/* A target may not repeat elements. */
static enum form target_form(enum form form)
{
    return form == FORM_EXPANDED ? FORM_OFFSET : form;
}

static struct shape scaled(struct shape shape, int dim, int64_t factor)
{
    shape.sizes[dim] *= factor;
    return shape;
}

/* Out of place: a tensor of its own, and the input is as it was. */
static void check_new(shoal_tensor *result, const struct inputs *inputs, const struct functional *self,
                      const struct values *expected)
{
    CHECK(!shoal_tensor_shares_storage(result, inputs->mine));
    CHECK_RESULT(result, expected);
    CHECK_VALUES(inputs->mine, &inputs->all[self->rank]);
}

/* Into a target: the target itself comes back, with these values and nothing around them changed. */
static void check_into(shoal_tensor *result, const struct target *target, const struct values *expected)
{
    CHECK(result == target->tensor);
    CHECK_VALUES(target->tensor, expected);
    CHECK_AROUND(target);
}

/* A target that holds the input of this rank. */
static struct target make_own(const struct inputs *inputs, const struct functional *self, enum form form)
{
    const struct values *mine = &inputs->all[self->rank];
    struct target target = make_target(mine->shape, mine->dtype, target_form(form));
    CHECK(shoal_copy_(target.tensor, inputs->mine) == target.tensor);
    return target;
}

/* all_reduce and reduce -------------------------------------------------------------------------------- */

static shoal_tensor *all_reduce(shoal_tensor *tensor, shoal_reduce_op reduce, double factor,
                                shoal_group *group)
{
    return reduce == SHOAL_PREMUL_SUM ? shoal_all_reduce_premul(tensor, factor, group)
                                      : shoal_all_reduce(tensor, reduce, group);
}

static shoal_tensor *all_reduce_(shoal_tensor *tensor, shoal_reduce_op reduce, double factor,
                                 shoal_group *group)
{
    return reduce == SHOAL_PREMUL_SUM ? shoal_all_reduce_premul_(tensor, factor, group)
                                      : shoal_all_reduce_(tensor, reduce, group);
}

static shoal_tensor *all_reduce_inplace(shoal_tensor *tensor, shoal_reduce_op reduce, double factor,
                                        shoal_group *group)
{
    return reduce == SHOAL_PREMUL_SUM ? shoal_all_reduce_premul_(tensor, factor, group)
                                      : shoal_all_reduce_inplace(tensor, reduce, group);
}

static shoal_tensor *reduce_to(shoal_tensor *tensor, shoal_reduce_op reduce, double factor, int root,
                               shoal_group *group)
{
    return reduce == SHOAL_PREMUL_SUM ? shoal_reduce_premul(tensor, factor, root, group)
                                      : shoal_reduce(tensor, reduce, root, group);
}

static void try_all_reduce(struct functional *self, struct shape shape, shoal_dtype dtype, enum form form,
                           shoal_reduce_op reduce)
{
    const double factor = -1.5;
    CASE_BEGIN();
    struct inputs inputs = make_inputs(self, shape, dtype, form, 1);
    struct values expected = values_fold(inputs.all, self->n_ranks, reduce, factor);
    struct target own = make_own(&inputs, self, form);
    shoal_tensor *result = all_reduce(inputs.mine, reduce, factor, self->group);
    shoal_tensor *in_place = all_reduce_(own.tensor, reduce, factor, self->group);
    check_into(in_place, &own, &expected);
    check_new(result, &inputs, self, &expected);
    struct target other = make_own(&inputs, self, form);
    check_into(all_reduce_inplace(other.tensor, reduce, factor, self->group), &other, &expected);
    for (int root = 0; root < self->n_ranks; root++) {
        struct values zeros = values_new(shape, dtype);
        result = reduce_to(inputs.mine, reduce, factor, root, self->group);
        check_new(result, &inputs, self, self->rank == root ? &expected : &zeros);
    }
    CASE_END();
}

FUNCTIONAL_ON_1_TO_5(all_reduce_of_every_dtype_and_operator)
{
    for (int i = 0; i < N_DTYPES && !test_has_failed(); i++) {
        for (int reduce = SHOAL_SUM; reduce <= SHOAL_PREMUL_SUM; reduce++) {
            if (fold_has_meaning((shoal_reduce_op)reduce, dtypes[i])) {
                try_all_reduce(self, SHAPE(3, 5), dtypes[i], (enum form)((i + reduce) % N_FORMS),
                               (shoal_reduce_op)reduce);
            }
        }
    }
}

FUNCTIONAL_ON_1_TO_5(all_reduce_of_every_shape_and_layout)
{
    for (int i = 0; i < N_SHAPES && !test_has_failed(); i++) {
        for (int form = 0; form < N_FORMS; form++) {
            try_all_reduce(self, shapes[i], SHOAL_F32, (enum form)form, SHOAL_SUM);
            try_all_reduce(self, shapes[i], SHOAL_C64, (enum form)form, SHOAL_AVG);
        }
    }
}

/* An in-place result of 1024 elements and more lies in vectors; odd counts have a rest. */
FUNCTIONAL(all_reduce_of_odd_counts, 3)
{
    for (int64_t count = 1; count < 40000 && !test_has_failed(); count = count * 3 + 2) {
        try_all_reduce(self, SHAPE(count), SHOAL_F16, FORM_OFFSET, SHOAL_SUM);
        try_all_reduce(self, SHAPE(count), SHOAL_U8, FORM_STRIDED, SHOAL_AVG);
    }
}

/* reduce_scatter --------------------------------------------------------------------------------------- */

static shoal_tensor *reduce_scatter(shoal_tensor *tensor, shoal_reduce_op reduce, double factor, int64_t dim,
                                    shoal_group *group)
{
    return reduce == SHOAL_PREMUL_SUM ? shoal_reduce_scatter_tensor_premul(tensor, factor, dim, group)
                                      : shoal_reduce_scatter_tensor(tensor, reduce, dim, group);
}

static shoal_tensor *reduce_scatter_into(shoal_tensor *out, shoal_tensor *tensor, shoal_reduce_op reduce,
                                         double factor, int64_t dim, shoal_group *group)
{
    return reduce == SHOAL_PREMUL_SUM
               ? shoal_reduce_scatter_tensor_premul_inplace(out, tensor, factor, dim, group)
               : shoal_reduce_scatter_tensor_inplace(out, tensor, reduce, dim, group);
}

static shoal_tensor *reduce_scatter_out(shoal_tensor *tensor, shoal_reduce_op reduce, double factor,
                                        shoal_group *group, shoal_tensor *out)
{
    return reduce == SHOAL_PREMUL_SUM ? shoal_reduce_scatter_tensor_premul_out(tensor, factor, group, out)
                                      : shoal_reduce_scatter_tensor_out(tensor, reduce, group, out);
}

static void try_reduce_scatter(struct functional *self, struct shape shape, int dim, shoal_dtype dtype,
                               enum form form, shoal_reduce_op reduce)
{
    const double factor = 0.75;
    shoal_group *group = self->group;
    shape = scaled(shape, dim, self->n_ranks);
    int negative = dim - shape.n_dims;
    CASE_BEGIN();
    struct inputs inputs = make_inputs(self, shape, dtype, form, 2);
    struct values folded = values_fold(inputs.all, self->n_ranks, reduce, factor);
    struct values expected = values_block(&folded, dim, self->n_ranks, self->rank);
    struct target own = make_target(expected.shape, dtype, target_form(form));
    shoal_tensor *a = reduce_scatter(inputs.mine, reduce, factor, dim, group);
    shoal_tensor *b = reduce_scatter(inputs.mine, reduce, factor, negative, group);
    shoal_tensor *d =
        reduce_scatter_into(own.tensor, inputs.mine, reduce, factor, form % 2 ? dim : negative, group);
    check_into(d, &own, &expected);
    if (reduce != SHOAL_PREMUL_SUM) {
        shoal_tensor *c = shoal_reduce_scatter_tensor_autograd(inputs.mine, reduce, dim, group);
        check_new(c, &inputs, self, &expected);
    }
    check_new(b, &inputs, self, &expected);
    check_new(a, &inputs, self, &expected);
    if (dim == 0) {
        struct target out = make_target(expected.shape, dtype, target_form(form));
        d = reduce_scatter_out(inputs.mine, reduce, factor, group, out.tensor);
        check_into(d, &out, &expected);
    }
    CASE_END();
}

FUNCTIONAL_ON_1_TO_5(reduce_scatter_of_every_dtype_and_operator)
{
    for (int i = 0; i < N_DTYPES && !test_has_failed(); i++) {
        for (int reduce = SHOAL_SUM; reduce <= SHOAL_PREMUL_SUM; reduce++) {
            if (fold_has_meaning((shoal_reduce_op)reduce, dtypes[i])) {
                try_reduce_scatter(self, SHAPE(2, 3), (i + reduce) % 2, dtypes[i], (enum form)(i % N_FORMS),
                                   (shoal_reduce_op)reduce);
            }
        }
    }
}

FUNCTIONAL_ON_1_TO_5(reduce_scatter_of_every_shape_and_dimension)
{
    for (int i = 0; i < N_SHAPES && !test_has_failed(); i++) {
        for (int dim = 0; dim < shapes[i].n_dims; dim++) {
            for (int form = 0; form < N_FORMS; form++) {
                try_reduce_scatter(self, shapes[i], dim, SHOAL_F32, (enum form)form, SHOAL_SUM);
            }
            try_reduce_scatter(self, shapes[i], dim, SHOAL_C128, FORM_PLAIN, SHOAL_PREMUL_SUM);
        }
    }
}

/* all_gather ------------------------------------------------------------------------------------------- */

static void try_gather(struct functional *self, struct shape shape, int dim, shoal_dtype dtype,
                       enum form form)
{
    shoal_group *group = self->group;
    int negative = dim - (shape.n_dims ? shape.n_dims : 1);
    CASE_BEGIN();
    struct inputs inputs = make_inputs(self, shape, dtype, form, 3);
    struct values expected = values_cat(inputs.all, self->n_ranks, dim);
    struct target own = make_target(expected.shape, dtype, target_form(form));
    shoal_tensor *a = shoal_all_gather_tensor(inputs.mine, dim, group);
    shoal_tensor *b = shoal_all_gather_tensor(inputs.mine, negative, group);
    shoal_tensor *c = shoal_all_gather_tensor_autograd(inputs.mine, dim, group);
    shoal_tensor *d = shoal_all_gather_tensor_inplace(own.tensor, inputs.mine, dim, group);
    check_into(d, &own, &expected);
    check_new(c, &inputs, self, &expected);
    check_new(b, &inputs, self, &expected);
    check_new(a, &inputs, self, &expected);
    if (dim == 0) {
        struct target out = make_target(expected.shape, dtype, target_form(form));
        a = shoal_all_gather_into_tensor(inputs.mine, group);
        d = shoal_all_gather_into_tensor_out(inputs.mine, group, out.tensor);
        check_into(d, &out, &expected);
        check_new(a, &inputs, self, &expected);
    }
    CASE_END();
}

/* One target per rank, each of another layout. */
static void try_gather_apart(struct functional *self, struct shape shape, shoal_dtype dtype, enum form form)
{
    CASE_BEGIN();
    struct inputs inputs = make_inputs(self, shape, dtype, form, 4);
    struct target outs[FUNCTIONAL_MAX_RANKS];
    shoal_tensor *list[FUNCTIONAL_MAX_RANKS];
    for (int r = 0; r < self->n_ranks; r++) {
        outs[r] = make_target(shape, dtype, target_form((enum form)(((int)form + r) % N_FORMS)));
        list[r] = outs[r].tensor;
    }
    shoal_tensor *const *results =
        shoal_all_gather_inplace(list, (size_t)self->n_ranks, inputs.mine, self->group);
    REQUIRE(results);
    for (int r = self->n_ranks - 1; r >= 0; r--) {
        check_into(results[r], &outs[r], &inputs.all[r]);
    }
    CHECK_VALUES(inputs.mine, &inputs.all[self->rank]);
    CASE_END();
}

FUNCTIONAL_ON_1_TO_5(all_gather_of_every_dtype)
{
    for (int i = 0; i < N_DTYPES && !test_has_failed(); i++) {
        for (int form = 0; form < N_FORMS; form++) {
            try_gather(self, SHAPE(3, 2), (i + form) % 2, dtypes[i], (enum form)form);
        }
        try_gather_apart(self, SHAPE(3, 2), dtypes[i], (enum form)(i % N_FORMS));
    }
}

FUNCTIONAL_ON_1_TO_5(all_gather_of_every_shape_and_dimension)
{
    for (int i = 0; i < N_SHAPES && !test_has_failed(); i++) {
        for (int form = 0; form < N_FORMS; form++) {
            for (int dim = 0; dim < (shapes[i].n_dims ? shapes[i].n_dims : 1); dim++) {
                try_gather(self, shapes[i], dim, SHOAL_F32, (enum form)form);
            }
            try_gather_apart(self, shapes[i], SHOAL_I16, (enum form)form);
        }
    }
}

/* broadcast -------------------------------------------------------------------------------------------- */

static void try_broadcast(struct functional *self, struct shape shape, shoal_dtype dtype, enum form form)
{
    CASE_BEGIN();
    struct inputs inputs = make_inputs(self, shape, dtype, form, 5);
    for (int root = 0; root < self->n_ranks; root++) {
        struct target own = make_own(&inputs, self, form);
        shoal_tensor *result = shoal_broadcast(inputs.mine, root, self->group);
        check_into(shoal_broadcast_(own.tensor, root, self->group), &own, &inputs.all[root]);
        check_new(result, &inputs, self, &inputs.all[root]);
    }
    CASE_END();
}

FUNCTIONAL_ON_1_TO_5(broadcast_of_every_dtype_shape_and_layout)
{
    for (int form = 0; form < N_FORMS && !test_has_failed(); form++) {
        for (int i = 0; i < N_DTYPES; i++) {
            try_broadcast(self, SHAPE(5, 3), dtypes[i], (enum form)form);
        }
        for (int i = 0; i < N_SHAPES; i++) {
            try_broadcast(self, shapes[i], SHOAL_F32, (enum form)form);
        }
    }
}

/* all_to_all ------------------------------------------------------------------------------------------- */

/* Rows from p to q; `kind` 0: as many for all; otherwise uneven, with pairs that exchange nothing. */
static int64_t rows_between(int p, int q, int kind)
{
    static const int64_t some[] = {2, 0, 1, 3, 0, 1};
    return kind == 0 ? 2 : some[(3 * p + 2 * q + kind) % 6];
}

/* What each rank sends: its rows, of which there may be none. The trailing dimensions are those of `row`. */
static struct shape sent_by(const struct functional *self, int p, int kind, struct shape row)
{
    struct shape shape = {.n_dims = row.n_dims + 1};
    for (int q = 0; q < self->n_ranks; q++) {
        shape.sizes[0] += rows_between(p, q, kind);
    }
    for (int i = 0; i < row.n_dims; i++) {
        shape.sizes[i + 1] = row.sizes[i];
    }
    return shape;
}

static int64_t first_row(int p, int q, int kind)
{
    int64_t first = 0;
    for (int i = 0; i < q; i++) {
        first += rows_between(p, i, kind);
    }
    return first;
}

static void try_all_to_all(struct functional *self, int kind, struct shape row, shoal_dtype dtype,
                           enum form form)
{
    int n = self->n_ranks;
    int64_t ins[FUNCTIONAL_MAX_RANKS];
    int64_t outs[FUNCTIONAL_MAX_RANKS];
    struct values parts[FUNCTIONAL_MAX_RANKS];
    struct inputs inputs = {.mine = NULL};
    CASE_BEGIN();
    for (int q = 0; q < n; q++) {
        ins[q] = rows_between(self->rank, q, kind);
        outs[q] = rows_between(q, self->rank, kind);
        shoal_tensor *sent = make_input(sent_by(self, q, kind, row), dtype, form, q, 6);
        inputs.all[q] = values_of(sent);
        inputs.mine = q == self->rank ? sent : inputs.mine;
        parts[q] = values_narrow(&inputs.all[q], 0, first_row(q, self->rank, kind), outs[q]);
    }
    struct values expected = values_cat(parts, n, 0);
    struct target own = make_target(expected.shape, dtype, target_form(form));
    bool is_even = kind == 0;
    const int64_t *in = is_even && form % 2 ? NULL : ins;
    const int64_t *out = in ? outs : NULL;
    size_t n_splits = in ? (size_t)n : 0;
    shoal_tensor *a = shoal_all_to_all_single(inputs.mine, out, in, n_splits, self->group);
    shoal_tensor *b = shoal_all_to_all_single_autograd(inputs.mine, out, in, n_splits, self->group);
    shoal_tensor *c = shoal_all_to_all_inplace(own.tensor, inputs.mine, out, in, n_splits, self->group);
    /* The lists were copied. */
    memset(ins, 0xff, sizeof ins);
    memset(outs, 0xff, sizeof outs);
    check_into(c, &own, &expected);
    check_new(b, &inputs, self, &expected);
    check_new(a, &inputs, self, &expected);
    CASE_END();
}

FUNCTIONAL_ON_1_TO_5(all_to_all_even_and_uneven)
{
    static const struct shape rows[] = {{0, {0}}, {1, {3}}, {2, {2, 3}}, {1, {0}}};
    for (int kind = 0; kind < 5 && !test_has_failed(); kind++) {
        for (int form = 0; form < N_FORMS; form++) {
            for (int i = 0; i < 4; i++) {
                try_all_to_all(self, kind, rows[i], SHOAL_F32, (enum form)form);
            }
        }
        for (int i = 0; i < N_DTYPES; i++) {
            try_all_to_all(self, kind, SHAPE(3), dtypes[i], (enum form)(i % N_FORMS));
        }
    }
}

/* Nobody sends anything at all. */
FUNCTIONAL_ON_1_TO_5(all_to_all_of_nothing)
{
    const int64_t zeros[FUNCTIONAL_MAX_RANKS] = {0};
    shoal_tensor *empty = full_of(SHAPE(0, 3), 0, SHOAL_F32);
    shoal_tensor *a = shoal_all_to_all_single(empty, zeros, zeros, (size_t)self->n_ranks, self->group);
    shoal_tensor *b = shoal_all_to_all_single(empty, NULL, NULL, 0, self->group);
    CHECK_FULL(a, SHAPE(0, 3), 0);
    CHECK_FULL(b, SHAPE(0, 3), 0);
}

/* permute_tensor --------------------------------------------------------------------------------------- */

static void try_permute(struct functional *self, const int64_t *destinations, size_t n_destinations,
                        struct shape shape, shoal_dtype dtype, enum form form)
{
    CASE_BEGIN();
    struct inputs inputs = make_inputs(self, shape, dtype, form, 7);
    struct values expected = values_narrow(&inputs.all[0], 0, 0, 0);
    for (size_t m = 0; m < n_destinations; m++) {
        if (destinations[m] == self->rank) {
            expected = inputs.all[m];
        }
    }
    check_new(shoal_permute_tensor(inputs.mine, destinations, n_destinations, self->group), &inputs, self,
              &expected);
    CASE_END();
}

FUNCTIONAL_ON_1_TO_5(permute_whole_and_in_part)
{
    int n = self->n_ranks;
    for (int i = 1; i < N_SHAPES && !test_has_failed(); i++) {
        int64_t turned[FUNCTIONAL_MAX_RANKS];
        int64_t mirrored[FUNCTIONAL_MAX_RANKS];
        for (int r = 0; r < n; r++) {
            turned[r] = (r + 1) % n;
            mirrored[r] = n - 1 - r;
        }
        enum form form = (enum form)(i % N_FORMS);
        try_permute(self, turned, (size_t)n, shapes[i], dtypes[i % N_DTYPES], form);
        try_permute(self, mirrored, (size_t)n, shapes[i], SHOAL_F32, form);
        for (size_t length = 0; length < (size_t)n; length++) {
            try_permute(self, turned, length, shapes[i], SHOAL_BF16, form);
        }
    }
}

/* shard_dim_alltoall ----------------------------------------------------------------------------------- */

static void try_shard_dim(struct functional *self, struct shape shape, int gather, int shard,
                          shoal_dtype dtype, enum form form)
{
    int n = self->n_ranks;
    struct values parts[FUNCTIONAL_MAX_RANKS];
    shape = scaled(shape, shard, n);
    CASE_BEGIN();
    struct inputs inputs = make_inputs(self, shape, dtype, form, 8);
    for (int p = 0; p < n; p++) {
        parts[p] = values_block(&inputs.all[p], shard, n, self->rank);
    }
    struct values expected = values_cat(parts, n, gather);
    shoal_tensor *a = shoal_shard_dim_alltoall(inputs.mine, gather, shard, self->group);
    shoal_tensor *b =
        shoal_shard_dim_alltoall(inputs.mine, gather - shape.n_dims, shard - shape.n_dims, self->group);
    check_new(b, &inputs, self, &expected);
    check_new(a, &inputs, self, &expected);
    CASE_END();
}

FUNCTIONAL_ON_1_TO_5(shard_dim_alltoall_of_every_pair)
{
    for (int i = 1; i < N_SHAPES && !test_has_failed(); i++) {
        for (int gather = 0; gather < shapes[i].n_dims; gather++) {
            for (int shard = 0; shard < shapes[i].n_dims; shard++) {
                for (int form = 0; form < N_FORMS; form++) {
                    try_shard_dim(self, shapes[i], gather, shard, dtypes[(i + form) % N_DTYPES],
                                  (enum form)form);
                }
            }
        }
    }
}
