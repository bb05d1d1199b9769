/* SPDX-License-Identifier: MIT */
/* Shared memory by name: asking the server that holds it, and mapping what it hands out. */
#include "bootstrap/server/segments.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/try.h"
#include "bootstrap/net/request.h"
#include "bootstrap/server/client.h"
#include "sharedmem/segment.h"

/* How a kind of segment is asked for, made and mapped. */
struct segment_way {
    enum request_number op;
    shoal_status (*make)(const char *name, size_t bytes, int *fd_out);
    shoal_status (*map)(int fd, size_t bytes, struct segment **segment_out);
};

static const struct segment_way whole_way = {REQUEST_SEGMENT, segment_create_fd, segment_map};
static const struct segment_way sparse_way = {REQUEST_SPARSE, segment_create_sparse_fd, segment_map_sparse};

/* Memory of this rank alone, in a world without peers. */
static shoal_status open_own(const struct segment_way *way, const char *name, size_t bytes,
                             struct segment **segment_out)
{
    int fd;
    TRY(way->make(name, bytes, &fd));
    shoal_status status = way->map(fd, bytes, segment_out);
    (void)close(fd);
    return status;
}

static shoal_status open_segment(const struct segment_way *way, struct client *client, int holder,
                                 const char *name, size_t bytes, const struct client_wait *wait,
                                 struct segment **segment_out)
{
    if (!client) {
        return open_own(way, name, bytes, segment_out);
    }
    if (bytes == 0 || bytes > INT64_MAX) {
        return error_set(SHOAL_ERR_INVALID, "shared memory \"%.100s\" cannot have %zu bytes", name, bytes);
    }
    struct request request = {.op = way->op};
    request_add_bytes(&request, name, strlen(name));
    request_add_number(&request, (int64_t)bytes);
    struct frame frame;
    TRY(client_perform(client, holder, &request, wait, "shared memory", &frame));
    char what[128];
    (void)snprintf(what, sizeof what, "shared memory \"%.100s\"", name);
    shoal_status status = frame_check_fd(&frame, what);
    status = status == SHOAL_OK ? way->map(frame.fd, bytes, segment_out) : status;
    frame_clear(&frame);
    return status;
}

shoal_status segments_open(struct client *client, int holder, const char *name, size_t bytes,
                           const struct client_wait *wait, struct segment **segment_out)
{
    return open_segment(&whole_way, client, holder, name, bytes, wait, segment_out);
}

shoal_status segments_open_sparse(struct client *client, int holder, const char *name, size_t bytes,
                                  const struct client_wait *wait, struct segment **segment_out)
{
    return open_segment(&sparse_way, client, holder, name, bytes, wait, segment_out);
}

static shoal_status drop(struct client *client, int holder, enum request_number op, const char *name,
                         int64_t deadline_ns)
{
    if (!client) {
        return SHOAL_OK;
    }
    struct request request = {.op = op};
    request_add_bytes(&request, name, strlen(name));
    const struct client_wait wait = {.deadline_ns = deadline_ns};
    struct frame frame;
    TRY(client_perform(client, holder, &request, &wait, "shared memory to be dropped", &frame));
    frame_clear(&frame);
    return SHOAL_OK;
}

shoal_status segments_drop(struct client *client, int holder, const char *name, int64_t deadline_ns)
{
    return drop(client, holder, REQUEST_DROP, name, deadline_ns);
}

shoal_status segments_drop_all(struct client *client, int holder, const char *suffix, int64_t deadline_ns)
{
    return drop(client, holder, REQUEST_DROP_ALL, suffix, deadline_ns);
}
