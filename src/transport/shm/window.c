/* SPDX-License-Identifier: MIT */
/*
 * Gathering into a window: each rank writes its pieces to their final place, and waits until the others have written.
 *
 * Memory order: a rank writes the window after it has seen every member's `released` (acquire) at the generation
 * before, which the member set (release) after its last read; it reads the window after it has seen every peer's
 * `wrote` (acquire), set (release) after the peer's last write.
 *
 * Calls are compared after the writing: nobody may read a window before its gather has ended. A rank that waits long
 * for a release compares its call with those of the ranks that have entered, so that ranks that diverge get an error at
 * once.
 */
#include "base/clock.h"
#include "base/fail_point.h"
#include "base/try.h"
#include "base/wait.h"
#include "kernel/kernel.h"
#include "transport/shm/channel.h"

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
    for (size_t i = 0; i < collective->n_window_pieces; i++) {
        const shoal_window_piece *piece = &collective->window_pieces[i];
        char *target = collective->window->writable + piece->offset;
        if (piece->data_dtype == piece->window_dtype) {
            kernel_copy(target, piece->data, piece->count * shoal_dtype_bytes(piece->data_dtype));
        } else {
            kernel_cast(piece->window_dtype, target, piece->data_dtype, piece->data, piece->count);
        }
    }
    return shm_window_decode(collective, member);
}

/* The flags of the members in the window's control page. */
static struct shm_counters released_counters(const struct collective *collective)
{
    return (struct shm_counters){.first = collective->window->released,
                                 .stride = WINDOW_RELEASED_STRIDE * sizeof(uint32_t)};
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
static shoal_status look_around(struct shm_channel *channel, const struct collective *collective)
{
    if (!channel->shared) {
        return SHOAL_OK; /* a group of one rank, which waits for its own release */
    }
    TRY(shm_failure(channel));
    TRY(shm_check_members(channel, released_counters(collective), generation_before(collective)));
    /* A rank that does not release may be in another call: then the error should be a mismatch. */
    return shm_compare_entered(channel, collective);
}

shoal_status shm_window_wait_released(struct shm_channel *channel, const struct collective *collective,
                                      int member)
{
    shoal_status status = shm_window_is_released(collective, member) ? SHOAL_OK : SHOAL_ERR_TIMEOUT;
    for (int64_t now_ns = 0; status == SHOAL_ERR_TIMEOUT && now_ns < collective->deadline_ns;) {
        now_ns = clock_now_ns();
        int64_t turn_ns = now_ns + TURN_NS;
        int64_t until_ns = turn_ns < collective->deadline_ns ? turn_ns : collective->deadline_ns;
        status =
            shm_wait(channel, member, released_counters(collective), generation_before(collective), until_ns);
        if (status == SHOAL_ERR_TIMEOUT) {
            TRY(look_around(channel, collective));
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

shoal_status shm_window_run(struct shm_channel *channel, struct collective *collective)
{
    TRY(shm_wait_slot(channel, collective));
    FAIL_POINT("shm window meet");
    shm_write_slot(channel, collective);
    shm_enter(channel, collective->sequence);
    for (int i = 0; i < channel->n_ranks; i++) {
        TRY(shm_window_wait_released(channel, collective, i));
    }
    FAIL_POINT("shm window write");
    TRY(shm_window_write(collective, channel->base.peers->rank));
    shm_raise_wrote(channel);
    FAIL_POINT("shm window wrote");
    TRY(shm_wait_entered(channel, collective, collective->deadline_ns));
    TRY(shm_compare(channel, collective));
    TRY(shm_wait_wrote(channel, collective));
    shm_done(channel, collective->sequence);
    return SHOAL_OK;
}
