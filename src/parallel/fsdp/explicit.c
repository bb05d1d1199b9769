/* SPDX-License-Identifier: MIT */
/* The calls of shoal/fsdp.h: the machine of unit.h behind numbers and raw pointers. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "parallel/fsdp/explicit.h"
#include "parallel/fsdp/whole.h"
#include "tensor/dtype.h"

/* Making ------------------------------------------------------------------------------------------------- */

static shoal_status create(const struct fsdp_mesh *mesh, const shoal_fsdp_options *given,
                           shoal_fsdp **fsdp_out)
{
    shoal_fsdp_options options = {.struct_size = sizeof options};
    if (given) {
        TRY(struct_size_read("shoal_fsdp_options", given, sizeof(size_t), &options, sizeof options));
    }
    shoal_fsdp *fsdp = mem_alloc_zeroed(1, sizeof *fsdp);
    if (!fsdp) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = fsdp_context_create(mesh, &options, &fsdp->context);
    if (status != SHOAL_OK) {
        mem_free(fsdp);
        return error_prefix(status, "fsdp_create");
    }
    *fsdp_out = fsdp;
    return SHOAL_OK;
}

static shoal_status check_out(shoal_fsdp **fsdp_out)
{
    error_clear();
    return fsdp_out ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "fsdp_create: fsdp_out is NULL");
}

shoal_status shoal_fsdp_create(shoal_group *group, const shoal_fsdp_options *options, shoal_fsdp **fsdp_out)
{
    struct fsdp_mesh mesh;
    TRY(check_out(fsdp_out));
    shoal_status status = fsdp_mesh_from_group(group, &mesh);
    return status == SHOAL_OK ? create(&mesh, options, fsdp_out) : error_prefix(status, "fsdp_create");
}

shoal_status shoal_fsdp_create_on_mesh(shoal_mesh *given, const shoal_fsdp_options *options,
                                       shoal_fsdp **fsdp_out)
{
    struct fsdp_mesh mesh;
    TRY(check_out(fsdp_out));
    shoal_status status = fsdp_mesh_from_mesh(given, &mesh);
    return status == SHOAL_OK ? create(&mesh, options, fsdp_out) : error_prefix(status, "fsdp_create");
}

shoal_status shoal_fsdp_create_replicated(shoal_group *group, const shoal_fsdp_options *options,
                                          shoal_fsdp **fsdp_out)
{
    struct fsdp_mesh mesh;
    TRY(check_out(fsdp_out));
    shoal_status status = fsdp_mesh_from_replicas(group, &mesh);
    return status == SHOAL_OK ? create(&mesh, options, fsdp_out) : error_prefix(status, "fsdp_create");
}

void shoal_fsdp_free(shoal_fsdp *fsdp)
{
    if (fsdp) {
        fsdp_context_free(fsdp->context);
        mem_free(fsdp->places);
        mem_free(fsdp);
    }
}

/* Finding ------------------------------------------------------------------------------------------------ */

shoal_status explicit_check(const char *call, const shoal_fsdp *fsdp)
{
    error_clear();
    if (!fsdp) {
        return error_set(SHOAL_ERR_INVALID, "%s: fsdp is NULL", call);
    }
    shoal_status status = fsdp_context_check(fsdp->context);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

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

shoal_status explicit_find_param(const char *call, const shoal_fsdp *fsdp, int id,
                                 struct fsdp_unit **unit_out, struct fsdp_param **param_out)
{
    TRY(explicit_check(call, fsdp));
    if (id < 0 || (size_t)id >= fsdp->n_places) {
        return error_set(SHOAL_ERR_INVALID, "%s: there is no parameter %d: there are %zu", call, id,
                         fsdp->n_places);
    }
    *unit_out = fsdp->context->units[fsdp->places[id].unit];
    *param_out = &(*unit_out)->params[fsdp->places[id].index];
    return SHOAL_OK;
}

/* Failed groups -------------------------------------------------------------------------------------------- */

shoal_status explicit_check_failure(const shoal_fsdp *fsdp)
{
    return fsdp->failure == SHOAL_OK ? SHOAL_OK : error_set(fsdp->failure, "%s", fsdp->failure_text);
}

shoal_status explicit_end_call(shoal_fsdp *fsdp, shoal_status status)
{
    bool is_lasting = status == SHOAL_ERR_PEER || status == SHOAL_ERR_MISMATCH || status == SHOAL_ERR_TIMEOUT;
    if (is_lasting && fsdp->failure == SHOAL_OK) {
        fsdp->failure = status;
        (void)snprintf(fsdp->failure_text, sizeof fsdp->failure_text, "%s", shoal_error_text());
    }
    return status;
}

shoal_status explicit_find_unit_of_step(const char *call, const shoal_fsdp *fsdp, int unit,
                                        struct fsdp_unit **unit_out)
{
    TRY(explicit_find_unit(call, fsdp, unit, unit_out));
    return explicit_check_failure(fsdp);
}

shoal_status explicit_check_ended(const shoal_fsdp *fsdp, const char *what)
{
    if (!fsdp->context->is_in_backward) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE, "%s: the backward has not been ended (shoal_fsdp_end_backward)", what);
}

shoal_status explicit_check_landed(const shoal_fsdp *fsdp, const char *what)
{
    TRY(explicit_check_ended(fsdp, what));
    return fsdp->context->n_reductions == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE,
                           "%s: gradients are on their way until a backward that is the last one ends "
                           "(shoal_fsdp_set_is_last_backward)",
                           what);
}

shoal_status explicit_check_between_steps(const struct fsdp_unit *unit, const char *what)
{
    if (unit->phase == FSDP_IDLE && !unit->is_pending && !unit->buffer) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE, "%s: %s is in the middle of a step", what, unit->name);
}

/* Parameters --------------------------------------------------------------------------------------------- */

static shoal_status check_new_param(const shoal_fsdp *fsdp, int unit, const char *name)
{
    TRY(explicit_check("add_param", fsdp));
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "add_param: name is NULL");
    }
    if (fsdp->context->is_prepared) {
        return error_set(SHOAL_ERR_STATE, "add_param: %s comes after the first forward", name);
    }
    if (unit < 0 || (size_t)unit > fsdp->context->n_units) {
        return error_set(SHOAL_ERR_INVALID, "add_param: %s: unit %d, but there are %zu: the next is %zu",
                         name, unit, fsdp->context->n_units, fsdp->context->n_units);
    }
    return SHOAL_OK;
}

/* Everything that can fail comes before anything is changed. */
static shoal_status add_param(shoal_fsdp *fsdp, int unit, struct fsdp_param *param)
{
    struct fsdp_context *context = fsdp->context;
    struct fsdp_unit *owner;
    TRY(mem_grow((void **)&fsdp->places, &fsdp->capacity, fsdp->n_places + 1, sizeof fsdp->places[0]));
    TRY(fsdp_param_allocate(param));
    param->id = (int)fsdp->n_places;
    if ((size_t)unit == context->n_units) {
        TRY(fsdp_unit_create(context, &owner));
    }
    owner = context->units[unit];
    TRY(fsdp_unit_add_param(owner, param));
    fsdp->places[fsdp->n_places++] =
        (struct explicit_place){.unit = (size_t)unit, .index = owner->n_params - 1};
    return SHOAL_OK;
}

shoal_status shoal_fsdp_add_param_along(shoal_fsdp *fsdp, int unit, const char *name, shoal_dtype dtype,
                                        int n_dims, const int64_t *shape, int dim, const void *full,
                                        int *id_out)
{
    struct fsdp_param param = {.name = NULL};
    TRY(check_new_param(fsdp, unit, name));
    const struct fsdp_mesh *mesh = &fsdp->context->mesh;
    shoal_status status =
        fsdp_param_init(&param, name, dtype, n_dims, shape, dim, mesh->shard, mesh->n_shards);
    if (status == SHOAL_OK) {
        status = add_param(fsdp, unit, &param);
    }
    if (status != SHOAL_OK) {
        fsdp_param_free(&param);
        return error_prefix(status, "add_param");
    }
    int id = (int)fsdp->n_places - 1;
    if (id_out) {
        *id_out = id;
    }
    return full ? shoal_fsdp_load(fsdp, id, full) : SHOAL_OK;
}

shoal_status shoal_fsdp_add_param(shoal_fsdp *fsdp, int unit, const char *name, shoal_dtype dtype, int n_dims,
                                  const int64_t *shape, const void *full, int *id_out)
{
    return shoal_fsdp_add_param_along(fsdp, unit, name, dtype, n_dims, shape, 0, full, id_out);
}

shoal_status shoal_fsdp_set_requires_grad(shoal_fsdp *fsdp, int id, bool is_required)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param("set_requires_grad", fsdp, id, &unit, &param));
    TRY(explicit_check_between_steps(unit, "set_requires_grad"));
    if (unit->has_partial) {
        return error_set(
            SHOAL_ERR_STATE,
            "set_requires_grad: the replicas of %s have not added up their gradients yet (set_all_reduce)",
            unit->name);
    }
    if (is_required && !shoal_dtype_is_floating(param->dtype)) {
        return error_set(SHOAL_ERR_INVALID, "set_requires_grad: parameter %s is %s", param->name,
                         shoal_dtype_name(param->dtype));
    }
    param->requires_grad = is_required;
    return SHOAL_OK;
}

/* After the first forward, at which neighbours are found. */
static shoal_status change_reshard(struct fsdp_unit *unit, shoal_reshard reshard)
{
    TRY(fsdp_unit_check_idle(unit, "set_reshard"));
    if (reshard == SHOAL_RESHARD_PARTLY && !unit->neighbours) {
        return error_set(SHOAL_ERR_STATE,
                         "set_reshard: %s has had its first forward, and no neighbours to stay with",
                         unit->name);
    }
    unit->reshard = reshard;
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_reshard(shoal_fsdp *fsdp, int number, shoal_reshard reshard)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_find_unit("set_reshard", fsdp, number, &unit));
    if ((int)reshard < 0 || reshard > SHOAL_RESHARD_PARTLY) {
        return error_set(SHOAL_ERR_INVALID, "set_reshard: there is no %d", (int)reshard);
    }
    if (reshard == SHOAL_RESHARD_PARTLY) {
        TRY(fsdp_check_reshard_ranks(&fsdp->context->mesh, fsdp->context->options.reshard_ranks));
    }
    if (!fsdp->context->is_prepared) {
        unit->reshard = reshard;
        return SHOAL_OK;
    }
    return change_reshard(unit, fsdp_effective_reshard(unit, reshard));
}

shoal_status shoal_fsdp_set_unit_name(shoal_fsdp *fsdp, int number, const char *name)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_find_unit("set_unit_name", fsdp, number, &unit));
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "set_unit_name: name is NULL");
    }
    char *copy = mem_copy_string(name);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    mem_free(unit->name);
    unit->name = copy;
    return SHOAL_OK;
}

shoal_status shoal_fsdp_load(shoal_fsdp *fsdp, int id, const void *full)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param("load", fsdp, id, &unit, &param));
    TRY(explicit_check_between_steps(unit, "load"));
    if (!full && param->count > 0) {
        return error_set(SHOAL_ERR_INVALID, "load: full is NULL");
    }
    TRY(fsdp_unit_reshard(unit)); /* a forward without backward may have left what was gathered */
    fsdp_param_load(param, full);
    return SHOAL_OK;
}

shoal_status shoal_fsdp_load_slice(shoal_fsdp *fsdp, int id, int64_t offset, int64_t length,
                                   const void *slice)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param("load_slice", fsdp, id, &unit, &param));
    TRY(explicit_check_between_steps(unit, "load_slice"));
    TRY(fsdp_check_slice(param, "load_slice", offset, length, slice));
    TRY(fsdp_unit_reshard(unit)); /* as in load */
    (void)fsdp_param_load_slice(param, offset, length, slice);
    return SHOAL_OK;
}

shoal_status shoal_fsdp_broadcast(shoal_fsdp *fsdp, int id, const void *full, int root)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param("broadcast", fsdp, id, &unit, &param));
    TRY(explicit_check_between_steps(unit, "broadcast"));
    const struct fsdp_mesh *mesh = &fsdp->context->mesh;
    TRY(fsdp_check_rank(mesh, "broadcast", "root", root));
    if (!full && param->count > 0 && fsdp_mesh_is_rank(mesh, root)) {
        return error_set(SHOAL_ERR_INVALID, "broadcast: full is NULL on the root");
    }
    TRY(fsdp_unit_reshard(unit)); /* as in load */
    TRY(explicit_check_failure(fsdp));
    return explicit_end_call(fsdp, fsdp_param_broadcast_alone(param, mesh, full, root));
}

shoal_status shoal_fsdp_gather(shoal_fsdp *fsdp, int id, void *full)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param("gather", fsdp, id, &unit, &param));
    if (!full && param->count > 0) {
        return error_set(SHOAL_ERR_INVALID, "gather: full is NULL");
    }
    TRY(explicit_check_failure(fsdp));
    return explicit_end_call(fsdp, fsdp_param_gather(param, &fsdp->context->mesh, full));
}

shoal_status shoal_fsdp_gather_to(shoal_fsdp *fsdp, int id, void *full, int root)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param("gather_to", fsdp, id, &unit, &param));
    const struct fsdp_mesh *mesh = &fsdp->context->mesh;
    TRY(fsdp_check_rank(mesh, "gather_to", "root", root));
    if (!full && param->count > 0 && fsdp_mesh_is_rank(mesh, root)) {
        return error_set(SHOAL_ERR_INVALID, "gather_to: full is NULL on the root");
    }
    TRY(explicit_check_failure(fsdp));
    return explicit_end_call(fsdp, fsdp_param_gather_to(param, mesh, full, root));
}

shoal_fsdp_shard explicit_shard(const struct fsdp_param *param)
{
    return (shoal_fsdp_shard){.data = param->shard,
                              .grad = param->has_grad ? param->shard_grad : NULL,
                              .count = param->shard_count,
                              .offset = param->begin,
                              .length = param->length};
}

shoal_status shoal_fsdp_get_shard(shoal_fsdp *fsdp, int id, shoal_fsdp_shard *shard_out)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param("get_shard", fsdp, id, &unit, &param));
    if (!shard_out) {
        return error_set(SHOAL_ERR_INVALID, "get_shard: shard_out is NULL");
    }
    TRY(explicit_check_landed(fsdp, "get_shard"));
    *shard_out = explicit_shard(param);
    return SHOAL_OK;
}

int shoal_fsdp_n_params(const shoal_fsdp *fsdp)
{
    return fsdp ? (int)fsdp->n_places : 0;
}

const char *shoal_fsdp_param_name(const shoal_fsdp *fsdp, int id)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    return explicit_find_param("param_name", fsdp, id, &unit, &param) == SHOAL_OK ? param->name : "";
}

/* A step ------------------------------------------------------------------------------------------------- */

shoal_status shoal_fsdp_pre_forward(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_find_unit_of_step("pre_forward", fsdp, number, &unit));
    if (unit->phase != FSDP_PRE_BACKWARD) { /* inside its backward it is computed again */
        TRY(explicit_check_ended(fsdp, "pre_forward"));
    }
    return explicit_end_call(fsdp, fsdp_unit_pre_forward(unit));
}

shoal_status shoal_fsdp_post_forward(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_find_unit_of_step("post_forward", fsdp, number, &unit));
    if (unit->phase != FSDP_FORWARD && unit->phase != FSDP_PRE_BACKWARD) {
        return error_set(SHOAL_ERR_STATE, "post_forward: %s has had no pre_forward", unit->name);
    }
    return explicit_end_call(fsdp, fsdp_unit_post_forward(unit));
}

shoal_status shoal_fsdp_pre_backward(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_find_unit_of_step("pre_backward", fsdp, number, &unit));
    if (unit->phase == FSDP_FORWARD) {
        return error_set(SHOAL_ERR_STATE, "pre_backward: %s has had no post_forward", unit->name);
    }
    if (!fsdp->context->is_prepared || (unit->phase != FSDP_PRE_BACKWARD && !unit->was_forward)) {
        return error_set(SHOAL_ERR_STATE, "pre_backward: %s has had no forward in this step", unit->name);
    }
    TRY(explicit_end_call(fsdp, fsdp_unit_pre_backward(unit)));
    return explicit_end_call(fsdp, fsdp_unit_begin_grads(unit));
}

shoal_status shoal_fsdp_post_backward(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_find_unit_of_step("post_backward", fsdp, number, &unit));
    if (unit->phase != FSDP_PRE_BACKWARD) {
        return error_set(SHOAL_ERR_STATE, "post_backward: %s has had no pre_backward", unit->name);
    }
    return explicit_end_call(fsdp, fsdp_unit_post_backward(unit));
}

shoal_status shoal_fsdp_end_backward(shoal_fsdp *fsdp)
{
    TRY(explicit_check("end_backward", fsdp));
    TRY(explicit_check_failure(fsdp));
    return explicit_end_call(fsdp, fsdp_end_backward(fsdp->context));
}

const void *shoal_fsdp_param(shoal_fsdp *fsdp, int id)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    if (explicit_find_param("param", fsdp, id, &unit, &param) != SHOAL_OK) {
        return NULL;
    }
    bool is_its_turn = unit->phase == FSDP_FORWARD || unit->phase == FSDP_PRE_BACKWARD || unit->is_held;
    if (unit->state != FSDP_UNSHARDED || !is_its_turn) {
        (void)error_set(SHOAL_ERR_STATE,
                        "parameter %s of %s is only whole between pre_ and post_forward, between pre_ and "
                        "post_backward, and between wait and reshard",
                        param->name, unit->name);
        return NULL;
    }
    return fsdp_unit_param(unit, param);
}

void *shoal_fsdp_grad(shoal_fsdp *fsdp, int id)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    if (explicit_find_param("grad", fsdp, id, &unit, &param) != SHOAL_OK) {
        return NULL;
    }
    if (!unit->has_begun || !param->requires_grad) {
        (void)error_set(SHOAL_ERR_STATE,
                        param->requires_grad
                            ? "the gradient of %s of %s can only be written between pre_ and post_backward"
                            : "parameter %s of %s gets no gradient",
                        param->name, unit->name);
        return NULL;
    }
    return fsdp_unit_grad(unit, param);
}

shoal_status shoal_fsdp_set_sync(shoal_fsdp *fsdp, bool is_on)
{
    TRY(explicit_check("set_sync", fsdp));
    for (size_t i = 0; i < fsdp->context->n_units; i++) {
        fsdp->context->units[i]->reduces = is_on;
        fsdp->context->units[i]->all_reduces = is_on;
    }
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_all_reduce(shoal_fsdp *fsdp, bool is_on)
{
    TRY(explicit_check("set_all_reduce", fsdp));
    for (size_t i = 0; i < fsdp->context->n_units; i++) {
        fsdp->context->units[i]->all_reduces = is_on;
    }
    return SHOAL_OK;
}

void shoal_fsdp_zero_grad(shoal_fsdp *fsdp)
{
    for (size_t i = 0; fsdp && i < fsdp->context->n_units; i++) {
        struct fsdp_unit *unit = fsdp->context->units[i];
        for (size_t k = 0; k < unit->n_params; k++) {
            unit->params[k].has_grad = false;
        }
        if (!fsdp->context->is_in_backward && !fsdp->context->is_closed) {
            fsdp_unit_drop_grads(unit);
        }
    }
}

shoal_status shoal_fsdp_reset(shoal_fsdp *fsdp)
{
    TRY(explicit_check("reset", fsdp));
    shoal_status status = fsdp_reset(fsdp->context);
    TRY(explicit_check_failure(fsdp));
    return explicit_end_call(fsdp, status);
}
