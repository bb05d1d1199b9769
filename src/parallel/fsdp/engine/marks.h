/* SPDX-License-Identifier: MIT */
/*
 * Marks: barriers between the passes of a step, by which ranks that diverge find out.
 *
 * Gathers and reductions have lanes of their own, so ranks that diverge could block on different lanes, each waiting for
 * the other. So each backward pass, whether or not it reduces, issues two barriers: "the forward passes are over" on the
 * lane of gathers, which is in flight while the backward pass goes on, and "the reductions are over" on the lane of
 * reductions and that of replicas. A gather or a reduction that only some ranks issue collides with one of them and is
 * reported as a mismatch; so are ranks of which some reduce and some do not.
 */
#ifndef PARALLEL_FSDP_ENGINE_MARKS_H
#define PARALLEL_FSDP_ENGINE_MARKS_H

#include <stdint.h>

#include "parallel/fsdp/engine/context.h"
#include "transport/purpose.h"

shoal_status fsdp_mark_forwards(struct fsdp_context *context);
/* Waits for that one. */
shoal_status fsdp_end_mark(struct fsdp_context *context);
shoal_status fsdp_mark_backward(struct fsdp_context *context);
/*
 * A rank that waits on the lane of reductions has first issued something on the lane of gathers, so that a rank which
 * waits there for a gather that this one does not make is told. At the end of the backward pass that is a mark; before
 * it a gather usually is, and where there was none since the reduction began (`n_gathers`, what fsdp_count_gathers said
 * then) a mark of its own, for which nobody waits.
 */
shoal_status fsdp_mark_gathers(struct fsdp_context *context);
/* A buffer is made on the lane of reductions, for which the rank waits. */
shoal_status fsdp_mark_buffer(const struct fsdp_unit *unit, const struct purpose *purpose);
/* Waits for that of fsdp_mark_gathers. */
shoal_status fsdp_end_gathers_mark(struct fsdp_context *context);
shoal_status fsdp_mark_wait(const struct fsdp_unit *unit, uint64_t n_gathers);
/* A unit that stayed over neighbours is gathered on their lane. A mark on the lane of gathers says so to all. */
shoal_status fsdp_mark_neighbours(const struct fsdp_unit *unit);
/* A unit is gathered by hand, or is there already. All ranks make this call: who waits for the unit waits for that, too. */
shoal_status fsdp_mark_unshard(struct fsdp_unit *unit);
shoal_status fsdp_end_unshard(struct fsdp_unit *unit);
/* Gives it up. */
void fsdp_drop_unshard(struct fsdp_unit *unit);
/* Collectives that this rank has issued on lanes of gathers. */
uint64_t fsdp_count_gathers(const struct fsdp_context *context);
/* Gives up what fsdp_mark_forwards and fsdp_mark_gathers began. */
void fsdp_drop_mark(struct fsdp_context *context);

/*
 * A function of the program (a hook, a custom gather or reduction), or something else in its backward pass, has failed on
 * this rank, with the thread's error text, which stays. Marks that on all lanes, without waiting: peers whose functions
 * did not fail find it in the place of their next collective, and are told at once, with this text. If those of all
 * ranks fail alike the lanes can be used further. Returns status.
 */
shoal_status fsdp_mark_failure(const struct fsdp_unit *unit, shoal_status status);

#endif
