/* SPDX-License-Identifier: MIT */
/*
 * The state of a capture, which these files share:
 *
 *   capture.c         shoal_capture, and the tracer that sees each call
 *   capture/values.c  finds the node of a tensor, and makes tensors with memory inputs of the graph
 *   capture/args.c    turns the arguments of a call into arguments of a node, and groups into rows of the table
 *   capture/flight.c  keeps track of starts, and adds the waits that the step does not make itself
 *   functionalize.c   captures in-place calls as calls that give new tensors, and adds copies into inputs at the end
 *   capture/undo.c    restores what the step changed outside the graph
 *
 * A storage is identified by its trace_id, never by its address. Its base is the node that gives the whole storage,
 * contiguous. The node of a tensor is looked up by storage, dtype and layout; a tensor that was not seen before is
 * captured as a view of the base. A write that is captured as a new tensor (functionalize.c) begins a new epoch of the
 * storage: another node becomes the base, and nodes of earlier epochs are not found any more. So the graph reads as if
 * the write made a new tensor, while all tensors of the step that share the storage, also those that autograd saved,
 * see the write.
 */
#ifndef GRAPH_CAPTURE_CAPTURE_H
#define GRAPH_CAPTURE_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/map.h"
#include "graph/ir/captured.h"
#include "graph/ir/graph.h"
#include "op/op.h"
#include "op/tracer.h"
#include "shoal/compile.h"
#include "tensor/tensor.h"

/* A value of a node. If the node gives a list, capture_take_out makes a node for the one tensor when it is used. */
struct capture_given {
    struct shoal_node *node;
    size_t index;
};

enum capture_origin {
    CAPTURE_MADE,     /* by a call of the step */
    CAPTURE_INPUT,    /* a placeholder: `node` */
    CAPTURE_CONSTANT, /* a constant: `node`, with a copy of memory that the step made a tensor from */
    CAPTURE_REBOUND,  /* a storage that was made to hold another value by op_capture.rebind */
    CAPTURE_RELEASED, /* the same, without a value */
    CAPTURE_GIVEN     /* an input of shoal_capture; the step gets a stand-in for it, and must not use it */
};

struct capture_storage {
    uint64_t id;
    uint32_t epoch;
    enum capture_origin origin;
    struct shoal_node *node;   /* of CAPTURE_INPUT and CAPTURE_CONSTANT */
    struct capture_given base; /* the whole storage in this epoch */
    /* The base must not be written in place: another storage has the same base, or it is a constant. */
    bool is_shared;
    size_t input;     /* index of the input (CAPTURE_GIVEN) or of the placeholder (CAPTURE_INPUT) */
    size_t n_flights; /* how many of capture.flights are on this storage */
};

/* A value in an epoch of its storage. */
struct capture_value {
    uint64_t id;
    uint32_t epoch;
    shoal_dtype dtype;
    struct layout layout;
    struct capture_given given;
};

/* A tensor that is in flight: a start gives or sends it, and has not been waited for. */
struct capture_flight {
    struct capture_given start;
    struct capture_value value; /* the tensor; `given` is not filled in */
    struct span span;
    bool is_read; /* the tensor is sent, so it may be read meanwhile */
};

/* A leaf whose gradient changed. */
struct capture_leaf {
    shoal_tensor *leaf;   /* one reference */
    shoal_tensor *before; /* its gradient before the step, one reference; NULL if there is none */
    bool was_averaged;    /* is_averaged of that gradient (tensor/tensor.h) */
};

/* The state of a storage with memory before the step used it. */
struct capture_memory {
    struct storage *storage; /* one reference */
    uint64_t version;
    bool has_history;
};

struct capture_end {
    void (*restore)(void *context);
    void *context;
};

struct capture {
    struct op_tracer tracer; /* must be first: its address is cast to that of the capture */
    struct shoal_graph *graph;
    struct scope *scope;  /* the outermost scope of the step */
    shoal_status lost;    /* why an op that ran is missing in the graph; SHOAL_OK: none is */
    shoal_status refused; /* op_capture.refuse was called, with this status; SHOAL_OK: it was not */
    char refused_text[ERROR_TEXT_BYTES];
    shoal_status failed; /* status of the first failure that op_capture.note_failure reported */
    char failed_text[ERROR_TEXT_BYTES]; /* its text */
    shoal_tensor *const *inputs;        /* the caller's tensors */
    shoal_tensor **stand_ins;           /* the tensors that the step gets for them, one reference each */
    size_t n_inputs;
    struct shoal_node *last_placeholder; /* NULL if there is none yet */

    struct capture_storage *storages;
    size_t n_storages;
    size_t storage_capacity;
    struct map storage_numbers; /* from ids to indices of `storages` */
    struct capture_value *values;
    size_t n_values;
    size_t value_capacity;
    struct map value_numbers;       /* from hashes to indices of `values` */
    struct capture_flight *flights; /* in the order of their starts */
    size_t n_flights;
    size_t flight_capacity;

    struct capture_leaf *leaves; /* in the order in which they were noted */
    size_t n_leaves;
    size_t leaf_capacity;
    const char **names; /* of storages, as modules call their tensors; in the graph's arena */
    size_t n_names;
    size_t name_capacity;
    struct map name_numbers; /* from trace ids of storages to indices of `names` */
    struct map noted_leaves; /* from tensors to indices of `leaves` */
    struct map noted_parts;  /* from tensors to indices of graph->captured->parts */
    struct map noted_asked;  /* from tensors to indices of graph->captured->asked */
    struct capture_memory *memories;
    size_t n_memories;
    size_t memory_capacity;
    shoal_tensor **written; /* tensors that had no history before the step wrote them; one reference each */
    size_t n_written;
    size_t written_capacity;
    struct capture_end *ends;
    size_t n_ends;
    size_t end_capacity;
};

/* shoal_capture for a compiled step: what op_capture.after_run adds is done after each run (captured_end_run). */
shoal_status capture_compiled(shoal_step_function step, void *context, shoal_tensor *const *inputs,
                              size_t n_inputs, size_t n_outputs, shoal_graph **graph_out);

/* capture/values.c ------------------------------------------------------------------------------------- */

/* Whether the tensor is its whole storage, contiguous. */
bool capture_is_whole(const shoal_tensor *tensor);

/* Returns the name of a tensor: its own, or what a module calls it if it covers its storage; "" if it has none. */
const char *capture_name_of(const struct capture *capture, const shoal_tensor *tensor);

/* Notes what a module calls a tensor, unless its storage has a name already. */
shoal_status capture_note_name(struct capture *capture, const shoal_tensor *tensor, const char *name);

/* Finds the storage of a tensor. If it is not known yet, adds a placeholder or a constant for it. A placeholder is
   called `name`, or like the tensor (capture_name_of) if that is NULL. The pointer is valid until the next storage is added. */
shoal_status capture_find_storage(struct capture *capture, shoal_tensor *tensor, const char *name,
                                  struct capture_storage **storage_out);

/* Notes that the step was told whether the tensor requires a gradient. Inputs of the step and tensors that it makes need
   not be noted. */
shoal_status capture_note_asked(struct capture *capture, shoal_tensor *tensor);

/* Finds a storage; NULL if it is not known. */
struct capture_storage *capture_known_storage(struct capture *capture, struct storage *storage);

/* Adds a storage that is not known yet. */
shoal_status capture_add_storage(struct capture *capture, struct storage *storage, enum capture_origin origin,
                                 struct shoal_node *node, struct capture_storage **storage_out);

/* Finds the node that gives the tensor as it is now, or adds one. */
shoal_status capture_find_node(struct capture *capture, shoal_tensor *tensor, struct shoal_node **node_out);

/* Finds the node that gives the whole storage. */
shoal_status capture_find_base(struct capture *capture, struct capture_storage *storage,
                               struct shoal_node **node_out);

/* Like capture_find_base, in another dtype, if need be as a view in one dimension. The storage must be a whole number
   of elements of that dtype. */
shoal_status capture_find_base_as(struct capture *capture, struct capture_storage *storage, shoal_dtype dtype,
                                  struct shoal_node **node_out);

/* Begins a new epoch in which the value of `node`, which is contiguous, is the whole storage. */
void capture_replace_base(struct capture_storage *storage, struct shoal_node *node);

/* Begins a new epoch of the tensor's storage, which the tensor covers; `given` is its value from now on. */
shoal_status capture_begin_epoch(struct capture *capture, shoal_tensor *tensor, struct capture_given given);

/* Notes that a call gave the tensor. Adds its storage if that is new. */
shoal_status capture_add_result(struct capture *capture, shoal_tensor *tensor, struct capture_given given);

/* Like capture_add_result, for a value of a storage that is known. */
shoal_status capture_set_result(struct capture *capture, struct capture_storage *storage,
                                const struct capture_value *value, struct capture_given given);

/* Describes a tensor of the storage; `given` is not filled in. */
struct capture_value capture_value_of(const struct capture_storage *storage, const shoal_tensor *tensor);
struct capture_storage *capture_storage_of(struct capture *capture, const struct capture_value *value);

/* If the node of `given` gives a list, replaces it by a new node for the one tensor. */
shoal_status capture_take_out(struct capture *capture, struct capture_given *given);

/* Adds a placeholder after the existing ones. `tensor` and `source` may be NULL. */
shoal_status capture_add_placeholder(struct capture *capture, const char *name, const shoal_tensor *like,
                                     shoal_tensor *tensor, shoal_tensor *source,
                                     struct shoal_node **node_out);

/* Removes placeholders without users at the end of the capture. Those of the step's inputs stay. */
void capture_drop_unused(struct capture *capture);

void capture_free_values(struct capture *capture);

/* capture/args.c --------------------------------------------------------------------------------------- */

/* Makes arguments of a node from those of a call. Lists live in the innermost scope. */
shoal_status capture_make_args(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                               shoal_arg args[OP_MAX_PARAMS]);

/* capture/flight.c ------------------------------------------------------------------------------------- */

/* Call these after a call was captured: they note what it has started, and what it has waited for. */
shoal_status capture_note_start(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                                struct shoal_node *node, const shoal_value *result);
void capture_note_wait(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                       const shoal_arg *args);

/* Whether batch_p2p_ops receives the tensor of that index; otherwise it sends it. */
bool capture_is_received(const shoal_value *arguments, size_t index);

/* Call before a wait that the step makes. If it waits for only a part of a start's result, the graph waits for all of
   it, *is_done_out is true, and the step's own wait is not captured. */
shoal_status capture_wait_whole(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                                bool *is_done_out);

/* Adds waits for what is in flight in the bytes of a tensor, before it is read or written. Before a write, sends are
   waited for, too. */
shoal_status capture_settle(struct capture *capture, const shoal_tensor *tensor, bool is_written);
/* Calls capture_settle for all tensors that a call reads and writes. Views and waits do neither. */
shoal_status capture_settle_arguments(struct capture *capture, const shoal_op *op,
                                      const shoal_value *arguments);
/* Adds waits for everything that is in flight, at the end of the step. */
shoal_status capture_settle_all(struct capture *capture);

/* functionalize.c -------------------------------------------------------------------------------------- */

/* Call before an in-place call is captured. Checks that the memory may be written, and notes what has to be
   restored. */
shoal_status capture_check_written(struct capture *capture, const shoal_op *op, const shoal_value *arguments);

/* Adds the nodes of an in-place call, and notes the new values of the tensors that it writes. */
shoal_status capture_add_write(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                               const shoal_arg *args, const shoal_value *result);

/* Like capture_check_written, for the tensors that batch_p2p_ops receives: it writes them, but is no in-place op. */
shoal_status capture_check_received(struct capture *capture, const shoal_op *op,
                                    const shoal_value *arguments);

/* At the end of the step, adds a copy_ into each input that has a new value. */
shoal_status capture_copy_back(struct capture *capture);

/* capture/undo.c --------------------------------------------------------------------------------------- */

/* Whether a scope of the step owns the tensor. */
bool capture_is_inside(const struct capture *capture, const shoal_tensor *tensor);

/* Notes the state of a storage, so that capture_undo can restore it. So do capture_note_written and capture_note_leaf
   for tensors and leaves; capture_at_end adds any other function that restores something. */
shoal_status capture_note_memory(struct capture *capture, struct storage *storage);
/* Whether the step has written a storage that was noted by capture_note_memory. */
bool capture_has_written(const struct capture *capture, const struct storage *storage);
shoal_status capture_note_written(struct capture *capture, shoal_tensor *tensor);
shoal_status capture_note_leaf(struct capture *capture, shoal_tensor *leaf);
shoal_status capture_at_end(struct capture *capture, void (*restore)(void *context), void *context);

/* Restores everything that was noted, and forgets it. */
void capture_undo(struct capture *capture);

#endif
