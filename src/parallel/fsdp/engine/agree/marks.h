/* SPDX-License-Identifier: MIT */
/*
 * Marks: barriers between the passes of a step, by which ranks that diverge find out.
 *
 * Gathers and reductions have lanes of their own, so ranks that diverge could block on different lanes, each waiting
 * for the other. So each backward pass, whether or not it reduces, issues barriers: on the lane of gathers "the forward
 * passes are over", which is in flight while the backward pass goes on, and "the gathers are over" at its end; and on
 * the lanes of reductions and replicas "the reductions are over", unless more backward passes of the step follow
 * (is_not_last). A gather or a reduction that only some ranks issue collides with one of them and is reported as a
 * mismatch; so is a backward pass that reduces on some ranks only.
 *
 * With several domains there are more lanes. All of these barriers are issued on the common lane then (common.h), and one
 * before each gather and each reduction.
 */
#ifndef PARALLEL_FSDP_ENGINE_AGREE_MARKS_H
#define PARALLEL_FSDP_ENGINE_AGREE_MARKS_H

#include <stdint.h>

#include "parallel/fsdp/engine/state/context.h"
#include "transport/purpose.h"

shoal_status fsdp_mark_forwards(struct fsdp_context *context);
/* Waits for the barrier of fsdp_mark_forwards. */
shoal_status fsdp_end_mark(struct fsdp_context *context);
shoal_status fsdp_mark_backward(struct fsdp_context *context);
/*
 * A rank must have issued something on the lane of gathers before it waits on the lane of reductions. Otherwise a
 * rank that waits for a gather which this one does not make would not be told. fsdp_mark_gathers issues a mark
 * there, at the end of the backward pass. fsdp_mark_wait is for waits before that: it issues a mark, for which
 * nobody waits, unless there was a gather since the reduction began (`n_gathers` is what fsdp_count_gathers returned
 * then).
 */
shoal_status fsdp_mark_gathers(struct fsdp_context *context);
/* Call before a buffer is made on the lane of reductions, which waits for the other ranks: issues such a mark. */
shoal_status fsdp_mark_buffer(const struct fsdp_unit *unit, const struct purpose *purpose);
/* Waits for the mark of fsdp_mark_gathers. */
shoal_status fsdp_end_gathers_mark(struct fsdp_context *context);
shoal_status fsdp_mark_wait(const struct fsdp_unit *unit, uint64_t n_gathers);
/* Call before a unit is gathered. With several domains it leaves a mark on the common lane. Otherwise it leaves one if the
   unit stayed sharded over neighbours, and is gathered on their lane: on the lane of gathers, to tell all ranks. */
shoal_status fsdp_mark_gather(const struct fsdp_unit *unit);
/* Call before a reduction of the unit begins, over shards or replicas: with several domains it leaves a mark on the common
   lane. */
shoal_status fsdp_mark_reduction(const struct fsdp_unit *unit, enum purpose_id id);
/* Call before a unit is gathered by hand, even if it is gathered already: issues a mark on the lane of gathers that
   names the unit and says whether it is. Ranks that differ in this, or do not make the call, are told.
   fsdp_end_unshard waits for the mark; fsdp_unit_wait calls it. */
shoal_status fsdp_mark_unshard(struct fsdp_unit *unit);
shoal_status fsdp_end_unshard(struct fsdp_unit *unit);
/* Drops the mark of fsdp_mark_unshard. */
void fsdp_drop_unshard(struct fsdp_unit *unit);
/* Counts the collectives that this rank has issued on lanes of gathers. */
uint64_t fsdp_count_gathers(const struct fsdp_context *context);
/* Drops the marks of fsdp_mark_forwards and fsdp_mark_gathers. */
void fsdp_drop_mark(struct fsdp_context *context);

/*
 * Call when a function of the program (a hook, a custom gather or reduction), or something else in the backward
 * pass, has failed on this rank. Issues a mark with the thread's error text on all lanes, without waiting. Peers on
 * which nothing failed collide with it in their next collective, and get this text. If the same failed on all ranks,
 * the lanes stay usable. Returns `status`; the error text stays.
 */
shoal_status fsdp_mark_failure(const struct fsdp_unit *unit, shoal_status status);
/* fsdp_mark_failure at the end of an explicit call, which may have begun with collectives that succeeded: for what fails on a
   rank alone, its memory or its device. Does nothing for other statuses. */
shoal_status fsdp_mark_own_failure(const struct fsdp_context *context, shoal_status status);

/* The same if units could not be prepared before the first forward pass: on the lanes of one mesh, or of all. */
void fsdp_mark_failed_mesh(const struct fsdp_mesh *mesh, uint32_t root, const char *words);
shoal_status fsdp_mark_unmade(const struct fsdp_context *context, shoal_status status);

#endif
