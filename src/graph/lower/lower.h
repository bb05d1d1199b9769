/* SPDX-License-Identifier: MIT */
/*
 * Lowering turns a graph into the buffers and steps of a plan.
 *
 *   lower/scan.c      a first walk: which nodes use each storage, and which views lie elsewhere on this rank
 *   lower/slots.c     which storages are placed inside others: in a bucket, or in the input that they are copied to
 *   lower.c           the walk that makes the steps
 *   lower/lives.c     from which step to which each buffer is in use
 *   lower/emit.c      adds buffers, tensors and steps to the plan; lower/collective.c adds collectives
 *   lower/reduce.c, lower/move.c   the functions of lowerings.def; lower/wait.c the waits
 *   lower/pack.c      lists that are packed into one buffer before they are reduced and scattered
 *   lower/window.c    gathers into windows; lower/release.c when a window is released and can be used again
 *   lower/register.c  lowerings that a program registers
 *
 * A storage of the graph gets a buffer, or a part of another storage's buffer, when a step first needs it. All
 * decisions follow from the graph, so all ranks decide alike. Only the values of arguments that depend on the rank
 * differ.
 */
#ifndef GRAPH_LOWER_LOWER_H
#define GRAPH_LOWER_LOWER_H

#include "base/map.h"
#include "graph/analysis/effects.h"
#include "graph/analysis/flight.h"
#include "graph/ir/graph.h"
#include "graph/plan/plan.h"

/* A storage of the graph. A place is the position of a node in the graph's list, counted from 0. */
struct lowered_storage {
    struct shoal_node *creator;
    size_t bytes;
    size_t element_bytes; /* of the widest dtype among the values in it */
    uint32_t created_at;
    uint32_t last_use;  /* place of the last user that is not a wait; the output uses what it names */
    uint32_t last_user; /* place of the last user of any kind */
    uint32_t n_uses;    /* users that are not waits, without the creator */
    uint32_t n_writes;  /* how many of n_uses write it */
    uint32_t last_write;
    uint32_t write_places; /* where its n_writes places begin in shoal_lowering.write_places; ascending */
    uint32_t last_copy;    /* place of the last copy_ into it */
    uint32_t before_copy;  /* place of the last user before that copy_ */
    uint32_t n_in_flight;  /* starts that use it as an input and have not been waited for yet */
    bool is_output;
    bool is_stolen;   /* a result has taken over its buffer */
    bool is_slot;     /* a piece of a bucket that is computed directly into its place there */
    uint32_t inside;  /* the storage that it is a part of; PLAN_NONE if there is none */
    size_t inside_at; /* byte offset in that storage */
    uint32_t buffer;  /* PLAN_NONE if there is none yet */
    size_t offset;    /* byte offset in the buffer */
};

struct lowered_node {
    uint32_t place;
    uint32_t start;               /* the start whose result the node gives: index + 1; 0 if there is none */
    bool is_absorbed;             /* it makes no step of its own, because another step does its work */
    bool has_slots;               /* a cat, some of whose pieces are computed directly into its result */
    bool is_in_place;             /* it writes over its first argument */
    struct window_gather *gather; /* of a start that gathers into a window; otherwise NULL */
    struct pack_source *pack;     /* of a start whose list is packed: one for each result; otherwise NULL */
    /* Its values on this rank, on the meta device, a reference each. It is NULL if they are those of the graph. */
    shoal_tensor **here;
    shoal_tensor **tensors; /* its values over buffers; NULL entries: not made yet */
};

/* A copy that is made when a collective has ended. */
struct late_copy {
    shoal_tensor *to;
    shoal_tensor *from;
    struct late_copy *next;
};

/* A source: a value of a node that each rank writes into a window. */
struct window_source {
    const struct shoal_node *node;
    size_t value;
    size_t result; /* the result of the gather that it is a part of */
    /* Byte offset from the beginning of the rank's row in the result. If is_unpacked: from the beginning of the
       window to the first rank's row of this source. */
    size_t at;
    size_t row_bytes; /* bytes of one rank's part, in the window's dtype */
};

/* A tensor of a list that is packed, seen as `rows` rows of row_elems elements. */
struct pack_source {
    const struct shoal_node *node;
    size_t value;
    int64_t rows;
    int64_t row_elems;
    int64_t result_elems;
    /* Nodes whose work packing does: a cat with zeros, these zeros, a conversion. NULL entries: none. */
    const struct shoal_node *absorbed[3];
};

/* A gather into a window. */
struct window_gather {
    struct shoal_node *node;
    uint32_t group;
    size_t bytes;
    struct window_source *sources;
    size_t n_sources;
    bool is_unpacked;           /* the rows of one source lie together, instead of all sources of one rank */
    uint32_t collective;        /* PLAN_NONE if it is not made yet */
    uint32_t number;            /* counts gathers in the order of their starts */
    uint32_t first;             /* the step that starts it */
    uint32_t last;              /* the last step that reads the window */
    struct window_gather *next; /* in the order of starts */
    struct window_gather *next_end; /* the next one with the same last step */
};

/* A collective that was started. */
struct lowered_start {
    uint32_t step;
    struct shoal_node *const *inputs; /* of the node that starts it */
    size_t n_inputs;
    uint32_t collective; /* PLAN_NONE if it is an eager step */
    shoal_value eager;   /* of an eager step: all tensors that it takes and gives */
    bool has_ended;
    bool skips_wait;          /* it is a blocking call: waits for it make no step */
    struct late_copy *copies; /* made when it ends, in this order */
    struct late_copy *last_copy;
};

struct shoal_lowering {
    const struct shoal_graph *graph;
    const shoal_compile_options *options;
    const struct plan_target *target;
    struct shoal_plan *plan;
    struct effects *effects;
    struct flight flight; /* what the nodes before `node` have in flight */
    struct arena scratch;
    struct map numbers; /* storages of the graph -> `storages` */
    struct lowered_storage *storages;
    size_t n_storages;
    struct map buffers;            /* storages of the plan -> its buffers */
    uint32_t *write_places;        /* places of the nodes that write a storage, one storage after the other */
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
    struct shoal_node *node;           /* the node that is being lowered */
    uint32_t n_comm_ids;
    bool skips_wait;  /* shoal_lowering_mark_skip_wait was called for `node` */
    int64_t *details; /* of the collective that is being made: what ranks compare */
    size_t n_details;
    size_t details_capacity;
};

/* Scanning (lower/scan.c) ------------------------------------------------------------------------------ */

shoal_status lower_scan(struct shoal_lowering *lowering);
/* Returns the index in `storages` of the storage that a value of the graph lies in. */
uint32_t lower_number(const struct shoal_lowering *lowering, const shoal_tensor *value);
/* Returns value number `index` of a node as it is on this rank, on the meta device. */
const shoal_tensor *lower_here(const struct shoal_lowering *lowering, const struct shoal_node *node,
                               size_t index);
void lower_forget_here(struct shoal_lowering *lowering, const struct shoal_node *node);
/* Fills in a boxing that takes nodes as their values on this rank, on the meta device. */
struct boxing;
void lower_box_meta(struct shoal_lowering *lowering, struct boxing *boxing_out);
/* Returns the group that the node names, as an index of the plan's groups; PLAN_NONE if there is none. */
uint32_t lower_group(const struct shoal_lowering *lowering, const struct shoal_node *node);
/* Whether the node's values are views of its inputs, or the inputs themselves, so that no kernel runs. */
bool lower_is_view(const struct shoal_lowering *lowering, const struct shoal_node *node);

/* Whether a node other than a wait, and other than the creator, writes the storage at a place in (after, until]. */
bool lower_is_written(const struct shoal_lowering *lowering, uint32_t storage, uint32_t after,
                      uint32_t until);
/* Skips contiguous views that show all elements of their base in the same order. Returns the node below them, and sets
   *value to the index of the value there. */
const struct shoal_node *lower_strip_views(const struct shoal_lowering *lowering,
                                           const struct shoal_node *node, size_t *value);

/* Deciding ahead --------------------------------------------------------------------------------------- */

/* Decides which gathers go into windows, and which casts, cats and copies are not needed then (lower/window.c). */
shoal_status lower_find_windows(struct shoal_lowering *lowering);
/* Decides which lists are packed before they are reduced and scattered (lower/pack.c). */
shoal_status lower_find_packs(struct shoal_lowering *lowering);
bool lower_has_windows(const struct shoal_lowering *lowering, uint32_t group);
/* Notes that a storage is read at `place`, which may be later than its last use in the graph. */
void lower_extend_use(struct lowered_storage *storage, uint32_t place);
/* Decides which storages are placed inside others (lower/slots.c). */
shoal_status lower_find_slots(struct shoal_lowering *lowering);

/* Buffers and tensors (lower/emit.c) ------------------------------------------------------------------- */

shoal_status lower_add_buffer(struct shoal_lowering *lowering, enum plan_place place, size_t bytes,
                              const char *name, uint32_t *buffer_out);
/* Makes a buffer for a storage that has none. */
shoal_status lower_need_buffer(struct shoal_lowering *lowering, uint32_t storage);
/* Returns the buffer that a tensor of the plan lies in. */
uint32_t lower_buffer_of(const struct shoal_lowering *lowering, const shoal_tensor *tensor);
/* Gives value number `index` of a node, or all its values, as tensors over their buffers. */
shoal_status lower_tensor(struct shoal_lowering *lowering, const struct shoal_node *node, size_t index,
                          shoal_tensor **tensor_out);
shoal_status lower_tensors(struct shoal_lowering *lowering, const struct shoal_node *node,
                           shoal_tensor ***tensors_out);
/* Makes another view of the buffer that `like` lies in, with like's dtype. */
shoal_status lower_view(struct shoal_lowering *lowering, const shoal_tensor *like,
                        const struct layout *layout, shoal_tensor **tensor_out);
/* Makes a contiguous tensor with a buffer of its own. */
shoal_status lower_fresh(struct shoal_lowering *lowering, const char *name, shoal_dtype dtype, int n_dims,
                         const int64_t *shape, shoal_tensor **tensor_out);

/* Gives the arguments of a node's call, with tensors of the plan, in the plan's arena. */
shoal_status lower_box(struct shoal_lowering *lowering, const struct shoal_node *node,
                       shoal_value **arguments_out);

/* Steps ------------------------------------------------------------------------------------------------ */

shoal_status lower_add_step(struct shoal_lowering *lowering, const struct plan_step *step);
shoal_status lower_call(struct shoal_lowering *lowering, const shoal_op *op, shoal_value *arguments,
                        shoal_tensor *const *outputs, size_t n_outputs);
/* Adds the step to = from. */
shoal_status lower_copy(struct shoal_lowering *lowering, shoal_tensor *to, shoal_tensor *from);
/* Adds a PLAN_EAGER step: the op of the node is called as shoal_op_call does. */
shoal_status lower_eager(struct shoal_lowering *lowering, struct shoal_node *node,
                         const shoal_value *arguments);

/* Comm memory ------------------------------------------------------------------------------------------ */

/* Whether the tensor's buffer is, or can be, in comm memory of the group. */
bool lower_can_realize(const struct shoal_lowering *lowering, const shoal_tensor *tensor, uint32_t group);
/* Puts the tensor's buffer into comm memory of the group, if that is possible. */
void lower_realize(struct shoal_lowering *lowering, const shoal_tensor *tensor, uint32_t group);

/* Collectives ------------------------------------------------------------------------------------------ */

/* Adds a collective for the node that is being lowered, with n_pieces empty pieces. The pointer is valid until the next
   collective is begun. */
shoal_status lower_begin_collective(struct shoal_lowering *lowering, uint32_t group, size_t n_pieces,
                                    struct plan_collective **collective_out);
void lower_set_piece(struct plan_collective *collective, size_t index, shoal_tensor *send, shoal_tensor *recv,
                     int64_t count);
/* Returns the node of item `index` of a list argument, and the index of its value. */
const struct shoal_node *lower_item(const shoal_arg *arg, size_t index, size_t *value_out);
/* Add to what ranks compare of the collective that was begun last, as items of transport/purpose.h. */
shoal_status lower_say_shape(struct shoal_lowering *lowering, const shoal_tensor *tensor);
shoal_status lower_say_number(struct shoal_lowering *lowering, int64_t number);
shoal_status lower_say_numbers(struct shoal_lowering *lowering, const int64_t *numbers, size_t n);
/* Adds the step of the collective that was begun last: a start, or a blocking call that needs no wait. */
shoal_status lower_end_collective(struct shoal_lowering *lowering, bool is_blocking);
/* Adds a copy that is made when the collective that was begun last has ended. */
shoal_status lower_copy_late(struct shoal_lowering *lowering, shoal_tensor *to, shoal_tensor *from);

/* Gives `tensor` itself if it is contiguous. Otherwise adds a step that makes a contiguous copy, and gives that. */
shoal_status lower_input(struct shoal_lowering *lowering, shoal_tensor *tensor,
                         shoal_tensor **contiguous_out);
/* Like lower_input, for a tensor that is divided into n_ranks blocks along `dim`: in what it gives, the blocks lie one
   after the other. */
shoal_status lower_input_blocks(struct shoal_lowering *lowering, shoal_tensor *tensor, int dim,
                                size_t n_ranks, shoal_tensor **blocks_out);
/* A tensor that a collective writes as n_ranks blocks. The collective writes `contiguous`, where the blocks lie one
   after the other, and that is then copied to `view`. Both are the tensor itself if no copy is needed. */
struct lowered_blocks {
    shoal_tensor *contiguous;
    shoal_tensor *view;
};
shoal_status lower_make_blocks(struct shoal_lowering *lowering, shoal_tensor *tensor, int dim, size_t n_ranks,
                               struct lowered_blocks *blocks_out);
/* Call after lower_end_collective, if the collective writes `data` instead of `tensor`. Adds the copy to `tensor`,
   unless both are the same. */
shoal_status lower_write_back(struct shoal_lowering *lowering, shoal_tensor *tensor, shoal_tensor *data);
/* Whether a collective from one of the two to the other is safe: they share no memory, or no copy is needed, so that
   the collective itself sees how they overlap. `blocks` is the tensor that has a block for each rank. */
bool lower_is_apart(const shoal_tensor *other, const shoal_tensor *blocks, int dim, size_t n_ranks);
/* Whether the blocks along `dim` of a contiguous tensor of this shape lie one after the other. */
bool lower_has_plain_blocks(const shoal_tensor *like, int dim, size_t n_ranks);
/* Whether lower_input_blocks and lower_make_blocks are possible: they may need one more dimension than tensors can
   have. */
bool lower_can_block(const shoal_tensor *tensor, int dim, size_t n_ranks);

/*
 * Gives result `index` of the node as a contiguous tensor with the contents of `input`, for an op that works in place
 * on it. The result takes over the input's buffer if nobody needs the input any more; otherwise a copy is made.
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

/* Returns what shoal_lowering_register has for the op; NULL if it has nothing. */
struct lowering_entry;
const struct lowering_entry *lowering_find(const shoal_op *op);
shoal_status lower_registered(struct shoal_lowering *lowering, struct shoal_node *node,
                              const struct lowering_entry *entry);
/* Returns the function of lowerings.def for the op; for other ops, one that adds an eager step. */
lowering_function lower_find_row(const shoal_op *op);

/* Adds the wait for a start, if it needs one, and, the first time, the copies that follow it. */
shoal_status lower_end_start(struct shoal_lowering *lowering, struct lowered_start *start);
/* Adds `change` to n_in_flight of the storages that a start takes: 1 when it starts, -1 when it has ended. */
void lower_count_in_flight(struct shoal_lowering *lowering, const struct lowered_start *start, int change);
/* Adds a start for the node that is being lowered. Returns NULL if there is no memory. */
struct lowered_start *lower_add_start(struct shoal_lowering *lowering, uint32_t collective);
/* Lowers wait_tensor and wait_tensors. */
shoal_status lower_wait(struct shoal_lowering *lowering, struct shoal_node *node);
/* Waits for all starts that have not been waited for. */
shoal_status lower_wait_all(struct shoal_lowering *lowering);
/* Notes that a view of a start's result has that start, too. */
void lower_pass_start(struct shoal_lowering *lowering, const struct shoal_node *node);

/* Lowers a cat with has_slots: copies the pieces that are not computed directly into the result. */
shoal_status lower_cat(struct shoal_lowering *lowering, struct shoal_node *node);
/* Lowers as_strided_scatter: writes the source into self, or into a copy of self if that is needed later. */
shoal_status lower_scatter(struct shoal_lowering *lowering, struct shoal_node *node);
/* Returns the op that does the same and writes over its first argument (add_ for add); NULL if there is none. */
const shoal_op *lower_in_place_twin(const shoal_op *op);
/* Lowers the start of a list that is packed. */
shoal_status lower_packed_scatter(struct shoal_lowering *lowering, struct shoal_node *node);
/* Lowers the start of a gather into a window. */
shoal_status lower_window_gather(struct shoal_lowering *lowering, struct window_gather *gather);
/* Adds the steps that release windows, and computes the lives of buffers again, because steps have moved. */
shoal_status lower_release_windows(struct shoal_lowering *lowering);
/* Fills in plan->gathers and the needs of each group, and assigns windows by what this rank needs. Binding assigns them
   again, by the needs of all members. Call after plan_place. */
shoal_status lower_find_needs(struct shoal_lowering *lowering);

/* Computes from which step to which each buffer is in use. Call it again when steps have moved. */
shoal_status lower_find_lives(struct shoal_lowering *lowering);

#endif
