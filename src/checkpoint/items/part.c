/* SPDX-License-Identifier: MIT */
/* What this rank has of the items of a list, for saves and loads: see items.h. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/items/list.h"
#include "device/device.h"
#include "device/stream.h"
#include "op/operand.h"
#include "shoal/fsdp_unit.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

void items_info(const shoal_items *items, size_t index, struct item_info *info_out)
{
    const struct item_entry *entry = &items->entries[index];
    *info_out = (struct item_info){.section = entry->section,
                                   .name = entry->name,
                                   .dtype = entry->dtype,
                                   .n_dims = entry->n_dims,
                                   .may_be_missing = entry->may_be_missing,
                                   .aliases = (const char *const *)entry->aliases,
                                   .n_aliases = entry->n_aliases};
    memcpy(info_out->shape, entry->shape, sizeof(info_out->shape));
}

static void make_region(const struct item_entry *entry, const struct item_place *place,
                        struct region *region_out)
{
    region_make(region_out, entry->n_dims, entry->shape, place->dim, place->offset, place->length);
}

shoal_status items_region(const shoal_items *items, size_t index, struct region *region_out)
{
    struct item_place place;
    TRY(items_list_look(items, index, ITEM_PLACE, &place));
    make_region(&items->entries[index], &place, region_out);
    return SHOAL_OK;
}

shoal_status items_owners(const shoal_items *items, size_t index, uint64_t *owners_out)
{
    const struct item_entry *entry = &items->entries[index];
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    struct item_place place;
    TRY(items_list_look(items, index, ITEM_PLACE, &place)); /* finds the parameter of a module */
    if (!entry->param) {
        *owners_out = entry->owners;
        return SHOAL_OK;
    }
    TRY(shoal_fsdp_get_layout(entry->param, &layout));
    *owners_out = layout.owners;
    return SHOAL_OK;
}

/* Checks that a tensor that has elements can be used so, and waits until it can. Changes nothing. */
static shoal_status wait_for_use(shoal_tensor *tensor, enum item_use use)
{
    int n_dims = shoal_tensor_n_dims(tensor);
    const int64_t *strides = shoal_tensor_strides(tensor);
    if (shoal_tensor_device(tensor) == SHOAL_META) {
        return error_set(SHOAL_ERR_STATE, "it is on the meta device: there is no memory %s",
                         use == ITEM_WRITE ? "to load into (shoal_module_apply can replace it)"
                                           : "with values");
    }
    if (use == ITEM_WRITE && layout_may_self_overlap(n_dims, shoal_tensor_shape(tensor), strides)) {
        return error_set(SHOAL_ERR_STATE, "elements of its tensor overlap: it cannot be loaded into");
    }
    return use == ITEM_WRITE ? tensor_wait_writable(tensor, /*overwrites=*/false)
                             : tensor_wait_readable(tensor);
}

/* Values on a device ------------------------------------------------------------------------------------- */

static shoal_status read_remote(const struct item_part *part, double timeout_s)
{
    return part->tensor ? op_read_tensor(part->tensor, part->copy, part->bytes, timeout_s)
                        : op_read_bytes(part->device, part->copy, part->address, part->bytes, timeout_s);
}

/* Makes the copy, with the values as they are: whoever writes the part need not write all of it. */
static shoal_status open_remote(struct item_part *part, int n_dims, shoal_dtype dtype, double timeout_s)
{
    part->bytes = (size_t)region_count(&part->region, n_dims) * dtype_bytes(dtype);
    part->copy = mem_alloc_large(part->bytes);
    if (!part->copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    part->data = part->copy;
    shoal_status status = read_remote(part, timeout_s);
    if (status != SHOAL_OK) {
        items_part_close(part);
    }
    return status;
}

/* Through a contiguous tensor beside it. */
static shoal_status store_strided(const struct item_part *part)
{
    shoal_tensor *beside;
    struct address address;
    TRY(tensor_create_empty(part->device, part->tensor->dtype, part->tensor->layout.n_dims,
                            part->tensor->layout.shape, &beside));
    shoal_status status = tensor_address(beside, &address);
    status = status == SHOAL_OK ? stream_write(part->device, address, part->copy, part->bytes) : status;
    status = status == SHOAL_OK ? op_copy_into(part->tensor, beside) : status;
    shoal_tensor_unref(beside);
    return status;
}

shoal_status items_part_store(const struct item_part *part)
{
    struct address address = part->address;
    if (!part->copy) {
        return SHOAL_OK;
    }
    if (part->tensor && !part->tensor->is_contiguous) {
        return store_strided(part);
    }
    TRY(part->tensor ? tensor_address(part->tensor, &address) : SHOAL_OK);
    return stream_write(part->device, address, part->copy, part->bytes);
}

void items_part_close(struct item_part *part)
{
    mem_free(part->copy);
    part->copy = NULL;
    part->data = NULL;
}

/* Parts -------------------------------------------------------------------------------------------------- */

static shoal_status open_tensor(shoal_tensor *tensor, enum item_use use, double timeout_s,
                                struct item_part *part)
{
    int n_dims = shoal_tensor_n_dims(tensor);
    TRY(wait_for_use(tensor, use));
    if (use == ITEM_WRITE) {
        storage_bump_version(tensor->storage);
    }
    if (!device_is_host(tensor->storage->device)) {
        part->tensor = tensor;
        part->device = tensor->storage->device;
        return open_remote(part, n_dims, tensor->dtype, timeout_s);
    }
    TRY(tensor_host_address(tensor, &part->data));
    if (n_dims > 0) {
        memcpy(part->strides, shoal_tensor_strides(tensor), (size_t)n_dims * sizeof(part->strides[0]));
    }
    return SHOAL_OK;
}

static shoal_status open_part(const shoal_items *items, size_t index, enum item_use use, double timeout_s,
                              struct item_part *part_out)
{
    const struct item_entry *entry = &items->entries[index];
    struct item_place place;
    struct item_part part = {0};
    shoal_status status = SHOAL_OK;
    TRY(items_list_look(items, index, use, &place));
    make_region(entry, &place, &part.region);
    layout_fill_strides(entry->n_dims, part.region.length, part.strides);
    if (region_count(&part.region, entry->n_dims) > 0) {
        part.data = place.data;
        if (place.tensor) {
            status = open_tensor(place.tensor, use, timeout_s, &part);
        } else if (!device_is_host(place.device)) {
            part.device = place.device;
            part.address = address_of(place.data);
            status = open_remote(&part, entry->n_dims, entry->dtype, timeout_s);
        }
    } else if (place.tensor && use == ITEM_WRITE) {
        /* An empty part counts as changed, too: a backward pass of older values is then an error on every rank, and no
           rank waits for the others. */
        storage_bump_version(place.tensor->storage);
    }
    if (status != SHOAL_OK) {
        char text[ITEMS_TEXT_BYTES];
        return error_prefix(status, "item %s", items_list_format(text, entry->section, entry->name));
    }
    *part_out = part;
    return SHOAL_OK;
}

shoal_status items_check_mutable(const shoal_items *items, size_t index)
{
    const struct item_entry *entry = &items->entries[index];
    struct item_place place;
    struct region region;
    TRY(items_list_look(items, index, ITEM_PLACE, &place));
    make_region(entry, &place, &region);
    if (!place.tensor || region_count(&region, entry->n_dims) == 0) {
        return SHOAL_OK;
    }
    shoal_status status = wait_for_use(place.tensor, ITEM_WRITE);
    if (status != SHOAL_OK) {
        char text[ITEMS_TEXT_BYTES];
        return error_prefix(status, "item %s", items_list_format(text, entry->section, entry->name));
    }
    return SHOAL_OK;
}

shoal_status items_part(const shoal_items *items, size_t index, double timeout_s, struct item_part *part_out)
{
    return open_part(items, index, ITEM_READ, timeout_s, part_out);
}

shoal_status items_mutable_part(shoal_items *items, size_t index, double timeout_s,
                                struct item_part *part_out)
{
    return open_part(items, index, ITEM_WRITE, timeout_s, part_out);
}

/* Numbers, strings, functions --------------------------------------------------------------------------- */

size_t items_n_values(const shoal_items *items)
{
    return items->n_values;
}

const struct item_value *items_value(const shoal_items *items, size_t index)
{
    return &items->values[index];
}

shoal_status items_loaded(const shoal_items *items)
{
    char text[ERROR_TEXT_BYTES] = "";
    shoal_status first = SHOAL_OK;
    for (size_t i = 0; i < items->n_hooks; i++) {
        error_clear();
        shoal_status status = items->hooks[i].function(items->hooks[i].context);
        if (status != SHOAL_OK && first == SHOAL_OK) {
            first = error_prefix(status, "function %zu of items_on_loaded", i);
            (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        }
    }
    error_clear();
    return first == SHOAL_OK ? SHOAL_OK : error_set(first, "%s", text);
}
