/* SPDX-License-Identifier: MIT */
/* TCP sockets, which connect ranks on different hosts. They are closed on exec and never block. */
#ifndef BOOTSTRAP_NET_TCP_H
#define BOOTSTRAP_NET_TCP_H

#include <stdint.h>

#include "bootstrap/net/address.h"
#include "bootstrap/net/proof.h"
#include "shoal/status.h"

struct socket_wait;

/* Listens at the address. Port 0 becomes a free one, which *address has afterwards. SHOAL_ERR_STATE: the port is
   taken. */
shoal_status tcp_listen(struct address *address, int *fd_out);

/* Accepts the next connection, whoever made it. *fd_out is -1 if there is none. */
shoal_status tcp_accept(int listener, int *fd_out);

/*
 * Makes one attempt to connect, including the handshake (bootstrap/net/hello.h). *fd_out is -1 when nobody listens there,
 * or when the connection ended; the error text says which, and the caller may try again. Other failures are permanent.
 */
shoal_status tcp_connect(const struct address *address, const struct proof_key *key,
                         const struct socket_wait *wait, int *fd_out);

#endif
