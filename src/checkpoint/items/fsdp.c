/* SPDX-License-Identifier: MIT */
/*
 * Items of contexts of FSDP. How a parameter is sharded never changes; its memory is looked up whenever the entry is
 * used. Ranks may read different items. A request to write makes the context gather the unit again, so all ranks must
 * make it, also those whose part is empty.
 */
#include "base/error.h"
#include "base/try.h"
#include "checkpoint/items/list.h"
#include "checkpoint/safetensors/header.h"
#include "checkpoint/safetensors/layout.h"
#include "shoal/fsdp.h"

static shoal_status look_in_context(struct item_entry *entry, enum item_use use, struct item_place *place_out)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    *place_out = entry->place;
    if (use == ITEM_PLACE) {
        return SHOAL_OK;
    }
    if (use == ITEM_WRITE) {
        /* Loads no elements, but counts as a load: the backward pass of an earlier forward pass is then an error. */
        TRY(shoal_fsdp_load_slice(shoal_fsdp_param_of(entry->fsdp, entry->id), 0, 0, NULL));
    }
    TRY(use == ITEM_WRITE ? shoal_fsdp_update_shard(entry->fsdp, entry->id, &shard)
                          : shoal_fsdp_read_shard(entry->fsdp, entry->id, &shard));
    place_out->data = shard.data; /* of the device that the entry has */
    return SHOAL_OK;
}

static const struct item_source fsdp_source = {.look = look_in_context};

static shoal_status add_param(shoal_items *items, const char *prefix, shoal_fsdp *fsdp, int id)
{
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    shoal_fsdp_param *param = shoal_fsdp_param_of(fsdp, id);
    const char *name = shoal_fsdp_param_name(param);
    TRY(shoal_fsdp_get_layout(param, &layout));
    if (name[0] == '\0') {
        return error_set(SHOAL_ERR_INVALID, "parameter %d has no name", id);
    }
    if (safetensors_dtype_row(layout.dtype) < 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "parameter %d: checkpoints do not support %s", id,
                         shoal_dtype_name(layout.dtype));
    }
    struct item_entry entry = {.source = &fsdp_source,
                               .dtype = layout.dtype,
                               .n_dims = layout.n_dims,
                               .place = {.dim = layout.dim,
                                         .offset = layout.offset,
                                         .length = layout.length,
                                         .device = layout.device},
                               .fsdp = fsdp,
                               .id = id,
                               .owners = layout.owners};
    for (int i = 0; i < layout.n_dims; i++) {
        entry.shape[i] = layout.shape[i];
    }
    shoal_status status = items_list_add(items, SHOAL_SECTION_MODEL, prefix, name, &entry);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "parameter %d", id);
}

static shoal_status add_fsdp(shoal_items *items, const char *prefix, shoal_fsdp *fsdp)
{
    shoal_items added = {0};
    shoal_status status = SHOAL_OK;
    if (!items || !prefix || !fsdp) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", !items ? "items" : !prefix ? "prefix" : "fsdp");
    }
    if (shoal_fsdp_n_params(fsdp) == 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "fsdp: the context has no parameters (those of a module: items_add_module)");
    }
    for (int id = 0; status == SHOAL_OK && id < shoal_fsdp_n_params(fsdp); id++) {
        status = add_param(&added, prefix, fsdp, id);
    }
    if (status == SHOAL_OK) {
        status = items_list_move(items, &added);
    }
    items_list_clear(&added);
    return status;
}

shoal_status shoal_items_add_fsdp(shoal_items *items, const char *prefix, shoal_fsdp *fsdp)
{
    error_clear();
    shoal_status status = add_fsdp(items, prefix, fsdp);
    return status == SHOAL_OK ? status : error_prefix(status, "items_add_fsdp");
}
