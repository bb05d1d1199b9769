/* SPDX-License-Identifier: MIT */
/*
 * What a thread does while it has the lock of a p2p: keep the operations in order, move messages, look for deadlines
 * and for members that are gone. p2p/engine.c decides which thread that is. Batches of works that end are put on the
 * list `ended`, and are finished by the engine when it has released the lock.
 */
#ifndef COMM_P2P_MOVE_H
#define COMM_P2P_MOVE_H

#include "comm/p2p/engine.h"

static inline const struct transport_streams *p2p_operations_of(const struct p2p_end *end)
{
    return end->stream->streams->operations;
}

/* SHOAL_OK, or why point to point has failed on the whole group. */
static inline shoal_status p2p_reason(struct p2p *p2p)
{
    return p2p->streams->operations->reason(p2p->streams);
}

/* p2p/pending.c ------------------------------------------------------------------------------------------- */

/* Adds an operation, which has an end, behind those of the end. */
void p2p_append(struct p2p *p2p, struct p2p_operation *operation);
/* Takes off the first operation of an end. */
struct p2p_operation *p2p_pop(struct p2p *p2p, struct p2p_end *end);
/* Takes an operation off that has not begun: messages of the stream are numbered as if it had never been posted. */
void p2p_withdraw(struct p2p *p2p, struct p2p_operation *operation);

/* Add and take off an open receive: one from any rank, which has no end yet. */
void p2p_add_open(struct p2p *p2p, struct p2p_operation *operation);
void p2p_take_off_open(struct p2p *p2p, struct p2p_operation *operation);
/* Returns the first open receive with this tag; NULL if there is none. */
struct p2p_operation *p2p_find_open(const struct p2p *p2p, int tag);
/* Whether the next message of the end is for a receive without an end: one that was posted before those of the end. */
bool p2p_open_is_first(const struct p2p *p2p, const struct p2p_end *end);
/* Binds that receive to the end if a message has come. */
bool p2p_bind_open(struct p2p *p2p, struct p2p_end *end);

/* p2p/text.c ------------------------------------------------------------------------------------------- */

/* Error texts have ranks by their numbers in the world. */
int p2p_world_rank(const struct p2p *p2p, int group_rank);
/* "rank 1 receives f32 count 10 from rank 0 tag 3" */
const char *p2p_describe(const struct p2p *p2p, const struct p2p_operation *operation, char *text,
                         size_t bytes);
shoal_status p2p_describe_mismatch(const struct p2p *p2p, const struct p2p_operation *operation);
shoal_status p2p_describe_timeout(const struct p2p *p2p, const struct p2p_operation *operation,
                                  int64_t now_ns);

/* p2p/move.c ------------------------------------------------------------------------------------------- */

/* Ends an operation that is off its end. */
void p2p_end_operation(struct p2p *p2p, struct p2p_operation *operation, shoal_status status,
                       const char *text, struct p2p_batch **ended);
void p2p_end_all_of(struct p2p *p2p, struct p2p_end *end, shoal_status status, const char *text,
                    struct p2p_batch **ended);
/* With the thread's error text. */
void p2p_end_everything(struct p2p *p2p, shoal_status status, struct p2p_batch **ended);
/* Fails the stream for both sides, because messages may be incomplete. The thread's error text is the reason. */
void p2p_break_end(struct p2p *p2p, struct p2p_end *end, shoal_status status, struct p2p_batch **ended);

/* Move what can be moved now: on one end, for receives from any rank, and everywhere. */
void p2p_move_end(struct p2p *p2p, struct p2p_end *end, struct p2p_batch **ended);
void p2p_move_open(struct p2p *p2p, struct p2p_batch **ended);
void p2p_move_all(struct p2p *p2p, struct p2p_batch **ended);

/* p2p/check.c ------------------------------------------------------------------------------------------ */

/* SHOAL_OK, or why the group has failed. Cheap enough for every call: one load each. */
shoal_status p2p_find_failure(struct p2p *p2p);
/* Called every WAIT_LIVENESS_NS, and when a driver's deadline has passed. */
void p2p_check_all(struct p2p *p2p, int64_t now_ns, struct p2p_batch **ended);

#endif
