/* SPDX-License-Identifier: MIT */
/*
 * A table of strings with open addressing. An entry is a name that is taken, a string on which is counted ("add" of "add_1"), or
 * both. The number to go on with never passes a free one, and never falls, because names are never given back: finding the
 * smallest free number takes constant time on average.
 */
#include "graph/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"

enum {
    FIRST_CAPACITY = 64,
    NUMBER_BYTES = 24 /* '_' and 20 digits */
};

struct entry {
    uint64_t hash;
    const char *string; /* NULL: free */
    struct shoal_node *node;
    uint64_t next_number; /* the smallest that may be free; 0: nobody has asked */
};

struct graph_names {
    struct entry *entries;
    size_t capacity; /* a power of two; less than half of it is used */
    size_t n_entries;
};

shoal_status names_create(struct graph_names **names_out)
{
    struct graph_names *names = mem_alloc_zeroed(1, sizeof(*names));
    struct entry *entries = names ? mem_alloc_zeroed(FIRST_CAPACITY, sizeof(*entries)) : NULL;
    if (!entries) {
        mem_free(names);
        return SHOAL_ERR_NO_MEMORY;
    }
    names->entries = entries;
    names->capacity = FIRST_CAPACITY;
    *names_out = names;
    return SHOAL_OK;
}

void names_free(struct graph_names *names)
{
    if (names) {
        mem_free(names->entries);
        mem_free(names);
    }
}

static uint64_t hash_string(const char *string)
{
    return hash_bytes(0, string, strlen(string));
}

/* The entry of the string, or the free one where it would be. */
static struct entry *find_entry(const struct graph_names *names, const char *string, uint64_t hash)
{
    size_t mask = names->capacity - 1;
    size_t at = (size_t)hash & mask;
    while (names->entries[at].string &&
           (names->entries[at].hash != hash || strcmp(names->entries[at].string, string) != 0)) {
        at = (at + 1) & mask;
    }
    return &names->entries[at];
}

/* Room for n_more entries. */
static shoal_status reserve(struct graph_names *names, size_t n_more)
{
    if (names->n_entries + n_more < names->capacity / 2) {
        return SHOAL_OK;
    }
    struct graph_names grown = {.capacity = 2 * names->capacity, .n_entries = names->n_entries};
    grown.entries = mem_alloc_zeroed(grown.capacity, sizeof(*grown.entries));
    if (!grown.entries) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < names->capacity; i++) {
        const struct entry *entry = &names->entries[i];
        if (entry->string) {
            *find_entry(&grown, entry->string, entry->hash) = *entry;
        }
    }
    mem_free(names->entries);
    *names = grown;
    return SHOAL_OK;
}

/* The entry of a string, which is made if there is none; there is room for it. */
static struct entry *get_entry(struct graph_names *names, const char *string)
{
    uint64_t hash = hash_string(string);
    struct entry *entry = find_entry(names, string, hash);
    if (!entry->string) {
        *entry = (struct entry){.hash = hash, .string = string};
        names->n_entries++;
    }
    return entry;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

/* What is wished for, in allowed characters, with room for a number behind it. */
static char *make_legal(struct arena *arena, const char *wish)
{
    if (!wish[0]) {
        wish = "_";
    }
    size_t length = strlen(wish);
    char *name = arena_alloc(arena, length + 2 + NUMBER_BYTES, 1);
    if (!name) {
        return NULL;
    }
    char *to = name;
    if (is_digit(wish[0])) {
        *to++ = '_';
    }
    for (size_t i = 0; i < length; i++) {
        *to++ = (char)(is_name_character(wish[i]) ? wish[i] : '_');
    }
    return name;
}

/* How long the name is without a number behind it; the whole length when nothing else would be left. */
static size_t measure_base(const char *name)
{
    size_t length = strlen(name);
    size_t base = length;
    while (base > 0 && is_digit(name[base - 1])) {
        base--;
    }
    return base < length && base >= 2 && name[base - 1] == '_' ? base - 1 : length;
}

static bool is_taken(const struct graph_names *names, const char *name)
{
    return names_find(names, name) != NULL;
}

/* Writes the smallest free number behind the name, which is taken, in place of the one it has. */
static shoal_status add_number(struct graph_names *names, struct arena *arena, char *name)
{
    size_t length = measure_base(name);
    name[length] = '\0';
    struct entry *entry = find_entry(names, name, hash_string(name));
    if (!entry->string) {
        const char *base = arena_string(arena, name);
        if (!base) {
            return SHOAL_ERR_NO_MEMORY;
        }
        entry = get_entry(names, base);
    }
    uint64_t number = entry->next_number ? entry->next_number : 1;
    for (;; number++) {
        (void)snprintf(name + length, NUMBER_BYTES, "_%" PRIu64, number);
        if (!is_taken(names, name)) {
            break;
        }
    }
    entry->next_number = number;
    return SHOAL_OK;
}

shoal_status names_choose(struct graph_names *names, struct arena *arena, const char *wish,
                          const char **name_out)
{
    TRY(reserve(names, 2));
    char *name = make_legal(arena, wish);
    if (!name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    if (is_taken(names, name)) {
        TRY(add_number(names, arena, name));
    }
    *name_out = name;
    return SHOAL_OK;
}

void names_take(struct graph_names *names, const char *name, struct shoal_node *node)
{
    get_entry(names, name)->node = node;
}

struct shoal_node *names_find(const struct graph_names *names, const char *name)
{
    return find_entry(names, name, hash_string(name))->node;
}
