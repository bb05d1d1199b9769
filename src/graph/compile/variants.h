/* SPDX-License-Identifier: MIT */
/*
 * The variants of a compiled step: one for each combination of input shapes and dtypes, of the scope's gradient mode,
 * and of leaves that have gradients already, because adding to a gradient is another graph than making one. A variant
 * also fits only as long as what its graph depends on is as it was (captured.h).
 *
 * At most `max` are kept; then the one that was used least recently gives way to a new one. Each rank finds it by
 * itself, and ranks must find the same one: otherwise one of them would later compile what another one still has. Both
 * follow from what ranks have in common. `max` is an option that they compare. When a variant was used is the number of
 * the run, and ranks make the same runs with the same kinds of inputs; where they do not, the plans that they run
 * differ, and the first collective says so. What is left are variants without collectives, by which nobody notices that
 * ranks use them in different runs. So ranks compare which variant gives way, too, together with the new plan
 * (graph/run/compare.h), before one of them frees anything.
 */
#ifndef GRAPH_COMPILE_VARIANTS_H
#define GRAPH_COMPILE_VARIANTS_H

#include "graph/compile/bound.h"
#include "graph/compile/gradients.h"
#include "shoal/compile.h"
#include "tensor/layout.h"

/* How many are kept by default, and at most. */
#define VARIANTS_DEFAULT 64
#define VARIANTS_MOST 4096

/* What an input of a variant must be like. */
struct shape {
    shoal_dtype dtype;
    struct layout layout;
    bool requires_grad;
};

struct variant {
    shoal_graph *graph;
    shoal_plan *plan;
    char *captured;             /* the text of the graph before passes; NULL if SHOAL_COMPILE_CHECK is off */
    struct compile_bound bound; /* with the text */
    struct shape *shapes;
    size_t n_given;        /* inputs of the step */
    bool has_grad;         /* the scope's gradient mode */
    shoal_tensor **inputs; /* of the plan: those of the step, then bound tensors */
    bool *needs_gradient;  /* by input: whether it required a gradient when the step was captured */
    size_t n_inputs;
    shoal_tensor **outputs;
    size_t n_outputs;
    shoal_group **groups; /* that the captured step used */
    size_t n_groups;
    struct compile_gradients gradients;
    shoal_compile_report report;
    /* Numbers of runs, counted from 1 and including those that failed: the one that made it, and the last one that
       used it. */
    uint64_t made_in;
    uint64_t used_in;
};

void variant_free(struct variant *variant); /* NULL is allowed */

/* Whether a bound tensor requires a gradient. For the padded shard of a parameter, the shard is asked. */
bool variant_input_needs_gradient(const struct captured_input *bound);

/* Writes why a variant cannot be used for these inputs. */
void variant_describe_change(struct variant *variant, shoal_tensor *const *inputs, size_t n_inputs,
                             char *text, size_t text_bytes);

/* All zero, except for `max`, is none. */
struct variants {
    struct variant **rows; /* in the order in which they were made */
    size_t count;
    size_t capacity;
    size_t max;
};

/* Returns the first variant that can be used for these inputs; NULL if there is none. */
struct variant *variants_find(const struct variants *variants, shoal_tensor *const *inputs, size_t n_inputs);
/* Returns the variant that gives way to a new one; NULL if there is room for one more. */
struct variant *variants_oldest(const struct variants *variants);

/* Makes room in the array for one more. */
shoal_status variants_reserve(struct variants *variants);
/* Takes over a variant, for which there is room. */
void variants_add(struct variants *variants, struct variant *variant);
/* Takes a variant off the list, and frees it. */
void variants_drop(struct variants *variants, struct variant *variant);
void variants_free(struct variants *variants);

/* Writes their number, and the memory of their plans, into a report. */
void variants_report(const struct variants *variants, shoal_compile_report *report);

#endif
