/* SPDX-License-Identifier: MIT */
/*
 * Collectives on ordinary memory that copy once. A rank reads what it needs out of the processes of its peers, straight
 * into its receive buffer; if a peer is a thread of the same process, it copies. docs/design/shm.md has the argument.
 *
 *   1. Ranks meet and compare their calls. The slot of a rank says where its blocks lie in its process.
 *   2. Each rank reads, and says in has_read whether the system let it. It raises `wrote`, and waits for everybody's.
 *   3. If all have read, each raises `wrote` again and returns when it has seen everybody's second.
 *      If one was refused, all go the staged way.
 *
 * Memory order: a peer's blocks are read after its `entered` was seen (acquire), set (release) after the application had
 * written them. A rank raises `wrote` (release) after its last read and returns after it has seen everybody's (acquire):
 * only then may buffers be used again. The kernel copies on the thread that asks it to, so this holds for its copies too.
 *
 * A result counts only if its source was still there. A rank that gives up (a deadline, an abort) or dies leaves its
 * buffers to others, while peers may still read them. It never raises `wrote` the second time then, and without that no
 * peer returns well: the second one says that this rank was in the call when everybody had read. What process a number
 * belongs to by then does not matter.
 *
 * In place: what a rank writes into a send buffer of its own (all_gather, gather, scatter) no peer reads. An all_to_all in
 * place is not readable (shm_is_readable).
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "base/os/os.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "transport/blocks.h"
#include "transport/shm/channel.h"

/* A rank reads this much at a time, and looks at its deadline and at the group in between. */
#define READ_BYTES ((size_t)1024 * 1024)

void shm_offer_memory(struct shm_channel *channel)
{
    struct shm_offer *offer = &shm_peer(channel, channel->rank)->offer;
    if (!shm_single_is_wanted() || !os_random(channel->word, sizeof channel->word)) {
        return;
    }
    if (shm_single_is_asked_for()) {
        os_let_siblings_read(); /* changes what other programs of the user may do, so not for nothing */
    }
    memcpy(offer->word, channel->word, sizeof offer->word);
    offer->address = (uint64_t)(uintptr_t)channel->word;
    offer->process = os_process();
}

/* Reading ------------------------------------------------------------------------------------------------- */

/* Returns false if the system refuses. errno then says why; it is 0 if there is less to be read than the peer said. */
static bool read_memory(int64_t process, uint64_t address, char *target, size_t bytes)
{
    while (bytes > 0) {
        errno = 0;
        int64_t n_read = os_read_process(process, address, target, bytes);
        if (n_read <= 0) {
            return false;
        }
        address += (uint64_t)n_read;
        target += n_read;
        bytes -= (size_t)n_read;
    }
    return true;
}

static bool is_own_process(const struct shm_channel *channel, int peer)
{
    return channel->processes[peer] == shm_peer(channel, channel->rank)->offer.process;
}

/* The group may have failed, or the call have taken too long. */
static shoal_status look_up(struct shm_channel *channel, const struct collective *collective, int peer)
{
    TRY(shm_failure(channel));
    if (clock_now_ns() < collective->deadline_ns) {
        return SHOAL_OK;
    }
    char call[ERROR_TEXT_BYTES];
    return error_set(SHOAL_ERR_TIMEOUT, "%s and this rank was still reading what rank %d gives",
                     transport_describe_timeout(channel->base.peers, collective, call, sizeof call),
                     channel->base.peers->world_ranks[peer]);
}

/* Tells once why a group does not read; the others of the group hear only that somebody cannot. */
static void log_refusal(const struct shm_channel *channel, int peer, int code)
{
    const int *world_ranks = channel->base.peers->world_ranks;
    LOG(SHOAL_LOG_INFO, "rank %d group %s copies twice: cannot read the memory of rank %d: %s",
        world_ranks[channel->rank], transport_group_name(channel->base.peers), world_ranks[peer],
        code ? strerror(code) : "another process answers");
}

/* Reads a peer's block. *is_read_out is false if the system has refused. */
static shoal_status read_block(struct shm_channel *channel, const struct collective *collective, int peer,
                               bool *is_read_out)
{
    bool has_blocks = collective_rows[collective->kind].has_send_blocks;
    uint64_t address = shm_addresses(channel, peer, collective->sequence)[has_blocks ? channel->rank : 0];
    int block = block_from(collective, channel->rank, peer);
    size_t element_bytes = shoal_dtype_bytes(collective->dtype);
    size_t whole_bytes = collective_bytes(collective, channel->n_ranks);
    struct block_walk walk =
        block_walk_begin(collective, BLOCK_RECV, block, 0, block_elements(collective, BLOCK_RECV, block));
    while (walk.left > 0) {
        TRY(look_up(channel, collective, peer));
        struct block_run run = block_walk_next(&walk, READ_BYTES / element_bytes);
        size_t bytes = run.elements * element_bytes;
        FAIL_POINT("shm single read");
        if (is_own_process(channel, peer)) {
            kernel_copy_part(run.data, (const void *)(uintptr_t)address, bytes, whole_bytes);
        } else if (!read_memory(channel->processes[peer], address, run.data, bytes)) {
            log_refusal(channel, peer, errno);
            *is_read_out = false;
            return SHOAL_OK;
        }
        address += bytes;
    }
    *is_read_out = true;
    return SHOAL_OK;
}

/* Whether a rank of the call reads what `peer` gives. */
static bool reads_from(const struct collective *collective, int rank, int peer)
{
    const struct collective_row *row = &collective_rows[collective->kind];
    int reader_or_giver =
        row->has_recv_blocks ? rank : peer; /* gather has one reader, the others one giver */
    return peer != rank && (!row->has_root || reader_or_giver == collective->root);
}

/* Copies what the rank gives to itself; where there is such a block, and its buffers are not in place. */
static void copy_own(const struct shm_channel *channel, const struct collective *collective)
{
    const struct collective_row *row = &collective_rows[collective->kind];
    bool has_own = row->has_send_blocks || row->has_recv_blocks;
    if (has_own && (!row->has_root || channel->rank == collective->root)) {
        block_copy_own(collective, channel->rank);
    }
}

static shoal_status read_all(struct shm_channel *channel, const struct collective *collective,
                             bool *is_read_out)
{
    *is_read_out = true;
    copy_own(channel, collective);
    for (int i = 1; i < channel->n_ranks && *is_read_out; i++) {
        int peer = (channel->rank + i) % channel->n_ranks;
        if (reads_from(collective, channel->rank, peer)) {
            TRY(read_block(channel, collective, peer, is_read_out));
        }
    }
    return SHOAL_OK;
}

/* Whether it works ---------------------------------------------------------------------------------------- */

/* Reads the word that a peer offers. So a number of a process that means another one here is found out. */
static bool try_peer(struct shm_channel *channel, int peer)
{
    struct shm_offer offer = shm_peer(channel, peer)->offer;
    uint64_t word[2] = {0, 0};
    errno = 0;
    bool is_found = offer.process > 0 &&
                    read_memory(offer.process, offer.address, (char *)word, sizeof word) &&
                    memcmp(word, offer.word, sizeof word) == 0;
    if (!is_found) {
        log_refusal(channel, peer, errno);
    }
    channel->processes[peer] = offer.process;
    return is_found;
}

static bool try_peers(struct shm_channel *channel)
{
    bool can_read = shm_peer(channel, channel->rank)->offer.process > 0;
    for (int i = 0; i < channel->n_ranks && can_read; i++) {
        can_read = i == channel->rank || try_peer(channel, i);
    }
    return can_read;
}

/*
 * Tries to read the memory of all peers, and learns what the others found. All of them are in the same collective, the
 * first that would use it, so nothing depends on the answer before all have it.
 */
static shoal_status find_out(struct shm_channel *channel, const struct collective *collective)
{
    bool can_all = true;
    shm_peer(channel, channel->rank)->can_read = try_peers(channel);
    FAIL_POINT("shm single try");
    shm_raise_wrote(channel);
    TRY(shm_wait_wrote(channel, collective));
    for (int i = 0; i < channel->n_ranks; i++) {
        can_all = can_all && shm_peer(channel, i)->can_read;
    }
    channel->reading = can_all ? SHM_READING_WORKS : SHM_READING_REFUSED;
    return SHOAL_OK;
}

/* The collective ------------------------------------------------------------------------------------------ */

/*
 * Reads, and learns whether all have. Then the result is here, if the givers are still in the call (settle_end). If one
 * was refused although it could read before (memory of a device, or a process that has changed its rights), it is over
 * with reading for the whole group.
 */
static shoal_status read_together(struct shm_channel *channel, const struct collective *collective,
                                  bool *have_all_read_out)
{
    bool is_read;
    TRY(read_all(channel, collective, &is_read));
    /* Nobody looks at that of the collective before any more: all have entered this one. */
    shm_peer(channel, channel->rank)->has_read = is_read;
    shm_raise_wrote(channel);
    FAIL_POINT("shm single read all");
    TRY(shm_wait_wrote(channel, collective));
    *have_all_read_out = true;
    for (int i = 0; i < channel->n_ranks; i++) {
        *have_all_read_out = *have_all_read_out && shm_peer(channel, i)->has_read;
    }
    channel->reading = *have_all_read_out ? channel->reading : SHM_READING_REFUSED;
    return SHOAL_OK;
}

shoal_status shm_single_run(struct shm_channel *channel, struct collective *collective)
{
    bool have_all_read = false;
    size_t largest;
    FAIL_POINT("shm single");
    if (collective->kind == COLLECTIVE_ALL_TO_ALL && collective->send_counts) {
        TRY(shm_compare_counts(channel, collective, &largest));
    }
    if (channel->reading == SHM_READING_UNKNOWN) {
        TRY(find_out(channel, collective));
    }
    if (channel->reading == SHM_READING_WORKS) {
        TRY(read_together(channel, collective, &have_all_read));
    }
    if (!have_all_read) {
        collective->algorithm = SHM_ALGORITHM_STAGED;
        return shm_staged_run(channel, collective);
    }
    /* This rank was here until all had read: what they have of it is right. */
    shm_raise_wrote(channel);
    FAIL_POINT("shm single wrote");
    TRY(shm_wait_wrote(channel, collective));
    shm_done(channel, collective->sequence);
    return SHOAL_OK;
}
