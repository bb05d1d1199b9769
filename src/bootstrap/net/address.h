/* SPDX-License-Identifier: MIT */
/* Network addresses, as plain bytes that ranks can send to each other, and the choice of this rank's own address. */
#ifndef BOOTSTRAP_NET_ADDRESS_H
#define BOOTSTRAP_NET_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "shoal/status.h"

/* "[fe80::1%2]:65535" */
#define ADDRESS_TEXT_BYTES 80

struct address {
    unsigned char bytes[16]; /* in the network's order; IPv4: the first four */
    uint32_t scope;          /* IPv6: the scope id */
    uint16_t family;         /* 4 or 6; 0 if there is none */
    uint16_t port;
};

bool address_is_known(const struct address *address);
bool address_is_loopback(const struct address *address);
/* What a server binds to for all addresses of this machine. Family 6 covers IPv4 too (bootstrap/net/tcp.c), 4 only IPv4. */
struct address address_any(int family, uint16_t port);

/* The text without the port, and with it. Both return `text`. */
const char *address_host(const struct address *address, char text[ADDRESS_TEXT_BYTES]);
const char *address_text(const struct address *address, char text[ADDRESS_TEXT_BYTES]);

/* Convert to and from the system's form. The first returns the length. The family of the second is 0 if it is
   neither IPv4 nor IPv6. */
socklen_t address_to_system(const struct address *address, struct sockaddr_storage *system);
struct address address_from_system(const struct sockaddr_storage *system);

/*
 * Chooses the address at which this rank can be reached, without a port. The first of these that there is:
 *   - `wanted`, an address or the name of an interface, unless it is ""; a wrong one is an error;
 *   - the address from which this rank reaches `peer` (unless that is unknown);
 *   - the address of the default route;
 *   - that of the first interface that is up and is not the loopback, those with a carrier first;
 *   - the loopback.
 */
shoal_status address_choose(const char *wanted, const struct address *peer, struct address *address_out);

/* Writes the name of the interface that has the address, or "unknown". */
#define ADDRESS_INTERFACE_BYTES 32
const char *address_interface(const struct address *address, char name[ADDRESS_INTERFACE_BYTES]);

#endif
