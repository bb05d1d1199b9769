/* SPDX-License-Identifier: MIT */
/* Requests to a server (requests.def): making one, sending it over a connection, and getting the answer. */
#ifndef BOOTSTRAP_NET_REQUEST_H
#define BOOTSTRAP_NET_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "bootstrap/net/requests.h"
#include "bootstrap/net/socket.h"
#include "shoal/status.h"

#define REQUEST_FIELDS_MAX 3

/* Memory that is added must stay valid until request_perform has returned. */
struct request {
    enum request_number op;
    bool was_answered; /* set by request_perform: the server has answered, perhaps with a failure */
    size_t n_parts;
    size_t n_fields;
    struct iovec parts[2 * REQUEST_FIELDS_MAX];
    union {
        int64_t number;
        uint32_t length;
    } fields[REQUEST_FIELDS_MAX];
};

void request_add_number(struct request *request, int64_t number);
/* Adds a field of bytes, with its length in front. */
void request_add_bytes(struct request *request, const void *bytes, size_t n_bytes);
/* Adds several fields that the caller has encoded already. */
void request_add_raw(struct request *request, const void *bytes, size_t n_bytes);

/*
 * Sends the request and waits for the answer. If the server answered with a failure, its status and text are returned,
 * and the connection can be used again unless the status is SHOAL_ERR_NO_MEMORY. After any other failure it cannot.
 */
shoal_status request_perform(int fd, struct request *request, const struct socket_wait *wait,
                             struct frame *frame_out);

#endif
