/* SPDX-License-Identifier: MIT */
/* Frames in both directions on one connection, without waiting. */
#include "bootstrap/net/link.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"

void link_open(struct link *link, int fd)
{
    *link = (struct link){.fd = fd};
}

void link_close(struct link *link)
{
    if (link->fd >= 0) {
        (void)close(link->fd);
    }
    mem_free(link->payload);
    mem_free(link->output);
    *link = (struct link){.fd = -1};
}

/* Reading ----------------------------------------------------------------------------------------------- */

/* Reads as socket_read_now does, until there are `bytes` in all. */
static enum socket_result fill(struct link *link, void *to, size_t bytes, size_t *have)
{
    while (*have < bytes) {
        size_t received = 0;
        enum socket_result result = socket_read_now(link->fd, (char *)to + *have, bytes - *have, &received);
        if (result != SOCKET_DONE) {
            return result;
        }
        *have += received;
    }
    return SOCKET_DONE;
}

enum socket_result link_read(struct link *link)
{
    enum socket_result result = fill(link, &link->header, sizeof link->header, &link->header_have);
    if (result != SOCKET_DONE) {
        return result;
    }
    if (link->header.magic != FRAME_MAGIC || link->header.bytes > LINK_PAYLOAD_BYTES_MAX) {
        return SOCKET_GONE;
    }
    if (!link->payload) {
        link->payload = mem_alloc((size_t)link->header.bytes + 1);
        if (!link->payload) {
            return SOCKET_LATER;
        }
        link->payload[link->header.bytes] = '\0';
    }
    return fill(link, link->payload, link->header.bytes, &link->payload_have);
}

void link_forget(struct link *link)
{
    mem_free(link->payload);
    link->payload = NULL;
    link->header_have = 0;
    link->payload_have = 0;
}

/* Sending ----------------------------------------------------------------------------------------------- */

bool link_has_output(const struct link *link)
{
    return link->output_sent < link->output_bytes;
}

void link_flush(struct link *link)
{
    while (link->fd >= 0 && link_has_output(link)) {
        const struct iovec part = {.iov_base = link->output + link->output_sent,
                                   .iov_len = link->output_bytes - link->output_sent};
        size_t sent = 0;
        /* If the connection has ended, link_read finds out. */
        if (socket_write_now(link->fd, &part, 1, /*passed_fd=*/-1, &sent) != SOCKET_DONE) {
            return;
        }
        link->output_sent += sent;
    }
    link->output_bytes = 0;
    link->output_sent = 0;
    if (link->is_ending && link->fd >= 0) {
        (void)shutdown(link->fd, SHUT_WR);
    }
}

static void append(struct link *link, const void *bytes, size_t n_bytes)
{
    if (n_bytes > 0) {
        memcpy(link->output + link->output_bytes, bytes, n_bytes);
        link->output_bytes += n_bytes;
    }
}

void link_send(struct link *link, uint32_t op, int32_t number, const void *payload, size_t bytes)
{
    const struct frame_header header = {
        .magic = FRAME_MAGIC, .op = op, .status = number, .bytes = (uint32_t)bytes};
    if (link->fd < 0 || link->is_ending || bytes > LINK_PAYLOAD_BYTES_MAX ||
        mem_grow((void **)&link->output, &link->output_capacity, link->output_bytes + sizeof header + bytes,
                 1) != SHOAL_OK) {
        return;
    }
    append(link, &header, sizeof header);
    append(link, payload, bytes);
    link_flush(link);
}

void link_end(struct link *link)
{
    if (!link->is_ending) {
        link->is_ending = true;
        link_flush(link);
    }
}
