/* SPDX-License-Identifier: MIT */
/* One client of a server: reads its requests and writes the answers, without waiting. */
#include "bootstrap/net/connection.h"

#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"

/* Answering --------------------------------------------------------------------------------------------- */

static void free_payload(struct connection *connection)
{
    if (connection->payload != connection->small) {
        mem_free(connection->payload);
    }
    connection->payload = NULL;
}

void connection_close(struct connection *connection)
{
    if (connection->fd >= 0) {
        (void)close(connection->fd);
    }
    free_payload(connection);
    mem_free(connection->output);
    mem_free(connection);
}

/* Keeps what the socket did not take at once. */
static void keep_output(struct connection *connection, const struct iovec *parts, size_t n_parts, size_t sent)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n_parts; i++) {
        bytes += parts[i].iov_len;
    }
    if (sent == bytes) {
        return;
    }
    connection->output = mem_alloc(bytes);
    if (!connection->output) {
        connection->is_broken = true;
        return;
    }
    size_t used = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].iov_len > 0) {
            memcpy(connection->output + used, parts[i].iov_base, parts[i].iov_len);
            used += parts[i].iov_len;
        }
    }
    connection->output_bytes = bytes;
    connection->output_sent = sent;
}

void connection_forget_request(struct connection *connection)
{
    free_payload(connection);
    connection->header_have = 0;
    connection->payload_have = 0;
    connection->is_waiting = false;
}

void connection_answer(struct connection *connection, shoal_status status, const void *payload, size_t bytes,
                       int fd)
{
    struct frame_header header = {
        .magic = FRAME_MAGIC, .op = connection->header.op, .status = status, .bytes = (uint32_t)bytes};
    const struct iovec parts[2] = {{.iov_base = &header, .iov_len = sizeof header},
                                   {.iov_base = (void *)(uintptr_t)payload, .iov_len = bytes}};
    size_t sent = 0;
    /* If an answer is still to be sent, the client did not wait for it: the connection is given up. */
    enum socket_result result =
        connection->output ? SOCKET_GONE : socket_write_now(connection->fd, parts, 2, fd, &sent);
    /* A descriptor is only lent, so it cannot be kept to be sent later. Nothing else is in this socket's buffer, so
       there should be room for it. */
    if (result == SOCKET_GONE || (result == SOCKET_LATER && fd >= 0)) {
        connection->is_broken = true;
    } else {
        keep_output(connection, parts, 2, sent);
    }
    connection_forget_request(connection);
}

void connection_fail(struct connection *connection, shoal_status status)
{
    const char *text = shoal_error_text();
    connection_answer(connection, status, text, strlen(text), /*fd=*/-1);
}

void connection_send_output(struct connection *connection)
{
    const struct iovec part = {.iov_base = connection->output + connection->output_sent,
                               .iov_len = connection->output_bytes - connection->output_sent};
    size_t sent = 0;
    if (socket_write_now(connection->fd, &part, 1, /*passed_fd=*/-1, &sent) == SOCKET_GONE) {
        connection->is_broken = true;
        return;
    }
    connection->output_sent += sent;
    if (connection->output_sent == connection->output_bytes) {
        mem_free(connection->output);
        connection->output = NULL;
    }
}

/* Reading ----------------------------------------------------------------------------------------------- */

/* The header has arrived: makes room for the payload. */
static void begin_payload(struct connection *connection)
{
    const struct frame_header *header = &connection->header;
    if (!frame_header_is_good(header)) {
        LOG(SHOAL_LOG_WARN, "the connection of process %d was closed, because it sent no valid request",
            socket_peer_pid(connection->fd));
        connection->is_broken = true;
        return;
    }
    connection->payload =
        header->bytes < CONNECTION_SMALL_BYTES ? connection->small : mem_alloc((size_t)header->bytes + 1);
    if (!connection->payload) {
        /* The payload cannot be read, so what follows it cannot be found either. */
        connection_fail(connection, SHOAL_ERR_NO_MEMORY);
        connection->is_over = true;
    }
}

bool connection_read_request(struct connection *connection)
{
    size_t received = 0;
    while (connection->header_have < sizeof connection->header) {
        enum socket_result result =
            socket_read_now(connection->fd, (char *)&connection->header + connection->header_have,
                            sizeof connection->header - connection->header_have, &received);
        if (result != SOCKET_DONE) {
            connection->is_broken = result == SOCKET_GONE;
            return false;
        }
        connection->header_have += received;
        if (connection->header_have == sizeof connection->header) {
            begin_payload(connection);
        }
    }
    if (connection->is_broken || connection->is_over) {
        return false;
    }
    while (connection->payload_have < connection->header.bytes) {
        enum socket_result result =
            socket_read_now(connection->fd, connection->payload + connection->payload_have,
                            connection->header.bytes - connection->payload_have, &received);
        if (result != SOCKET_DONE) {
            connection->is_broken = result == SOCKET_GONE;
            return false;
        }
        connection->payload_have += received;
    }
    connection->payload[connection->header.bytes] = '\0';
    return true;
}

bool connection_may_read(const struct connection *connection)
{
    return !connection->output && !connection->is_waiting && !connection->is_over && !connection->is_broken;
}
