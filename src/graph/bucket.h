/* SPDX-License-Identifier: MIT */
/*
 * Collectives of one kind that go together: several starts become one, of their inputs side by side.
 *
 * A member is a start whose only user is a wait_tensor, and whose input nobody overwrites between the two; others
 * stay alone. Members are taken in the order of their waits. One of another key closes the bucket and begins a new
 * run; one that would make the bucket too large, or that needs a result of the bucket, begins the next bucket of the
 * run. So at any time one bucket is open.
 *
 * Who needs a result of the open bucket is known from one walk over the list: a wait that joins gets the bucket's
 * label, and a node gets it from any node that it must stay behind, by its arguments, through memory
 * (graph/effects.h), or as a start that is not joined and follows another such one in its group. Labels of a bucket
 * that was closed mean nothing any more: each node is looked at once.
 *
 * Joining all buckets leaves no cycle. All that depends on a member does so through its wait, and what a node must
 * stay behind stands before it. So where bucket B needs a result of bucket A, a wait of A stands before a wait of B;
 * waits of different buckets do not mix, hence all waits of A stand before those of B, and no way leads back. Inside
 * of a bucket labels have told.
 *
 * All is decided by the graph, which ranks have in common: they decide alike.
 */
#ifndef GRAPH_BUCKET_H
#define GRAPH_BUCKET_H

#include "graph/accesses.h"
#include "graph/graph.h"
#include "op/op.h"
#include "shoal/compile.h"

#define BUCKET_DEFAULT_MB 2000.0

/* Members of a bucket have it in common. */
struct bucket_key {
    const char *group;
    const char *reduce; /* NULL: nothing is reduced */
    double factor;      /* NaN: none */
    shoal_dtype dtype;
    shoal_device device;
    const char *unit; /* of a sharded model; NULL: any */
};

struct bucket_member {
    struct shoal_node *start;
    struct shoal_node *wait;
    struct bucket_key key;
    size_t bytes;
    uint32_t bucket;              /* index + 1; 0: it stays alone */
    struct shoal_node *packed;    /* the first new node that reads its input */
    struct shoal_node *result;    /* what takes the place of the wait */
    const struct origin *origins; /* that the result will have */
};

struct bucket {
    size_t first; /* member */
    size_t n_members;
};

struct buckets {
    struct shoal_graph *graph;
    struct effects *effects;
    struct bucket_member *members; /* in the order of their waits */
    size_t n_members;
    uint32_t *member_of;    /* by id of starts and waits: index + 1; 0: none */
    uint32_t n_ids;         /* nodes from this id on are newer */
    struct bucket *buckets; /* of two members or more */
    size_t n_buckets;
    const char **groups; /* names, sorted */
    size_t n_groups;
};

/* A bucket for those who make its nodes. */
struct bucket_join {
    struct shoal_graph *graph;
    struct bucket_member *members;
    size_t n_members;
    size_t group_size;
    shoal_arg *args; /* room for one for each member */
};

struct bucket_kind {
    /* Whether the start is of this kind; its key but for dtype and device. */
    bool (*match)(const struct shoal_node *start, struct bucket_key *key);
    /* Makes the start, and fills in `packed` of each member. */
    shoal_status (*pack)(struct bucket_join *join, struct shoal_node **start_out);
    /* Fills in `result` of each member: from the wait, or of a coalesced kind from the start, whose results are
       waited for one by one. */
    shoal_status (*unpack)(struct bucket_join *join, struct shoal_node *wait);
    bool is_coalesced; /* the start gives a list: each result has a storage of its own */
};

/* How large the bucket of that index in its run may get, in MiB. */
struct bucket_limit {
    double (*mb)(void *context, size_t index);
    void *context;
};

/* `is_accepted`: by id of the wait; NULL: all are. */
shoal_status buckets_find(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                          const struct bucket_limit *limit, struct buckets *buckets_out);
void buckets_free(struct buckets *buckets);

/* The group of a start: an index; n_groups for one without. */
size_t buckets_group_of(const struct buckets *buckets, const struct shoal_node *start);
/* Whether a start stays behind another one only because their group has them in this order. */
bool buckets_is_group_order(const struct buckets *buckets, const struct shoal_node *before,
                            const struct shoal_node *node);

static inline bool bucket_is_start(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0;
}

/* Joins what was found. */
shoal_status buckets_merge(struct buckets *buckets, const struct bucket_kind *kind);

/* Both, with the limit of the options. */
shoal_status bucket_pass(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                         const shoal_pass_options *options, shoal_pass_report *report);
/* Likewise, with any limit. */
shoal_status bucket_pass_limited(struct shoal_graph *graph, const struct bucket_kind *kind,
                                 const bool *is_accepted, const struct bucket_limit *limit,
                                 shoal_pass_report *report);

extern const struct bucket_kind bucket_of_all_gathers;
extern const struct bucket_kind bucket_of_reduce_scatters;
extern const struct bucket_kind bucket_of_all_reduces;

/* By id of waits: whether what a gather gathers comes from one input of the graph, and whether what is made of a
   wait's result goes to the output through nodes that use nothing else. The caller frees the array. */
shoal_status bucket_fsdp_gathers(const struct shoal_graph *graph, bool **is_accepted_out);
shoal_status bucket_fsdp_scatters(const struct shoal_graph *graph, bool **is_accepted_out);

/* For those who make nodes ------------------------------------------------------------------------------- */

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

/* A number that an argument "float" is. */
bool bucket_factor(const shoal_arg *arg, double *factor_out);

shoal_status bucket_call(struct bucket_join *join, enum op_id id, const shoal_arg *args, size_t n_args,
                         struct shoal_node **node_out);
/* Inputs, each flattened, one after the other. */
shoal_status bucket_call_flat(struct bucket_join *join, struct shoal_node **flat_out);
/* Pieces of `whole` along a dimension, of the sizes in join->args, become results, shaped like what their starts
   gave. */
shoal_status bucket_call_results(struct bucket_join *join, struct shoal_node *whole, int64_t dim);

#endif
