/* SPDX-License-Identifier: MIT */
/* The calls that move bytes and wait for them, and the transport's name. Tests build the module with others:
   SOCKET_SYSTEM is their header. */
#ifndef SOCKET_SYSTEM_H
#define SOCKET_SYSTEM_H

#ifdef SOCKET_SYSTEM
#include SOCKET_SYSTEM
#else

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define SOCKET_NAME "socket"

/* As sendmsg and recv: -1 and errno, 0 at the end of what the peer sends, otherwise bytes, perhaps fewer. */
static inline ssize_t system_send(int fd, struct iovec *parts, size_t n_parts)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = n_parts};
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static inline ssize_t system_receive(int fd, void *buffer, size_t bytes)
{
    return recv(fd, buffer, bytes, MSG_DONTWAIT);
}

/* Until something can be done on a poll set, or so many ms have passed. */
static inline void system_wait(int poll_fd, int ms)
{
    struct epoll_event event;
    (void)epoll_wait(poll_fd, &event, 1, ms);
}

#endif

#endif
