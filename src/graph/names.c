/* SPDX-License-Identifier: MIT */
/*
 * Two tables with open addressing: of nodes by their names, and of strings on which is counted ("add" of "add_1"). The number to
 * go on with never passes a free one, and never falls, because names are never given back: finding the smallest free number takes
 * constant time on average.
 *
 * The hash of a name is made of the hash of what stands before its number, and of the number. So a name that is counted on needs no
 * look at its characters, and eight numbers in a row are neighbours in the table: nodes of one op are often made, and looked at,
 * one after the other.
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
    NEIGHBOURS = 8,     /* so many numbers in a row, the first of them divisible by it */
    NUMBER_DIGITS = 9,  /* a number with more is a part of the name to the hash */
    N_TARGETS = 64      /* a power of two */
};

/* The name is the node's own. */
struct slot {
    struct shoal_node *node; /* NULL: free */
    uint32_t hash;
};

struct base {
    const char *string; /* NULL: free */
    size_t length;
    uint64_t seed; /* what the hash of a name begins with that has a number behind this */
    uint32_t hash;
    bool
        is_name; /* some node has it, as it is, and no number is behind it, which would be counted on instead */
    uint64_t next_number;      /* the smallest that may be free */
    char digits[NUMBER_BYTES]; /* of that number, with '_' before them, and no end */
    uint32_t n_digits;         /* with '_' */
};

/* A base that some node has as its name, found by the address of a string that lasts. */
struct target {
    const char *wish; /* NULL: none */
    struct base *base;
};

struct graph_names {
    struct slot *slots;
    size_t capacity; /* a power of two; at most two thirds of it are used */
    size_t n_names;
    struct base *bases; /* NULL: none yet */
    size_t base_capacity;
    size_t n_bases;
    struct target targets[N_TARGETS]; /* by hash of the address; bases that were looked for lately */
    struct slot *chosen;              /* for the name that was chosen last */
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

/* Of what `seed` was made of, and a number behind it; 0: none. */
static uint32_t hash_number(uint64_t seed, uint64_t number)
{
    uint64_t hash = (seed ^ number / NEIGHBOURS) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 32) * 0xbf58476d1ce4e5b9u;
    hash ^= hash >> 31;
    return (uint32_t)(hash - hash % NEIGHBOURS + number % NEIGHBOURS);
}

static uint64_t seed_of(const char *name, size_t length)
{
    return hash_bytes(0, name, length);
}

static uint32_t hash_name(const char *name, size_t length)
{
    size_t begin = length;
    uint64_t number = 0;
    while (begin > 0 && is_digit(name[begin - 1])) {
        begin--;
    }
    /* As add_number writes them. */
    if (begin < length && length - begin <= NUMBER_DIGITS && name[begin] != '0' && begin >= 2 &&
        name[begin - 1] == '_') {
        for (size_t i = begin; i < length; i++) {
            number = 10 * number + (uint64_t)(name[i] - '0');
        }
        length = begin - 1;
    }
    return hash_number(seed_of(name, length), number);
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

/* A name that is not taken has its slot in names->chosen. */
static bool is_taken(struct graph_names *names, const char *name, uint32_t hash)
{
    names->chosen = find_slot(names, name, hash);
    return names->chosen->node != NULL;
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
    memset(names->targets, 0, sizeof(names->targets));
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
        *base = (struct base){.string = copy,
                              .length = length,
                              .seed = seed_of(string, length),
                              .hash = hash,
                              .next_number = 1};
        memcpy(base->digits, "_1", 2);
        base->n_digits = 2;
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

/* The next number. It has at most 20 digits: there is room. */
static void count_on(struct base *base)
{
    uint32_t at = base->n_digits - 1;
    base->next_number++;
    while (base->digits[at] == '9') {
        base->digits[at--] = '0';
    }
    if (at > 0) {
        base->digits[at]++;
    } else {
        base->digits[1] = '1';
        base->digits[base->n_digits++] = '0';
    }
}

/* Writes the smallest free number behind the base, which the name begins with. */
static void add_number(struct graph_names *names, struct base *base, char *name, size_t *length_out,
                       uint32_t *hash_out)
{
    for (;; count_on(base)) {
        memcpy(name + base->length, base->digits, sizeof(base->digits));
        *length_out = base->length + base->n_digits;
        name[*length_out] = '\0';
        *hash_out = base->n_digits <= NUMBER_DIGITS + 1 ? hash_number(base->seed, base->next_number)
                                                        : hash_name(name, *length_out);
        if (!is_taken(names, name, *hash_out)) {
            return;
        }
    }
}

/* A number for a name that may be taken, in place of the one it has. *base_out: the name itself, if it is counted on. */
static shoal_status make_free(struct graph_names *names, struct arena *arena, char *name, size_t *length,
                              uint32_t *hash, struct base **base_out)
{
    struct base *base = find_known(names, name, *hash);
    *base_out = base;
    if (!base) {
        if (!is_taken(names, name, *hash)) {
            return SHOAL_OK;
        }
        name[measure_base(name, *length)] = '\0';
        TRY(get_base(names, arena, name, &base));
    }
    add_number(names, base, name, length, hash);
    return SHOAL_OK;
}

static shoal_status keep_name(struct arena *arena, const char *name, size_t length, const char **name_out)
{
    char *copy = arena_take(arena, length + 1, 1);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *name_out = memcpy(copy, name, length + 1);
    return SHOAL_OK;
}

static struct target *find_target(struct graph_names *names, const char *wish)
{
    return &names->targets[((uintptr_t)wish * 0x9e3779b97f4a7c15u >> 58) & (N_TARGETS - 1)];
}

/* `buffer` has room for the wish, '_' and a number. */
static shoal_status choose(struct graph_names *names, struct arena *arena, const char *wish, bool is_lasting,
                           char *buffer, const char **name_out, uint32_t *hash_out)
{
    struct base *base;
    size_t length = make_legal(buffer, wish);
    *hash_out = hash_name(buffer, length);
    TRY(make_free(names, arena, buffer, &length, hash_out, &base));
    if (base && is_lasting) {
        *find_target(names, wish) = (struct target){.wish = wish, .base = base};
    }
    return keep_name(arena, buffer, length, name_out);
}

/* A base that is known to be the wish, which is short. */
static shoal_status choose_known(struct graph_names *names, struct arena *arena, struct base *base,
                                 const char **name_out, uint32_t *hash_out)
{
    char buffer[BUFFER_BYTES];
    size_t length;
    memcpy(buffer, base->string, base->length);
    add_number(names, base, buffer, &length, hash_out);
    return keep_name(arena, buffer, length, name_out);
}

shoal_status names_choose(struct graph_names *names, struct arena *arena, const char *wish, bool is_lasting,
                          const char **name_out, uint32_t *hash_out)
{
    char buffer[BUFFER_BYTES];
    TRY(reserve(names));
    const struct target *target = find_target(names, wish);
    if (is_lasting && target->wish == wish) {
        return choose_known(names, arena, target->base, name_out, hash_out);
    }
    const char *legal = wish[0] ? wish : "_";
    size_t bytes = strlen(legal) + 1 + NUMBER_BYTES;
    if (bytes <= sizeof(buffer)) {
        return choose(names, arena, legal, is_lasting, buffer, name_out, hash_out);
    }
    char *memory = mem_alloc(bytes);
    if (!memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = choose(names, arena, legal, /*is_lasting=*/false, memory, name_out, hash_out);
    mem_free(memory);
    return status;
}

void names_take(struct graph_names *names, struct shoal_node *node)
{
    node->taken_name = node->name;
    *names->chosen = (struct slot){.node = node, .hash = node->name_hash};
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
