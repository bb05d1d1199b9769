/* SPDX-License-Identifier: MIT */
/*
 * Walks a tree, depth first, with a stack of its own, because trees may be deep. Slots are looked up by index each
 * time, because visitors may add to the lists. Modules on the stack are held by a reference, and so is every tensor
 * that was visited, until the end: otherwise a new tensor could get the address of a freed one and be taken for it.
 */
#include "module/walk.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "tensor/scope.h"

#define WALK_KINDS (SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS | SHOAL_WALK_MODULES)

struct level {
    shoal_module *module; /* one reference */
    size_t next_child;
    size_t path_length;
};

struct walk {
    uint32_t flags;
    shoal_module_visitor visitor;
    void *context;
    struct level *levels; /* the way from the root to where the walk is */
    size_t n_levels;
    size_t levels_capacity;
    char *path; /* of what is visited; ended by a zero */
    size_t path_length;
    size_t path_capacity;
    /* Met so far; not used when duplicates are wanted. */
    struct map modules;  /* numbered */
    struct map tensors;  /* indices of `held` */
    shoal_tensor **held; /* one reference each */
    size_t n_held;
    size_t held_capacity;
    shoal_walk_next next;
};

/* Paths ------------------------------------------------------------------------------------------------ */

static shoal_status append_name(struct walk *walk, const char *name)
{
    size_t length = strlen(name);
    TRY(mem_grow((void **)&walk->path, &walk->path_capacity, walk->path_length + length + 2, 1));
    if (walk->path_length > 0) {
        walk->path[walk->path_length++] = '.';
    }
    memcpy(walk->path + walk->path_length, name, length + 1);
    walk->path_length += length;
    return SHOAL_OK;
}

static void cut_path(struct walk *walk, size_t length)
{
    walk->path_length = length;
    walk->path[length] = '\0';
}

/* Visiting --------------------------------------------------------------------------------------------- */

static shoal_status visit(struct walk *walk, const shoal_module_entry *entry)
{
    /* The visitor may put something else in the slot. */
    (void)shoal_tensor_ref(entry->tensor);
    walk->next = SHOAL_WALK_ON;
    struct scope_callback callback = scope_callback_begin();
    shoal_status status =
        scope_callback_end(callback, "the visitor", walk->visitor(walk->context, entry, &walk->next));
    shoal_tensor_unref(entry->tensor);
    return status;
}

/* Notes that the object is visited now; it is new if it gets the next number. */
static shoal_status is_first_visit(struct map *met, const void *object, bool *is_first_out)
{
    size_t number;
    size_t next = met->count;
    TRY(map_get_or_add(met, map_key(object), next, &number));
    *is_first_out = number == next;
    return SHOAL_OK;
}

/* Notes that a tensor is visited now, and holds it until the end of the walk. */
static shoal_status hold_tensor(struct walk *walk, shoal_tensor *tensor, bool *is_first_out)
{
    TRY(mem_grow((void **)&walk->held, &walk->held_capacity, walk->n_held + 1, sizeof(walk->held[0])));
    TRY(is_first_visit(&walk->tensors, tensor, is_first_out));
    if (*is_first_out) {
        walk->held[walk->n_held++] = shoal_tensor_ref(tensor);
    }
    return SHOAL_OK;
}

static shoal_status visit_tensor(struct walk *walk, uint32_t kind, shoal_module *module,
                                 const struct slot *slot)
{
    bool is_first = true;
    if ((walk->flags & (SHOAL_WALK_DUPLICATES | WALK_ALL_PLACES)) == 0) {
        TRY(hold_tensor(walk, slot->tensor, &is_first));
    }
    if (!is_first) {
        return SHOAL_OK;
    }
    size_t length = walk->path_length;
    TRY(append_name(walk, slot->name));
    shoal_status status = visit(walk, &(shoal_module_entry){.struct_size = sizeof(shoal_module_entry),
                                                            .kind = kind,
                                                            .path = walk->path,
                                                            .name = slot->name,
                                                            .module = module,
                                                            .tensor = slot->tensor});
    cut_path(walk, length);
    return status;
}

static shoal_status visit_tensors(struct walk *walk, shoal_module *module)
{
    static const struct {
        enum slot_kind slot;
        uint32_t flag;
    } kinds[] = {{SLOT_PARAMETER, SHOAL_WALK_PARAMETERS}, {SLOT_BUFFER, SHOAL_WALK_BUFFERS}};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const struct slot_list *list = &module->lists[kinds[k].slot];
        for (size_t i = 0; (walk->flags & kinds[k].flag) && i < list->n_slots; i++) {
            struct slot slot = list->slots[i];
            TRY(visit_tensor(walk, kinds[k].flag, module, &slot));
            if (walk->next == SHOAL_WALK_STOP) {
                return SHOAL_OK;
            }
        }
    }
    return SHOAL_OK;
}

/* Visits the module at the walk's path, and its tensors. Its children come later, from its level on the stack. */
static shoal_status enter_module(struct walk *walk, shoal_module *module, const char *name)
{
    bool is_first = true;
    if ((walk->flags & SHOAL_WALK_DUPLICATES) == 0) {
        TRY(is_first_visit(&walk->modules, module, &is_first));
    }
    if (!is_first) {
        return SHOAL_OK;
    }
    module_note_read(module);
    if (walk->flags & SHOAL_WALK_MODULES) {
        TRY(visit(walk, &(shoal_module_entry){.struct_size = sizeof(shoal_module_entry),
                                              .kind = SHOAL_WALK_MODULES,
                                              .path = walk->path,
                                              .name = name,
                                              .module = module}));
        if (walk->next != SHOAL_WALK_ON) {
            return SHOAL_OK;
        }
    }
    TRY(visit_tensors(walk, module));
    if (walk->next == SHOAL_WALK_STOP) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&walk->levels, &walk->levels_capacity, walk->n_levels + 1,
                 sizeof(walk->levels[0])));
    walk->levels[walk->n_levels++] =
        (struct level){.module = shoal_module_ref(module), .path_length = walk->path_length};
    return SHOAL_OK;
}

static shoal_status walk_all(struct walk *walk, shoal_module *root)
{
    TRY(append_name(walk, ""));
    TRY(enter_module(walk, root, ""));
    while (walk->n_levels > 0 && walk->next != SHOAL_WALK_STOP) {
        struct level *level = &walk->levels[walk->n_levels - 1];
        const struct slot_list *children = &level->module->lists[SLOT_CHILD];
        cut_path(walk, level->path_length);
        if (level->next_child == children->n_slots) {
            walk->n_levels--;
            shoal_module_unref(level->module);
        } else {
            const struct slot slot = children->slots[level->next_child++];
            TRY(append_name(walk, slot.name));
            TRY(enter_module(walk, slot.child, slot.name));
        }
    }
    return SHOAL_OK;
}

shoal_status walk_tree(shoal_module *module, uint32_t flags, shoal_module_visitor visitor, void *context)
{
    struct walk walk = {.flags = flags, .visitor = visitor, .context = context};
    (void)shoal_module_ref(module);
    shoal_status status = walk_all(&walk, module);
    while (walk.n_levels > 0) {
        shoal_module_unref(walk.levels[--walk.n_levels].module);
    }
    shoal_module_unref(module);
    mem_free(walk.levels);
    mem_free(walk.path);
    map_free(&walk.modules);
    map_free(&walk.tensors);
    for (size_t i = 0; i < walk.n_held; i++) {
        shoal_tensor_unref(walk.held[i]);
    }
    mem_free(walk.held);
    return status;
}

/* For users -------------------------------------------------------------------------------------------- */

static shoal_status check_flags(uint32_t flags)
{
    if (flags & ~(uint32_t)(WALK_KINDS | SHOAL_WALK_DUPLICATES)) {
        return error_set(SHOAL_ERR_INVALID, "flags 0x%x: SHOAL_WALK_* expected", (unsigned)flags);
    }
    if (!(flags & WALK_KINDS)) {
        return error_set(SHOAL_ERR_INVALID, "flags 0x%x choose nothing to visit", (unsigned)flags);
    }
    return SHOAL_OK;
}

shoal_status shoal_module_walk(shoal_module *module, uint32_t flags, shoal_module_visitor visitor,
                               void *context)
{
    if (!module) {
        return error_prefix(error_null("module"), "module_walk");
    }
    error_clear();
    shoal_status status = check_flags(flags);
    if (status != SHOAL_OK || !visitor) {
        return error_prefix(status == SHOAL_OK ? error_set(SHOAL_ERR_INVALID, "visitor is NULL") : status,
                            "module_walk");
    }
    /* A visitor's error is passed on as it is. */
    return walk_tree(module, flags, visitor, context);
}

static shoal_status count_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    ++*(size_t *)context;
    return SHOAL_OK;
}

shoal_status shoal_module_count(shoal_module *module, uint32_t flags, size_t *count_out)
{
    size_t count = 0;
    if (!module) {
        if (count_out) {
            *count_out = 0;
        }
        return error_prefix(error_null("module"), "module_count");
    }
    error_clear();
    shoal_status status = count_out ? check_flags(flags) : error_set(SHOAL_ERR_INVALID, "count_out is NULL");
    if (status == SHOAL_OK) {
        status = walk_tree(module, flags, count_entry, &count);
    }
    if (count_out) {
        *count_out = status == SHOAL_OK ? count : 0;
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_count");
}

/* Looking for a module --------------------------------------------------------------------------------- */

struct search {
    const shoal_module *wanted;
    char *path; /* NULL if it is not asked for */
    size_t path_bytes;
    bool is_found;
};

static shoal_status compare_module(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct search *search = context;
    if (entry->module == search->wanted) {
        search->is_found = true;
        *next = SHOAL_WALK_STOP;
        if (search->path) {
            (void)snprintf(search->path, search->path_bytes, "%s", entry->path);
        }
    }
    return SHOAL_OK;
}

shoal_status walk_contains(shoal_module *module, const shoal_module *wanted, bool *contains_out)
{
    struct search search = {.wanted = wanted};
    TRY(walk_tree(module, SHOAL_WALK_MODULES, compare_module, &search));
    *contains_out = search.is_found;
    return SHOAL_OK;
}

bool walk_path_of(shoal_module *module, const shoal_module *wanted, char *path, size_t path_bytes)
{
    struct search search = {.wanted = wanted, .path = path, .path_bytes = path_bytes};
    return walk_tree(module, SHOAL_WALK_MODULES, compare_module, &search) == SHOAL_OK && search.is_found;
}
