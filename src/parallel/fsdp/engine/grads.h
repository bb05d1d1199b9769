/* SPDX-License-Identifier: MIT */
/* Where the gradients of a unit are written, until they are reduced. */
#ifndef PARALLEL_FSDP_ENGINE_GRADS_H
#define PARALLEL_FSDP_ENGINE_GRADS_H

#include <stdbool.h>
#include <stddef.h>

#include "parallel/fsdp/engine/context.h"

/* Where kernels add to the whole gradient, once it has begun (fsdp_unit_begin_grads). */
void *fsdp_unit_grad(struct fsdp_unit *unit, struct fsdp_param *param);
/* The same, not cleared: without values, the caller writes every element. */
void *fsdp_unit_grad_to_store(struct fsdp_unit *unit, struct fsdp_param *param, bool *has_values_out);

/* For a watch's collect: room for the parameters with is_reduced, unless an earlier backward left some; then the whole
   gradient of one, contiguous, of `dtype`, is put or added there. */
shoal_status fsdp_unit_take_buffer(struct fsdp_unit *unit);
void fsdp_unit_put_grad(struct fsdp_unit *unit, struct fsdp_param *param, shoal_dtype dtype,
                        const void *grad);

/* Memory for gradients that kernels cannot write in the buffer: zeros, or what an earlier backward left. */
shoal_status fsdp_unit_need_grads(struct fsdp_unit *unit);
/* Puts these into the buffer; `is_new`: kernels have written since the last time. */
void fsdp_unit_collect_written(struct fsdp_unit *unit, bool is_new);
/* Clears what nobody has written: parameters that a backward did not reach. */
void fsdp_unit_clear_unset(struct fsdp_unit *unit);
/* At least so many bytes for gradients, without what was there. */
shoal_status fsdp_unit_need_memory(struct fsdp_unit *unit, char **data, size_t *capacity, size_t bytes);
/* With one shard the result is the gradient, and stays in the buffer if it has the dtype. */
bool fsdp_lands_in_place(const struct fsdp_unit *unit, const struct fsdp_param *param);
/* Whether the whole gradient lies in the buffer as it is, so that it can be added to there. */
bool fsdp_is_direct(const struct fsdp_unit *unit, const struct fsdp_param *param);
/* The buffer is not the unit's any more: its gradients are on their way, or given up. */
void fsdp_unit_forget_buffer(struct fsdp_unit *unit);
/* Gives up what was written and not reduced. */
void fsdp_unit_drop_grads(struct fsdp_unit *unit);

#endif
