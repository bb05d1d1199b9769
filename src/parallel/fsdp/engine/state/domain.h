/* SPDX-License-Identifier: MIT */
/*
 * A domain: the ranks that units are cut among, and what the units on these ranks share. Most contexts have one. With
 * several, a unit's gathers and reductions run on the lanes of its own domain, and what concerns all units runs on the
 * common lane (engine/agree/common.h).
 */
#ifndef PARALLEL_FSDP_ENGINE_STATE_DOMAIN_H
#define PARALLEL_FSDP_ENGINE_STATE_DOMAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/pool.h"

/* A pool for the units that stay sharded over the same number of neighbours after a forward pass. */
struct fsdp_kept {
    int n_ranks;
    struct fsdp_pool windows;
};

/* Memory that units use in turn. */
struct fsdp_pools {
    struct fsdp_pool windows;
    struct fsdp_pool buffers;
    struct fsdp_kept **kept; /* one for each number of neighbours */
    size_t n_kept;
    size_t kept_capacity;
};

struct fsdp_domain {
    struct fsdp_mesh mesh;
    uint32_t root; /* the number of the model among those made on the mesh; ranks of the mesh compare it */
    struct fsdp_pools pools;
};

/* `root` is the number that fsdp_mesh_next_root gave. `memory` counts what the pools hold. The mesh is held. */
shoal_status fsdp_domain_create(const struct fsdp_mesh *mesh, uint32_t root, struct fsdp_memory *memory,
                                struct fsdp_domain **domain_out);
/* `is_open`: the world was not closed. NULL is allowed. */
void fsdp_domain_free(struct fsdp_domain *domain, bool is_open);

/* Where the memory of all pools lies. Call before any is made. */
void fsdp_domain_set_device(struct fsdp_domain *domain, shoal_device device);

/* Call both when the world is closed: the first drops the lanes, after which nothing is sent any more; the second
   drops windows and symmetric memory. */
void fsdp_domain_forget_lanes(struct fsdp_domain *domain);
void fsdp_domain_forget_memory(struct fsdp_domain *domain);

/* Finds or makes the pool of windows over `n_ranks` neighbours, which all units with this number share. */
shoal_status fsdp_domain_need_kept(struct fsdp_domain *domain, int n_ranks, struct fsdp_memory *memory,
                                   struct fsdp_kept **kept_out);

#endif
