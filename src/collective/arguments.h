/* SPDX-License-Identifier: MIT */
/* What meta functions, kernels and gradients of collectives read out of boxed arguments, and what they check. */
#ifndef COLLECTIVE_ARGUMENTS_H
#define COLLECTIVE_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/op.h"
#include "shoal/group.h"

struct reduction {
    shoal_reduce_op reduce;
    double factor; /* premul_sum only */
};

/* `factor` is NULL if the op has none. A factor that is NaN counts as absent, which it must be except for
   premul_sum. */
shoal_status arguments_reduction(const shoal_value *reduce, const shoal_value *factor,
                                 struct reduction *reduction_out);
/* Also checks that the dtype has the operator. */
shoal_status arguments_reduction_of(const shoal_value *reduce, const shoal_value *factor, shoal_dtype dtype,
                                    struct reduction *reduction_out);

/* Reads a rank of the group. Errors name the argument. */
shoal_status arguments_rank(const char *name, const shoal_value *value, shoal_group *group, int *rank_out);

/* Checks that a list is not empty and has one dtype. The error names the first tensor that differs. */
shoal_status arguments_list(const shoal_value *tensors);

/* The layout of `self` with dimension `dim` multiplied by the number of ranks. A 0-d tensor becomes [n_ranks]. */
shoal_status arguments_gathered(const shoal_tensor *self, int64_t dim, shoal_group *group,
                                struct layout *layout_out, int *dim_out);
/* The layout of `self` with dimension `dim` divided by the number of ranks. SHOAL_ERR_INVALID if it cannot be
   divided; the text has the numbers, and `name` as the argument. */
shoal_status arguments_scattered(const char *name, const shoal_tensor *self, int64_t dim, shoal_group *group,
                                 struct layout *layout_out, int *dim_out);

/* Multiplies dimension `dim` of the layout by the number of ranks. Fails if there are too many elements to count. */
shoal_status arguments_multiply(struct layout *layout, int dim, shoal_group *group);

/* Checks that `out` has this shape and the dtype of `self`, and can be written. The error names the argument. */
shoal_status arguments_out(const char *argument, const shoal_tensor *out, const shoal_tensor *self,
                           const struct layout *layout);

/*
 * Takes the status of starting a collective. If buffers overlap, the error knew only addresses, and is rewritten in
 * terms of the arguments: `out` and `self` overlap, but may only ...; or two tensors of a list that is written do.
 */
shoal_status arguments_explain_overlap(shoal_status status, const shoal_tensor *self, const shoal_tensor *out,
                                       const char *may_only);
shoal_status arguments_explain_list(shoal_status status, shoal_tensor *const *tensors, size_t n_tensors);

/* "tensors[3]", for errors about a tensor of a list. */
struct arguments_name {
    char text[48];
};
const char *arguments_of_list(const char *list, size_t index, struct arguments_name *name);

/* A tensor of a list whose tensors are all used at the same time. */
struct tensor_use {
    const shoal_tensor *tensor;
    size_t index; /* in the list, for the error */
    bool is_written;
    uintptr_t first; /* first address; set by arguments_apart, like the end */
    uintptr_t end;
};

/* Whether a tensor of the list is not contiguous. The raw calls check overlaps of contiguous ones only, because they
   see a staging buffer in place of the others. */
bool arguments_have_gaps(const shoal_value *tensors);
/* SHOAL_ERR_INVALID, "NAME[0] and [2] share memory", if a tensor that is written shares memory with another one.
   Sorts them. */
shoal_status arguments_apart(const char *name, struct tensor_use *uses, size_t n_uses);
/* Checks this for a list that is written, if a tensor of it is not contiguous. */
shoal_status arguments_targets_apart(const char *name, const shoal_value *tensors);
/* For kernels that wait for their arguments themselves: return when the tensor can be read, or overwritten. The
   dispatcher does this for other kernels. Errors name the argument. */
shoal_status arguments_wait_readable(const char *argument, shoal_tensor *tensor);
shoal_status arguments_wait_writable(const char *argument, shoal_tensor *tensor);

/* Checks the splits of dimension 0: both lists are given or none, and they fit self and the group. *n_rows_out: how
   many rows the result has. */
shoal_status arguments_splits(const shoal_tensor *self, const shoal_value *output_splits,
                              const shoal_value *input_splits, shoal_group *group, int64_t *n_rows_out);

/* Reads the destinations of a permutation. *source_out is the rank that sends to the caller, *destination_out the
   one that the caller sends to; -1 if there is none. */
shoal_status arguments_permutation(const shoal_value *destinations, shoal_group *group, int *source_out,
                                   int *destination_out);

/* Entry `index` of a list of dimensions; of an empty list: dimension 0. */
int64_t arguments_dim_at(const shoal_value *dims, size_t index);

/* How many elements a row has: the product of all dimensions after the first. */
int64_t arguments_row_elements(const shoal_tensor *self);

#endif
