/* SPDX-License-Identifier: MIT */
/*
 * Matching of names: see load/match.h.
 *
 * Every name of every tensor is looked up in the list, which has a hash table of its names. If several tensors claim an
 * item, one that has the item's name wins over those that have an alias.
 */
#include "checkpoint/load/match.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/text.h"
#include "base/try.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

#define MAX_TOLD 8
/* How many names are compared to find the nearest; each takes a few microseconds. */
#define MAX_NEAREST 4096
#define ENTRY_BYTES 160

enum problem {
    MISSING,
    UNEXPECTED,
    OTHER_SHAPE,
    OTHER_DTYPE,
    N_PROBLEMS
};

struct problem_list {
    size_t count;
    char entries[MAX_TOLD][ENTRY_BYTES];
};

/* How well a tensor fits an item: which names are equal. */
enum fit {
    FIT_NONE,
    FIT_ALIASES,
    FIT_ALIAS_OF_TENSOR,
    FIT_ALIAS_OF_ITEM,
    FIT_NAMES
};

struct claim {
    const struct index_tensor *tensor;
    enum fit fit;
};

struct matcher {
    const shoal_items *items;
    const struct checkpoint_index *index;
    const struct load_rules *rules;
    struct claim *claims; /* of each item */
    struct load_match match;
    struct problem_list problems[N_PROBLEMS];
    const char *first_missing;
    struct nearest nearest; /* to that one, of the unexpected */
};

/* Problems --------------------------------------------------------------------------------------------- */

/* "NAME", or "SECTION/NAME" outside of the model's. */
static void tell(struct matcher *matcher, enum problem problem, const char *section, const char *name,
                 const char *details)
{
    struct problem_list *list = &matcher->problems[problem];
    if (list->count < MAX_TOLD) {
        bool is_plain = strcmp(section, SHOAL_SECTION_MODEL) == 0 || section[0] == '\0';
        (void)snprintf(list->entries[list->count], ENTRY_BYTES, "%.24s%s%.80s%s", is_plain ? "" : section,
                       is_plain ? "" : "/", name, details);
    }
    list->count++;
}

static void add_list(struct text *text, const struct problem_list *list, const char *what, size_t room)
{
    size_t n_told = list->count < MAX_TOLD ? list->count : MAX_TOLD;
    size_t bytes = text->bytes;
    text_add(text, "%s%zu %s: ", text->length > 0 ? "; " : "", list->count, what);
    if (text->length + room < text->bytes) {
        text->bytes = text->length + room;
    }
    for (size_t i = 0; i < n_told; i++) {
        text_add_name(text, i > 0 ? ", " : "", list->entries[i]);
    }
    /* A list that had no room for all of them ends in "..." already. */
    bool is_cut = text->bytes == text->length + 1;
    text->bytes = bytes;
    if (list->count > n_told && !is_cut) {
        text_add(text, ", ...");
    }
}

static shoal_status report(const struct matcher *matcher)
{
    static const char *const words[N_PROBLEMS] = {
        [MISSING] = "missing in the checkpoint",
        [UNEXPECTED] = "not expected",
        [OTHER_SHAPE] = "of another shape",
        [OTHER_DTYPE] = "of another dtype",
    };
    char string[ERROR_TEXT_BYTES - 32];
    struct text text = text_begin(string, sizeof string);
    size_t n_lists = 0;
    for (int i = 0; i < N_PROBLEMS; i++) {
        n_lists += matcher->problems[i].count > 0;
    }
    if (n_lists == 0) {
        return SHOAL_OK;
    }
    /* Each list gets an equal share of the text, besides its own words. */
    size_t room = (sizeof string - n_lists * 40) / n_lists;
    for (int i = 0; i < N_PROBLEMS; i++) {
        if (matcher->problems[i].count > 0) {
            add_list(&text, &matcher->problems[i], words[i], room);
        }
    }
    if (matcher->nearest.n_names > 0) {
        char near[NEAREST_BYTES];
        nearest_describe(&matcher->nearest, "names", near);
        if (text.length + strlen(near) + strlen(matcher->first_missing) + 16 < sizeof string) {
            text_add(&text, " (for %s %s)", matcher->first_missing, near);
        }
    }
    return error_set(SHOAL_ERR_INVALID, "%s", string);
}

/* Tensors ---------------------------------------------------------------------------------------------- */

/* Whether the load is about that section. */
static bool is_wanted(const struct load_rules *rules, const char *section)
{
    return !rules->section || strcmp(rules->section, section) == 0;
}

/* A section that the list does not have is an error: its name was misspelled, and nothing would be loaded. */
static shoal_status check_section(const struct matcher *matcher)
{
    const char *section = matcher->rules->section;
    bool is_there = !section;
    for (size_t i = 0; i < shoal_items_count(matcher->items) && !is_there; i++) {
        struct item_info info;
        items_info(matcher->items, i, &info);
        is_there = strcmp(info.section, section) == 0;
    }
    return is_there ? SHOAL_OK
                    : error_set(SHOAL_ERR_INVALID,
                                "options.section: the list has no item of section \"%.64s\"", section);
}

/* Returns whether the list knows the name. */
static bool claim(struct matcher *matcher, const struct index_tensor *tensor, const char *name, bool is_alias)
{
    int64_t item = shoal_items_find(matcher->items, tensor->section, name);
    struct item_info info;
    if (item < 0) {
        return false;
    }
    items_info(matcher->items, (size_t)item, &info);
    bool is_own = strcmp(info.name, name) == 0;
    enum fit fit =
        is_own ? (is_alias ? FIT_ALIAS_OF_TENSOR : FIT_NAMES) : (is_alias ? FIT_ALIASES : FIT_ALIAS_OF_ITEM);
    if (fit > matcher->claims[item].fit) {
        matcher->claims[item] = (struct claim){.tensor = tensor, .fit = fit};
    }
    return true;
}

/*
 * Finds the tensors that the list knows. In a checkpoint of Shoal, a tensor is known only if an item takes it: tied
 * parameters are saved once, so if the list ties two tensors of the checkpoint, the values of one would be lost, and it
 * is unexpected. Other tools save tied parameters twice; then both copies are known.
 */
static void find_known(struct matcher *matcher, bool *is_known)
{
    const struct checkpoint_index *index = matcher->index;
    for (size_t i = 0; i < index->n_tensors; i++) {
        const struct index_tensor *tensor = &index->tensors[i];
        if (is_wanted(matcher->rules, tensor->section)) {
            is_known[i] = claim(matcher, tensor, tensor->name, /*is_alias=*/false);
            for (size_t j = 0; j < tensor->n_aliases; j++) {
                is_known[i] |= claim(matcher, tensor, tensor->aliases[j], /*is_alias=*/true);
            }
        }
    }
    if (matcher->rules->is_foreign) {
        return;
    }
    memset(is_known, 0, index->n_tensors * sizeof is_known[0]);
    for (size_t i = 0; i < shoal_items_count(matcher->items); i++) {
        if (matcher->claims[i].tensor) {
            is_known[matcher->claims[i].tensor - index->tensors] = true;
        }
    }
}

static shoal_status look_up_tensors(struct matcher *matcher)
{
    bool *is_known = mem_alloc_zeroed(matcher->index->n_tensors + 1, sizeof is_known[0]);
    if (!is_known) {
        return SHOAL_ERR_NO_MEMORY;
    }
    find_known(matcher, is_known);
    for (size_t i = 0; i < matcher->index->n_tensors; i++) {
        const struct index_tensor *tensor = &matcher->index->tensors[i];
        bool is_unexpected = is_wanted(matcher->rules, tensor->section) && !is_known[i];
        matcher->match.n_unexpected += is_unexpected;
        if (is_unexpected && !matcher->rules->allows_unexpected) {
            tell(matcher, UNEXPECTED, tensor->section, tensor->name, "");
        }
    }
    mem_free(is_known);
    return SHOAL_OK;
}

static bool is_cast(const struct load_rules *rules, shoal_dtype from, shoal_dtype to)
{
    return rules->casts && dtype_is_real(from) && dtype_is_real(to);
}

static void compare_tensor(struct matcher *matcher, const struct item_info *info,
                           const struct index_tensor *tensor)
{
    bool is_same = info->n_dims == tensor->n_dims;
    for (int i = 0; i < info->n_dims && is_same; i++) {
        is_same = info->shape[i] == tensor->shape[i];
    }
    if (!is_same) {
        char here[LAYOUT_TEXT_BYTES];
        char there[LAYOUT_TEXT_BYTES];
        char details[2 * LAYOUT_TEXT_BYTES + 32];
        (void)snprintf(details, sizeof details, " (%s here, %s there)",
                       layout_format(here, info->n_dims, info->shape),
                       layout_format(there, tensor->n_dims, tensor->shape));
        tell(matcher, OTHER_SHAPE, info->section, info->name, details);
    }
    if (info->dtype != tensor->dtype && !is_cast(matcher->rules, tensor->dtype, info->dtype)) {
        char details[80];
        (void)snprintf(details, sizeof details, " (%s here, %s there)", shoal_dtype_name(info->dtype),
                       shoal_dtype_name(tensor->dtype));
        tell(matcher, OTHER_DTYPE, info->section, info->name, details);
    }
}

/* Counts an item, number or string that keeps its value. */
static void miss(struct matcher *matcher, const char *section, const char *name, bool is_allowed)
{
    matcher->match.n_missing++;
    if (is_allowed || matcher->rules->allows_missing) {
        return;
    }
    if (!matcher->first_missing) {
        matcher->first_missing = name;
    }
    tell(matcher, MISSING, section, name, "");
}

static void settle_items(struct matcher *matcher)
{
    const struct load_rules *rules = matcher->rules;
    struct load_match *match = &matcher->match;
    size_t n_items = shoal_items_count(matcher->items);
    for (size_t i = 0; i < n_items; i++) {
        const struct index_tensor *tensor = matcher->claims[i].tensor;
        struct item_info info;
        items_info(matcher->items, i, &info);
        if (!is_wanted(rules, info.section)) {
            continue;
        }
        if (!tensor) {
            bool is_elsewhere = rules->is_foreign && strcmp(info.section, SHOAL_SECTION_MODEL) != 0;
            miss(matcher, info.section, info.name, info.may_be_missing || is_elsewhere);
            continue;
        }
        compare_tensor(matcher, &info, tensor);
        match->wants[match->n_wants++] = (struct load_want){.item = i, .tensor = tensor, .dtype = info.dtype};
    }
}

/* Numbers and strings ---------------------------------------------------------------------------------- */

static int compare_values(const void *a, const void *b)
{
    const struct index_value *const *first = a;
    const struct index_value *const *second = b;
    return strcmp((*first)->name, (*second)->name);
}

/* The values of the index by name; freed with mem_free. */
static shoal_status sort_values(const struct checkpoint_index *index, const struct index_value ***sorted_out)
{
    const struct index_value **sorted = mem_alloc_zeroed(index->n_values + 1, sizeof(sorted[0]));
    if (!sorted) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < index->n_values; i++) {
        sorted[i] = &index->values[i];
    }
    if (index->n_values > 0) {
        qsort(sorted, index->n_values, sizeof(sorted[0]), compare_values);
    }
    *sorted_out = sorted;
    return SHOAL_OK;
}

static void compare_value(struct matcher *matcher, const struct item_value *item,
                          const struct index_value *value)
{
    static const char *const kinds[] = {
        [ITEM_INTEGER] = "an integer", [ITEM_REAL] = "a real", [ITEM_STRING] = "a string"};
    char details[96] = "";
    if ((int)item->kind != value->kind) {
        (void)snprintf(details, sizeof details, " (%s here, %s there)", kinds[item->kind],
                       kinds[value->kind]);
    } else if (item->kind == ITEM_STRING && strlen(value->string) >= item->bytes) {
        (void)snprintf(details, sizeof details, " (a string of %zu bytes, room for %zu)",
                       strlen(value->string), item->bytes - 1);
    }
    if (details[0] != '\0') {
        tell(matcher, OTHER_DTYPE, "", item->name, details);
    }
}

static void look_up_values(struct matcher *matcher, const struct index_value **sorted)
{
    struct load_match *match = &matcher->match;
    size_t n_items = items_n_values(matcher->items);
    size_t n_values = matcher->index->n_values;
    for (size_t i = 0; i < n_items; i++) {
        const struct item_value *item = items_value(matcher->items, i);
        const struct index_value wanted = {.name = item->name};
        const struct index_value *key = &wanted;
        const struct index_value **found =
            n_values == 0 ? NULL : bsearch(&key, sorted, n_values, sizeof(sorted[0]), compare_values);
        if (!found) {
            miss(matcher, "", item->name, matcher->rules->is_foreign);
            continue;
        }
        compare_value(matcher, item, *found);
        match->values[match->n_values++] = (struct load_value){.to = item, .from = *found};
    }
}

static int compare_names(const void *a, const void *b)
{
    const struct load_value *first = a;
    const struct load_value *second = b;
    return strcmp(first->from->name, second->from->name);
}

/* Finds values of the checkpoint that the list does not have. Sorts the values that were found. */
static void find_unexpected_values(struct matcher *matcher, const struct index_value **sorted)
{
    struct load_match *match = &matcher->match;
    size_t next = 0;
    if (match->n_values > 0) {
        qsort(match->values, match->n_values, sizeof(match->values[0]), compare_names);
    }
    for (size_t i = 0; i < matcher->index->n_values; i++) {
        if (next < match->n_values && match->values[next].from == sorted[i]) {
            next++;
        } else if (!matcher->rules->allows_unexpected) {
            tell(matcher, UNEXPECTED, "", sorted[i]->name, "");
        }
    }
}

static shoal_status match_values(struct matcher *matcher)
{
    const struct index_value **sorted;
    if (matcher->rules->section) {
        return SHOAL_OK;
    }
    TRY(sort_values(matcher->index, &sorted));
    look_up_values(matcher, sorted);
    find_unexpected_values(matcher, sorted);
    mem_free(sorted);
    return SHOAL_OK;
}

/* All of it -------------------------------------------------------------------------------------------- */

/* Finds the unexpected names that are most like the first missing one. */
static void find_nearest(struct matcher *matcher)
{
    const struct checkpoint_index *index = matcher->index;
    if (matcher->problems[MISSING].count == 0 || matcher->problems[UNEXPECTED].count == 0 ||
        index->n_tensors > MAX_NEAREST) {
        return;
    }
    nearest_begin(&matcher->nearest, matcher->first_missing);
    for (size_t i = 0; i < index->n_tensors; i++) {
        const struct index_tensor *tensor = &index->tensors[i];
        if (is_wanted(matcher->rules, tensor->section) &&
            shoal_items_find(matcher->items, tensor->section, tensor->name) < 0) {
            nearest_add(&matcher->nearest, tensor->name);
        }
    }
}

static shoal_status run(struct matcher *matcher)
{
    struct load_match *match = &matcher->match;
    size_t n_items = shoal_items_count(matcher->items);
    matcher->claims = mem_alloc_zeroed(n_items + 1, sizeof(matcher->claims[0]));
    match->wants = mem_alloc_zeroed(n_items + 1, sizeof(match->wants[0]));
    match->values = mem_alloc_zeroed(items_n_values(matcher->items) + 1, sizeof(match->values[0]));
    if (!matcher->claims || !match->wants || !match->values) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(check_section(matcher));
    TRY(look_up_tensors(matcher));
    settle_items(matcher);
    TRY(match_values(matcher));
    find_nearest(matcher);
    return report(matcher);
}

shoal_status load_match_make(const shoal_items *items, const struct checkpoint_index *index,
                             const struct load_rules *rules, struct load_match *match_out)
{
    struct matcher *matcher = mem_alloc_zeroed(1, sizeof(*matcher));
    if (!matcher) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *matcher = (struct matcher){.items = items, .index = index, .rules = rules};
    shoal_status status = run(matcher);
    if (status == SHOAL_OK) {
        *match_out = matcher->match;
    } else {
        load_match_free(&matcher->match);
    }
    mem_free(matcher->claims);
    mem_free(matcher);
    return status;
}

void load_match_free(struct load_match *match)
{
    for (size_t i = 0; match->wants && i < match->n_wants; i++) {
        items_part_close(&match->wants[i].part);
    }
    mem_free(match->wants);
    mem_free(match->values);
    *match = (struct load_match){0};
}

void load_match_set_values(const struct load_match *match)
{
    for (size_t i = 0; i < match->n_values; i++) {
        const struct item_value *to = match->values[i].to;
        const struct index_value *from = match->values[i].from;
        switch (to->kind) {
        case ITEM_INTEGER:
            *(int64_t *)to->value = from->integer;
            break;
        case ITEM_REAL:
            *(double *)to->value = from->real;
            break;
        case ITEM_STRING:
            memcpy(to->value, from->string, strlen(from->string) + 1);
            break;
        }
    }
}
