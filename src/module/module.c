/* SPDX-License-Identifier: MIT */
/* The slots of a module, and finding them by path. */
#include "module/module.h"

#include <stdio.h>
#include <string.h>

#include "base/callback.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "module/guard.h"
#include "module/walk.h"
#include "shoal/autograd.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

static const char *const kind_names[SLOT_KINDS] = {
    [SLOT_PARAMETER] = "parameter", [SLOT_BUFFER] = "buffer", [SLOT_CHILD] = "child"};

void module_replace_tensor(shoal_module *module, enum slot_kind kind, size_t index, shoal_tensor *tensor)
{
    struct slot *slot = &module->lists[kind].slots[index];
    shoal_tensor *old = slot->tensor;
    slot->tensor = shoal_tensor_ref(tensor);
    module_note_change(module, kind_names[kind], slot->name, "was replaced");
    shoal_tensor_unref(old);
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

/* The slot of a kind at a path that begins at `*module`, which becomes the module that has the slot; NULL if there is
   none. */
static struct slot *find_by_path(const shoal_module **owner, enum slot_kind kind, const char *path)
{
    const shoal_module *module = *owner;
    if (!path) {
        return NULL;
    }
    const char *dot;
    while (module && (dot = strchr(path, '.'))) {
        module_note_read(module);
        const struct slot *slot = find_own(module, SLOT_CHILD, path, (size_t)(dot - path));
        module = slot ? slot->child : NULL;
        path = dot + 1;
    }
    *owner = module;
    if (module) {
        module_note_read(module);
    }
    return module ? find_own(module, kind, path, strlen(path)) : NULL;
}

size_t module_parameter_index(const shoal_module *module, const char *name)
{
    const struct slot *slot = find_own(module, SLOT_PARAMETER, name, strlen(name));
    return (size_t)(slot - module->lists[SLOT_PARAMETER].slots);
}

void module_put_parameter(shoal_module *module, size_t index, shoal_tensor *parameter)
{
    struct slot *slot = &module->lists[SLOT_PARAMETER].slots[index];
    shoal_tensor *old = slot->tensor;
    slot->tensor = shoal_tensor_ref(parameter);
    shoal_tensor_unref(old);
}

/* For calls that ask whether there is one: NULL is not an error. */
static const struct slot *find_slot(const shoal_module *module, enum slot_kind kind, const char *path)
{
    static const struct slot none = {.name = NULL};
    const struct slot *slot = find_by_path(&module, kind, path);
    return slot ? slot : &none;
}

/* Finds a slot as find_slot does, but its absence is an error, of the thread and of its innermost scope, if one is
   open. */
static const struct slot *get_slot(const shoal_module *module, enum slot_kind kind, const char *path)
{
    const struct slot *slot = find_slot(module, kind, path);
    if (slot->name) {
        error_clear();
        return slot;
    }
    shoal_status status = module ? error_set(SHOAL_ERR_INVALID, "%s has no %s \"%s\"", module->type,
                                             kind_names[kind], path ? path : "NULL")
                                 : error_null("module");
    error_mark_reason();
    (void)scope_fail(error_prefix(status, "module_%s", kind_names[kind]));
    return slot;
}

shoal_tensor *shoal_module_parameter(const shoal_module *module, const char *path)
{
    return get_slot(module, SLOT_PARAMETER, path)->tensor;
}

shoal_tensor *shoal_module_buffer(const shoal_module *module, const char *path)
{
    return get_slot(module, SLOT_BUFFER, path)->tensor;
}

shoal_module *shoal_module_child(shoal_module *module, const char *path)
{
    return module && path && !path[0] ? module : get_slot(module, SLOT_CHILD, path)->child;
}

shoal_tensor *shoal_module_find_parameter(const shoal_module *module, const char *path)
{
    return find_slot(module, SLOT_PARAMETER, path)->tensor;
}

shoal_tensor *shoal_module_find_buffer(const shoal_module *module, const char *path)
{
    return find_slot(module, SLOT_BUFFER, path)->tensor;
}

shoal_module *shoal_module_find_child(shoal_module *module, const char *path)
{
    return path && !path[0] ? module : find_slot(module, SLOT_CHILD, path)->child;
}

/* An index past the last one gives an empty slot. */
static struct slot slot_at(const shoal_module *module, enum slot_kind kind, size_t index,
                           const char **name_out)
{
    struct slot slot = {.name = NULL};
    if (module) {
        module_note_read(module);
    }
    if (module && index < module->lists[kind].n_slots) {
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

/* Takes references of its own if it succeeds. */
static shoal_status add_slot(shoal_module *module, enum slot_kind kind, const char *name,
                             shoal_tensor *tensor, shoal_module *child)
{
    struct slot_list *list = &module->lists[kind];
    TRY(check_name(module, name));
    TRY(module_check_change(module, kind_names[kind]));
    TRY(mem_grow((void **)&list->slots, &list->capacity, list->n_slots + 1, sizeof(list->slots[0])));
    char *copy = mem_copy_string(name);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = child ? module_guard_child(module, child) : SHOAL_OK;
    if (status != SHOAL_OK) {
        mem_free(copy);
        return status;
    }
    list->slots[list->n_slots++] =
        (struct slot){.name = copy, .tensor = shoal_tensor_ref(tensor), .child = shoal_module_ref(child)};
    module_note_change(module, kind_names[kind], copy, "was added");
    return SHOAL_OK;
}

static shoal_status check_tensor(enum slot_kind kind, const shoal_tensor *tensor)
{
    TRY(handle_check(tensor));
    if (kind == SLOT_PARAMETER && !shoal_is_leaf(tensor)) {
        return error_set(SHOAL_ERR_INVALID,
                         "the tensor is the result of a recorded operation; parameters are leaves");
    }
    return SHOAL_OK;
}

/* Either is NULL. */
static shoal_status fail_missing(const char *verb, const shoal_module *module, enum slot_kind kind)
{
    char call[64];
    (void)snprintf(call, sizeof(call), "module_%s_%s", verb, kind_names[kind]);
    return module ? scope_fail_null(call, kind_names[kind]) : error_prefix(error_null("module"), "%s", call);
}

static shoal_status add_tensor(shoal_module *module, enum slot_kind kind, const char *name,
                               shoal_tensor *tensor)
{
    if (!module || !tensor) {
        return fail_missing("add", module, kind);
    }
    error_clear();
    shoal_status status = check_tensor(kind, tensor);
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
    bool is_inside = module == child;
    if (!is_inside && child->lists[SLOT_CHILD].n_slots > 0) {
        TRY(walk_contains(child, module, &is_inside));
    }
    if (is_inside) {
        return error_set(SHOAL_ERR_INVALID,
                         module == child ? "%s cannot be its own child" : "%s contains the module itself",
                         child->type);
    }
    return SHOAL_OK;
}

shoal_status shoal_module_add_child(shoal_module *module, const char *name, shoal_module *child)
{
    if (!module || !child) {
        return fail_missing("add", module, SLOT_CHILD);
    }
    error_clear();
    shoal_status status = check_child(module, child);
    if (status == SHOAL_OK) {
        status = add_slot(module, SLOT_CHILD, name, NULL, child);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_add_child");
}

/* A captured step cannot put a tensor into a module: the graph has tensors only, and would not do it again. */
static shoal_status set_tensor(shoal_module *module, enum slot_kind kind, const char *path,
                               shoal_tensor *tensor)
{
    TRY(check_tensor(kind, tensor));
    if (callback_is_capturing()) {
        return error_set(SHOAL_ERR_STATE, "a captured step cannot change which %s a module has; copy into it",
                         kind_names[kind]);
    }
    const shoal_module *owner = module;
    const struct slot *slot = find_by_path(&owner, kind, path);
    if (!slot) {
        return error_set(SHOAL_ERR_INVALID, "%s has no %s \"%s\"", module->type, kind_names[kind],
                         path ? path : "NULL");
    }
    module_replace_tensor((shoal_module *)owner, kind, (size_t)(slot - owner->lists[kind].slots), tensor);
    return SHOAL_OK;
}

shoal_status shoal_module_set_parameter(shoal_module *module, const char *path, shoal_tensor *parameter)
{
    if (!module || !parameter) {
        return fail_missing("set", module, SLOT_PARAMETER);
    }
    error_clear();
    shoal_status status = set_tensor(module, SLOT_PARAMETER, path, parameter);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_set_parameter");
}

shoal_status shoal_module_set_buffer(shoal_module *module, const char *path, shoal_tensor *buffer)
{
    if (!module || !buffer) {
        return fail_missing("set", module, SLOT_BUFFER);
    }
    error_clear();
    shoal_status status = set_tensor(module, SLOT_BUFFER, path, buffer);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_set_buffer");
}
