/* SPDX-License-Identifier: MIT */
/* The sharded tensors of a wrapper: making them, and taking over those that replaced them. What modules get
   and give, too. */
#ifndef PARALLEL_FSDP_MODULE_TENSORS_H
#define PARALLEL_FSDP_MODULE_TENSORS_H

#include "parallel/fsdp/module/wrapper.h"

/* Whether the tensor shows a shard, or what was gathered of one. */
bool fsdp_is_of_unit(const shoal_tensor *tensor);
/* Memory for the shard, with this rank's part of the original; zeros where that has no data. */
shoal_status fsdp_take_values(struct fsdp_tensors *tensors, struct fsdp_param *param);
/* Whether that had no data, and nobody has written the shard since. */
bool fsdp_needs_values(const struct fsdp_tensors *tensors);
/* What the tensor is from now on: a shard of a parameter that is cut into so many; 0: no shard any more. */
void fsdp_mark_sharded(shoal_tensor *tensor, int n_shards);
/* The shard as a tensor, in the name and with the wish for a gradient of the whole. */
shoal_status fsdp_make_sharded(struct fsdp_tensors *tensors, struct fsdp_param *param, const char *path,
                               int n_shards);
/* Before the first forward: tensors that were put in the places of shards become the shards. */
shoal_status fsdp_adopt_replacements(struct fsdp_wrapper *wrapper);

/* Inputs or outputs of a module: those that are floating get the dtype; 0: nothing is done. */
void fsdp_cast_all(shoal_tensor **tensors, size_t n_tensors, shoal_dtype dtype);
/* Whether one of them requires a gradient. */
bool fsdp_needs_gradient(shoal_tensor *const *tensors, size_t n_tensors);

#endif
