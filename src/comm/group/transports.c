/* SPDX-License-Identifier: MIT */
/* The transports of a world: which are available, what they keep for the world, and which one carries a group. */
#include "comm/group/transports.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/processors.h"
#include "base/try.h"
#include "bootstrap/net/address.h"
#include "bootstrap/net/card.h"
#include "bootstrap/server/store.h"
#include "comm/group/start_mpi.h"
#include "comm/group/world.h"
#include "transport/registry.h"

/* The keys of control messages in the world's store. Programs cannot use keys of the library. */
#define KEY_PREFIX "transport/"
#define KEY_BYTES 256

struct candidate {
    const struct transport *transport;
    void *state; /* what its `open` made */
};

struct transports {
    struct transport_world world;
    char address[ADDRESS_TEXT_BYTES];
    struct shoal_world *owner;
    const struct transport *crossing; /* the module that crosses hosts; NULL if none was found */
    bool has_looked;
    char passed_over[ERROR_TEXT_BYTES]; /* why preferred modules are not used */
    int *hosts;                         /* NULL in a world without peers */
    _Atomic uint64_t *sent_to_hosts;
    /* The transports that may carry groups of this world, preferred ones first. All are open, and no two are the
       same. */
    struct candidate candidates[TRANSPORTS_MOST];
    size_t n_candidates;
};

/* What transports are told ------------------------------------------------------------------------------ */

static shoal_status check_rank(void *context, int rank)
{
    return world_check_rank(context, rank);
}

static bool is_dead(void *context, int rank)
{
    const struct shoal_world *world = context;
    return world->members && members_state(world->members, rank) == MEMBER_DEAD;
}

static shoal_status make_key(const char *key, char full_key[KEY_BYTES])
{
    int length = snprintf(full_key, KEY_BYTES, KEY_PREFIX "%s", key);
    return length > 0 && length < KEY_BYTES
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "key \"%.40s...\" of a transport is too long", key);
}

static shoal_status set_value(void *context, const char *key, const void *value, size_t bytes)
{
    struct shoal_world *world = context;
    char full_key[KEY_BYTES];
    TRY(make_key(key, full_key));
    return store_set_own(world->store, full_key, value, bytes);
}

static shoal_status get_value(void *context, const char *key, void *value, size_t capacity,
                              int64_t deadline_ns, size_t *bytes_out)
{
    struct shoal_world *world = context;
    char full_key[KEY_BYTES];
    TRY(make_key(key, full_key));
    return store_get_own(world->store, full_key, value, capacity, deadline_ns, bytes_out);
}

/* Making and ending ------------------------------------------------------------------------------------- */

static void free_transports(struct transports *transports)
{
    mem_free(transports->hosts);
    mem_free((void *)transports->sent_to_hosts);
    mem_free(transports);
}

struct transports *transports_create(struct shoal_world *world)
{
    struct transports *transports = mem_alloc_zeroed(1, sizeof *transports);
    if (!transports) {
        return NULL;
    }
    if (world->has_peers) {
        transports->hosts = mem_alloc_zeroed((size_t)world->n_ranks, sizeof *transports->hosts);
        /* There are as many hosts as ranks at most. */
        transports->sent_to_hosts = mem_alloc_zeroed((size_t)world->n_ranks, sizeof(uint64_t));
        if (!transports->hosts || !transports->sent_to_hosts) {
            free_transports(transports);
            return NULL;
        }
    }
    transports->owner = world;
    transports->world = (struct transport_world){.rank = world->rank,
                                                 .n_ranks = world->n_ranks,
                                                 .hosts = transports->hosts,
                                                 .n_hosts = 1,
                                                 .sent_to_hosts = transports->sent_to_hosts,
                                                 .may_spin = world->may_spin,
                                                 .context = world,
                                                 .check_rank = check_rank,
                                                 .is_dead = is_dead,
                                                 .mpi = world->mpi,
                                                 .set = set_value,
                                                 .get = get_value};
    return transports;
}

void transports_hurry(struct transports *transports, int64_t until_ns)
{
    if (transports) {
        /* Relaxed: an instant that stands for itself. */
        atomic_store_explicit(&transports->world.closing_ns, until_ns, memory_order_relaxed);
    }
}

void transports_close(struct transports *transports)
{
    if (!transports) {
        return;
    }
    while (transports->n_candidates > 0) {
        const struct candidate *candidate = &transports->candidates[--transports->n_candidates];
        if (candidate->transport->open) {
            candidate->transport->close(candidate->state);
        }
    }
    free_transports(transports);
}

/* Numbers hosts from 0, in the order of ranks. */
static void number_hosts(struct transports *transports, const struct card *cards)
{
    int n_hosts = 0;
    for (int rank = 0; rank < transports->world.n_ranks; rank++) {
        int first = 0;
        while (cards[first].host != cards[rank].host) {
            first++;
        }
        transports->hosts[rank] = first == rank ? n_hosts++ : transports->hosts[first];
    }
    transports->world.n_hosts = n_hosts;
}

/* Decides by the ranks of this host whether this one may spin. Until now all ranks counted as being on it. */
static shoal_status count_local_ranks(struct transports *transports, const struct card *cards)
{
    const struct transport_world *world = &transports->world;
    int32_t *processes = mem_alloc_zeroed((size_t)world->n_ranks, sizeof *processes);
    if (!processes) {
        return SHOAL_ERR_NO_MEMORY;
    }
    int n_local = 0;
    for (int rank = 0; rank < world->n_ranks; rank++) {
        if (world->hosts[rank] == world->hosts[world->rank]) {
            processes[n_local++] = cards[rank].pid;
        }
    }
    transports->owner->may_spin = processors_suffice_beside(processes, n_local);
    transports->world.may_spin = transports->owner->may_spin;
    mem_free(processes);
    return SHOAL_OK;
}

static shoal_status add_candidate(struct transports *transports, const struct transport *transport,
                                  int64_t deadline_ns)
{
    struct candidate candidate = {.transport = transport};
    if (transport->open) {
        shoal_status status = transport->open(transport, &transports->world, deadline_ns, &candidate.state);
        status = transport_check_status(transport, "open", status);
        if (status != SHOAL_OK) {
            return error_prefix(status, "transport %s", transport->name);
        }
    }
    transports->candidates[transports->n_candidates++] = candidate;
    return SHOAL_OK;
}

/* Finds the module that crosses hosts. Modules that are not installed, or do not fit, are passed over. */
static const struct transport *find_module(struct transports *transports)
{
    for (size_t i = 0; transport_crossing_at(i) && !transports->has_looked; i++) {
        const struct transport *transport = NULL;
        if (strcmp(transport_crossing_at(i), "mpi") == 0 && !start_mpi_is_usual(transports->owner)) {
            continue;
        }
        if (transport_find(transport_crossing_at(i), &transport) == SHOAL_OK) {
            transports->crossing = transport;
            break;
        }
        LOG(SHOAL_LOG_INFO, "several hosts: %s", shoal_error_text());
        (void)snprintf(transports->passed_over, sizeof transports->passed_over, "%s", shoal_error_text());
        error_clear();
    }
    transports->has_looked = true;
    return transports->crossing;
}

const char *transports_find_crossing(struct transports *transports, const char **why_out)
{
    const struct transport *asked = transports->owner->transport;
    const struct transport *crossing = asked && !asked->is_layered ? NULL : find_module(transports);
    *why_out = transports->passed_over;
    return crossing ? crossing->name : "";
}

static shoal_status add_module(struct transports *transports, int64_t deadline_ns)
{
    const struct transport *crossing = find_module(transports);
    if (!crossing) {
        return SHOAL_OK;
    }
    TRY(start_mpi_late(transports->owner, crossing, deadline_ns));
    transports->world.mpi = transports->owner->mpi;
    TRY(add_candidate(transports, crossing, deadline_ns));
    transports->world.crossing = crossing;
    transports->world.crossing_state = transports->candidates[transports->n_candidates - 1].state;
    return SHOAL_OK;
}

/* Adds a transport that is layered upon the module that was added last. It is opened after that module, and
   preferred to it for groups that it can carry. */
static shoal_status add_layered(struct transports *transports, const struct transport *layered,
                                int64_t deadline_ns)
{
    shoal_status status = add_candidate(transports, layered, deadline_ns);
    if (status == SHOAL_ERR_UNSUPPORTED && !transports->owner->transport) {
        LOG(SHOAL_LOG_INFO, "several hosts: %s", shoal_error_text());
        error_clear();
        return SHOAL_OK;
    }
    return status;
}

static void tell_crossing(const struct transports *transports)
{
    const struct transport_world *world = &transports->world;
    const char *crossing = world->crossing ? world->crossing->name : "nothing";
    size_t n_candidates = transports->n_candidates;
    const struct transport *last =
        n_candidates > 0 ? transports->candidates[n_candidates - 1].transport : NULL;
    bool is_layered = last && last->is_layered;
    LOG(SHOAL_LOG_INFO, "rank %d: %d hosts, groups on several of them use %s%s%s", world->rank,
        world->n_hosts, is_layered ? last->name : crossing, is_layered ? " over " : "",
        is_layered ? crossing : "");
}

static shoal_status add_crossing(struct transports *transports, int64_t deadline_ns)
{
    TRY(add_module(transports, deadline_ns));
    const struct transport *asked = transports->owner->transport;
    for (size_t i = 0; transport_at(i) && (asked || transports->world.crossing); i++) {
        const struct transport *row = transport_at(i);
        if (row->is_layered && (!asked || asked == row)) {
            TRY(add_layered(transports, row, deadline_ns));
        }
    }
    tell_crossing(transports);
    return SHOAL_OK;
}

shoal_status transports_open(struct transports *transports, const struct card *cards, int64_t deadline_ns)
{
    const struct transport *asked = transports->owner->transport;
    number_hosts(transports, cards);
    TRY(count_local_ranks(transports, cards));
    if (transports->world.n_hosts > 1 && address_is_known(&cards[transports->world.rank].address)) {
        transports->world.address = address_host(&cards[transports->world.rank].address, transports->address);
    }
    if (asked) {
        return asked->is_layered ? add_crossing(transports, deadline_ns)
                                 : add_candidate(transports, asked, deadline_ns);
    }
    bool is_one_host = transports->world.n_hosts == 1;
    for (size_t i = 0; transport_at(i); i++) {
        const struct transport *row = transport_at(i);
        if (row->has_peers && !row->is_layered && (row->is_one_host || !is_one_host)) {
            TRY(add_candidate(transports, row, deadline_ns));
        }
    }
    return is_one_host ? SHOAL_OK : add_crossing(transports, deadline_ns);
}

/* Progress ---------------------------------------------------------------------------------------------- */

shoal_status transports_progress(struct transports *transports)
{
    for (size_t i = 0; transports && i < transports->n_candidates; i++) {
        const struct candidate *candidate = &transports->candidates[i];
        if (candidate->transport->progress) {
            TRY(candidate->transport->progress(candidate->state));
        }
    }
    return SHOAL_OK;
}

void transports_drive(struct transports *transports)
{
    if (transports_progress(transports) != SHOAL_OK) {
        error_clear(); /* not the wrong thread: the opener calls this */
    }
}

/* Choosing ---------------------------------------------------------------------------------------------- */

static int host_of(const struct shoal_world *world, int rank)
{
    return world->transports && world->transports->hosts ? world->transports->hosts[rank] : 0;
}

/* The first member that is on another host than member 0; n_ranks: there is none. */
static int find_other_host(const struct shoal_world *world, const int *ranks, int n_ranks)
{
    int other = 1;
    while (other < n_ranks && host_of(world, ranks[other]) == host_of(world, ranks[0])) {
        other++;
    }
    return other;
}

static shoal_status check_fits(const struct transport *transport, const struct shoal_world *world,
                               const int *ranks, int n_ranks, const char *name)
{
    int other = find_other_host(world, ranks, n_ranks);
    if (transport->is_one_host && other < n_ranks) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "group %s: rank %d is on another host than rank %d (the world has %d hosts), and "
                         "transport %s carries ranks of one host only%s",
                         name, ranks[other], ranks[0], world->transports->world.n_hosts, transport->name,
                         world->transport ? "" : "; SHOAL_TRANSPORT can name one that crosses hosts");
    }
    if (transport->max_ranks > 0 && n_ranks > transport->max_ranks) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "group %s has %d ranks, transport %s carries at most %d",
                         name, n_ranks, transport->name, transport->max_ranks);
    }
    return SHOAL_OK;
}

static shoal_status find_candidate(const struct shoal_world *world, const int *ranks, int n_ranks,
                                   const char *name, struct candidate *candidate_out)
{
    const struct transports *transports = world->transports;
    /* The transport that was asked for; or, before the ranks have met, one that fits if all are on one host. */
    if (!transports || transports->n_candidates == 0) {
        candidate_out->transport = world->transport ? world->transport : transport_at(0);
        return SHOAL_OK;
    }
    /* A layered transport comes last, because it was opened after what it needs, but is preferred. */
    const struct candidate *last = &transports->candidates[transports->n_candidates - 1];
    bool is_across = find_other_host(world, ranks, n_ranks) < n_ranks;
    if (last->transport->is_layered && (is_across || world->transport)) {
        *candidate_out = *last;
        return SHOAL_OK;
    }
    for (size_t i = 0; i < transports->n_candidates; i++) {
        *candidate_out = transports->candidates[i];
        bool is_layered = candidate_out->transport->is_layered;
        if (!is_layered && check_fits(candidate_out->transport, world, ranks, n_ranks, name) == SHOAL_OK) {
            error_clear();
            return SHOAL_OK;
        }
    }
    /* No transport fits: the error is why the preferred one does not. */
    return check_fits(transports->candidates[0].transport, world, ranks, n_ranks, name);
}

shoal_status transports_choose(const struct shoal_world *world, const int *ranks, int n_ranks,
                               const char *name, struct transport_choice *choice_out)
{
    struct candidate candidate = {0};
    TRY(find_candidate(world, ranks, n_ranks, name, &candidate));
    int holder = 0;
    while (holder < n_ranks - 1 && host_of(world, ranks[holder]) != host_of(world, world->rank)) {
        holder++;
    }
    int n_local = 0;
    for (int i = 0; i < n_ranks; i++) {
        n_local += host_of(world, ranks[i]) == host_of(world, world->rank);
    }
    *choice_out = (struct transport_choice){.transport = candidate.transport,
                                            .state = candidate.state,
                                            .world = world->transports ? &world->transports->world : NULL,
                                            .holder = ranks[holder],
                                            .n_local = n_local};
    return SHOAL_OK;
}
