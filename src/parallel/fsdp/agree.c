/* SPDX-License-Identifier: MIT */
/*
 * Before anything is gathered: whether all ranks have the same units. Each sends a number for every unit, in which all
 * that must be equal went. Gathers and reductions would find out later, or not at all when only shapes differ.
 */
#include "parallel/fsdp/agree.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/hash.h"

static uint64_t mix(uint64_t seed, int64_t value)
{
    return hash_bytes(seed, &value, sizeof value);
}

static uint64_t mix_double(uint64_t seed, double value)
{
    return hash_bytes(seed, &value, sizeof value);
}

static uint64_t number_of_param(uint64_t seed, const struct fsdp_param *param)
{
    uint64_t number = mix(mix(seed, (int64_t)param->dtype), param->requires_grad);
    number = mix(mix(number, param->dim), param->n_dims);
    for (int i = 0; i < param->n_dims; i++) {
        number = mix(number, param->shape[i]);
    }
    return number;
}

static uint64_t number_of_unit(const struct fsdp_unit *unit)
{
    uint64_t number = mix(0, (int64_t)unit->n_params);
    number = mix(mix(number, (int64_t)unit->reshard), unit->reshard_ranks);
    number = mix(mix(number, (int64_t)unit->param_dtype), (int64_t)unit->wanted_reduce);
    number = mix_double(mix(number, unit->forces_sum), unit->divide_factor);
    number = mix(mix(number, unit->custom_gather.call != NULL), unit->custom_scatter.call != NULL);
    number = mix(number, unit->reduces_unused);
    for (size_t i = 0; i < unit->n_params; i++) {
        number = number_of_param(number, &unit->params[i]);
    }
    return number;
}

/* Of everything that is not a unit's; how many there are, above all. */
static uint64_t number_of_all(const struct fsdp_context *context)
{
    return mix(mix(mix(0, (int64_t)context->n_units), context->n_forward), context->max_reduces);
}

/* The first rank that sent something else, or -1; and for which of the n numbers. */
static int find_difference(const uint64_t *theirs, int n_ranks, const uint64_t *mine, size_t n,
                           size_t *which_out)
{
    for (size_t i = 0; i < n; i++) {
        for (int rank = 0; rank < n_ranks; rank++) {
            if (theirs[(size_t)rank * n + i] != mine[i]) {
                *which_out = i;
                return rank;
            }
        }
    }
    return -1;
}

/* -1 in *rank_out: all have sent the same. */
static shoal_status exchange(shoal_group *group, const uint64_t *mine, size_t n, int *rank_out,
                             size_t *which_out)
{
    int n_ranks = shoal_group_n_ranks(group);
    uint64_t *theirs = mem_alloc_zeroed((size_t)n_ranks * n, sizeof *theirs);
    if (!theirs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = shoal_group_all_gather(group, mine, theirs, n, SHOAL_U64);
    if (status == SHOAL_OK) {
        *rank_out = find_difference(theirs, n_ranks, mine, n, which_out);
    }
    mem_free(theirs);
    return status;
}

static shoal_status agree_over(const struct fsdp_context *context, shoal_group *group,
                               const uint64_t *numbers)
{
    uint64_t all = number_of_all(context);
    int rank = -1;
    size_t which = 0;
    if (!group) {
        return SHOAL_OK;
    }
    TRY(exchange(group, &all, 1, &rank, &which));
    if (rank >= 0) {
        return error_set(SHOAL_ERR_MISMATCH,
                         "there are %zu units here, gathered %d ahead, %d reduced at once: rank %d differs",
                         context->n_units, context->n_forward, context->max_reduces,
                         shoal_group_world_rank(group, rank));
    }
    TRY(exchange(group, numbers, context->n_units, &rank, &which));
    if (rank >= 0) {
        return error_set(
            SHOAL_ERR_MISMATCH,
            "%s: its parameters (shapes, dtypes, which get gradients) or options are others on rank %d",
            context->units[which]->name, shoal_group_world_rank(group, rank));
    }
    return SHOAL_OK;
}

shoal_status fsdp_agree(const struct fsdp_context *context)
{
    uint64_t *numbers = mem_alloc_zeroed(context->n_units, sizeof *numbers);
    if (!numbers) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < context->n_units; i++) {
        numbers[i] = number_of_unit(context->units[i]);
    }
    shoal_status status = agree_over(context, context->mesh.gather, numbers);
    if (status == SHOAL_OK) {
        status = agree_over(context, context->mesh.replicate, numbers);
    }
    mem_free(numbers);
    return status;
}
