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

#include <string.h>

#include "base/clock.h"
#include "base/try.h"
#include "transport/missing.h"

_Static_assert(offsetof(struct shm_slot, details) == SHM_LINE,
               "few details share the slot's first pair of lines");
_Static_assert(offsetof(struct shm_slot, fingerprint) + sizeof(struct fingerprint) <= 64,
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
        /* Including this rank: it reads its own slot again when it finishes what it has posted. */
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

/* Entering --------------------------------------------------------------------------------------------- */

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
    size_t n_details = collective->purpose ? collective->purpose->n_details : 0;
    bool has_few = n_details <= SHM_FEW_DETAILS && (int)collective->device < DEVICE_FIRST_MODULE;
    struct fingerprint fingerprint =
        fingerprint_take(collective, channel->n_ranks, has_few ? slot->few_details : slot->details);
    if (collective->purpose) {
        fingerprint_take_words(collective, slot->words);
    }
    if (collective->send_counts && collective->kind == COLLECTIVE_ALL_TO_ALL) {
        write_counts((uint64_t *)(void *)slot->data, collective->send_counts, channel->n_ranks);
    }
    if (collective->algorithm == SHM_ALGORITHM_DIRECT) {
        (void)shm_find_places(channel, collective, &slot->send, &slot->recv);
        if (collective->n_pieces > 1) {
            shm_write_list_places(channel, collective);
        }
    }
    if (collective->algorithm == SHM_ALGORITHM_SINGLE) {
        shm_write_addresses(channel, collective);
    }
    /* Last: peers that came before poll this line, and each of their reads takes it away from this processor. */
    slot->algorithm = (uint32_t)collective->algorithm;
    slot->fingerprint = fingerprint;
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

int shm_first_missing(struct shm_channel *channel, uint32_t sequence)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank && !has_entered(channel, i, sequence)) {
            return i;
        }
    }
    return -1;
}

bool shm_have_all_entered(struct shm_channel *channel, uint32_t sequence)
{
    return shm_first_missing(channel, sequence) < 0;
}

/* How many collectives a rank has entered: the largest count in its slots. Slot 0 is the first that is ever used. */
static uint32_t count_entered(struct shm_channel *channel, int rank)
{
    uint32_t n_entered = flag_get(&shm_peer(channel, rank)->slots[0].entered);
    for (int i = 1; i < SHM_SLOTS; i++) {
        uint32_t entered = flag_get(&shm_peer(channel, rank)->slots[i].entered);
        n_entered = flag_is_past(n_entered, entered) ? n_entered : entered;
    }
    return n_entered;
}

/* The deadline has passed. One look decides and gives the names: SHOAL_OK if the last has entered meanwhile. */
static __attribute__((noinline, cold)) shoal_status fail_missing(struct shm_channel *channel,
                                                                 const struct collective *collective)
{
    struct missing_members missing = {.peers = channel->base.peers};
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank && !has_entered(channel, i, collective->sequence)) {
            missing_add(&missing, i);
        }
    }
    if (missing.n_missing == 0) {
        error_clear(); /* of the wait */
        return SHOAL_OK;
    }
    return missing_fail(&missing, collective, count_entered(channel, missing.first));
}

shoal_status shm_wait_entered(struct shm_channel *channel, const struct collective *collective,
                              int64_t until_ns)
{
    uint32_t target = (collective->sequence + 1) & FLAG_MASK;
    for (int i = 1; i < channel->n_ranks; i++) {
        int peer = (channel->rank + i) % channel->n_ranks;
        shoal_status status =
            shm_wait(channel, peer, shm_entered_counters(channel, collective->sequence), target, until_ns);
        /* A caller that waits for a part of the time only goes on afterwards, and needs no text. */
        bool is_over = status == SHOAL_ERR_TIMEOUT && until_ns >= collective->deadline_ns;
        if (is_over && clock_now_ns() >= until_ns) {
            status = fail_missing(channel, collective);
        }
        TRY(status);
        if (collective->algorithm == SHM_ALGORITHM_ONESHOT && channel->n_ranks > 2) {
            shm_oneshot_fetch(channel, collective, peer);
        }
    }
    return SHOAL_OK;
}

/* Parting ---------------------------------------------------------------------------------------------- */

/*
 * `wrote` counts only the steps that use it (one of a direct or window collective, two or three of a single one), and
 * does not follow the sequence. Between two of them there may be any number of other collectives, and a counter that
 * stood still for 2^30 collectives would look as if it were ahead. All ranks count the same steps.
 */
void shm_raise_wrote(struct shm_channel *channel)
{
    channel->n_wrote++;
    flag_set(&shm_peer(channel, channel->rank)->wrote, channel->n_wrote);
}

shoal_status shm_wait_wrote(struct shm_channel *channel, const struct collective *collective)
{
    for (int i = 1; i < channel->n_ranks; i++) {
        int peer = (channel->rank + i) % channel->n_ranks;
        shoal_status status = shm_wait(channel, peer, shm_counters_of(channel, wrote),
                                       channel->n_wrote & FLAG_MASK, collective->deadline_ns);
        if (status == SHOAL_ERR_TIMEOUT && clock_now_ns() >= collective->deadline_ns) {
            char call[ERROR_TEXT_BYTES];
            return error_set(status, "%s and rank %d has not done its part",
                             transport_describe_timeout(channel->base.peers, collective, call, sizeof call),
                             channel->base.peers->world_ranks[peer]);
        }
        TRY(status);
    }
    return SHOAL_OK;
}

/* Comparing -------------------------------------------------------------------------------------------- */

static bool has_few_details(const struct fingerprint *fingerprint)
{
    return fingerprint->purpose.n_details <= SHM_FEW_DETAILS && !fingerprint_has_name(fingerprint);
}

/* If the details were too many, their hash lies in `details`. */
static struct fingerprint_call call_in(const struct shm_slot *slot)
{
    return (struct fingerprint_call){.fingerprint = &slot->fingerprint,
                                     .details = has_few_details(&slot->fingerprint) ? slot->few_details
                                                                                    : slot->details,
                                     .words = slot->words};
}

/* Whether ranks may differ in it, and settle on one when they meet. */
static bool is_settled(uint32_t algorithm)
{
    return algorithm == SHM_ALGORITHM_DIRECT || algorithm == SHM_ALGORITHM_SINGLE ||
           algorithm == SHM_ALGORITHM_STAGED;
}

static shoal_status compare_algorithms(struct shm_channel *channel, int peer, uint32_t theirs, uint32_t ours)
{
    if (theirs == ours || (is_settled(theirs) && is_settled(ours))) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_MISMATCH,
                     "rank %d uses algorithm %s, rank %d %s on group %s: SHOAL_ALGO differs",
                     channel->base.peers->world_ranks[channel->rank], shm_algorithm_rows[ours].name,
                     channel->base.peers->world_ranks[peer],
                     theirs < SHM_ALGORITHM_COUNT ? shm_algorithm_rows[theirs].name : "?",
                     transport_group_name(channel->base.peers));
}

static shoal_status compare_with(struct shm_channel *channel, const struct collective *collective, int peer)
{
    const struct shm_slot *own = shm_slot(channel, channel->rank, collective->sequence);
    const struct shm_slot *slot = shm_slot(channel, peer, collective->sequence);
    /* Most calls are raw ones that agree. On the CPU they have nothing beside the fingerprint. */
    bool is_same = fingerprint_has_same_words(&own->fingerprint, &slot->fingerprint);
    bool has_more = own->fingerprint.purpose.n_details > 0 || fingerprint_has_name(&own->fingerprint);
    if (is_same && !has_more && own->algorithm == slot->algorithm) {
        return SHOAL_OK;
    }
    const struct fingerprint_call ours = call_in(own);
    const struct fingerprint_call theirs = call_in(slot);
    if (!is_same || !fingerprint_is_equal(&ours, &theirs)) {
        return fingerprint_fail(channel->base.peers, &ours, peer, &theirs);
    }
    return compare_algorithms(channel, peer, slot->algorithm, own->algorithm);
}

shoal_status shm_compare(struct shm_channel *channel, const struct collective *collective)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            TRY(compare_with(channel, collective, i));
        }
    }
    return SHOAL_OK;
}

shoal_status shm_compare_entered(struct shm_channel *channel, const struct collective *collective)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank && has_entered(channel, i, collective->sequence)) {
            TRY(compare_with(channel, collective, i));
        }
    }
    return SHOAL_OK;
}

shoal_status shm_compare_counts(struct shm_channel *channel, const struct collective *collective,
                                size_t *largest_out)
{
    const int *world_ranks = channel->base.peers->world_ranks;
    size_t largest = 0;
    for (int i = 0; i < channel->n_ranks; i++) {
        const uint64_t *counts =
            (const uint64_t *)(const void *)shm_slot(channel, i, collective->sequence)->data;
        if (counts[channel->rank] != collective->recv_counts[i]) {
            return error_set(
                SHOAL_ERR_MISMATCH,
                "all_to_all_v #%u on group %s: rank %d sends %zu elements to rank %d, which expects %zu",
                collective->sequence, transport_group_name(channel->base.peers), world_ranks[i],
                (size_t)counts[channel->rank], world_ranks[channel->rank], collective->recv_counts[i]);
        }
        for (int k = 0; k < channel->n_ranks; k++) {
            largest = counts[k] > largest ? (size_t)counts[k] : largest;
        }
    }
    *largest_out = largest;
    return SHOAL_OK;
}

enum shm_algorithm shm_settle(struct shm_channel *channel, const struct collective *collective)
{
    /* Where only the root's memory is read, what the others could do with theirs does not matter. */
    bool is_from_root = collective->kind == COLLECTIVE_BROADCAST || collective->kind == COLLECTIVE_SCATTER;
    uint32_t first = shm_slot(channel, is_from_root ? collective->root : 0, collective->sequence)->algorithm;
    for (int i = 0; i < channel->n_ranks; i++) {
        uint32_t algorithm = shm_slot(channel, i, collective->sequence)->algorithm;
        if (algorithm == SHM_ALGORITHM_STAGED || (algorithm != first && !is_from_root)) {
            return SHM_ALGORITHM_STAGED;
        }
    }
    return (enum shm_algorithm)first;
}
