/* SPDX-License-Identifier: MIT */
/* The ranks that shard and those that replicate: a group of shards, a group of replicas, or both. Gathers and
   reductions have lanes of their own over the same ranks, so a gather never waits behind a reduction. */
#ifndef PARALLEL_FSDP_ENGINE_STATE_LANES_H
#define PARALLEL_FSDP_ENGINE_STATE_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/group.h"
#include "shoal/mesh.h"

struct fsdp_mesh {
    shoal_world *world;
    shoal_group *gather;    /* of the ranks that have the shards; NULL if there is one shard */
    shoal_group *reduce;    /* the same ranks */
    shoal_group *replicate; /* of the ranks that have the same shard; NULL if there is one replica */
    /* Set with fsdp_mesh_from_replicas: a lane with the name of the gather lane of fsdp_mesh_from_group. If some ranks
       shard over the group by mistake, their calls and ours meet on it, and all get an error. */
    shoal_group *calls;
    /* The groups that the lanes belong to. A lane has the ranks and the deadline of its group, and fails with it. */
    shoal_group *shards;
    shoal_group *replicas;
    shoal_mesh *whole; /* with both, the mesh that they are dimensions of; NULL otherwise */
    int n_shards;
    int shard; /* the number of this rank's shard */
    int n_replicas;
    uint64_t owners; /* a number for all its ranks: the same on each of them */
    int n_local;     /* ranks of the mesh on this host, if every replica has as many here as this rank's */
    /* The number of this model among those made on the group of replicas. Groups of shards may have other
       models besides. */
    uint32_t replica_root;
};

shoal_status fsdp_mesh_from_group(shoal_group *group, struct fsdp_mesh *mesh_out);
shoal_status fsdp_mesh_from_replicas(shoal_group *group, struct fsdp_mesh *mesh_out);
/* A mesh of one dimension: shards. Of two named dimensions: replicas, shards. */
shoal_status fsdp_mesh_from_mesh(shoal_mesh *mesh, struct fsdp_mesh *mesh_out);

/* Sets is_in[r] for each world rank r of the mesh: of all its shards and replicas. */
shoal_status fsdp_mesh_mark_ranks(const struct fsdp_mesh *mesh, bool *is_in);

/* Makes the group of `n_ranks` neighbours over which a unit stays sharded after a forward pass. `n_ranks`
   divides n_shards. */
shoal_status fsdp_mesh_neighbours(const struct fsdp_mesh *mesh, int n_ranks, shoal_group **group_out);

/* Gives the number of the next context, or unit of modules, made on the mesh: the root of its purposes
   (transport/purpose.h). Also sets the mesh's replica_root. */
uint32_t fsdp_mesh_next_root(struct fsdp_mesh *mesh);

/* Call when the world is closed: its groups are gone, and nothing may call them any more. The numbers stay. */
void fsdp_mesh_forget(struct fsdp_mesh *mesh);

/* Whether units on both share everything: the same lanes, and so the same ranks. */
bool fsdp_mesh_is_same(const struct fsdp_mesh *a, const struct fsdp_mesh *b);

/* While a mesh is held, the program cannot close its groups. Do not call after the world was closed. */
void fsdp_mesh_hold(const struct fsdp_mesh *mesh);
void fsdp_mesh_let_go(const struct fsdp_mesh *mesh);

/* How long an operation of the mesh may take, in seconds. */
static inline double fsdp_mesh_timeout(const struct fsdp_mesh *mesh)
{
    return shoal_group_timeout(mesh->shards ? mesh->shards : mesh->replicas);
}

static inline int fsdp_mesh_n_ranks(const struct fsdp_mesh *mesh)
{
    return mesh->n_shards * mesh->n_replicas;
}

#endif
