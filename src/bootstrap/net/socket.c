/* SPDX-License-Identifier: MIT */
/* Abstract Unix sockets and frames on them. Waiting is done by poll, with a deadline. */
#include "bootstrap/net/socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/try.h"
#include "base/wait.h"

/* How many parts a frame has at most, besides its header. */
#define PARTS_MAX 8

bool frame_header_is_good(const struct frame_header *header)
{
    return header->magic == FRAME_MAGIC && header->bytes <= FRAME_PAYLOAD_BYTES_MAX;
}

void frame_clear(struct frame *frame)
{
    mem_free(frame->payload);
    frame->payload = NULL;
    if (frame->fd >= 0) {
        (void)close(frame->fd);
    }
    frame->fd = -1;
}

shoal_status frame_check_fd(const struct frame *frame, const char *what)
{
    if (frame->fd >= 0) {
        return SHOAL_OK;
    }
    if (frame->fd != FRAME_FD_LOST) {
        return error_set(SHOAL_ERR_SYSTEM, "%s was received without its descriptor", what);
    }
    /* The kernel does not say why it dropped a descriptor. Whether one is free can be tried. */
    int another = os_socket();
    const char *why = "the kernel dropped it, as it does with too many open files";
    if (another < 0) {
        why = error_errno_text(errno);
    } else {
        (void)close(another);
    }
    return error_set(SHOAL_ERR_SYSTEM, "the descriptor of %s could not be received: %s", what, why);
}

_Static_assert(SOCKET_NAME_BYTES <= OS_SOCKET_NAME_BYTES, "the system takes our names");

/* Names ------------------------------------------------------------------------------------------------- */

static shoal_status open_socket(int *fd_out)
{
    int fd = os_socket();
    if (fd < 0) {
        return error_set(SHOAL_ERR_SYSTEM, "a socket could not be created: %s", error_errno_text(errno));
    }
    *fd_out = fd;
    return SHOAL_OK;
}

shoal_status socket_listen(const char *name, int *fd_out)
{
    int fd = -1;
    TRY(open_socket(&fd));
    if (os_socket_listen(fd, name) != 0) {
        bool is_taken = errno == EADDRINUSE;
        shoal_status status = error_set(is_taken ? SHOAL_ERR_STATE : SHOAL_ERR_SYSTEM,
                                        "the socket name %s could not be bound: %s", name, strerror(errno));
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return SHOAL_OK;
}

/* Abstract names have no permissions, so each end checks the user of the other. */
static bool is_same_user(int fd)
{
    struct os_peer peer;
    return os_socket_peer(fd, &peer) == 0 && peer.user == (int64_t)geteuid();
}

int socket_peer_pid(int fd)
{
    struct os_peer peer;
    return os_socket_peer(fd, &peer) == 0 ? (int)peer.process : 0;
}

shoal_status socket_accept(int listener, int *fd_out)
{
    *fd_out = -1;
    int fd = os_socket_accept(listener);
    if (fd < 0) {
        bool is_nobody = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        return is_nobody ? SHOAL_OK : error_set(SHOAL_ERR_SYSTEM, "accept: %s", error_errno_text(errno));
    }
    if (!is_same_user(fd)) {
        (void)close(fd);
        return SHOAL_OK;
    }
    *fd_out = fd;
    return SHOAL_OK;
}

shoal_status socket_try_connect(const char *name, int *fd_out, bool *is_busy_out)
{
    *fd_out = -1;
    *is_busy_out = false;
    int fd = -1;
    TRY(open_socket(&fd));
    shoal_status status = SHOAL_OK;
    if (os_socket_connect(fd, name) != 0) {
        bool is_nobody = errno == ECONNREFUSED || errno == EAGAIN || errno == ENOENT || errno == ECONNRESET;
        *is_busy_out = errno == EAGAIN;
        status =
            is_nobody ? SHOAL_OK : error_set(SHOAL_ERR_SYSTEM, "connect to %s: %s", name, strerror(errno));
    } else if (!is_same_user(fd)) {
        status = error_set(SHOAL_ERR_SYSTEM, "the socket name %s is held by another user", name);
    } else {
        *fd_out = fd;
        return SHOAL_OK;
    }
    (void)close(fd);
    return status;
}

shoal_status socket_connect(const char *name, int *fd_out)
{
    bool is_busy;
    return socket_try_connect(name, fd_out, &is_busy);
}

/* Without waiting --------------------------------------------------------------------------------------- */

/* Says what a system call that moves bytes has done. `bytes` is what it returned, and errno is its error. */
static enum socket_result result_of_transfer(ssize_t bytes, size_t *bytes_out)
{
    if (bytes > 0) {
        *bytes_out = (size_t)bytes;
        return SOCKET_DONE;
    }
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM)) {
        return SOCKET_LATER;
    }
    errno = bytes == 0 ? 0 : errno; /* for fail_gone */
    return SOCKET_GONE;
}

enum socket_result socket_read_now(int fd, void *buffer, size_t bytes, size_t *bytes_out)
{
    /* Unexpected descriptors are closed by the kernel, because there is no room for them. */
    return result_of_transfer(recv(fd, buffer, bytes, MSG_DONTWAIT), bytes_out);
}

union descriptor_room {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
};

enum socket_result socket_write_now(int fd, const struct iovec *parts, size_t n_parts, int passed_fd,
                                    size_t *bytes_out)
{
    union descriptor_room control;
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = n_parts};
    if (passed_fd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &passed_fd, sizeof(int));
    }
    return result_of_transfer(sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL), bytes_out);
}

/* Reads as socket_read_now does, and takes one descriptor that came along. */
static enum socket_result read_with_fd(int fd, void *buffer, size_t bytes, size_t *bytes_out, int *fd_out)
{
    union descriptor_room control;
    struct iovec part = {.iov_base = buffer, .iov_len = bytes};
    /* Room for exactly one: the kernel closes the rest. */
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof(int))};
    enum socket_result result =
        result_of_transfer(recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC), bytes_out);
    if (result != SOCKET_DONE) {
        return result;
    }
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int))) {
        if (*fd_out >= 0) {
            (void)close(*fd_out);
        }
        memcpy(fd_out, CMSG_DATA(header), sizeof(int));
    } else if (message.msg_flags & MSG_CTRUNC && *fd_out < 0) {
        *fd_out = FRAME_FD_LOST;
    }
    return SOCKET_DONE;
}

/* Waiting ----------------------------------------------------------------------------------------------- */

/* Sleeps until the socket is ready, or about until until_ns. The caller then tries again. */
static shoal_status sleep_on_socket(int fd, short events, int64_t until_ns)
{
    struct pollfd polled = {.fd = fd, .events = events};
    int64_t left_ns = until_ns - clock_now_ns();
    left_ns = left_ns < 0 ? 0 : left_ns;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = left_ns % 1000000000};
    if (ppoll(&polled, 1, &left, NULL) < 0 && errno != EINTR) {
        return error_set(SHOAL_ERR_SYSTEM, "poll: %s", strerror(errno));
    }
    return SHOAL_OK;
}

shoal_status socket_await(int fd, short events, const struct socket_wait *wait, int64_t start_ns)
{
    int64_t now_ns = clock_now_ns();
    if (now_ns >= wait->deadline_ns) {
        return error_set(SHOAL_ERR_TIMEOUT, "waited %.1f s for %s", (double)(now_ns - start_ns) * 1e-9,
                         wait->what);
    }
    int64_t turn_ns = now_ns + WAIT_LIVENESS_NS;
    bool is_whole_turn = wait->liveness && turn_ns < wait->deadline_ns;
    TRY(sleep_on_socket(fd, events, is_whole_turn ? turn_ns : wait->deadline_ns));
    if (is_whole_turn && clock_now_ns() >= turn_ns) {
        return wait->liveness(wait->liveness_context);
    }
    return SHOAL_OK;
}

bool socket_is_open(int fd)
{
    int type;
    socklen_t bytes = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0;
}

/* Call with errno of what gave SOCKET_GONE. */
static shoal_status fail_gone(int fd, const struct socket_wait *wait)
{
    if (errno == EBADF || errno == ENOTSOCK) {
        return error_set(
            SHOAL_ERR_SYSTEM,
            "this process has closed descriptor %d, on which it waited for %s: the descriptor is the "
            "library's, not the program's",
            fd, wait->what);
    }
    return error_set(SHOAL_ERR_PEER, "the other process closed the connection while this one waited for %s",
                     wait->what);
}

/* Removes the first `bytes` from the parts. */
static void skip_bytes(struct iovec **parts, size_t *n_parts, size_t bytes)
{
    while (*n_parts > 0 && bytes >= (*parts)->iov_len) {
        bytes -= (*parts)->iov_len;
        (*parts)++;
        (*n_parts)--;
    }
    if (*n_parts > 0) {
        (*parts)->iov_base = (char *)(*parts)->iov_base + bytes;
        (*parts)->iov_len -= bytes;
    }
}

static shoal_status send_parts(int fd, struct iovec *left, size_t n_left, const struct socket_wait *wait)
{
    int64_t start_ns = clock_now_ns();
    while (n_left > 0) {
        size_t sent = 0;
        enum socket_result result = socket_write_now(fd, left, n_left, /*passed_fd=*/-1, &sent);
        if (result == SOCKET_GONE) {
            return fail_gone(fd, wait);
        }
        if (result == SOCKET_LATER) {
            TRY(socket_await(fd, POLLOUT, wait, start_ns));
        }
        skip_bytes(&left, &n_left, sent);
    }
    return SHOAL_OK;
}

shoal_status socket_send_frame(int fd, uint32_t op, const struct iovec *parts, size_t n_parts,
                               const struct socket_wait *wait)
{
    struct frame_header header = {.magic = FRAME_MAGIC, .op = op};
    struct iovec all[1 + PARTS_MAX] = {{.iov_base = &header, .iov_len = sizeof header}};
    size_t bytes = 0;
    if (n_parts > PARTS_MAX) {
        return error_set(SHOAL_ERR_INTERNAL, "a frame has %zu parts", n_parts);
    }
    for (size_t i = 0; i < n_parts; i++) {
        all[1 + i] = parts[i];
        bytes += parts[i].iov_len;
    }
    if (bytes > FRAME_PAYLOAD_BYTES_MAX) {
        return error_set(SHOAL_ERR_INVALID, "a request has %zu bytes, at most %zu expected", bytes,
                         FRAME_PAYLOAD_BYTES_MAX);
    }
    header.bytes = (uint32_t)bytes;
    return send_parts(fd, all, 1 + n_parts, wait);
}

shoal_status socket_send_bytes(int fd, const void *bytes, size_t n_bytes, const struct socket_wait *wait)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n_bytes};
    return send_parts(fd, &part, 1, wait);
}

static shoal_status receive_bytes(int fd, void *buffer, size_t bytes, const struct socket_wait *wait,
                                  int64_t start_ns, int *fd_out)
{
    char *to = buffer;
    while (bytes > 0) {
        size_t received = 0;
        enum socket_result result = read_with_fd(fd, to, bytes, &received, fd_out);
        if (result == SOCKET_GONE) {
            return fail_gone(fd, wait);
        }
        if (result == SOCKET_LATER) {
            TRY(socket_await(fd, POLLIN, wait, start_ns));
        }
        to += received;
        bytes -= received;
    }
    return SHOAL_OK;
}

shoal_status socket_receive_bytes(int fd, void *bytes, size_t n_bytes, const struct socket_wait *wait)
{
    int passed_fd = -1;
    shoal_status status = receive_bytes(fd, bytes, n_bytes, wait, clock_now_ns(), &passed_fd);
    if (passed_fd >= 0) {
        (void)close(passed_fd); /* nobody sends one here */
    }
    return status;
}

shoal_status socket_receive_frame(int fd, const struct socket_wait *wait, struct frame *frame_out)
{
    struct frame frame = {.fd = -1};
    int64_t start_ns = clock_now_ns();
    shoal_status status;
    TRY_GOTO(status, receive_bytes(fd, &frame.header, sizeof frame.header, wait, start_ns, &frame.fd), clear);
    if (!frame_header_is_good(&frame.header)) {
        status =
            error_set(SHOAL_ERR_SYSTEM, "an invalid answer was received while waiting for %s", wait->what);
        goto clear;
    }
    frame.payload = mem_alloc((size_t)frame.header.bytes + 1);
    if (!frame.payload) {
        status = SHOAL_ERR_NO_MEMORY;
        goto clear;
    }
    frame.payload[frame.header.bytes] = '\0';
    TRY_GOTO(status, receive_bytes(fd, frame.payload, frame.header.bytes, wait, start_ns, &frame.fd), clear);
    *frame_out = frame;
    return SHOAL_OK;

clear:
    frame_clear(&frame);
    return status;
}
