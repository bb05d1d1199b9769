/* SPDX-License-Identifier: MIT */
/*
 * One client of a server: the request that is being received, and the part of the answer that is still to be sent. Only
 * the server's thread uses it. Nothing here waits.
 */
#ifndef BOOTSTRAP_CONNECTION_H
#define BOOTSTRAP_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/socket.h"
#include "shoal/status.h"

/* Requests up to this size need no memory of their own. */
#define CONNECTION_SMALL_BYTES 1024

struct connection {
    struct connection *next;
    int fd;         /* -1: it was handed on, and is broken */
    bool is_remote; /* over TCP: no descriptor goes along */
    /* The request that is coming in, or waits for its answer. */
    struct frame_header header;
    size_t header_have;
    char *payload; /* `small`, or its own memory */
    size_t payload_have;
    char small[CONNECTION_SMALL_BYTES];
    /* What of an answer the socket would not take yet. */
    char *output;
    size_t output_bytes;
    size_t output_sent;
    bool is_waiting; /* its request is answered later */
    int64_t wait_since_ns;
    int64_t wait_until_ns;
    int joined_rank; /* -1: none */
    bool is_over;    /* to be closed, once nothing is to be sent */
    bool is_broken;  /* to be closed */
};

/* Whether the next request may be read: nothing is to be sent, waited for, or over. */
bool connection_may_read(const struct connection *connection);
/* Reads what is there of one request; true when it is complete. */
bool connection_read_request(struct connection *connection);

/* Ready for the next request, without an answer. */
void connection_forget_request(struct connection *connection);

/* Sends an answer; what does not fit now goes later. `fd` is only lent. */
void connection_answer(struct connection *connection, shoal_status status, const void *payload, size_t bytes,
                       int fd);
/* The thread's error text as an answer. */
void connection_fail(struct connection *connection, shoal_status status);

/* Sends on what the socket would not take before. */
void connection_send_output(struct connection *connection);

/* Closes the descriptor and frees the connection. */
void connection_close(struct connection *connection);

#endif
