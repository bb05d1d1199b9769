/* SPDX-License-Identifier: MIT */
/*
 * What a plan has once it can run: memory under its storages, groups, shared memory and prepared collectives.
 *
 *   bind.c           makes it, together with the other ranks (compare.h), and frees it
 *   plan_outputs.c   tensors for the caller
 *   plan_overlap.c   inputs that share memory
 *   plan_run.c       runs
 *
 * Storages of buffers have memory objects that lie in one array and are never freed by them: the binding keeps a reference on each,
 * so that the address under the storage of an input can be changed in each run without an allocation.
 */
#ifndef GRAPH_BIND_H
#define GRAPH_BIND_H

#include "base/error.h"
#include "comm/owned.h"
#include "graph/plan.h"
#include "tensor/scope.h"

/* A placeholder. */
struct bound_input {
    const char *name;
    shoal_dtype dtype;
    struct layout layout;
    bool is_written;      /* by a step */
    uint32_t first_write; /* the first step that does; PLAN_NONE: none */
    uint64_t version; /* of the plan's storage, when the run began: eager steps count their writes there */
    /* Of a captured graph: what is in flight in `source` is in flight in `tensor`. One reference each; NULL: none. */
    shoal_tensor *tensor;
    shoal_tensor *source;
    const char *address; /* in the last run */
    /* The placeholder of `source`, or that of which this is the source: they share memory, and the order of steps was checked for it.
       PLAN_NONE: none. */
    uint32_t twin;
};

/* A piece of a collective whose address is that of an input. */
struct bound_piece {
    uint32_t collective;
    uint32_t piece;
};

/*
 * Outputs that look at one storage of the graph share a storage, which is not that of the steps: the caller may keep it. It lies over
 * the same bytes until the caller still has it when the next run begins; then it gets bytes of its own, and the plan makes another.
 */
struct bound_set {
    uint32_t buffer;
    size_t offset; /* there */
    size_t bytes;
    char *data;
    struct storage *storage; /* one reference, and one for each of its tensors; NULL: to be made */
    uint32_t n_tensors;
    uint32_t first; /* of its outputs */
};

enum output_kind {
    OUTPUT_NONE,
    OUTPUT_INPUT,      /* the caller's tensor itself */
    OUTPUT_INPUT_VIEW, /* a new view of it */
    OUTPUT_CONSTANT,   /* of the plan, for ever */
    OUTPUT_SET
};

struct bound_output {
    enum output_kind kind;
    uint32_t index;       /* of the input, or the set */
    uint32_t next;        /* output of the set; PLAN_NONE: the last */
    struct layout layout; /* over the set's storage */
    shoal_tensor *tensor; /* of a set, or, while it runs, a view: what the caller is given; one reference */
};

struct plan_binding {
    struct owned owned; /* first; ends with the world at the latest */
    bool is_owned;
    struct shoal_plan *plan;
    struct block *memory_block; /* in which the memories lie */
    struct memory *memories;    /* by buffer */
    char *pool;
    char *output;
    struct bound_input *inputs;
    uint32_t *by_address;       /* inputs */
    bool is_apart;              /* what is written of the inputs of the last run shared no memory */
    struct bound_piece *pieces; /* of inputs */
    size_t n_pieces;
    struct bound_set *sets;
    size_t n_sets;
    struct bound_output *outputs;
    uint32_t *n_held; /* by window: generations that were gathered and not released */
    bool has_eager;
    struct scope scope; /* while it runs */
    _Atomic bool is_running;
    shoal_status broken; /* it cannot run any more */
    char broken_text[ERROR_TEXT_BYTES];
};

/*
 * Collective on the groups of the graph. `lowered` is what became of lowering, with the thread's error text: what has failed here is
 * told to the others. On failure nothing is left of the binding. groups: by row of the graph, references that the plan takes over
 * on success; NULL where `lowered` is that it could not be made.
 */
shoal_status plan_bind(struct shoal_plan *plan, const shoal_graph *graph, shoal_world *world,
                       const shoal_compile_options *options, shoal_group *const *groups, size_t n_groups,
                       shoal_status lowered);
/* Waits for what is in flight. Outputs that the caller has get memory of their own. */
void plan_unbind(struct shoal_plan *plan);

/* Waits for what eager steps have left in flight on the plan's storages, and forgets it. The first failure to wait. */
shoal_status plan_end_fences(struct shoal_plan *plan);

/* Which output is what; local. */
shoal_status plan_find_outputs(struct shoal_plan *plan);
/* Tensors of outputs for the run that begins: new ones for those that the caller still has. */
shoal_status plan_renew_outputs(struct shoal_plan *plan);
/* References for the caller; of views of inputs, those that the binding has. */
void plan_give_outputs(struct shoal_plan *plan, shoal_tensor *const *inputs, shoal_tensor **outputs);
/* False: memory is still looked at by a tensor that could not be given its own. */
bool plan_end_outputs(struct shoal_plan *plan);

/* Once inputs have their addresses: SHOAL_ERR_INVALID, with their names, when what the plan writes lies in two of them, or one lies in
   the plan's memory. */
shoal_status plan_check_apart(struct shoal_plan *plan);

/* shoal_plan_run; has_begun_out: whether a step has run, so that other ranks may have met this one. It is set unless the plan is busy. */
shoal_status plan_run(struct shoal_plan *plan, shoal_tensor *const *inputs, size_t n_inputs,
                      shoal_tensor **outputs, size_t n_outputs, bool *has_begun_out);

/* Where a piece lies now. */
struct collective_piece plan_find_piece(const struct plan_collective *collective, size_t index);
/* The address of a buffer's first byte; NULL: of an input, or nothing yet. */
char *plan_address(const struct shoal_plan *plan, const struct plan_buffer *buffer);

#endif
