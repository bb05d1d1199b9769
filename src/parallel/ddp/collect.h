/* SPDX-License-Identifier: MIT */
/* Finds the modules, parameters and buffers of a tree that are wrapped. */
#ifndef PARALLEL_DDP_COLLECT_H
#define PARALLEL_DDP_COLLECT_H

#include "parallel/ddp/ddp.h"

/* The tensors that are broadcast, and what ranks compare of them. */
struct ddp_tensors {
    shoal_tensor **tensors; /* borrowed from the tree */
    uint64_t *hashes;       /* the lowest bit is are_new */
    char **paths;
    bool *are_new; /* they have not been broadcast yet */
    size_t n_tensors;
    size_t capacity;
    size_t hashes_capacity;
    size_t paths_capacity;
    size_t are_new_capacity;
};

struct ddp_collector {
    struct ddp *ddp;
    const shoal_ddp_options *options;
    const struct ddp *again; /* the module is wrapped already, by this; NULL if it is not */
    struct ddp_tensors list;
};

/* Fills in the lists of the wrapper and of the collector. A failure leaves them half filled: whoever has them frees
   them. */
shoal_status ddp_collect(struct ddp_collector *collector);
void ddp_tensors_free(struct ddp_tensors *list);

/* Whether a parameter was there when the lists were made, trained or frozen. */
bool ddp_has_param(const struct ddp *ddp, const shoal_tensor *tensor);

/* What the tree is like, compared with the lists of a wrapper. */
struct ddp_look {
    bool has_same_params; /* the tree has the parameters of the lists, and those that were frozen still are */
    uint64_t places;      /* a hash of where parameters are; ranks compare it */
    uint64_t buffers;     /* a hash of buffers that are sent; ranks compare it. Only if has_same_params */
};
shoal_status ddp_look(const struct ddp *ddp, struct ddp_look *look_out);
/* Only has_same_params of it. Its cost is that of a walk, or of a comparison if nothing has changed anywhere: ask this
   before each parameter of a tree is searched for in the lists. */
shoal_status ddp_has_same_params(const struct ddp *ddp, bool *has_same_out);

#endif
