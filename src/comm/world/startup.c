/* SPDX-License-Identifier: MIT */
/*
 * Start-up. Everything that may fail on this rank alone is done before it says that it is ready. After that either all
 * ranks have a world, or none has.
 */
#include "comm/world/startup.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/try.h"
#include "bootstrap/net/card.h"
#include "bootstrap/server/client.h"
#include "comm/world/dump.h"
#include "comm/group/group.h"
#include "comm/group/groups.h"
#include "bootstrap/alive/liveness.h"
#include "bootstrap/meet/rendezvous.h"
#include "bootstrap/server/server.h"
#include "bootstrap/net/socket.h"
#include "bootstrap/net/span.h"
#include "bootstrap/server/store.h"
#include "comm/group/start_mpi.h"
#include "bootstrap/net/tcp.h"
#include "bootstrap/alive/watch.h"
#include "comm/group/transports.h"
#include "comm/group/world.h"
#include "sharedmem/regions.h"

/* This rank's own parts --------------------------------------------------------------------------------- */

static shoal_status create_world_group(struct shoal_world *world)
{
    int *ranks = mem_alloc((size_t)world->n_ranks * sizeof *ranks);
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int rank = 0; rank < world->n_ranks; rank++) {
        ranks[rank] = rank;
    }
    shoal_status status = shoal_group_create(world, ranks, world->n_ranks, NULL, &world->group);
    mem_free(ranks);
    return status;
}

static shoal_status create_parts(struct shoal_world *world)
{
    TRY(store_create(world->client, /*holder=*/0, world->timeout_s, &world->store));
    world->regions = regions_create();
    world->transports = transports_create(world);
    if (!world->regions || !world->transports) {
        return SHOAL_ERR_NO_MEMORY;
    }
    world->groups = groups_create(dump_after_failure);
    if (!world->groups) {
        return SHOAL_ERR_NO_MEMORY;
    }
    return create_world_group(world);
}

shoal_status startup_without_peers(struct shoal_world *world)
{
    return create_parts(world);
}

/* Called on the watch's thread, which starts after the groups were made. */
static void hear_watch(void *context, const char *name, shoal_status status, const char *text)
{
    struct shoal_world *world = context;
    groups_hear(world->groups, name, status, text);
}

/* Opens the network of this rank's server, and makes the watch for ranks on other hosts. */
static shoal_status open_network(struct shoal_world *world, const struct span *span, int listener)
{
    const struct watch_options options = {.rank = world->rank,
                                          .n_ranks = world->n_ranks,
                                          .heartbeat_ns = span->heartbeat_ns,
                                          .hear = hear_watch,
                                          .hear_context = world};
    shoal_status status = watch_create(&options, &world->watch);
    if (status != SHOAL_OK) {
        (void)close(listener);
        return status;
    }
    return server_open_network(world->server, listener, members_fd(world->page), world->watch);
}

/* Listens on the network. If that fails and no address was given, nobody has said that there are several hosts: the
   rank then goes on without the network. */
static shoal_status listen_on_network(struct span *span, struct card *card, int *listener_out)
{
    if (!span->is_on) {
        return SHOAL_OK;
    }
    struct address address = span->own;
    shoal_status status = tcp_listen(&address, listener_out);
    if (status == SHOAL_OK) {
        card->address = address;
        card->heartbeat_ms = (uint32_t)(span->heartbeat_ns / 1000000);
    } else if (!address_is_known(&span->meeting)) {
        LOG(SHOAL_LOG_WARN, "other hosts cannot reach this rank: %s", shoal_error_text());
        span->is_on = false;
        error_clear();
        return SHOAL_OK;
    }
    return status;
}

static shoal_status create_server(struct shoal_world *world, struct span *span, struct card *card)
{
    int listener = -1;
    TRY(listen_on_network(span, card, &listener));
    shoal_status status = server_create(card, &world->server);
    if (status == SHOAL_OK && (world->rank == 0 || span->is_on)) {
        status = members_create(world->n_ranks, &world->page);
    }
    if (status != SHOAL_OK && listener >= 0) {
        (void)close(listener);
    }
    TRY(status);
    return span->is_on ? open_network(world, span, listener) : SHOAL_OK;
}

static shoal_status create_servers(struct shoal_world *world, struct span *span, struct card *card,
                                   struct card **cards_out)
{
    TRY(create_server(world, span, card));
    struct card *cards = mem_alloc_zeroed((size_t)world->n_ranks, sizeof *cards);
    if (!cards) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = client_create(cards, world->n_ranks, &world->client);
    if (status != SHOAL_OK) {
        mem_free(cards);
        return status;
    }
    *cards_out = cards;
    TRY(create_parts(world));
    server_set_hearer(world->server, groups_hear, world->groups);
    return SHOAL_OK;
}

/* Starts the server. Rank 0 starts it later if the meeting has a name or an address: when it has become the host
   there. */
static shoal_status start_server(struct shoal_world *world, bool has_meeting_name)
{
    if (world->rank == 0 && has_meeting_name) {
        return SHOAL_OK;
    }
    if (world->rank == 0) {
        TRY(server_host_meeting(world->server, NULL, members_fd(world->page)));
    }
    return server_start(world->server);
}

/* The meeting ------------------------------------------------------------------------------------------- */

/* A rank that could not start still takes part in the application's exchange, because the others wait there for its
   card. */
static void exchange_failure(const struct startup_plan *plan, struct card *card, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    card->status = status;
    (void)snprintf(card->text, sizeof card->text, "%.*s", CARD_TEXT_BYTES - 1, text);
    struct card *cards = mem_alloc((size_t)card->n_ranks * sizeof *cards);
    if (cards) {
        (void)plan->exchange(plan->exchange_context, card, cards, sizeof *card);
        mem_free(cards);
    }
    (void)error_set(status, "%s", text);
}

static shoal_status check_rank_zero(void *context)
{
    struct shoal_world *world = context;
    return members_state(world->members, 0) == MEMBER_DEAD ? members_check(world->members, 0) : SHOAL_OK;
}

/* Ends the wait if rank 0 has sent something before it was asked: the meeting has failed, and the message has the
   reason. */
static shoal_status check_meeting(void *context)
{
    const struct rendezvous *rendezvous = context;
    struct pollfd polled = {.fd = rendezvous->fd, .events = POLLIN};
    return poll(&polled, 1, 0) > 0 ? SHOAL_ERR_CANCELLED : SHOAL_OK;
}

/* Called when all ranks have the cards. Connects this rank to all ranks on other hosts, and says again that it is
   ready. */
static shoal_status connect_hosts(struct shoal_world *world, struct rendezvous *rendezvous,
                                  const struct card *cards)
{
    const struct socket_wait wait = {.deadline_ns = rendezvous->deadline_ns,
                                     .liveness = check_meeting,
                                     .liveness_context = rendezvous,
                                     .what = "ranks on other hosts"};
    shoal_status status = watch_open(world->watch, cards, &wait);
    if (status != SHOAL_OK && status != SHOAL_ERR_CANCELLED) {
        status = error_prefix(status, "start-up");
        rendezvous_give_up(rendezvous, status);
        return status;
    }
    if (status == SHOAL_OK) {
        members_set_watch(world->members, world->watch);
        client_set_watch(world->client, world->watch);
        rendezvous->crossing = transports_find_crossing(world->transports, &rendezvous->crossing_why);
    }
    TRY(rendezvous_complete(rendezvous, check_rank_zero, world, /*cards_out=*/NULL));
    watch_judge(world->watch);
    return SHOAL_OK;
}

/* Whether the connection to rank 0 can be used for requests. Not if it is over TCP and rank 0 is on this host: TCP
   cannot pass descriptors of shared memory. */
static bool is_good_to_keep(struct shoal_world *world, const struct rendezvous *rendezvous)
{
    return rendezvous->fd >= 0 && rendezvous->is_tcp == watch_has(world->watch, 0);
}

static shoal_status enter_and_complete(struct shoal_world *world, struct rendezvous *rendezvous,
                                       struct card *cards)
{
    int page_fd;
    struct members *members = members_allocate();
    if (!members) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = rendezvous_enter(rendezvous, &page_fd);
    if (status != SHOAL_OK) {
        members_discard(members);
        return status;
    }
    status = members_join(members, page_fd, world->n_ranks, world->rank, &world->members);
    if (status != SHOAL_OK) {
        rendezvous_give_up(rendezvous, status);
        return status;
    }
    client_set_members(world->client, world->members);
    TRY(rendezvous_complete(rendezvous, check_rank_zero, world, cards));
    if (card_has_several_hosts(cards, world->n_ranks)) {
        TRY(connect_hosts(world, rendezvous, cards));
    } else {
        server_close_network(world->server);
    }
    FAIL_POINT("world complete");
    return SHOAL_OK;
}

static void keep_error_and_linger(struct shoal_world *world, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    server_linger(world->server);
    (void)error_set(status, "%s", text);
}

static shoal_status meet(struct shoal_world *world, struct rendezvous *rendezvous, struct card *cards)
{
    rendezvous->page_fd = world->page ? members_fd(world->page) : -1;
    shoal_status status = enter_and_complete(world, rendezvous, cards);
    if (status == SHOAL_OK && is_good_to_keep(world, rendezvous)) {
        client_keep(world->client, /*rank=*/0, rendezvous->fd);
    } else if (rendezvous->fd >= 0) {
        (void)close(rendezvous->fd);
    }
    if (status != SHOAL_OK && status != SHOAL_ERR_TIMEOUT && world->rank == 0 && world->n_ranks > 1) {
        keep_error_and_linger(world, status);
    }
    return status;
}

/* Finds where the ranks meet: at the name of the job's key, at SHOAL_ADDRESS, or at rank 0's server as the exchange
   showed it. */
static shoal_status find_meeting(struct shoal_world *world, const struct startup_plan *plan,
                                 const struct span *span, struct rendezvous *rendezvous,
                                 char name[SOCKET_NAME_BYTES], struct card *cards)
{
    const struct card *card = rendezvous->card;
    rendezvous->name = name;
    if (plan->exchange) {
        TRY(rendezvous_exchange(plan->exchange, plan->exchange_context, card, cards));
        card_server_name(&cards[0], name);
        rendezvous->address = cards[0].address;
        rendezvous->key = (struct proof_key){{cards[0].token[0], cards[0].token[1]}};
        /* The claims only say where to look first: both ranks may still be on different hosts. */
        rendezvous->name = cards[0].claim == card->claim ? name : NULL;
    } else if (world->n_ranks == 1) {
        card_server_name(card, name);
    } else if (address_is_known(&span->meeting)) {
        rendezvous->name = NULL;
        rendezvous->address = span->meeting;
        rendezvous->key = span->key;
    } else {
        rendezvous_name(plan->key, name);
    }
    return SHOAL_OK;
}

shoal_status startup_with_peers(struct shoal_world *world, const struct startup_plan *plan)
{
    int64_t deadline_ns = clock_deadline_after(world->startup_timeout_s);
    bool takes_place = !plan->exchange && world->n_ranks > 1;
    const struct span_question question = {.rank = world->rank,
                                           .n_ranks = world->n_ranks,
                                           .has_exchange = plan->exchange != NULL,
                                           .is_by_environment = plan->is_by_environment,
                                           .hosts_text = plan->hosts_text,
                                           .deadline_ns = deadline_ns};
    struct span span = {.is_on = false};
    struct card card;
    TRY(card_create(world->rank, world->n_ranks, world->transport ? world->transport->name : "", &card));
    struct card *cards = NULL;
    shoal_status status = span_decide(&question, &span);
    if (status == SHOAL_OK) {
        status = create_servers(world, &span, &card, &cards);
    }
    if (status == SHOAL_OK) {
        status = start_server(world, takes_place);
    }
    if (status != SHOAL_OK) {
        if (plan->exchange) {
            exchange_failure(plan, &card, status);
        }
        return status;
    }
    char name[SOCKET_NAME_BYTES];
    struct rendezvous rendezvous = {.card = &card, .deadline_ns = deadline_ns, .fd = -1};
    rendezvous.host = world->rank == 0 && takes_place ? world->server : NULL;
    TRY(find_meeting(world, plan, &span, &rendezvous, name, cards));
    TRY(meet(world, &rendezvous, cards));
    TRY(transports_open(world->transports, cards, deadline_ns));
    TRY(group_choose_transport(world->group));
    world->run = cards[0].token[0];
    LOG(SHOAL_LOG_INFO, "world rank %d of %d process %d launcher %s", world->rank, world->n_ranks, card.pid,
        world->launcher);
    return SHOAL_OK;
}

/* The end ----------------------------------------------------------------------------------------------- */

void startup_undo(struct shoal_world *world)
{
    groups_close(world->groups);
    owned_list_end(&world->owned);
    transports_close(world->transports);
    bool is_kept = start_mpi_end(world);
    regions_free(world->regions);
    store_free(world->store);
    client_free(world->client);
    server_free(world->server);
    if (is_kept) {
        watch_hush(world->watch);
    } else {
        watch_stop(world->watch);
    }
    /* After the server and the watch, which report failures to the groups. */
    groups_free(world->groups);
    if (is_kept) {
        start_mpi_keep(world);
    }
    members_free(world->members);
    /* After the server, which hands out the page's descriptor. */
    members_free(world->page);
    /* After the members, which ask the watch. */
    watch_free(world->watch);
}
