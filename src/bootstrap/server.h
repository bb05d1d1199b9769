/* SPDX-License-Identifier: MIT */
/*
 * A rank's server: a thread that answers on a socket whatever the rank itself is doing. It keeps a table of keys
 * and values, segments by name, and on rank 0 the meeting of start-up, and passes on to a listener what other ranks say
 * has failed: requests.def.
 *
 * It trusts nobody: a client that sends what is no request is dropped, the others do not notice.
 */
#ifndef BOOTSTRAP_SERVER_H
#define BOOTSTRAP_SERVER_H

#include "bootstrap/card.h"
#include "shoal/status.h"

struct proof_key;
struct server;
struct watch;

/* Listens under the card's name. Answers once it was started. */
shoal_status server_create(const struct card *card, struct server **server_out);

/*
 * Before the start: takes the meeting of all ranks, also under `name` (NULL: only under its own). The
 * descriptor is what ranks that join are given; it stays the caller's and outlives the server.
 * SHOAL_ERR_STATE when somebody has the name already.
 */
shoal_status server_host_meeting(struct server *server, const char *name, int page_fd);

/*
 * Before the start: also listens on the network, with a listener that is taken; whoever comes there knows the card's
 * token. The page is for ranks of the same host, and stays the caller's; `watch` gets connections of ranks of others.
 */
shoal_status server_open_network(struct server *server, int listener, int page_fd, struct watch *watch);
/* Before the start, of who has the meeting and is on the network: also at this address, for who knows the key.
   SHOAL_ERR_STATE when somebody listens there already. */
shoal_status server_open_address(struct server *server, const struct address *address,
                                 const struct proof_key *key);
/* All ranks are on one host: nobody comes from the network any more. */
void server_close_network(struct server *server);

/*
 * Before the start: who is told, on the server's thread, that something has failed on another rank. `name` is what both
 * ranks know it by.
 */
void server_set_hearer(struct server *server,
                       void (*hear)(void *context, const char *name, shoal_status status, const char *text),
                       void *context);

shoal_status server_start(struct server *server);

/*
 * After the meeting has failed: gives ranks that are about to come a moment to hear of it, instead of waiting for a
 * rank 0 that has gone. No longer than until all have arrived.
 */
void server_linger(struct server *server);

/* Ends the thread and everything it keeps. NULL is allowed. */
void server_free(struct server *server);

#endif
