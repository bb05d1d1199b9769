/* SPDX-License-Identifier: MIT */
/*
 * Finds gradients that ranks average one by one, and that can go together:
 *
 *     gradient -> division by a number -> all_reduce -> wait -> output | copy_ into a gradient that is there
 *     gradient -> all_reduce of avg    -> wait -> output | copy_
 *
 * They are taken in the order of their starts, and each key has an open bucket, which is closed when it is large
 * enough. It is closed early where a larger bucket would be wrong:
 *   - before a member that depends on the bucket's first member or on a newer one. A bucket with both would wait for
 *     itself, or two buckets would wait for each other.
 *   - before a member that comes when a gradient of the bucket has been overwritten already: the joined start reads all
 *     gradients where the last one is read.
 *   - before an op with side effects, because no bucket may reach over one.
 *
 * Buckets are joined in program order of their last members. That order needs no further check: a gradient is never
 * overwritten before its own start, so a node that overwrites a gradient of one bucket stands behind the last reader of
 * this bucket and of every bucket that is joined earlier.
 */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "collective/gradient_buckets.h"
#include "graph/analysis/estimate.h"
#include "graph/passes/bucket.h"
#include "tensor/tensor.h"

enum { /* arguments of the all_reduce ops */
    ARG_SELF,
    ARG_REDUCE,
    ARG_GROUP,
    ARG_FACTOR,
    N_ARGS
};

/* The form ----------------------------------------------------------------------------------------------- */

static const shoal_tensor *value_of(const struct shoal_node *node)
{
    return node->values[0];
}

static bool is_in_place(const struct bucket_member *member)
{
    return node_calls(member->start, OP_all_reduce_);
}

/* The result must be an output, or be copied into a gradient that exists already. */
static bool match_user(struct bucket_member *member)
{
    struct shoal_node *wait = member->wait;
    if (wait->n_users != 1) {
        return false;
    }
    member->user = wait->first_use->user;
    if (member->user->kind == SHOAL_NODE_OUTPUT) {
        return true;
    }
    const shoal_arg *args = member->user->args;
    return node_calls(member->user, OP_copy_) && args[1].kind == SHOAL_ARG_NODE && args[1].as.node == wait &&
           args[0].kind == SHOAL_ARG_NODE && args[0].as.node != wait;
}

/* Whether the node divides all elements by one number, so that several gradients can be divided together. */
static bool is_division(const struct shoal_node *node)
{
    if (!node_calls(node, OP_div) && !node_calls(node, OP_div_scalar)) {
        return false;
    }
    if (node->args[0].kind != SHOAL_ARG_NODE || node->args[0].as.node->n_values != 1) {
        return false;
    }
    const shoal_tensor *from = value_of(node->args[0].as.node);
    const shoal_tensor *to = value_of(node);
    if (from->dtype != to->dtype || from->layout.n_dims != to->layout.n_dims ||
        memcmp(from->layout.shape, to->layout.shape,
               (size_t)to->layout.n_dims * sizeof(to->layout.shape[0])) != 0) {
        return false;
    }
    if (node_calls(node, OP_div_scalar)) {
        return true;
    }
    const shoal_arg *divisor = &node->args[1];
    return divisor->kind == SHOAL_ARG_NODE && divisor->as.node->n_values == 1 &&
           value_of(divisor->as.node)->count == 1 && value_of(divisor->as.node)->layout.n_dims <= 1;
}

static bool match_input(struct bucket_member *member)
{
    const shoal_arg *args = member->start->args;
    if (member->start->n_args != N_ARGS || args[ARG_SELF].kind != SHOAL_ARG_NODE ||
        args[ARG_SELF].as.node->n_values != 1 || args[ARG_REDUCE].kind != SHOAL_ARG_STRING ||
        args[ARG_GROUP].kind != SHOAL_ARG_GROUP) {
        return false;
    }
    struct shoal_node *input = args[ARG_SELF].as.node;
    member->input = input;
    member->reader = member->start;
    if (is_division(input)) {
        member->division = input;
        member->input = input->args[0].as.node;
        member->reader = input;
        return true;
    }
    return strcmp(args[ARG_REDUCE].as.string, "avg") == 0;
}

/* Memory ------------------------------------------------------------------------------------------------- */

static bool is_own(const struct bucket_member *member, const struct shoal_node *node)
{
    return node == member->start || node == member->wait || node == member->user ||
           node == member->start->args[ARG_SELF].as.node;
}

/* Returns the first storage that a node writes or creates; ACCESSES_NONE if there is none. */
static uint32_t find_written(const struct accesses *accesses, const struct shoal_node *node)
{
    const struct effects_access *found;
    size_t n_found;
    effects_accesses(accesses->effects, node, &found, &n_found);
    for (size_t i = 0; i < n_found; i++) {
        if (accesses_is_write(&found[i])) {
            return found[i].storage;
        }
    }
    return ACCESSES_NONE;
}

/* Whether only nodes of the member use the memory that is reduced in place, so that it can be reduced elsewhere. */
static bool is_private(const struct accesses *accesses, const struct bucket_member *member)
{
    const struct shoal_node *input = member->start->args[ARG_SELF].as.node;
    uint32_t storage = find_written(accesses, member->start);
    if (input->kind != SHOAL_NODE_CALL || input->n_users != 1 || storage == ACCESSES_NONE) {
        return false;
    }
    for (uint32_t i = accesses->first[storage]; i < accesses->first[storage + 1]; i++) {
        if (!is_own(member, accesses->entries[i].node)) {
            return false;
        }
    }
    return true;
}

/* Whether nobody writes to the result of the division, so that it can be computed at another place. */
static bool is_constant(const struct accesses *accesses, const struct bucket_member *member)
{
    if (!accesses->effects) {
        return true;
    }
    uint32_t storage = find_written(accesses, member->division);
    if (storage == ACCESSES_NONE) {
        return false;
    }
    const struct access *entry = &accesses->entries[accesses->first[storage]];
    return entry->node == member->division && entry->next_write == ACCESSES_NONE;
}

/* Returns the first position at which something that the reader reads is overwritten. The member's own copy_ does not
   count: it uses the member's result, so it stays behind it, and so do the nodes that follow it. */
static uint32_t find_limit(const struct accesses *accesses, const struct bucket_member *member)
{
    uint32_t position = accesses_position(accesses, member->reader);
    uint32_t limit = UINT32_MAX;
    const struct effects_access *found;
    size_t n_found;
    effects_accesses(accesses->effects, member->reader, &found, &n_found);
    for (size_t i = 0; i < n_found; i++) {
        if (accesses_is_write(&found[i])) {
            continue;
        }
        uint32_t own = accesses_behind(accesses, found[i].storage, position - 1);
        uint32_t write = accesses->entries[own].next_write;
        if (write != ACCESSES_NONE && accesses->entries[write].node != member->user &&
            accesses->entries[write].position < limit) {
            limit = accesses->entries[write].position;
        }
    }
    return limit;
}

static bool match_memory(const struct accesses *accesses, struct bucket_member *member)
{
    if (is_in_place(member) ? !is_private(accesses, member)
                            : member->division && !is_constant(accesses, member)) {
        return false;
    }
    member->limit = find_limit(accesses, member);
    return member->limit > accesses_position(accesses, member->start);
}

/* Gradients that are reduced in place, in memory of their own, go together with others: the joined start has memory that
   is new for all of them. */
static void set_key(struct bucket_member *member)
{
    const shoal_tensor *value = value_of(member->input);
    const shoal_arg *args = member->start->args;
    member->key = (struct bucket_key){.op = op_get(OP_all_reduce),
                                      .group = &args[ARG_GROUP],
                                      .reduce = &args[ARG_REDUCE],
                                      .factor = &args[ARG_FACTOR],
                                      .division = member->division ? member->division->op : NULL,
                                      .divisor = member->division ? &member->division->args[1] : NULL,
                                      .dtype = value->dtype,
                                      .device = value_of(member->start)->storage->device};
    member->bytes = tensor_bytes(value);
}

static bool is_start(const struct shoal_node *node)
{
    return node_calls(node, OP_all_reduce) || node_calls(node, OP_all_reduce_);
}

static bool match(const struct accesses *accesses, struct shoal_node *start, struct bucket_member *member)
{
    if (!is_start(start) || start->n_users != 1) {
        return false;
    }
    *member = (struct bucket_member){.start = start, .wait = start->first_use->user};
    if (!node_calls(member->wait, OP_wait_tensor) || !match_user(member) || !match_input(member) ||
        !match_memory(accesses, member)) {
        return false;
    }
    set_key(member);
    return true;
}

/* All ---------------------------------------------------------------------------------------------------- */

static bool has_start(const struct shoal_graph *graph)
{
    const struct shoal_node *node = graph->first;
    while (node && !is_start(node)) {
        node = node->next;
    }
    return node != NULL;
}

static shoal_status find_gradients(struct buckets *buckets, const bool *is_accepted)
{
    struct shoal_graph *graph = buckets->graph;
    if (!has_start(graph)) {
        return SHOAL_OK;
    }
    TRY(accesses_find(graph, &buckets->accesses));
    buckets->readers = mem_alloc_zeroed((size_t)buckets->n_ids + 1, sizeof(buckets->readers[0]));
    if (!buckets->readers) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (struct shoal_node *node = graph->first; node; node = node->next) {
        struct bucket_member member;
        if (match(&buckets->accesses, node, &member) && (!is_accepted || is_accepted[member.wait->id])) {
            member.same_reader = buckets->readers[member.reader->id];
            TRY(buckets_add(buckets, &member));
            buckets->readers[member.reader->id] = (uint32_t)buckets->n_members;
        }
    }
    return SHOAL_OK;
}

const struct bucket_rules bucket_gradients = {
    .find = find_gradients,
    .is_by_start = true,
    .has_open_keys = true,
    .is_overfilled = true,
    .ends_at_effects = true,
    .is_placed_together = true,
    .removes_dead = true,
    .counts_alone = true,
};

/* Checks that there are enough ids for new nodes: at most one member for two nodes, and one bucket for each member. */
static shoal_status check_ids(const struct shoal_graph *graph)
{
    size_t n_new = (BUCKET_NODES_OF_MEMBER + BUCKET_NODES_OF_BUCKET) * (graph->n_nodes / 2);
    if (n_new > UINT32_MAX - graph->n_ids) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "%zu new nodes may be needed, but a graph makes at most %u and this one has made %u",
                         n_new, UINT32_MAX, graph->n_ids);
    }
    return SHOAL_OK;
}

/* Sizes -------------------------------------------------------------------------------------------------- */

/* All gradients of a graph, and among how many ranks they are reduced at most. */
struct gradients {
    double bytes;
    size_t n_ranks;
};

static struct gradients count_gradients(const struct shoal_graph *graph)
{
    struct gradients gradients = {.n_ranks = 1};
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        if (is_start(node) && node->n_values == 1 && node->args[ARG_GROUP].kind == SHOAL_ARG_GROUP) {
            const struct graph_group *group = graph_find_group(graph, node->args[ARG_GROUP].as.string);
            gradients.bytes += (double)tensor_bytes(node->values[0]);
            gradients.n_ranks = group && group->size > gradients.n_ranks ? group->size : gradients.n_ranks;
        }
    }
    return gradients;
}

/*
 * Chooses the size of buckets if the caller does not. Each of n buckets costs the rank a start; the last one cannot be
 * hidden, because no compute is left. So the time that depends on the size b is
 *
 *     bytes / b * start_ns + b * byte_ns,     which is least where both parts are equal
 *
 * It follows from the gradients and the machine alone, which ranks have in common (graph/analysis/estimate.h).
 */
static shoal_status choose_size(struct shoal_graph *graph, const shoal_pass_options *options, double *mb_out)
{
    const struct machine *machine;
    TRY(machine_of_graph(graph, options->machine, &machine));
    struct gradients gradients = count_gradients(graph);
    double bytes = sqrt(gradients.bytes * machine->start_ns / estimate_byte_ns(machine, gradients.n_ranks));
    double mb = bytes / 1048576;
    *mb_out = mb < GRADIENT_BUCKETS_MB ? mb : GRADIENT_BUCKETS_MB;
    return SHOAL_OK;
}

struct sizes {
    double first_mb;
    double mb;
};

static double get_size(void *context, size_t index)
{
    const struct sizes *sizes = context;
    return index == 0 ? sizes->first_mb : sizes->mb;
}

shoal_status bucket_gradients_pass(struct shoal_graph *graph, const struct bucket_kind *kind,
                                   const shoal_pass_options *options, shoal_pass_report *report)
{
    struct sizes sizes = {.first_mb = GRADIENT_BUCKETS_FIRST_MB,
                          .mb = options->bucket_size_mb < 0 ? 0 : options->bucket_size_mb};
    struct bucket_limit limit = {.mb = get_size, .context = &sizes};
    TRY(check_ids(graph));
    if (options->bucket_size_mb == 0) {
        TRY(choose_size(graph, options, &sizes.mb));
        sizes.first_mb = sizes.mb;
    }
    return bucket_pass_limited(graph, kind, NULL, &limit, report);
}
