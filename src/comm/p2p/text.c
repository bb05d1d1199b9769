/* SPDX-License-Identifier: MIT */
/* Error texts of point to point. */
#include <stdio.h>

#include "base/error.h"
#include "comm/p2p/move.h"

int p2p_world_rank(const struct p2p *p2p, int group_rank)
{
    return p2p->part.peers->world_ranks[group_rank];
}

/* Writes which group it was, unless it is the group of all ranks. */
static const char *describe_group(const struct p2p *p2p, char *text, size_t bytes)
{
    text[0] = '\0';
    if (!p2p->part.is_world) {
        (void)snprintf(text, bytes, " (group %s)", transport_group_name(p2p->part.peers));
    }
    return text;
}

static const char *describe_peer(const struct p2p *p2p, const struct p2p_operation *operation, char *text,
                                 size_t bytes)
{
    if (!operation->end) {
        return "any rank";
    }
    (void)snprintf(text, bytes, "rank %d", p2p_world_rank(p2p, operation->end->peer));
    return text;
}

const char *p2p_describe(const struct p2p *p2p, const struct p2p_operation *operation, char *text,
                         size_t bytes)
{
    bool is_send = operation->end && operation->end->direction == SHOAL_SEND;
    char peer[32];
    (void)snprintf(text, bytes, "rank %d %s %s count %llu %s %s tag %d", p2p_world_rank(p2p, p2p->rank),
                   is_send ? "sends" : "receives",
                   shoal_dtype_name((shoal_dtype)operation->message.head.dtype),
                   (unsigned long long)operation->message.head.count, is_send ? "to" : "from",
                   describe_peer(p2p, operation, peer, sizeof peer), operation->tag);
    return text;
}

void p2p_describe_batch(const struct p2p_batch *batch, char *text, size_t bytes)
{
    char what[160];
    char more[48] = "";
    char group[256];
    if (batch->n_operations > 1) {
        (void)snprintf(more, sizeof more, " and %zu more", batch->n_operations - 1);
    }
    (void)snprintf(text, bytes, "\"%s\"%s%s",
                   p2p_describe(batch->p2p, &batch->operations[0], what, sizeof what), more,
                   describe_group(batch->p2p, group, sizeof group));
}

shoal_status p2p_describe_mismatch(const struct p2p *p2p, const struct p2p_operation *operation)
{
    const struct stream_head *expected = &operation->message.head;
    const struct stream_head *found = &operation->message.found;
    char what[160];
    char group[256];
    p2p_describe(p2p, operation, what, sizeof what);
    describe_group(p2p, group, sizeof group);
    if (found->sequence != expected->sequence) {
        return error_set(SHOAL_ERR_INTERNAL, "%s: message %u was expected, but message %u arrived%s", what,
                         expected->sequence, found->sequence, group);
    }
    return error_set(SHOAL_ERR_MISMATCH, "%s, but rank %d sends %s count %llu%s", what,
                     p2p_world_rank(p2p, operation->end->peer), shoal_dtype_name((shoal_dtype)found->dtype),
                     (unsigned long long)found->count, group);
}

/* What becomes of the stream when the deadline of a call has passed. */
static const char *describe_consequence(const struct p2p_operation *operation)
{
    if (!operation->batch->is_limited) {
        return "";
    }
    return operation->message.has_head ? ", and the stream cannot be used any more"
                                       : ", and the stream can be used as before";
}

shoal_status p2p_describe_timeout(const struct p2p *p2p, const struct p2p_operation *operation,
                                  int64_t now_ns)
{
    char what[160];
    char peer[32];
    char group[256];
    return error_set(
        SHOAL_ERR_TIMEOUT, "%s: waited %.1f s (%s) for %s; %zu of %zu bytes were transferred%s%s",
        p2p_describe(p2p, operation, what, sizeof what), (double)(now_ns - operation->start_ns) * 1e-9,
        operation->batch->is_limited ? "timeout_s of the call" : "SHOAL_TIMEOUT, shoal_group_set_timeout",
        describe_peer(p2p, operation, peer, sizeof peer), operation->message.done, operation->message.bytes,
        describe_consequence(operation), describe_group(p2p, group, sizeof group));
}
