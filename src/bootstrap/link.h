/* SPDX-License-Identifier: MIT */
/*
 * A connection on which both ends send short frames at any time. A watch (bootstrap/watch.h) has one with each rank on
 * another host. It has no lock, and nothing here waits.
 */
#ifndef BOOTSTRAP_LINK_H
#define BOOTSTRAP_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "bootstrap/connection.h"
#include "bootstrap/socket.h"

/* A name and a text of a failure; what claims to be longer is no frame of ours. */
#define LINK_PAYLOAD_BYTES_MAX ((size_t)CONNECTION_SMALL_BYTES + ERROR_TEXT_BYTES)

struct link {
    int fd; /* -1: none */
    /* What comes in. */
    struct frame_header header;
    size_t header_have;
    char *payload;
    size_t payload_have;
    /* What the socket would not take yet. */
    char *output;
    size_t output_capacity;
    size_t output_bytes;
    size_t output_sent;
    bool is_ending; /* nothing is sent after that */
};

void link_open(struct link *link, int fd);
/* Frees what it has. A link without a connection is allowed. */
void link_close(struct link *link);

/*
 * Reads what has arrived. SOCKET_DONE: a whole frame is in header and payload until link_forget; a zero byte, which is
 * not counted, follows the payload. SOCKET_GONE: the connection has ended, or what came is not a frame.
 */
enum socket_result link_read(struct link *link);
void link_forget(struct link *link);

/* Sends, at the latest when link_flush is called; without memory not at all. `number` goes in the header. */
void link_send(struct link *link, uint32_t op, int32_t number, const void *payload, size_t bytes);
/* Whether link_flush has anything to do, once the socket can be written to. */
bool link_has_output(const struct link *link);
void link_flush(struct link *link);
/* After what was sent the other end reads an end. */
void link_end(struct link *link);

#endif
