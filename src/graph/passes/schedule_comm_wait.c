/* SPDX-License-Identifier: MIT */
/*
 * schedule_comm_wait: moves the waits of all_reduces, with views of their results, directly before the first node that
 * needs them, so that communication can take as long as possible. A node needs a wait if it uses the result, touches
 * its memory, or overwrites what is being reduced.
 */
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "collective/rows.h"
#include "graph/analysis/accesses.h"
#include "graph/analysis/comm_block.h"
#include "graph/ir/observer.h"
#include "graph/passes/passes.h"

struct schedule {
    struct accesses accesses;
    uint32_t *members; /* by id: the number of the block that the node belongs to */
    bool *has_moved;   /* by id */
    uint32_t number;   /* of the current block, counted from 1 */
    const shoal_comm_block *block;
    struct shoal_node *target; /* the first node that needs it */
};

static bool is_start(const struct shoal_node *node)
{
    return node_calls(node, OP_all_reduce) || node_calls(node, OP_all_reduce_) ||
           node_calls(node, OP_all_reduce_coalesced) || node_calls(node, OP_all_reduce_coalesced_);
}

/* The target ------------------------------------------------------------------------------------------------ */

static bool is_member(const struct schedule *schedule, const struct shoal_node *node)
{
    return schedule->members[node->id] == schedule->number;
}

static void consider(struct schedule *schedule, struct shoal_node *node)
{
    if (!is_member(schedule, node) && (!schedule->target || node->order < schedule->target->order)) {
        schedule->target = node;
    }
}

/* Considers nodes behind the first wait that touch this memory, or only those that write it. Nodes that have not been
   moved are in the order of the entries, so the search ends with the first of them. */
static void consider_memory(struct schedule *schedule, uint32_t storage, bool is_any)
{
    const struct accesses *accesses = &schedule->accesses;
    const struct shoal_node *wait = schedule->block->waits[0];
    uint32_t i = accesses_behind(accesses, storage, accesses_position(accesses, wait));
    while (i < accesses->first[storage + 1]) {
        const struct access *entry = &accesses->entries[i];
        if (is_any || entry->is_write) {
            consider(schedule, entry->node);
            if (!is_member(schedule, entry->node) && !schedule->has_moved[entry->node->id]) {
                return;
            }
        }
        i = is_any ? i + 1 : entry->next_write;
    }
}

static void find_target(struct schedule *schedule)
{
    const shoal_comm_block *block = schedule->block;
    schedule->target = NULL;
    for (size_t i = 0; i < block->n_outputs; i++) {
        for (const struct edge *edge = block->outputs[i]->first_use; edge; edge = edge->next) {
            consider(schedule, edge->user);
        }
    }
    const struct effects_access *found;
    size_t n_found;
    effects_accesses(schedule->accesses.effects, block->start, &found, &n_found);
    for (size_t i = 0; i < n_found; i++) {
        consider_memory(schedule, found[i].storage, /*is_any=*/accesses_is_write(&found[i]));
    }
}

/* Moving ---------------------------------------------------------------------------------------------------- */

/* Moves the members from the first wait on before the target, in their order. Those behind the target stay there. */
static shoal_status move(struct schedule *schedule)
{
    const shoal_comm_block *block = schedule->block;
    struct shoal_node *where = schedule->target;
    size_t end = block->n_nodes;
    size_t begin = 1;
    while (begin < end && block->nodes[begin] != block->waits[0]) {
        begin++;
    }
    while (end > begin && block->nodes[end - 1]->order > where->order) {
        end--;
    }
    while (end > begin && where->prev == block->nodes[end - 1]) {
        where = where->prev; /* it is there already */
        end--;
    }
    for (size_t i = begin; i < end; i++) {
        TRY(shoal_node_move_before(block->nodes[i], where));
        schedule->has_moved[block->nodes[i]->id] = true;
    }
    return SHOAL_OK;
}

/* Whether nobody uses the result, which is an error. In-place reductions are for nodes that read the memory. As a part
   of another pass this pass accepts it, because the user of the result may have been removed as dead code. */
static bool is_mistake(const shoal_comm_block *block)
{
    const struct observer *observer = block->start->graph->observer;
    bool is_part = observer && observer->outer;
    size_t n_users = 0;
    for (size_t i = 0; i < block->n_waits; i++) {
        n_users += block->waits[i]->n_users;
    }
    return n_users == 0 && !is_part && (node_flags(block->start) & SHOAL_OP_IN_PLACE) == 0;
}

static shoal_status schedule_block(struct schedule *schedule, const shoal_comm_block *block)
{
    schedule->block = block;
    schedule->number++;
    if (is_mistake(block)) {
        return error_set(SHOAL_ERR_STATE, "%s %%%.64s has a wait without users", block->start->op->name,
                         block->start->name);
    }
    for (size_t i = 0; i < block->n_nodes; i++) {
        schedule->members[block->nodes[i]->id] = schedule->number;
    }
    find_target(schedule);
    return schedule->target ? move(schedule) : SHOAL_OK;
}

/* Only waits move, so a walk over the list meets each start once. */
static shoal_status schedule_all(struct schedule *schedule, struct shoal_graph *graph)
{
    for (struct shoal_node *node = graph->first; node; node = node->next) {
        shoal_comm_block block;
        bool is_block;
        if (!is_start(node)) {
            continue;
        }
        TRY(comm_block_find(node, &block, &is_block));
        if (is_block) {
            shoal_status status = schedule_block(schedule, &block);
            mem_free(block.memory);
            TRY(status);
        }
    }
    return SHOAL_OK;
}

static bool has_start(const struct shoal_graph *graph)
{
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        if (is_start(node)) {
            return true;
        }
    }
    return false;
}

shoal_status pass_schedule_comm_wait(shoal_graph *graph, const shoal_pass_options *options,
                                     shoal_pass_report *report, void *context)
{
    struct schedule schedule = {.number = 0};
    (void)options;
    (void)report;
    (void)context;
    if (!has_start(graph)) {
        return SHOAL_OK;
    }
    TRY(accesses_find(graph, &schedule.accesses));
    schedule.members = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(schedule.members[0]));
    schedule.has_moved = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof(schedule.has_moved[0]));
    shoal_status status =
        schedule.members && schedule.has_moved ? schedule_all(&schedule, graph) : SHOAL_ERR_NO_MEMORY;
    accesses_free(&schedule.accesses);
    mem_free(schedule.members);
    mem_free(schedule.has_moved);
    return status;
}
