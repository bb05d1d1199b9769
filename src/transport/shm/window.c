/* SPDX-License-Identifier: MIT */
/*
 * Gathering into a window: each rank writes its pieces to their final place, and waits until the others have written.
 *
 * Memory order: a rank writes the window after it has seen every member's `released` (acquire) at the generation
 * before, which the member set (release) after its last read; it reads the window after it has seen every peer's
 * `wrote` (acquire), set (release) after the peer's last write.
 *
 * In a window on a device the work of the device is waited for before a flag is raised. `released` is raised by the next
 * gather, in whose stream the rank waits for its own reads.
 *
 * Calls are compared after the writing: nobody may read a window before its gather has ended. A rank that waits long
 * for a release compares its call with those of the ranks that have entered, so that ranks that diverge get an error at
 * once.
 */
#include "base/clock.h"
#include "base/fail_point.h"
#include "base/try.h"
#include "base/wait.h"
#include "device/stream.h"
#include "kernel/moves.h"
#include "transport/shm/channel.h"
#include "transport/shm/device.h"

/* A rank that waits for a release checks this often whether the others are in the same call. */
#define TURN_NS INT64_C(20000000)

shoal_status shm_window_decode(const struct collective *collective, int member)
{
    const struct window_decoder *decoder = &collective->decoder;
    return decoder->decode ? decoder->decode(decoder->context, member, collective->window->writable)
                           : SHOAL_OK;
}

shoal_status shm_window_write(const struct collective *collective, int member)
{
    struct moves moves;
    struct address window = address_of(collective->window->writable);
    moves_begin(&moves, collective->device);
    for (size_t i = 0; i < collective->n_window_pieces; i++) {
        const shoal_window_piece *piece = &collective->window_pieces[i];
        moves_add(&moves, (struct kernel_move){.dst = address_add(window, (ptrdiff_t)piece->offset),
                                               .src = address_of(piece->data),
                                               .count = piece->count,
                                               .dst_dtype = piece->window_dtype,
                                               .src_dtype = piece->data_dtype});
    }
    moves_end(&moves);
    return shm_window_decode(collective, member);
}

static bool is_on_device(const struct collective *collective)
{
    return collective->device != SHOAL_CPU;
}

/* The flags of the members in the window's control page. */
static struct shm_counters released_counters(const struct collective *collective)
{
    return (struct shm_counters){.first = collective->window->released,
                                 .stride = WINDOW_RELEASED_STRIDE * sizeof(uint32_t)};
}

/* One flag, which stands for all members: what has died is noticed as long as it has not reached the target. */
static struct shm_counters given_up_counters(const struct collective *collective)
{
    return (struct shm_counters){.first = &collective->window->given_up, .stride = 0};
}

static uint32_t generation_before(const struct collective *collective)
{
    return (collective->generation - 1) & FLAG_MASK;
}

bool shm_window_is_released(const struct collective *collective, int member)
{
    return flag_has_reached(shm_counter(released_counters(collective), member),
                            generation_before(collective));
}

/* Called after each turn without a release. Turns are too short for the wait to check the group by itself. */
static shoal_status look_around(struct shm_channel *channel, const struct collective *collective,
                                struct shm_counters counters)
{
    if (!channel->shared) {
        return SHOAL_OK; /* a group of one rank, which waits for its own release */
    }
    TRY(shm_failure(channel));
    TRY(shm_check_members(channel, counters, generation_before(collective)));
    /* A rank that does not release may be in another call: then the error should be a mismatch. */
    return shm_compare_entered(channel, collective);
}

static shoal_status wait_released(struct shm_channel *channel, const struct collective *collective,
                                  struct shm_counters counters, int member)
{
    uint32_t target = generation_before(collective);
    bool is_released = flag_has_reached(shm_counter(counters, member), target);
    shoal_status status = is_released ? SHOAL_OK : SHOAL_ERR_TIMEOUT;
    for (int64_t now_ns = 0; status == SHOAL_ERR_TIMEOUT && now_ns < collective->deadline_ns;) {
        now_ns = clock_now_ns();
        int64_t turn_ns = now_ns + TURN_NS;
        int64_t until_ns = turn_ns < collective->deadline_ns ? turn_ns : collective->deadline_ns;
        status = shm_wait(channel, member, counters, target, until_ns);
        if (status == SHOAL_ERR_TIMEOUT) {
            TRY(look_around(channel, collective, counters));
        }
    }
    if (status == SHOAL_ERR_TIMEOUT) {
        char call[ERROR_TEXT_BYTES];
        return error_set(
            status,
            "%s and rank %d has not released the previous generation of the window (shoal_window_release)",
            transport_describe_timeout(channel->base.peers, collective, call, sizeof call),
            channel->base.peers->world_ranks[member]);
    }
    return status;
}

shoal_status shm_window_wait_released(struct shm_channel *channel, const struct collective *collective,
                                      int member)
{
    return wait_released(channel, collective, released_counters(collective), member);
}

/* On a device. The group's stream is idle after this, so it takes no longer than the program's reads do. */
static shoal_status take_release(struct shm_channel *channel, const struct collective *collective)
{
    struct window_area *window = collective->window;
    TRY(wait_released(channel, collective, given_up_counters(collective), channel->rank));
    /* Release and acquire: note_release (comm/call/window.c). The event may be that of a later release. */
    void *event = atomic_exchange_explicit(&window->released_event, NULL, memory_order_acq_rel);
    shoal_status status = stream_follow(collective->device, event);
    stream_drop(collective->device, event);
    TRY(status);
    TRY(shm_finish_work(channel, collective));
    flag_set(shm_counter(released_counters(collective), channel->rank), generation_before(collective));
    return SHOAL_OK;
}

shoal_status shm_window_begin(struct shm_channel *channel, const struct collective *collective)
{
    if (is_on_device(collective)) {
        TRY(take_release(channel, collective));
    }
    for (int i = 0; i < channel->n_ranks; i++) {
        TRY(shm_window_wait_released(channel, collective, i));
    }
    return SHOAL_OK;
}

shoal_status shm_window_run(struct shm_channel *channel, struct collective *collective)
{
    TRY(shm_wait_slot(channel, collective));
    FAIL_POINT("shm window meet");
    shm_write_slot(channel, collective);
    shm_enter(channel, collective->sequence);
    TRY(shm_window_begin(channel, collective));
    FAIL_POINT("shm window write");
    TRY(shm_window_write(collective, channel->base.peers->rank));
    if (is_on_device(collective)) {
        TRY(shm_finish_work(channel, collective));
    }
    shm_raise_wrote(channel);
    FAIL_POINT("shm window wrote");
    TRY(shm_wait_entered(channel, collective, collective->deadline_ns));
    TRY(shm_compare(channel, collective));
    TRY(shm_wait_wrote(channel, collective));
    shm_done(channel, collective->sequence);
    return SHOAL_OK;
}
