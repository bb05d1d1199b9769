/* SPDX-License-Identifier: MIT */
/*
 * What calls on lanes stand for: a number that goes with them and that ranks compare before data moves, and the words
 * for it in errors.
 */
#ifndef PARALLEL_FSDP_LABELS_H
#define PARALLEL_FSDP_LABELS_H

#include <stdint.h>

#include "parallel/fsdp/unit.h"

/* Of a unit's gather, and of its reduction. */
uint32_t fsdp_label_of_gather(const struct fsdp_unit *unit);
uint32_t fsdp_label_of_reduction(const struct fsdp_unit *unit);

/*
 * Gathers and reductions have lanes of their own, so ranks that differ could wait on one lane each, for each other. So
 * a backward that reduces has two marks: the forwards are over, on the lane of gathers, from its beginning on its way;
 * and the reductions are, on theirs. A gather or a reduction that only some ranks make meets a mark.
 */
shoal_status fsdp_mark_forwards(struct fsdp_context *context);
/* Waits for that one. */
shoal_status fsdp_end_mark(struct fsdp_context *context);
shoal_status fsdp_mark_backward(struct fsdp_context *context);
/* Gives up what fsdp_mark_forwards began. */
void fsdp_drop_mark(struct fsdp_context *context);

/* With the error text of `status`, of a call on a lane: labels become words, and who waits on the other lanes hears of
   ranks that differ. */
shoal_status fsdp_tell(const struct fsdp_context *context, shoal_status status);

#endif
