/* SPDX-License-Identifier: MIT */
/*
 * Unix sockets with abstract names (nothing in a file system, gone with the process), and frames on these and on TCP
 * sockets (bootstrap/net/tcp.h): a header, a payload, on Unix sockets perhaps a descriptor. Every socket is closed on exec
 * and never blocks by itself; the calls that wait take a deadline. Peers of another user are refused.
 */
#ifndef BOOTSTRAP_NET_SOCKET_H
#define BOOTSTRAP_NET_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct iovec;

/* Room for a name: text without the leading zero byte of the system, with a zero byte at the end. */
#define SOCKET_NAME_BYTES 64

/* Two values of the largest size and their key, or a long list of keys. */
#define FRAME_PAYLOAD_BYTES_MAX ((size_t)2 * 1024 * 1024 + 65536)

struct frame_header {
    uint32_t magic;
    uint32_t op;    /* of the request; the answer has the same */
    int32_t status; /* of the answer: shoal_status; a failure's payload is its text */
    uint32_t bytes; /* of the payload */
};

#define FRAME_MAGIC 0x314c4853u /* "SHL1" */

/* False if it cannot be the header of a frame. */
bool frame_header_is_good(const struct frame_header *header);

/* A frame that was received. */
struct frame {
    struct frame_header header;
    char *payload; /* followed by a zero byte that is not counted */
    int fd;        /* -1 if there is none */
};

/* frame.fd: a descriptor came along, but the kernel dropped it, because this process has too many. */
#define FRAME_FD_LOST (-2)

/* SHOAL_ERR_SYSTEM if the frame has no descriptor. `what` names in the text what the descriptor should be. */
shoal_status frame_check_fd(const struct frame *frame, const char *what);

/* Frees the payload and closes the descriptor, if they are still there. */
void frame_clear(struct frame *frame);

/* How long to wait, and what else ends the wait. */
struct socket_wait {
    int64_t deadline_ns;
    /* Optional, asked every WAIT_LIVENESS_NS: anything but SHOAL_OK ends the wait; it has set the text. */
    shoal_status (*liveness)(void *context);
    void *liveness_context;
    const char *what; /* for the text: "waited 2.0 s for <what>" */
};

/* SHOAL_ERR_STATE when somebody has the name already. */
shoal_status socket_listen(const char *name, int *fd_out);

/* Accepts the next connection. *fd_out is -1 if there is none, or if it was of another user. */
shoal_status socket_accept(int listener, int *fd_out);

/* Makes one attempt to connect. *fd_out is -1 if nobody listens there, or if too many connections wait to be
   accepted. */
shoal_status socket_connect(const char *name, int *fd_out);
/* socket_connect that also says which: *is_busy_out is true if somebody listens, and too many connections wait. */
shoal_status socket_try_connect(const char *name, int *fd_out, bool *is_busy_out);

/* Whether the descriptor is a socket. False for one that the program has closed, or reused for a file since. */
bool socket_is_open(int fd);

/* The process at the other end; 0 when unknown. */
int socket_peer_pid(int fd);

/*
 * Send and receive whole frames. SHOAL_ERR_PEER when the other end is gone; SHOAL_ERR_SYSTEM when what arrives is not a
 * frame, or when this process has closed the descriptor. After any failure the socket can no longer be used.
 */
shoal_status socket_send_frame(int fd, uint32_t op, const struct iovec *parts, size_t n_parts,
                               const struct socket_wait *wait);
shoal_status socket_receive_frame(int fd, const struct socket_wait *wait, struct frame *frame_out);

/* Send and receive exactly so many bytes, without a frame. Errors as for frames. */
shoal_status socket_send_bytes(int fd, const void *bytes, size_t n_bytes, const struct socket_wait *wait);
shoal_status socket_receive_bytes(int fd, void *bytes, size_t n_bytes, const struct socket_wait *wait);
/* One turn of a wait that began at start_ns for these events of poll. The caller checks whether what it waits for is
   there. */
shoal_status socket_await(int fd, short events, const struct socket_wait *wait, int64_t start_ns);

/* The result of a call that does not wait. */
enum socket_result {
    SOCKET_DONE,  /* *bytes_out bytes were moved */
    SOCKET_LATER, /* nothing can be moved now */
    SOCKET_GONE
};

enum socket_result socket_read_now(int fd, void *buffer, size_t bytes, size_t *bytes_out);
/* passed_fd goes with the first byte; -1 if there is none. */
enum socket_result socket_write_now(int fd, const struct iovec *parts, size_t n_parts, int passed_fd,
                                    size_t *bytes_out);

#endif
