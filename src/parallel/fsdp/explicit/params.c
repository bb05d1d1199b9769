/* SPDX-License-Identifier: MIT */
/* The calls of shoal/fsdp.h that make contexts, and that take parameters by their numbers. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/reduce/landing.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "parallel/fsdp/explicit/explicit.h"
#include "shoal/fsdp.h"

/* Making ------------------------------------------------------------------------------------------------- */

static shoal_status visit_all(void *owner, fsdp_unit_visitor visit, void *context)
{
    const shoal_fsdp *fsdp = owner;
    for (size_t i = 0; i < fsdp->context->n_units; i++) {
        TRY(visit(fsdp->context->units[i], context));
    }
    return SHOAL_OK;
}

/* Makes a context. `status` tells whether the mesh could be made; if not, this is the error of `call`. */
static shoal_status create(const char *call, shoal_status status, const struct fsdp_mesh *mesh,
                           bool is_replicated, const shoal_fsdp_options *given, shoal_fsdp **fsdp_out)
{
    shoal_fsdp_options options = {.struct_size = sizeof options};
    shoal_fsdp *fsdp = NULL;
    if (status == SHOAL_OK && given) {
        status = struct_size_read("shoal_fsdp_options", given, sizeof(size_t), &options, sizeof options);
    }
    if (status == SHOAL_OK && is_replicated) {
        status = fsdp_check_not_sharded("the context is replicated", options.sharded);
    }
    if (status == SHOAL_OK) {
        fsdp = mem_alloc_zeroed(1, sizeof *fsdp);
        status = fsdp ? fsdp_context_create(mesh, &options, /*root=*/0, &fsdp->context) : SHOAL_ERR_NO_MEMORY;
    }
    if (status != SHOAL_OK) {
        mem_free(fsdp);
        return error_prefix(status, "%s", call);
    }
    fsdp->way = &explicit_way;
    fsdp->all = (struct shoal_fsdp_unit){.each = visit_all, .owner = fsdp};
    /* The last thing that is done: a call that fails must not use up a number. */
    fsdp->context->domains[0]->root = fsdp_mesh_next_root(&fsdp->context->domains[0]->mesh);
    *fsdp_out = fsdp;
    return SHOAL_OK;
}

static shoal_status check_out(const char *call, shoal_fsdp **fsdp_out)
{
    error_clear();
    return fsdp_out ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "%s: fsdp_out is NULL", call);
}

shoal_status shoal_fsdp_create(shoal_group *group, const shoal_fsdp_options *options, shoal_fsdp **fsdp_out)
{
    struct fsdp_mesh mesh;
    TRY(check_out("fsdp_create", fsdp_out));
    return create("fsdp_create", fsdp_mesh_from_group(group, &mesh), &mesh, /*is_replicated=*/false, options,
                  fsdp_out);
}

shoal_status shoal_fsdp_create_on_mesh(shoal_mesh *given, const shoal_fsdp_options *options,
                                       shoal_fsdp **fsdp_out)
{
    struct fsdp_mesh mesh;
    TRY(check_out("fsdp_create_on_mesh", fsdp_out));
    return create("fsdp_create_on_mesh", fsdp_mesh_from_mesh(given, &mesh), &mesh, /*is_replicated=*/false,
                  options, fsdp_out);
}

shoal_status shoal_fsdp_create_replicated(shoal_group *group, const shoal_fsdp_options *options,
                                          shoal_fsdp **fsdp_out)
{
    struct fsdp_mesh mesh;
    TRY(check_out("fsdp_create_replicated", fsdp_out));
    return create("fsdp_create_replicated", fsdp_mesh_from_replicas(group, &mesh), &mesh,
                  /*is_replicated=*/true, options, fsdp_out);
}

/* Units --------------------------------------------------------------------------------------------------- */

static shoal_status find_mesh(const shoal_fsdp_unit_options *options, struct fsdp_mesh *mesh_out)
{
    if (!options->group == !options->mesh) {
        return error_set(SHOAL_ERR_INVALID, options->group ? "both a group and a mesh are given"
                                                           : "neither a group nor a mesh is given");
    }
    if (options->mesh && options->is_replicated) {
        return error_set(SHOAL_ERR_INVALID, "is_replicated needs a group, not a mesh");
    }
    if (options->mesh) {
        return fsdp_mesh_from_mesh(options->mesh, mesh_out);
    }
    return options->is_replicated ? fsdp_mesh_from_replicas(options->group, mesh_out)
                                  : fsdp_mesh_from_group(options->group, mesh_out);
}

static shoal_status check_new_unit(const struct fsdp_context *context, const struct fsdp_mesh *mesh,
                                   bool is_replicated)
{
    if (context->is_prepared || context->common) {
        return error_set(SHOAL_ERR_STATE, "a unit is added after the first forward pass");
    }
    if (mesh->world != context->domains[0]->mesh.world) {
        return error_set(SHOAL_ERR_INVALID, "its ranks are those of another world than the context's");
    }
    if (is_replicated) {
        TRY(fsdp_check_not_sharded("is_replicated is true", context->options.sharded));
    }
    return context->options.reshard == SHOAL_RESHARD_PARTLY
               ? fsdp_check_reshard_ranks(mesh, context->options.reshard_ranks)
               : SHOAL_OK;
}

static shoal_status add_unit(struct fsdp_context *context, const shoal_fsdp_unit_options *given,
                             int *unit_out)
{
    shoal_fsdp_unit_options options = {.struct_size = sizeof options};
    struct fsdp_mesh mesh;
    struct fsdp_domain *domain;
    struct fsdp_unit *unit;
    TRY(struct_size_read("shoal_fsdp_unit_options", given, sizeof(size_t), &options, sizeof options));
    TRY(find_mesh(&options, &mesh));
    TRY(check_new_unit(context, &mesh, options.is_replicated));
    size_t n_domains = context->n_domains;
    TRY(fsdp_context_need_domain(context, &mesh, /*root=*/0, &domain));
    TRY(fsdp_unit_create(context, domain, &unit));
    if (context->n_domains > n_domains) {
        domain->root = fsdp_mesh_next_root(&domain->mesh);
        unit->root = domain->root;
    }
    *unit_out = unit->number;
    return SHOAL_OK;
}

shoal_status shoal_fsdp_add_unit(shoal_fsdp *fsdp, const shoal_fsdp_unit_options *options, int *unit_out)
{
    int unit = 0;
    TRY(explicit_check("add_unit", fsdp));
    shoal_status status = options ? add_unit(fsdp->context, options, &unit) : error_null("options");
    if (status != SHOAL_OK) {
        return error_prefix(status, "add_unit");
    }
    if (unit_out) {
        *unit_out = unit;
    }
    return SHOAL_OK;
}

/* Does nothing for the contexts of modules, which are freed with their root module. */
void shoal_fsdp_free(shoal_fsdp *fsdp)
{
    if (fsdp && fsdp->way == &explicit_way) {
        fsdp_context_free(fsdp->context);
        fsdp_handle_free(fsdp);
    }
}

/* Finding ------------------------------------------------------------------------------------------------ */

shoal_status explicit_find_unit(const char *call, const shoal_fsdp *fsdp, int unit,
                                struct fsdp_unit **unit_out)
{
    TRY(explicit_check(call, fsdp));
    if (unit < 0 || (size_t)unit >= fsdp->context->n_units) {
        return error_set(SHOAL_ERR_INVALID, "%s: there is no unit %d: there are %zu", call, unit,
                         fsdp->context->n_units);
    }
    *unit_out = fsdp->context->units[unit];
    return SHOAL_OK;
}

/* Does not put the name of a call before the error text. */
static shoal_status check_id(const shoal_fsdp *fsdp, int id)
{
    return id >= 0 && (size_t)id < fsdp->n_params
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "there is no parameter %d: there are %zu", id, fsdp->n_params);
}

shoal_status explicit_find_param(const char *call, const shoal_fsdp *fsdp, int id,
                                 struct fsdp_unit **unit_out, struct fsdp_param **param_out)
{
    TRY(explicit_check(call, fsdp));
    shoal_status status = check_id(fsdp, id);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", call);
    }
    *unit_out = fsdp->params[id]->unit;
    *param_out = &(*unit_out)->params[fsdp->params[id]->index];
    return SHOAL_OK;
}

shoal_fsdp_param *shoal_fsdp_param_of(shoal_fsdp *fsdp, int id)
{
    if (fsdp_handle_there(fsdp) == SHOAL_OK && check_id(fsdp, id) == SHOAL_OK) {
        return fsdp->params[id];
    }
    fsdp_handle_not_found("param_of");
    return NULL;
}

int shoal_fsdp_n_params(const shoal_fsdp *fsdp)
{
    return fsdp ? (int)fsdp->n_params : 0;
}

static const char *name_at(const shoal_fsdp *fsdp, size_t id)
{
    return fsdp->params[id]->unit->params[fsdp->params[id]->index].name;
}

static shoal_status report_missing(const shoal_fsdp *fsdp, const char *name)
{
    struct nearest nearest;
    nearest_begin(&nearest, name);
    for (size_t id = 0; id < fsdp->n_params; id++) {
        nearest_add(&nearest, name_at(fsdp, id));
    }
    char words[NEAREST_BYTES];
    nearest_describe(&nearest, "parameters", words);
    return error_set(SHOAL_ERR_INVALID, "find_param: there is no parameter \"%.64s\"; %s", name, words);
}

shoal_status shoal_fsdp_find_param(const shoal_fsdp *fsdp, const char *name, int *id_out)
{
    TRY(explicit_check("find_param", fsdp));
    if (!name || !id_out) {
        return error_set(SHOAL_ERR_INVALID, "find_param: %s is NULL", name ? "id_out" : "name");
    }
    size_t found = fsdp->n_params;
    for (size_t id = 0; id < fsdp->n_params; id++) {
        if (strcmp(name_at(fsdp, id), name) != 0) {
            continue;
        }
        if (found < fsdp->n_params) {
            return error_set(
                SHOAL_ERR_INVALID,
                "find_param: \"%.64s\" is the name of parameter %zu of %s and of parameter %zu of %s", name,
                found, fsdp->params[found]->unit->name, id, fsdp->params[id]->unit->name);
        }
        found = id;
    }
    if (found == fsdp->n_params) {
        return report_missing(fsdp, name);
    }
    *id_out = (int)found;
    return SHOAL_OK;
}

/* Parameters --------------------------------------------------------------------------------------------- */

static shoal_status check_new_param(const shoal_fsdp *fsdp, int unit, const char *name)
{
    TRY(explicit_check("add_param", fsdp));
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "add_param: name is NULL");
    }
    if (fsdp->context->is_prepared) {
        return error_set(SHOAL_ERR_STATE, "add_param: parameter %s is added after the first forward pass",
                         name);
    }
    if (unit < 0 || (size_t)unit > fsdp->context->n_units) {
        return error_set(SHOAL_ERR_INVALID,
                         "add_param: parameter %s: unit is %d, but the next new unit is %zu: units are "
                         "numbered without gaps",
                         name, unit, fsdp->context->n_units);
    }
    return SHOAL_OK;
}

/* The mesh of a unit, which may be the next new one. */
static const struct fsdp_mesh *mesh_of(const struct fsdp_context *context, int unit)
{
    return (size_t)unit < context->n_units ? context->units[unit]->mesh : &context->domains[0]->mesh;
}

/* Everything that can fail comes before anything is changed. */
static shoal_status add_param(shoal_fsdp *fsdp, int unit, struct fsdp_param *param)
{
    struct fsdp_context *context = fsdp->context;
    struct fsdp_unit *owner;
    TRY(mem_grow((void **)&fsdp->params, &fsdp->capacity, fsdp->n_params + 1, sizeof fsdp->params[0]));
    TRY(fsdp_param_allocate(param));
    param->id = (int)fsdp->n_params;
    if ((size_t)unit == context->n_units) {
        TRY(fsdp_unit_create(context, context->domains[0], &owner));
    }
    owner = context->units[unit];
    TRY(fsdp_unit_add_param(owner, param));
    fsdp->params[fsdp->n_params++] = owner->param_handles[owner->n_params - 1];
    return SHOAL_OK;
}

shoal_status shoal_fsdp_add_param_along(shoal_fsdp *fsdp, int unit, const char *name, shoal_dtype dtype,
                                        int n_dims, const int64_t *shape, int dim, const void *full,
                                        int *id_out)
{
    struct fsdp_param param = {.name = NULL};
    TRY(check_new_param(fsdp, unit, name));
    const struct fsdp_mesh *mesh = mesh_of(fsdp->context, unit);
    shoal_status status =
        fsdp_param_init(&param, name, dtype, n_dims, shape, dim, mesh->shard, mesh->n_shards);
    param.device = fsdp->context->options.device;
    if (status == SHOAL_OK) {
        status = add_param(fsdp, unit, &param);
        status = status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "parameter %.128s", name);
    }
    if (status != SHOAL_OK) {
        fsdp_param_free(&param);
        return error_prefix(status, "add_param");
    }
    int id = (int)fsdp->n_params - 1;
    if (id_out) {
        *id_out = id;
    }
    return full ? shoal_fsdp_load(fsdp->params[id], full) : SHOAL_OK;
}

shoal_status shoal_fsdp_add_param(shoal_fsdp *fsdp, int unit, const char *name, shoal_dtype dtype, int n_dims,
                                  const int64_t *shape, const void *full, int *id_out)
{
    return shoal_fsdp_add_param_along(fsdp, unit, name, dtype, n_dims, shape, 0, full, id_out);
}

/* SHOAL_ERR_STATE if the unit is in a pass, its gather is in flight, or gradients wait in its buffer. */
static shoal_status check_between_steps(const struct fsdp_unit *unit, const char *what)
{
    if (unit->step.phase == FSDP_IDLE && !unit->gather.is_pending && !unit->grads.buffer) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE, "%s: %s is in the middle of a step", what, unit->name);
}

shoal_status shoal_fsdp_set_requires_grad(shoal_fsdp *fsdp, int id, bool is_required)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param("set_requires_grad", fsdp, id, &unit, &param));
    TRY(check_between_steps(unit, "set_requires_grad"));
    if (unit->grads.has_partial) {
        return error_set(SHOAL_ERR_STATE,
                         "set_requires_grad: the gradients of %s have not been reduced over the replicas yet "
                         "(set_all_reduce)",
                         unit->name);
    }
    if (is_required && !shoal_dtype_is_floating(param->dtype)) {
        return error_set(SHOAL_ERR_INVALID, "set_requires_grad: parameter %s is %s, which has no gradients",
                         param->name, shoal_dtype_name(param->dtype));
    }
    param->requires_grad = is_required;
    return SHOAL_OK;
}

/* SHOAL_ERR_STATE if a backward pass was not ended, or reductions are still in flight. */
static shoal_status check_landed(const shoal_fsdp *fsdp, const char *what)
{
    TRY(explicit_check_ended(fsdp, what));
    return fsdp->context->reductions.n == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE,
                           "%s: gradients are still being reduced until the last backward pass ends "
                           "(shoal_fsdp_set_is_last_backward)",
                           what);
}

static shoal_status give_shard(const char *call, const shoal_fsdp *fsdp, int id, shoal_fsdp_shard *shard_out)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param(call, fsdp, id, &unit, &param));
    if (!shard_out) {
        return error_set(SHOAL_ERR_INVALID, "%s: parameter %s: shard_out is NULL", call, param->name);
    }
    TRY(check_landed(fsdp, call));
    const shoal_fsdp_shard shard = fsdp_shard_of(param);
    shoal_status status = struct_size_write("shard_out", shard_out, sizeof(size_t), &shard, sizeof shard);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

shoal_status shoal_fsdp_update_shard(shoal_fsdp *fsdp, int id, shoal_fsdp_shard *shard_out)
{
    TRY(give_shard("update_shard", fsdp, id, shard_out));
    fsdp->context->n_asked++;
    return SHOAL_OK;
}

shoal_status shoal_fsdp_read_shard(const shoal_fsdp *fsdp, int id, shoal_fsdp_shard *shard_out)
{
    return give_shard("read_shard", fsdp, id, shard_out);
}
