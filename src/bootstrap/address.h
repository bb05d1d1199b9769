/* SPDX-License-Identifier: MIT */
/* Network addresses, as plain bytes that ranks can send to each other, and the choice of this rank's own address. */
#ifndef BOOTSTRAP_ADDRESS_H
#define BOOTSTRAP_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "shoal/status.h"

/* "[fe80::1%2]:65535" */
#define ADDRESS_TEXT_BYTES 80

struct address {
    unsigned char bytes[16]; /* in the network's order; IPv4: the first four */
    uint32_t scope;          /* of IPv6 */
    uint16_t family;         /* 4 or 6; 0: none */
    uint16_t port;
};

bool address_is_known(const struct address *address);
bool address_is_loopback(const struct address *address);
/* All addresses of this machine, of IPv6 or of both; or of IPv4 only. */
struct address address_any(int family, uint16_t port);

/* The text without the port, and with it. Both return `text`. */
const char *address_host(const struct address *address, char text[ADDRESS_TEXT_BYTES]);
const char *address_text(const struct address *address, char text[ADDRESS_TEXT_BYTES]);

/* For the system's calls; returns its length. The other way, 0 is an address of another family. */
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

/* The name of the interface that has the address; "unknown" if none has it. */
#define ADDRESS_INTERFACE_BYTES 32
const char *address_interface(const struct address *address, char name[ADDRESS_INTERFACE_BYTES]);

#endif
