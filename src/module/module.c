/* SPDX-License-Identifier: MIT */
/* The life of a module, its slots, and finding them by path. */
#include "module/module.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "module/walk.h"
#include "shoal/autograd.h"

static const char *const kind_names[SLOT_KINDS] = {
    [SLOT_PARAMETER] = "parameter", [SLOT_BUFFER] = "buffer", [SLOT_CHILD] = "child"};

/* Life ------------------------------------------------------------------------------------------------- */

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
    known.type = NULL;
    module->type = type;
    module->definition = known;
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

/* Children that nobody else holds join the list of the dying. */
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
        /* Functions of others first: they may still look at what hangs on the module through pointers of theirs. */
        module_clear_hooks(module);
        module_clear_extras(module);
        if (module->definition.destroy) {
            module->definition.destroy(module->definition.context);
        }
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

bool shoal_module_has_forward(const shoal_module *module)
{
    return module && module->definition.forward;
}

size_t shoal_module_n_inputs(const shoal_module *module)
{
    return module ? module->definition.n_inputs : 0;
}

size_t shoal_module_n_outputs(const shoal_module *module)
{
    return module ? module->definition.n_outputs : 0;
}

/* Finding ---------------------------------------------------------------------------------------------- */

static struct slot *find_own(const shoal_module *module, enum slot_kind kind, const char *name, size_t length)
{
    const struct slot_list *list = &module->lists[kind];
    for (size_t i = 0; i < list->n_slots; i++) {
        if (strncmp(list->slots[i].name, name, length) == 0 && list->slots[i].name[length] == '\0') {
            return &list->slots[i];
        }
    }
    return NULL;
}

struct slot *module_find_slot(const shoal_module *module, enum slot_kind kind, const char *path)
{
    if (!path) {
        return NULL;
    }
    const char *dot;
    while (module && (dot = strchr(path, '.'))) {
        const struct slot *slot = find_own(module, SLOT_CHILD, path, (size_t)(dot - path));
        module = slot ? slot->child : NULL;
        path = dot + 1;
    }
    return module ? find_own(module, kind, path, strlen(path)) : NULL;
}

shoal_tensor *shoal_module_parameter(const shoal_module *module, const char *path)
{
    const struct slot *slot = module_find_slot(module, SLOT_PARAMETER, path);
    return slot ? slot->tensor : NULL;
}

shoal_tensor *shoal_module_buffer(const shoal_module *module, const char *path)
{
    const struct slot *slot = module_find_slot(module, SLOT_BUFFER, path);
    return slot ? slot->tensor : NULL;
}

shoal_module *shoal_module_child(shoal_module *module, const char *path)
{
    if (path && !path[0]) {
        return module;
    }
    const struct slot *slot = module_find_slot(module, SLOT_CHILD, path);
    return slot ? slot->child : NULL;
}

static size_t count_own(const shoal_module *module, enum slot_kind kind)
{
    return module ? module->lists[kind].n_slots : 0;
}

size_t shoal_module_n_parameters(const shoal_module *module)
{
    return count_own(module, SLOT_PARAMETER);
}

size_t shoal_module_n_buffers(const shoal_module *module)
{
    return count_own(module, SLOT_BUFFER);
}

size_t shoal_module_n_children(const shoal_module *module)
{
    return count_own(module, SLOT_CHILD);
}

/* Past the last: a slot with nothing in it. */
static struct slot slot_at(const shoal_module *module, enum slot_kind kind, size_t index,
                           const char **name_out)
{
    struct slot slot = {.name = NULL};
    if (index < count_own(module, kind)) {
        slot = module->lists[kind].slots[index];
    }
    if (name_out) {
        *name_out = slot.name;
    }
    return slot;
}

shoal_tensor *shoal_module_parameter_at(const shoal_module *module, size_t index, const char **name_out)
{
    return slot_at(module, SLOT_PARAMETER, index, name_out).tensor;
}

shoal_tensor *shoal_module_buffer_at(const shoal_module *module, size_t index, const char **name_out)
{
    return slot_at(module, SLOT_BUFFER, index, name_out).tensor;
}

shoal_module *shoal_module_child_at(const shoal_module *module, size_t index, const char **name_out)
{
    return slot_at(module, SLOT_CHILD, index, name_out).child;
}

/* Adding ----------------------------------------------------------------------------------------------- */

static bool is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static shoal_status check_name(const shoal_module *module, const char *name)
{
    if (!name || !name[0]) {
        return error_set(SHOAL_ERR_INVALID, "name is %s", name ? "empty" : "NULL");
    }
    size_t length = strnlen(name, SHOAL_MAX_MODULE_NAME + 1);
    if (length > SHOAL_MAX_MODULE_NAME) {
        return error_set(SHOAL_ERR_INVALID, "name \"%.32s...\" has more than %d characters", name,
                         SHOAL_MAX_MODULE_NAME);
    }
    for (size_t i = 0; i < length; i++) {
        if (!is_name_character(name[i])) {
            return error_set(SHOAL_ERR_INVALID, "name \"%s\": character %zu is not a letter, a digit or '_'",
                             name, i);
        }
    }
    for (int kind = 0; kind < SLOT_KINDS; kind++) {
        if (find_own(module, (enum slot_kind)kind, name, length)) {
            return error_set(SHOAL_ERR_INVALID, "%s has a %s \"%s\" already", module->type, kind_names[kind],
                             name);
        }
    }
    return SHOAL_OK;
}

/* Takes its own references, on success only. */
static shoal_status add_slot(shoal_module *module, enum slot_kind kind, const char *name,
                             shoal_tensor *tensor, shoal_module *child)
{
    struct slot_list *list = &module->lists[kind];
    TRY(check_name(module, name));
    TRY(mem_grow((void **)&list->slots, &list->capacity, list->n_slots + 1, sizeof(list->slots[0])));
    char *copy = mem_copy_string(name);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    list->slots[list->n_slots++] =
        (struct slot){.name = copy, .tensor = shoal_tensor_ref(tensor), .child = shoal_module_ref(child)};
    return SHOAL_OK;
}

static shoal_status check_tensor(const shoal_module *module, enum slot_kind kind, const shoal_tensor *tensor)
{
    if (!module || !tensor) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", module ? kind_names[kind] : "module");
    }
    if (kind == SLOT_PARAMETER && !shoal_is_leaf(tensor)) {
        return error_set(SHOAL_ERR_INVALID,
                         "the tensor is the result of a recorded operation; parameters are leaves");
    }
    return SHOAL_OK;
}

static shoal_status add_tensor(shoal_module *module, enum slot_kind kind, const char *name,
                               shoal_tensor *tensor)
{
    error_clear();
    shoal_status status = check_tensor(module, kind, tensor);
    if (status == SHOAL_OK) {
        status = add_slot(module, kind, name, tensor, NULL);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_add_%s", kind_names[kind]);
}

shoal_status shoal_module_add_parameter(shoal_module *module, const char *name, shoal_tensor *parameter)
{
    return add_tensor(module, SLOT_PARAMETER, name, parameter);
}

shoal_status shoal_module_add_buffer(shoal_module *module, const char *name, shoal_tensor *buffer)
{
    return add_tensor(module, SLOT_BUFFER, name, buffer);
}

static shoal_status check_child(const shoal_module *module, shoal_module *child)
{
    if (!module || !child) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", module ? "child" : "module");
    }
    bool is_inside = module == child;
    if (!is_inside && child->lists[SLOT_CHILD].n_slots > 0) {
        TRY(walk_contains(child, module, &is_inside));
    }
    if (is_inside) {
        return error_set(SHOAL_ERR_INVALID,
                         module == child ? "%s can not be its own child" : "%s has the module inside it",
                         child->type);
    }
    return SHOAL_OK;
}

shoal_status shoal_module_add_child(shoal_module *module, const char *name, shoal_module *child)
{
    error_clear();
    shoal_status status = check_child(module, child);
    if (status == SHOAL_OK) {
        status = add_slot(module, SLOT_CHILD, name, NULL, child);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_add_child");
}

static shoal_status set_tensor(shoal_module *module, enum slot_kind kind, const char *path,
                               shoal_tensor *tensor)
{
    error_clear();
    TRY(check_tensor(module, kind, tensor));
    struct slot *slot = module_find_slot(module, kind, path);
    if (!slot) {
        return error_set(SHOAL_ERR_INVALID, "%s has no %s \"%s\"", module->type, kind_names[kind],
                         path ? path : "NULL");
    }
    shoal_tensor *old = slot->tensor;
    slot->tensor = shoal_tensor_ref(tensor);
    shoal_tensor_unref(old);
    return SHOAL_OK;
}

shoal_status shoal_module_set_parameter(shoal_module *module, const char *path, shoal_tensor *parameter)
{
    shoal_status status = set_tensor(module, SLOT_PARAMETER, path, parameter);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_set_parameter");
}

shoal_status shoal_module_set_buffer(shoal_module *module, const char *path, shoal_tensor *buffer)
{
    shoal_status status = set_tensor(module, SLOT_BUFFER, path, buffer);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_set_buffer");
}
