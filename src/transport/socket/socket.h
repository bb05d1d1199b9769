/* SPDX-License-Identifier: MIT */
/*
 * An endpoint over TCP: one connection between every two ranks of a world, made when the world is opened. A module
 * (transport/module.h): it uses nothing of the library but the services that it is given.
 */
#ifndef SOCKET_SOCKET_H
#define SOCKET_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/message/endpoint.h"
#include "transport/module.h"

#define SOCKET_TEXT_BYTES 200

/* What a message begins with on the wire. */
struct wire_head {
    uint32_t magic;
    uint32_t bytes;
};

struct connection {
    int fd;          /* -1 if there is none, or it has failed */
    int poll_fd;     /* the endpoint's */
    uint32_t events; /* that are polled for; 0 if it is not in the poll set */
    bool has_failed;
    char text[SOCKET_TEXT_BYTES];
    struct endpoint_message *sending; /* the first is on its way */
    struct endpoint_message *last_sending;
    struct wire_head sent_head;
    size_t sent_head_bytes;
    struct endpoint_message *receiving;
    struct endpoint_message *last_receiving;
    struct wire_head received_head;
    size_t received_head_bytes;
};

struct endpoint {
    const struct transport_world *world;
    int poll_fd;                    /* of all connections, and of the bell */
    int bell_fd;                    /* what wake writes to */
    struct connection *connections; /* by rank */
};

/* services.c: the library's, set once. */
extern const struct transport_services *socket_services;

/* meet.c: connects this rank with every other one. */
shoal_status socket_meet(struct endpoint *endpoint, int64_t deadline_ns);

/* endpoint.c */
extern const struct endpoint_kind socket_kind;

#endif
