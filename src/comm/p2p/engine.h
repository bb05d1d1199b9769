/* SPDX-License-Identifier: MIT */
/*
 * What the files of point to point share: docs/design/p2p.md.
 *
 * An operation is a message on one end of a stream; the operations of an end are done in order. A batch is what one
 * call posts; it ends when all of its operations have ended. A blocking call has its batch on the stack, a started one
 * in a work.
 *
 * Drivers are threads that wait in a call. A driver moves everything that can be moved, for all operations, and then
 * sleeps on the rank's doorbell. While there is no driver and started operations are unfinished, the doorbell is armed
 * and wakes the group's point-to-point thread.
 */
#ifndef COMM_P2P_ENGINE_H
#define COMM_P2P_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "comm/lane/part.h"
#include "comm/lane/work.h"
#include "shoal/group.h"
#include "transport/streams.h"

struct lane;

struct p2p_batch;

struct p2p_operation {
    struct p2p_operation *next; /* in line on the end, or among those without one */
    struct p2p_end *end;        /* NULL for a receive from any rank for which no message has come yet */
    int tag;
    uint64_t number; /* operations of the rank are numbered as they are posted */
    int *source_out; /* of a receive that has ended well: its peer; NULL if that is not wanted */
    struct p2p_batch *batch;
    struct stream_message message;
    int64_t start_ns;
    int64_t deadline_ns;
    shoal_status status; /* once ended */
    char *text;          /* of a failure; NULL if there is none, or memory ran out */
};

struct p2p_batch {
    struct p2p *p2p;
    size_t n_operations;
    size_t n_pending; /* under the lock */
    int64_t deadline_ns;
    bool is_limited; /* the deadline is the call's own: past it the call has failed, not the group */
    struct p2p_operation *operations;
    struct p2p_batch *next_ended;
    struct shoal_work *work; /* NULL for a blocking call */
};

/* This rank's side of a stream. */
struct p2p_end {
    struct p2p_end *next; /* in its bucket */
    struct p2p_end *next_busy;
    struct p2p_end *previous_busy;
    shoal_status failure; /* of the stream: everything that is posted ends with it */
    char failure_text[ERROR_TEXT_BYTES];
    shoal_direction direction;
    int peer; /* in the group */
    int tag;
    uint32_t sequence; /* of the next message */
    struct stream_end *stream;
    struct p2p_operation *first;
    struct p2p_operation *last;
};

#define P2P_BUCKETS 64

struct p2p {
    _Atomic uint32_t references; /* the group's, and one for every batch that a thread may still drive */
    struct part part;
    struct lane *lane; /* the group's */
    int rank;
    int n_ranks;
    bool may_spin;
    struct streams *streams;
    struct doorbell *bell; /* this rank's, of the streams */

    pthread_mutex_t connect_lock; /* held while a stream is opened; taken before `lock` */

    pthread_mutex_t lock; /* of all below, and of ends, operations and batches */
    struct p2p_end *buckets[P2P_BUCKETS];
    struct p2p_end *busy;       /* those with operations */
    struct p2p_operation *open; /* receives from any rank that have no end yet, in the order of posting */
    int first_source;           /* where the next look for messages to them begins: everyone gets a turn */
    uint64_t n_posted;          /* operations, ever */
    size_t n_drivers;
    size_t n_sleeping;   /* drivers that sleep, or are about to */
    size_t n_started;    /* unfinished batches of works */
    size_t n_telling;    /* threads that tell the group of a failure, outside of the lock */
    bool has_more;       /* the last round left something that could have been moved */
    bool has_ended;      /* a batch has ended that a sleeping driver may wait for */
    bool has_failed;     /* operations failed here, and the flight record was not written since */
    bool must_tell_lane; /* the group has failed here, and its lane does not know yet */
    bool is_closing;
    bool has_thread;
    bool is_thread_idle; /* the thread sleeps without a time limit: only an alarm wakes it */
    int64_t next_check_ns;
    pthread_t thread;
};

/* p2p/streams.c ---------------------------------------------------------------------------------------- */

/* Connects, and returns one reference. `lane` is the group's, and must exist until p2p_free. */
shoal_status p2p_create(const struct part *part, struct lane *lane, int64_t deadline_ns,
                        struct p2p **p2p_out);
struct p2p *p2p_ref(struct p2p *p2p);
void p2p_unref(struct p2p *p2p);

/* Finds this rank's end of a stream, which is made at first use and lives as long as the p2p. Takes both locks. */
shoal_status p2p_find_end(struct p2p *p2p, shoal_direction direction, int peer, int tag, int64_t deadline_ns,
                          struct p2p_end **end_out);

/* Finds this rank's ends of the streams from all members. A receive from any rank looks at all of them. */
shoal_status p2p_find_sources(struct p2p *p2p, int tag, int64_t deadline_ns);

/* Under the lock: returns the end if this rank has it already, otherwise NULL. */
struct p2p_end *p2p_known_end(struct p2p *p2p, shoal_direction direction, int peer, int tag);

/* p2p/engine.c ----------------------------------------------------------------------------------------- */

/*
 * Posts all operations of a batch, whose ends are set, and moves what can be moved. On failure nothing was posted. If
 * *has_ended_out is true, all operations have ended, successfully or not, and so has the work of a started batch.
 */
shoal_status p2p_post(struct p2p_batch *batch, bool *has_ended_out);

/* Moves what can be moved until the batch has ended, or until_ns has passed. */
void p2p_drive(struct p2p_batch *batch, int64_t until_ns);

/* Describes a batch that was posted, for error texts. */
void p2p_describe_batch(const struct p2p_batch *batch, char *text, size_t bytes);

/* The first failure in the order of the list, of a batch that has ended; frees the texts. */
shoal_status p2p_batch_result(struct p2p_batch *batch);

#endif
