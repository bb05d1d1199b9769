/* SPDX-License-Identifier: MIT */
/*
 * A plan: what is left of a graph when it only has to run. Buffers with places, and steps in order.
 *
 *   lowering    graph -> buffers and steps          graph/lower*.c, rows in lowerings.def
 *   placing     buffers -> offsets in areas         graph/place.c: nothing in flight shares bytes with anything else
 *   binding     areas -> memory, tensors, works     graph/bind.c: once; ranks make shared memory together
 *   running     steps, one after the other          graph/plan_run.c: allocates nothing
 *
 * A buffer is what one storage of the graph becomes. Its life is from the step that writes it first to the last step that uses it;
 * a wait uses what its start reads and writes, so whatever is in flight lives until its wait. Views are tensors over the buffer.
 */
#ifndef GRAPH_PLAN_H
#define GRAPH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "shoal/compile.h"
#include "shoal/op.h"
#include "shoal/window.h"
#include "tensor/tensor.h"
#include "transport/collective.h"
#include "transport/purpose.h"

struct graph_group; /* graph/graph.h */
struct plan_binding;
struct prepared; /* comm/prepared.h */

#define PLAN_NONE UINT32_MAX

/* Where the bytes of a buffer are. */
enum plan_place {
    PLAN_INPUT,    /* the tensor of a placeholder: other memory in each run */
    PLAN_CONSTANT, /* the constant's own memory */
    PLAN_POOL,     /* memory of this rank: reused when a buffer's life is over */
    PLAN_OUTPUT,   /* memory of this rank that holds until the next run */
    PLAN_COMM, /* symmetric memory of a group (or, where its transport has none, memory of this rank): peers read it */
    PLAN_WINDOW, /* a window of a group: gathered once for all ranks of a host, only read */
    PLAN_SLOT    /* a part of another buffer: what is computed straight into its place in a bucket */
};

struct plan_buffer {
    enum plan_place place;
    /* Of the placeholder, the group of comm memory, or the window; of a slot, the buffer it is part of. */
    uint32_t index;
    size_t offset; /* in that area */
    size_t bytes;
    uint32_t first;   /* the step that writes it first; PLAN_NONE: it is there from the beginning */
    uint32_t last;    /* the last one that uses it; the number of steps: it is an output */
    uint32_t comm_id; /* of comm memory: counts in the order of lowering, from 1 */
    uint32_t gather;  /* of a window: whose result it is */
    const char *name; /* of the node whose storage it is */
    /* One reference. Made by lowering without memory, so that tensors can look at it; binding gives it memory. Of a constant, its
       own; of a slot, that of the buffer it is part of. */
    struct storage *storage;
};

/* A group of the graph's table. */
struct plan_group {
    const char *name;
    const int *ranks; /* the list with this rank */
    size_t size;
    int rank; /* this one's place in it */
    shoal_group *group;
    bool is_ours; /* the plan's reference; otherwise captured */
    size_t comm_bytes;
    shoal_symmetric *symmetric; /* NULL: none needed, or the transport has none */
    char *comm;                 /* its memory, or ours */
    /* What members need at most: comm_bytes, and free_from of each gather. Binding takes the most of all members. */
    int64_t *needs;
    size_t n_needs;
    uint32_t n_collectives;
};

/*
 * A gather into a window. Steps between collectives may differ between ranks (shards of other sizes), so until when a window is
 * needed may, too: which window a gather has is decided from the latest of all members.
 */
struct plan_gather {
    uint32_t group;
    uint32_t collective;
    uint32_t window;
    size_t bytes;
    uint32_t ordinal;   /* among the gathers of its group */
    uint32_t free_from; /* the ordinal of the first gather that starts when this one has been released */
};

/* Gathers that follow each other may share one. */
struct plan_window {
    uint32_t group;
    size_t bytes;
    uint32_t free_from; /* of its last gather */
    shoal_window *window;
};

/* One collective of the plan: a start or a blocking call. */
struct plan_collective {
    const char *node;
    const char *unit; /* that the node belongs to; NULL: none */
    const shoal_op *op;
    uint32_t group;
    uint32_t ordinal; /* among those of its group, from 0: ranks compare it */
    uint32_t window;  /* PLAN_NONE: none */
    /* Without addresses, which are those of the tensors below. Counts stand in `pieces` (`single` is not filled in), or in
       `window_pieces`; arrays belong to the arena. */
    struct collective call;
    /* One for each piece, or window piece. No send: the piece is in place. No receive: this rank gets nothing (a reduction to
       another root). Of a window gather the receives are
       its results in the window, no more of them than pieces; NULL behind the last. */
    shoal_tensor **sends;
    shoal_tensor **receives;
    size_t n_pieces;
    /* Details and words, and which op it is, are filled in by lowering; which plan and ordinal, by binding. */
    struct purpose purpose;
    struct prepared *prepared;
};

enum plan_step_kind {
    PLAN_CALL,  /* a kernel */
    PLAN_START, /* a collective, which runs until its wait */
    PLAN_WAIT,
    PLAN_BLOCK,   /* a collective that has ended when the step has: its wait is dropped */
    PLAN_RELEASE, /* this rank has read what it needs of a window */
    /*
     * An op as shoal_op_call makes it (point to point): may allocate. Results are copied to outputs[], which waits for them, except
     * those that are arguments themselves (of a storage of theirs), and those without elements, so that a send does not wait. The
     * step of op wait_tensors stands for the wait: its one argument is the tensors that the start reads and gives, which must be
     * writable (tensor_wait_writable) before the next step.
     */
    PLAN_EAGER
};

struct plan_step {
    enum plan_step_kind kind;
    const char *node; /* name, for errors */
    const shoal_op *op;
    shoal_value *arguments; /* complete; tensors over buffers; a group is NULL, and put there by binding: */
    uint32_t group;         /* this one; PLAN_NONE: it has none */
    shoal_tensor **outputs;
    size_t n_outputs;
    size_t workspace_bytes;  /* of the kernel */
    size_t workspace_offset; /* in the pool */
    uint32_t collective;     /* of start, wait and blocking call: which */
    uint32_t window;         /* of a release, and of what: */
    uint32_t gather;
};

/* What an output of the graph is. */
struct plan_output {
    shoal_tensor *tensor; /* over its buffer; NULL: None */
    uint32_t buffer;
    /* Which storage of the graph it is, and what part of the buffer that has: a list may have got one buffer. */
    uint32_t storage;
    size_t offset;
    size_t bytes;
};

struct shoal_plan {
    struct arena arena; /* strings and arrays inside of steps, collectives and groups */
    shoal_world *world;
    uint64_t number; /* which plan of the world, counted on all ranks alike */
    struct plan_buffer *buffers;
    size_t n_buffers;
    struct plan_step *steps;
    size_t n_steps;
    struct plan_group *groups;
    size_t n_groups;
    struct plan_window *windows;
    size_t n_windows;
    struct plan_gather *gathers; /* in the order of their starts */
    size_t n_gathers;
    struct plan_collective *collectives;
    size_t n_collectives;
    struct plan_output *outputs; /* lists flattened */
    size_t n_outputs;
    uint32_t *inputs; /* buffer of each placeholder */
    size_t n_inputs;
    size_t pool_bytes;
    size_t output_bytes;
    size_t peak_bytes; /* of pool and outputs together, at the worst step */
    size_t n_copied_out;
    struct plan_binding *binding; /* graph/bind.h; NULL: not bound */
    shoal_tensor **tensors;       /* all that steps, collectives and outputs look at; one reference each */
    size_t n_tensors;
    size_t tensors_capacity;
    size_t buffers_capacity;
    size_t steps_capacity;
    size_t collectives_capacity;
    size_t windows_capacity;
};

/* Where a plan is to run. */
struct plan_target {
    int rank;    /* in the world */
    int n_ranks; /* of the world; 0: not known yet (shoal opt) */
    /* Whether windows can be made on a group of the graph, given by its row; NULL: on all. All its members say the same. */
    bool (*has_windows)(void *context, const struct graph_group *group);
    void *context;
};

/* An empty plan. */
shoal_status plan_make(struct shoal_plan **plan_out);
/* Tensors, storages and memory of the plan itself. What binding made has been freed before. NULL is allowed. */
void plan_destroy(struct shoal_plan *plan);

/*
 * Of a graph that lints; `options` are complete. The graph is not needed afterwards. Offsets are worked out (plan_place); groups,
 * windows, symmetric memory and works are NULL.
 */
shoal_status plan_lower(const shoal_graph *graph, const shoal_compile_options *options,
                        const struct plan_target *target, struct shoal_plan **plan_out);
/* Offsets for all buffers. Called by plan_lower. */
shoal_status plan_place(struct shoal_plan *plan, bool allows_reuse);
/* Takes comm_bytes and free_from from the groups' needs, and gives each gather its window. */
void plan_assign_windows(struct shoal_plan *plan);
/* The rules of graph/place.c for every pair of buffers, checked one by one: SHOAL_ERR_INTERNAL names a violation. For tests. */
shoal_status plan_check(const struct shoal_plan *plan);

#endif
