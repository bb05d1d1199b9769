/* SPDX-License-Identifier: MIT */
/*
 * Joins collectives: several starts become one, which takes all their inputs.
 *
 * A kind (struct bucket_kind) says which starts can be joined and which nodes are made for them; the rules of a kind
 * (struct bucket_rules) how its buckets are filled and where their nodes are placed. A start that can be joined is a
 * member. Members have keys; those of a bucket are equal. Files, in the order in which they work:
 *   bucket_starts.c      finds members among all starts
 *   bucket_gradients.c   finds members among gradients that ranks average one by one
 *   bucket_key.c         compares keys
 *   bucket_fill.c        fills buckets
 *   bucket_build.c       makes nodes that several kinds need
 *   bucket_join.c        makes the new nodes of all buckets, and erases the old ones
 *   bucket_order.c       brings all nodes into order, if starts and waits are placed apart
 *   bucket_late.c        moves nodes that stand too early, if start, wait and results are placed together
 *
 * Joining makes no cycle, because a bucket depends only on buckets that began before it. Members are numbered in the
 * order in which they are taken. One walk over the list finds the need of each node: the newest member that it depends
 * on, by arguments or through memory (graph/analysis/effects.h). A member joins an open bucket unless its need is the
 * first member of that bucket or a newer one. What has to stay behind a joined start or wait must count as dependent,
 * too:
 *   - whatever uses the result of a member depends on its wait. A need begins there.
 *   - a node that overwrites an input of a bucket stays behind the joined start. If members are taken by their waits,
 *     no input is overwritten before its wait, so the node depends on the wait already. If they are taken by their
 *     starts, it depends on everything that the bucket depends on, and the bucket is closed before the next member.
 *   - starts that are not joined keep the order of their group, if the rules say so: each depends on those before it.
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

/* Members of a bucket have equal keys. NULL equals only NULL. */
struct bucket_key {
    const shoal_op *op; /* NULL if the kind joins different ops */
    const shoal_arg *group;
    const shoal_arg *reduce; /* NULL if nothing is reduced */
    const shoal_arg *factor;
    const shoal_op *division; /* of gradients that are divided before the start */
    const shoal_arg *divisor;
    shoal_dtype dtype;
    shoal_device device;
    const char *unit; /* the FSDP unit; NULL if the kind does not look at units */
};

struct bucket_member {
    struct shoal_node *start;
    struct shoal_node *wait;
    struct shoal_node *input;    /* what is packed */
    struct shoal_node *reader;   /* the node that reads the input: the start, or a division before it */
    struct shoal_node *division; /* NULL if there is none */
    struct shoal_node *user;     /* of a gradient: the only user of the wait, an output or a copy_ */
    struct bucket_key key;
    size_t bytes;
    /* The position at which the input is overwritten; UINT32_MAX if it does not matter. */
    uint32_t limit;
    uint32_t next;        /* the next member of its bucket: index + 1; 0 if it is the last */
    uint32_t first;       /* the first member of its bucket: index */
    uint32_t same_reader; /* another member with the same reader: index + 1; 0 if there is none */
    uint32_t bucket_need; /* of a bucket's first member: the newest one that the bucket needs, index + 1 */
    struct shoal_node *packed; /* the first new node that reads its input */
    struct shoal_node *result; /* the new node that replaces the wait; NULL if it is not joined */
};

struct bucket {
    uint32_t first; /* index of its first member */
    uint32_t last;  /* index of its last member */
    uint32_t n_members;
};

struct buckets {
    struct shoal_graph *graph;
    const struct bucket_kind *kind;
    struct accesses accesses;      /* if members are taken by their waits, only `effects` */
    struct bucket_member *members; /* in the order of their starts or waits */
    size_t n_members;
    size_t member_capacity;
    uint32_t *member_of; /* by id of starts and waits: index of the member + 1; 0 if there is none */
    /* By id of a reader: its newest member, index + 1; NULL if is_by_start is false. */
    uint32_t *readers;
    uint32_t n_ids;         /* nodes with this id or a larger one were made by joining */
    struct bucket *buckets; /* in the order of their last members */
    size_t n_buckets;
    size_t bucket_capacity;
    size_t n_joined;     /* buckets of two members or more; if there are none, `buckets` may be NULL */
    const char **groups; /* names, sorted */
    size_t n_groups;
};

/* A bucket whose nodes are being made. */
struct bucket_join {
    struct shoal_graph *graph;
    struct bucket_member **members; /* at least two */
    size_t n_members;
    size_t group_size;
    shoal_arg *args; /* room for one argument for each member */
};

/* What kinds have in common that find their members alike. */
struct bucket_rules {
    /* Finds all members. is_accepted tells, by id of the wait, which starts may be members; NULL means all. */
    shoal_status (*find)(struct buckets *buckets, const bool *is_accepted);
    bool is_by_start;   /* members are taken in the order of their starts; otherwise of their waits */
    bool has_open_keys; /* each key has an open bucket; otherwise another key closes the bucket */
    /* The member that reaches the limit closes its bucket; otherwise one that would exceed it begins the next. */
    bool is_overfilled;
    bool ends_at_effects;   /* an op with side effects closes all buckets */
    bool keeps_group_order; /* starts that are not joined stay in the order of their group */
    /* The wait and the results stand behind the start; otherwise before the first old wait. */
    bool is_placed_together;
    bool keeps_units;  /* if all members belong to an FSDP unit, so do the new nodes */
    bool removes_dead; /* nodes without users are removed in the end */
    bool counts_alone; /* a bucket of one member counts in the report */
};

struct bucket_kind {
    const struct bucket_rules *rules;
    /* Whether the start is of this kind. Fills in its key, except dtype and device. It is NULL if the rules know. */
    bool (*match)(const struct shoal_node *start, struct bucket_key *key);
    /* Makes the new start, and fills in `packed` of each member. */
    shoal_status (*pack)(struct bucket_join *join, struct shoal_node **start_out);
    /* Makes the results, and fills in `result` of each member; the last is the last new node. `wait` is the wait for
       the new start. If the kind is coalesced, it is the start itself, and this function makes a wait for each
       result. */
    shoal_status (*unpack)(struct bucket_join *join, struct shoal_node *wait);
    bool is_coalesced; /* the start gives a list: each result has a storage of its own */
};

/* Limits the size of buckets. */
struct bucket_limit {
    /* Returns the limit of bucket number `index` of a key, or of a run of equal keys, in MiB. */
    double (*mb)(void *context, size_t index);
    void *context;
};

extern const struct bucket_rules bucket_starts;    /* bucket_starts.c */
extern const struct bucket_rules bucket_gradients; /* bucket_gradients.c */
extern const struct bucket_kind bucket_of_all_gathers;
extern const struct bucket_kind bucket_of_reduce_scatters;
extern const struct bucket_kind bucket_of_all_reduces;

/* Passes ------------------------------------------------------------------------------------------------- */

/* Finds buckets and joins them. */
shoal_status bucket_pass_limited(struct shoal_graph *graph, const struct bucket_kind *kind,
                                 const bool *is_accepted, const struct bucket_limit *limit,
                                 shoal_pass_report *report);
/* Like bucket_pass_limited, with the limit comm_bucket_mb of the options. */
shoal_status bucket_pass(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                         const shoal_pass_options *options, shoal_pass_report *report);
/* Like bucket_pass_limited, for kinds of gradients, with the limit bucket_size_mb of the options. */
shoal_status bucket_gradients_pass(struct shoal_graph *graph, const struct bucket_kind *kind,
                                   const shoal_pass_options *options, shoal_pass_report *report);

/* Find the collectives that look like those of FSDP: gathers whose data comes from one input of the graph, and
   reduce-scatters whose result goes to the output only, through nodes with one input. They give is_accepted for
   bucket_pass; the caller frees it. */
shoal_status bucket_fsdp_gathers(const struct shoal_graph *graph, bool **is_accepted_out);
shoal_status bucket_fsdp_scatters(const struct shoal_graph *graph, bool **is_accepted_out);

/* The engine --------------------------------------------------------------------------------------------- */

static inline bool bucket_is_start(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0;
}

bool bucket_key_is_same(const struct bucket_key *a, const struct bucket_key *b);
uint64_t bucket_key_hash(const struct bucket_key *key);

/* Adds a member, for bucket_rules.find. */
shoal_status buckets_add(struct buckets *buckets, const struct bucket_member *member);

/* Finds members and fills buckets. */
shoal_status buckets_find(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                          const struct bucket_limit *limit, struct buckets *buckets_out);
void buckets_free(struct buckets *buckets);

/* Returns the index of a start's group; n_groups: it has none. */
size_t buckets_group_of(const struct buckets *buckets, const struct shoal_node *start);

/* The most new nodes that `pack` and `unpack` make for each member and, in addition, for each bucket, if they are
   placed together. */
#define BUCKET_NODES_OF_MEMBER 4
#define BUCKET_NODES_OF_BUCKET 8

/* Joins the buckets that buckets_find found. */
shoal_status buckets_join(struct buckets *buckets);

/* Sorts the graph while old and new nodes are there, so that what uses an old wait, or overwrites what an old start has
   read, stands behind the new nodes. */
shoal_status buckets_bring_into_order(const struct buckets *buckets);

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

/* Whether an argument is a number. It is not, for example, if it depends on the rank. */
static inline bool bucket_is_number(const shoal_arg *arg)
{
    return arg->kind == SHOAL_ARG_FLOAT || arg->kind == SHOAL_ARG_INT;
}

shoal_status bucket_call(struct bucket_join *join, enum op_id id, const shoal_arg *args, size_t n_args,
                         struct shoal_node **node_out);
/* Makes a start of op `id` with the arguments of an old one, but with other tensors. */
shoal_status bucket_call_start(struct bucket_join *join, const struct shoal_node *start, enum op_id id,
                               shoal_arg tensors, struct shoal_node **start_out);
/* Makes one flat tensor of all inputs, one after the other. */
shoal_status bucket_call_flat(struct bucket_join *join, struct shoal_node **flat_out);
/* Splits `whole` along a dimension into pieces of the sizes in join->args. The pieces, in the shapes of what the old
   starts gave, become the results. */
shoal_status bucket_call_results(struct bucket_join *join, struct shoal_node *whole, int64_t dim);
/* As `unpack` of a kind: what the old starts gave lies in the new tensor, one after the other. */
shoal_status bucket_unpack_flat(struct bucket_join *join, struct shoal_node *wait);

#endif
