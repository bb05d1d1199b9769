/* SPDX-License-Identifier: MIT */
/* What a module hears of its unit: tensors take turns, gradients are handed over and land. */
#ifndef PARALLEL_FSDP_MODULE_WATCH_H
#define PARALLEL_FSDP_MODULE_WATCH_H

#include "parallel/fsdp/engine/unit.h"

struct fsdp_wrapper;

extern const struct fsdp_watch fsdp_module_watch;

/* The places hold full tensors, or shards; nothing where they do already. What is gathered stays. */
shoal_status fsdp_wrapper_show_full(struct fsdp_wrapper *wrapper);
void fsdp_wrapper_show_shards(struct fsdp_wrapper *wrapper);
/* The versions of full tensors count the changes of the shards, so that a backward notices them. */
void fsdp_wrapper_count_changes(const struct fsdp_wrapper *wrapper);
/* Parameters that were frozen or thawed since they were gathered are so from now on. */
shoal_status fsdp_wrapper_follow_freezing(const struct fsdp_wrapper *wrapper);
/* Whether a shard was changed after its values were gathered. */
bool fsdp_wrapper_has_changed(const struct fsdp_wrapper *wrapper);

#endif
