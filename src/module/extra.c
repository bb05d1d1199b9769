/* SPDX-License-Identifier: MIT */
/* Values that other code attaches to a module. They are few, so a list is searched. */
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "module/module.h"
#include "tensor/scope.h"

static struct module_extra *find_extra(const shoal_module *module, const void *key)
{
    for (size_t i = 0; module && i < module->n_extras; i++) {
        if (module->extras[i].key == key) {
            return &module->extras[i];
        }
    }
    return NULL;
}

static void end_extra(struct module_extra extra)
{
    if (extra.destroy && extra.value) {
        extra.destroy(extra.value);
    }
}

/* Completes the list before it calls the value's function, because that may change the list again. */
static void remove_extra(shoal_module *module, struct module_extra *extra)
{
    struct module_extra old = *extra;
    size_t index = (size_t)(extra - module->extras);
    for (size_t i = index + 1; i < module->n_extras; i++) {
        module->extras[i - 1] = module->extras[i];
    }
    module->n_extras--;
    end_extra(old);
}

shoal_status shoal_module_set_extra(shoal_module *module, const void *key, void *value,
                                    void (*destroy)(void *value))
{
    if (!module) {
        return error_prefix(error_null("module"), "module_set_extra");
    }
    error_clear();
    if (!key) {
        return error_set(SHOAL_ERR_INVALID, "module_set_extra: key is NULL");
    }
    struct module_extra *extra = find_extra(module, key);
    if (!value) {
        if (extra) {
            remove_extra(module, extra);
        }
        return SHOAL_OK;
    }
    if (extra) {
        struct module_extra old = *extra;
        *extra = (struct module_extra){.key = key, .value = value, .destroy = destroy};
        if (old.value != value) {
            end_extra(old);
        }
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&module->extras, &module->extras_capacity, module->n_extras + 1,
                 sizeof(module->extras[0])));
    module->extras[module->n_extras++] =
        (struct module_extra){.key = key, .value = value, .destroy = destroy};
    return SHOAL_OK;
}

void *shoal_module_extra(const shoal_module *module, const void *key)
{
    const struct module_extra *extra = find_extra(module, key);
    return extra ? extra->value : NULL;
}

/* Newest first: later ones may depend on earlier ones. */
void module_clear_extras(shoal_module *module)
{
    while (module->n_extras > 0) {
        end_extra(module->extras[--module->n_extras]);
    }
    mem_free(module->extras);
}
