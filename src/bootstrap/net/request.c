/* SPDX-License-Identifier: MIT */
/* Requests to servers. */
#include "bootstrap/net/request.h"

#include <assert.h>

#include "base/error.h"
#include "base/status.h"
#include "base/try.h"

static void add_part(struct request *request, const void *bytes, size_t n_bytes)
{
    assert(request->n_parts < sizeof request->parts / sizeof *request->parts);
    request->parts[request->n_parts++] =
        (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = n_bytes};
}

void request_add_number(struct request *request, int64_t number)
{
    assert(request->n_fields < REQUEST_FIELDS_MAX);
    request->fields[request->n_fields].number = number;
    add_part(request, &request->fields[request->n_fields++].number, sizeof number);
}

void request_add_bytes(struct request *request, const void *bytes, size_t n_bytes)
{
    assert(request->n_fields < REQUEST_FIELDS_MAX);
    /* socket_send_frame refuses a request that is too long. */
    request->fields[request->n_fields].length = (uint32_t)n_bytes;
    add_part(request, &request->fields[request->n_fields++].length, sizeof(uint32_t));
    add_part(request, bytes, n_bytes);
}

void request_add_raw(struct request *request, const void *bytes, size_t n_bytes)
{
    add_part(request, bytes, n_bytes);
}

shoal_status request_perform(int fd, struct request *request, const struct socket_wait *wait,
                             struct frame *frame_out)
{
    shoal_status status =
        socket_send_frame(fd, (uint32_t)request->op, request->parts, request->n_parts, wait);
    /* A server that has closed the connection may have sent the reason before. */
    if (status != SHOAL_OK && status != SHOAL_ERR_PEER) {
        return status;
    }
    struct frame frame;
    TRY(socket_receive_frame(fd, wait, &frame));
    request->was_answered = true;
    if (frame.header.status == SHOAL_OK && status == SHOAL_OK) {
        *frame_out = frame;
        return SHOAL_OK;
    }
    if (frame.header.status != SHOAL_OK) {
        status = (shoal_status)frame.header.status;
        status = error_set(status_is_known(status) ? status : SHOAL_ERR_SYSTEM, "%s",
                           frame.payload[0] ? frame.payload : "the server gave no reason");
    }
    frame_clear(&frame);
    return status;
}
