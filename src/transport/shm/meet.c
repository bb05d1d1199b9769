/* SPDX-License-Identifier: MIT */
/*
 * How ranks meet in a collective: each writes what it was called with into its slot and enters; whoever sees all
 * slots of a sequence entered compares them with its own call.
 *
 * Memory order: a rank writes its slot before flag_set(entered) (release); readers have seen the flag with
 * acquire. A slot is written again for collective s + SHM_SLOTS only after every peer's `done` was seen (acquire)
 * at s + 1, which the peer set (release) after its last read of the slots of s.
 */
#include "transport/shm/channel.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/try.h"
#include "transport/shm/blocks.h"

_Static_assert(sizeof(struct shm_fingerprint) == 40, "compared as bytes: no padding");
_Static_assert(offsetof(struct shm_slot, fingerprint) + sizeof(struct shm_fingerprint) <= 64,
               "flag and fingerprint arrive in one cache line");

/* Slots ------------------------------------------------------------------------------------------------ */

bool shm_has_slot(struct shm_channel *channel, uint32_t sequence)
{
    uint32_t needed = sequence + 1 - SHM_SLOTS;
    if (flag_is_past(channel->known_done, needed & FLAG_MASK)) {
        return true;
    }
    uint32_t least = sequence & FLAG_MASK;
    for (int i = 0; i < channel->n_ranks; i++) {
        /* This rank's own too: it reads its slot again when it finishes what it has posted. */
        uint32_t done = flag_get(&shm_peer(channel, i)->done);
        if (!flag_is_past(done, least)) {
            least = done;
        }
    }
    channel->known_done = least;
    return flag_is_past(least, needed & FLAG_MASK);
}

shoal_status shm_wait_slot(struct shm_channel *channel, const struct collective *collective)
{
    uint32_t needed = (collective->sequence + 1 - SHM_SLOTS) & FLAG_MASK;
    if (shm_has_slot(channel, collective->sequence)) {
        return SHOAL_OK;
    }
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i == channel->rank) {
            continue;
        }
        shoal_status status =
            shm_wait(channel, i, shm_counters_of(channel, done), needed, collective->deadline_ns);
        if (status == SHOAL_ERR_TIMEOUT && clock_now_ns() >= collective->deadline_ns) {
            char call[ERROR_TEXT_BYTES];
            return error_set(status, "%s and rank %d has not finished a collective started %d calls before",
                             transport_describe_timeout(channel->base.peers, collective, call, sizeof call),
                             channel->base.peers->world_ranks[i], SHM_SLOTS);
        }
        TRY(status);
    }
    channel->known_done = needed;
    return SHOAL_OK;
}

void shm_done(struct shm_channel *channel, uint32_t sequence)
{
    flag_set(&shm_peer(channel, channel->rank)->done, sequence + 1);
}

/* Fingerprints ----------------------------------------------------------------------------------------- */

/* FNV-1a over words; detects differences, no more is asked of it. */
static uint64_t hash_word(uint64_t hash, uint64_t word)
{
    for (int i = 0; i < 8; i++) {
        hash = (hash ^ ((word >> (8 * i)) & 0xff)) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static uint64_t hash_calls(const struct collective *collective, int n_ranks)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    if (collective->kind == COLLECTIVE_WINDOW_GATHER) {
        return hash_word(hash_word(hash, collective->window->id), collective->generation);
    }
    /* all_to_all_v differs between ranks; its counts are compared one by one where they meet. */
    if (collective->send_counts && collective->kind != COLLECTIVE_ALL_TO_ALL) {
        for (int i = 0; i < n_ranks; i++) {
            hash = hash_word(hash, collective->send_counts[i]);
        }
        return hash;
    }
    if (collective->n_pieces > 1) {
        for (size_t i = 0; i < collective->n_pieces; i++) {
            hash = hash_word(hash, collective->pieces[i].count);
        }
        return hash;
    }
    return 0;
}

static struct shm_fingerprint take_fingerprint(const struct collective *collective, int n_ranks)
{
    struct shm_fingerprint fingerprint = {
        .sequence = collective->sequence,
        .kind = (uint8_t)collective->kind,
        .dtype = (uint8_t)collective->dtype,
        .reduce = (uint8_t)collective->reduce,
        .has_counts = collective->send_counts != NULL,
        .hash = hash_calls(collective, n_ranks),
        .root = collective_rows[collective->kind].has_root ? collective->root : (int32_t)collective->label,
        .n_pieces = (uint32_t)collective->n_pieces,
    };
    memcpy(&fingerprint.factor, &collective->factor, sizeof fingerprint.factor);
    if (collective->kind == COLLECTIVE_WINDOW_GATHER) {
        fingerprint.root = 0;
        fingerprint.count = collective->label;
    } else if (!collective->send_counts) {
        fingerprint.count = block_elements(collective, BLOCK_SEND, 0);
    }
    return fingerprint;
}

/* What a fingerprint says, whatever is in it: a peer wrote it. */
static void describe_fingerprint(const struct shm_fingerprint *fingerprint, char *text, size_t text_bytes)
{
    if (fingerprint->kind >= COLLECTIVE_COUNT) {
        (void)snprintf(text, text_bytes, "kind %d", fingerprint->kind);
        return;
    }
    const struct collective_row *row = &collective_rows[fingerprint->kind];
    char reduce[48] = "";
    char root[24] = "";
    char pieces[32] = "";
    char count[48] = "";
    if (row->reduces) {
        (void)snprintf(reduce, sizeof reduce, " %s", shoal_reduce_name((shoal_reduce)fingerprint->reduce));
    }
    if (row->reduces && fingerprint->reduce == SHOAL_PREMUL_SUM) {
        double factor;
        memcpy(&factor, &fingerprint->factor, sizeof factor);
        (void)snprintf(reduce, sizeof reduce, " premul_sum factor %g", factor);
    }
    if (row->has_root) {
        (void)snprintf(root, sizeof root, " root %" PRId32, fingerprint->root);
    } else if (fingerprint->root != 0) {
        (void)snprintf(root, sizeof root, " label %" PRId32, fingerprint->root);
    }
    if (fingerprint->n_pieces > 1) {
        (void)snprintf(pieces, sizeof pieces, " in %" PRIu32 " parts", fingerprint->n_pieces);
    }
    if (fingerprint->kind == COLLECTIVE_WINDOW_GATHER) {
        (void)snprintf(count, sizeof count, " label %" PRIu64, fingerprint->count);
    } else if (fingerprint->has_counts) {
        (void)snprintf(count, sizeof count, " counts (hash %08" PRIx32 ")", (uint32_t)fingerprint->hash);
    } else if (fingerprint->kind != COLLECTIVE_BARRIER) {
        (void)snprintf(count, sizeof count, " count %" PRIu64, fingerprint->count);
    }
    bool has_dtype = fingerprint->kind != COLLECTIVE_BARRIER && fingerprint->kind != COLLECTIVE_WINDOW_GATHER;
    (void)snprintf(text, text_bytes, "%s%s%s%s%s%s%s%s #%" PRIu32, row->name,
                   fingerprint->has_counts ? "_v" : "", has_dtype ? " " : "",
                   has_dtype ? shoal_dtype_name((shoal_dtype)fingerprint->dtype) : "", reduce, count, pieces,
                   root, fingerprint->sequence);
}

/* The counts of an all_to_all_v differ between ranks, so they lie in the slot. */
static void write_counts(uint64_t *target, const size_t *counts, int n_ranks)
{
    for (int i = 0; i < n_ranks; i++) {
        target[i] = counts[i];
    }
}

void shm_write_slot(struct shm_channel *channel, const struct collective *collective)
{
    struct shm_slot *slot = shm_slot(channel, channel->rank, collective->sequence);
    slot->algorithm = (uint32_t)collective->algorithm;
    slot->fingerprint = take_fingerprint(collective, channel->n_ranks);
    if (collective->send_counts && collective->kind == COLLECTIVE_ALL_TO_ALL) {
        write_counts((uint64_t *)(void *)slot->data, collective->send_counts, channel->n_ranks);
    }
    if (collective->algorithm == ALGORITHM_DIRECT) {
        (void)shm_find_places(channel, collective, &slot->send, &slot->recv);
    }
}

void shm_enter(struct shm_channel *channel, uint32_t sequence)
{
    flag_set(&shm_slot(channel, channel->rank, sequence)->entered, sequence + 1);
}

/* Arriving --------------------------------------------------------------------------------------------- */

static bool has_entered(struct shm_channel *channel, int rank, uint32_t sequence)
{
    return flag_has_reached(&shm_slot(channel, rank, sequence)->entered, (sequence + 1) & FLAG_MASK);
}

bool shm_have_all_entered(struct shm_channel *channel, uint32_t sequence)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank && !has_entered(channel, i, sequence)) {
            return false;
        }
    }
    return true;
}

/*
 * What a rank that is missing did last on this group: who called the same on another group, or on one of the same ranks
 * in another order, finds that out here.
 */
static void describe_last_call(struct shm_channel *channel, int rank, char *text, size_t text_bytes)
{
    /* Slot 0 is the first that is ever used. */
    uint32_t n_entered = flag_get(&shm_peer(channel, rank)->slots[0].entered);
    for (int i = 1; i < SHM_SLOTS; i++) {
        uint32_t entered = flag_get(&shm_peer(channel, rank)->slots[i].entered);
        n_entered = flag_is_past(n_entered, entered) ? n_entered : entered;
    }
    /* Only its number: the rank may write the slot again while this one reads it. */
    if (n_entered == 0) {
        (void)snprintf(text, text_bytes, "has called nothing on this group");
    } else {
        (void)snprintf(text, text_bytes, "called #%" PRIu32 " last on this group",
                       (n_entered - 1) & FLAG_MASK);
    }
}

static shoal_status fail_missing(struct shm_channel *channel, const struct collective *collective)
{
    char missing[160];
    size_t at = 0;
    int n_missing = 0;
    int n_named = 0;
    int first_missing = 0;
    missing[0] = '\0';
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i == channel->rank || has_entered(channel, i, collective->sequence)) {
            continue;
        }
        first_missing = n_missing == 0 ? i : first_missing;
        n_missing++;
        if (at + 40 < sizeof missing) {
            at += (size_t)snprintf(missing + at, sizeof missing - at, "%s %d", n_missing > 1 ? "," : "",
                                   channel->base.peers->world_ranks[i]);
            n_named++;
        }
    }
    if (n_named < n_missing) {
        (void)snprintf(missing + at, sizeof missing - at, " and %d more", n_missing - n_named);
    }
    char call[ERROR_TEXT_BYTES];
    char last_call[64];
    describe_last_call(channel, first_missing, last_call, sizeof last_call);
    return error_set(SHOAL_ERR_TIMEOUT, "%s and rank%s%s did not call it; rank %d %s",
                     transport_describe_timeout(channel->base.peers, collective, call, sizeof call),
                     n_missing > 1 ? "s" : "", missing, channel->base.peers->world_ranks[first_missing],
                     last_call);
}

shoal_status shm_wait_entered(struct shm_channel *channel, const struct collective *collective,
                              int64_t until_ns)
{
    uint32_t target = (collective->sequence + 1) & FLAG_MASK;
    for (int i = 1; i < channel->n_ranks; i++) {
        int peer = (channel->rank + i) % channel->n_ranks;
        shoal_status status =
            shm_wait(channel, peer, shm_entered_counters(channel, collective->sequence), target, until_ns);
        /* Who only waits for a turn of the whole time needs no text: it goes on. */
        bool is_over = status == SHOAL_ERR_TIMEOUT && until_ns >= collective->deadline_ns;
        if (is_over && clock_now_ns() >= until_ns && !has_entered(channel, peer, collective->sequence)) {
            return fail_missing(channel, collective);
        }
        TRY(status);
    }
    return SHOAL_OK;
}

/* Comparing -------------------------------------------------------------------------------------------- */

static shoal_status fail_mismatch(struct shm_channel *channel, int peer, const struct shm_fingerprint *theirs,
                                  const struct shm_fingerprint *ours)
{
    char calls[2][160];
    /* The lower rank first, so that all ranks say the same. */
    bool is_peer_first = peer < channel->rank;
    describe_fingerprint(is_peer_first ? theirs : ours, calls[0], sizeof calls[0]);
    describe_fingerprint(is_peer_first ? ours : theirs, calls[1], sizeof calls[1]);
    const int *world_ranks = channel->base.peers->world_ranks;
    const char *hint = strcmp(calls[0], calls[1]) == 0 ? " (their parts or counts differ)" : "";
    return error_set(SHOAL_ERR_MISMATCH, "rank %d called %s, rank %d called %s%s, on group %s",
                     world_ranks[is_peer_first ? peer : channel->rank], calls[0],
                     world_ranks[is_peer_first ? channel->rank : peer], calls[1], hint,
                     transport_group_name(channel->base.peers));
}

static shoal_status compare_algorithms(struct shm_channel *channel, int peer, uint32_t theirs, uint32_t ours)
{
    bool is_large = theirs == ALGORITHM_DIRECT || theirs == ALGORITHM_STAGED;
    bool are_we_large = ours == ALGORITHM_DIRECT || ours == ALGORITHM_STAGED;
    if (theirs == ours || (is_large && are_we_large)) {
        return SHOAL_OK;
    }
    return error_set(
        SHOAL_ERR_MISMATCH, "rank %d uses algorithm %s, rank %d %s on group %s: SHOAL_ALGO differs",
        channel->base.peers->world_ranks[channel->rank], algorithm_rows[ours].name,
        channel->base.peers->world_ranks[peer], theirs < ALGORITHM_COUNT ? algorithm_rows[theirs].name : "?",
        transport_group_name(channel->base.peers));
}

shoal_status shm_compare(struct shm_channel *channel, const struct collective *collective)
{
    const struct shm_slot *own = shm_slot(channel, channel->rank, collective->sequence);
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i == channel->rank) {
            continue;
        }
        const struct shm_slot *slot = shm_slot(channel, i, collective->sequence);
        if (memcmp(&slot->fingerprint, &own->fingerprint, sizeof slot->fingerprint) != 0) {
            return fail_mismatch(channel, i, &slot->fingerprint, &own->fingerprint);
        }
        TRY(compare_algorithms(channel, i, slot->algorithm, own->algorithm));
    }
    return SHOAL_OK;
}

enum algorithm_id shm_settle(struct shm_channel *channel, const struct collective *collective)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (shm_slot(channel, i, collective->sequence)->algorithm != ALGORITHM_DIRECT) {
            return ALGORITHM_STAGED;
        }
    }
    return ALGORITHM_DIRECT;
}
