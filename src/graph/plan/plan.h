/* SPDX-License-Identifier: MIT */
/*
 * A plan is what a graph is lowered to: buffers with fixed places in memory, and steps in order.
 *
 *   lowering    graph -> buffers and steps          graph/lower/, rows in lowerings.def
 *   placing     buffers -> offsets in areas         graph/plan/place.c: nothing in flight shares bytes with anything else
 *   binding     areas -> memory, prepared calls     graph/run/bind.c: once; ranks make shared memory together
 *   running     steps, one after the other          graph/run/plan_run.c: allocates nothing
 *
 * Each storage of the graph becomes a buffer. The life of a buffer is from the step that writes it first to the last
 * step that uses it. A wait uses what its start reads and writes, so whatever is in flight lives until its wait. Views
 * are tensors over the buffer.
 */
#ifndef GRAPH_PLAN_PLAN_H
#define GRAPH_PLAN_PLAN_H

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

struct graph_group; /* graph/ir/graph.h */
struct plan_binding;
struct prepared; /* comm/call/prepared.h */

#define PLAN_NONE UINT32_MAX

/* Where the bytes of a buffer are. */
enum plan_place {
    PLAN_INPUT,    /* in the input tensor of a placeholder: other memory in each run */
    PLAN_CONSTANT, /* in the constant's own memory */
    PLAN_POOL,     /* in memory of this rank that is reused when a buffer's life is over */
    PLAN_OUTPUT,   /* in memory of this rank that is valid until the next run */
    /* In comm memory: symmetric memory of a group, which peers read directly. If its transport has none, memory of this
       rank. */
    PLAN_COMM,
    PLAN_WINDOW, /* in a window of a group, which is gathered once per host and only read */
    PLAN_SLOT /* in a part of another buffer: a value that is computed directly into its place in a bucket */
};

struct plan_buffer {
    enum plan_place place;
    /* Which placeholder, which group (PLAN_COMM), which window; of a slot, the buffer that it is a part of. */
    uint32_t index;
    size_t offset; /* in that area */
    size_t bytes;
    uint32_t first;   /* the first step that touches it; PLAN_NONE if it exists before the first step */
    uint32_t last;    /* the last step that uses it; the number of steps: it is an output */
    uint32_t comm_id; /* with PLAN_COMM: counts such buffers from 1, in the order of lowering */
    uint32_t gather;  /* with PLAN_WINDOW: the gather whose result it is */
    const char *name; /* of the node that creates it */
    /* One reference. Lowering makes it without memory, for tensors to refer to; binding gives it memory. A constant has
       its own storage; a slot has that of the buffer that it is a part of. */
    struct storage *storage;
};

/* A group of the graph's table. */
struct plan_group {
    const char *name;
    const int *ranks; /* the list that this rank is in */
    size_t size;
    int rank; /* the index of this rank in it */
    shoal_group *group;
    bool is_ours; /* the plan holds a reference to `group` */
    size_t comm_bytes;
    shoal_symmetric *symmetric; /* NULL if it is not needed, or the transport has none */
    char *comm;                 /* the comm memory of this rank */
    /* What this rank needs of the group: comm_bytes, then free_from of each gather. Binding replaces each number by the
       largest among all members. */
    int64_t *needs;
    size_t n_needs;
    uint32_t n_collectives;
};

/*
 * A gather into a window. Steps between collectives may differ between ranks (if shards differ in size), and so may the
 * last use of a window. A window is therefore assigned by the latest use among all members.
 */
struct plan_gather {
    uint32_t group;
    uint32_t collective;
    uint32_t window;
    size_t bytes;
    uint32_t ordinal;   /* among the gathers of its group */
    uint32_t free_from; /* the ordinal of the first gather that starts after this one was released */
};

/* A window. Gathers that do not need it at the same time share it. */
struct plan_window {
    uint32_t group;
    size_t bytes;
    uint32_t free_from; /* of its last gather */
    shoal_window *window;
};

/* One collective of the plan: a start or a blocking call. */
struct plan_collective {
    const char *node;
    const char *unit; /* the FSDP unit that the node belongs to; NULL if it belongs to none */
    const shoal_op *op;
    uint32_t group;
    uint32_t ordinal; /* counts the collectives of the group, from 0; ranks compare it */
    uint32_t window;  /* PLAN_NONE if there is none */
    /* The call without addresses, which come from the tensors below. Counts are in `pieces` (`single` is not filled in)
       or in `window_pieces`; the arrays belong to the arena. */
    struct collective call;
    /* One for each piece, or window piece. If a send is NULL, the piece is in place. If a receive is NULL, this rank
       gets nothing (a reduction to another root). The receives of a window gather are its results in the window: there
       may be fewer than pieces, and the others are NULL. */
    shoal_tensor **sends;
    shoal_tensor **receives;
    size_t n_pieces;
    /* Lowering fills in details, words and the op; binding the numbers of plan and collective. */
    struct purpose purpose;
    struct prepared *prepared;
};

enum plan_step_kind {
    PLAN_CALL,  /* a kernel */
    PLAN_START, /* starts a collective, which runs until its wait */
    PLAN_WAIT,
    PLAN_BLOCK,   /* a blocking collective, which needs no wait */
    PLAN_RELEASE, /* this rank has read what it needs of a window */
    /*
     * A call by shoal_op_call, for point-to-point ops and others that cannot become a collective of the plan; it may
     * allocate. The step waits for the results and copies them to outputs[]. It does neither for results that lie in
     * the storage of an argument, and for results without elements, so a send does not wait. An eager step of op
     * wait_tensors is the wait: its argument is the list of tensors that the start takes and gives, and it waits until
     * all of them may be written.
     */
    PLAN_EAGER
};

struct plan_step {
    enum plan_step_kind kind;
    const char *node; /* name, for errors */
    const shoal_op *op;
    shoal_value *arguments; /* complete, with tensors over buffers; binding fills in groups */
    uint32_t group;         /* the group among the arguments; PLAN_NONE if there is none */
    shoal_tensor **outputs;
    size_t n_outputs;
    size_t workspace_bytes;  /* scratch memory of the kernel */
    size_t workspace_offset; /* in the pool */
    uint32_t collective;     /* for PLAN_START, PLAN_WAIT and PLAN_BLOCK */
    uint32_t window;         /* for PLAN_RELEASE: the window that is released */
    uint32_t gather;         /* for PLAN_RELEASE: the gather whose results were read */
};

/* An output of the graph. */
struct plan_output {
    shoal_tensor *tensor; /* over its buffer; NULL for an absent output */
    uint32_t buffer;
    /* The storage of the graph that it lies in, and which part of the buffer this storage is: several storages may have
       one buffer. */
    uint32_t storage;
    size_t offset;
    size_t bytes;
};

struct shoal_plan {
    struct arena arena; /* strings and arrays inside of steps, collectives and groups */
    shoal_world *world;
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
    uint32_t *inputs; /* the buffer of each placeholder */
    size_t n_inputs;
    size_t pool_bytes;
    size_t output_bytes;
    size_t peak_bytes; /* of pool and outputs together, at the worst step */
    size_t n_copied_out;
    struct plan_binding *binding; /* graph/run/bind.h; NULL if the plan is not bound */
    shoal_tensor **tensors;       /* all tensors of steps, collectives and outputs; one reference each */
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
    int n_ranks; /* of the world; 0 if it is not known yet (shoal opt) */
    /* Whether a group of the graph can have windows; the same on all its members. NULL means that all groups can. */
    bool (*has_windows)(void *context, const struct graph_group *group);
    void *context;
};

/* Makes an empty plan. */
shoal_status plan_make(struct shoal_plan **plan_out);
/* Frees a plan. Call plan_unbind first. NULL is allowed. */
void plan_destroy(struct shoal_plan *plan);

/*
 * Lowers a graph that passes shoal_graph_lint. `options` must be complete. The graph is not needed afterwards. Offsets
 * are computed (plan_place). Groups, windows, symmetric memory and prepared collectives are NULL until plan_bind.
 */
shoal_status plan_lower(const shoal_graph *graph, const shoal_compile_options *options,
                        const struct plan_target *target, struct shoal_plan **plan_out);
/* Computes the offsets of all buffers. plan_lower calls it. */
shoal_status plan_place(struct shoal_plan *plan, bool allows_reuse);
/* Takes comm_bytes and free_from from the needs of groups, and assigns a window to each gather. */
void plan_assign_windows(struct shoal_plan *plan);

#endif
