/* SPDX-License-Identifier: MIT */
/* The table of calls, and what each does with the words of a name. */
#include "calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Words ------------------------------------------------------------------------------------------------ */

/* avg and premul_sum have no bound that a result could be held against. */
static bool read_reduce(const char *word, struct replay_call *call)
{
    static const shoal_reduce_op known[] = {SHOAL_SUM,  SHOAL_PRODUCT, SHOAL_MIN, SHOAL_MAX,
                                            SHOAL_BAND, SHOAL_BOR,     SHOAL_BXOR};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(word, shoal_reduce_op_name(known[i])) == 0) {
            call->reduce = known[i];
            return true;
        }
    }
    return false;
}

/* "dim1" with the prefix "dim" is 1. */
static bool read_number(const char *word, const char *prefix, int64_t *number_out)
{
    size_t length = strlen(prefix);
    if (strncmp(word, prefix, length) != 0 || strspn(word + length, "-0123456789") != strlen(word + length)) {
        return false;
    }
    char *end;
    errno = 0;
    *number_out = strtoll(word + length, &end, 10);
    return end != word + length && *end == '\0' && errno == 0;
}

static bool read_dim(const char *word, struct replay_call *call)
{
    return read_number(word, "dim", &call->dim);
}

static bool read_source(const char *word, struct replay_call *call)
{
    int64_t source;
    if (!read_number(word, "src", &source) || source < 0 || source >= call->n_ranks) {
        return false;
    }
    call->source = (int)source;
    return true;
}

static bool read_splits(const char *word, struct replay_call *call)
{
    call->is_uneven = strcmp(word, "uneven") == 0;
    return call->is_uneven || strcmp(word, "even") == 0;
}

/* Calls ------------------------------------------------------------------------------------------------ */

int64_t replay_uneven_rows(int from, int to)
{
    return (from + to) % 3 + 1;
}

static void run_all_reduce(const struct replay_call *call, int rank, shoal_group *group,
                           shoal_tensor *const *ins, size_t n_tensors, shoal_tensor **outs)
{
    outs[0] = shoal_all_reduce(ins[0], call->reduce, group);
}

static void run_all_gather(const struct replay_call *call, int rank, shoal_group *group,
                           shoal_tensor *const *ins, size_t n_tensors, shoal_tensor **outs)
{
    outs[0] = shoal_all_gather_tensor(ins[0], call->dim, group);
}

static void run_reduce_scatter(const struct replay_call *call, int rank, shoal_group *group,
                               shoal_tensor *const *ins, size_t n_tensors, shoal_tensor **outs)
{
    outs[0] = shoal_reduce_scatter_tensor(ins[0], call->reduce, call->dim, group);
}

static void run_all_to_all(const struct replay_call *call, int rank, shoal_group *group,
                           shoal_tensor *const *ins, size_t n_tensors, shoal_tensor **outs)
{
    size_t n_splits = call->is_uneven ? (size_t)call->n_ranks : 0;
    int64_t *splits = calloc(2 * n_splits + 1, sizeof(*splits));
    if (!splits) {
        return;
    }
    for (int peer = 0; call->is_uneven && peer < call->n_ranks; peer++) {
        splits[peer] = replay_uneven_rows(peer, rank);
        splits[n_splits + (size_t)peer] = replay_uneven_rows(rank, peer);
    }
    outs[0] = call->is_uneven ? shoal_all_to_all_single(ins[0], splits, splits + n_splits, n_splits, group)
                              : shoal_all_to_all_single(ins[0], NULL, NULL, 0, group);
    free(splits);
}

static void run_broadcast(const struct replay_call *call, int rank, shoal_group *group,
                          shoal_tensor *const *ins, size_t n_tensors, shoal_tensor **outs)
{
    outs[0] = shoal_broadcast(ins[0], call->source, group);
}

static void take_list(shoal_tensor *const *list, size_t n_tensors, shoal_tensor **outs)
{
    if (list) {
        memcpy(outs, list, n_tensors * sizeof(outs[0]));
    }
}

static void run_all_reduce_list(const struct replay_call *call, int rank, shoal_group *group,
                                shoal_tensor *const *ins, size_t n_tensors, shoal_tensor **outs)
{
    take_list(shoal_all_reduce_coalesced(ins, n_tensors, call->reduce, group), n_tensors, outs);
}

static void run_all_gather_list(const struct replay_call *call, int rank, shoal_group *group,
                                shoal_tensor *const *ins, size_t n_tensors, shoal_tensor **outs)
{
    take_list(shoal_all_gather_into_tensor_coalesced(ins, n_tensors, group), n_tensors, outs);
}

static void run_reduce_scatter_list(const struct replay_call *call, int rank, shoal_group *group,
                                    shoal_tensor *const *ins, size_t n_tensors, shoal_tensor **outs)
{
    take_list(shoal_reduce_scatter_tensor_coalesced(ins, n_tensors, call->reduce, NULL, group), n_tensors,
              outs);
}

/* The table -------------------------------------------------------------------------------------------- */

static const struct replay_row rows[] = {
    {.op = "all_reduce", .words = {read_reduce}, .is_reduce = true, .run = run_all_reduce},
    {.op = "all_reduce_coalesced",
     .words = {read_reduce},
     .is_list = true,
     .is_reduce = true,
     .run = run_all_reduce_list},
    {.op = "all_gather_tensor", .words = {read_dim}, .run = run_all_gather},
    {.op = "all_gather_into_tensor_coalesced", .is_list = true, .run = run_all_gather_list},
    {.op = "reduce_scatter_tensor",
     .words = {read_reduce, read_dim},
     .is_reduce = true,
     .is_scatter = true,
     .run = run_reduce_scatter},
    {.op = "reduce_scatter_tensor_coalesced",
     .words = {read_reduce},
     .is_list = true,
     .is_reduce = true,
     .is_scatter = true,
     .run = run_reduce_scatter_list},
    {.op = "all_to_all_single", .words = {read_splits}, .run = run_all_to_all},
    {.op = "broadcast", .words = {read_source}, .run = run_broadcast},
};

const struct replay_row *replay_row_find(const char *op)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(op, rows[i].op) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}
