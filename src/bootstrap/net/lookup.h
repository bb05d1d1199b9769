/* SPDX-License-Identifier: MIT */
/* Addresses from texts; names of hosts are looked up, with a deadline. */
#ifndef BOOTSTRAP_NET_LOOKUP_H
#define BOOTSTRAP_NET_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#include "bootstrap/net/address.h"
#include "shoal/status.h"

/*
 * "host:port", "10.0.0.1:29500", "[::1]:29500". `name` is the variable that the text comes from, for errors.
 * SHOAL_ERR_INVALID: it is no such text, or there is no such host; SHOAL_ERR_TIMEOUT: the resolver has not answered by
 * the deadline. Any thread.
 */
shoal_status lookup_address(const char *name, const char *text, int64_t deadline_ns,
                            struct address *address_out);
/* Whether the host in a text that lookup_address has accepted is a name. */
bool lookup_is_by_name(const char *text);

#endif
