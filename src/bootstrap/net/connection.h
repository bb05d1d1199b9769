/* SPDX-License-Identifier: MIT */
/*
 * One client of a server: the request that is being received, and the part of the answer that is still to be sent. Only
 * the server's thread uses it. Nothing here waits.
 */
#ifndef BOOTSTRAP_NET_CONNECTION_H
#define BOOTSTRAP_NET_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/net/socket.h"
#include "shoal/status.h"

/* Requests up to this size need no memory of their own. */
#define CONNECTION_SMALL_BYTES 1024

struct connection {
    struct connection *next;
    int fd;         /* -1 if it was handed to the watch */
    bool is_remote; /* over TCP: descriptors cannot be passed */
    /* The request that is being received, or waits for its answer. */
    struct frame_header header;
    size_t header_have;
    char *payload; /* `small`, or allocated */
    size_t payload_have;
    char small[CONNECTION_SMALL_BYTES];
    /* The part of an answer that the socket has not taken yet; NULL if there is none. */
    char *output;
    size_t output_bytes;
    size_t output_sent;
    bool is_waiting; /* the request is answered later */
    int64_t wait_since_ns;
    int64_t wait_until_ns;
    int joined_rank; /* the rank that joined the meeting over this connection; -1 if there is none */
    bool is_over;    /* to be closed when everything was sent */
    bool is_broken;  /* to be closed now */
};

/* Whether the next request may be read: no answer is pending, and the connection is not about to be closed. */
bool connection_may_read(const struct connection *connection);
/* Reads what has arrived of one request. Returns true if it is complete. */
bool connection_read_request(struct connection *connection);

/* Gets ready for the next request without an answer to this one. */
void connection_forget_request(struct connection *connection);

/* Sends an answer. What the socket does not take now is sent later. `fd` goes along unless it is -1, and is only
   lent. */
void connection_answer(struct connection *connection, shoal_status status, const void *payload, size_t bytes,
                       int fd);
/* Answers with a failure and the thread's error text. */
void connection_fail(struct connection *connection, shoal_status status);

/* Sends more of what the socket did not take before. */
void connection_send_output(struct connection *connection);

/* Closes the descriptor and frees the connection. */
void connection_close(struct connection *connection);

#endif
