/* SPDX-License-Identifier: MIT */
/*
 * A rank's server: a thread that answers on a socket, whatever the rank itself is doing. It keeps a table of keys and
 * values, segments by name, and on rank 0 the meeting of start-up. It passes failures that other ranks report on to a
 * listener. Its requests are the rows of requests.def.
 *
 * It trusts nobody: a client that sends anything but a request is dropped, and the others do not notice.
 */
#ifndef BOOTSTRAP_SERVER_SERVER_H
#define BOOTSTRAP_SERVER_SERVER_H

#include "bootstrap/net/card.h"
#include "shoal/status.h"

struct proof_key;
struct server;
struct watch;

/* Listens under the name of the card. Requests are answered after server_start. */
shoal_status server_create(const struct card *card, struct server **server_out);

/*
 * Call before server_start. Makes this server host the meeting of all ranks, and also listen under `name` (if that is
 * NULL, only under its own name). Ranks that join get the descriptor page_fd, which stays the caller's and outlives the
 * server. SHOAL_ERR_STATE when somebody has the name already.
 */
shoal_status server_host_meeting(struct server *server, const char *name, int page_fd);

/*
 * Call before server_start. Makes the server also listen on the network; it takes the listener. Clients there must
 * prove that they know the card's token. The page is for ranks of the same host, and stays the caller's. Connections of
 * ranks on other hosts are handed to `watch`.
 */
shoal_status server_open_network(struct server *server, int listener, int page_fd, struct watch *watch);
/* Call before server_start, after server_host_meeting and server_open_network. Makes the server also listen at this
   address, for clients that know the key. SHOAL_ERR_STATE when somebody listens there already. */
shoal_status server_open_address(struct server *server, const struct address *address,
                                 const struct proof_key *key);
/* Stops listening on the network, because all ranks are on one host. */
void server_close_network(struct server *server);

/*
 * Call before server_start. Sets the function that is called on the server's thread when another rank reports a
 * failure. `name` is what both ranks know the failed object by; `text` is not empty.
 */
void server_set_hearer(struct server *server,
                       void (*hear)(void *context, const char *name, shoal_status status, const char *text),
                       void *context);

shoal_status server_start(struct server *server);

/*
 * Call after the meeting has failed. Waits a moment, but no longer than until all ranks have arrived, so that late
 * ranks are told of the failure instead of waiting for a rank 0 that is gone.
 */
void server_linger(struct server *server);

/* SHOAL_ERR_STATE if the program has closed descriptors of the server, and perhaps got others with their numbers. */
shoal_status server_check(const struct server *server);

/* Ends the thread and frees everything that the server keeps. NULL is allowed. */
void server_free(struct server *server);

#endif
