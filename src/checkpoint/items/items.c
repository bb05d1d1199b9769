/* SPDX-License-Identifier: MIT */
/* Lists of items: what the program adds itself, and what it asks for. See shoal/items.h. */
#include "checkpoint/items/items.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "checkpoint/items/list.h"
#include "device/device.h"
#include "checkpoint/safetensors/header.h"
#include "parallel/fsdp/array.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"
#include "tensor/scope.h"

/* Lists ------------------------------------------------------------------------------------------------ */

shoal_status shoal_items_create(shoal_items **items_out)
{
    error_clear();
    if (!items_out) {
        return error_set(SHOAL_ERR_INVALID, "items_create: items_out is NULL");
    }
    shoal_items *items = mem_alloc_zeroed(1, sizeof(*items));
    if (!items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *items_out = items;
    return SHOAL_OK;
}

void shoal_items_free(shoal_items *items)
{
    if (!items) {
        return;
    }
    items_list_clear(items);
    mem_free(items);
}

shoal_status shoal_items_append(shoal_items *items, shoal_items *from)
{
    error_clear();
    if (!items || !from) {
        return error_set(SHOAL_ERR_INVALID, "items_append: %s is NULL", items ? "from" : "items");
    }
    if (items == from) {
        return error_set(SHOAL_ERR_INVALID, "items_append: items and from are the same list");
    }
    shoal_status status = items_list_move(items, from);
    return status == SHOAL_OK ? status : error_prefix(status, "items_append");
}

/* Tensors ---------------------------------------------------------------------------------------------- */

static shoal_status look_plain(struct item_entry *entry, enum item_use use, struct item_place *place_out)
{
    (void)use;
    *place_out = entry->place;
    return SHOAL_OK;
}

static void release_plain(struct item_entry *entry)
{
    shoal_tensor_unref(entry->place.tensor);
}

static const struct item_source plain_source = {.look = look_plain, .release = release_plain};

/* Checks dtype, shape and part of an item. */
static shoal_status check_part(const shoal_item *item)
{
    int64_t count;
    TRY(dtype_check(item->dtype, "dtype"));
    if (safetensors_dtype_row(item->dtype) < 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "dtype: checkpoints do not support %s",
                         dtype_rows[item->dtype].name);
    }
    if (!item->shape && item->n_dims > 0) {
        return error_set(SHOAL_ERR_INVALID, "shape is NULL");
    }
    TRY(layout_count(item->n_dims, item->shape, &count));
    if (item->dim < -1 || item->dim >= item->n_dims) {
        return error_set(SHOAL_ERR_INVALID, "dim: %d is not within -1..%d", item->dim, item->n_dims - 1);
    }
    int64_t size = item->dim >= 0 ? item->shape[item->dim] : 0;
    if (item->offset < 0 || item->offset > size) {
        return error_set(SHOAL_ERR_INVALID, "offset: %" PRId64 " is not within 0..%" PRId64, item->offset,
                         size);
    }
    if (item->length < 0 || item->length > size - item->offset) {
        return error_set(SHOAL_ERR_INVALID,
                         "length: %" PRId64 " is not within 0..%" PRId64 ", what is left from %" PRId64,
                         item->length, size - item->offset, item->offset);
    }
    return SHOAL_OK;
}

static shoal_status check_tensor(const shoal_item *item, const struct region *region)
{
    if (shoal_tensor_dtype(item->tensor) != item->dtype) {
        return error_set(SHOAL_ERR_INVALID, "tensor: its dtype is %s instead of %s",
                         shoal_dtype_name(shoal_tensor_dtype(item->tensor)), shoal_dtype_name(item->dtype));
    }
    int n_dims = shoal_tensor_n_dims(item->tensor);
    const int64_t *shape = shoal_tensor_shape(item->tensor);
    if (!layout_is_same_shape(n_dims, shape, item->n_dims, region->length)) {
        char text[LAYOUT_TEXT_BYTES];
        char part[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "tensor: its shape is %s instead of %s, that of the part",
                         layout_format(text, n_dims, shape),
                         layout_format(part, item->n_dims, region->length));
    }
    return SHOAL_OK;
}

/* Checks the tensor or memory of an item. */
static shoal_status check_values(const shoal_item *item)
{
    struct region region;
    region_make(&region, item->n_dims, item->shape, item->dim, item->offset, item->length);
    if (item->tensor && item->data) {
        return error_set(SHOAL_ERR_INVALID, "tensor and data are both given");
    }
    if (item->tensor) {
        return check_tensor(item, &region);
    }
    if (!item->data && region_count(&region, item->n_dims) > 0) {
        return error_set(SHOAL_ERR_INVALID, "tensor and data are both NULL");
    }
    TRY(device_check(item->device, "device"));
    if (!device_has_data(item->device)) {
        return error_set(SHOAL_ERR_INVALID, "data: device %s has no data", device_name(item->device));
    }
    size_t alignment = dtype_rows[item->dtype].alignment;
    if ((uintptr_t)item->data % alignment != 0) {
        return error_set(SHOAL_ERR_INVALID, "data: %p is not aligned to %zu bytes, as %s is", item->data,
                         alignment, shoal_dtype_name(item->dtype));
    }
    return SHOAL_OK;
}

static shoal_status add_item(shoal_items *items, const char *section, const shoal_item *item)
{
    TRY(check_part(item));
    TRY(check_values(item));
    struct item_entry entry = {.source = &plain_source,
                               .dtype = item->dtype,
                               .n_dims = item->n_dims,
                               .may_be_missing = item->may_be_missing,
                               .owners = item->owners,
                               .place = {.dim = item->dim,
                                         .offset = item->offset,
                                         .length = item->length,
                                         .tensor = item->tensor,
                                         .data = item->data,
                                         .device = item->device}};
    for (int i = 0; i < item->n_dims; i++) {
        entry.shape[i] = item->shape[i];
    }
    TRY(items_list_add(items, section, "", item->name, &entry));
    shoal_tensor_ref(item->tensor);
    return SHOAL_OK;
}

static shoal_status check_names(const shoal_items *items, const char *section, const char *argument,
                                const char *name)
{
    if (!items) {
        return error_set(SHOAL_ERR_INVALID, "items is NULL");
    }
    TRY(items_list_check_section(section));
    return items_list_check_name(items, section, argument, name);
}

static shoal_status check_and_add(shoal_items *items, const char *call, const shoal_item *item)
{
    const char *section = item->section ? item->section : SHOAL_SECTION_MODEL;
    shoal_status status = check_names(items, section, "name", item->name);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", call);
    }
    status = add_item(items, section, item);
    if (status != SHOAL_OK) {
        char text[ITEMS_TEXT_BYTES];
        return error_prefix(status, "%s: item %s", call, items_list_format(text, section, item->name));
    }
    return SHOAL_OK;
}

shoal_status shoal_items_add(shoal_items *items, const shoal_item *item)
{
    shoal_item ours;
    error_clear();
    TRY(struct_size_read("items_add: item", item, sizeof(size_t), &ours, sizeof(ours)));
    return check_and_add(items, "items_add", &ours);
}

shoal_status shoal_items_add_tensor(shoal_items *items, const char *section, const char *name,
                                    shoal_tensor *tensor)
{
    if (!tensor) {
        return scope_fail_null("items_add_tensor", "tensor");
    }
    error_clear();
    const shoal_item item = {.struct_size = sizeof(item),
                             .section = section,
                             .name = name,
                             .dtype = shoal_tensor_dtype(tensor),
                             .n_dims = shoal_tensor_n_dims(tensor),
                             .shape = shoal_tensor_shape(tensor),
                             .dim = -1,
                             .tensor = tensor};
    return check_and_add(items, "items_add_tensor", &item);
}

shoal_status shoal_items_add_fsdp_array(shoal_items *items, const char *section, const char *name,
                                        shoal_fsdp_param *param, shoal_dtype dtype, void *data)
{
    static const char call[] = "items_add_fsdp_array";
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    TRY(fsdp_array_layout(call, param, data, &layout));
    /* How a parameter is cut never changes, so the item does not need the parameter any more. */
    const shoal_item item = {.struct_size = sizeof(item),
                             .section = section,
                             .name = name,
                             .dtype = dtype,
                             .n_dims = layout.n_dims,
                             .shape = layout.shape,
                             .dim = layout.dim,
                             .offset = layout.offset,
                             .length = layout.length,
                             .data = data,
                             .owners = layout.owners,
                             .device = layout.device};
    return check_and_add(items, call, &item);
}

static shoal_status add_alias(shoal_items *items, const char *section, const char *name, const char *alias)
{
    TRY(check_names(items, section, "alias", alias));
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "name is NULL");
    }
    size_t number;
    if (!items_list_find(items, section, name, &number)) {
        char text[ITEMS_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "name: there is no item %s",
                         items_list_format(text, section, name));
    }
    return items_list_add_alias(items, number, "", alias);
}

shoal_status shoal_items_add_alias(shoal_items *items, const char *section, const char *name,
                                   const char *alias)
{
    error_clear();
    shoal_status status = add_alias(items, section ? section : SHOAL_SECTION_MODEL, name, alias);
    return status == SHOAL_OK ? status : error_prefix(status, "items_add_alias");
}

/* Numbers and strings ---------------------------------------------------------------------------------- */

static shoal_status check_and_add_value(shoal_items *items, const struct item_value *value)
{
    if (!items) {
        return error_set(SHOAL_ERR_INVALID, "items is NULL");
    }
    TRY(items_list_check_name(items, ITEMS_VALUES, "name", value->name));
    if (!value->value) {
        char text[ITEMS_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "%s: value is NULL",
                         items_list_format(text, ITEMS_VALUES, value->name));
    }
    return items_list_add_value(items, value);
}

static shoal_status add_value(shoal_items *items, const char *call, const struct item_value *value)
{
    error_clear();
    shoal_status status = check_and_add_value(items, value);
    return status == SHOAL_OK ? status : error_prefix(status, "%s", call);
}

shoal_status shoal_items_add_integer(shoal_items *items, const char *name, int64_t *value)
{
    const struct item_value added = {
        .kind = ITEM_INTEGER, .name = name, .value = value, .bytes = sizeof(*value)};
    return add_value(items, "items_add_integer", &added);
}

shoal_status shoal_items_add_real(shoal_items *items, const char *name, double *value)
{
    const struct item_value added = {
        .kind = ITEM_REAL, .name = name, .value = value, .bytes = sizeof(*value)};
    return add_value(items, "items_add_real", &added);
}

shoal_status shoal_items_add_string(shoal_items *items, const char *name, char *value, size_t bytes)
{
    const struct item_value added = {.kind = ITEM_STRING, .name = name, .value = value, .bytes = bytes};
    if (bytes == 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "items_add_string: bytes is 0, but the string needs a byte for the zero at its end");
    }
    return add_value(items, "items_add_string", &added);
}

/* What is in a list ------------------------------------------------------------------------------------ */

size_t shoal_items_count(const shoal_items *items)
{
    return items ? items->n_entries : 0;
}

static shoal_status get_item(const shoal_items *items, size_t index, shoal_item *item_out)
{
    struct item_place place;
    uint64_t owners;
    if (!items) {
        return error_set(SHOAL_ERR_INVALID, "items is NULL");
    }
    if (index >= items->n_entries) {
        return error_set(SHOAL_ERR_INVALID, "index: %zu is not within the %zu items of the list", index,
                         items->n_entries);
    }
    const struct item_entry *entry = &items->entries[index];
    TRY(items_list_look(items, index, ITEM_PLACE, &place));
    TRY(items_owners(items, index, &owners));
    const shoal_item item = {.section = entry->section,
                             .name = entry->name,
                             .dtype = entry->dtype,
                             .n_dims = entry->n_dims,
                             .shape = entry->shape,
                             .dim = place.dim,
                             .offset = place.offset,
                             .length = place.length,
                             .owners = owners,
                             .tensor = place.tensor,
                             .data = place.data,
                             .may_be_missing = entry->may_be_missing};
    return struct_size_write("item_out", item_out, sizeof(size_t), &item, sizeof(item));
}

shoal_status shoal_items_get(const shoal_items *items, size_t index, shoal_item *item_out)
{
    error_clear();
    shoal_status status = get_item(items, index, item_out);
    return status == SHOAL_OK ? status : error_prefix(status, "items_get");
}

int64_t shoal_items_find(const shoal_items *items, const char *section, const char *name)
{
    if (!items || !name) {
        return -1;
    }
    section = section ? section : SHOAL_SECTION_MODEL;
    /* The section "" has numbers and strings, which are not items. */
    size_t number;
    return section[0] != '\0' && items_list_find(items, section, name, &number) ? (int64_t)number : -1;
}

/* Whether that is the tensor of the item now. */
static bool has_tensor(const shoal_items *items, size_t number, const shoal_tensor *tensor)
{
    struct item_place place;
    return items_list_look(items, number, ITEM_PLACE, &place) == SHOAL_OK && place.tensor == tensor;
}

/* Looks for a tensor in all items, and remembers the others: a program that asks for one usually asks for more. */
static int64_t search_tensor(shoal_items *items, const shoal_tensor *tensor)
{
    int64_t found = -1;
    bool has_memory = true;
    size_t other;
    map_free(&items->tensors);
    for (size_t i = 0; i < items->n_entries; i++) {
        struct item_place place;
        if (items_list_look(items, i, ITEM_PLACE, &place) != SHOAL_OK || !place.tensor) {
            continue;
        }
        found = place.tensor == tensor && found < 0 ? (int64_t)i : found;
        has_memory =
            has_memory && map_get_or_add(&items->tensors, map_key(place.tensor), i, &other) == SHOAL_OK;
    }
    return found;
}

int64_t shoal_items_find_tensor(const shoal_items *items, const shoal_tensor *tensor)
{
    if (!items || !tensor) {
        return -1;
    }
    uint64_t text_number = error_number();
    size_t known;
    bool is_known = map_get(&items->tensors, map_key(tensor), &known) && has_tensor(items, known, tensor);
    /* Only the cache changes, so a const list is all right. */
    int64_t number = is_known ? (int64_t)known : search_tensor((shoal_items *)items, tensor);
    if (error_number() != text_number) { /* it is not an error if some item has no tensor now */
        error_clear();
    }
    return number;
}

/* Functions -------------------------------------------------------------------------------------------- */

shoal_status shoal_items_on_loaded(shoal_items *items, shoal_items_loaded function, void *context,
                                   void (*destroy)(void *context))
{
    error_clear();
    if (!items || !function) {
        return error_set(SHOAL_ERR_INVALID, "items_on_loaded: %s is NULL", items ? "function" : "items");
    }
    TRY(mem_grow((void **)&items->hooks, &items->hook_capacity, items->n_hooks + 1, sizeof(items->hooks[0])));
    items->hooks[items->n_hooks++] =
        (struct item_hook){.function = function, .context = context, .destroy = destroy};
    return SHOAL_OK;
}
