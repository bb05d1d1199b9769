/* SPDX-License-Identifier: MIT */
/* Asking a server: putting a request together (requests.def) and getting its answer over a connection. */
#ifndef BOOTSTRAP_REQUEST_H
#define BOOTSTRAP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "bootstrap/requests.h"
#include "bootstrap/socket.h"
#include "shoal/status.h"

#define REQUEST_FIELDS_MAX 3

/* What it is made of is borrowed until it was performed. */
struct request {
    enum request_number op;
    bool was_answered; /* by request_perform: the server has spoken, whatever it said */
    size_t n_parts;
    size_t n_fields;
    struct iovec parts[2 * REQUEST_FIELDS_MAX];
    union {
        int64_t number;
        uint32_t length;
    } fields[REQUEST_FIELDS_MAX];
};

void request_add_number(struct request *request, int64_t number);
/* With its length in front. */
void request_add_bytes(struct request *request, const void *bytes, size_t n_bytes);
/* Several fields that were put together by the caller. */
void request_add_raw(struct request *request, const void *bytes, size_t n_bytes);

/*
 * Sends the request and waits for the answer. If the server answered with a failure, its status and text are returned,
 * and the connection can be used again unless the status is SHOAL_ERR_NO_MEMORY. After any other failure it cannot.
 */
shoal_status request_perform(int fd, struct request *request, const struct socket_wait *wait,
                             struct frame *frame_out);

#endif
