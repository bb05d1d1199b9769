/* SPDX-License-Identifier: MIT */
/*
 * Items of modules. An entry keeps the module and a path. Which tensor is there, and whether it is a shard, is looked
 * up whenever the entry is used: a module may be sharded after it was added, and until its first call other tensors
 * may be put in the places of shards.
 *
 * A tensor with the shape of the whole that is not a shard counts as the whole: the units need not be searched.
 */
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/items/list.h"
#include "checkpoint/safetensors/header.h"
#include "checkpoint/safetensors/layout.h"
#include "shoal/fully_shard.h"
#include "tensor/layout.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* Looking ---------------------------------------------------------------------------------------------- */

/* The parameter as a walk from the module shows it. */
static shoal_status make_module_entry(const struct item_entry *entry, shoal_tensor *tensor,
                                      shoal_module_entry *entry_out)
{
    const char *dot = strrchr(entry->path, '.');
    shoal_module *owner = entry->module;
    if (dot) {
        char *path = mem_copy_string(entry->path);
        if (!path) {
            return SHOAL_ERR_NO_MEMORY;
        }
        path[dot - entry->path] = '\0';
        owner = shoal_module_find_child(entry->module, path);
        mem_free(path);
    }
    *entry_out = (shoal_module_entry){.struct_size = sizeof(*entry_out),
                                      .kind = SHOAL_WALK_PARAMETERS,
                                      .path = entry->path,
                                      .name = dot ? dot + 1 : entry->path,
                                      .module = owner,
                                      .tensor = tensor};
    return SHOAL_OK;
}

/* Finds the shard of a parameter that was sharded after it was added. Units live as long as the module, which the entry
   holds. */
static shoal_status find_param(struct item_entry *entry, shoal_tensor *tensor)
{
    shoal_module_entry module_entry;
    if (entry->param || entry->is_buffer) {
        return SHOAL_OK;
    }
    TRY(make_module_entry(entry, tensor, &module_entry));
    return shoal_fully_shard_find_param(entry->module, &module_entry, &entry->param);
}

static bool is_whole(const struct item_entry *entry, const shoal_tensor *tensor)
{
    return layout_is_same_shape(shoal_tensor_n_dims(tensor), shoal_tensor_shape(tensor), entry->n_dims,
                                entry->shape);
}

/* Where the shard lies in the whole. */
static shoal_status look_at_shard(const struct item_entry *entry, enum item_use use, struct item_place *place)
{
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    TRY(shoal_fsdp_get_layout(entry->param, &layout));
    if (!layout_is_same_shape(layout.n_dims, layout.shape, entry->n_dims, entry->shape)) {
        char now[LAYOUT_TEXT_BYTES];
        char added[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_STATE,
                         "the whole parameter has the shape %s, but had %s when it was added",
                         layout_format(now, layout.n_dims, layout.shape),
                         layout_format(added, entry->n_dims, entry->shape));
    }
    /* This does not apply to a tensor that was put in the place of the shard. */
    if (use == ITEM_READ && layout.needs_values && place->tensor->has_landed) {
        return error_set(SHOAL_ERR_STATE,
                         "it was on the meta device, and its shard has not been written yet");
    }
    place->dim = layout.dim;
    place->offset = layout.offset;
    place->length = layout.length;
    return SHOAL_OK;
}

static shoal_status look_in_module(struct item_entry *entry, enum item_use use, struct item_place *place_out)
{
    shoal_tensor *tensor = entry->is_buffer ? shoal_module_find_buffer(entry->module, entry->path)
                                            : shoal_module_find_parameter(entry->module, entry->path);
    TRY(items_tree_check(entry->tree));
    if (!tensor) {
        return error_set(SHOAL_ERR_STATE, "the module has no such %s any more",
                         entry->is_buffer ? "buffer" : "parameter");
    }
    *place_out = (struct item_place){.dim = -1, .tensor = tensor};
    if (!tensor->has_landed && is_whole(entry, tensor)) {
        return SHOAL_OK;
    }
    TRY(find_param(entry, tensor));
    return entry->param ? look_at_shard(entry, use, place_out) : SHOAL_OK;
}

static void release_module(struct item_entry *entry)
{
    items_tree_unref(entry->tree);
    shoal_module_unref(entry->module);
}

static const struct item_source module_source = {.look = look_in_module, .release = release_module};

/* Adding ----------------------------------------------------------------------------------------------- */

/* A walk that makes a list. */
struct collection {
    shoal_items *items;
    shoal_module *module;
    const char *prefix;
    struct items_tree *tree;
    struct map tensors; /* their items */
};

static shoal_status describe(const struct collection *collection, const shoal_module_entry *entry,
                             struct item_entry *item_out)
{
    struct item_entry item = {.source = &module_source,
                              .module = collection->module,
                              .tree = collection->tree,
                              .dtype = shoal_tensor_dtype(entry->tensor),
                              .n_dims = shoal_tensor_n_dims(entry->tensor),
                              .is_buffer = entry->kind == SHOAL_WALK_BUFFERS};
    const int64_t *shape = shoal_tensor_shape(entry->tensor);
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    if (safetensors_dtype_row(item.dtype) < 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "checkpoints do not support %s",
                         shoal_dtype_name(item.dtype));
    }
    if (!item.is_buffer) {
        TRY(shoal_fully_shard_find_param(collection->module, entry, &item.param));
    }
    if (item.param) {
        TRY(shoal_fsdp_get_layout(item.param, &layout));
        shape = layout.shape;
    } else if (entry->tensor->has_landed) {
        return error_set(
            SHOAL_ERR_INVALID,
            "it is a shard of a unit of an outer module: add the module that was given to fully_shard");
    }
    for (int i = 0; i < item.n_dims; i++) {
        item.shape[i] = shape[i];
    }
    *item_out = item;
    return SHOAL_OK;
}

static shoal_status collect_entry(struct collection *collection, const shoal_module_entry *entry)
{
    struct item_entry item;
    struct item_place place;
    size_t number;
    if (map_get(&collection->tensors, map_key(entry->tensor), &number)) {
        return items_list_add_alias(collection->items, number, collection->prefix, entry->path);
    }
    size_t next = collection->items->n_entries;
    TRY(describe(collection, entry, &item));
    TRY(map_add(&collection->tensors, map_key(entry->tensor), next));
    TRY(items_list_add(collection->items, SHOAL_SECTION_MODEL, collection->prefix, entry->path, &item));
    shoal_module_ref(collection->module);
    (void)items_tree_ref(collection->tree);
    return items_list_look(collection->items, next, ITEM_PLACE, &place);
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    (void)next;
    shoal_status status = collect_entry(context, entry);
    return status == SHOAL_OK
               ? SHOAL_OK
               : error_prefix(status, "%s %.128s", entry->kind == SHOAL_WALK_BUFFERS ? "buffer" : "parameter",
                              entry->path);
}

static shoal_status add_module(shoal_items *items, const char *prefix, shoal_module *module)
{
    shoal_items added = {0};
    struct collection collection = {.items = &added, .module = module, .prefix = prefix};
    if (!items || !prefix) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", items ? "prefix" : "items");
    }
    TRY(safetensors_text_check("prefix", prefix));
    TRY(items_tree_create(module, &collection.tree));
    shoal_status status = shoal_module_walk(
        module, SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS | SHOAL_WALK_DUPLICATES, visit, &collection);
    if (status == SHOAL_OK) {
        status = items_list_move(items, &added);
    }
    map_free(&collection.tensors);
    items_list_clear(&added);
    items_tree_unref(collection.tree);
    return status;
}

shoal_status shoal_items_add_module(shoal_items *items, const char *prefix, shoal_module *module)
{
    if (!module) {
        return error_prefix(error_null("module"), "items_add_module");
    }
    error_clear();
    shoal_status status = add_module(items, prefix, module);
    return status == SHOAL_OK ? status : error_prefix(status, "items_add_module");
}
