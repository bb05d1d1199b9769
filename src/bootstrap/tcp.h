/* SPDX-License-Identifier: MIT */
/* TCP sockets: the way between ranks on different hosts. Closed on exec, and never blocking by themselves. */
#ifndef BOOTSTRAP_TCP_H
#define BOOTSTRAP_TCP_H

#include <stdint.h>

#include "bootstrap/address.h"
#include "bootstrap/proof.h"
#include "shoal/status.h"

struct socket_wait;

/* Listens; port 0 becomes one that is free, in *address. SHOAL_ERR_STATE when somebody has the port already. */
shoal_status tcp_listen(struct address *address, int *fd_out);

/* The next one that wants in, whoever it is; *fd_out is -1 when there is none. */
shoal_status tcp_accept(int listener, int *fd_out);

/*
 * One attempt to connect, and the first bytes (bootstrap/hello.h). *fd_out is -1 when nobody listens there, or the
 * connection ended: the error text says how it was. Other failures will not go away by themselves.
 */
shoal_status tcp_connect(const struct address *address, const struct proof_key *key,
                         const struct socket_wait *wait, int *fd_out);

#endif
