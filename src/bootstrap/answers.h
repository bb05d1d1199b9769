/* SPDX-License-Identifier: MIT */
/* What a server keeps, and how it answers from that (answers.c). Used by the server's thread (server.c) alone. */
#ifndef BOOTSTRAP_ANSWERS_H
#define BOOTSTRAP_ANSWERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/card.h"
#include "bootstrap/connection.h"
#include "bootstrap/entries.h"

struct server {
    struct card card;
    int listener;
    int meeting_listener;        /* -1: none, or over */
    int wake;                    /* eventfd: the end */
    int page_fd;                 /* of this rank's page; -1: it has none */
    struct strangers *strangers; /* the network; NULL: it is on its host only */
    struct watch *watch;         /* who connects to it to be watched; NULL: nobody */
    struct meeting *meeting;
    _Atomic uint32_t n_joins; /* how many have come to it, whatever they were told; read by other threads */
    /* Told of what has failed elsewhere; NULL: nobody. */
    void (*hear)(void *context, const char *name, shoal_status status, const char *text);
    void *hear_context;
    struct entries values;
    struct entries segments;
    struct connection *connections;
    size_t n_connections;
    struct pollfd *polled;
    size_t polled_capacity;
    int64_t deaf_since_ns; /* no descriptors left */
    int64_t deaf_until_ns; /* nobody is accepted until then */
    int spare; /* closed to accept, and refuse, somebody without a descriptor left; -1: none now */
    pthread_t thread;
    bool is_running;
};

/* The request is complete: answers it, or leaves it waiting. */
void answer_request(struct server *server, struct connection *connection);

/* The time of a waiting request is over. */
void answer_too_late(struct server *server, struct connection *connection);

/* A connection is about to be closed. */
void answer_loss(struct server *server, struct connection *connection);

#endif
