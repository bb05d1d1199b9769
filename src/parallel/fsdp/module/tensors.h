/* SPDX-License-Identifier: MIT */
/* The sharded tensors of a wrapper: makes them, and takes over tensors that the program put in their places.
   Also the inputs and outputs of modules. */
#ifndef PARALLEL_FSDP_MODULE_TENSORS_H
#define PARALLEL_FSDP_MODULE_TENSORS_H

#include "parallel/fsdp/module/wrapper.h"

/* Whether the tensor is a shard, or a whole parameter that was gathered. */
bool fsdp_is_of_unit(const shoal_tensor *tensor);
/* Allocates the shard, and copies this rank's part of the original into it; on `device`, and zeros, if that has no
   data. */
shoal_status fsdp_take_values(struct fsdp_tensors *tensors, struct fsdp_param *param, shoal_device device);
/* Whether the original had no data, and nobody has written the shard since. */
bool fsdp_needs_values(const struct fsdp_tensors *tensors);
/* Marks the tensor as a shard of a parameter that is cut into `n_shards`; 0 means that it is not a shard any more. */
void fsdp_mark_sharded(shoal_tensor *tensor, int n_shards);
/* Makes the shard a tensor named `path`. It requires a gradient if the original does. */
shoal_status fsdp_make_sharded(struct fsdp_tensors *tensors, struct fsdp_param *param, const char *path,
                               int n_shards);
/* Call before the first forward pass: tensors that the program put in the places of shards become the shards. */
shoal_status fsdp_adopt_replacements(struct fsdp_wrapper *wrapper);

/* Casts inputs or outputs of a module to `dtype`, if they are floating. Does nothing if `dtype` is 0. */
void fsdp_cast_all(shoal_tensor **tensors, size_t n_tensors, shoal_dtype dtype);
/* Whether one of them requires a gradient. */
bool fsdp_needs_gradient(shoal_tensor *const *tensors, size_t n_tensors);

#endif
