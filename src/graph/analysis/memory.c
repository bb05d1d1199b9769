/* SPDX-License-Identifier: MIT */
/*
 * The profile is a tree of numbers (graph/analysis/range_tree.h) with an item for each node, in program order, one item before
 * the first node and one after the last. Each storage adds its bytes to the items during which it is in use. The users
 * of a storage are a heap with the last one on top. To move a node, the bytes of the storages that it uses are
 * subtracted, and added again after the move.
 */
#include "graph/analysis/memory.h"

#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/order.h"
#include "graph/analysis/range_tree.h"
#include "graph/ir/twins.h"
#include "tensor/tensor.h"

#define BEFORE_ALL 0

struct use {
    struct shoal_node *node;
    uint32_t storage;
    uint32_t at; /* its place in the heap of the storage */
};

struct storage_life {
    int64_t bytes;
    uint32_t first;      /* the item from which on it is in use */
    bool is_kept;        /* it is in use to the end */
    uint32_t first_user; /* where its heap begins in `users` */
    uint32_t n_users;
};

struct memory_profile {
    struct range_tree tree;
    uint32_t behind_all;       /* the last item */
    uint32_t *item;            /* by id */
    struct shoal_node **nodes; /* by item; NULL for the first and the last item */
    uint32_t *first_use;       /* by item: where its uses begin; and one more */
    struct use *uses;          /* of all items, one item after the other */
    size_t n_uses;
    size_t uses_capacity;
    struct storage_life *storages;
    size_t n_storages;
    size_t storages_capacity;
    uint32_t *users; /* for each storage a heap of indices of uses, with the last node on top */
    int64_t *freed;  /* by item: bytes of the storages whose last user it is */
};

/* Users of a storage ------------------------------------------------------------------------------------ */

static bool is_later(const struct memory_profile *profile, uint32_t a, uint32_t b)
{
    return profile->uses[a].node->order > profile->uses[b].node->order;
}

static void put(struct memory_profile *profile, uint32_t *users, uint32_t at, uint32_t use)
{
    users[at] = use;
    profile->uses[use].at = at;
}

/* Restores the heap after the node of a use has moved. */
static void sift(struct memory_profile *profile, uint32_t use)
{
    const struct storage_life *storage = &profile->storages[profile->uses[use].storage];
    uint32_t *users = profile->users + storage->first_user;
    uint32_t at = profile->uses[use].at;
    while (at > 0 && is_later(profile, use, users[(at - 1) / 2])) {
        put(profile, users, at, users[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < storage->n_users && is_later(profile, users[child + 1], users[child])) {
            child++;
        }
        if (child >= storage->n_users || !is_later(profile, users[child], use)) {
            break;
        }
        put(profile, users, at, users[child]);
        at = child;
    }
    put(profile, users, at, use);
}

/* Adds the bytes of a storage to the items during which it is in use, or subtracts them. */
static void add_storage(struct memory_profile *profile, uint32_t number, int sign)
{
    const struct storage_life *storage = &profile->storages[number];
    uint32_t last = profile->behind_all;
    if (!storage->is_kept) {
        last = profile->item[profile->uses[profile->users[storage->first_user]].node->id];
        profile->freed[last] += sign * storage->bytes;
    }
    if (storage->bytes > 0) {
        range_tree_add(&profile->tree, storage->first, last, sign * storage->bytes);
    }
}

/* Building ---------------------------------------------------------------------------------------------- */

struct builder {
    struct memory_profile *profile;
    const struct shoal_graph *graph;
    const struct effects *effects;
    struct map numbers;
    uint32_t *used_by; /* by storage: the last item so far that uses it */
    size_t used_by_capacity;
    int64_t bytes; /* of all storages; checked, so that the profile cannot overflow */
};

static shoal_status add_use(struct builder *builder, struct shoal_node *node, size_t storage)
{
    struct memory_profile *profile = builder->profile;
    uint32_t item = profile->item[node->id];
    if (builder->used_by[storage] == item) {
        return SHOAL_OK;
    }
    if (profile->n_uses == UINT32_MAX) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the graph has too many uses of storages");
    }
    builder->used_by[storage] = item;
    TRY(mem_grow((void **)&profile->uses, &profile->uses_capacity, profile->n_uses + 1,
                 sizeof *profile->uses));
    profile->uses[profile->n_uses++] = (struct use){.node = node, .storage = (uint32_t)storage};
    profile->storages[storage].n_users++;
    return SHOAL_OK;
}

static bool is_kept(const struct shoal_node *node)
{
    return node->kind == SHOAL_NODE_CONSTANT ||
           (node->kind == SHOAL_NODE_PLACEHOLDER && strncmp(node->name, "primals", 7) == 0);
}

/* Storages get the same numbers as in effects, in the order in which they first appear in the list. */
static shoal_status use_value(struct builder *builder, struct shoal_node *node, const shoal_tensor *value)
{
    struct memory_profile *profile = builder->profile;
    const struct storage *storage = twins_find(builder->graph, value->storage);
    size_t number;
    if (!map_get(&builder->numbers, map_key(storage), &number)) {
        number = profile->n_storages;
        if (storage->bytes > INT64_MAX ||
            __builtin_add_overflow(builder->bytes, (int64_t)storage->bytes, &builder->bytes)) {
            return error_set(SHOAL_ERR_UNSUPPORTED, "node %.64s: its values have too many bytes", node->name);
        }
        TRY(mem_grow((void **)&profile->storages, &profile->storages_capacity, number + 1,
                     sizeof *profile->storages));
        TRY(mem_grow((void **)&builder->used_by, &builder->used_by_capacity, number + 1,
                     sizeof *builder->used_by));
        TRY(map_add(&builder->numbers, map_key(storage), number));
        bool is_call = node->kind == SHOAL_NODE_CALL;
        profile->storages[number] = (struct storage_life){
            .bytes = (int64_t)storage->bytes, .first = is_call ? profile->item[node->id] : BEFORE_ALL};
        builder->used_by[number] = BEFORE_ALL;
        profile->n_storages++;
    }
    profile->storages[number].is_kept |= is_kept(node);
    return add_use(builder, node, number);
}

static shoal_status use_values(struct builder *builder, struct shoal_node *node,
                               const struct shoal_node *giver)
{
    for (size_t i = 0; i < giver->n_values; i++) {
        TRY(use_value(builder, node, giver->values[i]));
    }
    return SHOAL_OK;
}

static shoal_status visit(struct builder *builder, struct shoal_node *node)
{
    const struct effects_access *accesses;
    size_t n_accesses;
    /* A view uses only the storages of its own values: taking one tensor out of a list does not use the others. */
    bool is_view = (node_flags(node) & SHOAL_OP_VIEW) != 0;
    for (size_t i = 0; i < node->n_inputs && !is_view; i++) {
        TRY(use_values(builder, node, node->inputs[i]));
    }
    TRY(use_values(builder, node, node));
    effects_accesses(builder->effects, node, &accesses, &n_accesses);
    for (size_t i = 0; i < n_accesses; i++) {
        if (accesses[i].storage >= builder->profile->n_storages) {
            return error_set(SHOAL_ERR_STATE, "node %.64s uses memory before a node creates it", node->name);
        }
        TRY(add_use(builder, node, accesses[i].storage));
    }
    return SHOAL_OK;
}

static shoal_status find_uses(struct builder *builder)
{
    struct memory_profile *profile = builder->profile;
    const struct shoal_graph *graph = builder->graph;
    size_t n_items = graph->n_nodes + 2;
    uint32_t item = BEFORE_ALL + 1;
    TRY(mem_grow((void **)&builder->used_by, &builder->used_by_capacity, 1, sizeof *builder->used_by));
    TRY(mem_grow((void **)&profile->storages, &profile->storages_capacity, 1, sizeof *profile->storages));
    profile->item = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof profile->item[0]);
    profile->first_use = mem_alloc_zeroed(n_items + 1, sizeof profile->first_use[0]);
    profile->freed = mem_alloc_zeroed(n_items, sizeof profile->freed[0]);
    profile->nodes = mem_alloc_zeroed(n_items, sizeof profile->nodes[0]);
    if (!profile->nodes || !profile->item || !profile->first_use || !profile->freed) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (struct shoal_node *node = graph->first; node; node = node->next, item++) {
        profile->item[node->id] = item;
        profile->nodes[item] = node;
        profile->first_use[item] = (uint32_t)profile->n_uses;
        TRY(visit(builder, node));
    }
    profile->behind_all = item;
    profile->first_use[item] = (uint32_t)profile->n_uses;
    return SHOAL_OK;
}

/* The uses are in program order, so listed from the last to the first they are a heap. */
static shoal_status find_lives(struct memory_profile *profile)
{
    uint32_t n_users = 0;
    profile->users = mem_alloc_zeroed(profile->n_uses + 1, sizeof profile->users[0]);
    if (!profile->users) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < profile->n_storages; i++) {
        struct storage_life *storage = &profile->storages[i];
        storage->first_user = n_users;
        n_users += storage->n_users;
        storage->n_users = 0;
    }
    for (size_t i = profile->n_uses; i-- > 0;) {
        struct storage_life *storage = &profile->storages[profile->uses[i].storage];
        put(profile, profile->users + storage->first_user, storage->n_users++, (uint32_t)i);
    }
    TRY(range_tree_create(&profile->tree, profile->behind_all + 1));
    for (size_t i = 0; i < profile->n_storages; i++) {
        add_storage(profile, (uint32_t)i, 1);
    }
    return SHOAL_OK;
}

shoal_status memory_profile_build(const struct shoal_graph *graph, const struct effects *effects,
                                  struct memory_profile **profile_out)
{
    struct builder builder = {
        .profile = mem_alloc_zeroed(1, sizeof *builder.profile), .graph = graph, .effects = effects};
    if (!builder.profile) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = graph->n_nodes < UINT32_MAX - 2
                              ? find_uses(&builder)
                              : error_set(SHOAL_ERR_UNSUPPORTED, "the graph has too many nodes");
    mem_free(builder.used_by);
    map_free(&builder.numbers);
    if (status == SHOAL_OK) {
        status = find_lives(builder.profile);
    }
    if (status != SHOAL_OK) {
        memory_profile_free(builder.profile);
        return status;
    }
    *profile_out = builder.profile;
    return SHOAL_OK;
}

void memory_profile_free(struct memory_profile *profile)
{
    if (profile) {
        range_tree_free(&profile->tree);
        mem_free(profile->item);
        mem_free(profile->nodes);
        mem_free(profile->first_use);
        mem_free(profile->uses);
        mem_free(profile->storages);
        mem_free(profile->users);
        mem_free(profile->freed);
        mem_free(profile);
    }
}

/* Asking and moving ------------------------------------------------------------------------------------- */

uint64_t memory_profile_peak(const struct memory_profile *profile)
{
    return (uint64_t)range_tree_largest(&profile->tree);
}

uint64_t memory_profile_at(const struct memory_profile *profile, const struct shoal_node *node)
{
    return (uint64_t)range_tree_value(&profile->tree, profile->item[node->id]);
}

struct shoal_node *memory_profile_find_above(struct memory_profile *profile, uint64_t limit, bool is_first)
{
    uint32_t item = range_tree_find_larger(&profile->tree, (int64_t)limit, is_first);
    return item == RANGE_TREE_NONE ? NULL : profile->nodes[item];
}

void memory_profile_move(struct memory_profile *profile, struct shoal_node *node, struct shoal_node *where)
{
    uint32_t item = profile->item[node->id];
    uint32_t end = profile->first_use[item + 1];
    if (node == where || where->prev == node) {
        return;
    }
    for (uint32_t i = profile->first_use[item]; i < end; i++) {
        add_storage(profile, profile->uses[i].storage, -1);
    }
    /* Other storages in use at the new place: those of the node before it, without those that end there. */
    uint32_t prev = where->prev ? profile->item[where->prev->id] : BEFORE_ALL;
    int64_t value = range_tree_value(&profile->tree, prev) - profile->freed[prev];
    order_remove(node);
    order_insert_after(node->graph, node, where->prev);
    range_tree_move(&profile->tree, item, profile->item[where->id], value);
    for (uint32_t i = profile->first_use[item]; i < end; i++) {
        sift(profile, i);
        add_storage(profile, profile->uses[i].storage, 1);
    }
}

shoal_status memory_peak(const struct shoal_graph *graph, uint64_t *bytes_out)
{
    struct effects *effects;
    struct memory_profile *profile;
    TRY(effects_build(graph, &effects));
    shoal_status status = memory_profile_build(graph, effects, &profile);
    effects_free(effects);
    TRY(status);
    *bytes_out = memory_profile_peak(profile);
    memory_profile_free(profile);
    return SHOAL_OK;
}
