/* SPDX-License-Identifier: MIT */
/* Ports, their queues and credit. */
#include "transport/message/router.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"

#define PORT_BUCKETS 128
#define GONE_PORTS 256

/* A port's connection with one rank. */
struct pipe {
    struct frame *first[FRAME_QUEUES];
    struct frame *last[FRAME_QUEUES];
    unsigned n_frames[FRAME_QUEUES];
    unsigned n_taken[FRAME_QUEUES]; /* whose credit was not returned yet */
    unsigned credit[FRAME_QUEUES];  /* frames that may be sent */
    unsigned n_lent;                /* payloads that the wire has not given back */
    uint32_t n_calls;
};

struct port {
    struct port *next; /* in its bucket */
    struct router *router;
    int n_ranks; /* of the world */
    struct port_id own;
    struct port_id target;
    struct doorbell *bell; /* NULL if nobody has attached */
    struct pipe **pipes;   /* by rank of the world; NULL if it is not used yet */
    bool fails_with_wire;
    bool was_not_taken; /* something that was lent */
    _Atomic bool has_failed;
    shoal_status status;
    char *text; /* NULL if there was no memory for it */
};

struct router {
    struct wire *wire;
    int rank; /* in the world */
    int n_ranks;
    struct port *buckets[PORT_BUCKETS]; /* under the wire's lock, like the rest */
    /* The last ports that were detached: what still comes for them is dropped. Any other port may be attached to later. */
    struct port_id gone[GONE_PORTS];
    size_t n_gone; /* ever; the oldest are overwritten */
    bool has_given_up;
    char reason[ERROR_TEXT_BYTES]; /* why the wire gave up */
};

/* Frames ------------------------------------------------------------------------------------------------ */

size_t router_frame_bytes(const struct router *router)
{
    return wire_frame_bytes(router->wire);
}

struct frame *router_new_frame(struct router *router, size_t bytes)
{
    wire_lock(router->wire);
    struct frame *frame = wire_new_frame(router->wire, bytes);
    wire_unlock(router->wire);
    return frame;
}

void router_free_frame(struct router *router, struct frame *frame)
{
    wire_lock(router->wire);
    wire_free_frame(router->wire, frame);
    wire_unlock(router->wire);
}

/* Ports, under the lock --------------------------------------------------------------------------------- */

struct port_id port_id_of(const char *name, const char *part, uint64_t number)
{
    struct port_id id;
    for (size_t i = 0; i < 2; i++) {
        /* With the 0 at the end, so that parts cannot run together. */
        uint64_t hash = hash_bytes(i + 1, name, strlen(name) + 1);
        hash = hash_bytes(hash, part, strlen(part) + 1);
        id.words[i] = hash_bytes(hash, &number, sizeof number);
    }
    return id;
}

static struct port **find_bucket(struct router *router, struct port_id id)
{
    return &router->buckets[id.words[0] % PORT_BUCKETS];
}

static bool is_same_id(struct port_id a, struct port_id b)
{
    return a.words[0] == b.words[0] && a.words[1] == b.words[1];
}

static struct port *find_port(struct router *router, struct port_id id)
{
    struct port *port = *find_bucket(router, id);
    while (port && !is_same_id(port->own, id)) {
        port = port->next;
    }
    return port;
}

/* The place of a port among those that are gone; NULL if it is not among them. */
static struct port_id *find_gone(struct router *router, struct port_id id)
{
    size_t n_kept = router->n_gone < GONE_PORTS ? router->n_gone : GONE_PORTS;
    for (size_t i = 0; i < n_kept; i++) {
        if (is_same_id(router->gone[i], id)) {
            return &router->gone[i];
        }
    }
    return NULL;
}

/* Whether nobody will attach to the port any more. */
static bool is_gone(struct router *router, struct port_id id)
{
    return !find_port(router, id) && find_gone(router, id);
}

/* Returns NULL if memory runs out. */
static struct port *need_port(struct router *router, struct port_id id)
{
    struct port *port = find_port(router, id);
    if (port) {
        return port;
    }
    port = mem_alloc_zeroed(1, sizeof *port);
    struct pipe **pipes = mem_alloc_zeroed((size_t)router->n_ranks, sizeof(struct pipe *));
    if (!port || !pipes) {
        mem_free(port);
        mem_free((void *)pipes);
        return NULL;
    }
    struct port **bucket = find_bucket(router, id);
    *port = (struct port){.next = *bucket,
                          .router = router,
                          .n_ranks = router->n_ranks,
                          .own = id,
                          .target = id,
                          .pipes = pipes};
    *bucket = port;
    return port;
}

static struct pipe *need_pipe(struct port *port, int rank)
{
    if (!port->pipes[rank]) {
        struct pipe *pipe = mem_alloc_zeroed(1, sizeof *pipe);
        if (!pipe) {
            return NULL;
        }
        for (int i = 0; i < FRAME_QUEUES; i++) {
            pipe->credit[i] = PIPE_CREDIT;
        }
        port->pipes[rank] = pipe;
    }
    return port->pipes[rank];
}

static void ring(struct port *port)
{
    if (port->bell) {
        doorbell_ring(port->bell);
    }
}

static void free_port(struct wire *wire, struct port *port)
{
    for (int rank = 0; rank < port->n_ranks; rank++) {
        for (int i = 0; port->pipes[rank] && i < FRAME_QUEUES; i++) {
            wire_free_frames(wire, port->pipes[rank]->first[i]);
        }
        mem_free(port->pipes[rank]);
    }
    mem_free((void *)port->pipes);
    mem_free(port->text);
    mem_free(port);
}

static void keep_reason(struct port *port, shoal_status status, const char *text)
{
    /* Relaxed: only changed under the lock. */
    if (atomic_load_explicit(&port->has_failed, memory_order_relaxed)) {
        return;
    }
    port->status = status;
    port->text = mem_copy_string(text);
    /* Release: pairs with the load in port_failure. */
    atomic_store_explicit(&port->has_failed, true, memory_order_release);
    ring(port);
}

/* What came, under the lock ----------------------------------------------------------------------------- */

static bool add_credit(struct router *router, int rank, const struct frame_head *head)
{
    struct port *port = find_port(router, head->port);
    struct pipe *pipe = port ? port->pipes[rank] : NULL;
    if (!pipe) {
        return true; /* it was detached: nobody will send */
    }
    bool is_good = head->queue < FRAME_QUEUES && head->number > 0 && head->number <= PIPE_CREDIT &&
                   pipe->credit[head->queue] + (unsigned)head->number <= PIPE_CREDIT;
    if (is_good) {
        pipe->credit[head->queue] += (unsigned)head->number;
        ring(port);
    }
    return is_good;
}

static bool hear_failure(struct router *router, int rank, const struct frame *frame)
{
    if (is_gone(router, frame->head.port)) {
        return true;
    }
    struct port *port = need_port(router, frame->head.port);
    if (!port) {
        return false;
    }
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%.*s", (int)frame->head.bytes, frame->payload);
    if (text[0] == '\0') {
        (void)snprintf(text, sizeof text, "rank %d reports a failure and no reason", rank);
    }
    shoal_status status = (shoal_status)frame->head.number;
    bool is_failure = status < SHOAL_OK && status >= SHOAL_ERR_INTERNAL; /* a peer wrote it */
    keep_reason(port, is_failure ? status : SHOAL_ERR_PEER, text);
    return true;
}

/* A short frame in memory of its own; the frame itself if there is none. */
static struct frame *shrink(struct wire *wire, struct frame *frame)
{
    if (frame->room <= FRAME_SMALL_BYTES || frame->head.bytes > FRAME_SMALL_BYTES) {
        return frame;
    }
    struct frame *small = wire_new_frame(wire, frame->head.bytes);
    if (!small) {
        return frame;
    }
    small->head = frame->head;
    memcpy(small->payload, frame->payload, frame->head.bytes);
    wire_free_frame(wire, frame);
    return small;
}

/* Returns false if memory runs out, or more came than the sender had credit for. Owns the frame if it returns true. */
static bool append(struct router *router, struct wire *wire, int rank, struct frame *frame)
{
    uint32_t queue = frame->head.type;
    if (is_gone(router, frame->head.port)) {
        wire_free_frame(wire, frame);
        return true;
    }
    struct port *port = need_port(router, frame->head.port);
    struct pipe *pipe = port ? need_pipe(port, rank) : NULL;
    if (!pipe || (queue != FRAME_CALL && pipe->n_frames[queue] >= PIPE_CREDIT)) {
        return false;
    }
    frame = shrink(wire, frame);
    frame->next = NULL;
    if (pipe->first[queue]) {
        pipe->last[queue]->next = frame;
    } else {
        pipe->first[queue] = frame;
    }
    pipe->last[queue] = frame;
    pipe->n_frames[queue]++;
    pipe->n_calls += queue == FRAME_CALL;
    ring(port);
    return true;
}

/* What the wire calls. */
static bool receive(void *context, struct wire *wire, int rank, struct frame *frame)
{
    struct router *router = context;
    if (frame->head.type < FRAME_QUEUES) {
        return append(router, wire, rank, frame);
    }
    bool is_good = frame->head.type == FRAME_CREDIT ? add_credit(router, rank, &frame->head)
                                                    : hear_failure(router, rank, frame);
    if (is_good) {
        wire_free_frame(wire, frame);
    }
    return is_good;
}

static void give_back(void *context, int rank, const struct frame *frame, bool is_taken)
{
    (void)context;
    struct port *port = frame->lender;
    port->was_not_taken = port->was_not_taken || !is_taken;
    port->pipes[rank]->n_lent--;
    if (port->pipes[rank]->n_lent == 0) {
        ring(port);
    }
}

static void lose(void *context)
{
    struct router *router = context;
    for (size_t i = 0; i < PORT_BUCKETS; i++) {
        for (struct port *port = router->buckets[i]; port; port = port->next) {
            ring(port);
        }
    }
}

static void give_up(void *context, const char *text)
{
    struct router *router = context;
    router->has_given_up = true;
    (void)snprintf(router->reason, sizeof router->reason, "%s", text);
    for (size_t i = 0; i < PORT_BUCKETS; i++) {
        for (struct port *port = router->buckets[i]; port; port = port->next) {
            if (port->fails_with_wire) {
                keep_reason(port, SHOAL_ERR_PEER, text);
            }
        }
    }
}

/* Opening and closing ----------------------------------------------------------------------------------- */

shoal_status router_open(const struct endpoint_kind *kind, const struct transport_world *world,
                         int64_t deadline_ns, struct router **router_out)
{
    struct router *router = mem_alloc_zeroed(1, sizeof *router);
    if (!router) {
        return SHOAL_ERR_NO_MEMORY;
    }
    router->rank = world->rank;
    router->n_ranks = world->n_ranks;
    struct wire_user user = {
        .context = router, .receive = receive, .give_back = give_back, .lose = lose, .give_up = give_up};
    shoal_status status = wire_open(kind, world, deadline_ns, &user, &router->wire);
    if (status != SHOAL_OK) {
        mem_free(router);
        return status;
    }
    *router_out = router;
    return SHOAL_OK;
}

void router_close(struct router *router)
{
    /* Ports that nobody has attached to. Frames that come meanwhile may make others: the thread ends first. */
    wire_stop(router->wire);
    wire_lock(router->wire);
    for (size_t i = 0; i < PORT_BUCKETS; i++) {
        while (router->buckets[i]) {
            struct port *port = router->buckets[i];
            router->buckets[i] = port->next;
            free_port(router->wire, port);
        }
    }
    wire_unlock(router->wire);
    wire_free(router->wire);
    mem_free(router);
}

void router_settle(struct router *router)
{
    wire_settle(router->wire);
}

shoal_status router_check_rank(struct router *router, int rank, int64_t *since_ns_out)
{
    return wire_check_rank(router->wire, rank, since_ns_out);
}

bool router_may_receive(struct router *router, int rank)
{
    return wire_may_receive(router->wire, rank);
}

bool router_is_polled(const struct router *router)
{
    return wire_is_polled(router->wire);
}

bool router_poll(struct router *router, bool is_driver)
{
    return wire_poll(router->wire, is_driver);
}

void router_catch_up(struct router *router)
{
    wire_catch_up(router->wire);
}

void router_poke(struct router *router)
{
    wire_poke(router->wire);
}

void router_flush(struct router *router, int64_t deadline_ns)
{
    wire_flush(router->wire, deadline_ns);
}

bool router_has_apart(const struct router *router)
{
    return wire_has_apart(router->wire);
}

bool router_may_lend(const struct router *router, int rank)
{
    return wire_may_lend(router->wire, rank);
}

double router_patience_s(const struct router *router)
{
    return wire_patience_s(router->wire);
}

void router_give_up(struct router *router, const char *why)
{
    wire_give_up(router->wire, why);
}

void router_count_pollers(struct router *router, int change)
{
    wire_count_pollers(router->wire, change);
}

/* Using ports ------------------------------------------------------------------------------------------- */

shoal_status port_attach(struct router *router, struct port_id own, struct port_id target,
                         struct doorbell *bell, struct port **port_out)
{
    shoal_status status = SHOAL_OK;
    wire_lock(router->wire);
    struct port *port = need_port(router, own);
    if (!port) {
        status = SHOAL_ERR_NO_MEMORY;
    } else if (port->bell) {
        status = error_set(SHOAL_ERR_STATE, "a port of the transport is in use");
    } else {
        struct port_id *gone = find_gone(router, own);
        if (gone) {
            *gone = (struct port_id){{0, 0}};
        }
        port->target = target;
        port->bell = bell;
        *port_out = port;
    }
    wire_unlock(router->wire);
    return status;
}

void port_fail_with_wire(struct port *port)
{
    struct router *router = port->router;
    wire_lock(router->wire);
    port->fails_with_wire = true;
    if (router->has_given_up) {
        keep_reason(port, SHOAL_ERR_PEER, router->reason);
    }
    wire_unlock(router->wire);
}

void port_detach(struct port *port)
{
    if (!port) {
        return;
    }
    struct router *router = port->router;
    wire_lock(router->wire);
    struct port **place = find_bucket(router, port->own);
    while (*place != port) {
        place = &(*place)->next;
    }
    *place = port->next;
    router->gone[router->n_gone++ % GONE_PORTS] = port->own;
    free_port(router->wire, port);
    wire_unlock(router->wire);
}

/* Under the lock. Owns the frame. Returns false if it was for this rank, and there was no memory to keep it. */
static bool send_frame(struct router *router, int rank, struct frame *frame)
{
    if (rank != router->rank) {
        wire_send(router->wire, rank, frame);
        return true;
    }
    bool is_kept = receive(router, router->wire, rank, frame);
    if (!is_kept) {
        wire_free_frame(router->wire, frame);
    }
    return is_kept;
}

/* Under the lock. */
static bool send_by_credit(struct port *port, int rank, enum frame_type type, struct frame *frame)
{
    frame->head.port = port->target;
    frame->head.type = type;
    bool is_sent = send_frame(port->router, rank, frame);
    /* It was there when the credit was looked at. */
    struct pipe *pipe = port->pipes[rank];
    if (is_sent && pipe && type != FRAME_CALL && pipe->credit[type] > 0) {
        pipe->credit[type]--;
    }
    return is_sent;
}

bool port_send(struct port *port, int rank, enum frame_type type, struct frame *frame)
{
    wire_lock(port->router->wire);
    bool is_sent = send_by_credit(port, rank, type, frame);
    wire_unlock(port->router->wire);
    return is_sent;
}

bool port_lend(struct port *port, int rank, enum frame_type queue, const void *payload, size_t bytes)
{
    struct wire *wire = port->router->wire;
    wire_lock(wire);
    struct pipe *pipe = need_pipe(port, rank);
    struct frame *frame = pipe ? wire_new_frame(wire, 0) : NULL;
    if (frame) {
        frame->head.bytes = (uint32_t)bytes;
        frame->head.is_apart = 1;
        frame->lent = payload;
        frame->lender = port;
        pipe->n_lent++;
        (void)send_by_credit(port, rank, queue, frame);
    }
    wire_unlock(wire);
    return frame != NULL;
}

unsigned port_n_lent(struct port *port, int rank)
{
    wire_lock(port->router->wire);
    unsigned n_lent = port->pipes[rank] ? port->pipes[rank]->n_lent : 0;
    wire_unlock(port->router->wire);
    return n_lent;
}

bool port_is_taken(struct port *port)
{
    wire_lock(port->router->wire);
    bool is_taken = !port->was_not_taken;
    wire_unlock(port->router->wire);
    return is_taken;
}

void port_take_back(struct port *port)
{
    wire_lock(port->router->wire);
    wire_take_back(port->router->wire, port);
    wire_unlock(port->router->wire);
}

unsigned port_credit(struct port *port, int rank, enum frame_type queue)
{
    wire_lock(port->router->wire);
    const struct pipe *pipe = need_pipe(port, rank);
    unsigned credit = pipe ? pipe->credit[queue] : 0;
    wire_unlock(port->router->wire);
    return credit;
}

struct frame *port_peek(struct port *port, int rank, enum frame_type queue)
{
    wire_lock(port->router->wire);
    struct frame *frame = port->pipes[rank] ? port->pipes[rank]->first[queue] : NULL;
    wire_unlock(port->router->wire);
    return frame;
}

/* Under the lock: what was taken may be sent again. */
static void return_credit(struct port *port, int rank, enum frame_type queue)
{
    struct pipe *pipe = port->pipes[rank];
    pipe->n_taken[queue]++;
    if (queue == FRAME_CALL || pipe->n_taken[queue] < CREDIT_BATCH) {
        return;
    }
    struct frame *frame = wire_new_frame(port->router->wire, 0);
    if (!frame) {
        return; /* the next one returns it too */
    }
    frame->head.port = port->target;
    frame->head.type = FRAME_CREDIT;
    frame->head.number = (int32_t)pipe->n_taken[queue];
    frame->head.queue = queue;
    pipe->n_taken[queue] = 0;
    (void)send_frame(port->router, rank, frame); /* credit for this rank needs no memory */
}

void port_drop(struct port *port, int rank, enum frame_type queue)
{
    struct router *router = port->router;
    wire_lock(router->wire);
    struct pipe *pipe = port->pipes[rank];
    struct frame *frame = pipe->first[queue];
    pipe->first[queue] = frame->next;
    pipe->n_frames[queue]--;
    wire_free_frame(router->wire, frame);
    return_credit(port, rank, queue);
    wire_unlock(router->wire);
}

uint32_t port_n_calls(struct port *port, int rank)
{
    wire_lock(port->router->wire);
    uint32_t n_calls = port->pipes[rank] ? port->pipes[rank]->n_calls : 0;
    wire_unlock(port->router->wire);
    return n_calls;
}

/* Failing ----------------------------------------------------------------------------------------------- */

void port_fail(struct port *port, const int *ranks, int n_ranks, shoal_status status, const char *text)
{
    struct router *router = port->router;
    wire_lock(router->wire);
    /* Relaxed: only changed under the lock. What a peer has told before is known to all. */
    bool is_first = !atomic_load_explicit(&port->has_failed, memory_order_relaxed);
    keep_reason(port, status, text);
    bool is_own_target = memcmp(&port->own, &port->target, sizeof port->own) == 0;
    size_t length = strnlen(text, ERROR_TEXT_BYTES - 1);
    for (int i = 0; is_first && i < n_ranks; i++) {
        bool is_this = ranks[i] == router->rank && is_own_target;
        struct frame *frame = is_this ? NULL : wire_new_frame(router->wire, length);
        if (!frame) {
            continue; /* this port; or no memory, and the peer waits until its deadline */
        }
        memcpy(frame->payload, text, length);
        frame->head.port = port->target;
        frame->head.type = FRAME_FAILURE;
        frame->head.number = status;
        (void)send_frame(router, ranks[i], frame);
    }
    wire_unlock(router->wire);
}

shoal_status port_failure(struct port *port)
{
    /* Acquire: pairs with the release in keep_reason. */
    if (!atomic_load_explicit(&port->has_failed, memory_order_acquire)) {
        return SHOAL_OK;
    }
    return error_set(port->status, "%s", port->text ? port->text : "no memory for the reason");
}
