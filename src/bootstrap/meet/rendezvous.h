/* SPDX-License-Identifier: MIT */
/*
 * How a rank takes part in the meeting at start-up, which rank 0's server keeps: docs/design/startup.md.
 *
 *   enter      finds rank 0's server, shows it the rank's card, and gets the page of the rank's host
 *   complete   says that the rank is on the page; returns, with all cards, when every rank is. In a world on several
 *              hosts it is called again once the rank is connected with those on other hosts, and returns when all are
 *   give_up    instead of complete: all ranks are told why
 *
 * If the application exchanges the cards itself, the same follows with the server that rank 0's card names.
 */
#ifndef BOOTSTRAP_MEET_RENDEZVOUS_H
#define BOOTSTRAP_MEET_RENDEZVOUS_H

#include <stdint.h>

#include "bootstrap/net/card.h"
#include "bootstrap/net/proof.h"
#include "bootstrap/net/socket.h"
#include "shoal/status.h"
#include "shoal/world.h"

struct server;

struct rendezvous {
    const struct card *card; /* this rank's */
    /* Where the ranks meet on rank 0's host; NULL if they meet only at the address. */
    const char *name;
    struct address address; /* where they meet on the network; unknown if they do not */
    struct proof_key key;   /* the secret for the address */
    int64_t deadline_ns;
    /* On rank 0: its server, not started yet; NULL if the server hosts the meeting already. */
    struct server *host;
    int page_fd; /* of the page that this rank has made; -1 if there is none */
    int fd;      /* the connection to rank 0's server; -1 if there is none. The caller closes it. */
    bool is_tcp; /* that connection is over TCP */
    /* For the second time to complete: what this rank crosses hosts with, and why not with another; NULL or "" if there
       is nothing to say. */
    const char *crossing;
    const char *crossing_why;
};

/* Makes the name under which the ranks of a job of this user meet. */
void rendezvous_name(const char *key, char name[SOCKET_NAME_BYTES]);

/* Exchanges the cards of all ranks by a function of the application, and checks them. */
shoal_status rendezvous_exchange(shoal_exchange exchange, void *context, const struct card *card,
                                 struct card *cards_out);

shoal_status rendezvous_enter(struct rendezvous *rendezvous, int *page_fd_out);

/* `liveness` is asked whether rank 0 still lives; cards_out has room for all. It is NULL the second time, on several
   hosts. */
shoal_status rendezvous_complete(struct rendezvous *rendezvous, shoal_status (*liveness)(void *context),
                                 void *liveness_context, struct card *cards_out);

/* The reason is the thread's error text. */
void rendezvous_give_up(struct rendezvous *rendezvous, shoal_status status);

#endif
