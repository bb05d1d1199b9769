/* SPDX-License-Identifier: MIT */
/*
 * Lists and replaces all tensors of a tree. Replacing takes three steps, so that a failure changes nothing: find every
 * place of every tensor, call the function for each tensor, then put the results in place, which cannot fail.
 */
#include <string.h>

#include "base/callback.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "module/module.h"
#include "module/walk.h"
#include "shoal/autograd.h"
#include "tensor/scope.h"

/* Lists ------------------------------------------------------------------------------------------------ */

struct listing {
    shoal_tensor **list; /* borrowed tensors */
    size_t count;
    size_t capacity;
};

static shoal_status list_tensor(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct listing *listing = context;
    TRY(mem_grow((void **)&listing->list, &listing->capacity, listing->count + 1, sizeof(listing->list[0])));
    listing->list[listing->count++] = entry->tensor;
    return SHOAL_OK;
}

static shoal_status list_parameters(shoal_module *module, shoal_tensor ***list_out, size_t *n_out)
{
    if (!module || !n_out) {
        return module ? error_set(SHOAL_ERR_INVALID, "n_out is NULL") : error_null("module");
    }
    struct listing listing = {.list = NULL};
    shoal_status status = walk_tree(module, SHOAL_WALK_PARAMETERS, list_tensor, &listing);
    size_t bytes = listing.count * sizeof(listing.list[0]);
    if (status == SHOAL_OK) {
        *list_out = scope_alloc(scope_current(), bytes);
        status = *list_out ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    }
    if (status == SHOAL_OK && listing.count > 0) {
        memcpy(*list_out, listing.list, bytes);
    }
    mem_free(listing.list);
    *n_out = status == SHOAL_OK ? listing.count : 0;
    return status;
}

shoal_tensor *const *shoal_module_parameters(shoal_module *module, size_t *n_out)
{
    shoal_tensor **list = NULL;
    if (n_out) {
        *n_out = 0; /* also in a scope that has failed already, so that a loop over the list does nothing */
    }
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    shoal_status status = list_parameters(module, &list, n_out);
    if (status != SHOAL_OK) {
        (void)scope_fail(error_prefix(status, "module_parameters"));
        return NULL;
    }
    return list;
}

/* Replacing -------------------------------------------------------------------------------------------- */

struct subject {
    shoal_module_entry entry; /* its first place; owns the path and a reference on module and tensor */
    shoal_tensor *replaced;   /* one reference; NULL if it stays as it is */
};

struct place {
    shoal_module *module; /* one reference */
    enum slot_kind kind;
    size_t index;
    size_t subject;
};

struct plan {
    struct map numbers; /* of tensors: where they are in `subjects` */
    struct subject *subjects;
    size_t n_subjects;
    size_t subjects_capacity;
    struct place *places;
    size_t n_places;
    size_t places_capacity;
};

static shoal_status add_subject(struct plan *plan, const shoal_module_entry *entry)
{
    TRY(mem_grow((void **)&plan->subjects, &plan->subjects_capacity, plan->n_subjects + 1,
                 sizeof(plan->subjects[0])));
    char *path = mem_copy_string(entry->path);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct subject *subject = &plan->subjects[plan->n_subjects++];
    *subject = (struct subject){.entry = *entry};
    subject->entry.path = path;
    (void)shoal_tensor_ref(entry->tensor);
    (void)shoal_module_ref(entry->module);
    return SHOAL_OK;
}

static size_t find_index(const shoal_module *module, enum slot_kind kind, const char *name)
{
    const struct slot_list *list = &module->lists[kind];
    size_t index = 0;
    while (list->slots[index].name != name) {
        index++;
    }
    return index;
}

static shoal_status note_place(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct plan *plan = context;
    size_t number;
    enum slot_kind kind = entry->kind == SHOAL_WALK_PARAMETERS ? SLOT_PARAMETER : SLOT_BUFFER;
    TRY(mem_grow((void **)&plan->places, &plan->places_capacity, plan->n_places + 1,
                 sizeof(plan->places[0])));
    TRY(map_get_or_add(&plan->numbers, map_key(entry->tensor), plan->n_subjects, &number));
    if (number == plan->n_subjects) {
        TRY(add_subject(plan, entry));
    }
    plan->places[plan->n_places++] = (struct place){.module = shoal_module_ref(entry->module),
                                                    .kind = kind,
                                                    .index = find_index(entry->module, kind, entry->name),
                                                    .subject = number};
    return SHOAL_OK;
}

static void end_plan(struct plan *plan)
{
    for (size_t i = 0; i < plan->n_subjects; i++) {
        const shoal_module_entry *entry = &plan->subjects[i].entry;
        shoal_tensor_unref(plan->subjects[i].replaced);
        shoal_tensor_unref(entry->tensor);
        shoal_module_unref(entry->module);
        mem_free((char *)entry->path);
    }
    for (size_t i = 0; i < plan->n_places; i++) {
        shoal_module_unref(plan->places[i].module);
    }
    mem_free(plan->subjects);
    mem_free(plan->places);
    map_free(&plan->numbers);
}

/* The function's result must be a leaf. It requires a gradient if the tensor that it replaces did. */
static shoal_status accept_replacement(struct subject *subject, shoal_tensor *given)
{
    shoal_tensor *old = subject->entry.tensor;
    if (!given) {
        return error_set(SHOAL_ERR_INVALID, "the function returned NULL");
    }
    if (given == old) {
        return SHOAL_OK;
    }
    if (!shoal_is_leaf(given)) {
        return error_set(SHOAL_ERR_INVALID,
                         "the function returned the result of a recorded operation; a leaf is expected");
    }
    if (shoal_requires_grad(old) && !shoal_requires_grad(given)) {
        TRY(shoal_set_requires_grad(given, true));
    }
    subject->replaced = shoal_tensor_ref(given);
    return SHOAL_OK;
}

static shoal_status ask(struct subject *subject, shoal_module_function function, void *context)
{
    shoal_tensor *given = subject->entry.tensor;
    TRY(shoal_scope_set_grad(false));
    struct scope_callback callback = scope_callback_begin();
    shoal_status status =
        scope_callback_end(callback, "the function", function(context, &subject->entry, &given));
    TRY(shoal_scope_error());
    TRY(status);
    return accept_replacement(subject, given);
}

static shoal_status ask_in_scope(struct subject *subject, shoal_module_function function, void *context)
{
    TRY(shoal_scope_begin());
    shoal_status status = ask(subject, function, context);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    status = shoal_scope_end();
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", subject->entry.path);
}

static void put_in_place(const struct plan *plan)
{
    for (size_t i = 0; i < plan->n_places; i++) {
        const struct place *place = &plan->places[i];
        shoal_tensor *replaced = plan->subjects[place->subject].replaced;
        if (replaced) {
            module_replace_tensor(place->module, place->kind, place->index, replaced);
        }
    }
}

static shoal_status apply(shoal_module *module, uint32_t flags, shoal_module_function function, void *context)
{
    const uint32_t kinds = SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS;
    if (!function) {
        return error_set(SHOAL_ERR_INVALID, "function is NULL");
    }
    if (callback_is_capturing()) {
        return error_set(SHOAL_ERR_STATE,
                         "a captured step cannot change which tensors a module has; copy into them");
    }
    if (!flags || (flags & ~kinds)) {
        return error_set(SHOAL_ERR_INVALID, "flags 0x%x: SHOAL_WALK_PARAMETERS, _BUFFERS or both expected",
                         (unsigned)flags);
    }
    struct plan plan = {.subjects = NULL};
    shoal_status status = walk_tree(module, flags | WALK_ALL_PLACES, note_place, &plan);
    for (size_t i = 0; i < plan.n_subjects && status == SHOAL_OK; i++) {
        status = ask_in_scope(&plan.subjects[i], function, context);
    }
    if (status == SHOAL_OK) {
        put_in_place(&plan);
    }
    end_plan(&plan);
    return status;
}

shoal_status shoal_module_apply(shoal_module *module, uint32_t flags, shoal_module_function function,
                                void *context)
{
    if (!module) {
        return error_prefix(error_null("module"), "module_apply");
    }
    error_clear();
    shoal_status status = apply(module, flags, function, context);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "module_apply");
}
