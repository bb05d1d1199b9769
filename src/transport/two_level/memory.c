/* SPDX-License-Identifier: MIT */
/*
 * Windows: one per host, in memory that the members there share. Each rank writes its pieces into the window of its
 * host, and sends them to one member of every other host, its counterpart, which writes them there. So each byte comes
 * to a host once. Then the members of a host meet, and everything that they have written is complete. Before that, a
 * rank lets the call's decoder work on its own pieces, and on those that it has taken from other hosts.
 *
 * A rank sends the bytes that it has written into its window, after any conversion from the dtype of the pieces. A
 * frame holds records: an offset in the window, a number of bytes, and the bytes. Only the sender knows how many frames
 * there are; the last one is marked.
 *
 * No deadlock, for the reason that message/move.c gives: a rank sends frame r + 1 before it takes frame r of the ranks
 * that send to it, and credit is for more frames than that.
 */
#include <string.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "transport/shm/channel.h"
#include "transport/two_level/two_level.h"

/* In the head of a frame. */
enum {
    FRAME_CONTINUES = 0,
    FRAME_ENDS = 1
};

struct record_head {
    uint64_t offset;
    uint64_t bytes;
};

/* How much of the own pieces was sent. */
struct cursor {
    size_t piece;
    size_t done; /* bytes of that piece */
    bool has_ended;
};

struct gathering {
    struct two_channel *channel;
    const struct collective *collective;
    struct port *port;
    struct cursor cursor;
    int n_open; /* ranks of other hosts that have more to send to this one */
};

/* Sending ------------------------------------------------------------------------------------------------- */

static size_t piece_bytes(const shoal_window_piece *piece)
{
    return piece->count * shoal_dtype_bytes(piece->window_dtype);
}

/* Bytes of the next frame. */
static size_t measure_frame(const struct collective *collective, struct cursor cursor)
{
    size_t bytes = 0;
    while (cursor.piece < collective->n_window_pieces &&
           bytes + sizeof(struct record_head) < FRAME_DATA_BYTES) {
        size_t room = FRAME_DATA_BYTES - bytes - sizeof(struct record_head);
        size_t left = piece_bytes(&collective->window_pieces[cursor.piece]) - cursor.done;
        bytes += left > 0 ? sizeof(struct record_head) : 0;
        bytes += left < room ? left : room;
        if (left > room) {
            return bytes;
        }
        cursor.piece++;
        cursor.done = 0;
    }
    return bytes;
}

static struct cursor write_frame(const struct collective *collective, struct cursor cursor,
                                 struct frame *frame)
{
    size_t at = 0;
    while (at < frame->head.bytes) {
        const shoal_window_piece *piece = &collective->window_pieces[cursor.piece];
        size_t left = piece_bytes(piece) - cursor.done;
        if (left > 0) {
            size_t room = frame->head.bytes - at - sizeof(struct record_head);
            struct record_head head = {.offset = piece->offset + cursor.done,
                                       .bytes = left < room ? left : room};
            memcpy(frame->payload + at, &head, sizeof head);
            kernel_copy(frame->payload + at + sizeof head, collective->window->writable + head.offset,
                        head.bytes);
            at += sizeof head + head.bytes;
            cursor.done += head.bytes;
            left -= head.bytes;
        }
        if (left == 0) {
            cursor.piece++;
            cursor.done = 0;
        }
    }
    while (cursor.piece < collective->n_window_pieces && cursor.done == 0 &&
           piece_bytes(&collective->window_pieces[cursor.piece]) == 0) {
        cursor.piece++;
    }
    cursor.has_ended = cursor.piece == collective->n_window_pieces;
    return cursor;
}

/* The member of another host that takes what a rank sends there. */
static int counterpart(const struct two_layout *layout, int rank, int host)
{
    return two_member(layout, host, layout->locals[rank] % layout->n_locals[host]);
}

/* Sends the next frame to the counterparts on all other hosts. */
static shoal_status fill(struct gathering *gathering)
{
    struct two_channel *channel = gathering->channel;
    const struct two_layout *layout = &channel->layout;
    size_t bytes = measure_frame(gathering->collective, gathering->cursor);
    struct cursor next = gathering->cursor;
    FAIL_POINT("two_level window fill");
    for (int i = 1; i < layout->n_hosts; i++) {
        int to = counterpart(layout, channel->base.peers->rank, (channel->host + i) % layout->n_hosts);
        TRY(two_await_credit(channel, gathering->collective, gathering->port, to));
        struct frame *frame = router_new_frame(channel->world->router, bytes);
        if (!frame) {
            return SHOAL_ERR_NO_MEMORY;
        }
        next = write_frame(gathering->collective, gathering->cursor, frame);
        frame->head.number = next.has_ended ? FRAME_ENDS : FRAME_CONTINUES;
        (void)port_send(gathering->port, two_world_rank(channel, to), FRAME_DATA, frame);
    }
    gathering->cursor = next;
    return SHOAL_OK;
}

/* Receiving ----------------------------------------------------------------------------------------------- */

static shoal_status fail_unreadable(const struct gathering *gathering, int from)
{
    return error_set(SHOAL_ERR_INTERNAL, "rank %d sent pieces of a window on group %s that cannot be read",
                     two_world_rank(gathering->channel, from),
                     transport_group_name(gathering->channel->base.peers));
}

/* Writes the records of a frame into the window. A peer wrote them, so offsets and lengths are checked. */
static shoal_status write_records(const struct gathering *gathering, int from, const struct frame *frame)
{
    const struct window_area *window = gathering->collective->window;
    size_t left = frame->head.bytes;
    const char *at = frame->payload;
    while (left > 0) {
        struct record_head head;
        if (left < sizeof head) {
            return fail_unreadable(gathering, from);
        }
        memcpy(&head, at, sizeof head);
        left -= sizeof head;
        if (head.bytes > left || head.offset > window->bytes || head.bytes > window->bytes - head.offset) {
            return fail_unreadable(gathering, from);
        }
        kernel_copy(window->writable + head.offset, at + sizeof head, head.bytes);
        at += sizeof head + head.bytes;
        left -= head.bytes;
    }
    return SHOAL_OK;
}

static bool is_source(const struct two_channel *channel, int rank)
{
    return channel->layout.hosts[rank] != channel->host &&
           counterpart(&channel->layout, rank, channel->host) == channel->base.peers->rank;
}

/* The next frame of each rank that has more to send. `has_ended`: n_ranks. */
static shoal_status take(struct gathering *gathering, const void **has_ended)
{
    struct two_channel *channel = gathering->channel;
    FAIL_POINT("two_level window take");
    for (int rank = 0; rank < channel->layout.n_ranks; rank++) {
        if (!is_source(channel, rank) || has_ended[rank]) {
            continue;
        }
        const struct frame *frame = NULL;
        TRY(two_await_frame(channel, gathering->collective, gathering->port, rank, &frame));
        TRY(write_records(gathering, rank, frame));
        if (frame->head.number == FRAME_ENDS) {
            has_ended[rank] = channel;
            gathering->n_open--;
        }
        port_drop(gathering->port, two_world_rank(channel, rank), FRAME_DATA);
    }
    return SHOAL_OK;
}

static shoal_status exchange(struct gathering *gathering)
{
    struct two_channel *channel = gathering->channel;
    const void **has_ended = channel->sources;
    for (int rank = 0; rank < channel->layout.n_ranks; rank++) {
        has_ended[rank] = NULL;
        gathering->n_open += is_source(channel, rank);
    }
    TRY(fill(gathering));
    while (!gathering->cursor.has_ended || gathering->n_open > 0) {
        if (!gathering->cursor.has_ended) {
            TRY(fill(gathering));
        }
        TRY(take(gathering, has_ended));
    }
    return SHOAL_OK;
}

/* Lets the decoder work on what this rank has taken for its host. */
static shoal_status decode_taken(const struct gathering *gathering)
{
    for (int rank = 0; rank < gathering->channel->layout.n_ranks; rank++) {
        if (is_source(gathering->channel, rank)) {
            TRY(shm_window_decode(gathering->collective, rank));
        }
    }
    return SHOAL_OK;
}

/* ---------------------------------------------------------------------------------------------------------- */

static shoal_status attach(struct two_channel *channel)
{
    if (channel->windows) {
        return SHOAL_OK;
    }
    struct port_id id = port_id_of(channel->base.peers->key, "windows", channel->generation);
    return port_attach(channel->world->router, id, id, &channel->outer->bell, &channel->windows);
}

/* Waits until the members of this host have released the previous generation. Other hosts have windows of their own. */
static shoal_status wait_released(struct two_channel *channel, const struct collective *collective)
{
    const struct two_layout *layout = &channel->layout;
    for (int local = 0; local < layout->n_locals[channel->host]; local++) {
        int member = two_member(layout, channel->host, local);
        _Atomic uint32_t *released = collective->window->released + (size_t)member * WINDOW_RELEASED_STRIDE;
        TRY(two_wait_flag(channel, collective, member, released, collective->generation - 1,
                          "has not released the previous generation of the window (shoal_window_release)"));
    }
    return SHOAL_OK;
}

shoal_status two_window_run(struct two_channel *channel, const struct collective *collective)
{
    TRY(two_cells_open(channel, collective->deadline_ns));
    TRY(attach(channel));
    TRY(wait_released(channel, collective));
    FAIL_POINT("two_level window write");
    TRY(shm_window_write(collective, channel->base.peers->rank));
    if (channel->layout.n_hosts > 1) {
        struct gathering gathering = {.channel = channel, .collective = collective, .port = channel->windows};
        TRY(exchange(&gathering));
        TRY(decode_taken(&gathering));
    }
    return two_local_barrier(channel, collective);
}

static shoal_status open_memory(const struct transport_peers *peers, const char *name, size_t bytes,
                                int64_t deadline_ns, struct segment **segment_out)
{
    return peers->open_segment(peers->context, name, bytes, deadline_ns, segment_out);
}

static shoal_status drop_name(const struct transport_peers *peers, const char *name, int64_t deadline_ns)
{
    return peers->drop_segment(peers->context, name, deadline_ns);
}

const struct transport_memory two_level_memory = {
    .has_windows = true, .open = open_memory, .drop = drop_name};
