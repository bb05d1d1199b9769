/* SPDX-License-Identifier: MIT */
/*
 * Two tables with open addressing: of nodes by their names, and of strings on which is counted ("add" of "add_1"). The number to
 * go on with never passes a free one, and never falls, because names are never given back: finding the smallest free number takes
 * constant time on average.
 */
#include "graph/names.h"

#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"

enum {
    FIRST_CAPACITY = 64,
    NUMBER_BYTES = 24,  /* '_', 20 digits and the end */
    BUFFER_BYTES = 256, /* names up to about this length are put together without allocating */
};

/* The name is the node's own. */
struct slot {
    struct shoal_node *node; /* NULL: free */
    uint32_t hash;
};

struct base {
    const char *string; /* NULL: free */
    uint32_t hash;
    bool
        is_name; /* some node has it, as it is, and no number is behind it, which would be counted on instead */
    uint64_t next_number; /* the smallest that may be free */
};

struct graph_names {
    struct slot *slots;
    size_t capacity; /* a power of two; at most two thirds of it are used */
    size_t n_names;
    struct base *bases; /* NULL: none yet */
    size_t base_capacity;
    size_t n_bases;
};

shoal_status names_create(struct graph_names **names_out)
{
    struct graph_names *names = mem_alloc_zeroed(1, sizeof(*names));
    struct slot *slots = names ? mem_alloc_zeroed(FIRST_CAPACITY, sizeof(*slots)) : NULL;
    if (!slots) {
        mem_free(names);
        return SHOAL_ERR_NO_MEMORY;
    }
    names->slots = slots;
    names->capacity = FIRST_CAPACITY;
    *names_out = names;
    return SHOAL_OK;
}

void names_free(struct graph_names *names)
{
    if (names) {
        mem_free(names->slots);
        mem_free(names->bases);
        mem_free(names);
    }
}

static uint32_t hash_name(const char *name, size_t length)
{
    return (uint32_t)hash_bytes(0, name, length);
}

/* Names ------------------------------------------------------------------------------------------------ */

/* The slot of the name, or the free one where it would be. */
static struct slot *find_slot(const struct graph_names *names, const char *name, uint32_t hash)
{
    size_t mask = names->capacity - 1;
    size_t at = hash & mask;
    while (names->slots[at].node &&
           (names->slots[at].hash != hash || strcmp(names->slots[at].node->name, name) != 0)) {
        at = (at + 1) & mask;
    }
    return &names->slots[at];
}

/* A free slot for a name that is in none. */
static struct slot *find_free(const struct slot *slots, size_t capacity, uint32_t hash)
{
    size_t at = hash & (capacity - 1);
    while (slots[at].node) {
        at = (at + 1) & (capacity - 1);
    }
    return (struct slot *)&slots[at];
}

/* Room for one more name. */
static shoal_status reserve(struct graph_names *names)
{
    if (names->n_names < names->capacity / 3 * 2) {
        return SHOAL_OK;
    }
    size_t capacity = 2 * names->capacity;
    struct slot *slots = mem_alloc_zeroed(capacity, sizeof(*slots));
    if (!slots) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < names->capacity; i++) {
        if (names->slots[i].node) {
            *find_free(slots, capacity, names->slots[i].hash) = names->slots[i];
        }
    }
    mem_free(names->slots);
    names->slots = slots;
    names->capacity = capacity;
    return SHOAL_OK;
}

static bool is_taken(const struct graph_names *names, const char *name, uint32_t hash)
{
    return find_slot(names, name, hash)->node != NULL;
}

/* Numbers ----------------------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* How long the name is without a number behind it; the whole length when nothing else would be left. */
static size_t measure_base(const char *name, size_t length)
{
    size_t base = length;
    while (base > 0 && is_digit(name[base - 1])) {
        base--;
    }
    return base < length && base >= 2 && name[base - 1] == '_' ? base - 1 : length;
}

/* Bases ------------------------------------------------------------------------------------------------ */

static struct base *find_base(struct base *bases, size_t capacity, const char *string, uint32_t hash)
{
    size_t at = hash & (capacity - 1);
    while (bases[at].string && (bases[at].hash != hash || strcmp(bases[at].string, string) != 0)) {
        at = (at + 1) & (capacity - 1);
    }
    return &bases[at];
}

static shoal_status reserve_base(struct graph_names *names)
{
    if (names->n_bases < names->base_capacity / 2) {
        return SHOAL_OK;
    }
    size_t capacity = names->base_capacity ? 2 * names->base_capacity : FIRST_CAPACITY;
    struct base *bases = mem_alloc_zeroed(capacity, sizeof(*bases));
    if (!bases) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < names->base_capacity; i++) {
        const struct base *base = &names->bases[i];
        if (base->string) {
            *find_base(bases, capacity, base->string, base->hash) = *base;
        }
    }
    mem_free(names->bases);
    names->bases = bases;
    names->base_capacity = capacity;
    return SHOAL_OK;
}

/* The base of a string, which is made if there is none. */
static shoal_status get_base(struct graph_names *names, struct arena *arena, const char *string,
                             struct base **base_out)
{
    TRY(reserve_base(names));
    size_t length = strlen(string);
    uint32_t hash = hash_name(string, length);
    struct base *base = find_base(names->bases, names->base_capacity, string, hash);
    if (!base->string) {
        const char *copy = arena_string(arena, string);
        if (!copy) {
            return SHOAL_ERR_NO_MEMORY;
        }
        *base = (struct base){.string = copy, .hash = hash, .next_number = 1};
        base->is_name = measure_base(string, length) == length && is_taken(names, string, hash);
        names->n_bases++;
    }
    *base_out = base;
    return SHOAL_OK;
}

/* The base that the name itself is, if it is known that some node has it: most names of nodes that passes make. */
static struct base *find_known(const struct graph_names *names, const char *name, uint32_t hash)
{
    if (names->n_bases == 0) {
        return NULL;
    }
    struct base *base = find_base(names->bases, names->base_capacity, name, hash);
    return base->string && base->is_name ? base : NULL;
}

/* Choosing --------------------------------------------------------------------------------------------- */

static bool is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

/* What is wished for, in allowed characters; its length. */
static size_t make_legal(char *name, const char *wish)
{
    char *to = name;
    if (is_digit(wish[0])) {
        *to++ = '_';
    }
    for (; *wish; wish++) {
        *to++ = (char)(is_name_character(*wish) ? *wish : '_');
    }
    *to = '\0';
    return (size_t)(to - name);
}

/* Writes '_' and the number; how many characters that are. */
static size_t write_number(char *to, uint64_t number)
{
    char digits[NUMBER_BYTES];
    size_t n_digits = 0;
    do {
        digits[n_digits++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    to[0] = '_';
    for (size_t i = 0; i < n_digits; i++) {
        to[1 + i] = digits[n_digits - 1 - i];
    }
    to[1 + n_digits] = '\0';
    return 1 + n_digits;
}

/* Writes the smallest free number behind the first `base_length` characters of the name. */
static void add_number(const struct graph_names *names, struct base *base, char *name, size_t base_length,
                       size_t *length_out, uint32_t *hash_out)
{
    for (;; base->next_number++) {
        *length_out = base_length + write_number(name + base_length, base->next_number);
        *hash_out = hash_name(name, *length_out);
        if (!is_taken(names, name, *hash_out)) {
            return;
        }
    }
}

/* A number for a name that may be taken, in place of the one it has. */
static shoal_status make_free(struct graph_names *names, struct arena *arena, char *name, size_t *length,
                              uint32_t *hash)
{
    struct base *base = find_known(names, name, *hash);
    size_t base_length = *length;
    if (!base) {
        if (!is_taken(names, name, *hash)) {
            return SHOAL_OK;
        }
        base_length = measure_base(name, *length);
        name[base_length] = '\0';
        TRY(get_base(names, arena, name, &base));
    }
    add_number(names, base, name, base_length, length, hash);
    return SHOAL_OK;
}

/* `buffer` has room for the wish, '_' and a number. */
static shoal_status choose(struct graph_names *names, struct arena *arena, const char *wish, char *buffer,
                           const char **name_out, uint32_t *hash_out)
{
    size_t length = make_legal(buffer, wish);
    *hash_out = hash_name(buffer, length);
    TRY(make_free(names, arena, buffer, &length, hash_out));
    char *name = arena_alloc(arena, length + 1, 1);
    if (!name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(name, buffer, length + 1);
    *name_out = name;
    return SHOAL_OK;
}

shoal_status names_choose(struct graph_names *names, struct arena *arena, const char *wish,
                          const char **name_out, uint32_t *hash_out)
{
    char buffer[BUFFER_BYTES];
    const char *legal = wish[0] ? wish : "_";
    size_t bytes = strlen(legal) + 1 + NUMBER_BYTES;
    TRY(reserve(names));
    if (bytes <= sizeof(buffer)) {
        return choose(names, arena, legal, buffer, name_out, hash_out);
    }
    char *memory = mem_alloc(bytes);
    if (!memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = choose(names, arena, legal, memory, name_out, hash_out);
    mem_free(memory);
    return status;
}

void names_take(struct graph_names *names, struct shoal_node *node)
{
    node->taken_name = node->name;
    *find_free(names->slots, names->capacity, node->name_hash) =
        (struct slot){.node = node, .hash = node->name_hash};
    names->n_names++;
}

struct shoal_node *names_find(const struct graph_names *names, const char *name)
{
    return find_slot(names, name, hash_name(name, strlen(name)))->node;
}

bool names_has(const struct graph_names *names, const struct shoal_node *node)
{
    size_t mask = names->capacity - 1;
    size_t at = node->name_hash & mask;
    while (names->slots[at].node && names->slots[at].node != node) {
        at = (at + 1) & mask;
    }
    return names->slots[at].node == node && node->name == node->taken_name;
}
