/* SPDX-License-Identifier: MIT */
/* Makes groups and meshes of units, and has the hooks and objects of PyTorch's runs as callbacks. */
#include "fsdp_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "shoal/fsdp_comm.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

/* Meshes ----------------------------------------------------------------------------------------------- */

static struct fsdp_made_mesh *find_made(struct fsdp_meshes *self, const struct fsdp_ranks *ranks)
{
    for (size_t i = 0; i < self->n_made; i++) {
        const struct fsdp_ranks *made = &self->made[i].ranks;
        if (made->n_replicas == ranks->n_replicas && made->n_shards == ranks->n_shards &&
            made->is_apart == ranks->is_apart) {
            return &self->made[i];
        }
    }
    return NULL;
}

/* A group of `count` ranks from `first` on, `step` apart. */
static shoal_status make_group(shoal_world *world, int first, int step, int count, const char *name,
                               shoal_group **group_out)
{
    int *ranks = calloc((size_t)count, sizeof(*ranks));
    if (!ranks) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for %d ranks", count);
    }
    for (int i = 0; i < count; i++) {
        ranks[i] = first + i * step;
    }
    shoal_status status = shoal_group_create(world, ranks, count, name, group_out);
    free(ranks);
    return status;
}

static shoal_status make_apart(struct fsdp_made_mesh *made, shoal_world *world)
{
    char name[40];
    int rank = shoal_world_rank(world);
    int n_shards = made->ranks.n_shards;
    (void)snprintf(name, sizeof name, "neighbours %d", n_shards);
    TRY(make_group(world, rank / n_shards * n_shards, 1, n_shards, name, &made->group));
    made->n_groups = shoal_world_n_ranks(world) / n_shards;
    (void)snprintf(name, sizeof name, "others %d", n_shards);
    return make_group(world, rank % n_shards, n_shards, made->n_groups, name, &made->others);
}

static shoal_status make(struct fsdp_made_mesh *made, shoal_world *world)
{
    const int shape[] = {made->ranks.n_replicas, made->ranks.n_shards};
    static const char *const names[] = {"replicate", "shard"};
    made->n_groups = 1;
    if (made->ranks.is_apart) {
        return make_apart(made, world);
    }
    if (made->ranks.n_replicas > 0) {
        return shoal_mesh_create(world, "cpu", NULL, shape, 2, names, &made->mesh);
    }
    made->group = shoal_world_group(world);
    return SHOAL_OK;
}

shoal_status fsdp_meshes_find(struct fsdp_meshes *self, shoal_world *world, const struct fsdp_ranks *ranks,
                              shoal_group **group_out, shoal_mesh **mesh_out)
{
    struct fsdp_made_mesh *made = find_made(self, ranks);
    if (!made) {
        if (self->n_made == FSDP_MAX_MESHES) {
            return error_set(SHOAL_ERR_UNSUPPORTED, "units have more than %d meshes", FSDP_MAX_MESHES);
        }
        made = &self->made[self->n_made++];
        *made = (struct fsdp_made_mesh){.ranks = *ranks};
        TRY(make(made, world));
    }
    *group_out = made->group;
    *mesh_out = made->mesh;
    return SHOAL_OK;
}

void fsdp_meshes_free(struct fsdp_meshes *self)
{
    for (size_t i = 0; i < self->n_made; i++) {
        shoal_mesh_free(self->made[i].mesh);
    }
}

/* Callbacks -------------------------------------------------------------------------------------------- */

/* data *= factor, in its dtype. */
static shoal_status scale(void *data, size_t count, shoal_dtype dtype, double factor)
{
    TRY(shoal_scope_begin());
    shoal_tensor *all = shoal_from_memory(data, (int64_t[]){(int64_t)count}, 1, dtype, NULL, NULL, NULL);
    (void)shoal_mul_scalar_(all, factor);
    return shoal_scope_end();
}

static shoal_status halve(void *context, const shoal_reduced_gradients *reduced, shoal_work **work_out)
{
    (void)context;
    (void)work_out;
    return scale(reduced->data, reduced->count, reduced->dtype, 0.5);
}

static shoal_status average_groups(void *context, const shoal_reduced_gradients *reduced,
                                   shoal_work **work_out)
{
    const struct fsdp_made_mesh *made = context;
    (void)work_out;
    if (!made->others) {
        return SHOAL_OK;
    }
    TRY(shoal_group_all_reduce(made->others, reduced->data, reduced->data, reduced->count, reduced->dtype,
                               SHOAL_SUM));
    return scale(reduced->data, reduced->count, reduced->dtype, 1.0 / made->n_groups);
}

static shoal_status gather(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                           shoal_group *group, shoal_work **work_out)
{
    (void)context;
    return shoal_group_all_gather_start(group, in, out, count, dtype, work_out);
}

static shoal_status scatter(void *out, const void *in, size_t count, shoal_dtype dtype,
                            shoal_reduce_op reduce, double factor, shoal_group *group)
{
    shoal_collective call = SHOAL_COLLECTIVE_REDUCE_SCATTER(in, out, count, dtype, reduce);
    call.factor = reduce == SHOAL_PREMUL_SUM ? factor : 0;
    return shoal_group_collective(group, &call);
}

static shoal_status reduce_scatter(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                                   shoal_reduce_op reduce, double factor, shoal_group *group,
                                   shoal_work **work_out)
{
    const struct fsdp_case *run = context;
    (void)work_out;
    if (run->custom != FSDP_CUSTOM_PREMUL || reduce != SHOAL_PREMUL_SUM) {
        return scatter(out, in, count, dtype, reduce, factor, group);
    }
    size_t n_elements = count * (size_t)shoal_group_n_ranks(group);
    void *scaled = malloc(n_elements * shoal_dtype_bytes(dtype) + 1);
    if (!scaled) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu elements", n_elements);
    }
    memcpy(scaled, in, n_elements * shoal_dtype_bytes(dtype));
    shoal_status status = scale(scaled, n_elements, dtype, factor);
    status = status == SHOAL_OK ? scatter(out, scaled, count, dtype, SHOAL_SUM, 0, group) : status;
    free(scaled);
    return status;
}

shoal_status fsdp_comm_set(struct fsdp_meshes *self, const struct fsdp_case *run, shoal_fsdp_unit *unit,
                           const struct fsdp_ranks *ranks)
{
    struct fsdp_made_mesh *made = find_made(self, ranks);
    if (run->hook != FSDP_NO_HOOK) {
        TRY(shoal_fsdp_set_all_reduce_hook(unit, run->hook == FSDP_HALVE ? halve : average_groups, made));
    }
    if (run->custom == FSDP_DEFAULT_COMM) {
        return SHOAL_OK;
    }
    shoal_custom_all_gather all_gather = SHOAL_CUSTOM_ALL_GATHER_INIT;
    shoal_custom_reduce_scatter scatters = SHOAL_CUSTOM_REDUCE_SCATTER_INIT;
    all_gather.call = gather;
    scatters.call = reduce_scatter;
    scatters.context = (void *)(uintptr_t)run;
    TRY(shoal_fsdp_set_custom_all_gather(unit, &all_gather));
    return shoal_fsdp_set_custom_reduce_scatter(unit, &scatters);
}
