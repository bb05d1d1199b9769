/* SPDX-License-Identifier: MIT */
/*
 * Ways to make a good call of a row bad, whatever the row: each spoils one argument, if it can, and says which error with
 * which words must come of it. Kept apart from bad_calls.h, which has what is wrong with one row only.
 */
#ifndef CONFORMANCE_SPOIL_H
#define CONFORMANCE_SPOIL_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "conformance/functional/row_cases.h"

struct spoilt {
    struct row_case *c;
    size_t at;   /* the argument */
    int variant; /* 0, 1, ... until there are no more */
    shoal_tensor *list[ROW_MAX_TENSORS];
    int64_t ints[ROW_MAX_INTS];
    shoal_status status;
    char words[96]; /* separated by '|' */
};

/* False: does not apply, or no such variant. */
typedef bool (*spoiler)(struct spoilt *s);

static inline const struct op_param *spoil_param(const struct spoilt *s)
{
    return &s->c->op->params[s->at];
}

static inline shoal_value *spoil_value(const struct spoilt *s)
{
    return &s->c->values[s->at];
}

static inline bool spoil_is_named(const struct spoilt *s, const char *name)
{
    return strcmp(spoil_param(s)->name, name) == 0;
}

static inline bool spoil_expect(struct spoilt *s, shoal_status status, const char *words)
{
    s->status = status;
    (void)snprintf(s->words, sizeof s->words, "%s", words);
    return true;
}

/* The operator ----------------------------------------------------------------------------------------- */

#define NO_FACTOR ((double)NAN)

/* What it says of a dtype is the same for all rows. */
static const struct {
    shoal_dtype dtype;
    const char *reduce;
    double factor;
    shoal_status status;
    const char *words;
} spoil_reductions[] = {
    {SHOAL_F32, "summ", NO_FACTOR, SHOAL_ERR_INVALID, "\"summ\""},
    {SHOAL_F32, "", NO_FACTOR, SHOAL_ERR_INVALID, "\"\""},
    {SHOAL_F32, "unused", NO_FACTOR, SHOAL_ERR_INVALID, "\"unused\""},
    {SHOAL_F32, "sum ", NO_FACTOR, SHOAL_ERR_INVALID, "\"sum \""},
    {SHOAL_F32, "premul_sum", NO_FACTOR, SHOAL_ERR_INVALID, "premul_sum needs a factor"},
    {SHOAL_F32, "sum", 2.5, SHOAL_ERR_INVALID, "factor: 2.5|sum"},
    {SHOAL_F64, "avg", 0, SHOAL_ERR_INVALID, "factor: 0|avg"},
    {SHOAL_C64, "product", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "product|c64"},
    {SHOAL_C64, "min", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "min|c64"},
    {SHOAL_C128, "MAX", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "max|c128"},
    {SHOAL_C128, "band", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "band|c128"},
    {SHOAL_C64, "bor", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "bor|c64"},
    {SHOAL_C64, "bxor", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "bxor|c64"},
    {SHOAL_BOOL, "avg", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "avg|bool"},
    {SHOAL_BOOL, "premul_sum", 2, SHOAL_ERR_UNSUPPORTED, "premul_sum|bool"},
    {SHOAL_I32, "premul_sum", 2, SHOAL_ERR_UNSUPPORTED, "premul_sum|i32"},
    {SHOAL_U8, "premul_sum", 2, SHOAL_ERR_UNSUPPORTED, "premul_sum|u8"},
    {SHOAL_F32, "band", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "band|f32"},
    {SHOAL_F64, "bor", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "bor|f64"},
    {SHOAL_BF16, "bxor", NO_FACTOR, SHOAL_ERR_UNSUPPORTED, "bxor|bf16"},
};

enum {
    N_SPOIL_REDUCTIONS = sizeof spoil_reductions / sizeof spoil_reductions[0]
};

static inline size_t spoil_find(const shoal_op *op, const char *name)
{
    size_t at = 0;
    while (at < op->n_params && strcmp(op->params[at].name, name) != 0) {
        at++;
    }
    return at;
}

/* The case is built again for the dtype of the variant. */
static inline bool spoil_reduce(struct spoilt *s)
{
    if (!spoil_is_named(s, "reduce") || s->variant >= N_SPOIL_REDUCTIONS) {
        return false;
    }
    const size_t factor = spoil_find(s->c->op, "factor");
    struct row_wanted wanted = s->c->wanted;
    wanted.dtype = spoil_reductions[s->variant].dtype;
    row_build(s->c, (enum op_id)s->c->op->index, &wanted, (uint64_t)s->variant);
    s->c->values[s->at] = box_string(spoil_reductions[s->variant].reduce);
    s->c->n_values = factor < s->c->op->n_params ? factor : s->c->n_values;
    if (!isnan(spoil_reductions[s->variant].factor)) {
        if (factor == s->c->op->n_params) {
            return spoil_expect(s, SHOAL_OK, ""); /* a row without factors: nothing to say about one */
        }
        s->c->values[factor] = box_float(spoil_reductions[s->variant].factor);
        s->c->n_values = factor + 1;
    }
    return spoil_expect(s, spoil_reductions[s->variant].status, spoil_reductions[s->variant].words);
}

/* Tensors ---------------------------------------------------------------------------------------------- */

static inline bool spoil_is_tensor(const struct spoilt *s)
{
    return spoil_param(s)->type == OP_PARAM_TENSOR;
}

static inline bool spoil_is_list(const struct spoilt *s)
{
    return spoil_param(s)->type == OP_PARAM_TENSORS;
}

static inline bool spoil_null(struct spoilt *s)
{
    if (s->variant > 0 || (!spoil_is_tensor(s) && !spoil_is_list(s))) {
        return false;
    }
    if (spoil_is_tensor(s)) {
        *spoil_value(s) = box_tensor(NULL);
        (void)snprintf(s->words, sizeof s->words, "%s is NULL", spoil_param(s)->name);
    } else {
        *spoil_value(s) = box_tensors(NULL, 2);
        (void)snprintf(s->words, sizeof s->words, "%s is NULL with 2 tensors", spoil_param(s)->name);
    }
    s->status = SHOAL_ERR_INVALID;
    return true;
}

/* The list with one tensor replaced by another, which may be NULL. */
static inline void spoil_list(struct spoilt *s, size_t index, shoal_tensor *tensor)
{
    shoal_value *value = spoil_value(s);
    memcpy(s->list, value->as.tensors, value->count * sizeof s->list[0]);
    s->list[index] = tensor;
    value->as.tensors = s->list;
}

static inline bool spoil_null_in_list(struct spoilt *s)
{
    if (s->variant > 0 || !spoil_is_list(s) || spoil_value(s)->count == 0) {
        return false;
    }
    size_t last = spoil_value(s)->count - 1;
    spoil_list(s, last, NULL);
    (void)snprintf(s->words, sizeof s->words, "%s: tensor %zu of %zu is NULL", spoil_param(s)->name, last,
                   last + 1);
    s->status = SHOAL_ERR_INVALID;
    return true;
}

/* Only waiting for nothing, and sending nothing, is allowed. */
static inline bool spoil_empty_list(struct spoilt *s)
{
    int id = s->c->op->index;
    if (s->variant > 0 || !spoil_is_list(s) || id == OP_wait_tensors) {
        return false;
    }
    bool had_any = spoil_value(s)->count > 0;
    *spoil_value(s) = box_tensors(NULL, 0);
    if (id == OP_batch_p2p_ops) {
        return had_any && spoil_expect(s, SHOAL_ERR_INVALID, "0 tensors, but");
    }
    return spoil_expect(s, SHOAL_ERR_INVALID,
                        id == OP_all_gather_inplace ? "outs: 0 tensors" : "list is empty");
}

static inline bool spoil_mixed_dtypes(struct spoilt *s)
{
    if (s->variant > 0 || !spoil_is_list(s) || !strstr(s->c->op->name, "coalesced")) {
        return false;
    }
    s->list[0] = spoil_value(s)->as.tensors[0];
    s->list[1] = shoal_zeros((const int64_t[]){6}, 1, SHOAL_I64);
    *spoil_value(s) = box_tensors(s->list, 2);
    return spoil_expect(s, SHOAL_ERR_INVALID, "same dtype|1 is i64|f32");
}

/* A tensor like another, but on a device or with memory that it should not have. */
static inline shoal_tensor *spoil_copy(const shoal_tensor *like, shoal_device device)
{
    return shoal_empty_on(shoal_tensor_shape(like), shoal_tensor_n_dims(like), shoal_tensor_dtype(like),
                          device);
}

static inline bool spoil_replace(struct spoilt *s, shoal_device device, shoal_tensor **tensor_out)
{
    bool has_any = spoil_is_tensor(s) || (spoil_is_list(s) && spoil_value(s)->count > 0);
    if (s->variant > 0 || !has_any) {
        return false;
    }
    if (spoil_is_tensor(s)) {
        *tensor_out = spoil_copy(spoil_value(s)->as.tensor, device);
        *spoil_value(s) = box_tensor(*tensor_out);
    } else {
        size_t last = spoil_value(s)->count - 1;
        *tensor_out = spoil_copy(spoil_value(s)->as.tensors[last], device);
        spoil_list(s, last, *tensor_out);
    }
    return true;
}

static inline bool spoil_released(struct spoilt *s)
{
    shoal_tensor *tensor;
    if (!spoil_replace(s, SHOAL_CPU, &tensor)) {
        return false;
    }
    CHECK_OK(shoal_tensor_set_name(tensor, "gone"));
    CHECK_OK(shoal_tensor_release_data(tensor));
    return spoil_expect(s, SHOAL_ERR_STATE, "gone|released");
}

static inline bool spoil_device(struct spoilt *s)
{
    size_t n_tensors = 0;
    shoal_tensor *tensor;
    for (size_t i = 0; i < s->c->n_values; i++) {
        shoal_value_kind kind = s->c->values[i].kind;
        n_tensors += kind == SHOAL_VALUE_TENSOR ? 1 : kind == SHOAL_VALUE_TENSORS ? s->c->values[i].count : 0;
    }
    return n_tensors > 1 && spoil_replace(s, SHOAL_META, &tensor) &&
           spoil_expect(s, SHOAL_ERR_INVALID, "devices|cpu|meta");
}

/* What is written -------------------------------------------------------------------------------------- */

/* One element, seen from everywhere. */
static inline shoal_tensor *spoil_overlapping(const shoal_tensor *like)
{
    shoal_tensor *one = shoal_zeros(NULL, 0, shoal_tensor_dtype(like));
    return shoal_expand(one, shoal_tensor_shape(like), shoal_tensor_n_dims(like));
}

static inline bool spoil_overlap(struct spoilt *s)
{
    bool is_written = s->at == 0 && (s->c->op->flags & SHOAL_OP_IN_PLACE) != 0;
    if (s->variant > 0 || !is_written) {
        return false;
    }
    const shoal_tensor *like = spoil_is_list(s) ? spoil_value(s)->as.tensors[0] : spoil_value(s)->as.tensor;
    if (shoal_tensor_n_dims(like) == 0) {
        return false; /* one element cannot overlap itself */
    }
    if (shoal_tensor_count(like) <= 1) {
        return spoil_expect(s, SHOAL_OK,
                            ""); /* nor can this; other ranks may have more rows here, so it counts */
    }
    if (spoil_is_list(s)) {
        spoil_list(s, 0, spoil_overlapping(like));
    } else {
        *spoil_value(s) = box_tensor(spoil_overlapping(like));
    }
    return spoil_expect(s, SHOAL_ERR_INVALID, "share memory");
}

static inline bool spoil_out(struct spoilt *s)
{
    bool is_out = spoil_is_named(s, "out") || spoil_is_named(s, "outs");
    if (s->variant > 1 || !is_out) {
        return false;
    }
    const shoal_tensor *out = spoil_is_list(s) ? spoil_value(s)->as.tensors[1] : spoil_value(s)->as.tensor;
    shoal_tensor *other = s->variant == 0
                              ? shoal_zeros((const int64_t[]){7, 1, 9}, 3, shoal_tensor_dtype(out))
                              : shoal_zeros(shoal_tensor_shape(out), shoal_tensor_n_dims(out), SHOAL_I64);
    if (spoil_is_list(s)) {
        spoil_list(s, 1, other);
    } else {
        *spoil_value(s) = box_tensor(other);
    }
    (void)snprintf(s->words, sizeof s->words, "%s: %s", spoil_is_list(s) ? "outs[1]" : "out",
                   s->variant == 0 ? "shape [7, 1, 9], but" : "dtype i64, but self has f32");
    s->status = SHOAL_ERR_INVALID;
    return true;
}

/* Numbers ---------------------------------------------------------------------------------------------- */

static inline bool spoil_number(struct spoilt *s, int64_t number, const char *before)
{
    if (spoil_param(s)->type == OP_PARAM_INTS) {
        if (spoil_value(s)->count == 0) {
            return false;
        }
        memcpy(s->ints, spoil_value(s)->as.integers, spoil_value(s)->count * sizeof s->ints[0]);
        s->ints[0] = number;
        spoil_value(s)->as.integers = s->ints;
        (void)snprintf(s->words, sizeof s->words, "tensors[0]|%" PRId64, number);
    } else {
        *spoil_value(s) = box_int(number);
        (void)snprintf(s->words, sizeof s->words, "%s: %s%" PRId64, spoil_param(s)->name, before, number);
    }
    s->status = SHOAL_ERR_INVALID;
    return true;
}

static inline bool spoil_dim(struct spoilt *s)
{
    static const int64_t dims[] = {ROW_MAX_DIMS,     -ROW_MAX_DIMS - 1,  100, INT64_MIN, INT64_MAX,
                                   INT64_C(1) << 32, -(INT64_C(1) << 32)};
    if (!strstr(spoil_param(s)->name, "_dim") || s->variant >= (int)(sizeof dims / sizeof dims[0])) {
        return false;
    }
    return spoil_number(s, dims[s->variant], "");
}

static inline bool spoil_rank(struct spoilt *s)
{
    const int64_t n_ranks = shoal_group_n_ranks(s->c->wanted.group);
    const int64_t ranks[] = {n_ranks, -1, INT64_MIN, INT64_MAX, INT64_C(1) << 32};
    bool is_root = spoil_is_named(s, "root");
    bool is_rank = is_root || spoil_is_named(s, "source") || spoil_is_named(s, "destination") ||
                   spoil_is_named(s, "peers");
    if (!is_rank || spoil_is_tensor(s) || s->variant >= (int)(sizeof ranks / sizeof ranks[0])) {
        return false;
    }
    return spoil_number(s, ranks[s->variant], is_root ? "invalid root rank " : "rank ");
}

static inline bool spoil_tag(struct spoilt *s)
{
    static const int64_t tags[] = {-1, INT64_C(1) << 31, INT64_MIN, INT64_MAX, INT64_C(1) << 32};
    bool is_tag = spoil_is_named(s, "tag") || spoil_is_named(s, "tags");
    if (!is_tag || s->variant >= (int)(sizeof tags / sizeof tags[0])) {
        return false;
    }
    return spoil_number(s, tags[s->variant], "");
}

static inline bool spoil_group(struct spoilt *s)
{
    if (spoil_param(s)->type != OP_PARAM_GROUP || s->variant > 1) {
        return false;
    }
    *spoil_value(s) = s->variant == 0 ? box_group(NULL) : box_string("world");
    return spoil_expect(s, SHOAL_ERR_INVALID,
                        s->variant == 0 ? "group is NULL" : "group: the value is of kind string");
}

/* An array that is not there. */
static inline bool spoil_null_ints(struct spoilt *s)
{
    if (spoil_param(s)->type != OP_PARAM_INTS || s->variant > 0) {
        return false;
    }
    *spoil_value(s) = box_ints(NULL, 3);
    (void)snprintf(s->words, sizeof s->words, "%s is NULL with 3 numbers", spoil_param(s)->name);
    s->status = SHOAL_ERR_INVALID;
    return true;
}

static const spoiler spoilers[] = {
    spoil_reduce,   spoil_null,   spoil_null_in_list, spoil_empty_list, spoil_mixed_dtypes,
    spoil_released, spoil_device, spoil_overlap,      spoil_out,        spoil_dim,
    spoil_rank,     spoil_tag,    spoil_group,        spoil_null_ints,
};

enum {
    N_SPOILERS = sizeof spoilers / sizeof spoilers[0]
};

#endif
