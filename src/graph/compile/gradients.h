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

#include "base/map.h"
#include "graph/ir/captured.h"
#include "shoal/world.h"
#include "tensor/tensor.h"

/* A leaf whose gradient the step changes. */
struct gradient {
    shoal_tensor *leaf; /* the graph has the reference. NULL if the leaf is an input of the step (`given`) */
    size_t given;       /* which input of the step the leaf is; CAPTURED_NONE if it is none */
    /* Which placeholder is the old gradient, if the step reads it or adds to it; SIZE_MAX if there is none. */
    size_t input;
    /* The first row whose gradient has the same storage and is a placeholder; otherwise this row. Below, the sharer is
       that row. */
    size_t sharer;
    /* Which output is the new gradient; SIZE_MAX if none is: it is written in place or removed. */
    size_t output;
    bool is_added_to;  /* after the step the leaf has the same gradient tensor as before */
    bool is_kept;      /* is_added_to, and no op of the step uses the gradient: the run does not touch it */
    bool is_averaged;  /* is_averaged of the gradient after the step (tensor/tensor.h) */
    bool had_gradient; /* when the step was captured */

    /* The old gradient when the step was captured, if had_gradient. */
    shoal_dtype dtype;
    struct layout layout;
    size_t bytes; /* of its storage */
    /* Its storage, if the step uses other tensors there, such as parameters: the placeholder is then bound to it. It is
       NULL if each run may have another storage. */
    const struct storage *place;
    /* How the placeholder takes the storage. */
    shoal_dtype whole_dtype;
    struct layout whole_layout;

    /* During a run. */
    shoal_tensor *whole;      /* the storage as the placeholder takes it; one reference */
    bool is_moved;            /* of a sharer: a gradient in this storage lies elsewhere than at the capture */
    struct storage *stand_in; /* of a sharer that is_moved: memory for the placeholder; one reference */
    uint64_t version;         /* of the stand-in before the run */
    shoal_tensor *copy;       /* the gradient in the stand-in; one reference */
};

/* The bytes of a gradient in its storage. */
struct gradient_span {
    size_t sharer;
    size_t first;
    size_t end;
};

/* All zero is none. */
struct compile_gradients {
    struct gradient *rows;
    size_t count;
    struct map sharers;          /* storages of gradients that are placeholders -> their sharers */
    struct gradient_span *spans; /* room for one for each row */
    bool are_apart;              /* at the capture, no two gradients that are placeholders overlapped */
};

/* Lists the gradients of a captured graph. From then on the graph keeps no references to old gradients, and to leaves
   that are inputs of the step. */
shoal_status compile_gradients_find(struct compile_gradients *gradients, struct captured *captured);
void compile_gradients_free(struct compile_gradients *gradients);

/* Returns the leaf of a row, in a run with those inputs of the step. */
static inline shoal_tensor *gradient_leaf(const struct gradient *gradient, shoal_tensor *const *inputs)
{
    return gradient->given == CAPTURED_NONE ? gradient->leaf : inputs[gradient->given];
}

/* Finds a gradient that prevents a run: it exists now but did not at the capture, or the other way round, or it shares
   memory in another way. Returns NULL if there is none. Notes which gradients have moved, for the run that follows. */
const struct gradient *compile_gradients_find_other(struct compile_gradients *gradients,
                                                    shoal_tensor *const *inputs);

/* Whether compile_gradients_find_other has noted that a gradient has moved. */
bool compile_gradients_have_moved(const struct compile_gradients *gradients);

/* Call before compile_gradients_take if gradients have moved. Waits for works of the world that the program has started on
   their memory. `world` may be NULL. */
shoal_status compile_gradients_wait(struct compile_gradients *gradients, shoal_tensor *const *given,
                                    shoal_world *world);

/* Fills in the entries of `inputs`, the placeholders of a run, that are gradients of the leaves. `given` are the inputs
   of the step. Gradients that have moved are copied. Call compile_gradients_let_go after the run, also after a
   failure. */
shoal_status compile_gradients_take(struct compile_gradients *gradients, shoal_tensor *const *given,
                                    shoal_tensor **inputs);
void compile_gradients_let_go(struct compile_gradients *gradients);

/* Call after a successful run, before compile_gradients_let_go. Copies what the plan has written back to gradients that
   have moved. Outputs that lie in a copy become views of the gradient. */
shoal_status compile_gradients_give_back(struct compile_gradients *gradients, shoal_tensor *const *given,
                                         shoal_tensor **outputs, size_t n_outputs);

/* Call after a run. A new gradient that is an input of the caller is replaced by a view of it, as shoal_set_grad makes
   one. */
shoal_status compile_gradients_detach(const struct compile_gradients *gradients, shoal_tensor **outputs);
/* Sets the new gradients of leaves. */
void compile_gradients_set(const struct compile_gradients *gradients, shoal_tensor *const *given,
                           shoal_tensor *const *outputs);

#endif
