/* SPDX-License-Identifier: MIT */
/* Renames units and parameters to their paths from the root. Until then, a unit has the name of its module's type, and
   a parameter its path from the module that was sharded. */
#include "parallel/fsdp/module/names.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/try.h"
#include "parallel/fsdp/module/wrapper.h"

static shoal_status replace_name(char **name, const char *first, const char *separator, const char *second)
{
    size_t bytes = strlen(first) + strlen(separator) + strlen(second) + 1;
    char *text = mem_alloc(bytes);
    if (!text) {
        return SHOAL_ERR_NO_MEMORY;
    }
    (void)snprintf(text, bytes, "%s%s%s", first, separator, second);
    mem_free(*name);
    *name = text;
    return SHOAL_OK;
}

/* A unit of several modules gets the paths of all of them. */
static shoal_status name_unit(struct fsdp_wrapper *wrapper, const char *path)
{
    char **name = &wrapper->unit->name;
    bool is_more = wrapper->is_named;
    wrapper->is_named = true;
    return is_more ? replace_name(name, *name, ", ", path) : replace_name(name, path, "", "");
}

static shoal_status name_param(struct fsdp_root *root, const shoal_module_entry *entry)
{
    for (size_t i = 0; i < root->n_wrappers; i++) {
        struct fsdp_wrapper *wrapper = root->wrappers[i];
        for (size_t k = 0; k < wrapper->n_tensors; k++) {
            if (wrapper->tensors[k].sharded == entry->tensor) {
                TRY(replace_name(&wrapper->unit->params[k].name, entry->path, "", ""));
                return shoal_tensor_set_name(entry->tensor, entry->path);
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status name_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    (void)next;
    if (entry->kind == SHOAL_WALK_PARAMETERS) {
        return name_param(context, entry);
    }
    struct fsdp_wrapper *wrapper = fsdp_wrapper_of(entry->module);
    return wrapper && entry->path[0] != '\0' ? name_unit(wrapper, entry->path) : SHOAL_OK;
}

shoal_status fsdp_name_units(struct fsdp_root *root, shoal_module *module)
{
    return shoal_module_walk(module, SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS, name_entry, root);
}
