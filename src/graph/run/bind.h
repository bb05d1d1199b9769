/* SPDX-License-Identifier: MIT */
/*
 * What a plan needs to run: memory for its storages, groups, shared memory and prepared collectives.
 *
 *   bind.c           makes it, together with the other ranks (compare.h), and frees it
 *   plan_outputs.c   makes the tensors that the caller gets
 *   plan_overlap.c   refuses inputs that share memory
 *   plan_run.c       runs the plan
 *
 * The memory objects of all buffers lie in one array. The binding keeps a reference to each, so they stay when storages
 * drop theirs, and each run can put another address under the storage of an input without an allocation.
 */
#ifndef GRAPH_RUN_BIND_H
#define GRAPH_RUN_BIND_H

#include "base/error.h"
#include "comm/group/owned.h"
#include "graph/plan/plan.h"
#include "tensor/scope.h"

/* A placeholder. */
struct bound_input {
    const char *name;
    shoal_dtype dtype;
    struct layout layout;
    bool is_written;      /* by a step */
    uint32_t first_write; /* the first step that writes it; 0 if a collective writes it; only if is_written */
    uint64_t version;     /* of the plan's storage when the run began; eager steps count their writes there */
    /* Of a captured graph: before `tensor` is used, whatever is in flight in `source`, which lies in the same memory,
       must have ended. One reference each; NULL if there is none. */
    shoal_tensor *tensor;
    shoal_tensor *source;
    const char *address; /* in the last run */
    /* The placeholder of `source`, or the one whose source this is: the two share memory, and binding has checked that
       the order of steps allows it. It is PLAN_NONE if there is none. */
    uint32_t twin;
};

/* A piece of a collective that lies in an input: its address is set in each run. */
struct bound_piece {
    uint32_t collective;
    uint32_t piece;
};

/*
 * A set: the outputs that lie in one storage of the graph. They share a storage, which is not the one that steps use,
 * because the caller may keep it. Both have the same memory. If the caller still has an output of the set when the next
 * run begins, the set's storage gets memory of its own, and the plan makes a new storage.
 */
struct bound_set {
    uint32_t buffer;
    size_t offset; /* in the buffer */
    size_t bytes;
    char *data;
    /* One reference, and one for each of its tensors; NULL if it has yet to be made. */
    struct storage *storage;
    uint32_t n_tensors;
    uint32_t first; /* its first output; bound_output.next leads to the others */
};

enum output_kind {
    OUTPUT_NONE,
    OUTPUT_INPUT,      /* an input of the caller */
    OUTPUT_INPUT_VIEW, /* a new view of an input */
    OUTPUT_CONSTANT,   /* a constant of the plan */
    OUTPUT_SET         /* a tensor of a set */
};

struct bound_output {
    enum output_kind kind;
    uint32_t index;       /* of the input, or of the set */
    uint32_t next;        /* the next output of the set; PLAN_NONE for the last one */
    struct layout layout; /* over the set's storage, or over the input */
    shoal_tensor *tensor; /* the tensor for the caller: of a set, or, during a run, a view; one reference */
};

struct plan_binding {
    struct owned owned; /* must be first; the world ends the binding when it is closed */
    struct scope scope; /* of the run */
    struct shoal_plan *plan;
    struct block *memory_block; /* which holds the memories */
    struct memory *memories;    /* by buffer */
    char *pool;
    char *output;
    struct bound_input *inputs;
    uint32_t *by_address;       /* indices of inputs, sorted by address */
    struct bound_piece *pieces; /* that lie in inputs */
    size_t n_pieces;
    struct bound_set *sets;
    size_t n_sets;
    struct bound_output *outputs;
    uint32_t *n_held; /* by window: generations that were gathered and not released */
    bool is_owned;
    bool is_apart; /* the inputs of the last run passed plan_check_apart */
    bool has_eager;
    _Atomic bool is_running;
    shoal_status broken; /* not SHOAL_OK: the plan cannot run any more */
    char broken_text[ERROR_TEXT_BYTES];
};

/*
 * Binds a plan. Collective over the groups of the graph. `lowered` is the status of lowering, with the thread's error
 * text: call this even if lowering failed, so that the other ranks are told. groups: one for each row of the graph's
 * table; the plan takes references. An entry is NULL if that group could not be made, and `lowered` is the reason.
 * After a failure the caller frees the plan (plan_unbind, plan_destroy).
 */
shoal_status plan_bind(struct shoal_plan *plan, const shoal_graph *graph, shoal_world *world,
                       const shoal_compile_options *options, shoal_group *const *groups, size_t n_groups,
                       shoal_status lowered);
/* Frees what plan_bind made, after waiting for what is in flight. Outputs that the caller still has get memory of their
   own. */
void plan_unbind(struct shoal_plan *plan);

/* Waits for what eager steps have left in flight on the plan's storages. Returns the first failure to wait. */
shoal_status plan_end_fences(struct shoal_plan *plan);

/* Finds the kind of each output, and the sets. Local. */
shoal_status plan_find_outputs(struct shoal_plan *plan);
/* Makes the tensors of outputs for the run that begins; those that the caller does not have any more are used again. */
shoal_status plan_renew_outputs(struct shoal_plan *plan);
/* Whether these bytes lie in memory of the plan in which outputs were given out. */
bool plan_has_given_out(const struct shoal_plan *plan, const void *data, size_t bytes);
/* Fills in the caller's outputs, a reference each. Views of inputs pass from the binding to the caller. */
void plan_give_outputs(struct shoal_plan *plan, shoal_tensor *const *inputs, shoal_tensor **outputs);
/* Frees the tensors of outputs. Returns false if the caller has one that could not get memory of its own, so the plan's
   memory cannot be freed. */
bool plan_end_outputs(struct shoal_plan *plan);

/* Call when inputs have their addresses. SHOAL_ERR_INVALID, with the names: an input that the plan writes shares memory
   with another one, or an input lies in the plan's own memory. */
shoal_status plan_check_apart(struct shoal_plan *plan);

/* shoal_plan_run. *has_begun_out: whether the first step was reached, so that other ranks may have met this one. It is
   not set if the plan is busy. */
shoal_status plan_run(struct shoal_plan *plan, shoal_tensor *const *inputs, size_t n_inputs,
                      shoal_tensor **outputs, size_t n_outputs, bool *has_begun_out);

/* Returns the current addresses of a piece. */
struct collective_piece plan_find_piece(const struct plan_collective *collective, size_t index);
/* Returns the address of a buffer; NULL for inputs and constants. */
char *plan_address(const struct shoal_plan *plan, const struct plan_buffer *buffer);

#endif
