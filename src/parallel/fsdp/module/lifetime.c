/* SPDX-License-Identifier: MIT */
/*
 * How long wrappers live. Modules own them. Besides, a recorded forward pass keeps the root with all its wrappers
 * until no backward pass can reach it any more, and a running backward pass keeps them until its end. So a module may
 * be freed between forward and backward pass: the gradients still land in the shards, which the program may hold.
 *
 * The record keeps wrappers, never modules: modules own wrappers, so that would be a reference cycle.
 */
#include "parallel/fsdp/module/lifetime.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "op/dependence.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "parallel/fsdp/module/tensors.h"
#include "parallel/fsdp/module/watch.h"
#include "parallel/fsdp/module/wrapper.h"
#include "tensor/tensor.h"

/* Freeing ------------------------------------------------------------------------------------------------ */

static void free_places(struct fsdp_tensors *tensors)
{
    for (size_t i = 0; i < tensors->n_places; i++) {
        mem_free(tensors->places[i].name);
    }
    tensors->n_places = 0;
}

void fsdp_tensors_free(struct fsdp_tensors *tensors)
{
    free_places(tensors);
    mem_free(tensors->places);
    if (tensors->sharded) {
        fsdp_mark_sharded(tensors->sharded, 0);
    }
    shoal_tensor_unref(tensors->original);
    shoal_tensor_unref(tensors->sharded);
    shoal_tensor_unref(tensors->full);
    shoal_tensor_unref(tensors->partial);
    shoal_tensor_unref(tensors->shard_grad);
}

/* Takes the memory away from full tensors, and shows shards in modules that others may still hold. */
static void give_up_full(const struct fsdp_wrapper *wrapper)
{
    struct fsdp_unit *unit = wrapper->unit;
    if (unit->state == FSDP_UNSHARDED && unit->watch) {
        unit->watch->resharding(unit);
    }
}

/* The unit stays with the context; nothing of it is used again. */
static void leave_root(struct fsdp_wrapper *wrapper)
{
    struct fsdp_root *root = wrapper->root;
    give_up_full(wrapper);
    fsdp_unit_end_handles(wrapper->unit);
    wrapper->unit->watch = NULL;
    for (size_t i = 0; i < wrapper->unit->n_params; i++) {
        wrapper->unit->params[i].has_grad = false;
    }
    for (size_t i = 0; i < root->n_wrappers; i++) {
        if (root->wrappers[i] == wrapper) {
            root->wrappers[i] = root->wrappers[--root->n_wrappers];
        }
    }
}

static void remove_hooks(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; wrapper->hooks && i < wrapper->n_modules; i++) {
        shoal_module_hook_remove(wrapper->hooks[i]);
        wrapper->hooks[i] = NULL;
    }
}

/* Frees a wrapper that has no root and no unit any more. */
static void free_memory(struct fsdp_wrapper *wrapper)
{
    if (!wrapper->is_closed) {
        owned_list_remove(world_owned(wrapper->mesh.world), &wrapper->owned);
        fsdp_mesh_let_go(&wrapper->mesh);
        if (wrapper->all_ranks) {
            group_let_go(wrapper->all_ranks);
        }
    }
    remove_hooks(wrapper);
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        fsdp_tensors_free(&wrapper->tensors[i]);
    }
    for (size_t i = 0; i < wrapper->n_ignored; i++) {
        shoal_tensor_unref(wrapper->ignored[i]);
    }
    mem_free(wrapper->ignored);
    mem_free(wrapper->hooks);
    mem_free(wrapper->tensors);
    mem_free(wrapper->modules);
    mem_free(wrapper->seats);
    mem_free(wrapper->has_run);
    mem_free(wrapper);
}

/* Also frees the wrappers that no module owns. */
static void free_root(struct fsdp_root *root)
{
    op_dependence_leave(root->dependence, 0);
    for (size_t i = 0; i < root->n_wrappers; i++) {
        give_up_full(root->wrappers[i]);
        root->wrappers[i]->root = NULL;
        root->wrappers[i]->unit->watch = NULL;
        root->wrappers[i]->unit = NULL;
    }
    fsdp_handle_free(root->handle);
    fsdp_context_free(root->context);
    for (size_t i = 0; i < root->n_wrappers; i++) {
        if (root->wrappers[i]->n_owners == 0) {
            free_memory(root->wrappers[i]);
        }
    }
    mem_free(root->wrappers);
    mem_free(root);
}

void fsdp_wrapper_free(struct fsdp_wrapper *wrapper)
{
    if (wrapper->is_root && wrapper->root) {
        free_root(wrapper->root);
        return;
    }
    if (wrapper->root) {
        leave_root(wrapper);
    } else {
        fsdp_unit_free(wrapper->unit);
    }
    free_memory(wrapper);
}

void fsdp_wrapper_world_ends(struct owned *owned)
{
    struct fsdp_wrapper *wrapper = (struct fsdp_wrapper *)owned;
    wrapper->is_closed = true;
    fsdp_mesh_forget(&wrapper->mesh);
}

/* Modules ------------------------------------------------------------------------------------------------ */

static shoal_status mark_places(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct fsdp_wrapper *wrapper = context;
    (void)next;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        struct fsdp_tensors *tensors = &wrapper->tensors[i];
        for (size_t k = 0; k < tensors->n_places; k++) {
            tensors->places[k].is_reached =
                tensors->places[k].is_reached || tensors->places[k].module == entry->module;
        }
    }
    return SHOAL_OK;
}

static void keep_reached(struct fsdp_tensors *tensors)
{
    size_t n_left = 0;
    for (size_t i = 0; i < tensors->n_places; i++) {
        if (tensors->places[i].is_reached) {
            tensors->places[n_left++] = tensors->places[i];
        } else {
            mem_free(tensors->places[i].name);
        }
    }
    tensors->n_places = n_left;
}

/* Forgets places that are not inside the remaining modules. */
static void prune_places(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        for (size_t k = 0; k < wrapper->tensors[i].n_places; k++) {
            wrapper->tensors[i].places[k].is_reached = false;
        }
    }
    for (size_t i = 0; i < wrapper->n_modules; i++) {
        /* If there is no memory for the walk, places inside this module are forgotten, too, and keep showing shards. To
           keep a place whose module was freed would be worse. */
        (void)!shoal_module_walk(wrapper->modules[i], SHOAL_WALK_MODULES, mark_places, wrapper);
    }
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        keep_reached(&wrapper->tensors[i]);
    }
}

static void forget_module(struct fsdp_wrapper *wrapper, const shoal_module *module)
{
    size_t at = 0;
    while (at < wrapper->n_modules && wrapper->modules[at] != module) {
        at++;
    }
    if (at == wrapper->n_modules) {
        return;
    }
    shoal_module_hook_remove(wrapper->hooks[at]);
    wrapper->n_run -= wrapper->has_run[at];
    for (size_t i = at + 1; i < wrapper->n_modules; i++) {
        wrapper->modules[i - 1] = wrapper->modules[i];
        wrapper->hooks[i - 1] = wrapper->hooks[i];
        wrapper->has_run[i - 1] = wrapper->has_run[i];
    }
    wrapper->n_modules--;
    prune_places(wrapper);
}

/* The root's module was freed, but recorded forward passes keep the root: their backward pass can run, but no module
   under the root can be called any more. */
static void leave_gone_root(struct fsdp_root *root)
{
    root->is_gone = true;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        fsdp_wrapper_show_shards(root->wrappers[i]);
    }
}

void fsdp_wrapper_leave(struct fsdp_seat *seat)
{
    struct fsdp_wrapper *wrapper = seat->wrapper;
    fsdp_wrapper_show_shards(wrapper); /* while the modules are there: others may hold some of them */
    wrapper->n_owners--;
    fsdp_unit_handle_free(seat->deep);
    seat->deep = NULL;
    forget_module(wrapper, seat->module);
    if (wrapper->n_owners > 0) {
        return;
    }
    if (!wrapper->root || wrapper->root->n_records == 0) {
        fsdp_wrapper_free(wrapper);
    } else if (wrapper->is_root) {
        leave_gone_root(wrapper->root);
    }
}

/* Records ------------------------------------------------------------------------------------------------ */

void fsdp_root_keep(struct fsdp_root *root)
{
    root->n_records++;
}

static void free_abandoned(struct fsdp_root *root)
{
    for (size_t i = root->n_wrappers; i > 0; i--) { /* a wrapper that leaves makes room for the last one */
        struct fsdp_wrapper *wrapper = root->wrappers[i - 1];
        if (wrapper->n_owners == 0) {
            fsdp_wrapper_free(wrapper);
        }
    }
}

/* Keeps the error text of a failure that is being returned. */
void fsdp_root_let_go(struct fsdp_root *root)
{
    char text[ERROR_TEXT_BYTES];
    if (--root->n_records > 0) {
        return;
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    if (root->is_gone) {
        free_root(root);
    } else {
        free_abandoned(root);
    }
    (void)error_set(SHOAL_OK, "%s", text);
}
