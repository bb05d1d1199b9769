/* SPDX-License-Identifier: MIT */
/* Calls of shoal/collective.h: how they are made, what they show, and the table of their kinds. */
#ifndef TESTS_DEVIATION_FUNCTIONAL_H
#define TESTS_DEVIATION_FUNCTIONAL_H

#include "conformance/deviation/explicit.h"
#include "shoal_compat/torch.h"

enum {
    TENSOR_COUNT = 288,
    LIST_COUNT = 2 * TENSOR_COUNT,
    SYMMETRIC_BYTES = 4096
};

/* Arguments ---------------------------------------------------------------------------------------------- */

struct matrix {
    int64_t shape[2];
};

static inline bool has_argument(const struct call *c, const char *name)
{
    for (int i = 0; i < c->n_choices; i++) {
        if (strcmp(c->arguments[i]->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* The tensors of a call: one, or a list of one or two. */
static inline int list_matrices(const struct call *c, struct matrix *matrices)
{
    static const struct matrix forms[] = {{{12, 24}}, {{24, 12}}, {{24, 24}}};
    if (!has_argument(c, "tensors")) {
        matrices[0] = forms[choice_of(c, "self")];
        return 1;
    }
    int first = choice_of(c, "tensors");
    matrices[0] = choice_of(c, "n_tensors") == 0 ? forms[first] : forms[2];
    matrices[1] = forms[1 - first];
    return choice_of(c, "n_tensors") == 0 ? 2 : 1;
}

static inline size_t count_of(const struct matrix *matrix)
{
    return (size_t)(matrix->shape[0] * matrix->shape[1]);
}

static inline shoal_reduce_op reduce_of(const struct call *c)
{
    static const shoal_reduce_op reduces[] = {SHOAL_SUM, SHOAL_AVG, SHOAL_MIN, SHOAL_MAX};
    return reduces[choice_of(c, "reduce")];
}

static inline double premul_of(const struct call *c)
{
    double factor = factor_of(choice_of(c, "factor"));
    return factor == 0.0 ? 0.5 : factor;
}

static inline int64_t dim_of(const struct call *c, const char *name)
{
    static const int64_t dims[] = {0, 1, -2, -1};
    return dims[choice_of(c, name)];
}

/* The dimension along which a call cuts or joins, 0 or 1. */
static inline int plain_dim(const struct call *c)
{
    static const char *const names[] = {"scatter_dim", "scatter_dims", "gather_dim"};
    for (int i = 0; i < 3; i++) {
        if (has_argument(c, names[i])) {
            return choice_of(c, names[i]) % 2;
        }
    }
    return 0;
}

static inline shoal_tensor *input_of(struct runner *r, const struct call *c, int which)
{
    struct matrix matrices[2];
    (void)list_matrices(c, matrices);
    shoal_tensor *tensor = shoal_empty(matrices[which].shape, 2, SHOAL_F32);
    float *data = shoal_mutable_data(tensor);
    for (int k = 0; data && k < (int)count_of(&matrices[which]); k++) {
        data[k] = input_value(r->rank, c->id, which, k);
    }
    return tensor;
}

/* A tensor for the result of a call along a dimension, which multiplies it or divides it by the number of ranks. */
static inline shoal_tensor *output_of(struct runner *r, const struct call *c, bool is_joined)
{
    struct matrix matrices[2];
    (void)list_matrices(c, matrices);
    int64_t *size = &matrices[0].shape[plain_dim(c)];
    *size = is_joined ? *size * r->program->n_ranks : *size / r->program->n_ranks;
    return shoal_zeros(matrices[0].shape, 2, SHOAL_F32);
}

/* Waits for all, then shows them as one. */
static inline shoal_status show_list(struct runner *r, const struct call *c, shoal_tensor *const *tensors,
                                     int n_tensors)
{
    float all[MAX_RANKS * LIST_COUNT];
    size_t n = 0;
    for (int i = 0; tensors && i < n_tensors; i++) {
        const float *data = shoal_data(shoal_wait_tensor(tensors[i]));
        size_t count = (size_t)shoal_tensor_count(tensors[i]);
        if (shoal_scope_error() != SHOAL_OK) {
            return SHOAL_OK; /* which ends the call */
        }
        if (count > 0) {
            memcpy(all + n, data, count * sizeof all[0]);
        }
        n += count;
    }
    return tensors ? show(r, c, all, n) : SHOAL_OK;
}

static inline shoal_status show_one(struct runner *r, const struct call *c, shoal_tensor *tensor)
{
    return tensor ? show_list(r, c, &tensor, 1) : SHOAL_OK;
}

/* Reductions --------------------------------------------------------------------------------------------- */

static inline double reduce_at(const struct program *p, const struct call *c, int tensor, int k)
{
    bool is_premul = has_argument(c, "factor");
    double result = 0.0;
    for (int r = 0; r < p->n_ranks; r++) {
        double value = (double)input_value(r, c->id, tensor, k);
        if (is_premul) {
            result += value * premul_of(c);
        } else if (reduce_of(c) == SHOAL_MIN) {
            result = r == 0 ? value : fmin(result, value);
        } else if (reduce_of(c) == SHOAL_MAX) {
            result = fmax(result, value);
        } else {
            result += reduce_of(c) == SHOAL_AVG ? value / p->n_ranks : value;
        }
    }
    return result;
}

static inline void predict_reduced(struct oracle *oracle, const struct call *c)
{
    double all[LIST_COUNT];
    struct matrix matrices[2];
    int n = list_matrices(c, matrices);
    size_t at = 0;
    for (int t = 0; t < n; t++) {
        for (size_t k = 0; k < count_of(&matrices[t]); k++) {
            all[at++] = reduce_at(oracle->program, c, t, (int)k);
        }
    }
    show_on_all(oracle, c, all, at);
}

static inline void predict_reduced_on_one(struct oracle *oracle, const struct call *c)
{
    double all[TENSOR_COUNT];
    const double zeros[TENSOR_COUNT] = {0};
    for (int k = 0; k < TENSOR_COUNT; k++) {
        all[k] = reduce_at(oracle->program, c, 0, k);
    }
    for (int r = 0; r < oracle->program->n_ranks; r++) {
        show_on(oracle, c, r, r == rank_of(c) ? all : zeros, TENSOR_COUNT);
    }
}

/* Where block `block` of `n_blocks` along `dim` has its element `k`, in the whole. */
static inline int place_in_whole(const struct matrix *matrix, int dim, int n_blocks, int block, int k)
{
    int64_t rows = matrix->shape[0] / (dim == 0 ? n_blocks : 1);
    int64_t columns = matrix->shape[1] / (dim == 1 ? n_blocks : 1);
    int64_t row = k / columns + (dim == 0 ? block * rows : 0);
    int64_t column = k % columns + (dim == 1 ? block * columns : 0);
    return (int)(row * matrix->shape[1] + column);
}

static inline void predict_scattered(struct oracle *oracle, const struct call *c)
{
    int n_ranks = oracle->program->n_ranks;
    struct matrix matrices[2];
    int n = list_matrices(c, matrices);
    for (int r = 0; r < n_ranks; r++) {
        for (int t = 0; t < n; t++) {
            double block[LIST_COUNT];
            size_t count = count_of(&matrices[t]) / (size_t)n_ranks;
            for (size_t k = 0; k < count; k++) {
                int at = place_in_whole(&matrices[t], plain_dim(c), n_ranks, r, (int)k);
                block[k] = reduce_at(oracle->program, c, t, at);
            }
            show_on(oracle, c, r, block, count);
        }
    }
}

typedef shoal_tensor *(*reduce_function)(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group);
typedef shoal_tensor *(*premul_function)(shoal_tensor *self, double factor, shoal_group *group);
typedef shoal_tensor *const *(*reduce_list_function)(shoal_tensor *const *tensors, size_t n_tensors,
                                                     shoal_reduce_op reduce, shoal_group *group);
typedef shoal_tensor *const *(*premul_list_function)(shoal_tensor *const *tensors, size_t n_tensors,
                                                     double factor, shoal_group *group);

static inline shoal_status functional_reduce(struct runner *r, const struct call *c)
{
    return show_one(r, c, ((reduce_function)c->kind->function)(input_of(r, c, 0), reduce_of(c), r->group));
}

static inline shoal_status functional_premul(struct runner *r, const struct call *c)
{
    return show_one(r, c, ((premul_function)c->kind->function)(input_of(r, c, 0), premul_of(c), r->group));
}

struct inputs {
    shoal_tensor *tensors[2];
    int n;
};

static inline struct inputs inputs_of(struct runner *r, const struct call *c)
{
    struct matrix matrices[2];
    struct inputs inputs = {.n = list_matrices(c, matrices)};
    for (int i = 0; i < inputs.n; i++) {
        inputs.tensors[i] = input_of(r, c, i);
    }
    return inputs;
}

static inline shoal_status functional_reduce_list(struct runner *r, const struct call *c)
{
    struct inputs in = inputs_of(r, c);
    return show_list(
        r, c, ((reduce_list_function)c->kind->function)(in.tensors, (size_t)in.n, reduce_of(c), r->group),
        in.n);
}

static inline shoal_status functional_premul_list(struct runner *r, const struct call *c)
{
    struct inputs in = inputs_of(r, c);
    return show_list(
        r, c, ((premul_list_function)c->kind->function)(in.tensors, (size_t)in.n, premul_of(c), r->group),
        in.n);
}

static inline shoal_status functional_reduce_to(struct runner *r, const struct call *c)
{
    return show_one(r, c, shoal_reduce(input_of(r, c, 0), reduce_of(c), rank_of(c), r->group));
}

static inline shoal_status functional_premul_to(struct runner *r, const struct call *c)
{
    return show_one(r, c, shoal_reduce_premul(input_of(r, c, 0), premul_of(c), rank_of(c), r->group));
}

typedef shoal_tensor *(*scatter_function)(shoal_tensor *self, shoal_reduce_op reduce, int64_t dim,
                                          shoal_group *group);

static inline shoal_status functional_scatter(struct runner *r, const struct call *c)
{
    return show_one(r, c,
                    ((scatter_function)c->kind->function)(input_of(r, c, 0), reduce_of(c),
                                                          dim_of(c, "scatter_dim"), r->group));
}

static inline shoal_status functional_scatter_premul(struct runner *r, const struct call *c)
{
    return show_one(r, c,
                    shoal_reduce_scatter_tensor_premul(input_of(r, c, 0), premul_of(c),
                                                       dim_of(c, "scatter_dim"), r->group));
}

static inline shoal_status functional_scatter_out(struct runner *r, const struct call *c)
{
    shoal_tensor *self = input_of(r, c, 0);
    shoal_tensor *out = output_of(r, c, false);
    return show_one(r, c,
                    has_argument(c, "factor")
                        ? shoal_reduce_scatter_tensor_premul_out(self, premul_of(c), r->group, out)
                        : shoal_reduce_scatter_tensor_out(self, reduce_of(c), r->group, out));
}

static inline shoal_status functional_scatter_inplace(struct runner *r, const struct call *c)
{
    shoal_tensor *self = input_of(r, c, 0);
    shoal_tensor *out = output_of(r, c, false);
    int64_t dim = dim_of(c, "scatter_dim");
    return show_one(r, c,
                    has_argument(c, "factor")
                        ? shoal_reduce_scatter_tensor_premul_inplace(out, self, premul_of(c), dim, r->group)
                        : shoal_reduce_scatter_tensor_inplace(out, self, reduce_of(c), dim, r->group));
}

static inline shoal_status functional_scatter_list(struct runner *r, const struct call *c)
{
    struct inputs in = inputs_of(r, c);
    int64_t dim = dim_of(c, "scatter_dims");
    const int64_t dims[] = {dim, dim};
    shoal_tensor *const *out =
        has_argument(c, "factor")
            ? shoal_reduce_scatter_tensor_coalesced_premul(in.tensors, (size_t)in.n, premul_of(c), dims,
                                                           r->group)
            : shoal_reduce_scatter_tensor_coalesced(in.tensors, (size_t)in.n, reduce_of(c), dims, r->group);
    return show_list(r, c, out, in.n);
}

/* Symmetric memory --------------------------------------------------------------------------------------- */

static inline shoal_tensor *symmetric_input(struct runner *r, const struct call *c)
{
    struct matrix matrices[2];
    (void)list_matrices(c, matrices);
    if (!r->symmetric && shoal_symmetric_create(r->group, SYMMETRIC_BYTES, &r->symmetric) != SHOAL_OK) {
        return NULL;
    }
    shoal_tensor *tensor = shoal_symmetric_tensor(r->symmetric, 0, matrices[0].shape, 2, SHOAL_F32);
    return tensor ? shoal_copy_(tensor, input_of(r, c, 0)) : NULL;
}

static inline shoal_status functional_symmetric(struct runner *r, const struct call *c)
{
    struct matrix matrices[2];
    (void)list_matrices(c, matrices);
    const char *name = c->kind->name;
    shoal_tensor *self = symmetric_input(r, c);
    shoal_tensor *out = shoal_zeros(matrices[0].shape, 2, SHOAL_F32);
    shoal_tensor *result = NULL;
    if (!self) {
        return r->symmetric ? SHOAL_OK : shoal_group_error(r->group);
    }
    if (strcmp(name, "shoal_one_shot_all_reduce_out") == 0) {
        result = shoal_one_shot_all_reduce_out(self, reduce_of(c), r->group, out);
    } else if (strcmp(name, "shoal_two_shot_all_reduce_out") == 0) {
        result = shoal_two_shot_all_reduce_out(self, reduce_of(c), r->group, out);
    } else if (strcmp(name, "shoal_one_shot_all_reduce_copy") == 0) {
        result = shoal_one_shot_all_reduce_copy(self, input_of(r, c, 0), reduce_of(c), r->group);
    } else if (strcmp(name, "shoal_one_shot_all_reduce_copy_out") == 0) {
        result = shoal_one_shot_all_reduce_copy_out(self, input_of(r, c, 0), reduce_of(c), r->group, out);
    } else {
        result = ((reduce_function)c->kind->function)(self, reduce_of(c), r->group);
    }
    return show_one(r, c, result);
}

/* Moving data -------------------------------------------------------------------------------------------- */

static inline void predict_gathered_tensors(struct oracle *oracle, const struct call *c)
{
    int n_ranks = oracle->program->n_ranks;
    struct matrix matrices[2];
    int n = list_matrices(c, matrices);
    for (int t = 0; t < n; t++) {
        double all[MAX_RANKS * LIST_COUNT];
        size_t count = count_of(&matrices[t]);
        struct matrix whole = matrices[t];
        whole.shape[plain_dim(c)] *= n_ranks;
        for (int r = 0; r < n_ranks; r++) {
            for (size_t k = 0; k < count; k++) {
                all[place_in_whole(&whole, plain_dim(c), n_ranks, r, (int)k)] =
                    (double)input_value(r, c->id, t, (int)k);
            }
        }
        show_on_all(oracle, c, all, count * (size_t)n_ranks);
    }
}

typedef shoal_tensor *(*gather_function)(shoal_tensor *self, int64_t dim, shoal_group *group);

static inline shoal_status functional_gather(struct runner *r, const struct call *c)
{
    return show_one(
        r, c, ((gather_function)c->kind->function)(input_of(r, c, 0), dim_of(c, "gather_dim"), r->group));
}

static inline shoal_status functional_gather_inplace(struct runner *r, const struct call *c)
{
    return show_one(r, c,
                    shoal_all_gather_tensor_inplace(output_of(r, c, true), input_of(r, c, 0),
                                                    dim_of(c, "gather_dim"), r->group));
}

static inline shoal_status functional_gather_into(struct runner *r, const struct call *c)
{
    return show_one(r, c, shoal_all_gather_into_tensor(input_of(r, c, 0), r->group));
}

static inline shoal_status functional_gather_out(struct runner *r, const struct call *c)
{
    return show_one(r, c,
                    shoal_all_gather_into_tensor_out(input_of(r, c, 0), r->group, output_of(r, c, true)));
}

static inline shoal_status functional_gather_list(struct runner *r, const struct call *c)
{
    struct inputs in = inputs_of(r, c);
    return show_list(r, c, shoal_all_gather_into_tensor_coalesced(in.tensors, (size_t)in.n, r->group), in.n);
}

static inline shoal_status functional_gather_each(struct runner *r, const struct call *c)
{
    shoal_tensor *outs[MAX_RANKS];
    for (int i = 0; i < r->program->n_ranks; i++) {
        outs[i] = input_of(r, c, 0);
    }
    shoal_tensor *const *result =
        shoal_all_gather_inplace(outs, (size_t)r->program->n_ranks, input_of(r, c, 0), r->group);
    return show_list(r, c, result, r->program->n_ranks);
}

/* What ranks send each other depends on their distance alone, so that all send and get the same number of rows. */
static inline int64_t rows_between(const struct program *p, const struct call *c, const char *name, int from,
                                   int to)
{
    struct matrix matrix[2];
    (void)list_matrices(c, matrix);
    int distance = (to - from + p->n_ranks) % p->n_ranks;
    int64_t rows = matrix[0].shape[0] / p->n_ranks;
    if (choice_of(c, "n_splits") == 0 || choice_of(c, name) == 0) {
        return rows;
    }
    return distance == 0 ? rows - 1 : distance == 1 ? rows + 1 : rows;
}

typedef shoal_tensor *(*exchange_function)(shoal_tensor *self, const int64_t *output_splits,
                                           const int64_t *input_splits, size_t n_splits, shoal_group *group);

static inline shoal_status functional_exchange(struct runner *r, const struct call *c)
{
    const struct program *p = r->program;
    int64_t out[MAX_RANKS];
    int64_t in[MAX_RANKS];
    bool is_given = choice_of(c, "n_splits") != 0;
    size_t n_splits = is_given ? (size_t)p->n_ranks : 0;
    for (int q = 0; q < p->n_ranks; q++) {
        in[q] = rows_between(p, c, "input_splits", r->rank, q);
        out[q] = rows_between(p, c, "output_splits", q, r->rank);
    }
    shoal_tensor *self = input_of(r, c, 0);
    const int64_t *given_out = is_given ? out : NULL;
    const int64_t *given_in = is_given ? in : NULL;
    return show_one(
        r, c,
        c->kind->function
            ? ((exchange_function)c->kind->function)(self, given_out, given_in, n_splits, r->group)
            : shoal_all_to_all_inplace(shoal_clone(self), self, given_out, given_in, n_splits, r->group));
}

static inline void predict_exchanged(struct oracle *oracle, const struct call *c)
{
    const struct program *p = oracle->program;
    struct matrix matrix[2];
    (void)list_matrices(c, matrix);
    for (int r = 0; r < p->n_ranks; r++) {
        for (int q = 0; q < p->n_ranks; q++) { /* from q */
            double rows[LIST_COUNT];
            int64_t before = 0;
            for (int i = 0; i < r; i++) {
                before += rows_between(p, c, "input_splits", q, i);
            }
            int64_t n = rows_between(p, c, "input_splits", q, r) * matrix[0].shape[1];
            for (int64_t k = 0; k < n; k++) {
                rows[k] = (double)input_value(q, c->id, 0, (int)(before * matrix[0].shape[1] + k));
            }
            show_on(oracle, c, r, rows, (size_t)n);
        }
    }
}

typedef shoal_tensor *(*broadcast_function)(shoal_tensor *self, int root, shoal_group *group);

static inline shoal_status functional_broadcast(struct runner *r, const struct call *c)
{
    return show_one(r, c, ((broadcast_function)c->kind->function)(input_of(r, c, 0), rank_of(c), r->group));
}

static inline void show_input_of(struct oracle *oracle, const struct call *c, int rank, int from)
{
    double values[TENSOR_COUNT];
    for (int k = 0; k < TENSOR_COUNT; k++) {
        values[k] = (double)input_value(from, c->id, 0, k);
    }
    show_on(oracle, c, rank, values, TENSOR_COUNT);
}

static inline void predict_sent(struct oracle *oracle, const struct call *c)
{
    for (int r = 0; r < oracle->program->n_ranks; r++) {
        show_input_of(oracle, c, r, rank_of(c));
    }
}

/* All ranks send, or all but the last. */
static inline int n_senders(const struct program *p, const struct call *c)
{
    return p->n_ranks - choice_of(c, "n_destinations");
}

static inline shoal_status functional_permute(struct runner *r, const struct call *c)
{
    int64_t destinations[MAX_RANKS];
    for (int q = 0; q < r->program->n_ranks; q++) {
        destinations[q] = (q + choice_of(c, "destinations")) % r->program->n_ranks;
    }
    return show_one(
        r, c,
        shoal_permute_tensor(input_of(r, c, 0), destinations, (size_t)n_senders(r->program, c), r->group));
}

static inline void predict_permuted(struct oracle *oracle, const struct call *c)
{
    const struct program *p = oracle->program;
    for (int q = 0; q < n_senders(p, c); q++) {
        show_input_of(oracle, c, (q + choice_of(c, "destinations")) % p->n_ranks, q);
    }
}

static inline shoal_status functional_shard_dim(struct runner *r, const struct call *c)
{
    return show_one(r, c,
                    shoal_shard_dim_alltoall(input_of(r, c, 0), dim_of(c, "gather_dim"),
                                             dim_of(c, "shard_dim"), r->group));
}

/* From shards along gather_dim the whole, of that block r along shard_dim. */
static inline void predict_resharded(struct oracle *oracle, const struct call *c)
{
    int n_ranks = oracle->program->n_ranks;
    struct matrix matrix[2];
    (void)list_matrices(c, matrix);
    int gather_dim = choice_of(c, "gather_dim") % 2;
    int shard_dim = choice_of(c, "shard_dim") % 2;
    struct matrix whole = matrix[0];
    double all[MAX_RANKS * TENSOR_COUNT];
    whole.shape[gather_dim] *= n_ranks;
    for (int i = 0; i < n_ranks * TENSOR_COUNT; i++) {
        int from = i / TENSOR_COUNT;
        all[place_in_whole(&whole, gather_dim, n_ranks, from, i % TENSOR_COUNT)] =
            (double)input_value(from, c->id, 0, i % TENSOR_COUNT);
    }
    for (int r = 0; r < n_ranks; r++) {
        double block[TENSOR_COUNT];
        for (int k = 0; k < TENSOR_COUNT; k++) {
            block[k] = all[place_in_whole(&whole, shard_dim, n_ranks, r, k)];
        }
        show_on(oracle, c, r, block, TENSOR_COUNT);
    }
}

/* The table ---------------------------------------------------------------------------------------------- */

#define FUNCTIONAL_KIND(name_, run_, predict_) \
    .name = #name_, .family = FUNCTIONAL, .block = BLOCK_ALONE, .run = (run_), .predict = (predict_)
#define FUNCTIONAL_FUNCTION(name_, run_, predict_) FUNCTIONAL_KIND(name_, run_, predict_), FUNCTION(name_)

static const struct kind functional_kinds[] = {
    {FUNCTIONAL_FUNCTION(shoal_all_reduce, functional_reduce, predict_reduced)},
    {FUNCTIONAL_FUNCTION(shoal_all_reduce_, functional_reduce, predict_reduced)},
    {FUNCTIONAL_FUNCTION(shoal_all_reduce_inplace, functional_reduce, predict_reduced)},
    {FUNCTIONAL_FUNCTION(shoal_all_reduce_premul, functional_premul, predict_reduced)},
    {FUNCTIONAL_FUNCTION(shoal_all_reduce_premul_, functional_premul, predict_reduced)},
    {FUNCTIONAL_FUNCTION(shoal_all_reduce_coalesced, functional_reduce_list, predict_reduced)},
    {FUNCTIONAL_FUNCTION(shoal_all_reduce_coalesced_, functional_reduce_list, predict_reduced)},
    {FUNCTIONAL_FUNCTION(shoal_all_reduce_coalesced_premul, functional_premul_list, predict_reduced)},
    {FUNCTIONAL_FUNCTION(shoal_all_reduce_coalesced_premul_, functional_premul_list, predict_reduced)},
    {FUNCTIONAL_KIND(shoal_reduce, functional_reduce_to, predict_reduced_on_one)},
    {FUNCTIONAL_KIND(shoal_reduce_premul, functional_premul_to, predict_reduced_on_one)},
    {FUNCTIONAL_FUNCTION(shoal_reduce_scatter_tensor, functional_scatter, predict_scattered)},
    {FUNCTIONAL_FUNCTION(shoal_reduce_scatter_tensor_autograd, functional_scatter, predict_scattered)},
    {FUNCTIONAL_KIND(shoal_reduce_scatter_tensor_premul, functional_scatter_premul, predict_scattered)},
    {FUNCTIONAL_KIND(shoal_reduce_scatter_tensor_out, functional_scatter_out, predict_scattered)},
    {FUNCTIONAL_KIND(shoal_reduce_scatter_tensor_premul_out, functional_scatter_out, predict_scattered)},
    {FUNCTIONAL_KIND(shoal_reduce_scatter_tensor_inplace, functional_scatter_inplace, predict_scattered)},
    {FUNCTIONAL_KIND(shoal_reduce_scatter_tensor_premul_inplace, functional_scatter_inplace,
                     predict_scattered)},
    {FUNCTIONAL_KIND(shoal_reduce_scatter_tensor_coalesced, functional_scatter_list, predict_scattered)},
    {FUNCTIONAL_KIND(shoal_reduce_scatter_tensor_coalesced_premul, functional_scatter_list,
                     predict_scattered)},
    {FUNCTIONAL_FUNCTION(shoal_all_gather_tensor, functional_gather, predict_gathered_tensors)},
    {FUNCTIONAL_FUNCTION(shoal_all_gather_tensor_autograd, functional_gather, predict_gathered_tensors)},
    {FUNCTIONAL_KIND(shoal_all_gather_tensor_inplace, functional_gather_inplace, predict_gathered_tensors)},
    {FUNCTIONAL_KIND(shoal_all_gather_into_tensor, functional_gather_into, predict_gathered_tensors)},
    {FUNCTIONAL_KIND(shoal_all_gather_into_tensor_out, functional_gather_out, predict_gathered_tensors)},
    {FUNCTIONAL_KIND(shoal_all_gather_into_tensor_coalesced, functional_gather_list,
                     predict_gathered_tensors)},
    {FUNCTIONAL_KIND(shoal_all_gather_inplace, functional_gather_each, predict_gathered_tensors)},
    {FUNCTIONAL_FUNCTION(shoal_all_to_all_single, functional_exchange, predict_exchanged)},
    {FUNCTIONAL_FUNCTION(shoal_all_to_all_single_autograd, functional_exchange, predict_exchanged)},
    {FUNCTIONAL_KIND(shoal_all_to_all_inplace, functional_exchange, predict_exchanged)},
    {FUNCTIONAL_FUNCTION(shoal_broadcast, functional_broadcast, predict_sent)},
    {FUNCTIONAL_FUNCTION(shoal_broadcast_, functional_broadcast, predict_sent)},
    {FUNCTIONAL_KIND(shoal_permute_tensor, functional_permute, predict_permuted)},
    {FUNCTIONAL_KIND(shoal_shard_dim_alltoall, functional_shard_dim, predict_resharded)},
    {FUNCTIONAL_FUNCTION(shoal_one_shot_all_reduce, functional_symmetric, predict_reduced)},
    {FUNCTIONAL_KIND(shoal_one_shot_all_reduce_out, functional_symmetric, predict_reduced)},
    {FUNCTIONAL_KIND(shoal_one_shot_all_reduce_copy, functional_symmetric, predict_reduced)},
    {FUNCTIONAL_KIND(shoal_one_shot_all_reduce_copy_out, functional_symmetric, predict_reduced)},
    {FUNCTIONAL_FUNCTION(shoal_two_shot_all_reduce_, functional_symmetric, predict_reduced)},
    {FUNCTIONAL_KIND(shoal_two_shot_all_reduce_out, functional_symmetric, predict_reduced)},
};

#endif
