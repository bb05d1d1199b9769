/* SPDX-License-Identifier: MIT */
/*
 * A connection on which both ends send short frames at any time. A watch (bootstrap/alive/watch.h) has one with each rank on
 * another host. It has no lock, and nothing here waits.
 */
#ifndef BOOTSTRAP_NET_LINK_H
#define BOOTSTRAP_NET_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "bootstrap/net/connection.h"
#include "bootstrap/net/socket.h"

/* Room for the name and the text of a failure. Frames that claim to be longer are refused. */
#define LINK_PAYLOAD_BYTES_MAX ((size_t)CONNECTION_SMALL_BYTES + ERROR_TEXT_BYTES)

struct link {
    int fd; /* -1 if there is none */
    /* The frame that is being received. */
    struct frame_header header;
    size_t header_have;
    char *payload;
    size_t payload_have;
    /* What the socket has not taken yet; NULL if there is nothing. */
    char *output;
    size_t output_capacity;
    size_t output_bytes;
    size_t output_sent;
    bool is_ending; /* link_end was called: nothing more is sent */
};

void link_open(struct link *link, int fd);
/* Closes the connection and frees the link's memory. A link without a connection is allowed. */
void link_close(struct link *link);

/*
 * Reads what has arrived. SOCKET_DONE: a whole frame is in header and payload until link_forget; a zero byte, which is
 * not counted, follows the payload. SOCKET_GONE: the connection has ended, or what came is not a frame.
 */
enum socket_result link_read(struct link *link);
void link_forget(struct link *link);

/* Sends a frame, what the socket does not take now with link_flush. If there is no memory, the frame is lost.
   `number` goes into the header. */
void link_send(struct link *link, uint32_t op, int32_t number, const void *payload, size_t bytes);
/* Whether link_flush has something to send when the socket can be written to. */
bool link_has_output(const struct link *link);
void link_flush(struct link *link);
/* Ends this side: the other end reads an end of file after everything that was sent. */
void link_end(struct link *link);

#endif
