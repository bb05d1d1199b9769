/* SPDX-License-Identifier: MIT */
/*
 * Lowering: from a graph to the buffers and steps of a plan.
 *
 *   lower_scan.c      one walk ahead: who uses which storage how long, and which views lie elsewhere on this rank
 *   lower_slots.c     which storages are made inside of others: in a bucket, or in an input that they are copied to at the end
 *   lower.c           the walk that makes steps; lower_lives.c finds out how long buffers are in use
 *   lower_emit.c      buffers, tensors and steps for whoever makes them; lower_collective.c the same of collectives
 *   lower_reduce.c, lower_move.c   rows of lowerings.def; lower_wait.c their waits
 *   lower_pack.c      lists that are packed to be scattered
 *   lower_window.c    gathers into windows; lower_release.c which window, and until when
 *   lower_register.c  lowerings of users
 *
 * A storage of the graph becomes a buffer, or a part of one that another storage has become, when a step first needs it. What is
 * decided depends on the graph alone and is the same on all ranks, but for the contents of arguments that depend on the rank.
 */
#ifndef GRAPH_LOWER_H
#define GRAPH_LOWER_H

#include "graph/effects.h"
#include "graph/flight.h"
#include "graph/graph.h"
#include "graph/plan.h"
#include "graph/storage_map.h"

/* A storage of the graph. Places are those of nodes in the list, from 0. */
struct lowered_storage {
    struct shoal_node *creator;
    size_t bytes;
    size_t element_bytes; /* of the widest dtype that a value looks at it as */
    uint32_t created_at;
    uint32_t last_use;  /* by a node that is no wait; the output uses what it names */
    uint32_t last_user; /* by any node */
    uint32_t n_uses;    /* nodes that use it and are no waits, but for its creator */
    uint32_t n_writes;  /* of those, how many write it */
    uint32_t last_write;
    uint32_t write_places; /* where in `write_places` those n_writes begin; in order */
    uint32_t last_copy;    /* the place of the last copy_ into it */
    uint32_t before_copy;  /* and of the last node that used it before that */
    uint32_t n_in_flight;  /* starts that read it, and were not waited for yet */
    bool is_output;
    bool is_stolen;   /* a result has taken its buffer */
    bool is_slot;     /* made in another buffer that was there for it */
    uint32_t inside;  /* of which storage it is a part; PLAN_NONE: of none */
    size_t inside_at; /* where there, in bytes */
    uint32_t buffer;  /* PLAN_NONE: none yet */
    size_t offset;    /* in the buffer */
};

struct lowered_node {
    uint32_t place;
    uint32_t start;               /* whose result it gives: index + 1; 0: none */
    bool is_absorbed;             /* it makes no step: somebody else does what it does */
    bool has_slots;               /* a cat: pieces are computed into their places */
    bool is_in_place;             /* it writes over its first argument */
    struct window_gather *gather; /* of a start that gathers into a window; otherwise NULL */
    struct pack_source
        *pack; /* of a list that is packed and scattered: one for each result; otherwise NULL */
    /* What it gives on this rank, on the meta device, a reference each; NULL: what the graph says. */
    shoal_tensor **here;
    shoal_tensor **tensors; /* over buffers; NULL entries: not made yet */
};

/* A copy that is made when a collective has ended. */
struct late_copy {
    shoal_tensor *to;
    shoal_tensor *from;
    struct late_copy *next;
};

/* A part of what a rank writes into a window: a value of a node. */
struct window_source {
    const struct shoal_node *node;
    size_t value;
    size_t result; /* which result of the gather it is part of */
    size_t
        at; /* in bytes from the beginning of the rank's rows there, or, with results of their own, of all rows */
    size_t row_bytes; /* of the source in the window's dtype */
};

/* A tensor of a list that is packed, as rows, and what need not be called for it. */
struct pack_source {
    const struct shoal_node *node;
    size_t value;
    int64_t rows;
    int64_t row_elems;
    int64_t result_elems;
    const struct shoal_node *absorbed[3]; /* NULL entries: none */
};

/* Steps of a gather into a window, and where results lie there. */
struct window_gather {
    struct shoal_node *node;
    uint32_t group;
    size_t bytes;
    struct window_source *sources;
    size_t n_sources;
    bool is_unpacked;           /* each source has rows of its own, instead of being a part of the result's */
    uint32_t collective;        /* PLAN_NONE: not yet made */
    uint32_t number;            /* in the order of starts */
    uint32_t first;             /* step of the start */
    uint32_t last;              /* the last step that reads the window */
    struct window_gather *next; /* in the order of starts */
    struct window_gather *next_end; /* that ends with the same step */
};

/* A collective that was started. */
struct lowered_start {
    uint32_t step;
    struct shoal_node *const *inputs; /* that it reads */
    size_t n_inputs;
    uint32_t collective; /* PLAN_NONE: an eager step */
    shoal_value eager;   /* then: all tensors that it reads or gives */
    bool has_ended;
    bool skips_wait;
    struct late_copy *copies; /* in order */
    struct late_copy *last_copy;
};

struct shoal_lowering {
    const struct shoal_graph *graph;
    const shoal_compile_options *options;
    const struct plan_target *target;
    struct shoal_plan *plan;
    struct effects *effects;
    struct flight flight; /* of the nodes before the one whose turn it is */
    struct arena scratch;
    struct storage_map numbers; /* storages of the graph -> `storages` */
    struct lowered_storage *storages;
    size_t n_storages;
    struct storage_map buffers;    /* storages of the plan -> its buffers */
    uint32_t *write_places;        /* of nodes that write, by storage */
    struct lowered_node *nodes;    /* by id */
    struct window_gather *gathers; /* in the order of the graph */
    struct window_gather *last_gather;
    uint32_t n_gathers;
    struct window_gather **gather_of; /* by collective */
    struct window_gather **gather_at; /* by number */
    struct lowered_start *starts;
    size_t n_starts;
    size_t starts_capacity;
    const struct graph_group **groups; /* rows, as in plan->groups */
    struct shoal_node *node;           /* whose turn it is */
    uint32_t n_comm_ids;
    bool skips_wait;  /* shoal_lowering_mark_skip_wait for the node whose turn it is */
    int64_t *details; /* of the collective that is being made */
    size_t n_details;
    size_t details_capacity;
};

/* Scanning (lower_scan.c) ------------------------------------------------------------------------------ */

shoal_status lower_scan(struct shoal_lowering *lowering);
/* The number of the storage that this one of the graph is. */
uint32_t lower_number(const struct shoal_lowering *lowering, const shoal_tensor *value);
/* What a node gives on this rank, on the meta device. */
const shoal_tensor *lower_here(const struct shoal_lowering *lowering, const struct shoal_node *node,
                               size_t index);
void lower_forget_here(struct shoal_lowering *lowering, const struct shoal_node *node);
/* Boxes arguments as what nodes give here, on the meta device. */
struct boxing;
void lower_box_meta(struct shoal_lowering *lowering, struct boxing *boxing_out);
/* The group that the node names, as an index of the plan's; PLAN_NONE: none. */
uint32_t lower_group(const struct shoal_lowering *lowering, const struct shoal_node *node);
/* Whether its values are views of its inputs, or these themselves: no kernel runs. */
bool lower_is_view(const struct shoal_lowering *lowering, const struct shoal_node *node);

/* Whether a node that is no wait writes the storage at a place in (after, until]. */
bool lower_is_written(const struct shoal_lowering *lowering, uint32_t storage, uint32_t after,
                      uint32_t until);
/* The base of contiguous views that show all of it in the same order: the node whose value `*value` it is. */
const struct shoal_node *lower_strip_views(const struct shoal_lowering *lowering,
                                           const struct shoal_node *node, size_t *value);

/* Deciding ahead --------------------------------------------------------------------------------------- */

/* Which gathers go into windows, and which casts, cats and copies that makes unnecessary (lower_window.c). */
shoal_status lower_find_windows(struct shoal_lowering *lowering);
/* Which lists are packed before they are scattered (lower_pack.c). */
shoal_status lower_find_packs(struct shoal_lowering *lowering);
bool lower_has_windows(const struct shoal_lowering *lowering, uint32_t group);
/* A storage is read later than the graph says. */
void lower_extend_use(struct lowered_storage *storage, uint32_t place);
/* Which storages are made inside of others (lower_slots.c). */
shoal_status lower_find_slots(struct shoal_lowering *lowering);

/* Buffers and tensors (lower_emit.c) ------------------------------------------------------------------- */

shoal_status lower_add_buffer(struct shoal_lowering *lowering, enum plan_place place, size_t bytes,
                              const char *name, uint32_t *buffer_out);
/* The buffer of a storage, made if there is none. */
shoal_status lower_need_buffer(struct shoal_lowering *lowering, uint32_t storage);
/* Of a plan's tensor. */
uint32_t lower_buffer_of(const struct shoal_lowering *lowering, const shoal_tensor *tensor);
/* What a node gives, over its buffer. */
shoal_status lower_tensor(struct shoal_lowering *lowering, const struct shoal_node *node, size_t index,
                          shoal_tensor **tensor_out);
shoal_status lower_tensors(struct shoal_lowering *lowering, const struct shoal_node *node,
                           shoal_tensor ***tensors_out);
/* Another view of the buffer that `like` looks at; of like's dtype. */
shoal_status lower_view(struct shoal_lowering *lowering, const shoal_tensor *like,
                        const struct layout *layout, shoal_tensor **tensor_out);
/* A contiguous tensor over a buffer of its own. */
shoal_status lower_fresh(struct shoal_lowering *lowering, const char *name, shoal_dtype dtype, int n_dims,
                         const int64_t *shape, shoal_tensor **tensor_out);

/* Arguments of a node's call, with tensors of the plan, in its arena. */
shoal_status lower_box(struct shoal_lowering *lowering, const struct shoal_node *node,
                       shoal_value **arguments_out);

/* Steps ------------------------------------------------------------------------------------------------ */

shoal_status lower_add_step(struct shoal_lowering *lowering, const struct plan_step *step);
shoal_status lower_call(struct shoal_lowering *lowering, const shoal_op *op, shoal_value *arguments,
                        shoal_tensor *const *outputs, size_t n_outputs);
/* to = from */
shoal_status lower_copy(struct shoal_lowering *lowering, shoal_tensor *to, shoal_tensor *from);
/* The op of the node, as it stands. */
shoal_status lower_eager(struct shoal_lowering *lowering, struct shoal_node *node,
                         const shoal_value *arguments);

/* Comm memory ------------------------------------------------------------------------------------------ */

/* Whether the buffer under the tensor is, or can be, comm memory of the group. */
bool lower_can_realize(const struct shoal_lowering *lowering, const shoal_tensor *tensor, uint32_t group);
/* Makes it so, if it can be. */
void lower_realize(struct shoal_lowering *lowering, const shoal_tensor *tensor, uint32_t group);

/* Collectives ------------------------------------------------------------------------------------------ */

/* A collective of this node with so many pieces, all NULL. Holds until the next is made. */
shoal_status lower_begin_collective(struct shoal_lowering *lowering, uint32_t group, size_t n_pieces,
                                    struct plan_collective **collective_out);
void lower_set_piece(struct plan_collective *collective, size_t index, shoal_tensor *send, shoal_tensor *recv,
                     int64_t count);
/* Item `index` of a list argument: which value of which node. */
const struct shoal_node *lower_item(const shoal_arg *arg, size_t index, size_t *value_out);
/* What ranks compare of it: as collective/launch.h says it. */
shoal_status lower_say_shape(struct shoal_lowering *lowering, const shoal_tensor *tensor);
shoal_status lower_say_number(struct shoal_lowering *lowering, int64_t number);
shoal_status lower_say_numbers(struct shoal_lowering *lowering, const int64_t *numbers, size_t n);
/* The step of the collective that was begun last: a start, or a blocking call, whose wait is dropped. */
shoal_status lower_end_collective(struct shoal_lowering *lowering, bool is_blocking);
/* A copy for when the collective that was begun last has ended. */
shoal_status lower_copy_late(struct shoal_lowering *lowering, shoal_tensor *to, shoal_tensor *from);

/* `tensor`, or a contiguous copy of it that is made now. */
shoal_status lower_input(struct shoal_lowering *lowering, shoal_tensor *tensor,
                         shoal_tensor **contiguous_out);
/* `tensor` as n_ranks blocks along a dimension, one after the other. */
shoal_status lower_input_blocks(struct shoal_lowering *lowering, shoal_tensor *tensor, int dim,
                                size_t n_ranks, shoal_tensor **blocks_out);
/* A tensor that will be written as n_ranks blocks: contiguous ones, one after the other, and what they are copied to then; both are
   the tensor itself if it lies so. */
struct lowered_blocks {
    shoal_tensor *contiguous;
    shoal_tensor *view;
};
shoal_status lower_make_blocks(struct shoal_lowering *lowering, shoal_tensor *tensor, int dim, size_t n_ranks,
                               struct lowered_blocks *blocks_out);
/* After a collective on `data` that stands for `tensor`: the copy, if they are two. */
shoal_status lower_write_back(struct shoal_lowering *lowering, shoal_tensor *tensor, shoal_tensor *data);
/* Whether a collective between the two needs no more care than one between two buffers: they have no memory in common, or the
   collective itself will see how they lie, because nothing has to be copied. `blocks`: the one that has one for each rank. */
bool lower_is_apart(const shoal_tensor *other, const shoal_tensor *blocks, int dim, size_t n_ranks);
/* Whether blocks along that dimension of a contiguous tensor like this lie one after the other. */
bool lower_has_plain_blocks(const shoal_tensor *like, int dim, size_t n_ranks);
/* Whether the two above can be done: there may be no dimension left for the blocks. */
bool lower_can_block(const shoal_tensor *tensor, int dim, size_t n_ranks);

/*
 * A contiguous tensor with the contents of `input`, which the result `index` of the node becomes: the input itself when nobody needs
 * it any more, otherwise a copy.
 */
shoal_status lower_take(struct shoal_lowering *lowering, struct shoal_node *node, size_t index,
                        const struct shoal_node *input, size_t input_index, shoal_tensor **tensor_out);

/* Rows of lowerings.def -------------------------------------------------------------------------------- */

typedef shoal_status (*lowering_function)(struct shoal_lowering *lowering, struct shoal_node *node,
                                          const shoal_value *arguments);
#define LOWERING_FUNCTION(function)                                                 \
    shoal_status function(struct shoal_lowering *lowering, struct shoal_node *node, \
                          const shoal_value *arguments)
LOWERING_FUNCTION(lower_all_reduce);
LOWERING_FUNCTION(lower_all_reduce_in_place);
LOWERING_FUNCTION(lower_all_reduce_list);
LOWERING_FUNCTION(lower_all_reduce_list_in_place);
LOWERING_FUNCTION(lower_reduce);
LOWERING_FUNCTION(lower_reduce_scatter);
LOWERING_FUNCTION(lower_reduce_scatter_out);
LOWERING_FUNCTION(lower_reduce_scatter_list);
LOWERING_FUNCTION(lower_all_gather);
LOWERING_FUNCTION(lower_all_gather_out);
LOWERING_FUNCTION(lower_all_gather_list);
LOWERING_FUNCTION(lower_all_gather_apart);
LOWERING_FUNCTION(lower_all_to_all);
LOWERING_FUNCTION(lower_all_to_all_out);
LOWERING_FUNCTION(lower_shard_dim);
LOWERING_FUNCTION(lower_broadcast);
LOWERING_FUNCTION(lower_broadcast_in_place);
LOWERING_FUNCTION(lower_permute);
LOWERING_FUNCTION(lower_symmetric);
LOWERING_FUNCTION(lower_symmetric_out);
LOWERING_FUNCTION(lower_symmetric_in_place);
LOWERING_FUNCTION(lower_symmetric_copy);
LOWERING_FUNCTION(lower_symmetric_copy_out);
LOWERING_FUNCTION(lower_point_to_point);

/* By what shoal_lowering_register has for the op; NULL: nothing. */
struct lowering_entry;
const struct lowering_entry *lowering_find(const shoal_op *op);
shoal_status lower_registered(struct shoal_lowering *lowering, struct shoal_node *node,
                              const struct lowering_entry *entry);
/* The row of lowerings.def, or for other ops an eager step. */
lowering_function lower_find_row(const shoal_op *op);

/* Ends a start that may have ended. */
shoal_status lower_end_start(struct shoal_lowering *lowering, struct lowered_start *start);
/* A start reads its inputs from now on (1), or does not any more (-1). */
void lower_count_in_flight(struct shoal_lowering *lowering, const struct lowered_start *start, int change);
/* A start of the node whose turn it is, which it gets. NULL: no memory. */
struct lowered_start *lower_add_start(struct shoal_lowering *lowering, uint32_t collective);
/* wait_tensor and wait_tensors. */
shoal_status lower_wait(struct shoal_lowering *lowering, struct shoal_node *node);
/* Of starts that nobody has waited for. */
shoal_status lower_wait_all(struct shoal_lowering *lowering);
/* The start of a node that gives another one's result: that one's. */
void lower_pass_start(struct shoal_lowering *lowering, const struct shoal_node *node);

/* The cat whose pieces were computed into their places: copies of those that were not. */
shoal_status lower_cat(struct shoal_lowering *lowering, struct shoal_node *node);
/* as_strided_scatter: self, or a copy of it where somebody else needs it, and the source into its place. */
shoal_status lower_scatter(struct shoal_lowering *lowering, struct shoal_node *node);
/* The in-place twin of an op that writes over its first argument; NULL: there is none. */
const shoal_op *lower_in_place_twin(const shoal_op *op);
/* The start of a list that is packed. */
shoal_status lower_packed_scatter(struct shoal_lowering *lowering, struct shoal_node *node);
/* The start of a gather into a window. */
shoal_status lower_window_gather(struct shoal_lowering *lowering, struct window_gather *gather);
/* Steps that release windows, and until when each is needed. Lives must be found again. */
shoal_status lower_release_windows(struct shoal_lowering *lowering);
/* What the plan needs of its groups, and windows as if all members needed the same. Behind plan_place. */
shoal_status lower_find_needs(struct shoal_lowering *lowering);

/* Lives of buffers, from the steps that touch them; may be called again when steps have moved. */
shoal_status lower_find_lives(struct shoal_lowering *lowering);

#endif
