/* SPDX-License-Identifier: MIT */
/*
 * The calls of shoal/fsdp_unit.h on a parameter, and on arrays that are sharded like one (an optimizer's moments): they
 * tell where it lies, and copy whole values from and to a rank's memory. For contexts of explicit calls and of modules.
 */
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "parallel/fsdp/array.h"
#include "parallel/fsdp/engine/agree/compare_param.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/extension.h"
#include "parallel/fsdp/engine/state/failure.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/step/pending.h"
#include "parallel/fsdp/engine/step/prepare.h"
#include "parallel/fsdp/engine/step/transfer.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "shoal/fsdp_unit.h"
#include "tensor/dtype.h"

/* A call about a parameter, and what it works on. */
struct param_call {
    const char *name;
    struct fsdp_unit *unit;
    size_t index;
    struct fsdp_param *param;
    struct fsdp_array array; /* the values of its shard, or an array that is cut like it */
};

static shoal_status find(struct param_call *call, const shoal_fsdp_param *handle)
{
    TRY(fsdp_handle_param(call->name, handle, &call->unit, &call->index));
    call->param = &call->unit->params[call->index];
    call->array = fsdp_param_values(call->param);
    return SHOAL_OK;
}

static shoal_status begin(struct param_call *call, const shoal_fsdp_param *handle)
{
    TRY(find(call, handle));
    return fsdp_unit_check_open(call->name, call->unit);
}

/* Puts the names of the call and of the parameter before the error text. */
static shoal_status name_call(const struct param_call *call, shoal_status status)
{
    return status == SHOAL_OK ? SHOAL_OK
                              : error_prefix(status, "%s: parameter %.128s", call->name, call->param->name);
}

static shoal_status end(const struct param_call *call, shoal_status status)
{
    status = status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "parameter %.128s", call->param->name);
    return fsdp_unit_end_call(call->unit, call->name, status);
}

/* Looking ------------------------------------------------------------------------------------------------ */

const char *shoal_fsdp_param_name(const shoal_fsdp_param *param)
{
    struct param_call call = {.name = "param_name"};
    return find(&call, param) == SHOAL_OK ? call.param->name : "";
}

shoal_status shoal_fsdp_get_layout(const shoal_fsdp_param *param, shoal_shard_layout *layout_out)
{
    struct param_call call = {.name = "get_layout"};
    TRY(find(&call, param));
    int unit = call.unit->watch ? -1 : call.unit->number;
    shoal_shard_layout layout = fsdp_layout_of(call.param, call.unit->mesh, unit);
    layout.gathered_dtype = fsdp_gathered_dtype(call.unit, call.param);
    layout.needs_values = call.unit->watch && call.unit->watch->needs_values(call.unit, call.index);
    return name_call(&call,
                     struct_size_write("layout_out", layout_out, sizeof(size_t), &layout, sizeof layout));
}

static shoal_status set_extension(const struct param_call *call, const shoal_gather_extension *given)
{
    const struct fsdp_unit *unit = call->unit;
    struct fsdp_extension *extension = NULL;
    if (unit->is_prepared) {
        return error_set(SHOAL_ERR_STATE, "ranks have compared what they gather: set it before the first "
                                          "forward pass");
    }
    if (given) {
        TRY(fsdp_extension_create(call->param, unit->mesh->n_shards, given, &extension));
    }
    fsdp_extension_free(call->param->extension);
    call->param->extension = extension;
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_gather_extension(shoal_fsdp_param *param, const shoal_gather_extension *extension)
{
    struct param_call call = {.name = "set_gather_extension"};
    error_clear();
    TRY(begin(&call, param));
    return name_call(&call, set_extension(&call, extension));
}

static shoal_status check_ended(const struct param_call *call)
{
    const struct fsdp_unit *unit = call->unit;
    if (unit->watch) {
        return unit->watch->check_ended(unit, call->name);
    }
    return unit->context->passes.is_backward
               ? error_set(SHOAL_ERR_STATE,
                           "%s: the backward pass has not been ended (shoal_fsdp_end_backward)", call->name)
               : SHOAL_OK;
}

shoal_status shoal_fsdp_get_pending(shoal_fsdp_param *param, shoal_pending_gradient *pending_out)
{
    struct param_call call = {.name = "get_pending"};
    TRY(begin(&call, param));
    if (!pending_out) {
        return error_set(SHOAL_ERR_INVALID, "get_pending: parameter %s: pending_out is NULL",
                         call.param->name);
    }
    TRY(check_ended(&call));
    TRY(fsdp_unit_check_idle(call.unit, call.name));
    shoal_pending_gradient pending = SHOAL_PENDING_GRADIENT_INIT;
    TRY(struct_size_write("get_pending: pending_out", pending_out, sizeof(size_t), &pending, sizeof pending));
    TRY(call.unit->watch ? call.unit->watch->give_partial(call.unit) : SHOAL_OK);
    fsdp_unit_get_pending(call.unit, call.param, &pending);
    if (call.unit->watch && !pending.full) {
        TRY(call.unit->watch->get_pending(call.unit, call.index, &pending));
    }
    return struct_size_write("get_pending: pending_out", pending_out, sizeof(size_t), &pending,
                             sizeof pending);
}

/* Comparing ---------------------------------------------------------------------------------------------- */

static struct purpose purpose_of(const struct param_call *call, enum purpose_id id)
{
    uint32_t unit = call->unit->watch ? 0 : (uint32_t)call->unit->number + 1;
    return (struct purpose){.id = id, .root = call->unit->root, .unit = unit};
}

/* Compares with all ranks that they make this call on this parameter, with this root. */
static shoal_status compare_values(const struct param_call *call, enum purpose_id id, int root)
{
    TRY(fsdp_check_outside(call->name, call->unit->context));
    TRY(fsdp_unit_check_failure(call->unit));
    struct purpose purpose = purpose_of(call, id);
    return end(call, fsdp_compare_param(call->unit, &purpose, call->param, call->index, root));
}

/* compare_values for an array; its dtype is compared, too. */
static shoal_status compare_array(const struct param_call *call, enum purpose_id id, int root)
{
    TRY(fsdp_check_outside(call->name, call->unit->context));
    TRY(fsdp_unit_check_failure(call->unit));
    struct purpose purpose = purpose_of(call, id);
    return end(call, fsdp_compare_array(call->unit, &purpose, &call->array, call->index, root));
}

/* Checks that `full` is given: on the root or, if there is none, on every rank. */
static shoal_status check_full(const struct param_call *call, const void *full, int root)
{
    return name_call(call, root == SHOAL_FSDP_ALL_RANKS
                               ? fsdp_check_full(call->param, full)
                               : fsdp_check_root(call->unit->mesh, call->param, "root", root, full));
}

/* Values ------------------------------------------------------------------------------------------------- */

/* With the explicit calls: SHOAL_ERR_STATE if the unit is in a pass, its gather is in flight, or gradients wait in its
   buffer. */
static shoal_status check_between_steps(const struct param_call *call)
{
    const struct fsdp_unit *unit = call->unit;
    bool is_between = unit->step.phase == FSDP_IDLE && !unit->gather.is_pending && !unit->grads.buffer;
    return unit->watch || is_between
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE, "%s: %s is in the middle of a step", call->name, unit->name);
}

/* Gives up whole parameters, which would be out of date, and waits for other uses of the shard. */
static shoal_status begin_writing(const struct param_call *call)
{
    TRY(fsdp_check_outside(call->name, call->unit->context));
    TRY(fsdp_unit_give_up(call->unit));
    return call->unit->watch ? call->unit->watch->writing(call->unit, call->index) : SHOAL_OK;
}

static void end_writing(const struct param_call *call)
{
    call->unit->was_loaded = call->unit->step.was_forward;
    if (call->unit->watch) {
        call->unit->watch->written(call->unit, call->index);
    }
}

shoal_status shoal_fsdp_load(shoal_fsdp_param *param, const void *full)
{
    struct param_call call = {.name = "load"};
    TRY(begin(&call, param));
    TRY(check_between_steps(&call));
    TRY(check_full(&call, full, SHOAL_FSDP_ALL_RANKS));
    TRY(begin_writing(&call));
    TRY(end(&call, fsdp_array_load(&call.array, full)));
    end_writing(&call);
    return SHOAL_OK;
}

shoal_status shoal_fsdp_load_slice(shoal_fsdp_param *param, int64_t offset, int64_t length, const void *slice)
{
    struct param_call call = {.name = "load_slice"};
    TRY(begin(&call, param));
    TRY(check_between_steps(&call));
    TRY(fsdp_check_slice(call.param, call.name, offset, length, slice));
    TRY(begin_writing(&call));
    bool has_part;
    TRY(end(&call, fsdp_array_load_slice(&call.array, offset, length, slice, &has_part)));
    if (has_part) {
        end_writing(&call);
    }
    call.unit->was_loaded = call.unit->step.was_forward; /* even if this rank has no part of the slice */
    return SHOAL_OK;
}

shoal_status shoal_fsdp_broadcast(shoal_fsdp_param *param, const void *full, int root)
{
    struct param_call call = {.name = "broadcast"};
    TRY(begin(&call, param));
    TRY(check_between_steps(&call));
    TRY(name_call(&call, fsdp_check_root(call.unit->mesh, call.param, "root", root, full)));
    TRY(compare_values(&call, PURPOSE_PARAM_BROADCAST, root));
    TRY(begin_writing(&call));
    TRY(end(&call, fsdp_array_broadcast(&call.array, call.unit->mesh, full, root)));
    end_writing(&call);
    return SHOAL_OK;
}

static shoal_status gather(const struct param_call *call, void *full, int root)
{
    return root == SHOAL_FSDP_ALL_RANKS ? fsdp_array_gather(&call->array, call->unit->mesh, full)
                                        : fsdp_array_gather_to(&call->array, call->unit->mesh, full, root);
}

shoal_status shoal_fsdp_gather(shoal_fsdp_param *param, void *full, int root)
{
    struct param_call call = {.name = "gather"};
    TRY(begin(&call, param));
    TRY(check_full(&call, full, root));
    TRY(call.unit->watch ? call.unit->watch->reading(call.unit, call.index) : SHOAL_OK);
    TRY(compare_values(&call, root < 0 ? PURPOSE_PARAM_GATHER : PURPOSE_PARAM_GATHER_TO, root));
    return end(&call, gather(&call, full, root));
}

/* Arrays ------------------------------------------------------------------------------------------------- */

static shoal_status begin_array(struct param_call *call, const shoal_fsdp_param *handle, shoal_dtype dtype,
                                const void *shard)
{
    TRY(begin(call, handle));
    call->array = (struct fsdp_array){
        .param = call->param, .dtype = dtype, .device = call->param->device, .shard = address_of(shard)};
    TRY(name_call(call, dtype_check(dtype, "dtype")));
    return shard || call->param->shard_count == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID,
                           "%s: parameter %s: shard is NULL, but this rank's part of it has %zu elements",
                           call->name, call->param->name, call->param->shard_count);
}

/* Refuses the parameter's own shard: whole parameters would be out of date, and only shoal_fsdp_load gives them up. */
static shoal_status check_not_values(const struct param_call *call, const char *instead)
{
    return address_number(call->array.shard) != address_number(call->param->shard)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID,
                           "%s: shard holds the values of parameter %s itself: those are loaded by %s",
                           call->name, call->param->name, instead);
}

shoal_status fsdp_array_layout(const char *call_name, const shoal_fsdp_param *param, const void *data,
                               shoal_shard_layout *layout_out)
{
    struct param_call call = {.name = call_name};
    TRY(find(&call, param));
    if (!data && call.param->shard_count > 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s: data is NULL, but this rank's part of parameter %s has %zu elements", call_name,
                         call.param->name, call.param->shard_count);
    }
    if (data && data == address_pointer(call.param->shard)) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s: data holds the values of parameter %s itself: those are added by "
                         "shoal_items_add_fsdp or shoal_items_add_module",
                         call_name, call.param->name);
    }
    return shoal_fsdp_get_layout(param, layout_out);
}

shoal_status shoal_fsdp_gather_array(shoal_fsdp_param *param, shoal_dtype dtype, const void *shard,
                                     void *full, int root)
{
    struct param_call call = {.name = "gather_array"};
    TRY(begin_array(&call, param, dtype, shard));
    TRY(check_full(&call, full, root));
    TRY(compare_array(&call, root < 0 ? PURPOSE_ARRAY_GATHER : PURPOSE_ARRAY_GATHER_TO, root));
    return end(&call, gather(&call, full, root));
}

shoal_status shoal_fsdp_load_array(shoal_fsdp_param *param, shoal_dtype dtype, const void *full, void *shard)
{
    struct param_call call = {.name = "load_array"};
    TRY(begin_array(&call, param, dtype, shard));
    TRY(check_not_values(&call, "shoal_fsdp_load"));
    TRY(check_full(&call, full, SHOAL_FSDP_ALL_RANKS));
    return end(&call, fsdp_array_load(&call.array, full));
}

shoal_status shoal_fsdp_broadcast_array(shoal_fsdp_param *param, shoal_dtype dtype, const void *full,
                                        void *shard, int root)
{
    struct param_call call = {.name = "broadcast_array"};
    TRY(begin_array(&call, param, dtype, shard));
    TRY(check_not_values(&call, "shoal_fsdp_broadcast"));
    TRY(name_call(&call, fsdp_check_root(call.unit->mesh, call.param, "root", root, full)));
    TRY(compare_array(&call, PURPOSE_ARRAY_BROADCAST, root));
    return end(&call, fsdp_array_broadcast(&call.array, call.unit->mesh, full, root));
}
