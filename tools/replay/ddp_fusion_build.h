/* SPDX-License-Identifier: MIT */
/* Makes a graph of the nodes of the file. */
#ifndef REPLAY_DDP_FUSION_BUILD_H
#define REPLAY_DDP_FUSION_BUILD_H

#include "ddp_fusion_nodes.h"
#include "ddp_fusion_say.h"
#include "shoal/graph.h"

/*
 * Builds all nodes; each must stand after its inputs. `verdict_if_not` is the verdict on a call that its op refuses, or
 * whose result has another shape than the file says.
 */
enum fusion_verdict fusion_build(struct fusion_case *self, const struct fusion_nodes *nodes,
                                 enum fusion_verdict verdict_if_not, shoal_graph **graph_out);

#endif
