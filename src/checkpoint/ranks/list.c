/* SPDX-License-Identifier: MIT */
/*
 * Compares the lists of items of all ranks: see list.h. A list is turned into bytes: numbers of 8 bytes, and strings
 * that end with 0. Other ranks parse the bytes of rank 0 only to find the difference.
 */
#include "checkpoint/ranks/list.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "checkpoint/safetensors/header.h"
#include "tensor/layout.h"

/* A list as bytes ------------------------------------------------------------------------------------------- */

/* Written twice, first without memory to learn the length. */
struct bytes {
    char *data; /* NULL if bytes are only counted */
    size_t n_bytes;
};

static void put(struct bytes *out, const void *data, size_t n_bytes)
{
    if (out->data) {
        memcpy(out->data + out->n_bytes, data, n_bytes);
    }
    out->n_bytes += n_bytes;
}

static void put_number(struct bytes *out, int64_t number)
{
    put(out, &number, sizeof number);
}

static void put_string(struct bytes *out, const char *string)
{
    put(out, string, strlen(string) + 1);
}

static void put_list(struct bytes *out, const shoal_items *items)
{
    put_number(out, (int64_t)shoal_items_count(items));
    for (size_t i = 0; i < shoal_items_count(items); i++) {
        struct item_info info;
        items_info(items, i, &info);
        put_string(out, info.section);
        put_string(out, info.name);
        put_number(out, info.may_be_missing);
        put_number(out, info.dtype);
        put_number(out, info.n_dims);
        put(out, info.shape, (size_t)info.n_dims * sizeof(info.shape[0]));
        put_number(out, (int64_t)info.n_aliases);
        for (size_t k = 0; k < info.n_aliases; k++) {
            put_string(out, info.aliases[k]);
        }
    }
    put_number(out, (int64_t)items_n_values(items));
    for (size_t i = 0; i < items_n_values(items); i++) {
        const struct item_value *value = items_value(items, i);
        put_number(out, value->kind);
        put_string(out, value->name);
    }
}

static shoal_status make_bytes(const shoal_items *items, struct bytes *bytes_out)
{
    struct bytes counted = {0};
    put_list(&counted, items);
    struct bytes out = {.data = mem_alloc(counted.n_bytes)};
    if (!out.data) {
        return SHOAL_ERR_NO_MEMORY;
    }
    put_list(&out, items);
    *bytes_out = out;
    return SHOAL_OK;
}

static int64_t take_number(const char **at)
{
    int64_t number;
    memcpy(&number, *at, sizeof number);
    *at += sizeof number;
    return number;
}

static const char *take_string(const char **at)
{
    const char *string = *at;
    *at += strlen(string) + 1;
    return string;
}

/* Differences ----------------------------------------------------------------------------------------------- */

/* For texts: "'weight' of section 'model'". */
#define ITEM_TEXT_BYTES (2 * SAFETENSORS_NAME_BYTES + 16)
struct item_text {
    char text[ITEM_TEXT_BYTES];
};

static struct item_text describe(const char *section, const char *name)
{
    struct item_text item;
    char quoted[SAFETENSORS_NAME_BYTES];
    struct text out = text_begin(item.text, sizeof item.text);
    text_add(&out, "%s of section ", safetensors_format_name(quoted, name));
    text_add(&out, "%s", safetensors_format_name(quoted, section));
    return item;
}

/* Item number `index` has another name on rank 0. */
static shoal_status report_name(const shoal_items *items, size_t index, const struct item_info *own,
                                const char *section, const char *name)
{
    struct item_text there = describe(section, name);
    struct item_text here = describe(own->section, own->name);
    if (shoal_items_find(items, section, name) < 0) {
        return error_set(SHOAL_ERR_MISMATCH, "the list has no item %s, which is number %zu on rank 0",
                         there.text, index);
    }
    return error_set(SHOAL_ERR_MISMATCH, "item %zu of the list is %s, and %s on rank 0", index, here.text,
                     there.text);
}

static shoal_status compare_aliases(const struct item_info *own, const char **at)
{
    struct item_text item = describe(own->section, own->name);
    char here[SAFETENSORS_NAME_BYTES];
    char there[SAFETENSORS_NAME_BYTES];
    size_t n_aliases = (size_t)take_number(at);
    for (size_t i = 0; i < n_aliases && i < own->n_aliases; i++) {
        const char *alias = take_string(at);
        if (strcmp(alias, own->aliases[i]) != 0) {
            return error_set(SHOAL_ERR_MISMATCH, "item %s has the alias %s, and %s on rank 0", item.text,
                             safetensors_format_name(here, own->aliases[i]),
                             safetensors_format_name(there, alias));
        }
    }
    if (n_aliases != own->n_aliases) {
        return error_set(SHOAL_ERR_MISMATCH, "item %s has %zu aliases, and %zu on rank 0", item.text,
                         own->n_aliases, n_aliases);
    }
    return SHOAL_OK;
}

/* Compares an item with the one that rank 0 has at that number. */
static shoal_status compare_item(const shoal_items *items, size_t index, const char **at)
{
    struct item_info own;
    int64_t shape[SHOAL_MAX_DIMS] = {0};
    const char *section = take_string(at);
    const char *name = take_string(at);
    bool may_be_missing = take_number(at) != 0;
    shoal_dtype dtype = (shoal_dtype)take_number(at);
    int n_dims = (int)take_number(at);
    memcpy(shape, *at, (size_t)n_dims * sizeof(shape[0]));
    *at += (size_t)n_dims * sizeof(shape[0]);
    if (index >= shoal_items_count(items)) {
        return error_set(SHOAL_ERR_MISMATCH, "the list has no item %s, which is number %zu on rank 0",
                         describe(section, name).text, index);
    }
    items_info(items, index, &own);
    if (strcmp(section, own.section) != 0 || strcmp(name, own.name) != 0) {
        return report_name(items, index, &own, section, name);
    }
    if (dtype != own.dtype) {
        return error_set(SHOAL_ERR_MISMATCH, "item %s is %s, and %s on rank 0", describe(section, name).text,
                         shoal_dtype_name(own.dtype), shoal_dtype_name(dtype));
    }
    if (!layout_is_same_shape(n_dims, shape, own.n_dims, own.shape)) {
        char here[LAYOUT_TEXT_BYTES];
        char there[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_MISMATCH, "item %s has the shape %s, and %s on rank 0",
                         describe(section, name).text, layout_format(here, own.n_dims, own.shape),
                         layout_format(there, n_dims, shape));
    }
    if (may_be_missing != own.may_be_missing) {
        return error_set(SHOAL_ERR_MISMATCH, "item %s %s be missing, and %s on rank 0",
                         describe(section, name).text, own.may_be_missing ? "may" : "must not",
                         may_be_missing ? "may" : "must not");
    }
    return compare_aliases(&own, at);
}

static shoal_status compare_value(const shoal_items *items, size_t index, const char **at)
{
    static const char *const kinds[] = {
        [ITEM_INTEGER] = "integer", [ITEM_REAL] = "real", [ITEM_STRING] = "string"};
    char here[SAFETENSORS_NAME_BYTES];
    char there[SAFETENSORS_NAME_BYTES];
    int64_t kind = take_number(at);
    const char *name = take_string(at);
    if (index >= items_n_values(items)) {
        return error_set(SHOAL_ERR_MISMATCH, "the list has no %s %s, which rank 0 has", kinds[kind],
                         safetensors_format_name(there, name));
    }
    const struct item_value *own = items_value(items, index);
    if (kind != (int64_t)own->kind || strcmp(name, own->name) != 0) {
        return error_set(SHOAL_ERR_MISMATCH,
                         "number or string %zu of the list is the %s %s, and the %s %s on rank 0", index,
                         kinds[own->kind], safetensors_format_name(here, own->name), kinds[kind],
                         safetensors_format_name(there, name));
    }
    return SHOAL_OK;
}

/* Compares this rank's list with rank 0's bytes. */
static shoal_status compare_lists(const shoal_items *items, const char *at)
{
    size_t n_items = (size_t)take_number(&at);
    for (size_t i = 0; i < n_items; i++) {
        TRY(compare_item(items, i, &at));
    }
    if (n_items < shoal_items_count(items)) {
        struct item_info own;
        items_info(items, n_items, &own);
        return error_set(SHOAL_ERR_MISMATCH, "the list has the item %s, which rank 0 does not have",
                         describe(own.section, own.name).text);
    }
    size_t n_values = (size_t)take_number(&at);
    for (size_t i = 0; i < n_values; i++) {
        TRY(compare_value(items, i, &at));
    }
    if (n_values < items_n_values(items)) {
        char text[SAFETENSORS_NAME_BYTES];
        return error_set(SHOAL_ERR_MISMATCH,
                         "the list has the number or string %s, which rank 0 does not have",
                         safetensors_format_name(text, items_value(items, n_values)->name));
    }
    return SHOAL_OK;
}

/* Collective. Called when there is a difference: returns an error on all ranks. */
static shoal_status find_difference(shoal_group *group, const shoal_items *items, const struct bytes *own)
{
    void *first = NULL;
    size_t n_bytes;
    TRY(agree_receive(group, own->data, own->n_bytes, &first, &n_bytes));
    shoal_status status = compare_lists(items, first);
    mem_free(first);
    TRY(agree(group, "comparing the lists of items", status));
    return error_set(SHOAL_ERR_INTERNAL, "lists of items differ in their bytes and in nothing else");
}

shoal_status list_agree(shoal_group *group, const shoal_items *items)
{
    struct bytes own = {0};
    shoal_status status = make_bytes(items, &own);
    status = agree(group, "describing the list of items", status);
    if (status == SHOAL_OK) {
        status = agree_on(group, "list of items", own.data, own.n_bytes);
        if (status == SHOAL_ERR_MISMATCH) {
            status = find_difference(group, items, &own);
        }
    }
    mem_free(own.data);
    return status;
}
