/* SPDX-License-Identifier: MIT */
/* What a captured graph keeps of the step it was captured from: references on the tensors behind its
   placeholders, and on the leaves whose gradients the step changed. */
#ifndef GRAPH_CAPTURED_H
#define GRAPH_CAPTURED_H

#include "graph/graph.h"
#include "op/dependence.h"

#define CAPTURED_NONE SIZE_MAX

/* Of a placeholder. */
struct captured_input {
    shoal_tensor *tensor; /* NULL: an input of the step */
    shoal_tensor *source; /* what is in flight in it is in flight in the tensor; NULL: none */
};

/* A leaf whose gradient the step changes. Without `output` and not added to: the step removes it. */
struct captured_leaf {
    shoal_tensor *leaf;
    size_t given;           /* it is that input of the step; CAPTURED_NONE: none */
    shoal_tensor *gradient; /* what it had before the step; NULL: none */
    size_t output;          /* of the graph, flattened: the new gradient; CAPTURED_NONE: there is none */
    bool is_added_to;       /* the gradient it had is written in place: it is one of the inputs */
    bool is_averaged;       /* all ranks have the new gradient in common (tensor/tensor.h) */
};

/* A tensor that is part of a bound one, as parameters in one buffer are, and whether it required a gradient. */
struct captured_part {
    shoal_tensor *tensor; /* one reference */
    bool needs_gradient;
};

/* What else the graph depends on, and its state. */
struct captured_dependence {
    struct op_dependence *dependence; /* one reference */
    uint64_t state;
};

struct captured {
    struct captured_input *inputs; /* one for each placeholder, in order */
    size_t n_inputs;
    size_t input_capacity;
    struct captured_leaf *leaves; /* in the order in which the step reached them */
    size_t n_leaves;
    size_t leaf_capacity;
    size_t n_step_outputs;        /* of the outputs, those that the step gave: the first ones */
    shoal_tensor **output_leaves; /* of the others; borrowed from `leaves` */
    size_t n_output_leaves;
    struct captured_dependence *dependences;
    size_t n_dependences;
    size_t dependence_capacity;
    struct captured_part *parts;
    size_t n_parts;
    size_t part_capacity;
};

void captured_free(struct captured *captured); /* NULL is allowed */

/* Whether what the graph depends on, and which parts require a gradient, is as it was. */
bool captured_is_current(const struct captured *captured);

/* A placeholder is erased. Nothing for other nodes, and for graphs that were not captured. */
void captured_forget_input(const struct shoal_node *node);

/* What is in flight in the source of a bound input has to end before the input is used. */
shoal_status captured_wait_for_sources(const struct shoal_graph *graph, shoal_tensor *const *inputs,
                                       size_t n_inputs);

/* The group that a captured step used under that row of the table, if it is still open: SHOAL_ERR_STATE otherwise. NULL: the graph
   was not captured, and its groups are made when it runs. */
shoal_status graph_bound_group(const struct graph_group *row, struct shoal_group **group_out);

#endif
