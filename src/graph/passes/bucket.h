/* SPDX-License-Identifier: MIT */
/*
 * Joins collectives of one kind: several starts become one, which takes all their inputs.
 *
 * A member is a start that can be joined: its only user is a wait_tensor, and nobody overwrites its input between the
 * two. Members are taken in the order of their waits, and one bucket is open at a time. A member with another key
 * closes the bucket and begins a new run of buckets. A member that would make the bucket too large, or that depends on
 * a result of the bucket, begins the next bucket of the run.
 *
 * One walk over the list finds the nodes that depend on the open bucket, by labels. A wait that joins gets the label of
 * the bucket, and a node gets it from any node that it must stay behind: by its arguments, through memory
 * (graph/analysis/effects.h), or, for a start that is no member, as a later start of the same group. Labels of closed buckets
 * are ignored.
 *
 * Joining all buckets makes no cycle. Whatever depends on a member depends on its wait, and a node stands after all
 * nodes that it must stay behind. So if bucket B depends on a result of bucket A, a wait of A stands before a wait of
 * B. Waits of different buckets do not mix, hence all waits of A stand before those of B, and A cannot depend on B.
 * Labels exclude that members of one bucket depend on each other.
 *
 * All decisions follow from the graph, so all ranks decide alike.
 */
#ifndef GRAPH_PASSES_BUCKET_H
#define GRAPH_PASSES_BUCKET_H

#include "graph/analysis/accesses.h"
#include "graph/ir/graph.h"
#include "op/op.h"
#include "shoal/compile.h"

#define BUCKET_DEFAULT_MB 2000.0

/* Members of a bucket have equal keys. */
struct bucket_key {
    const char *group;
    const char *reduce; /* NULL: nothing is reduced */
    double factor;      /* NaN: none */
    shoal_dtype dtype;
    shoal_device device;
    const char *unit; /* the FSDP unit; NULL: the kind does not look at units */
};

struct bucket_member {
    struct shoal_node *start;
    struct shoal_node *wait;
    struct bucket_key key;
    size_t bytes;
    uint32_t bucket;           /* index + 1; 0: it is not joined */
    struct shoal_node *packed; /* the first new node that reads its input */
    struct shoal_node *result; /* the new node that replaces the wait */
};

struct bucket {
    size_t first; /* index of its first member */
    size_t n_members;
};

struct buckets {
    struct shoal_graph *graph;
    struct effects *effects;
    struct bucket_member *members; /* in the order of their waits */
    size_t n_members;
    uint32_t *member_of;    /* by id of starts and waits: index of the member + 1; 0: none */
    uint32_t n_ids;         /* nodes with this id or a larger one were made by the merge */
    struct bucket *buckets; /* of two members or more */
    size_t n_buckets;
    const char **groups; /* names, sorted */
    size_t n_groups;
};

/* A bucket whose nodes are being made. */
struct bucket_join {
    struct shoal_graph *graph;
    struct bucket_member *members;
    size_t n_members;
    size_t group_size;
    shoal_arg *args; /* room for one argument for each member */
};

struct bucket_kind {
    /* Whether the start is of this kind. Fills in its key, except dtype and device. */
    bool (*match)(const struct shoal_node *start, struct bucket_key *key);
    /* Makes the new start, and fills in `packed` of each member. */
    shoal_status (*pack)(struct bucket_join *join, struct shoal_node **start_out);
    /* Makes the results, and fills in `result` of each member. `wait` is the wait for the new start. If the kind is
       coalesced, it is the start itself, and this function makes a wait for each result. */
    shoal_status (*unpack)(struct bucket_join *join, struct shoal_node *wait);
    bool is_coalesced; /* the start gives a list: each result has a storage of its own */
};

/* Limits the size of buckets. */
struct bucket_limit {
    double (*mb)(void *context, size_t index); /* the most MiB of bucket number `index` of a run */
    void *context;
};

/* Finds members and buckets. is_accepted tells, by id of the wait, which starts may be members; NULL: all. */
shoal_status buckets_find(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                          const struct bucket_limit *limit, struct buckets *buckets_out);
void buckets_free(struct buckets *buckets);

/* Returns the index of a start's group; n_groups: it has none. */
size_t buckets_group_of(const struct buckets *buckets, const struct shoal_node *start);

static inline bool bucket_is_start(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0;
}

/* Joins the buckets that buckets_find found. */
shoal_status buckets_merge(struct buckets *buckets, const struct bucket_kind *kind);

/* Finds buckets and joins them, with the limit comm_bucket_mb of the options. */
shoal_status bucket_pass(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                         const shoal_pass_options *options, shoal_pass_report *report);
/* Like bucket_pass, with another limit. */
shoal_status bucket_pass_limited(struct shoal_graph *graph, const struct bucket_kind *kind,
                                 const bool *is_accepted, const struct bucket_limit *limit,
                                 shoal_pass_report *report);

extern const struct bucket_kind bucket_of_all_gathers;
extern const struct bucket_kind bucket_of_reduce_scatters;
extern const struct bucket_kind bucket_of_all_reduces;

/* Find the collectives that look like those of FSDP: gathers whose data comes from one input of the graph, and
   reduce-scatters whose result goes to the output only, through nodes with one input. They give is_accepted for
   buckets_find; the caller frees it. */
shoal_status bucket_fsdp_gathers(const struct shoal_graph *graph, bool **is_accepted_out);
shoal_status bucket_fsdp_scatters(const struct shoal_graph *graph, bool **is_accepted_out);

/* Making nodes ------------------------------------------------------------------------------------------- */

static inline shoal_arg bucket_node_arg(struct shoal_node *node)
{
    return (shoal_arg){.kind = SHOAL_ARG_NODE, .as = {.node = node}};
}

static inline shoal_arg bucket_int_arg(int64_t integer)
{
    return (shoal_arg){.kind = SHOAL_ARG_INT, .as = {.integer = integer}};
}

static inline shoal_arg bucket_list_arg(const shoal_arg *items, size_t count)
{
    return (shoal_arg){.kind = SHOAL_ARG_LIST, .as = {.list = {items, count}}};
}

static inline struct shoal_node *bucket_input(const struct bucket_member *member)
{
    return member->start->args[0].as.node;
}

/* Reads an argument that is a number. False: it is not, because it depends on the rank. */
bool bucket_factor(const shoal_arg *arg, double *factor_out);

shoal_status bucket_call(struct bucket_join *join, enum op_id id, const shoal_arg *args, size_t n_args,
                         struct shoal_node **node_out);
/* Makes one flat tensor of all inputs, one after the other. */
shoal_status bucket_call_flat(struct bucket_join *join, struct shoal_node **flat_out);
/* Splits `whole` along a dimension into pieces of the sizes in join->args. The pieces, in the shapes of what the old
   starts gave, become the results. */
shoal_status bucket_call_results(struct bucket_join *join, struct shoal_node *whole, int64_t dim);

#endif
