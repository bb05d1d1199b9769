/* SPDX-License-Identifier: MIT */
/* What the server's loop (server.c) and its answers (answers.c) both know. Used by the server's thread alone. */
#ifndef COMM_CONNECTION_H
#define COMM_CONNECTION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/card.h"
#include "comm/entries.h"
#include "comm/socket.h"

/* Requests up to this size need no memory of their own. */
#define CONNECTION_SMALL_BYTES 1024

struct connection {
    struct connection *next;
    int fd;
    /* The request that is coming in, or waits for its answer. */
    struct frame_header header;
    size_t header_have;
    char *payload; /* `small`, or its own memory */
    size_t payload_have;
    char small[CONNECTION_SMALL_BYTES];
    /* What of an answer the socket would not take yet. */
    char *output;
    size_t output_bytes;
    size_t output_sent;
    bool is_waiting; /* its request is answered later */
    int64_t wait_since_ns;
    int64_t wait_until_ns;
    int joined_rank; /* -1: none */
    bool is_over;    /* to be closed, once nothing is to be sent */
    bool is_broken;  /* to be closed */
};

struct server {
    struct card card;
    int listener;
    int meeting_listener; /* -1: none, or over */
    int wake;             /* eventfd: the end */
    int page_fd;
    struct meeting *meeting;
    _Atomic uint32_t n_joins; /* how many have come to it, whatever they were told; read by other threads */
    struct entries values;
    struct entries segments;
    struct connection *connections;
    size_t n_connections;
    struct pollfd *polled;
    size_t polled_capacity;
    int64_t deaf_until_ns; /* no descriptors left: nobody is accepted until then */
    pthread_t thread;
    bool is_running;
};

/* Sends an answer; what does not fit now goes later. `fd` is only lent. */
void connection_answer(struct connection *connection, shoal_status status, const void *payload, size_t bytes,
                       int fd);
/* The thread's error text as an answer. */
void connection_fail(struct connection *connection, shoal_status status);

/* The request is complete: answers it, or leaves it waiting. */
void answer_request(struct server *server, struct connection *connection);

/* The time of a waiting request is over. */
void answer_too_late(struct server *server, struct connection *connection);

/* A connection is about to be closed. */
void answer_loss(struct server *server, struct connection *connection);

#endif
