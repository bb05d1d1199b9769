/* SPDX-License-Identifier: MIT */
/*
 * A capture that is running, seen by its parts:
 *
 *   capture.c         shoal_capture, and the tracer that sees each call
 *   capture_values.c  which node a tensor is: identity of storages and values, tensors with memory that become inputs
 *   capture_args.c    boxed arguments as arguments of nodes, groups as rows of the table
 *   capture_flight.c  starts that nobody has waited for, and where the graph waits for them
 *   functionalize.c   in-place calls as out-of-place ones, and copies into inputs at the end
 *   capture_undo.c    what the step changed outside the graph, put back
 *
 * A storage is known by its trace_id, never by its address. It has a base: the node that gives all of it, contiguous. A value of it
 * is found by dtype and layout; one that was not met yet is a view of the base. A write of the whole storage begins a new epoch:
 * another node becomes the base, and values of older epochs are not found any more. So a graph reads as if each tensor had been
 * computed anew, while tensors, views of them and what autograd saved keep meaning the memory they share.
 */
#ifndef GRAPH_CAPTURE_H
#define GRAPH_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "graph/capture_table.h"
#include "graph/captured.h"
#include "graph/graph.h"
#include "op/op.h"
#include "op/tracer.h"
#include "tensor/tensor.h"

/* What a node gives, or one tensor of the list that it gives: taken out of it when somebody wants it. */
struct capture_given {
    struct shoal_node *node;
    size_t index;
};

enum capture_origin {
    CAPTURE_MADE,     /* by a call of the step */
    CAPTURE_INPUT,    /* a placeholder: `node` */
    CAPTURE_CONSTANT, /* made from memory by the step: `node`, with a copy */
    CAPTURE_REBOUND,  /* a storage that was said to hold another value */
    CAPTURE_GIVEN     /* of a tensor that was given to shoal_capture: the step has another one in its place */
};

struct capture_storage {
    uint64_t id;
    uint32_t epoch;
    enum capture_origin origin;
    struct shoal_node *node;   /* see above */
    struct capture_given base; /* what all of it is in this epoch */
    bool is_shared;   /* another storage has the same base, or it is a constant: it is not written in place */
    size_t input;     /* which of those given to shoal_capture, or of the placeholders */
    size_t n_flights; /* of capture.flights */
};

/* A value in an epoch of its storage. */
struct capture_value {
    uint64_t id;
    uint32_t epoch;
    shoal_dtype dtype;
    struct layout layout;
    struct capture_given given;
};

/* What a start gives, or sends, until it is waited for. */
struct capture_flight {
    struct capture_given start;
    struct capture_value value; /* what is on its way, or what is sent; without a node */
    struct span span;
    bool is_read; /* it is sent: it may be read */
};

/* A leaf whose gradient changed. */
struct capture_leaf {
    shoal_tensor *leaf;   /* one reference, */
    shoal_tensor *before; /* one reference: its gradient when it was noted; NULL: none */
    bool was_averaged;    /* that gradient (tensor/tensor.h) */
};

/* A storage with memory, as it was. */
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
    struct op_tracer tracer; /* first: a tracer's address is the capture's */
    struct shoal_graph *graph;
    struct scope *scope; /* the outermost one of the step */
    shoal_status lost;   /* why a call that was made is not in the graph; SHOAL_OK: all of them are */
    shoal_status failed; /* of the first call that failed, if it was no op, */
    char failed_text[ERROR_TEXT_BYTES]; /* with its text */
    shoal_tensor *const *inputs;        /* the caller's, */
    shoal_tensor **stand_ins;           /* and what the step gets, one reference each */
    size_t n_inputs;
    struct shoal_node *last_placeholder; /* NULL: none yet */

    struct capture_storage *storages;
    size_t n_storages;
    size_t storage_capacity;
    struct capture_table storage_table;
    struct capture_value *values;
    size_t n_values;
    size_t value_capacity;
    struct capture_table value_table;
    struct capture_flight *flights; /* in the order of their starts */
    size_t n_flights;
    size_t flight_capacity;

    struct capture_leaf *leaves; /* in the order in which they were noted */
    size_t n_leaves;
    size_t leaf_capacity;
    struct capture_table leaf_table;
    struct capture_table part_table; /* of graph->captured->parts */
    struct capture_memory *memories;
    size_t n_memories;
    size_t memory_capacity;
    shoal_tensor **written; /* without history when they were written first; one reference each */
    size_t n_written;
    size_t written_capacity;
    struct capture_end *ends;
    size_t n_ends;
    size_t end_capacity;
};

/* capture_values.c ------------------------------------------------------------------------------------- */

/* All of its storage, in order. */
bool capture_is_whole(const shoal_tensor *tensor);

/* The storage of the tensor: known, or lifted, which makes a placeholder or a constant. `name` of a placeholder; NULL: the tensor's
   own. It holds until the next one is added. */
shoal_status capture_find_storage(struct capture *capture, shoal_tensor *tensor, const char *name,
                                  struct capture_storage **storage_out);

/* NULL when it is not known. */
struct capture_storage *capture_known_storage(struct capture *capture, struct storage *storage);

/* A storage that is not known yet. */
shoal_status capture_add_storage(struct capture *capture, struct storage *storage, enum capture_origin origin,
                                 struct shoal_node *node, struct capture_storage **storage_out);

/* The node that gives the tensor, as it is now. */
shoal_status capture_find_node(struct capture *capture, shoal_tensor *tensor, struct shoal_node **node_out);

/* The node that gives all of the storage. */
shoal_status capture_find_base(struct capture *capture, struct capture_storage *storage,
                               struct shoal_node **node_out);

/* The same as elements of a dtype, of which the storage is a whole number: the base, or a view of it in one dimension. */
shoal_status capture_find_base_as(struct capture *capture, struct capture_storage *storage, shoal_dtype dtype,
                                  struct shoal_node **node_out);

/* From now on all of the storage is what a node gives, contiguous. */
void capture_replace_base(struct capture_storage *storage, struct shoal_node *node);

/* From now on the tensor, which covers its storage, is what a node gives. */
shoal_status capture_begin_epoch(struct capture *capture, shoal_tensor *tensor, struct capture_given given);

/* A tensor that a call gave. */
shoal_status capture_add_result(struct capture *capture, shoal_tensor *tensor, struct capture_given given);

/* The same of a value of a storage that is known. */
shoal_status capture_set_result(struct capture *capture, struct capture_storage *storage,
                                const struct capture_value *value, struct capture_given given);

/* What a tensor of the storage is, without the node. */
struct capture_value capture_value_of(const struct capture_storage *storage, const shoal_tensor *tensor);
struct capture_storage *capture_storage_of(struct capture *capture, const struct capture_value *value);

/* One tensor of a list, as a node of its own. */
shoal_status capture_take_out(struct capture *capture, struct capture_given *given);

/* A placeholder behind those that are there. `tensor` and `source` may be NULL. */
shoal_status capture_add_placeholder(struct capture *capture, const char *name, const shoal_tensor *like,
                                     shoal_tensor *tensor, shoal_tensor *source,
                                     struct shoal_node **node_out);

/* At the end: placeholders of tensors that nobody uses. */
void capture_drop_unused(struct capture *capture);

void capture_free_values(struct capture *capture);

/* capture_args.c --------------------------------------------------------------------------------------- */

/* Arguments of a node for those of a call. Lists live in the innermost scope. */
shoal_status capture_make_args(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                               shoal_arg args[OP_MAX_PARAMS]);

/* capture_flight.c ------------------------------------------------------------------------------------- */

/* After a call: if it starts something, that is in flight; if it waits, that is not any more. */
shoal_status capture_note_start(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                                struct shoal_node *node, const shoal_value *result);
void capture_note_wait(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                       const shoal_arg *args);

/* Whether a batch receives the tensor of that index. */
bool capture_is_received(const shoal_value *arguments, size_t index);

/* Before a wait of the step's own: for a part of what a start gives the graph waits for all of it. Then the call is done. */
shoal_status capture_wait_whole(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                                bool *is_done_out);

/* Waits for what is in flight in the bytes of a tensor: before it is read, or written, which sends are waited for too. */
shoal_status capture_settle(struct capture *capture, const shoal_tensor *tensor, bool is_written);
/* The same for all that a call reads and writes; views and waits do neither. */
shoal_status capture_settle_arguments(struct capture *capture, const shoal_op *op,
                                      const shoal_value *arguments);
/* At the end: whatever is left. */
shoal_status capture_settle_all(struct capture *capture);

/* functionalize.c -------------------------------------------------------------------------------------- */

/* Before an in-place call: what it writes may be written, and can be put back. */
shoal_status capture_check_written(struct capture *capture, const shoal_op *op, const shoal_value *arguments);

/* The node of an in-place call, and what its tensors are from now on. */
shoal_status capture_add_write(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                               const shoal_arg *args, const shoal_value *result);

/* The same for a batch that receives: it writes some of its tensors in place, and is no in-place op. */
shoal_status capture_check_received(struct capture *capture, const shoal_op *op,
                                    const shoal_value *arguments);

/* At the end: what was written into inputs goes there. */
shoal_status capture_copy_back(struct capture *capture);

/* capture_undo.c --------------------------------------------------------------------------------------- */

/* Whether a scope of the step owns the tensor. */
bool capture_is_inside(const struct capture *capture, const shoal_tensor *tensor);

shoal_status capture_note_memory(struct capture *capture, struct storage *storage);
/* Whether the step has written memory that was there before it. */
bool capture_has_written(const struct capture *capture, const struct storage *storage);
shoal_status capture_note_written(struct capture *capture, shoal_tensor *tensor);
shoal_status capture_note_leaf(struct capture *capture, shoal_tensor *leaf);
shoal_status capture_at_end(struct capture *capture, void (*restore)(void *context), void *context);

/* Puts everything back, and forgets it. */
void capture_undo(struct capture *capture);

#endif
