/* SPDX-License-Identifier: MIT */
/* What a captured graph keeps of its step: references to the tensors that its placeholders stand for, and to the leaves
   whose gradients the step changes. */
#ifndef GRAPH_IR_CAPTURED_H
#define GRAPH_IR_CAPTURED_H

#include "autograd/hooks.h"
#include "graph/ir/graph.h"
#include "op/dependence.h"
#include "op/tracer.h"

#define CAPTURED_NONE SIZE_MAX

/* What a placeholder stands for. */
struct captured_input {
    shoal_tensor *tensor; /* NULL for an input of the step */
    /* A tensor in the same memory: before `tensor` is used, whatever is in flight in `source` must have ended. It is
       NULL if there is none. */
    shoal_tensor *source;
};

/* A leaf whose gradient the step changes. If `output` is CAPTURED_NONE and is_added_to is false, the leaf has no
   gradient after the step. */
struct captured_leaf {
    shoal_tensor *leaf;
    size_t given;           /* which input of the step the leaf is; CAPTURED_NONE if it is none */
    shoal_tensor *gradient; /* its gradient before the step; NULL if there is none */
    /* Index of the flattened output that is its new gradient; CAPTURED_NONE if there is none. */
    size_t output;
    bool is_added_to;      /* the gradient that it had is written in place; it is one of the placeholders */
    bool is_averaged;      /* is_averaged of the new gradient (tensor/tensor.h) */
    struct hook_set hooks; /* on the leaf, at the end of the capture; inputs of the step have none */
};

/* A tensor that is not bound itself, and whether it required a gradient. */
struct captured_part {
    shoal_tensor *tensor; /* one reference */
    bool needs_gradient;
};

/* What a collective of the step is for, as wrapped modules say (op/tracer.h). */
struct captured_label {
    const struct shoal_group *group; /* only compared with others */
    char *text;
};

/* Something else that the graph depends on, with its state after the capture. */
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
    size_t n_step_outputs;        /* how many outputs the step gave; they come first */
    shoal_tensor **output_leaves; /* the leaves of the other outputs; borrowed from `leaves` */
    size_t n_output_leaves;
    struct captured_dependence *dependences;
    size_t n_dependences;
    size_t dependence_capacity;
    struct captured_label *labels; /* in the order of the step */
    size_t n_labels;
    size_t label_capacity;
    struct op_run_end *run_ends; /* what is done after each run of a compiled step */
    size_t n_run_ends;
    size_t run_end_capacity;
    /* In the storages of bound tensors, such as parameters in a flat buffer; as at the end of the capture. */
    struct captured_part *parts;
    size_t n_parts;
    size_t part_capacity;
    /* The step was told whether they require a gradient, or has changed that; as at its begin. */
    struct captured_part *asked;
    size_t n_asked;
    size_t asked_capacity;
    /* Of a compiled step, for ranks to compare: how many variants it keeps, and which run made the variant that gives way
       to this one. 0 if there is none. */
    size_t max_variants;
    uint64_t freed_run;
    /* The latest change (base/changes.h) when nothing had changed that the graph depends on. */
    uint64_t looked;
};

void captured_free(struct captured *captured); /* NULL is allowed */

/* Whether everything that the graph depends on is as it was: dependences have the same state, the same parts and
   tensors that were asked for require a gradient, and leaves have the same hooks. */
bool captured_is_current(struct captured *captured);
/* Whether the graph depends on something that has changed for good. */
bool captured_has_gone(const struct captured *captured);
/* If captured_is_current returns false, writes what has changed: "parameter weight of module linear was replaced". */
void captured_describe_change(const struct captured *captured, char *text, size_t text_bytes);

/* Collective: ranks compare the state of what their graphs depend on. */
shoal_status captured_agree(const struct captured *captured);
/* The step has been captured: whether its graph, and what is done after each run, do all that the step does. */
shoal_status captured_check_run_ends(const struct captured *captured);
/* Does what is done before each run, and after it. */
shoal_status captured_begin_run(const struct captured *captured);
shoal_status captured_end_run(const struct captured *captured);

/* SHOAL_ERR_STATE if input `index` of a step has a hook on its gradient. Each run may have another tensor there, so no
   graph could have what its hooks do. */
shoal_status captured_check_hooks(size_t index, const shoal_tensor *input);

/* Call when a node is erased: forgets the tensor of a placeholder. Does nothing for other nodes, and for graphs that
   were not captured. */
void captured_forget_input(const struct shoal_node *node);

/* Waits for what is in flight in the sources of bound inputs, before a run. */
shoal_status captured_wait_for_sources(const struct shoal_graph *graph, shoal_tensor *const *inputs,
                                       size_t n_inputs);

/* Gives the group that the captured step used for a row of the table; NULL if the graph was not captured, and its
   groups are made when it runs. SHOAL_ERR_STATE: that group was closed. */
shoal_status graph_bound_group(const struct graph_group *row, struct shoal_group **group_out);

#endif
