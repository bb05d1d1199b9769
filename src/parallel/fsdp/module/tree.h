/* SPDX-License-Identifier: MIT */
/* Whether the tree of a sharded module still has the parameters that were sharded. Parameters that come later, or take
   the place of a shard, would get gradients that nobody reduces. FSDP refuses them; ddp/follow.h follows. */
#ifndef PARALLEL_FSDP_MODULE_TREE_H
#define PARALLEL_FSDP_MODULE_TREE_H

#include "parallel/fsdp/module/wrapper.h"

/* Call before a forward pass, when the wrapper has a root. SHOAL_ERR_STATE names the first parameter that does not belong there; ranks on which the
   tree is right are told. If nothing has changed anywhere since the last call, this is one comparison. */
shoal_status fsdp_check_tree(struct fsdp_wrapper *wrapper);

#endif
