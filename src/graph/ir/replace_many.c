/* SPDX-License-Identifier: MIT */
#include "graph/ir/replace_many.h"

#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/edit.h"
#include "graph/ir/observer.h"

/* An edge that changes, for observers. */
struct change {
    const struct replace_pair *pair;
    struct shoal_node *user;
};

struct work {
    struct shoal_graph *graph;
    const struct replace_pair *pairs;
    size_t n_pairs;
    struct shoal_node **others; /* by id of the old one; NULL if it stays */
    bool *is_user;              /* by id: it has an edit */
    struct edit *edits;
    size_t n_edits;
    struct change *changes;
    size_t n_changes;
    struct arena scratch;
};

/* Makes room for everything: at most one edit for each edge. */
static shoal_status begin(struct work *work)
{
    size_t n_ids = (size_t)work->graph->n_ids + 1;
    size_t n_edges = 0;
    for (size_t i = 0; i < work->n_pairs; i++) {
        n_edges += work->pairs[i].old->n_users;
    }
    work->others = mem_alloc_zeroed(n_ids, sizeof(work->others[0]));
    work->is_user = mem_alloc_zeroed(n_ids, sizeof(work->is_user[0]));
    work->edits = mem_alloc_zeroed(n_edges + 1, sizeof(work->edits[0]));
    work->changes = mem_alloc_zeroed(n_edges + 1, sizeof(work->changes[0]));
    return work->others && work->is_user && work->edits && work->changes ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static void end(struct work *work)
{
    mem_free(work->others);
    mem_free(work->is_user);
    mem_free(work->edits);
    mem_free(work->changes);
    arena_free(&work->scratch);
}

static void find_users(struct work *work)
{
    for (size_t i = 0; i < work->n_pairs; i++) {
        work->others[work->pairs[i].old->id] = work->pairs[i].other;
    }
    for (size_t i = 0; i < work->n_pairs; i++) {
        for (const struct edge *use = work->pairs[i].old->first_use; use; use = use->next) {
            struct shoal_node *user = use->user;
            if (work->others[user->id]) {
                continue;
            }
            work->changes[work->n_changes++] = (struct change){.pair = &work->pairs[i], .user = user};
            if (!work->is_user[user->id]) {
                work->is_user[user->id] = true;
                work->edits[work->n_edits++].node = user;
            }
        }
    }
}

static shoal_status rewrite(const struct work *work, const shoal_arg *args, size_t n_args,
                            const shoal_arg **copy_out)
{
    shoal_arg *copy = arena_alloc(&work->graph->arena, n_args, sizeof(copy[0]));
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_args; i++) {
        copy[i] = args[i];
        if (args[i].kind == SHOAL_ARG_NODE && work->others[args[i].as.node->id]) {
            copy[i].as.node = work->others[args[i].as.node->id];
        } else if (args[i].kind == SHOAL_ARG_LIST && args[i].as.list.count > 0) {
            TRY(rewrite(work, args[i].as.list.items, args[i].as.list.count, &copy[i].as.list.items));
        }
    }
    *copy_out = copy;
    return SHOAL_OK;
}

static shoal_status apply(struct work *work)
{
    for (size_t i = 0; i < work->n_edits; i++) {
        struct edit *edit = &work->edits[i];
        edit->n_args = edit->node->n_args;
        TRY(rewrite(work, edit->node->args, edit->n_args, &edit->args));
        TRY(uses_collect(work->graph, &work->scratch, edit->node->input_capacity, edit->args, edit->n_args,
                         &edit->uses));
    }
    return edit_apply(work->graph, work->edits, work->n_edits);
}

/* Origins are set one pair after the other, because several old nodes may be replaced by the same one. */
static shoal_status replace(struct work *work)
{
    TRY(begin(work));
    find_users(work);
    for (size_t i = 0; i < work->n_changes; i++) {
        const struct replace_pair *pair = work->changes[i].pair;
        if (i == 0 || pair != work->changes[i - 1].pair) {
            TRY(observer_make_replaced(pair->old, pair->other, &pair->other->origins));
        }
    }
    TRY(apply(work));
    for (size_t i = 0; i < work->n_changes; i++) {
        const struct change *change = &work->changes[i];
        observer_tell_replaced(change->pair->old, change->pair->other, change->user);
    }
    return SHOAL_OK;
}

shoal_status graph_replace_many(struct shoal_graph *graph, const struct replace_pair *pairs, size_t n_pairs)
{
    struct work work = {.graph = graph, .pairs = pairs, .n_pairs = n_pairs};
    shoal_status status = replace(&work);
    end(&work);
    return status;
}
