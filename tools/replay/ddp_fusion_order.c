/* SPDX-License-Identifier: MIT */
/*
 * The nodes whose order matters form a line in each graph. A run of neighbours in our line is the same set as a run in
 * the file's line if both have the same size and all partners of ours lie inside the other run. The smallest and the
 * largest place of the partners show that. A tree gives both for any run, so that a thousand waits at the end of a
 * graph do not need a thousand walks.
 */
#include "ddp_fusion_order.h"

#include <stdint.h>

#include "shoal/graph.h"

struct range {
    size_t min;
    size_t max;
};

struct piece {
    size_t begin;
    size_t end;
};

/* The nodes of a set of roles. */
struct line {
    const struct fusion_match *match;
    unsigned roles;      /* 1u << role */
    size_t *ours_before; /* by place: how many of the line stand before it */
    size_t *theirs_before;
    size_t *ours;   /* places */
    size_t *theirs; /* places */
    size_t n;
    size_t n_leaves;
    struct range *tree; /* over places in the file's line, leaves from n_leaves on */
};

static bool is_in(const struct line *line, const struct fusion_entry *entry)
{
    return (line->roles >> entry->role & 1u) != 0;
}

static size_t lay(const struct line *line, const struct fusion_side *side, size_t *before, size_t *places)
{
    size_t n = 0;
    for (size_t i = 0; i < side->n_entries; i++) {
        before[i] = n;
        if (is_in(line, &side->entries[i])) {
            places[n++] = i;
        }
    }
    return n;
}

static struct range join(struct range a, struct range b)
{
    return (struct range){a.min < b.min ? a.min : b.min, a.max > b.max ? a.max : b.max};
}

static bool make_line(struct fusion_case *self, const struct fusion_match *match, unsigned roles,
                      struct line *line_out)
{
    size_t n = match->ours.n_entries; /* and the file's: they are partners */
    struct line *line = line_out;
    *line = (struct line){.match = match, .roles = roles, .n_leaves = 1};
    line->ours_before = fusion_alloc(self, n, sizeof line->ours_before[0]);
    line->theirs_before = fusion_alloc(self, n, sizeof line->theirs_before[0]);
    line->ours = fusion_alloc(self, n, sizeof line->ours[0]);
    line->theirs = fusion_alloc(self, n, sizeof line->theirs[0]);
    if (!line->ours_before || !line->theirs_before || !line->ours || !line->theirs) {
        return false;
    }
    line->n = lay(line, &match->ours, line->ours_before, line->ours);
    (void)lay(line, &match->theirs, line->theirs_before, line->theirs);
    while (line->n_leaves < line->n) {
        line->n_leaves *= 2;
    }
    line->tree = fusion_alloc(self, 2 * line->n_leaves, sizeof line->tree[0]);
    if (!line->tree) {
        return false;
    }
    for (size_t i = 0; i < line->n_leaves; i++) {
        size_t place = i < line->n ? line->theirs_before[match->ours.entries[line->ours[i]].partner] : 0;
        line->tree[line->n_leaves + i] =
            i < line->n ? (struct range){place, place} : (struct range){SIZE_MAX, 0};
    }
    for (size_t i = line->n_leaves - 1; i > 0; i--) {
        line->tree[i] = join(line->tree[2 * i], line->tree[2 * i + 1]);
    }
    return true;
}

/* Where in the file's line the partners of a piece of ours lie. */
static struct range partners_of(const struct line *line, struct piece piece)
{
    struct range range = {SIZE_MAX, 0};
    for (size_t low = piece.begin + line->n_leaves, high = piece.end + line->n_leaves; low < high;
         low /= 2, high /= 2) {
        if (low % 2 == 1) {
            range = join(range, line->tree[low++]);
        }
        if (high % 2 == 1) {
            range = join(range, line->tree[--high]);
        }
    }
    return range;
}

static bool is_same(const struct line *line, struct piece ours, struct piece theirs)
{
    struct range range = partners_of(line, ours);
    return ours.end - ours.begin == theirs.end - theirs.begin &&
           (ours.begin == ours.end || (range.min >= theirs.begin && range.max < theirs.end));
}

/* A node of one piece that the other does not have; they differ. */
static const shoal_node *find_stranger(const struct line *line, struct piece ours, struct piece theirs,
                                       bool *is_ours_out)
{
    *is_ours_out = true;
    for (size_t i = ours.begin; i < ours.end; i++) {
        const struct fusion_entry *entry = &line->match->ours.entries[line->ours[i]];
        size_t place = line->theirs_before[entry->partner];
        if (place < theirs.begin || place >= theirs.end) {
            return entry->node;
        }
    }
    *is_ours_out = false;
    for (size_t i = theirs.begin; i < theirs.end; i++) {
        const struct fusion_entry *entry = &line->match->theirs.entries[line->theirs[i]];
        size_t place = line->ours_before[entry->partner];
        if (place < ours.begin || place >= ours.end) {
            return entry->node;
        }
    }
    return NULL;
}

static enum fusion_verdict compare(struct fusion_case *self, const struct line *line, const shoal_node *node,
                                   const char *where, struct piece ours, struct piece theirs)
{
    bool is_ours = true;
    if (is_same(line, ours, theirs)) {
        return FUSION_RIGHT;
    }
    const shoal_node *stranger = find_stranger(line, ours, theirs, &is_ours);
    return fusion_say(self, FUSION_WRONG,
                      "our node %.100s (%.80s): %s stands %s's %.100s (%.80s), but not %s",
                      shoal_node_name(node), shoal_node_target(node), where,
                      is_ours ? "our graph" : "the file", stranger ? shoal_node_name(stranger) : "?",
                      stranger ? shoal_node_target(stranger) : "?", is_ours ? "in the file" : "in our graph");
}

/* Starts ----------------------------------------------------------------------------------------------- */

static enum fusion_verdict check_start(struct fusion_case *self, const struct line *computes, size_t place)
{
    const struct fusion_entry *entry = &computes->match->ours.entries[place];
    return compare(self, computes, entry->node, "before it", (struct piece){0, computes->ours_before[place]},
                   (struct piece){0, computes->theirs_before[entry->partner]});
}

/* Waits ------------------------------------------------------------------------------------------------ */

static enum fusion_verdict check_between(struct fusion_case *self, const struct line *line, size_t start,
                                         size_t wait)
{
    const struct fusion_entry *entries = line->match->ours.entries;
    struct piece ours = {line->ours_before[start] + 1, line->ours_before[wait]};
    struct piece theirs = {line->theirs_before[entries[start].partner] + 1,
                           line->theirs_before[entries[wait].partner]};
    return compare(self, line, entries[wait].node, "between its start and it", ours, theirs);
}

/* Every start that one wait is for: its input, or what the views before it look at. */
static enum fusion_verdict check_wait(struct fusion_case *self, const struct line *line, size_t wait)
{
    const struct fusion_side *side = &line->match->ours;
    enum fusion_verdict verdict = FUSION_RIGHT;
    size_t n_inputs;
    shoal_node *const *inputs = shoal_node_inputs(side->entries[wait].node, &n_inputs);
    for (size_t i = 0; verdict == FUSION_RIGHT && i < n_inputs; i++) {
        size_t n_bases = 1;
        shoal_node *const *base = &inputs[i];
        size_t place = fusion_side_find(side, *base);
        while (side->entries[place].role == FUSION_ROLE_NONE && n_bases > 0) {
            base = shoal_node_inputs(*base, &n_bases);
            place = n_bases > 0 ? fusion_side_find(side, base[0]) : place;
        }
        if (side->entries[place].role == FUSION_ROLE_START) {
            verdict = check_between(self, line, place, wait);
        }
    }
    return verdict;
}

enum fusion_verdict fusion_check_order(struct fusion_case *self, const struct fusion_match *match)
{
    struct line computes;
    struct line both;
    enum fusion_verdict verdict = FUSION_RIGHT;
    if (!make_line(self, match, 1u << FUSION_ROLE_COMPUTE, &computes) ||
        !make_line(self, match, 1u << FUSION_ROLE_COMPUTE | 1u << FUSION_ROLE_START, &both)) {
        return fusion_no_memory(self);
    }
    for (size_t i = 0; verdict == FUSION_RIGHT && i < match->ours.n_entries; i++) {
        if (match->ours.entries[i].role == FUSION_ROLE_START) {
            verdict = check_start(self, &computes, i);
        } else if (match->ours.entries[i].role == FUSION_ROLE_WAIT) {
            verdict = check_wait(self, &both, i);
        }
    }
    return verdict;
}
