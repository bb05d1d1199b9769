/* SPDX-License-Identifier: MIT */
/* Makes and frees modules, and gives what they were made with. */
#include "base/changes.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "module/guard.h"
#include "module/hook_list.h"
#include "module/module.h"

static shoal_status read_definition(const shoal_module_definition *given, shoal_module_definition *known)
{
    TRY(struct_size_read("module_create: definition", given, sizeof(size_t), known, sizeof(*known)));
    if (!known->type || !known->type[0]) {
        return error_set(SHOAL_ERR_INVALID, "module_create: type is %s", known->type ? "empty" : "NULL");
    }
    known->n_outputs = known->n_outputs ? known->n_outputs : 1;
    return SHOAL_OK;
}

shoal_status shoal_module_create(const shoal_module_definition *definition, shoal_module **module_out)
{
    error_clear();
    shoal_module_definition known;
    if (!module_out) {
        return error_set(SHOAL_ERR_INVALID, "module_create: module_out is NULL");
    }
    TRY(read_definition(definition, &known));
    shoal_module *module = mem_alloc_zeroed(1, sizeof(*module));
    char *type = module ? mem_copy_string(known.type) : NULL;
    if (!type) {
        mem_free(module);
        return SHOAL_ERR_NO_MEMORY;
    }
    known.struct_size = sizeof(known);
    known.type = type;
    module->type = type;
    module->definition = known;
    module->created = changes_note();
    atomic_init(&module->references, 1);
    atomic_init(&module->n_running, 0);
    *module_out = module;
    return SHOAL_OK;
}

shoal_module *shoal_module_ref(shoal_module *module)
{
    if (module) {
        refcount_get(&module->references);
    }
    return module;
}

/* Children that nobody else holds are added to the list of modules to be freed. */
static void clear_slots(shoal_module *module, shoal_module **dying)
{
    for (int kind = 0; kind < SLOT_KINDS; kind++) {
        struct slot_list *list = &module->lists[kind];
        for (size_t i = 0; i < list->n_slots; i++) {
            shoal_module *child = list->slots[i].child;
            shoal_tensor_unref(list->slots[i].tensor);
            mem_free(list->slots[i].name);
            if (child && refcount_put(&child->references)) {
                child->next_dying = *dying;
                *dying = child;
            }
        }
        mem_free(list->slots);
    }
}

/* A list instead of recursion: trees may be deep. */
void shoal_module_unref(shoal_module *module)
{
    shoal_module *dying = module && refcount_put(&module->references) ? module : NULL;
    while (dying) {
        module = dying;
        dying = module->next_dying;
        /* Functions of hooks and extras run first: they may still use what the module holds. */
        module_hooks_clear(module);
        module_clear_extras(module);
        module_guard_clear(module);
        if (module->definition.destroy) {
            module->definition.destroy(module->definition.context);
        }
        module_end_version(module);
        clear_slots(module, &dying);
        mem_free(module->type);
        mem_free(module);
    }
}

const char *shoal_module_type(const shoal_module *module)
{
    return module ? module->type : "";
}

void *shoal_module_context(const shoal_module *module)
{
    return module ? module->definition.context : NULL;
}

const shoal_module_definition *shoal_module_get_definition(const shoal_module *module)
{
    return module ? &module->definition : NULL;
}
