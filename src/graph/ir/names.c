/* SPDX-License-Identifier: MIT */
/*
 * There is a hash table of nodes by their names, and a map of bases: strings to which numbers were appended ("add" of
 * "add_1"). A node whose number was appended here is only in the array of its base, indexed by number, and not in the
 * table. So such a name need not be hashed, nodes of one op are neighbours in memory, and the table stays small even
 * for a million nodes.
 *
 * Names are never given back. So the next number of a base only grows, and finding the smallest free number takes
 * constant time on average.
 *
 * The table of nodes is not a base/map, which spreads its keys. Here the hash of a name combines the hash of its base
 * with its number, and eight consecutive numbers are neighbours in the table, because nodes of one op are often made,
 * and looked up, one after the other. Probing goes on by nine slots: past the eight neighbours, and by an odd number,
 * which reaches every slot.
 */
#include "graph/ir/names.h"

#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"

enum {
    FIRST_CAPACITY = 64,
    NUMBER_BYTES = 24,  /* '_', 20 digits and the end */
    BUFFER_BYTES = 256, /* names up to about this length are put together without allocating */
    NEIGHBOURS = 8, /* so many consecutive numbers, from a multiple of it on, are neighbours in the table */
    STEP = NEIGHBOURS + 1,
    NUMBER_DIGITS = 10 /* a number with more digits counts as a part of the name */
};

/* A slot of the table. The key is the node's name. */
struct slot {
    struct shoal_node *node; /* NULL if it is free */
    uint32_t hash;
};

struct name_base {
    struct name_base *before; /* the base that was made before this one; NULL if there is none */
    const char *string;
    size_t length;
    uint64_t seed;        /* hash of the string, from which the hash of a name with a number is made */
    bool is_name;         /* a node has the string itself as its name, and it does not end with a number */
    uint64_t next_number; /* the smallest number that may be free */
    char digits[NUMBER_BYTES]; /* '_' and the digits of next_number, without a zero at the end */
    uint32_t n_digits;         /* of `digits`, with '_' */
    /* Nodes that got a number here: counted[i] has number first_counted + i. It is NULL if a node that wanted exactly
       this name has it; that node is in the table. */
    struct shoal_node **counted;
    size_t n_counted;
    size_t capacity;
    uint64_t first_counted;
};

struct graph_names {
    struct slot *slots;
    size_t capacity; /* a power of two; at most two thirds of it are used */
    size_t n_names;
    size_t n_numbered;           /* how many of these names end with a number */
    struct map bases;            /* from hashes to bases, which are in the arena */
    struct name_base *last_base; /* the newest; NULL if there is none yet */
    struct map known_bases;      /* from addresses of strings that outlive the graph to bases with is_name */
    struct slot *chosen;         /* the slot for the name that was chosen last, if no number was appended */
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
        for (const struct name_base *base = names->last_base; base; base = base->before) {
            mem_free(base->counted);
        }
        mem_free(names->slots);
        map_free(&names->bases);
        map_free(&names->known_bases);
        mem_free(names);
    }
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Returns the length of the name without "_" and a number at its end; the whole length if nothing would be left. */
static size_t measure_base(const char *name, size_t length)
{
    size_t base = length;
    while (base > 0 && is_digit(name[base - 1])) {
        base--;
    }
    return base < length && base >= 2 && name[base - 1] == '_' ? base - 1 : length;
}

/* Returns the hash of a name: `seed` is that of its base, and a number of 0 means none. */
static uint32_t hash_number(uint64_t seed, uint64_t number)
{
    uint64_t hash = (seed ^ number / NEIGHBOURS) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 32) * 0xbf58476d1ce4e5b9u;
    hash ^= hash >> 31;
    return (uint32_t)(number == 0 ? hash : hash - hash % NEIGHBOURS + number % NEIGHBOURS);
}

static uint64_t seed_of(const char *name, size_t length)
{
    return hash_bytes(0, name, length);
}

/* Returns the number at the end of a name, as add_number writes it; 0 if there is none. *base_length_out: the length of
   the base before it. */
static uint64_t read_number(const char *name, size_t length, size_t *base_length_out)
{
    size_t begin = length;
    uint64_t number = 0;
    *base_length_out = length;
    while (begin > 0 && is_digit(name[begin - 1])) {
        begin--;
    }
    if (begin == length || length - begin > NUMBER_DIGITS || name[begin] == '0' || begin < 2 ||
        name[begin - 1] != '_') {
        return 0;
    }
    for (size_t i = begin; i < length; i++) {
        number = 10 * number + (uint64_t)(name[i] - '0');
    }
    *base_length_out = begin - 1;
    return number;
}

static uint32_t hash_name(const char *name, size_t length)
{
    size_t base_length;
    uint64_t number = read_number(name, length, &base_length);
    return hash_number(seed_of(name, base_length), number);
}

/* Names ------------------------------------------------------------------------------------------------ */

/* Returns the slot of the name, or the free slot where it would be. */
static struct slot *find_slot(const struct graph_names *names, const char *name, uint32_t hash)
{
    size_t mask = names->capacity - 1;
    size_t at = hash & mask;
    while (names->slots[at].node &&
           (names->slots[at].hash != hash || strcmp(names->slots[at].node->name, name) != 0)) {
        at = (at + STEP) & mask;
    }
    return &names->slots[at];
}

/* Returns a free slot for a name that is not in the table. */
static struct slot *find_free(const struct slot *slots, size_t capacity, uint32_t hash)
{
    size_t at = hash & (capacity - 1);
    while (slots[at].node) {
        at = (at + STEP) & (capacity - 1);
    }
    return (struct slot *)&slots[at];
}

/* Makes room for one more name. */
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

/* Bases ------------------------------------------------------------------------------------------------ */

struct string {
    const char *bytes;
    size_t length;
};

static bool is_same_string(const void *context, const void *wanted, size_t value)
{
    const struct name_base *base = map_pointer(value);
    const struct string *string = wanted;
    (void)context;
    return base->length == string->length && memcmp(base->string, string->bytes, string->length) == 0;
}

/* Returns the base of the string; NULL if there is none. */
static struct name_base *find_base(const struct graph_names *names, const char *string, size_t length,
                                   uint32_t hash)
{
    size_t value;
    const struct string wanted = {.bytes = string, .length = length};
    return map_find(&names->bases, hash, is_same_string, NULL, &wanted, &value) ? map_pointer(value) : NULL;
}

/* Returns the node of that name, if its number was appended here; NULL if there is none. */
static struct shoal_node *find_counted(const struct graph_names *names, const char *name, size_t length)
{
    size_t base_length;
    uint64_t number = names->last_base ? read_number(name, length, &base_length) : 0;
    if (number == 0) {
        return NULL;
    }
    const struct name_base *base = find_base(names, name, base_length, hash_name(name, base_length));
    return base && number - base->first_counted < base->n_counted
               ? base->counted[number - base->first_counted]
               : NULL;
}

/* If the name is not taken, names->chosen is the slot for it. */
static bool is_taken(struct graph_names *names, const char *name, size_t length, uint32_t hash)
{
    names->chosen = find_slot(names, name, hash);
    return names->chosen->node || find_counted(names, name, length);
}

/* Finds the base of a string, or makes it. */
static shoal_status get_base(struct graph_names *names, struct arena *arena, const char *string,
                             struct name_base **base_out)
{
    size_t length = strlen(string);
    uint32_t hash = hash_name(string, length);
    struct name_base *base = find_base(names, string, length, hash);
    if (!base) {
        const char *copy = arena_string(arena, string);
        base = copy ? arena_alloc(arena, 1, sizeof(*base)) : NULL;
        if (!base) {
            return SHOAL_ERR_NO_MEMORY;
        }
        *base = (struct name_base){.before = names->last_base,
                                   .string = copy,
                                   .length = length,
                                   .seed = seed_of(string, length),
                                   .next_number = 1};
        memcpy(base->digits, "_1", 2);
        base->n_digits = 2;
        base->is_name = measure_base(string, length) == length && is_taken(names, string, length, hash);
        TRY(map_add(&names->bases, hash, (size_t)map_key(base)));
        names->last_base = base;
    }
    *base_out = base;
    return SHOAL_OK;
}

/* Returns the base of that name, if a node is known to have the name itself; otherwise NULL. Most names that passes
   want are such ones. */
static struct name_base *find_known(const struct graph_names *names, const char *name, size_t length,
                                    uint32_t hash)
{
    struct name_base *base = find_base(names, name, length, hash);
    return base && base->is_name ? base : NULL;
}

/* Choosing --------------------------------------------------------------------------------------------- */

static bool is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

/* Writes the wanted name in allowed characters, and returns its length. */
static size_t make_legal(char *name, const char *wish, enum names_wish kind)
{
    char *to = name;
    if (is_digit(wish[0])) {
        *to++ = '_';
    }
    for (; *wish; wish++) {
        bool is_point = *wish == '.' && kind == NAMES_GIVEN && to > name;
        *to++ = (char)(is_name_character(*wish) || is_point ? *wish : '_');
    }
    *to = '\0';
    return (size_t)(to - name);
}

/* Goes on to the next number. It has at most 20 digits, so there is room. */
static void count_on(struct name_base *base)
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

/* Appends the smallest free number to the base, with which `name` begins, and makes room for the node in base->counted.
   All numbers below next_number are used, so only a node that wanted exactly this name can have it; such nodes are in
   the table. */
static shoal_status add_number(const struct graph_names *names, struct name_base *base, char *name,
                               size_t *length_out)
{
    for (;; count_on(base)) {
        memcpy(name + base->length, base->digits, sizeof(base->digits));
        *length_out = base->length + base->n_digits;
        name[*length_out] = '\0';
        if (names->n_numbered == 0 ||
            !find_slot(names, name, hash_number(base->seed, base->next_number))->node) {
            break;
        }
    }
    base->first_counted = base->n_counted > 0 ? base->first_counted : base->next_number;
    return mem_grow((void **)&base->counted, &base->capacity, base->next_number - base->first_counted + 1,
                    sizeof(base->counted[0]));
}

/* If the name is taken, replaces the number at its end, if any, by a free one, and gives the base in *base_out, which
   is NULL if the name is free as it is. */
static shoal_status make_free(struct graph_names *names, struct arena *arena, char *name, size_t *length,
                              uint32_t hash, struct name_base **base_out)
{
    struct name_base *base = find_known(names, name, *length, hash);
    if (!base) {
        *base_out = NULL;
        if (!is_taken(names, name, *length, hash)) {
            return SHOAL_OK;
        }
        name[measure_base(name, *length)] = '\0';
        TRY(get_base(names, arena, name, &base));
    }
    *base_out = base;
    return add_number(names, base, name, length);
}

/* `buffer` must have room for the wish, '_' and a number. */
static shoal_status choose(struct graph_names *names, struct arena *arena, const char *wish,
                           enum names_wish kind, char *buffer, struct shoal_node *node)
{
    size_t length = make_legal(buffer, wish, kind);
    uint32_t hash = hash_name(buffer, length);
    struct name_base *known = find_known(names, buffer, length, hash);
    TRY(make_free(names, arena, buffer, &length, hash, &node->name_base));
    if (known && kind == NAMES_OP) {
        TRY(map_add(&names->known_bases, map_key(wish), (size_t)map_key(known)));
    }
    char *copy = arena_take(arena, length + 1, 1);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    node->name = memcpy(copy, buffer, length + 1);
    node->name_key = node->name_base ? (uint32_t)node->name_base->next_number : hash;
    return SHOAL_OK;
}

/* Chooses a name when the base of the wish is known. Writes it directly into the arena, and gives back unused bytes. */
static shoal_status choose_known(const struct graph_names *names, struct arena *arena, struct name_base *base,
                                 struct shoal_node *node)
{
    size_t room = base->length + NUMBER_BYTES + 1;
    size_t length;
    char *name = arena_take(arena, room, 1);
    if (!name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(name, base->string, base->length);
    TRY(add_number(names, base, name, &length));
    arena_shorten(arena, name, room, length + 1);
    node->name = name;
    node->name_base = base;
    node->name_key = (uint32_t)base->next_number;
    return SHOAL_OK;
}

shoal_status names_choose(struct graph_names *names, struct arena *arena, const char *wish,
                          enum names_wish kind, struct shoal_node *node)
{
    char buffer[BUFFER_BYTES];
    size_t base;
    const char *legal = wish[0] ? wish : "_";
    if (kind == NAMES_OP && map_get(&names->known_bases, map_key(legal), &base)) {
        return choose_known(names, arena, map_pointer(base), node);
    }
    TRY(reserve(names));
    size_t bytes = strlen(legal) + 1 + NUMBER_BYTES;
    if (bytes <= sizeof(buffer)) {
        return choose(names, arena, legal, kind, buffer, node);
    }
    char *memory = mem_alloc(bytes);
    if (!memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = choose(names, arena, legal, kind == NAMES_OP ? NAMES_TARGET : kind, memory, node);
    mem_free(memory);
    return status;
}

void names_take(struct graph_names *names, struct shoal_node *node)
{
    struct name_base *base = node->name_base;
    node->taken_name = node->name;
    if (base) {
        size_t index = base->next_number - base->first_counted;
        while (base->n_counted < index) {
            base->counted[base->n_counted++] = NULL;
        }
        base->counted[base->n_counted++] = node;
        count_on(base);
        return;
    }
    size_t length = strlen(node->name);
    *names->chosen = (struct slot){.node = node, .hash = node->name_key};
    names->n_names++;
    names->n_numbered += measure_base(node->name, length) < length ? 1 : 0;
}

struct shoal_node *names_find(const struct graph_names *names, const char *name)
{
    size_t length = strlen(name);
    struct shoal_node *node = find_slot(names, name, hash_name(name, length))->node;
    return node ? node : find_counted(names, name, length);
}

bool names_has(const struct graph_names *names, const struct shoal_node *node)
{
    const struct name_base *base = node->name_base;
    if (node->name != node->taken_name) {
        return false;
    }
    if (base) {
        uint64_t index = node->name_key - base->first_counted;
        return index < base->n_counted && base->counted[index] == node;
    }
    size_t mask = names->capacity - 1;
    size_t at = node->name_key & mask;
    while (names->slots[at].node && names->slots[at].node != node) {
        at = (at + STEP) & mask;
    }
    return names->slots[at].node == node;
}
