/* SPDX-License-Identifier: MIT */
/* Makes the lanes of FSDP over the ranks of the groups that were given. */
#include "parallel/fsdp/engine/state/lanes.h"

#include <stdio.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"

/* Never 0. */
static uint64_t number_of_group(uint64_t seed, shoal_group *group)
{
    uint64_t number = seed;
    for (int i = 0; i < shoal_group_n_ranks(group); i++) {
        int rank = shoal_group_world_rank(group, i);
        number = hash_bytes(number, &rank, sizeof rank);
    }
    return number | 1;
}

/* Of a mesh of two dimensions, all of whose ranks have the same values. */
static shoal_status number_of_mesh(shoal_mesh *mesh, uint64_t *number_out)
{
    size_t n = (size_t)shoal_mesh_n_ranks(mesh);
    int *ranks = mem_alloc_zeroed(n, sizeof *ranks);
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = shoal_mesh_ranks(mesh, ranks);
    *number_out = hash_bytes(0, ranks, n * sizeof *ranks) | 1;
    mem_free(ranks);
    return status;
}

static shoal_status open_shards(shoal_group *group, struct fsdp_mesh *mesh)
{
    mesh->world = shoal_group_world(group);
    mesh->shards = group;
    mesh->n_local *= group_n_local(group);
    mesh->n_shards = shoal_group_n_ranks(group);
    mesh->owners = number_of_group(0, group);
    mesh->shard = shoal_group_rank(group);
    if (mesh->n_shards == 1) {
        return SHOAL_OK;
    }
    TRY(group_create_lane(group, 0, mesh->n_shards, "fsdp gather", &mesh->gather));
    return group_create_lane(group, 0, mesh->n_shards, "fsdp reduce", &mesh->reduce);
}

static shoal_status open_replicas(shoal_group *group, struct fsdp_mesh *mesh)
{
    mesh->world = shoal_group_world(group);
    mesh->replicas = group;
    mesh->n_local *= group_n_local(group);
    mesh->n_replicas = shoal_group_n_ranks(group);
    mesh->owners = number_of_group(0, group);
    if (mesh->n_replicas == 1) {
        return SHOAL_OK;
    }
    return group_create_lane(group, 0, mesh->n_replicas, "fsdp all_reduce", &mesh->replicate);
}

shoal_status fsdp_mesh_from_group(shoal_group *group, struct fsdp_mesh *mesh_out)
{
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    *mesh_out = (struct fsdp_mesh){.n_shards = 1, .n_replicas = 1, .n_local = 1};
    return open_shards(group, mesh_out);
}

shoal_status fsdp_mesh_from_replicas(shoal_group *group, struct fsdp_mesh *mesh_out)
{
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    *mesh_out = (struct fsdp_mesh){.n_shards = 1, .n_replicas = 1, .n_local = 1};
    TRY(open_replicas(group, mesh_out));
    return mesh_out->n_replicas == 1
               ? SHOAL_OK
               : group_create_lane(group, 0, mesh_out->n_replicas, "fsdp gather", &mesh_out->calls);
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
    *mesh_out = (struct fsdp_mesh){.n_shards = 1, .n_replicas = 1, .n_local = 1};
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
    mesh_out->whole = mesh;
    TRY(open_shards(shards, mesh_out));
    return number_of_mesh(mesh, &mesh_out->owners);
}

bool fsdp_mesh_is_same(const struct fsdp_mesh *a, const struct fsdp_mesh *b)
{
    return a->gather == b->gather && a->replicate == b->replicate && a->n_shards == b->n_shards;
}

static void mark_group(shoal_group *group, bool *is_in)
{
    for (int i = 0; group && i < shoal_group_n_ranks(group); i++) {
        is_in[shoal_group_world_rank(group, i)] = true;
    }
}

shoal_status fsdp_mesh_mark_ranks(const struct fsdp_mesh *mesh, bool *is_in)
{
    mark_group(mesh->shards, is_in);
    mark_group(mesh->replicas, is_in);
    if (!mesh->whole) {
        return SHOAL_OK;
    }
    int n = shoal_mesh_n_ranks(mesh->whole);
    int *ranks = mem_alloc_zeroed((size_t)n, sizeof *ranks);
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = shoal_mesh_ranks(mesh->whole, ranks);
    for (int i = 0; i < n && status == SHOAL_OK; i++) {
        is_in[ranks[i]] = true;
    }
    mem_free(ranks);
    return status;
}

void fsdp_mesh_hold(const struct fsdp_mesh *mesh)
{
    (void)shoal_mesh_ref(mesh->whole);
    if (mesh->shards) {
        group_hold(mesh->shards);
    }
    if (mesh->replicas) {
        group_hold(mesh->replicas);
    }
}

void fsdp_mesh_let_go(const struct fsdp_mesh *mesh)
{
    shoal_mesh_free(mesh->whole);
    if (mesh->shards) {
        group_let_go(mesh->shards);
    }
    if (mesh->replicas) {
        group_let_go(mesh->replicas);
    }
}

void fsdp_mesh_forget(struct fsdp_mesh *mesh)
{
    mesh->world = NULL;
    mesh->gather = mesh->reduce = mesh->replicate = mesh->calls = NULL;
    mesh->shards = mesh->replicas = NULL;
    mesh->whole = NULL;
}

uint32_t fsdp_mesh_next_root(struct fsdp_mesh *mesh)
{
    mesh->replica_root = mesh->replicas ? collectives_next_root(mesh->replicas) : 0;
    return mesh->shards ? collectives_next_root(mesh->shards) : mesh->replica_root;
}

shoal_status fsdp_mesh_neighbours(const struct fsdp_mesh *mesh, int n_ranks, shoal_group **group_out)
{
    char word[32];
    (void)snprintf(word, sizeof word, "kept %d", n_ranks);
    return group_create_lane(mesh->gather, mesh->shard / n_ranks * n_ranks, n_ranks, word, group_out);
}
