/* SPDX-License-Identifier: MIT */
/* Makes and frees domains. */
#include "parallel/fsdp/engine/state/domain.h"

#include "base/mem.h"
#include "base/try.h"

shoal_status fsdp_domain_create(const struct fsdp_mesh *mesh, uint32_t root, struct fsdp_memory *memory,
                                struct fsdp_domain **domain_out)
{
    struct fsdp_domain *domain = mem_alloc_zeroed(1, sizeof *domain);
    if (!domain) {
        return SHOAL_ERR_NO_MEMORY;
    }
    domain->mesh = *mesh;
    domain->root = root;
    fsdp_pool_init(&domain->pools.windows, FSDP_WINDOWS, mesh->gather, memory);
    fsdp_pool_init(&domain->pools.buffers, FSDP_BUFFERS, mesh->reduce ? mesh->reduce : mesh->replicate,
                   memory);
    fsdp_mesh_hold(mesh);
    *domain_out = domain;
    return SHOAL_OK;
}

void fsdp_domain_free(struct fsdp_domain *domain, bool is_open)
{
    if (!domain) {
        return;
    }
    for (size_t i = 0; i < domain->pools.n_kept; i++) {
        fsdp_pool_free(&domain->pools.kept[i]->windows);
        mem_free(domain->pools.kept[i]);
    }
    fsdp_pool_free(&domain->pools.windows);
    fsdp_pool_free(&domain->pools.buffers);
    mem_free(domain->pools.kept);
    if (is_open) {
        fsdp_mesh_let_go(&domain->mesh);
    }
    mem_free(domain);
}

void fsdp_domain_set_device(struct fsdp_domain *domain, shoal_device device)
{
    for (size_t i = 0; i < domain->pools.n_kept; i++) {
        fsdp_pool_set_device(&domain->pools.kept[i]->windows, device);
    }
    fsdp_pool_set_device(&domain->pools.windows, device);
    fsdp_pool_set_device(&domain->pools.buffers, device);
}

void fsdp_domain_forget_lanes(struct fsdp_domain *domain)
{
    fsdp_mesh_forget(&domain->mesh);
    for (size_t i = 0; i < domain->pools.n_kept; i++) {
        domain->pools.kept[i]->windows.group = NULL;
    }
}

void fsdp_domain_forget_memory(struct fsdp_domain *domain)
{
    for (size_t i = 0; i < domain->pools.n_kept; i++) {
        fsdp_pool_forget(&domain->pools.kept[i]->windows);
    }
    fsdp_pool_forget(&domain->pools.windows);
    fsdp_pool_forget(&domain->pools.buffers);
}

shoal_status fsdp_domain_need_kept(struct fsdp_domain *domain, int n_ranks, struct fsdp_memory *memory,
                                   struct fsdp_kept **kept_out)
{
    struct fsdp_pools *pools = &domain->pools;
    shoal_group *neighbours;
    for (size_t i = 0; i < pools->n_kept; i++) {
        if (pools->kept[i]->n_ranks == n_ranks) {
            *kept_out = pools->kept[i];
            return SHOAL_OK;
        }
    }
    TRY(mem_grow((void **)&pools->kept, &pools->kept_capacity, pools->n_kept + 1, sizeof pools->kept[0]));
    TRY(fsdp_mesh_neighbours(&domain->mesh, n_ranks, &neighbours));
    struct fsdp_kept *kept = mem_alloc_zeroed(1, sizeof *kept);
    if (!kept) {
        return SHOAL_ERR_NO_MEMORY;
    }
    kept->n_ranks = n_ranks;
    fsdp_pool_init(&kept->windows, FSDP_WINDOWS, neighbours, memory);
    fsdp_pool_set_device(&kept->windows, pools->windows.device);
    pools->kept[pools->n_kept++] = kept;
    *kept_out = kept;
    return SHOAL_OK;
}
