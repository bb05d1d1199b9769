/* SPDX-License-Identifier: MIT */
/* The callbacks by which modules follow their unit: they swap full and sharded tensors, and hand over gradients. */
#ifndef PARALLEL_FSDP_MODULE_WATCH_H
#define PARALLEL_FSDP_MODULE_WATCH_H

#include "parallel/fsdp/engine/state/unit.h"

struct fsdp_wrapper;

extern const struct fsdp_watch fsdp_module_watch;

/* Puts full tensors, or shards, into the places of the module tree. Gathers and gives up nothing. */
shoal_status fsdp_wrapper_show_full(struct fsdp_wrapper *wrapper);
void fsdp_wrapper_show_shards(struct fsdp_wrapper *wrapper);
/* Counts the changes of shards in the versions of full tensors, so that a backward pass notices them. */
void fsdp_wrapper_count_changes(const struct fsdp_wrapper *wrapper);
/* Freezes or thaws full tensors whose shards were frozen or thawed since the gather. */
shoal_status fsdp_wrapper_follow_freezing(const struct fsdp_wrapper *wrapper);
/* Whether a shard was changed after its values were gathered. */
bool fsdp_wrapper_has_changed(const struct fsdp_wrapper *wrapper);

#endif
