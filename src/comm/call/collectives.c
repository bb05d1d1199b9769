/* SPDX-License-Identifier: MIT */
/*
 * The public collectives on raw memory: the arguments are put into a struct collective, checked by one function, and
 * handed to the group's lane.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/callback.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/buffers.h"
#include "comm/call/collectives.h"
#include "comm/group/group.h"
#include "comm/lane/lane.h"
#include "kernel/kernel.h"
#include "shoal/group.h"
#include "tensor/dtype.h"

/* Checking --------------------------------------------------------------------------------------------- */

static shoal_status check_reduce(const struct collective *call, bool has_factor)
{
    if (call->reduce == SHOAL_PREMUL_SUM && !has_factor) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s: premul_sum needs a factor: shoal_group_collective takes one (shoal/group.h)",
                         collective_rows[call->kind].name);
    }
    shoal_status status = kernel_reduce_check(call->reduce, call->dtype);
    /* Another text than for an operator that the dtype does not have: there is no operator with this number. */
    if (status != SHOAL_OK && ((int)call->reduce < 0 || (int)call->reduce > (int)SHOAL_PREMUL_SUM)) {
        return error_set(SHOAL_ERR_INVALID, "%s: %d is not a reduce operator",
                         collective_rows[call->kind].name, (int)call->reduce);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", collective_rows[call->kind].name);
}

/* Comes before all other checks: in a captured step buffers have no addresses, so their errors would mislead. */
static shoal_status check_capture(const struct collective *call, bool has_counts)
{
    char name[32];
    if (!callback_is_capturing()) {
        return SHOAL_OK;
    }
    (void)snprintf(name, sizeof name, "%s%s", collective_rows[call->kind].name, has_counts ? "_v" : "");
    return callback_refuse(name);
}

/* Checks everything but the buffers. `pieces` is set. */
static shoal_status check_call(shoal_group *group, const struct collective *call, bool has_factor)
{
    const struct collective_row *row = &collective_rows[call->kind];
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "%s: group is NULL", row->name);
    }
    TRY(group_check_open(group));
    if (!dtype_is_valid(call->dtype)) {
        return error_set(SHOAL_ERR_INVALID, "%s: %d is not a dtype", row->name, (int)call->dtype);
    }
    if (row->reduces) {
        TRY(check_reduce(call, has_factor));
    }
    if (call->root < 0 || call->root >= group->peers.n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "%s: root %d is outside of the group of %d ranks", row->name,
                         call->root, group->peers.n_ranks);
    }
    return SHOAL_OK;
}

/* How a call is submitted. Blocking calls have no work_out. */
struct ending {
    bool is_start;
    bool has_factor;
    bool is_list;
    const struct work_hooks *hooks; /* NULL if there is none */
    shoal_work **work_out;
};

static const struct ending blocking = {.is_start = false};

static struct ending starting(shoal_work **work_out)
{
    return (struct ending){.is_start = true, .work_out = work_out};
}

/* Submits a call whose `pieces` are set. */
static shoal_status submit_pieces(shoal_group *group, struct collective *call, struct ending ending)
{
    TRY(check_call(group, call, ending.has_factor));
    TRY(buffers_check(&group->peers, call, ending.is_list));
    if (!ending.is_start) {
        return lane_run(group->lane, call);
    }
    if (!ending.work_out) {
        return error_set(
            SHOAL_ERR_INVALID,
            "%s: work_out is NULL; only shoal_group_collective_start with on_done or release needs none",
            collective_rows[call->kind].name);
    }
    return lane_start(group->lane, call, ending.hooks, ending.work_out);
}

/* Submits a call of one piece, call->single. */
static shoal_status submit(shoal_group *group, struct collective *call, struct ending ending)
{
    error_clear();
    TRY(check_capture(call, call->send_counts != NULL));
    call->n_pieces = 1;
    call->pieces = &call->single;
    return submit_pieces(group, call, ending);
}

/* Submits a call with counts per rank. */
static shoal_status submit_v(shoal_group *group, struct collective *call, struct ending ending)
{
    error_clear();
    TRY(check_capture(call, /*has_counts=*/true));
    if (!call->send_counts || !call->recv_counts) {
        const char *name = "counts";
        if (call->kind == COLLECTIVE_ALL_TO_ALL) {
            name = call->send_counts ? "recv_counts" : "send_counts";
        }
        return error_set(SHOAL_ERR_INVALID, "%s_v: %s is NULL", collective_rows[call->kind].name, name);
    }
    return submit(group, call, ending);
}

static shoal_status submit_list(shoal_group *group, struct collective *call, const shoal_part *parts,
                                size_t n_parts, struct ending ending)
{
    error_clear();
    TRY(check_capture(call, /*has_counts=*/false));
    const char *name = collective_rows[call->kind].name;
    if (!parts || n_parts == 0) {
        return error_set(SHOAL_ERR_INVALID, "%s: the list of parts is empty: parts is %s, n_parts is %zu",
                         name, parts ? "given" : "NULL", n_parts);
    }
    struct collective_piece few[BUFFERS_FEW];
    struct collective_piece *pieces = few;
    if (n_parts > BUFFERS_FEW) {
        size_t bytes;
        if (!mem_multiply(n_parts, sizeof *pieces, &bytes)) {
            return error_set(SHOAL_ERR_INVALID, "%s: %zu parts are more than memory can hold", name, n_parts);
        }
        pieces = mem_alloc(bytes);
        if (!pieces) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    for (size_t i = 0; i < n_parts; i++) {
        bool is_broadcast = call->kind == COLLECTIVE_BROADCAST;
        pieces[i] = (struct collective_piece){.send = is_broadcast ? parts[i].recv : parts[i].send,
                                              .recv = parts[i].recv,
                                              .count = parts[i].count};
    }
    call->n_pieces = n_parts;
    call->pieces = pieces;
    ending.is_list = true;
    shoal_status status = submit_pieces(group, call, ending);
    if (pieces != few) {
        mem_free(pieces);
    }
    return status;
}

/* The calls -------------------------------------------------------------------------------------------- */

shoal_status shoal_group_barrier(shoal_group *group)
{
    struct collective call = {.kind = COLLECTIVE_BARRIER, .dtype = SHOAL_U8};
    return submit(group, &call, blocking);
}

shoal_status shoal_group_barrier_start(shoal_group *group, shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_BARRIER, .dtype = SHOAL_U8};
    return submit(group, &call, starting(work_out));
}

shoal_status shoal_group_broadcast(shoal_group *group, void *buffer, size_t count, shoal_dtype dtype,
                                   int root)
{
    struct collective call = {
        .kind = COLLECTIVE_BROADCAST, .dtype = dtype, .root = root, .single = {buffer, buffer, count}};
    return submit(group, &call, blocking);
}

shoal_status shoal_group_broadcast_start(shoal_group *group, void *buffer, size_t count, shoal_dtype dtype,
                                         int root, shoal_work **work_out)
{
    struct collective call = {
        .kind = COLLECTIVE_BROADCAST, .dtype = dtype, .root = root, .single = {buffer, buffer, count}};
    return submit(group, &call, starting(work_out));
}

shoal_status shoal_group_all_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                                    shoal_dtype dtype, shoal_reduce_op reduce)
{
    struct collective call = {
        .kind = COLLECTIVE_ALL_REDUCE, .dtype = dtype, .reduce = reduce, .single = {send, recv, count}};
    return submit(group, &call, blocking);
}

shoal_status shoal_group_all_reduce_start(shoal_group *group, const void *send, void *recv, size_t count,
                                          shoal_dtype dtype, shoal_reduce_op reduce, shoal_work **work_out)
{
    struct collective call = {
        .kind = COLLECTIVE_ALL_REDUCE, .dtype = dtype, .reduce = reduce, .single = {send, recv, count}};
    return submit(group, &call, starting(work_out));
}

shoal_status shoal_group_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                                shoal_dtype dtype, shoal_reduce_op reduce, int root)
{
    struct collective call = {.kind = COLLECTIVE_REDUCE,
                              .dtype = dtype,
                              .reduce = reduce,
                              .root = root,
                              .single = {send, recv, count}};
    return submit(group, &call, blocking);
}

shoal_status shoal_group_reduce_start(shoal_group *group, const void *send, void *recv, size_t count,
                                      shoal_dtype dtype, shoal_reduce_op reduce, int root,
                                      shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_REDUCE,
                              .dtype = dtype,
                              .reduce = reduce,
                              .root = root,
                              .single = {send, recv, count}};
    return submit(group, &call, starting(work_out));
}

shoal_status shoal_group_all_gather(shoal_group *group, const void *send, void *recv, size_t count,
                                    shoal_dtype dtype)
{
    struct collective call = {.kind = COLLECTIVE_ALL_GATHER, .dtype = dtype, .single = {send, recv, count}};
    return submit(group, &call, blocking);
}

shoal_status shoal_group_all_gather_start(shoal_group *group, const void *send, void *recv, size_t count,
                                          shoal_dtype dtype, shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_ALL_GATHER, .dtype = dtype, .single = {send, recv, count}};
    return submit(group, &call, starting(work_out));
}

shoal_status shoal_group_all_gather_v(shoal_group *group, const void *send, void *recv, const size_t *counts,
                                      shoal_dtype dtype)
{
    struct collective call = {.kind = COLLECTIVE_ALL_GATHER,
                              .dtype = dtype,
                              .single = {send, recv, 0},
                              .send_counts = counts,
                              .recv_counts = counts};
    return submit_v(group, &call, blocking);
}

shoal_status shoal_group_all_gather_v_start(shoal_group *group, const void *send, void *recv,
                                            const size_t *counts, shoal_dtype dtype, shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_ALL_GATHER,
                              .dtype = dtype,
                              .single = {send, recv, 0},
                              .send_counts = counts,
                              .recv_counts = counts};
    return submit_v(group, &call, starting(work_out));
}

shoal_status shoal_group_reduce_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                                        shoal_dtype dtype, shoal_reduce_op reduce)
{
    struct collective call = {
        .kind = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .reduce = reduce, .single = {send, recv, count}};
    return submit(group, &call, blocking);
}

shoal_status shoal_group_reduce_scatter_start(shoal_group *group, const void *send, void *recv, size_t count,
                                              shoal_dtype dtype, shoal_reduce_op reduce,
                                              shoal_work **work_out)
{
    struct collective call = {
        .kind = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .reduce = reduce, .single = {send, recv, count}};
    return submit(group, &call, starting(work_out));
}

shoal_status shoal_group_reduce_scatter_v(shoal_group *group, const void *send, void *recv,
                                          const size_t *counts, shoal_dtype dtype, shoal_reduce_op reduce)
{
    struct collective call = {.kind = COLLECTIVE_REDUCE_SCATTER,
                              .dtype = dtype,
                              .reduce = reduce,
                              .single = {send, recv, 0},
                              .send_counts = counts,
                              .recv_counts = counts};
    return submit_v(group, &call, blocking);
}

shoal_status shoal_group_reduce_scatter_v_start(shoal_group *group, const void *send, void *recv,
                                                const size_t *counts, shoal_dtype dtype,
                                                shoal_reduce_op reduce, shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_REDUCE_SCATTER,
                              .dtype = dtype,
                              .reduce = reduce,
                              .single = {send, recv, 0},
                              .send_counts = counts,
                              .recv_counts = counts};
    return submit_v(group, &call, starting(work_out));
}

shoal_status shoal_group_all_to_all(shoal_group *group, const void *send, void *recv, size_t count,
                                    shoal_dtype dtype)
{
    struct collective call = {.kind = COLLECTIVE_ALL_TO_ALL, .dtype = dtype, .single = {send, recv, count}};
    return submit(group, &call, blocking);
}

shoal_status shoal_group_all_to_all_start(shoal_group *group, const void *send, void *recv, size_t count,
                                          shoal_dtype dtype, shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_ALL_TO_ALL, .dtype = dtype, .single = {send, recv, count}};
    return submit(group, &call, starting(work_out));
}

shoal_status shoal_group_all_to_all_v(shoal_group *group, const void *send, const size_t *send_counts,
                                      void *recv, const size_t *recv_counts, shoal_dtype dtype)
{
    struct collective call = {.kind = COLLECTIVE_ALL_TO_ALL,
                              .dtype = dtype,
                              .single = {send, recv, 0},
                              .send_counts = send_counts,
                              .recv_counts = recv_counts};
    return submit_v(group, &call, blocking);
}

shoal_status shoal_group_all_to_all_v_start(shoal_group *group, const void *send, const size_t *send_counts,
                                            void *recv, const size_t *recv_counts, shoal_dtype dtype,
                                            shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_ALL_TO_ALL,
                              .dtype = dtype,
                              .single = {send, recv, 0},
                              .send_counts = send_counts,
                              .recv_counts = recv_counts};
    return submit_v(group, &call, starting(work_out));
}

shoal_status shoal_group_gather(shoal_group *group, const void *send, void *recv, size_t count,
                                shoal_dtype dtype, int root)
{
    struct collective call = {
        .kind = COLLECTIVE_GATHER, .dtype = dtype, .root = root, .single = {send, recv, count}};
    return submit(group, &call, blocking);
}

shoal_status shoal_group_gather_start(shoal_group *group, const void *send, void *recv, size_t count,
                                      shoal_dtype dtype, int root, shoal_work **work_out)
{
    struct collective call = {
        .kind = COLLECTIVE_GATHER, .dtype = dtype, .root = root, .single = {send, recv, count}};
    return submit(group, &call, starting(work_out));
}

shoal_status shoal_group_gather_v(shoal_group *group, const void *send, void *recv, const size_t *counts,
                                  shoal_dtype dtype, int root)
{
    struct collective call = {.kind = COLLECTIVE_GATHER,
                              .dtype = dtype,
                              .root = root,
                              .single = {send, recv, 0},
                              .send_counts = counts,
                              .recv_counts = counts};
    return submit_v(group, &call, blocking);
}

shoal_status shoal_group_gather_v_start(shoal_group *group, const void *send, void *recv,
                                        const size_t *counts, shoal_dtype dtype, int root,
                                        shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_GATHER,
                              .dtype = dtype,
                              .root = root,
                              .single = {send, recv, 0},
                              .send_counts = counts,
                              .recv_counts = counts};
    return submit_v(group, &call, starting(work_out));
}

shoal_status shoal_group_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                                 shoal_dtype dtype, int root)
{
    struct collective call = {
        .kind = COLLECTIVE_SCATTER, .dtype = dtype, .root = root, .single = {send, recv, count}};
    return submit(group, &call, blocking);
}

shoal_status shoal_group_scatter_start(shoal_group *group, const void *send, void *recv, size_t count,
                                       shoal_dtype dtype, int root, shoal_work **work_out)
{
    struct collective call = {
        .kind = COLLECTIVE_SCATTER, .dtype = dtype, .root = root, .single = {send, recv, count}};
    return submit(group, &call, starting(work_out));
}

shoal_status shoal_group_scatter_v(shoal_group *group, const void *send, void *recv, const size_t *counts,
                                   shoal_dtype dtype, int root)
{
    struct collective call = {.kind = COLLECTIVE_SCATTER,
                              .dtype = dtype,
                              .root = root,
                              .single = {send, recv, 0},
                              .send_counts = counts,
                              .recv_counts = counts};
    return submit_v(group, &call, blocking);
}

shoal_status shoal_group_scatter_v_start(shoal_group *group, const void *send, void *recv,
                                         const size_t *counts, shoal_dtype dtype, int root,
                                         shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_SCATTER,
                              .dtype = dtype,
                              .root = root,
                              .single = {send, recv, 0},
                              .send_counts = counts,
                              .recv_counts = counts};
    return submit_v(group, &call, starting(work_out));
}

uint32_t collectives_next_root(shoal_group *group)
{
    /* Relaxed: a number that stands for itself. */
    return atomic_fetch_add_explicit(&group->n_roots, 1, memory_order_relaxed) + 1;
}

/* With a purpose --------------------------------------------------------------------------------------- */

/* For callers that give a factor in the call itself. */
static struct ending with_factor(const struct collective *call, struct ending ending)
{
    ending.has_factor = call->reduce == SHOAL_PREMUL_SUM;
    return ending;
}

shoal_status collectives_check(shoal_group *group, const struct collective *call, bool is_list)
{
    TRY(check_call(group, call, call->reduce == SHOAL_PREMUL_SUM));
    return buffers_check(&group->peers, call, is_list);
}

shoal_status collectives_run(shoal_group *group, struct collective *call)
{
    return submit(group, call, with_factor(call, blocking));
}

shoal_status collectives_start(shoal_group *group, struct collective *call, shoal_work **work_out)
{
    return submit(group, call, with_factor(call, starting(work_out)));
}

shoal_status collectives_run_list(shoal_group *group, struct collective *call, const shoal_part *parts,
                                  size_t n_parts)
{
    return submit_list(group, call, parts, n_parts, with_factor(call, blocking));
}

shoal_status collectives_start_list(shoal_group *group, struct collective *call, const shoal_part *parts,
                                    size_t n_parts, shoal_work **work_out)
{
    return submit_list(group, call, parts, n_parts, with_factor(call, starting(work_out)));
}

shoal_status collectives_start_with(shoal_group *group, struct collective *call, const shoal_part *parts,
                                    size_t n_parts, const struct work_hooks *hooks, shoal_work **work_out)
{
    struct ending ending = with_factor(call, starting(work_out));
    ending.hooks = hooks;
    return parts || n_parts > 0 ? submit_list(group, call, parts, n_parts, ending)
                                : submit(group, call, ending);
}

shoal_status collectives_barrier(shoal_group *group, const struct purpose *purpose)
{
    struct collective call = {.kind = COLLECTIVE_BARRIER, .dtype = SHOAL_U8, .purpose = purpose};
    return submit(group, &call, blocking);
}

shoal_status collectives_barrier_start(shoal_group *group, const struct purpose *purpose,
                                       shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_BARRIER, .dtype = SHOAL_U8, .purpose = purpose};
    return submit(group, &call, starting(work_out));
}
