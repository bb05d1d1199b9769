/* SPDX-License-Identifier: MIT */
/* The memory in which the gradients of a unit are written before they are reduced. */
#ifndef PARALLEL_FSDP_ENGINE_REDUCE_GRADS_H
#define PARALLEL_FSDP_ENGINE_REDUCE_GRADS_H

#include <stdbool.h>
#include <stddef.h>

#include "parallel/fsdp/engine/state/context.h"

/* Where a parameter has its places: in the unit's buffer, and in the memory for what kernels cannot write there. */
static inline struct address fsdp_region_of(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return address_add(unit->grads.buffer->data, (ptrdiff_t)param->reduce_offset);
}

static inline struct address fsdp_written_at(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return address_add(unit->grads.data, (ptrdiff_t)param->grad_offset);
}

/* Where kernels add to the whole gradient. Valid after fsdp_unit_begin_grads. */
struct address fsdp_unit_grad(struct fsdp_unit *unit, struct fsdp_param *param);
/* Like fsdp_unit_grad, but not cleared: if *has_values_out is false, the caller must write every element. */
struct address fsdp_unit_grad_to_store(struct fsdp_unit *unit, struct fsdp_param *param,
                                       bool *has_values_out);

/*
 * For the `collect` function of a watch. fsdp_unit_take_buffer makes room for the parameters with is_reduced, unless
 * an earlier backward pass left some. fsdp_unit_put_grad then stores or adds the whole gradient of one: contiguous,
 * of `dtype`.
 */
shoal_status fsdp_unit_take_buffer(struct fsdp_unit *unit);
void fsdp_unit_put_grad(struct fsdp_unit *unit, struct fsdp_param *param, shoal_dtype dtype,
                        struct address grad);

/* Memory for gradients that kernels cannot write in the buffer, with what an earlier backward pass left. */
shoal_status fsdp_unit_need_grads(struct fsdp_unit *unit);
/* Puts gradients from that memory into the buffer. `is_new`: kernels have written them since the last time. */
void fsdp_unit_collect_written(struct fsdp_unit *unit, bool is_new);
/* Writes zeros for parameters that the backward pass did not reach. */
void fsdp_unit_clear_unset(struct fsdp_unit *unit);
/* Makes `*data` at least `bytes` large. Its contents are lost if it grows. */
shoal_status fsdp_unit_need_memory(struct fsdp_unit *unit, struct address *data, size_t *capacity,
                                   size_t bytes);
/* Whether the reduced gradient can stay in the buffer as the gradient of the shard: with the explicit calls, if there
   is one shard and gradients are reduced in the parameter's dtype. */
bool fsdp_lands_in_place(const struct fsdp_unit *unit, const struct fsdp_param *param);
/* Whether the whole gradient lies in the buffer in its usual layout and dtype, so that kernels can add to it there. */
bool fsdp_is_direct(const struct fsdp_unit *unit, const struct fsdp_param *param);
/* The unit has no buffer any more: its gradients are being reduced, or were dropped. */
void fsdp_unit_forget_buffer(struct fsdp_unit *unit);
/* Drops gradients that were written and not reduced. */
void fsdp_unit_drop_grads(struct fsdp_unit *unit);

#endif
