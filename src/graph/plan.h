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

#include "graph/arena.h"
#include "shoal/compile.h"
#include "shoal/op.h"
#include "shoal/window.h"
#include "tensor/tensor.h"
#include "transport/collective.h"
#include "transport/purpose.h"

struct prepared; /* comm/prepared.h */

#define PLAN_NONE UINT32_MAX

/* Where the bytes of a buffer are. */
enum plan_place {
    PLAN_INPUT,    /* the tensor of a placeholder: other memory in each run */
    PLAN_CONSTANT, /* the constant's own memory */
    PLAN_POOL,     /* memory of this rank: reused when a buffer's life is over */
    PLAN_OUTPUT,   /* memory of this rank that holds until the next run */
    PLAN_COMM,     /* symmetric memory of a group (or, where its transport has none, memory of this rank): peers read it */
    PLAN_WINDOW,   /* a window of a group: gathered once for all ranks of a host, only read */
    PLAN_SLOT      /* a part of another buffer: what is computed straight into its place in a bucket */
};

struct plan_buffer {
    enum plan_place place;
    uint32_t index;     /* of the placeholder, the group of comm memory, or the window; of a slot, the buffer it is part of */
    size_t offset;      /* in that area */
    size_t bytes;
    uint32_t first;     /* the step that writes it first; PLAN_NONE: it is there from the beginning */
    uint32_t last;      /* the last one that uses it; the number of steps: it is an output */
    uint32_t comm_id;   /* of comm memory: counts in the order of lowering, so it is the same on all ranks; from 1 */
    const char *name;   /* of the node whose storage it is */
    struct storage *storage; /* made when the plan is bound; one reference */
};

/* A group of the graph's table. */
struct plan_group {
    const char *name;
    const int *ranks; /* the list with this rank */
    size_t size;
    shoal_group *group;
    bool is_ours; /* the plan's reference; otherwise captured */
    size_t comm_bytes;
    shoal_symmetric *symmetric; /* NULL: none needed, or the transport has none */
    char *comm;                 /* its memory, or ours */
    uint32_t n_collectives;
};

/* Gathers that follow each other may share one. */
struct plan_window {
    uint32_t group;
    size_t bytes;
    shoal_window *window;
};

/* One collective of the plan: a start or a blocking call. */
struct plan_collective {
    const char *node;
    uint32_t group;
    uint32_t ordinal; /* among those of its group, from 0: ranks compare it */
    uint32_t window;  /* PLAN_NONE: none */
    struct collective call; /* without addresses, which are those of the tensors below */
    shoal_tensor **sends;   /* one for each piece, or window piece; NULL entries: the piece is in place */
    shoal_tensor **receives;
    size_t n_pieces;
    struct purpose purpose;
    struct prepared *prepared;
};

enum plan_step_kind {
    PLAN_CALL,    /* a kernel */
    PLAN_START,   /* a collective, which runs until its wait */
    PLAN_WAIT,
    PLAN_BLOCK,   /* a collective that has ended when the step has: its wait is dropped */
    PLAN_RELEASE, /* this rank has read what it needs of a window */
    PLAN_EAGER    /* an op as shoal_op_call makes it (point to point): may allocate; its results are copied to their buffers */
};

struct plan_step {
    enum plan_step_kind kind;
    const char *node; /* name, for errors */
    const shoal_op *op;
    shoal_value *arguments; /* complete; tensors over buffers */
    shoal_tensor **outputs;
    size_t n_outputs;
    size_t workspace_bytes; /* of the kernel */
    size_t workspace_offset; /* in the pool */
    uint32_t collective;    /* of start, wait and blocking call: which */
    uint32_t window;        /* of a release */
};

/* What an output of the graph is. */
struct plan_output {
    shoal_tensor *tensor; /* over its buffer; NULL: None */
    uint32_t buffer;
};

struct shoal_plan {
    struct arena arena; /* strings and arrays of the plan */
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
    bool is_bound;
    bool has_run;
};

/* Of a graph that lints; `options` are complete. The graph is not needed afterwards. */
shoal_status plan_lower(const shoal_graph *graph, const shoal_compile_options *options,
                        struct shoal_plan **plan_out);
/* Offsets for all buffers. Called by plan_lower. */
shoal_status plan_place(struct shoal_plan *plan, bool allows_reuse);
/* Collective: makes groups, shared memory, tensors and prepared works, and compares the sequence of collectives on each group. */
shoal_status plan_bind(struct shoal_plan *plan, shoal_world *world);
/* The rules of graph/place.c for every pair of buffers, checked one by one: SHOAL_ERR_INTERNAL names a violation. For tests. */
shoal_status plan_check(const struct shoal_plan *plan);

#endif
