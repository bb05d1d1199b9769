/* SPDX-License-Identifier: MIT */
/*
 * Tells a capture how parameters and buffers are called, so that its graph names them like the model does:
 * "h.0.attn.c_proj.bias". Paths begin at the module that the step reads or calls first, which is the root of its tree
 * in most programs; modules do not know their parents.
 *
 * This is no walk (walk.c): a graph depends on the modules that a step walks through, and names are no reason to depend
 * on a module.
 */
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "module/module.h"
#include "op/tracer.h"

enum {
    PATH_BYTES =
        1024 /* what does not fit is not named; so the tree is not followed deeper than half of this */
};

struct naming {
    struct op_tracer *tracer;
    char path[PATH_BYTES];
};

/* Puts a name behind the first `length` characters of the path, and returns the new length; 0 if it does not fit. */
static size_t extend(struct naming *naming, size_t length, const char *name)
{
    int n_chars =
        snprintf(naming->path + length, sizeof naming->path - length, "%s%s", length > 0 ? "." : "", name);
    return n_chars > 0 && length + (size_t)n_chars < sizeof naming->path ? length + (size_t)n_chars : 0;
}

static shoal_status name_list(struct naming *naming, const struct slot_list *list, size_t length)
{
    for (size_t i = 0; i < list->n_slots; i++) {
        const struct slot *slot = &list->slots[i];
        if (slot->tensor && extend(naming, length, slot->name) > 0) {
            TRY(naming->tracer->capture->name_tensor(naming->tracer, slot->tensor, naming->path));
        }
    }
    return SHOAL_OK;
}

/* The path of the module is the first `length` characters. */
static shoal_status name_tree(struct naming *naming, shoal_module *module, size_t length)
{
    if (module->named_in == naming->tracer->number) {
        return SHOAL_OK;
    }
    module->named_in = naming->tracer->number;
    TRY(name_list(naming, &module->lists[SLOT_PARAMETER], length));
    TRY(name_list(naming, &module->lists[SLOT_BUFFER], length));
    const struct slot_list *children = &module->lists[SLOT_CHILD];
    for (size_t i = 0; i < children->n_slots; i++) {
        size_t deeper = extend(naming, length, children->slots[i].name);
        if (deeper > 0) {
            TRY(name_tree(naming, children->slots[i].child, deeper));
        }
    }
    return SHOAL_OK;
}

shoal_status module_name_tensors(shoal_module *module, struct op_tracer *tracer)
{
    struct naming naming = {.tracer = tracer};
    return module->named_in == tracer->number ? SHOAL_OK : name_tree(&naming, module, 0);
}
