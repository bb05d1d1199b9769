/* SPDX-License-Identifier: MIT */
/*
 * Frames between the ports of a world: docs/design/message.md.
 *
 * A router belongs to one rank and one world, and uses a wire. What channels and streams send are frames, addressed to
 * a rank and a port. A port is a number that all ranks compute from a name. Frames for a port that nobody has attached
 * to yet are kept for whoever attaches: a peer may be ahead.
 *
 * A port has a pipe per rank, and a pipe has three queues. Frames of a queue arrive in order. Calls need no credit: the
 * protocol above bounds them. Of data and results, a sender has at most PIPE_CREDIT frames on their way that the receiver
 * has not taken.
 *
 * All calls take the wire's lock, and none of them waits, except open, close and settle.
 */
#ifndef MESSAGE_ROUTER_H
#define MESSAGE_ROUTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "shoal/status.h"
#include "transport/doorbell.h"
#include "transport/message/wire.h"

/* Frames of a queue that a sender may have on their way. A receiver returns credit for CREDIT_BATCH frames at once. */
#define PIPE_CREDIT 4
#define CREDIT_BATCH 2

struct router;
struct port;

/* Opens the endpoint and starts the thread. */
shoal_status router_open(const struct endpoint_kind *kind, const struct transport_world *world,
                         int64_t deadline_ns, struct router **router_out);
/* Sends what is left to send, for a moment at most. No port is attached. */
void router_close(struct router *router);

/* The longest payload of a frame. */
size_t router_frame_bytes(const struct router *router);
/* Memory for a payload of `bytes`, at most that many. Returns NULL if memory runs out. */
struct frame *router_new_frame(struct router *router, size_t bytes);
void router_free_frame(struct router *router, struct frame *frame);

/*
 * Until every rank has what was sent to it, for a moment at most. Who settles before it leaves its world has left nothing on
 * its way, so peers that see it gone need not wait for frames of it.
 */
void router_settle(struct router *router);

/* SHOAL_OK while messages can go to a rank and come from it; otherwise SHOAL_ERR_PEER, and why. *since_ns_out: when
   that was noticed. */
shoal_status router_check_rank(struct router *router, int rank, int64_t *since_ns_out);

/* Of a rank that has left or died: whether frames of it may still be on their way. */
bool router_may_receive(struct router *router, int rank);

/* As those of the wire (wire.h). */
bool router_is_polled(const struct router *router);
bool router_poll(struct router *router, bool is_driver);
void router_count_pollers(struct router *router, int change);
void router_catch_up(struct router *router);
void router_poke(struct router *router);
void router_flush(struct router *router, int64_t deadline_ns);
bool router_has_apart(const struct router *router);
bool router_may_lend(const struct router *router, int rank);
double router_patience_s(const struct router *router);
void router_give_up(struct router *router, const char *why);

/* Ports ------------------------------------------------------------------------------------------------- */

/* Of a name, and numbers that tell ports of one name apart. */
struct port_id port_id_of(const char *name, const char *part, uint64_t number);

/*
 * Frames for `own` are for the caller from now on; what it sends goes to ports `target` of other ranks, which are the same
 * number where both sides do the same. The bell rings after each frame, credit and failure that came. SHOAL_ERR_STATE when
 * somebody else has attached.
 */
shoal_status port_attach(struct router *router, struct port_id own, struct port_id target,
                         struct doorbell *bell, struct port **port_out);
/*
 * The port fails as soon as the wire gives up, and at once if it has: for those who also wait for what does not come by
 * frames, and hear of a failure by this port. Nobody else is told: each rank's wire gives up by itself.
 */
void port_fail_with_wire(struct port *port);
/* Frees what was not taken. NULL is allowed. */
void port_detach(struct port *port);

/*
 * Sends a frame, whose payload was written; the router owns it afterwards. Never blocks. Frames of a queue with credit are
 * sent only after port_credit. A frame to the rank itself goes to its own port: false when there was no memory to keep
 * it there.
 */
bool port_send(struct port *port, int rank, enum frame_type type, struct frame *frame);
/*
 * Sends a frame, like port_send, to another rank, whose payload is sent from where it lies. It stays as it is until it
 * was given back, that is, until port_n_lent has counted down; the bell rings then. Where router_may_lend. Returns
 * false if memory runs out.
 */
bool port_lend(struct port *port, int rank, enum frame_type queue, const void *payload, size_t bytes);
/* Payloads to a rank that were lent and not given back. */
unsigned port_n_lent(struct port *port, int rank);
/* Whether everything that was given back so far had been taken by the rank that it was for. */
bool port_is_taken(struct port *port);
/* Payloads that the wire has not begun to send are not sent, and given back: nobody needs them any more. */
void port_take_back(struct port *port);
/* Frames of a queue that may be sent to a rank now. */
unsigned port_credit(struct port *port, int rank, enum frame_type queue);

/* Returns the first frame of a queue, which stays there; NULL if there is none. Only the caller takes frames, so that
   it stays valid. */
struct frame *port_peek(struct port *port, int rank, enum frame_type queue);
/* Takes and frees the first frame of a queue, and returns its credit. */
void port_drop(struct port *port, int rank, enum frame_type queue);
/* Calls that a rank has sent, ever. */
uint32_t port_n_calls(struct port *port, int rank);

/*
 * Keeps a reason, the first one, and tells it to the ports of the listed ranks. A failure frame of a peer does the
 * same here.
 */
void port_fail(struct port *port, const int *ranks, int n_ranks, shoal_status status, const char *text);
/* SHOAL_OK, or the first reason with its text set. One load while all is well. */
shoal_status port_failure(struct port *port);

#endif
