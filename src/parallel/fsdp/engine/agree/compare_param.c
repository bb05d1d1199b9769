/* SPDX-License-Identifier: MIT */
/* Compares calls on one parameter. */
#include "parallel/fsdp/engine/agree/compare_param.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/state/unit.h"

/* What ranks compare in a call on a parameter: dtype, shape, sharded dimension and name. Such calls may come before the
   first forward pass, in which all parameters are compared. Longer names are cut. */
enum {
    NAME_WORDS = 16,
    PLACE_DETAILS = 2 + 3 + SHOAL_MAX_DIMS + NAME_WORDS
};

static size_t say_param(const struct fsdp_param *param, shoal_dtype dtype, int64_t *details)
{
    size_t n = 2;
    size_t length = strlen(param->name);
    length = length < NAME_WORDS * sizeof(int64_t) ? length : NAME_WORDS * sizeof(int64_t);
    details[n++] = (int64_t)dtype;
    details[n++] = param->dim;
    details[n++] = param->n_dims;
    for (int i = 0; i < param->n_dims; i++) {
        details[n++] = param->shape[i];
    }
    memset(&details[n], 0, NAME_WORDS * sizeof details[0]);
    memcpy(&details[n], param->name, length);
    n += (length + sizeof(int64_t) - 1) / sizeof(int64_t);
    details[0] = DETAIL_SET;
    details[1] = (int64_t)n - 2;
    return n;
}

/* "weight [4,8] along 1": the name, and with more than one dimension the shape and the sharded dimension. */
static void write_place(const struct fsdp_param *param, char *words)
{
    size_t at = (size_t)snprintf(words, PURPOSE_WORDS_BYTES, "%.96s", param->name);
    for (int i = 0; param->n_dims > 1 && i < param->n_dims && at < PURPOSE_WORDS_BYTES; i++) {
        at += (size_t)snprintf(words + at, PURPOSE_WORDS_BYTES - at, "%s%" PRId64, i == 0 ? " [" : ",",
                               param->shape[i]);
    }
    if (param->n_dims > 1 && at < PURPOSE_WORDS_BYTES) {
        (void)snprintf(words + at, PURPOSE_WORDS_BYTES - at, "] along %d", param->dim);
    }
}

/* "weight [4,8] along 1 as f32" */
static shoal_status compare_as(const struct fsdp_unit *unit, const struct purpose *purpose, shoal_dtype dtype,
                               const struct fsdp_param *param, size_t index, int rank)
{
    char place[PURPOSE_WORDS_BYTES];
    char words[PURPOSE_WORDS_BYTES];
    struct purpose call = *purpose;
    write_place(param, place);
    (void)snprintf(words, sizeof words, "%.160s as %s", place, shoal_dtype_name(dtype));
    call.argument = (uint32_t)index + 1;
    call.words = words;
    int64_t details[PLACE_DETAILS + 2];
    call.details = details;
    call.n_details = say_param(param, dtype, details);
    if (rank >= 0) {
        details[call.n_details++] = DETAIL_NUMBER;
        details[call.n_details++] = rank;
    }
    return fsdp_compare_of(unit, &call);
}

shoal_status fsdp_compare_param(const struct fsdp_unit *unit, const struct purpose *purpose,
                                const struct fsdp_param *param, size_t index, int rank)
{
    return compare_as(unit, purpose, param->dtype, param, index, rank);
}

shoal_status fsdp_compare_array(const struct fsdp_unit *unit, const struct purpose *purpose,
                                const struct fsdp_array *array, size_t index, int rank)
{
    return compare_as(unit, purpose, array->dtype, array->param, index, rank);
}
