/* SPDX-License-Identifier: MIT */
/*
 * Frames between the ranks of a world: docs/design/message.md.
 *
 * A wire belongs to one rank and one world. It owns the endpoint, and a thread that makes progress. Frames from one rank to
 * another arrive in the order in which they were sent. Who uses the wire takes every frame that comes at once.
 *
 * Everything of a wire and of its user lies under the wire's lock, which is never held while anything waits or another
 * lock is taken.
 */
#ifndef MESSAGE_WIRE_H
#define MESSAGE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "transport/message/endpoint.h"

#define FRAME_HEAD_BYTES 64
/* A payload that every wire takes; some take longer ones: wire_frame_bytes. */
#define FRAME_DATA_BYTES (ENDPOINT_MESSAGE_BYTES - FRAME_HEAD_BYTES)

enum frame_type {
    FRAME_CALL,
    FRAME_DATA,
    FRAME_RESULT,
    FRAME_QUEUES, /* those before it wait in a queue until they are taken */
    FRAME_CREDIT = FRAME_QUEUES,
    FRAME_FAILURE,
    FRAME_FENCE, /* of the wire itself: asks for the answer below, which says that all before it has arrived */
    FRAME_FENCE_PASSED
};

struct port_id {
    uint64_t words[2];
};

/* What a message begins with. */
struct frame_head {
    struct port_id port;
    uint32_t type;
    int32_t number; /* credit: how many; failure: the status */
    uint32_t queue; /* credit: of which queue */
    uint32_t bytes; /* of the payload */
    /* It is 1 if the payload is a message of its own, of the sequence apart, and 0 if it follows the head. */
    uint32_t is_apart;
    uint32_t reserved[7];
};
_Static_assert(sizeof(struct frame_head) == FRAME_HEAD_BYTES, "payloads begin at a cache line");

struct frame {
    struct frame *next;
    size_t room; /* for payload */
    struct endpoint_message message;
    /* Of a frame whose payload is apart. The memory that it is sent from is the lender's until wire_user.give_back. */
    struct endpoint_message apart;
    bool has_apart;   /* that message was begun */
    bool is_ahead;    /* only that one was: the head came in another frame */
    const char *lent; /* NULL if the payload is the frame's */
    void *lender;
    _Alignas(64) struct frame_head head;
    char payload[];
};

struct wire;

/* Called under the lock, by the wire's thread. */
struct wire_user {
    void *context;
    /* Takes the frame if it returns true. Returns false if the frame makes no sense, or there is no memory for it. */
    bool (*receive)(void *context, struct wire *wire, int rank, struct frame *frame);
    /*
     * What a frame was sent from is not used any more by this process. is_taken: the rank has got it. Otherwise it was
     * not sent, or the rank's library may still read it by itself.
     */
    void (*give_back)(void *context, int rank, const struct frame *frame, bool is_taken);
    /* A rank cannot be reached any more. */
    void (*lose)(void *context);
    /* No rank can be reached any more, and never again, because one has died or is stopped: SHOAL_ERR_PEER. */
    void (*give_up)(void *context, const char *text);
};

/* Opens the endpoint and starts the thread, which may call the user before this returns. */
shoal_status wire_open(const struct endpoint_kind *kind, const struct transport_world *world,
                       int64_t deadline_ns, const struct wire_user *user, struct wire **wire_out);
/* Sends what is left to send, for a moment at most, and ends the thread: the user is not called any more. */
void wire_stop(struct wire *wire);
/* After it was stopped. A thread that still waits for the application's lock frees the memory when it ends. */
void wire_free(struct wire *wire);

void wire_lock(struct wire *wire);
/* Lets the thread send what was handed over, where only the thread may. */
void wire_unlock(struct wire *wire);

/* How many seconds a rank that does nothing is waited for: the endpoint's patience_s. */
double wire_patience_s(const struct wire *wire);

/* The longest payload of a frame. */
size_t wire_frame_bytes(const struct wire *wire);
/* Under the lock: memory for a payload of `bytes`, at most that many. Returns NULL if memory runs out. */
struct frame *wire_new_frame(struct wire *wire, size_t bytes);
/* Under the lock. NULL is allowed. */
void wire_free_frame(struct wire *wire, struct frame *frame);
/* This one and those that follow it. */
void wire_free_frames(struct wire *wire, struct frame *first);
/* Under the lock. To another rank. The wire owns the frame afterwards. Never blocks. */
void wire_send(struct wire *wire, int rank, struct frame *frame);

/* Whether ranks of this wire lend at all: the same on all of them. */
bool wire_has_apart(const struct wire *wire);
/*
 * Whether payloads for a rank may be lent: sent from where they lie, which is cheaper for long ones. Not to ranks of
 * this host. Libraries copy between their memories by themselves, and end a rank that reads what was unmapped.
 */
bool wire_may_lend(const struct wire *wire, int rank);
/* Under the lock. Frames of a lender that were not begun are not sent. */
void wire_take_back(struct wire *wire, const void *lender);
/*
 * Not under the lock. A rank does not take what a caller lent, and the caller cannot wait any longer: the endpoint is
 * given up, as after a death, and everything lent is given back.
 */
void wire_give_up(struct wire *wire, const char *why);
/* Whether the endpoint cannot tell when there is something to do: those who wait look themselves, by wire_poll. */
bool wire_is_polled(const struct wire *wire);
/* Takes what has come, and sends. Returns false if this thread may not; it then sleeps. Not under the lock. */
bool wire_poll(struct wire *wire, bool is_driver);
/*
 * Takes what lies in the network now: until the thread, or the caller, has made progress and nothing more comes, for a
 * moment at most. Not under the lock.
 */
void wire_catch_up(struct wire *wire);
/* Wakes the thread, so that it takes what has come. */
void wire_poke(struct wire *wire);
/*
 * Until all that was handed over is in the hands of what carries it, or the deadline or a few seconds have passed: for
 * endpoints that only some threads may call, which may be kept from it as soon as the caller returns.
 */
void wire_flush(struct wire *wire, int64_t deadline_ns);
/* Threads that poll again and again: the wire's own thread sleeps longer meanwhile. */
void wire_count_pollers(struct wire *wire, int change);

/* Payloads up to this size are kept in memory of their own size, not in that of the longest message. */
#define FRAME_SMALL_BYTES ((size_t)16 * 1024)

/*
 * Until every rank has what was sent to it, for a moment at most. Who settles before it leaves its world has left nothing on
 * its way, so peers that see it gone need not wait for frames of it.
 */
void wire_settle(struct wire *wire);

/* SHOAL_OK while messages can go to a rank and come from it; otherwise SHOAL_ERR_PEER, and why. *since_ns_out: when
   that was noticed. */
shoal_status wire_check_rank(struct wire *wire, int rank, int64_t *since_ns_out);

/*
 * Of a rank that has left or died: whether frames of it may still be on their way. Who leaves settles, so that its last
 * frame is a fence, and nothing comes after it. One that died may have sent more after its last fence: the thread looks
 * once more before the fence counts, and the connection ends after what was sent. If neither comes, false after a second.
 */
bool wire_may_receive(struct wire *wire, int rank);

#endif
