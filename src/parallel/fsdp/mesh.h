/* SPDX-License-Identifier: MIT */
/*
 * Who shards and who replicates: a group of shards, a group of replicas, or both. Each kind of traffic has a lane of its
 * own over the same ranks, so that a gather never waits behind a reduction.
 */
#ifndef PARALLEL_FSDP_MESH_H
#define PARALLEL_FSDP_MESH_H

#include "shoal/group.h"
#include "shoal/mesh.h"

struct fsdp_mesh {
    shoal_world *world;
    shoal_group *gather;    /* of the ranks that have the shards; NULL: there is one shard */
    shoal_group *reduce;    /* the same ranks */
    shoal_group *replicate; /* of the ranks that have the same shard; NULL: there is one replica */
    /* Whose ranks and deadlines the lanes have. */
    shoal_group *shards;
    shoal_group *replicas;
    int n_shards;
    int shard; /* this rank's */
    int n_replicas;
};

shoal_status fsdp_mesh_from_group(shoal_group *group, struct fsdp_mesh *mesh_out);
shoal_status fsdp_mesh_from_replicas(shoal_group *group, struct fsdp_mesh *mesh_out);
/* One dimension: shards. Two named ones: replicas, shards. */
shoal_status fsdp_mesh_from_mesh(shoal_mesh *mesh, struct fsdp_mesh *mesh_out);

/* The deadlines of the groups may have changed since the lanes were made. */
shoal_status fsdp_mesh_follow_deadlines(const struct fsdp_mesh *mesh);
/* Of one lane, if there is any. */
shoal_status fsdp_mesh_follow_deadline(shoal_group *lane, const shoal_group *group);

/* The neighbours over which shards stay after forward: n_ranks of them, which divide the shards. */
shoal_status fsdp_mesh_neighbours(const struct fsdp_mesh *mesh, int n_ranks, shoal_group **group_out);

static inline int fsdp_mesh_n_ranks(const struct fsdp_mesh *mesh)
{
    return mesh->n_shards * mesh->n_replicas;
}

#endif
