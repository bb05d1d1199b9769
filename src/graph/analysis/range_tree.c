/* SPDX-License-Identifier: MIT */
#include "graph/analysis/range_tree.h"

#include "base/mem.h"

#define NONE RANGE_TREE_NONE

static uint32_t count_of(const struct range_tree *tree, uint32_t item)
{
    return item == NONE ? 0 : tree->items[item].count;
}

static void raise_all(struct range_tree *tree, uint32_t item, int64_t amount)
{
    if (item != NONE) {
        tree->items[item].value += amount;
        tree->items[item].largest += amount;
        tree->items[item].pending += amount;
    }
}

static void push_down(struct range_tree *tree, uint32_t item)
{
    struct range_item *self = &tree->items[item];
    if (self->pending != 0) {
        raise_all(tree, self->left, self->pending);
        raise_all(tree, self->right, self->pending);
        self->pending = 0;
    }
}

/* Updates an item after its children have changed. Nothing may be pending in it. */
static void update(struct range_tree *tree, uint32_t item)
{
    struct range_item *self = &tree->items[item];
    const uint32_t children[] = {self->left, self->right};
    self->count = 1;
    self->largest = self->value;
    for (int i = 0; i < 2; i++) {
        if (children[i] != NONE) {
            struct range_item *child = &tree->items[children[i]];
            child->parent = item;
            self->count += child->count;
            self->largest = child->largest > self->largest ? child->largest : self->largest;
        }
    }
}

/* Splits a tree into its first `count` items and the others. */
static void split(struct range_tree *tree, uint32_t root, uint32_t count, uint32_t *left_out,
                  uint32_t *right_out)
{
    if (root == NONE) {
        *left_out = NONE;
        *right_out = NONE;
        return;
    }
    push_down(tree, root);
    struct range_item *self = &tree->items[root];
    uint32_t n_left = count_of(tree, self->left);
    self->parent = NONE;
    if (count <= n_left) {
        uint32_t inner;
        split(tree, self->left, count, left_out, &inner);
        self->left = inner;
        *right_out = root;
    } else {
        uint32_t inner;
        split(tree, self->right, count - n_left - 1, &inner, right_out);
        self->right = inner;
        *left_out = root;
    }
    update(tree, root);
    if (*left_out != NONE) {
        tree->items[*left_out].parent = NONE;
    }
    if (*right_out != NONE) {
        tree->items[*right_out].parent = NONE;
    }
}

static uint32_t join(struct range_tree *tree, uint32_t left, uint32_t right)
{
    if (left == NONE || right == NONE) {
        return left == NONE ? right : left;
    }
    bool is_left = tree->items[left].priority >= tree->items[right].priority;
    uint32_t root = is_left ? left : right;
    push_down(tree, root);
    if (is_left) {
        tree->items[root].right = join(tree, tree->items[root].right, right);
    } else {
        tree->items[root].left = join(tree, left, tree->items[root].left);
    }
    update(tree, root);
    return root;
}

/* Hashes a number, as splitmix64 does. */
static uint64_t mix(uint64_t number)
{
    number = (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    number = (number ^ (number >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    number = (number ^ (number >> 27)) * UINT64_C(0x94d049bb133111eb);
    return number ^ (number >> 31);
}

shoal_status range_tree_create(struct range_tree *tree, uint32_t n_items)
{
    tree->root = NONE;
    tree->items = mem_alloc_zeroed((size_t)n_items + 1, sizeof tree->items[0]);
    if (!tree->items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n_items; i++) {
        tree->items[i] =
            (struct range_item){.parent = NONE, .left = NONE, .right = NONE, .count = 1, .priority = mix(i)};
        tree->root = join(tree, tree->root, i);
    }
    return SHOAL_OK;
}

void range_tree_free(struct range_tree *tree)
{
    mem_free(tree->items);
    *tree = (struct range_tree){.root = NONE};
}

uint32_t range_tree_rank(const struct range_tree *tree, uint32_t item)
{
    uint32_t rank = count_of(tree, tree->items[item].left);
    for (uint32_t at = item; tree->items[at].parent != NONE; at = tree->items[at].parent) {
        const struct range_item *parent = &tree->items[tree->items[at].parent];
        if (parent->right == at) {
            rank += count_of(tree, parent->left) + 1;
        }
    }
    return rank;
}

int64_t range_tree_value(const struct range_tree *tree, uint32_t item)
{
    int64_t value = tree->items[item].value;
    for (uint32_t at = tree->items[item].parent; at != NONE; at = tree->items[at].parent) {
        value += tree->items[at].pending;
    }
    return value;
}

int64_t range_tree_largest(const struct range_tree *tree)
{
    return tree->root == NONE ? 0 : tree->items[tree->root].largest;
}

static bool has_larger(const struct range_tree *tree, uint32_t item, int64_t limit)
{
    return item != NONE && tree->items[item].largest > limit;
}

uint32_t range_tree_find_larger(struct range_tree *tree, int64_t limit, bool is_first)
{
    uint32_t at = tree->root;
    while (has_larger(tree, at, limit)) {
        push_down(tree, at);
        const struct range_item *self = &tree->items[at];
        uint32_t near = is_first ? self->left : self->right;
        if (!has_larger(tree, near, limit) && self->value > limit) {
            return at;
        }
        at = has_larger(tree, near, limit) ? near : is_first ? self->right : self->left;
    }
    return NONE;
}

void range_tree_add(struct range_tree *tree, uint32_t from, uint32_t to, int64_t amount)
{
    uint32_t first = range_tree_rank(tree, from);
    uint32_t last = range_tree_rank(tree, to);
    uint32_t left;
    uint32_t middle;
    uint32_t right;
    split(tree, tree->root, last + 1, &left, &right);
    split(tree, left, first, &left, &middle);
    raise_all(tree, middle, amount);
    tree->root = join(tree, join(tree, left, middle), right);
    tree->items[tree->root].parent = NONE;
}

void range_tree_move(struct range_tree *tree, uint32_t item, uint32_t where, int64_t value)
{
    uint32_t left;
    uint32_t middle;
    uint32_t right;
    uint32_t rank = range_tree_rank(tree, item);
    split(tree, tree->root, rank + 1, &left, &right);
    split(tree, left, rank, &left, &middle);
    tree->root = join(tree, left, right);
    tree->items[tree->root].parent = NONE;
    tree->items[item].value = value;
    update(tree, item);
    split(tree, tree->root, range_tree_rank(tree, where), &left, &right);
    tree->root = join(tree, join(tree, left, item), right);
    tree->items[tree->root].parent = NONE;
}
