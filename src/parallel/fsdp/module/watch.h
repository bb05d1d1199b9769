/* SPDX-License-Identifier: MIT */
/* How modules follow their unit: full and sharded tensors are swapped, gradients are handed over and land. */
#ifndef PARALLEL_FSDP_MODULE_WATCH_H
#define PARALLEL_FSDP_MODULE_WATCH_H

#include "parallel/fsdp/engine/unit.h"

struct fsdp_wrapper;

extern const struct fsdp_watch fsdp_module_watch;

/* Puts full tensors, or shards, into the places of the module tree. What is gathered stays. */
shoal_status fsdp_wrapper_show_full(struct fsdp_wrapper *wrapper);
void fsdp_wrapper_show_shards(struct fsdp_wrapper *wrapper);
/* Counts the changes of shards in the versions of full tensors, so that a backward pass notices them. */
void fsdp_wrapper_count_changes(const struct fsdp_wrapper *wrapper);
/* Parameters that were frozen or thawed since they were gathered: makes the full tensors so, too. */
shoal_status fsdp_wrapper_follow_freezing(const struct fsdp_wrapper *wrapper);
/* Whether a shard was changed after its values were gathered. */
bool fsdp_wrapper_has_changed(const struct fsdp_wrapper *wrapper);

#endif
