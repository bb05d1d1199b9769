/* SPDX-License-Identifier: MIT */
/*
 * The public collectives on raw memory: what is asked for is put into a struct collective, checked by one function
 * and given to the group's lane.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/apart.h"
#include "comm/collectives.h"
#include "comm/group.h"
#include "comm/lane.h"
#include "kernel/kernel.h"
#include "shoal/group.h"
#include "tensor/dtype.h"

/* What each needs of its buffers ----------------------------------------------------------------------- */

enum place {
    PLACE_SAME,    /* send == recv */
    PLACE_IN_RECV, /* send is this rank's block of recv */
    PLACE_IN_SEND  /* recv is this rank's block of send */
};

struct buffer_rule {
    bool has_send_blocks; /* a block of `count` per rank, not one */
    bool has_recv_blocks;
    bool is_sent_by_root; /* only the root's send is read */
    bool is_received_by_root;
    enum place in_place; /* where they may coincide */
};

static const struct buffer_rule rules[COLLECTIVE_COUNT] = {
    [COLLECTIVE_BARRIER] = {.in_place = PLACE_SAME},
    [COLLECTIVE_BROADCAST] = {.in_place = PLACE_SAME},
    [COLLECTIVE_ALL_REDUCE] = {.in_place = PLACE_SAME},
    [COLLECTIVE_REDUCE] = {.is_received_by_root = true, .in_place = PLACE_SAME},
    [COLLECTIVE_ALL_GATHER] = {.has_recv_blocks = true, .in_place = PLACE_IN_RECV},
    [COLLECTIVE_REDUCE_SCATTER] = {.has_send_blocks = true, .in_place = PLACE_IN_SEND},
    [COLLECTIVE_ALL_TO_ALL] = {.has_send_blocks = true, .has_recv_blocks = true, .in_place = PLACE_SAME},
    [COLLECTIVE_GATHER] = {.has_recv_blocks = true, .is_received_by_root = true, .in_place = PLACE_IN_RECV},
    [COLLECTIVE_SCATTER] = {.has_send_blocks = true, .is_sent_by_root = true, .in_place = PLACE_IN_SEND},
};

/* The two buffers of a piece, in bytes. */
struct extent {
    size_t send_bytes;
    size_t recv_bytes;
    size_t own_offset; /* of this rank's block in the buffer that has blocks */
};

static const char *call_suffix(const struct collective *call)
{
    return call->send_counts ? "_v" : "";
}

static shoal_status fail_overlap(const struct collective *call)
{
    static const char *const places[] = {[PLACE_SAME] = "coincide",
                                         [PLACE_IN_RECV] = "coincide with send at this rank's block of recv",
                                         [PLACE_IN_SEND] = "coincide with recv at this rank's block of send"};
    const char *name = collective_rows[call->kind].name;
    if (call->kind == COLLECTIVE_ALL_TO_ALL && call->send_counts) {
        return error_set(SHOAL_ERR_INVALID, "%s_v: send and recv overlap", name);
    }
    return error_set(SHOAL_ERR_INVALID, "%s%s: send and recv overlap; they may only %s", name,
                     call_suffix(call), places[rules[call->kind].in_place]);
}

static bool is_in_place(const struct collective *call, const struct collective_piece *piece,
                        const struct extent *extent)
{
    const char *send = piece->send;
    const char *recv = piece->recv;
    switch (rules[call->kind].in_place) {
    case PLACE_SAME:
        return send == recv && !call->send_counts;
    case PLACE_IN_RECV:
        return send == recv + extent->own_offset;
    case PLACE_IN_SEND:
        return recv == send + extent->own_offset;
    }
    return false;
}

static shoal_status fail_null(const struct collective *call, const char *buffer, size_t bytes)
{
    return error_set(SHOAL_ERR_INVALID, "%s%s: %s is NULL, but has %zu bytes",
                     collective_rows[call->kind].name, call_suffix(call), buffer, bytes);
}

static shoal_status check_buffers(const struct collective *call, const struct collective_piece *piece,
                                  const struct extent *extent)
{
    if (extent->send_bytes > 0 && !piece->send) {
        return fail_null(call, "send", extent->send_bytes);
    }
    if (extent->recv_bytes > 0 && !piece->recv) {
        return fail_null(call, "recv", extent->recv_bytes);
    }
    uintptr_t send = (uintptr_t)piece->send;
    uintptr_t recv = (uintptr_t)piece->recv;
    bool overlaps = extent->send_bytes > 0 && extent->recv_bytes > 0 && send < recv + extent->recv_bytes &&
                    recv < send + extent->send_bytes;
    return overlaps && !is_in_place(call, piece, extent) ? fail_overlap(call) : SHOAL_OK;
}

/* Counts ----------------------------------------------------------------------------------------------- */

static shoal_status fail_count(const struct collective *call, size_t count, int n_ranks)
{
    return error_set(SHOAL_ERR_INVALID, "%s: count %zu of %s for %d ranks is more than memory can hold",
                     collective_rows[call->kind].name, count, shoal_dtype_name(call->dtype), n_ranks);
}

static shoal_status measure_piece(const struct shoal_group *group, const struct collective *call,
                                  const struct collective_piece *piece, struct extent *extent_out)
{
    const struct buffer_rule *rule = &rules[call->kind];
    size_t n_ranks = (size_t)group->peers.n_ranks;
    size_t bytes;
    size_t all_bytes;
    /* Half of the addresses, so that ends of buffers can be computed. */
    if (__builtin_mul_overflow(piece->count, dtype_bytes(call->dtype), &bytes) ||
        __builtin_mul_overflow(bytes, n_ranks, &all_bytes) || all_bytes > SIZE_MAX / 2) {
        return fail_count(call, piece->count, group->peers.n_ranks);
    }
    bool is_root = group->peers.rank == call->root;
    *extent_out = (struct extent){.send_bytes = rule->has_send_blocks ? all_bytes : bytes,
                                  .recv_bytes = rule->has_recv_blocks ? all_bytes : bytes,
                                  .own_offset = (size_t)group->peers.rank * bytes};
    if (rule->is_sent_by_root && !is_root) {
        extent_out->send_bytes = 0;
    }
    if (rule->is_received_by_root && !is_root) {
        extent_out->recv_bytes = 0;
    }
    return SHOAL_OK;
}

static shoal_status check_piece(const struct shoal_group *group, const struct collective *call,
                                const struct collective_piece *piece)
{
    struct extent extent;
    TRY(measure_piece(group, call, piece, &extent));
    return check_buffers(call, piece, &extent);
}

/* Bytes before this rank's block, and of all blocks. */
static shoal_status add_counts(const struct shoal_group *group, const struct collective *call,
                               const size_t *counts, const char *name, size_t *own_out, size_t *total_out)
{
    size_t total = 0;
    for (int i = 0; i < group->peers.n_ranks; i++) {
        if (i == group->peers.rank) {
            *own_out = total;
        }
        size_t bytes;
        if (__builtin_mul_overflow(counts[i], dtype_bytes(call->dtype), &bytes) ||
            __builtin_add_overflow(total, bytes, &total) || total > SIZE_MAX / 2) {
            return error_set(SHOAL_ERR_INVALID, "%s_v: %s[%d] = %zu: together more than memory can hold",
                             collective_rows[call->kind].name, name, i, counts[i]);
        }
    }
    *total_out = total;
    return SHOAL_OK;
}

static shoal_status check_counts(const struct shoal_group *group, const struct collective *call)
{
    const struct buffer_rule *rule = &rules[call->kind];
    struct extent extent;
    size_t recv_offset = 0;
    bool is_exchange = call->kind == COLLECTIVE_ALL_TO_ALL;
    TRY(add_counts(group, call, call->send_counts, is_exchange ? "send_counts" : "counts", &extent.own_offset,
                   &extent.send_bytes));
    TRY(add_counts(group, call, call->recv_counts, is_exchange ? "recv_counts" : "counts", &recv_offset,
                   &extent.recv_bytes));
    size_t own_bytes = call->send_counts[group->peers.rank] * dtype_bytes(call->dtype);
    if (!rule->has_send_blocks) {
        extent.send_bytes = own_bytes;
    }
    if (!rule->has_recv_blocks) {
        extent.recv_bytes = own_bytes;
    }
    return check_buffers(call, call->pieces, &extent);
}

/* Lists ------------------------------------------------------------------------------------------------ */

/* As many parts as fit on the stack; a list of more is copied to the heap. */
#define FEW_PARTS 32

static size_t list_intervals(const struct shoal_group *group, const struct collective *call,
                             struct apart_interval *intervals)
{
    size_t n = 0;
    for (size_t i = 0; i < call->n_pieces; i++) {
        const struct collective_piece *piece = &call->pieces[i];
        struct extent extent = {0};
        (void)measure_piece(group, call, piece, &extent); /* it was right before */
        if (extent.send_bytes > 0 && call->kind != COLLECTIVE_BROADCAST) {
            uintptr_t begin = (uintptr_t)piece->send;
            intervals[n++] =
                (struct apart_interval){.begin = begin, .end = begin + extent.send_bytes, .number = i};
        }
        if (extent.recv_bytes > 0) {
            uintptr_t begin = (uintptr_t)piece->recv;
            intervals[n++] = (struct apart_interval){
                .begin = begin, .end = begin + extent.recv_bytes, .number = i, .is_written = true};
        }
    }
    return n;
}

static shoal_status check_list(const struct shoal_group *group, const struct collective *call)
{
    char what[48];
    struct apart_interval few[2 * FEW_PARTS];
    struct apart_interval *intervals = few;
    if (call->n_pieces > FEW_PARTS) {
        intervals = mem_alloc(2 * call->n_pieces * sizeof *intervals);
        if (!intervals) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    (void)snprintf(what, sizeof what, "%s_list: parts", collective_rows[call->kind].name);
    shoal_status status = apart_check(what, intervals, list_intervals(group, call, intervals));
    if (intervals != few) {
        mem_free(intervals);
    }
    return status;
}

/* The whole call --------------------------------------------------------------------------------------- */

static shoal_status check_reduce(const struct collective *call, bool has_factor)
{
    if (call->reduce == SHOAL_PREMUL_SUM && !has_factor) {
        return error_set(SHOAL_ERR_INVALID, "%s: premul_sum needs a factor: the _premul call takes one",
                         collective_rows[call->kind].name);
    }
    shoal_status status = kernel_reduce_check(call->reduce, call->dtype);
    /* Not "not offered": there is none of that number. */
    if (status != SHOAL_OK && ((int)call->reduce < 0 || (int)call->reduce > (int)SHOAL_PREMUL_SUM)) {
        return error_set(SHOAL_ERR_INVALID, "%s: %d is no reduce operator", collective_rows[call->kind].name,
                         (int)call->reduce);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", collective_rows[call->kind].name);
}

/* Everything but the pieces. `pieces` is set. */
static shoal_status check_call(shoal_group *group, const struct collective *call, bool has_factor)
{
    const struct collective_row *row = &collective_rows[call->kind];
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "%s: group is NULL", row->name);
    }
    if (!dtype_is_valid(call->dtype)) {
        return error_set(SHOAL_ERR_INVALID, "%s: %d is no dtype", row->name, (int)call->dtype);
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

static shoal_status check_pieces(const struct shoal_group *group, const struct collective *call, bool is_list)
{
    if (call->send_counts) {
        return check_counts(group, call);
    }
    for (size_t i = 0; i < call->n_pieces; i++) {
        shoal_status status = check_piece(group, call, &call->pieces[i]);
        if (status != SHOAL_OK) {
            return is_list ? error_prefix(status, "part %zu of the list", i) : status;
        }
    }
    return call->n_pieces > 1 ? check_list(group, call) : SHOAL_OK;
}

/* What all calls end in. `work_out` as given; blocking calls have none. */
struct ending {
    bool is_start;
    bool has_factor;
    bool is_list;
    shoal_work **work_out;
};

static const struct ending blocking = {.is_start = false};

static struct ending starting(shoal_work **work_out)
{
    return (struct ending){.is_start = true, .work_out = work_out};
}

/* `call` with its pieces in place. */
static shoal_status submit_pieces(shoal_group *group, struct collective *call, struct ending ending)
{
    TRY(check_call(group, call, ending.has_factor));
    TRY(check_pieces(group, call, ending.is_list));
    if (!ending.is_start) {
        return lane_run(group->lane, call);
    }
    if (!ending.work_out) {
        return error_set(SHOAL_ERR_INVALID, "%s: work_out is NULL", collective_rows[call->kind].name);
    }
    return lane_start(group->lane, call, ending.work_out);
}

/* One piece: call->single. */
static shoal_status submit(shoal_group *group, struct collective *call, struct ending ending)
{
    error_clear();
    call->n_pieces = 1;
    call->pieces = &call->single;
    return submit_pieces(group, call, ending);
}

static shoal_status submit_premul(shoal_group *group, struct collective *call, struct ending ending)
{
    call->reduce = SHOAL_PREMUL_SUM;
    ending.has_factor = true;
    return submit(group, call, ending);
}

/* With counts per rank. */
static shoal_status submit_v(shoal_group *group, struct collective *call, struct ending ending)
{
    error_clear();
    if (!call->send_counts || !call->recv_counts) {
        const char *name = "counts";
        if (call->kind == COLLECTIVE_ALL_TO_ALL) {
            name = call->send_counts ? "recv_counts" : "send_counts";
        }
        return error_set(SHOAL_ERR_INVALID, "%s_v: %s is NULL", collective_rows[call->kind].name, name);
    }
    return submit(group, call, ending);
}

static shoal_status submit_v_premul(shoal_group *group, struct collective *call, struct ending ending)
{
    call->reduce = SHOAL_PREMUL_SUM;
    ending.has_factor = true;
    return submit_v(group, call, ending);
}

static shoal_status submit_list(shoal_group *group, struct collective *call, const shoal_part *parts,
                                size_t n_parts, struct ending ending)
{
    error_clear();
    const char *name = collective_rows[call->kind].name;
    if (!parts || n_parts == 0) {
        return error_set(SHOAL_ERR_INVALID, "%s_list: an empty list: parts is %s, n_parts is %zu", name,
                         parts ? "given" : "NULL", n_parts);
    }
    struct collective_piece few[FEW_PARTS];
    struct collective_piece *pieces = few;
    if (n_parts > FEW_PARTS) {
        size_t bytes;
        if (!mem_multiply(n_parts, sizeof *pieces, &bytes)) {
            return error_set(SHOAL_ERR_INVALID, "%s_list: %zu parts are more than memory can hold", name,
                             n_parts);
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

static shoal_status submit_list_premul(shoal_group *group, struct collective *call, const shoal_part *parts,
                                       size_t n_parts, struct ending ending)
{
    call->reduce = SHOAL_PREMUL_SUM;
    ending.has_factor = true;
    return submit_list(group, call, parts, n_parts, ending);
}

/* The calls -------------------------------------------------------------------------------------------- */

/* Each is a struct collective and one of the submits, twice: shoal_group_NAME and shoal_group_NAME_start. */
#define UNWRAP(...) __VA_ARGS__
#define CALL(NAME, submit_function, parameters, ...)                                  \
    shoal_status shoal_group_##NAME(UNWRAP parameters)                                \
    {                                                                                 \
        struct collective call = {__VA_ARGS__};                                       \
        return submit_function(group, &call, blocking);                               \
    }                                                                                 \
    shoal_status shoal_group_##NAME##_start(UNWRAP parameters, shoal_work **work_out) \
    {                                                                                 \
        struct collective call = {__VA_ARGS__};                                       \
        return submit_function(group, &call, starting(work_out));                     \
    }

CALL(barrier, submit, (shoal_group * group), .kind = COLLECTIVE_BARRIER, .dtype = SHOAL_U8)

CALL(broadcast, submit, (shoal_group * group, void *buffer, size_t count, shoal_dtype dtype, int root),
     .kind = COLLECTIVE_BROADCAST, .dtype = dtype, .root = root, .single = {buffer, buffer, count})

CALL(all_reduce, submit,
     (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype,
      shoal_reduce reduce),
     .kind = COLLECTIVE_ALL_REDUCE, .dtype = dtype, .reduce = reduce, .single = {send, recv, count})

CALL(all_reduce_premul, submit_premul,
     (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype, double factor),
     .kind = COLLECTIVE_ALL_REDUCE, .dtype = dtype, .factor = factor, .single = {send, recv, count})

CALL(reduce, submit,
     (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype, shoal_reduce reduce,
      int root),
     .kind = COLLECTIVE_REDUCE, .dtype = dtype, .reduce = reduce, .root = root, .single = {send, recv, count})

CALL(reduce_premul, submit_premul,
     (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype, double factor,
      int root),
     .kind = COLLECTIVE_REDUCE, .dtype = dtype, .factor = factor, .root = root, .single = {send, recv, count})

CALL(all_gather, submit, (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype),
     .kind = COLLECTIVE_ALL_GATHER, .dtype = dtype, .single = {send, recv, count})

CALL(all_gather_v, submit_v,
     (shoal_group * group, const void *send, void *recv, const size_t *counts, shoal_dtype dtype),
     .kind = COLLECTIVE_ALL_GATHER, .dtype = dtype, .single = {send, recv, 0}, .send_counts = counts,
     .recv_counts = counts)

CALL(reduce_scatter, submit,
     (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype,
      shoal_reduce reduce),
     .kind = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .reduce = reduce, .single = {send, recv, count})

CALL(reduce_scatter_premul, submit_premul,
     (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype, double factor),
     .kind = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .factor = factor, .single = {send, recv, count})

CALL(reduce_scatter_v, submit_v,
     (shoal_group * group, const void *send, void *recv, const size_t *counts, shoal_dtype dtype,
      shoal_reduce reduce),
     .kind = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .reduce = reduce, .single = {send, recv, 0},
     .send_counts = counts, .recv_counts = counts)

CALL(reduce_scatter_v_premul, submit_v_premul,
     (shoal_group * group, const void *send, void *recv, const size_t *counts, shoal_dtype dtype,
      double factor),
     .kind = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .factor = factor, .single = {send, recv, 0},
     .send_counts = counts, .recv_counts = counts)

CALL(all_to_all, submit, (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype),
     .kind = COLLECTIVE_ALL_TO_ALL, .dtype = dtype, .single = {send, recv, count})

CALL(all_to_all_v, submit_v,
     (shoal_group * group, const void *send, const size_t *send_counts, void *recv, const size_t *recv_counts,
      shoal_dtype dtype),
     .kind = COLLECTIVE_ALL_TO_ALL, .dtype = dtype, .single = {send, recv, 0}, .send_counts = send_counts,
     .recv_counts = recv_counts)

CALL(gather, submit,
     (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype, int root),
     .kind = COLLECTIVE_GATHER, .dtype = dtype, .root = root, .single = {send, recv, count})

CALL(scatter, submit,
     (shoal_group * group, const void *send, void *recv, size_t count, shoal_dtype dtype, int root),
     .kind = COLLECTIVE_SCATTER, .dtype = dtype, .root = root, .single = {send, recv, count})

/* Likewise, with a list of parts. */
#define CALL_LIST(NAME, submit_function, parameters, ...)                                                \
    shoal_status shoal_group_##NAME(shoal_group *group, const shoal_part *parts, size_t n_parts,         \
                                    UNWRAP parameters)                                                   \
    {                                                                                                    \
        struct collective call = {__VA_ARGS__};                                                          \
        return submit_function(group, &call, parts, n_parts, blocking);                                  \
    }                                                                                                    \
    shoal_status shoal_group_##NAME##_start(shoal_group *group, const shoal_part *parts, size_t n_parts, \
                                            UNWRAP parameters, shoal_work **work_out)                    \
    {                                                                                                    \
        struct collective call = {__VA_ARGS__};                                                          \
        return submit_function(group, &call, parts, n_parts, starting(work_out));                        \
    }

CALL_LIST(all_reduce_list, submit_list, (shoal_dtype dtype, shoal_reduce reduce),
          .kind = COLLECTIVE_ALL_REDUCE, .dtype = dtype, .reduce = reduce)

CALL_LIST(all_reduce_list_premul, submit_list_premul, (shoal_dtype dtype, double factor),
          .kind = COLLECTIVE_ALL_REDUCE, .dtype = dtype, .factor = factor)

CALL_LIST(all_gather_list, submit_list, (shoal_dtype dtype), .kind = COLLECTIVE_ALL_GATHER, .dtype = dtype)

CALL_LIST(reduce_scatter_list, submit_list, (shoal_dtype dtype, shoal_reduce reduce),
          .kind = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .reduce = reduce)

CALL_LIST(reduce_scatter_list_premul, submit_list_premul, (shoal_dtype dtype, double factor),
          .kind = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .factor = factor)

CALL_LIST(broadcast_list, submit_list, (shoal_dtype dtype, int root), .kind = COLLECTIVE_BROADCAST,
          .dtype = dtype, .root = root)

shoal_status collectives_start_list(shoal_group *group, enum collective_kind kind, const shoal_part *parts,
                                    size_t n_parts, shoal_dtype dtype, shoal_reduce reduce, double factor,
                                    uint32_t label, shoal_work **work_out)
{
    struct collective call = {.kind = kind, .dtype = dtype, .reduce = reduce, .label = label};
    if (reduce == SHOAL_PREMUL_SUM) {
        call.factor = factor;
        return submit_list_premul(group, &call, parts, n_parts, starting(work_out));
    }
    return submit_list(group, &call, parts, n_parts, starting(work_out));
}

shoal_status collectives_barrier(shoal_group *group, uint32_t label)
{
    struct collective call = {.kind = COLLECTIVE_BARRIER, .dtype = SHOAL_U8, .label = label};
    return submit(group, &call, blocking);
}

shoal_status collectives_barrier_start(shoal_group *group, uint32_t label, shoal_work **work_out)
{
    struct collective call = {.kind = COLLECTIVE_BARRIER, .dtype = SHOAL_U8, .label = label};
    return submit(group, &call, starting(work_out));
}
