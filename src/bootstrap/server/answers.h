/* SPDX-License-Identifier: MIT */
/* What a server keeps, and how it answers from that (answers.c). Used by the server's thread (server.c) alone. */
#ifndef BOOTSTRAP_SERVER_ANSWERS_H
#define BOOTSTRAP_SERVER_ANSWERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/net/card.h"
#include "bootstrap/net/connection.h"
#include "bootstrap/server/entries.h"

struct server {
    struct card card;
    int listener;
    int meeting_listener;        /* -1 if there is no meeting, or it is over */
    int wake;                    /* eventfd: set when the thread shall end */
    int page_fd;                 /* of this rank's page; -1 if it has none */
    struct strangers *strangers; /* TCP; NULL if the server can be reached on its host only */
    struct watch *watch;         /* takes connections of ranks on other hosts; NULL if there are none */
    struct meeting *meeting;
    /* Ranks that asked to join, whatever they were answered; read by other threads. */
    _Atomic uint32_t n_joins;
    /* Called when another rank reports a failure. May be NULL. */
    void (*hear)(void *context, const char *name, shoal_status status, const char *text);
    void *hear_context;
    struct entries values;
    struct entries segments;
    struct connection *connections;
    size_t n_connections;
    struct pollfd *polled;
    size_t polled_capacity;
    int64_t deaf_since_ns; /* since then there were no descriptors for connections */
    int64_t deaf_until_ns; /* until then nobody is accepted */
    /* Closed for a moment if no descriptor is left, to accept a client and refuse it; -1 if there is none now. */
    int spare;
    pthread_t thread;
    bool is_running;
    _Atomic bool must_end; /* the thread shall end, even if `wake` was closed */
};

/* Called when a request is complete: answers it, or leaves it waiting. */
void answer_request(struct server *server, struct connection *connection);

/* Called when the time of a waiting request is over. */
void answer_too_late(struct server *server, struct connection *connection);

/* Called before a connection is closed. */
void answer_loss(struct server *server, struct connection *connection);

#endif
