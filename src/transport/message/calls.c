/* SPDX-License-Identifier: MIT */
/*
 * Calls as frames. Every member sends its call to every other one, and compares each call that arrives with its own. If
 * one rank finds all calls equal to its own, all ranks do. So no data of a collective is sent if calls differ, and data
 * that travels with the calls is read only after all of them were compared.
 *
 * The payload of a call is struct call_head, details, words, zeros up to a cache line, data. Sizes that a peer wrote
 * are checked against the length of the frame. The data of an all_to_all_v are all counts of its sender: how much it
 * sends to each member, then how much it expects from each.
 */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/try.h"
#include "transport/fingerprint.h"
#include "transport/message/channel.h"
#include "transport/missing.h"

#define LINE 64

struct call_head {
    struct fingerprint fingerprint;
    uint32_t n_details;
    uint32_t n_words; /* bytes, without a 0 at the end */
    uint32_t n_data;  /* bytes */
    uint32_t mode;    /* enum message_mode */
};

/* A call in full, in memory of its own. */
struct call {
    struct call_head head;
    int64_t details[FINGERPRINT_DETAILS];
    char words[PURPOSE_WORDS_BYTES];
    const char *data; /* in the frame of the call */
};

static size_t data_offset(const struct call_head *head)
{
    size_t bytes = sizeof *head + head->n_details * sizeof(int64_t) + head->n_words;
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Sending ----------------------------------------------------------------------------------------------- */

static void take_call(const struct message_channel *channel, const struct collective *collective,
                      struct call *call)
{
    memset(&call->head, 0, sizeof call->head);
    call->head.fingerprint = fingerprint_take(collective, channel->n_ranks, call->details);
    fingerprint_take_words(collective, call->words);
    call->head.n_details = (uint32_t)fingerprint_n_details(&call->head.fingerprint);
    call->head.n_words = (uint32_t)strlen(call->words);
    call->head.mode = channel->mode;
}

/* Whether counts differ between ranks: an all_to_all_v. */
static bool has_own_counts(const struct collective *collective)
{
    return collective->kind == COLLECTIVE_ALL_TO_ALL && collective->send_counts;
}

static size_t counts_bytes(const struct message_channel *channel)
{
    return 2 * (size_t)channel->n_ranks * sizeof(uint64_t);
}

static void write_counts(const struct message_channel *channel, const struct collective *collective, char *at)
{
    for (int i = 0; i < 2 * channel->n_ranks; i++) {
        bool is_sent = i < channel->n_ranks;
        uint64_t count = is_sent ? collective->send_counts[i] : collective->recv_counts[i - channel->n_ranks];
        memcpy(at + (size_t)i * sizeof count, &count, sizeof count);
    }
}

bool message_is_small(const struct message_channel *channel, const struct collective *collective)
{
    if (collective->kind == COLLECTIVE_BARRIER) {
        return true;
    }
    if (has_own_counts(collective) || collective->kind == COLLECTIVE_WINDOW_GATHER) {
        return false;
    }
    return block_largest(collective, BLOCK_SEND, channel->n_ranks) <=
           MESSAGE_SMALL_BYTES / shoal_dtype_bytes(collective->dtype);
}

/* The frame for one member; NULL if memory runs out. */
static struct frame *make_frame(struct message_channel *channel, const struct collective *collective,
                                struct call *call, bool is_small, int to)
{
    struct contribution own = message_contribution(collective, channel->rank, to);
    call->head.n_data = is_small ? (uint32_t)(own.elements * shoal_dtype_bytes(collective->dtype)) : 0;
    if (has_own_counts(collective)) {
        call->head.n_data = (uint32_t)counts_bytes(channel);
    }
    size_t offset = data_offset(&call->head);
    struct frame *frame = router_new_frame(channel->router, offset + call->head.n_data);
    if (!frame) {
        return NULL;
    }
    char *at = frame->payload;
    size_t details_bytes = call->head.n_details * sizeof(int64_t);
    memset(at, 0, offset);
    memcpy(at, &call->head, sizeof call->head);
    memcpy(at + sizeof call->head, call->details, details_bytes);
    memcpy(at + sizeof call->head + details_bytes, call->words, call->head.n_words);
    if (has_own_counts(collective)) {
        write_counts(channel, collective, at + offset);
    } else if (call->head.n_data > 0) {
        block_copy_out(collective, own.side, own.block, 0, own.elements, at + offset);
    }
    return frame;
}

shoal_status message_send_calls(struct message_channel *channel, const struct collective *collective)
{
    struct call call;
    take_call(channel, collective, &call);
    bool is_small = message_is_small(channel, collective);
    int n_made = 0;
    while (n_made < channel->n_ranks) {
        bool is_own = n_made == channel->rank;
        channel->outgoing[n_made] = is_own ? NULL : make_frame(channel, collective, &call, is_small, n_made);
        if (!is_own && !channel->outgoing[n_made]) {
            break;
        }
        n_made++;
    }
    for (int i = 0; i < n_made; i++) {
        if (n_made < channel->n_ranks) {
            router_free_frame(channel->router, channel->outgoing[i]);
        } else if (i != channel->rank) {
            (void)port_send(channel->port, message_world_rank(channel, i), FRAME_CALL, channel->outgoing[i]);
        }
    }
    return n_made == channel->n_ranks ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

/* Waiting ----------------------------------------------------------------------------------------------- */

static struct frame *find_frame(struct message_channel *channel, int rank)
{
    return port_peek(channel->port, message_world_rank(channel, rank), FRAME_CALL);
}

static bool has_called(struct message_channel *channel, int rank)
{
    return rank == channel->rank || find_frame(channel, rank) != NULL;
}

bool message_have_all_called(struct message_channel *channel)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (!has_called(channel, i)) {
            return false;
        }
    }
    return true;
}

/* SHOAL_ERR_PEER if a member that has not called has died or left. */
static shoal_status check_callers(struct message_channel *channel)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (!has_called(channel, i)) {
            TRY(message_check_member(channel, i));
        }
    }
    return SHOAL_OK;
}

/* The deadline has passed. One look decides and gives the names: SHOAL_OK if the last has called meanwhile. */
static shoal_status fail_missing(struct message_channel *channel, const struct collective *collective)
{
    struct missing_members missing = {.peers = channel->base.peers};
    for (int i = 0; i < channel->n_ranks; i++) {
        if (!has_called(channel, i)) {
            missing_add(&missing, i);
        }
    }
    return missing.n_missing == 0
               ? SHOAL_OK
               : missing_fail(&missing, collective,
                              port_n_calls(channel->port, message_world_rank(channel, missing.first)));
}

/* SHOAL_OK, or why waiting for calls is of no use. If all calls have arrived meanwhile, that counts first. */
static shoal_status look_around(struct message_channel *channel, const struct collective *collective)
{
    shoal_status status = message_failure(channel);
    if (status == SHOAL_OK && message_must_look(channel, collective->deadline_ns)) {
        status = check_callers(channel);
    }
    return status == SHOAL_OK || !message_have_all_called(channel) ? status : SHOAL_OK;
}

shoal_status message_await_calls(struct message_channel *channel, const struct collective *collective,
                                 int64_t until_ns)
{
    bool is_part = until_ns < collective->deadline_ns;
    for (;;) {
        uint32_t seen = doorbell_look(&channel->bell);
        if (message_have_all_called(channel)) {
            return SHOAL_OK;
        }
        TRY(look_around(channel, collective));
        if (is_part && clock_now_ns() >= until_ns) {
            return SHOAL_ERR_TIMEOUT; /* the caller goes on afterwards, and needs no text */
        }
        if (!is_part && message_is_over(channel, collective, /*may_wait=*/true)) {
            return fail_missing(channel, collective);
        }
        message_wait(channel, seen, until_ns);
    }
}

/* Comparing --------------------------------------------------------------------------------------------- */

/* Reads a call out of its frame. Returns false if the frame holds no call. */
static bool read_call(const struct frame *frame, struct call *call)
{
    size_t bytes = frame->head.bytes;
    if (bytes < sizeof call->head) {
        return false;
    }
    memcpy(&call->head, frame->payload, sizeof call->head);
    const struct call_head *head = &call->head;
    if (head->n_details != fingerprint_n_details(&head->fingerprint) ||
        head->n_words >= PURPOSE_WORDS_BYTES || data_offset(head) + head->n_data != bytes) {
        return false;
    }
    size_t details_bytes = head->n_details * sizeof(int64_t);
    memcpy(call->details, frame->payload + sizeof *head, details_bytes);
    memset(call->words, 0, sizeof call->words);
    memcpy(call->words, frame->payload + sizeof *head + details_bytes, head->n_words);
    call->data = frame->payload + data_offset(head);
    return true;
}

static shoal_status fail_unreadable(struct message_channel *channel, int rank)
{
    return error_set(SHOAL_ERR_INTERNAL, "rank %d sent a call on group %s that cannot be read",
                     message_world_rank(channel, rank), transport_group_name(channel->base.peers));
}

/* The count that a member gives in an all_to_all_v: what it sends to `other`, or expects from it. */
static uint64_t read_count(const struct message_channel *channel, const struct collective *collective,
                           int member, int other, bool is_sent)
{
    if (member == channel->rank) {
        return is_sent ? collective->send_counts[other] : collective->recv_counts[other];
    }
    uint64_t count;
    const char *counts = channel->sources[member];
    memcpy(&count, counts + (size_t)(is_sent ? other : channel->n_ranks + other) * sizeof count,
           sizeof count);
    return count;
}

/*
 * The counts of an all_to_all_v differ between ranks. Every rank compares those of all pairs, so that all of them find
 * the same difference, also ranks that exchange nothing. Calls are compared before: if they differ, the error is about
 * them.
 */
static shoal_status compare_counts(struct message_channel *channel, const struct collective *collective)
{
    struct call call;
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            if (!read_call(find_frame(channel, i), &call) || call.head.n_data != counts_bytes(channel)) {
                return fail_unreadable(channel, i);
            }
            channel->sources[i] = call.data;
        }
    }
    for (int from = 0; from < channel->n_ranks; from++) {
        for (int to = 0; to < channel->n_ranks; to++) {
            uint64_t given = read_count(channel, collective, from, to, /*is_sent=*/true);
            uint64_t expected = read_count(channel, collective, to, from, /*is_sent=*/false);
            if (given != expected) {
                return error_set(
                    SHOAL_ERR_MISMATCH,
                    "all_to_all_v #%u on group %s: rank %d sends %zu elements to rank %d, which expects %zu",
                    collective->sequence, transport_group_name(channel->base.peers),
                    message_world_rank(channel, from), (size_t)given, message_world_rank(channel, to),
                    (size_t)expected);
            }
        }
    }
    return SHOAL_OK;
}

static const char *mode_name(uint32_t mode)
{
    return mode == MESSAGE_MODE_ORDERED ? "ordered" : mode == MESSAGE_MODE_FAST ? "fast" : "?";
}

static shoal_status compare_modes(struct message_channel *channel, int rank, uint32_t mode)
{
    if (mode == channel->mode) {
        return SHOAL_OK;
    }
    bool is_first = channel->rank < rank;
    return error_set(SHOAL_ERR_MISMATCH,
                     "rank %d has SHOAL_REDUCE=%s, rank %d has SHOAL_REDUCE=%s, on group %s",
                     message_world_rank(channel, is_first ? channel->rank : rank),
                     mode_name(is_first ? channel->mode : mode),
                     message_world_rank(channel, is_first ? rank : channel->rank),
                     mode_name(is_first ? mode : channel->mode), transport_group_name(channel->base.peers));
}

shoal_status message_compare(struct message_channel *channel, const struct collective *collective)
{
    struct call own;
    struct call call;
    take_call(channel, collective, &own);
    const struct fingerprint_call ours = {&own.head.fingerprint, own.details, own.words};
    const struct fingerprint_call theirs = {&call.head.fingerprint, call.details, call.words};
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i == channel->rank) {
            continue;
        }
        if (!read_call(find_frame(channel, i), &call)) {
            return fail_unreadable(channel, i);
        }
        if (!fingerprint_is_equal(&theirs, &ours)) {
            return fingerprint_fail(channel->base.peers, &ours, i, &theirs);
        }
        TRY(compare_modes(channel, i, call.head.mode));
    }
    return has_own_counts(collective) ? compare_counts(channel, collective) : SHOAL_OK;
}

shoal_status message_find_data(struct message_channel *channel, int rank, size_t bytes, const char **data_out)
{
    struct call call;
    if (!read_call(find_frame(channel, rank), &call) || call.head.n_data != bytes) {
        return fail_unreadable(channel, rank);
    }
    *data_out = call.data;
    return SHOAL_OK;
}

void message_drop_calls(struct message_channel *channel)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            port_drop(channel->port, message_world_rank(channel, i), FRAME_CALL);
        }
    }
}
