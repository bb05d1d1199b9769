/* SPDX-License-Identifier: MIT */
/* Which targets of the file are ops here, and how their arguments are written. All others are opaque. */
#ifndef REPLAY_DDP_FUSION_TARGETS_H
#define REPLAY_DDP_FUSION_TARGETS_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/graph.h"

#define FUSION_MAX_PARAMS 4

enum fusion_form {
    FUSION_PLAIN,      /* the same arguments in the same order */
    FUSION_DIV,        /* by a number or a tensor: two ops here */
    FUSION_SPLIT,      /* by a size or by sizes: two ops here */
    FUSION_GETITEM,    /* of a list; of a tensor it is opaque */
    FUSION_COLLECTIVE, /* tensors, reduction, name of a group */
    FUSION_COPY        /* whether it blocks says nothing about the result */
};

struct fusion_target {
    const char *name;                      /* without ".default" */
    const char *op;                        /* of a FUSION_DIV or FUSION_SPLIT: by a number */
    enum fusion_form form;                 /* how arguments become ours */
    const char *params[FUSION_MAX_PARAMS]; /* PyTorch's names, for keyword arguments */
};

/* Returns NULL if the target is opaque. */
const struct fusion_target *fusion_target_find(const char *name);

/* A call: `args` as in the file, absent ones of kind NONE behind `n_args`. */
struct fusion_call {
    const struct fusion_target *target;
    shoal_arg args[FUSION_MAX_PARAMS];
    size_t n_args;
    const char *op; /* set by fusion_target_adapt */
    /* Set by fusion_target_adapt, too: the file's name of one that must be in the graph's table; NULL if there is
       none. */
    const char *group;
};

/* Makes the arguments ours. Returns false if this call of the target is opaque. */
bool fusion_target_adapt(struct fusion_call *call);

/* Whether a target only looks at the result of a wait and moves with it. */
bool fusion_target_is_wait(const char *name);
bool fusion_target_is_look(const char *name);

#endif
