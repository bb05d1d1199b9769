/* SPDX-License-Identifier: MIT */
#include "comm/agree/collectives.h"

#include "comm/call/collectives.h"

static shoal_status run(const struct agreement *agreement, struct collective *call)
{
    if (agreement->run) {
        return agreement->run(agreement->context, call);
    }
    call->purpose = agreement->purpose;
    return collectives_run(agreement->group, call);
}

shoal_status agree_find_least(const struct agreement *agreement, int64_t *numbers, size_t n_numbers)
{
    struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = SHOAL_I64,
                              .reduce = SHOAL_MIN,
                              .single = {numbers, numbers, n_numbers}};
    return run(agreement, &call);
}

shoal_status agree_send(const struct agreement *agreement, void *data, size_t bytes, int rank)
{
    struct collective call = {
        .kind = COLLECTIVE_BROADCAST, .dtype = SHOAL_U8, .root = rank, .single = {data, data, bytes}};
    return run(agreement, &call);
}

shoal_status agree_gather_into(const struct agreement *agreement, const void *mine, size_t bytes, void *all)
{
    struct collective call = {.kind = COLLECTIVE_ALL_GATHER, .dtype = SHOAL_U8, .single = {mine, all, bytes}};
    return run(agreement, &call);
}
