/* SPDX-License-Identifier: MIT */
/* The calls of shoal/fully_shard.h about communication of the program's own, and gradients that wait for some. */
#include "base/error.h"
#include "base/try.h"
#include "parallel/fsdp/custom.h"
#include "parallel/fsdp/pending.h"
#include "parallel/fsdp/watch.h"
#include "parallel/fsdp/wrapper.h"
#include "shoal/fully_shard.h"

/* What a call does to each unit. */
struct setting {
    const char *call;
    shoal_status (*set)(struct fsdp_unit *unit, const struct setting *setting);
    shoal_all_reduce_hook hook;
    void *context;
    shoal_custom_all_gather gather;
    shoal_custom_reduce_scatter scatter;
    bool is_on;
};

static shoal_status check_unit(struct fsdp_unit *unit, const struct setting *setting)
{
    return fsdp_unit_check_idle(unit, setting->call);
}

static shoal_status set_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct setting *setting = context;
    struct fsdp_wrapper *wrapper = fsdp_wrapper_of(entry->module);
    (void)next;
    return wrapper && wrapper->unit ? setting->set(wrapper->unit, setting) : SHOAL_OK;
}

static shoal_status set_units(shoal_module *module, bool is_deep, struct setting *setting)
{
    struct fsdp_wrapper *wrapper;
    struct setting check = {.call = setting->call, .set = check_unit};
    TRY(fsdp_find_wrapper(setting->call, module, &wrapper));
    if (!is_deep) {
        TRY(check_unit(wrapper->unit, &check));
        return setting->set(wrapper->unit, setting);
    }
    TRY(shoal_module_walk(module, SHOAL_WALK_MODULES, set_entry, &check));
    return shoal_module_walk(module, SHOAL_WALK_MODULES, set_entry, setting);
}

static shoal_status set_hook(struct fsdp_unit *unit, const struct setting *setting)
{
    unit->hook = setting->hook;
    unit->hook_context = setting->context;
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_set_all_reduce_hook(shoal_module *module, shoal_all_reduce_hook hook,
                                                   void *context, bool is_deep)
{
    struct setting setting = {
        .call = "fully_shard_set_all_reduce_hook", .set = set_hook, .hook = hook, .context = context};
    return set_units(module, is_deep, &setting);
}

static shoal_status set_gather(struct fsdp_unit *unit, const struct setting *setting)
{
    unit->custom_gather = setting->gather;
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_set_custom_all_gather(shoal_module *module,
                                                     const shoal_custom_all_gather *custom, bool is_deep)
{
    struct setting setting = {.call = "fully_shard_set_custom_all_gather", .set = set_gather};
    error_clear();
    TRY(fsdp_custom_read_gather(setting.call, custom, &setting.gather));
    return set_units(module, is_deep, &setting);
}

static shoal_status set_scatter(struct fsdp_unit *unit, const struct setting *setting)
{
    unit->custom_scatter = setting->scatter;
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_set_custom_reduce_scatter(shoal_module *module,
                                                         const shoal_custom_reduce_scatter *custom,
                                                         bool is_deep)
{
    struct setting setting = {.call = "fully_shard_set_custom_reduce_scatter", .set = set_scatter};
    error_clear();
    TRY(fsdp_custom_read_scatter(setting.call, custom, &setting.scatter));
    return set_units(module, is_deep, &setting);
}

static shoal_status set_reduce_unused(struct fsdp_unit *unit, const struct setting *setting)
{
    unit->reduces_unused = setting->is_on;
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_set_reduce_unused(shoal_module *module, bool is_on, bool is_deep)
{
    struct setting setting = {
        .call = "fully_shard_set_reduce_unused", .set = set_reduce_unused, .is_on = is_on};
    return set_units(module, is_deep, &setting);
}

/* Gradients that are kept ---------------------------------------------------------------------------------- */

/* After a backward that failed nobody knows what is where. */
static shoal_status check_root(const char *call, const struct fsdp_unit *unit)
{
    const struct fsdp_wrapper *wrapper = unit->owner;
    return wrapper->root && wrapper->root->is_end_awaited
               ? error_set(SHOAL_ERR_STATE, "%s: a backward is running, or has failed (reset)", call)
               : SHOAL_OK;
}

shoal_status shoal_fully_shard_get_pending(shoal_module *root, const char *path,
                                           shoal_pending_gradient *pending_out)
{
    static const char call[] = "fully_shard_get_pending";
    struct fsdp_unit *unit;
    size_t index;
    TRY(fsdp_find_path(call, root, path, &unit, &index));
    if (!pending_out) {
        return error_set(SHOAL_ERR_INVALID, "%s: pending_out is NULL", call);
    }
    TRY(check_root(call, unit));
    TRY(fsdp_unit_check_idle(unit, call));
    fsdp_unit_get_pending(unit, &unit->params[index], pending_out);
    return pending_out->full ? SHOAL_OK : fsdp_watch_get_pending(unit->owner, index, pending_out);
}

shoal_status shoal_fully_shard_synchronize(shoal_module *module)
{
    struct fsdp_wrapper *wrapper;
    TRY(fsdp_find_root("fully_shard_synchronize", module, &wrapper));
    TRY(check_root("fully_shard_synchronize", wrapper->unit));
    return fsdp_synchronize(wrapper->root->context);
}
