/* SPDX-License-Identifier: MIT */
#include "graph/analysis/span_tree.h"

#include <stdbool.h>

/* A node and its range of pieces. In the array, the left half follows the node, and the right half follows the whole
   subtree of the left one. */
struct place {
    uint32_t node;
    uint32_t first;
    uint32_t end;
};

/* A range of pieces, and the change to it. */
struct task {
    uint32_t first;
    uint32_t end;
    enum span_use use;
    uint32_t owner;
    bool opens;
};

static struct place whole_of(const struct span_tree *tree)
{
    return (struct place){.end = tree->n_points - 1};
}

static struct place left_of(struct place place)
{
    return (struct place){place.node + 1, place.first, place.first + (place.end - place.first) / 2};
}

static struct place right_of(struct place place)
{
    uint32_t middle = place.first + (place.end - place.first) / 2;
    return (struct place){place.node + 2 * (middle - place.first), middle, place.end};
}

/* Returns the number of points that are not above `byte`. */
static uint32_t count_up_to(const struct span_tree *tree, uint64_t byte)
{
    uint32_t low = 0;
    uint32_t high = tree->n_points;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (tree->points[middle] <= byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Returns the pieces that overlap the span. */
static struct task pieces_of(const struct span_tree *tree, struct span span, enum span_use use)
{
    if (tree->n_points == 2) {
        bool is_common = span.first < tree->points[1] && tree->points[0] < span.end;
        return (struct task){.end = is_common ? 1 : 0, .use = use};
    }
    uint32_t first = count_up_to(tree, span.first);
    uint32_t end = count_up_to(tree, span.end - 1);
    uint32_t n_pieces = tree->n_points - 1;
    return (struct task){
        .first = first > 0 ? first - 1 : 0, .end = end < n_pieces ? end : n_pieces, .use = use};
}

static void cover(struct span_node *node, const struct task *task)
{
    if (task->use == SPAN_READ) {
        node->covers[SPAN_READ] += task->opens ? 1u : UINT32_MAX;
    } else if (task->opens && node->covers[SPAN_WRITE] == 0) {
        node->covers[SPAN_WRITE] = 1;
        node->owner = task->owner;
    } else if (!task->opens && node->owner == task->owner) {
        node->covers[SPAN_WRITE] = 0;
    }
}

static void change(struct span_tree *tree, struct place place, const struct task *task)
{
    struct span_node *node = &tree->nodes[place.node];
    if (task->first >= place.end || task->end <= place.first) {
        return;
    }
    uint32_t inside = 0;
    bool is_leaf = place.end - place.first == 1;
    if (task->first <= place.first && place.end <= task->end) {
        cover(node, task);
    } else {
        change(tree, left_of(place), task);
        change(tree, right_of(place), task);
    }
    if (!is_leaf) {
        inside = tree->nodes[left_of(place).node].total[task->use] +
                 tree->nodes[right_of(place).node].total[task->use];
    }
    node->total[task->use] = node->covers[task->use] + inside;
}

void span_tree_open(struct span_tree *tree, struct span span, enum span_use use, uint32_t owner)
{
    struct task task = pieces_of(tree, span, use);
    task.owner = owner;
    task.opens = true;
    change(tree, whole_of(tree), &task);
}

void span_tree_close(struct span_tree *tree, struct span span, enum span_use use, uint32_t owner)
{
    struct task task = pieces_of(tree, span, use);
    task.owner = owner;
    change(tree, whole_of(tree), &task);
}

static uint32_t find(const struct span_tree *tree, struct place place, const struct task *task)
{
    const struct span_node *node = &tree->nodes[place.node];
    if (task->first >= place.end || task->end <= place.first || node->total[task->use] == 0) {
        return SPAN_TREE_NONE;
    }
    if (node->covers[task->use] > 0) {
        return task->use == SPAN_WRITE ? node->owner : 0;
    }
    uint32_t found = find(tree, left_of(place), task);
    return found != SPAN_TREE_NONE ? found : find(tree, right_of(place), task);
}

uint32_t span_tree_find(const struct span_tree *tree, struct span span, enum span_use use)
{
    struct task task = pieces_of(tree, span, use);
    if (tree->nodes[0].total[use] == 0 || task.first >= task.end) {
        return SPAN_TREE_NONE;
    }
    return find(tree, whole_of(tree), &task);
}
