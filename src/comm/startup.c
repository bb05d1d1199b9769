/* SPDX-License-Identifier: MIT */
/*
 * Start-up. What can fail for reasons of this rank's own is done before it says that it is ready: after that all
 * ranks have a world, or none.
 */
#include "comm/startup.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/try.h"
#include "bootstrap/card.h"
#include "bootstrap/client.h"
#include "comm/dump.h"
#include "comm/group.h"
#include "comm/groups.h"
#include "bootstrap/liveness.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/server.h"
#include "bootstrap/store.h"
#include "comm/start_mpi.h"
#include "comm/transports.h"
#include "comm/world.h"
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

static shoal_status create_servers(struct shoal_world *world, const struct card *card,
                                   struct card **cards_out)
{
    TRY(server_create(card, &world->server));
    if (world->rank == 0) {
        TRY(members_create(world->n_ranks, &world->page));
    }
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

/* Rank 0 starts to answer when it has the meeting; where that is under its own name only, it has it at once. */
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

/* The others must not be left waiting in the application's exchange for a rank that could not start. */
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

static shoal_status meet(struct shoal_world *world, const char *name, const struct card *card,
                         int64_t deadline_ns, bool has_meeting_name, struct card *cards)
{
    struct rendezvous rendezvous = {.card = card, .name = name, .deadline_ns = deadline_ns, .fd = -1};
    if (world->rank == 0 && has_meeting_name) {
        rendezvous.host = world->server;
        rendezvous.page_fd = members_fd(world->page);
    }
    shoal_status status = enter_and_complete(world, &rendezvous, cards);
    if (status == SHOAL_OK && rendezvous.fd >= 0) {
        client_keep(world->client, /*rank=*/0, rendezvous.fd);
    } else if (rendezvous.fd >= 0) {
        (void)close(rendezvous.fd);
    }
    if (status != SHOAL_OK && status != SHOAL_ERR_TIMEOUT && world->rank == 0 && world->n_ranks > 1) {
        keep_error_and_linger(world, status);
    }
    return status;
}

shoal_status startup_with_peers(struct shoal_world *world, const struct startup_plan *plan)
{
    int64_t deadline_ns = clock_deadline_after(world->startup_timeout_s);
    bool has_meeting_name = !plan->exchange && world->n_ranks > 1;
    struct card card;
    TRY(card_create(world->rank, world->n_ranks, world->transport ? world->transport->name : "", &card));
    struct card *cards = NULL;
    shoal_status status = create_servers(world, &card, &cards);
    if (status == SHOAL_OK) {
        status = start_server(world, has_meeting_name);
    }
    if (status != SHOAL_OK) {
        if (plan->exchange) {
            exchange_failure(plan, &card, status);
        }
        return status;
    }
    char name[SOCKET_NAME_BYTES];
    if (plan->exchange) {
        TRY(rendezvous_exchange(plan->exchange, plan->exchange_context, &card, cards));
        card_server_name(&cards[0], name);
    } else if (has_meeting_name) {
        rendezvous_name(plan->key, name);
    } else {
        card_server_name(&card, name);
    }
    TRY(meet(world, name, &card, deadline_ns, has_meeting_name, cards));
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
    start_mpi_end(world);
    regions_free(world->regions);
    store_free(world->store);
    client_free(world->client);
    server_free(world->server);
    /* After the server, which tells it of failures. */
    groups_free(world->groups);
    members_free(world->members);
    /* After the server, which hands out its descriptor. */
    members_free(world->page);
}
