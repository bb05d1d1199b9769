/* SPDX-License-Identifier: MIT */
/* Lanes for sharding: groups over given ranks under tags of our own. */
#include "parallel/fsdp/mesh.h"

#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

#define TAG_BYTES 72

/* The ranks of `group` from `first` on, under its tag and a word. The world keeps the group. */
static shoal_status open_lane(shoal_group *group, int first, int n_ranks, const char *word,
                              shoal_group **lane_out)
{
    char tag[TAG_BYTES];
    int *ranks = mem_alloc((size_t)n_ranks * sizeof *ranks);
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = shoal_group_world_rank(group, first + i);
    }
    (void)snprintf(tag, sizeof tag, "%.48s/fsdp %s", shoal_group_tag(group), word);
    shoal_status status = shoal_group_create(shoal_group_world(group), ranks, n_ranks, tag, lane_out);
    mem_free(ranks);
    if (status == SHOAL_OK) {
        status = shoal_group_set_timeout(*lane_out, shoal_group_timeout(group));
    }
    return status;
}

shoal_status fsdp_mesh_follow_deadline(shoal_group *lane, const shoal_group *group)
{
    return !lane || shoal_group_timeout(lane) == shoal_group_timeout(group)
               ? SHOAL_OK
               : shoal_group_set_timeout(lane, shoal_group_timeout(group));
}

shoal_status fsdp_mesh_follow_deadlines(const struct fsdp_mesh *mesh)
{
    TRY(fsdp_mesh_follow_deadline(mesh->gather, mesh->shards));
    TRY(fsdp_mesh_follow_deadline(mesh->reduce, mesh->shards));
    return fsdp_mesh_follow_deadline(mesh->replicate, mesh->replicas);
}

static shoal_status open_shards(shoal_group *group, struct fsdp_mesh *mesh)
{
    mesh->world = shoal_group_world(group);
    mesh->shards = group;
    mesh->n_shards = shoal_group_n_ranks(group);
    mesh->shard = shoal_group_rank(group);
    if (mesh->n_shards == 1) {
        return SHOAL_OK;
    }
    TRY(open_lane(group, 0, mesh->n_shards, "gather", &mesh->gather));
    return open_lane(group, 0, mesh->n_shards, "reduce", &mesh->reduce);
}

static shoal_status open_replicas(shoal_group *group, struct fsdp_mesh *mesh)
{
    mesh->world = shoal_group_world(group);
    mesh->replicas = group;
    mesh->n_replicas = shoal_group_n_ranks(group);
    if (mesh->n_replicas == 1) {
        return SHOAL_OK;
    }
    return open_lane(group, 0, mesh->n_replicas, "all_reduce", &mesh->replicate);
}

shoal_status fsdp_mesh_from_group(shoal_group *group, struct fsdp_mesh *mesh_out)
{
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    *mesh_out = (struct fsdp_mesh){.n_shards = 1, .n_replicas = 1};
    return open_shards(group, mesh_out);
}

shoal_status fsdp_mesh_from_replicas(shoal_group *group, struct fsdp_mesh *mesh_out)
{
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    *mesh_out = (struct fsdp_mesh){.n_shards = 1, .n_replicas = 1};
    return open_replicas(group, mesh_out);
}

static shoal_status find_group(shoal_mesh *mesh, int dim, shoal_group **group_out)
{
    *group_out = shoal_mesh_group(mesh, dim);
    return *group_out ? SHOAL_OK
                      : error_set(SHOAL_ERR_INVALID, "rank %d is not in the mesh",
                                  shoal_world_rank(shoal_mesh_world(mesh)));
}

shoal_status fsdp_mesh_from_mesh(shoal_mesh *mesh, struct fsdp_mesh *mesh_out)
{
    shoal_group *replicas;
    shoal_group *shards;
    if (!mesh) {
        return error_set(SHOAL_ERR_INVALID, "mesh is NULL");
    }
    int n_dims = shoal_mesh_n_dims(mesh);
    *mesh_out = (struct fsdp_mesh){.n_shards = 1, .n_replicas = 1};
    if (n_dims == 1) {
        TRY(find_group(mesh, 0, &shards));
        return open_shards(shards, mesh_out);
    }
    if (n_dims != 2) {
        return error_set(SHOAL_ERR_INVALID, "a mesh of 1 or 2 dimensions is expected, not of %d", n_dims);
    }
    if (!shoal_mesh_dim_name(mesh, 0)) {
        return error_set(SHOAL_ERR_INVALID, "a mesh of 2 dimensions (replicas, shards) needs names for them");
    }
    TRY(find_group(mesh, 0, &replicas));
    TRY(find_group(mesh, 1, &shards));
    TRY(open_replicas(replicas, mesh_out));
    return open_shards(shards, mesh_out);
}

shoal_status fsdp_mesh_neighbours(const struct fsdp_mesh *mesh, int n_ranks, shoal_group **group_out)
{
    char word[32];
    (void)snprintf(word, sizeof word, "kept %d", n_ranks);
    return open_lane(mesh->gather, mesh->shard / n_ranks * n_ranks, n_ranks, word, group_out);
}
