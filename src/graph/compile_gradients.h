/* SPDX-License-Identifier: MIT */
/*
 * Gradients of a compiled step. A step that adds to gradients is another graph than one that makes them. So a
 * variant can only run if the same leaves have gradients as when it was captured, and these share storages in the
 * same way. The gradients themselves are not kept: each run takes those that the leaves have.
 *
 * The graph also contains where a gradient lies in its storage, but a change of that is no reason to compile again:
 * with uneven shards it happens on some ranks and not on others. A gradient that lies elsewhere is copied to where
 * the graph has it, and back.
 */
#ifndef GRAPH_COMPILE_GRADIENTS_H
#define GRAPH_COMPILE_GRADIENTS_H

#include "graph/captured.h"
#include "graph/storage_map.h"
#include "tensor/tensor.h"

/* A leaf whose gradient the step changes. */
struct gradient {
    /* The graph's reference; NULL for an input of the step, which is another one in each run: */
    shoal_tensor *leaf;
    size_t given; /* that input; CAPTURED_NONE: none */
    /* The gradient that it had is this placeholder, and is read or added to; SIZE_MAX: it is not. */
    size_t input;
    size_t sharer;        /* the first gradient in the same memory, if that is a placeholder; or itself */
    size_t output;        /* the new gradient is this output; SIZE_MAX: it is written in place, or removed */
    bool is_added_to;     /* in place, */
    bool is_kept;         /* but by nobody: nothing happens to it */
    bool is_averaged;     /* afterwards (tensor/tensor.h) */
    bool had_gradient;    /* before the step; then: */
    shoal_dtype dtype;    /* its own, */
    struct layout layout; /* likewise, in the graph, */
    size_t bytes;         /* of its storage there, */
    /* that storage itself, where the step uses other tensors there, such as parameters: the placeholder is bound to
       it. NULL: any, */
    const struct storage *place;
    shoal_dtype whole_dtype;    /* and, as a placeholder, */
    struct layout whole_layout; /* how that takes it, */
    shoal_tensor *whole;        /* and that storage as the placeholder takes it, in a run; one reference */
    bool is_moved;              /* of a sharer: one in this memory lies elsewhere now; then: */
    struct storage *stand_in;   /* of a sharer: what the placeholder is in a run; one reference */
    uint64_t version;           /* of the stand-in before the run */
    shoal_tensor *copy;         /* the gradient there; one reference */
};

/* Bytes of a gradient in the memory of a sharer. */
struct gradient_span {
    size_t sharer;
    size_t first;
    size_t end;
};

/* All zero is none. */
struct compile_gradients {
    struct gradient *rows;
    size_t count;
    struct storage_map sharers;  /* of those that are placeholders: the first in each storage */
    struct gradient_span *spans; /* room for one of each */
    bool are_apart;              /* in the graph: no two of them have a byte in common */
};

/* Those of a captured graph. Gradients that were there, and inputs of the step that are leaves, are no longer kept
   by it. */
shoal_status compile_gradients_find(struct compile_gradients *gradients, struct captured *captured);
void compile_gradients_free(struct compile_gradients *gradients);

/* The leaf of a run with those inputs. */
static inline shoal_tensor *gradient_leaf(const struct gradient *gradient, shoal_tensor *const *inputs)
{
    return gradient->given == CAPTURED_NONE ? gradient->leaf : inputs[gradient->given];
}

/* A gradient is there that was not, or the other way round, or shares memory in another way; NULL: all are as they
   were. It notes those that have moved, for the run that comes next. */
const struct gradient *compile_gradients_find_other(struct compile_gradients *gradients,
                                                    shoal_tensor *const *inputs);

/* Whether it has noted any. */
bool compile_gradients_have_moved(const struct compile_gradients *gradients);

/* Puts those of the leaves among the placeholders. `given`: inputs of the step. They are held until
   compile_gradients_let_go. */
shoal_status compile_gradients_take(struct compile_gradients *gradients, shoal_tensor *const *given,
                                    shoal_tensor **inputs);
void compile_gradients_let_go(struct compile_gradients *gradients);

/* After a run that went well, while they are held: gradients that have moved get what the plan has written into
   their copies, and outputs that lie in a copy become views of the gradient. */
shoal_status compile_gradients_give_back(struct compile_gradients *gradients, shoal_tensor *const *given,
                                         shoal_tensor **outputs, size_t n_outputs);

/* After a run: an output that is an input becomes a view of it, as shoal_set_grad keeps one. */
shoal_status compile_gradients_detach(const struct compile_gradients *gradients, shoal_tensor **outputs);
/* Puts the new ones on their leaves. */
void compile_gradients_set(const struct compile_gradients *gradients, shoal_tensor *const *given,
                           shoal_tensor *const *outputs);

#endif
