/* SPDX-License-Identifier: MIT */
/* TCP sockets of the control plane. */
#include "bootstrap/net/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/os.h"
#include "base/try.h"
#include "bootstrap/net/hello.h"
#include "bootstrap/net/socket.h"

/* Keepalive: on an idle connection, a host that is gone is noticed after about 5 + 5 * 2 s. */
#define KEEP_IDLE_S 5
#define KEEP_INTERVAL_S 2
#define KEEP_COUNT 5

static void set_option(int fd, int level, int option, int value)
{
    /* A failure is ignored: the connection works without the option. */
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

static void set_options(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_INTERVAL_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_COUNT);
}

static shoal_status open_socket(const struct sockaddr_storage *system, int *fd_out)
{
    int fd = socket(system->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return error_set(SHOAL_ERR_SYSTEM, "a socket could not be created: %s", error_errno_text(errno));
    }
    *fd_out = fd;
    return SHOAL_OK;
}

/* Listening --------------------------------------------------------------------------------------------- */

shoal_status tcp_listen(struct address *address, int *fd_out)
{
    struct sockaddr_storage system;
    socklen_t bytes = address_to_system(address, &system);
    int fd = -1;
    TRY(open_socket(&system, &fd));
    /* Connections of an earlier world may still have the port. */
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->family == 6) {
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0); /* all addresses include those of IPv4 */
    }
    if (bind(fd, (const struct sockaddr *)&system, bytes) != 0 || listen(fd, SOMAXCONN) != 0) {
        char text[ADDRESS_TEXT_BYTES];
        bool is_taken = errno == EADDRINUSE;
        shoal_status status = error_set(is_taken ? SHOAL_ERR_STATE : SHOAL_ERR_SYSTEM, "listening at %s: %s",
                                        address_text(address, text), error_errno_text(errno));
        (void)close(fd);
        return status;
    }
    bytes = sizeof system;
    if (getsockname(fd, (struct sockaddr *)&system, &bytes) != 0) {
        shoal_status status = error_set(SHOAL_ERR_SYSTEM, "getsockname failed: %s", strerror(errno));
        (void)close(fd);
        return status;
    }
    *address = address_from_system(&system);
    *fd_out = fd;
    return SHOAL_OK;
}

shoal_status tcp_accept(int listener, int *fd_out)
{
    *fd_out = -1;
    int fd = os_socket_accept(listener);
    if (fd < 0) {
        bool has_no_room = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return has_no_room ? error_set(SHOAL_ERR_SYSTEM, "accept: %s", error_errno_text(errno)) : SHOAL_OK;
    }
    set_options(fd);
    *fd_out = fd;
    return SHOAL_OK;
}

/* Connecting -------------------------------------------------------------------------------------------- */

static bool is_nobody(int error)
{
    static const int errors[] = {ECONNREFUSED, ECONNRESET, ECONNABORTED, EHOSTUNREACH, EHOSTDOWN,
                                 ENETUNREACH,  ENETDOWN,   ETIMEDOUT,    EPIPE,        EADDRNOTAVAIL};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (error == errors[i]) {
            return true;
        }
    }
    return false;
}

/* Waits until connecting has succeeded or failed. *error_out is 0 or an errno. */
static shoal_status finish_connect(int fd, const struct socket_wait *wait, int *error_out)
{
    int64_t start_ns = clock_now_ns();
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    while (poll(&polled, 1, 0) <= 0) {
        TRY(socket_await(fd, POLLOUT, wait, start_ns));
    }
    socklen_t bytes = sizeof *error_out;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, error_out, &bytes) != 0) {
        *error_out = errno;
    }
    return SHOAL_OK;
}

static shoal_status connect_socket(int fd, const struct sockaddr_storage *system, socklen_t bytes,
                                   const struct socket_wait *wait, int *error_out)
{
    *error_out = 0;
    if (connect(fd, (const struct sockaddr *)system, bytes) == 0) {
        return SHOAL_OK;
    }
    if (errno == EINPROGRESS || errno == EINTR) {
        return finish_connect(fd, wait, error_out);
    }
    *error_out = errno;
    return SHOAL_OK;
}

shoal_status tcp_connect(const struct address *address, const struct proof_key *key,
                         const struct socket_wait *wait, int *fd_out)
{
    char where[ADDRESS_TEXT_BYTES];
    struct sockaddr_storage system;
    socklen_t bytes = address_to_system(address, &system);
    int error = 0;
    int fd = -1;
    *fd_out = -1;
    (void)address_text(address, where);
    TRY(open_socket(&system, &fd));
    shoal_status status = connect_socket(fd, &system, bytes, wait, &error);
    if (status == SHOAL_OK && error != 0) {
        status = error_set(SHOAL_ERR_SYSTEM, "connecting to %s: %s", where, strerror(error));
        status = is_nobody(error) ? SHOAL_ERR_PEER : status;
    } else if (status == SHOAL_OK) {
        set_options(fd);
        status = hello_perform(fd, key, where, wait);
    }
    if (status == SHOAL_OK) {
        *fd_out = fd;
        return SHOAL_OK;
    }
    (void)close(fd);
    /* SHOAL_ERR_PEER may also be a verdict of the wait: about who is at the other end. */
    return status == SHOAL_ERR_PEER ? SHOAL_OK : status;
}
