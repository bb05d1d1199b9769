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

/* `factor` may be NULL: the op has none. NaN: absent, as it must be except for premul_sum. */
shoal_status arguments_reduction(const shoal_value *reduce, const shoal_value *factor,
                                 struct reduction *reduction_out);
/* The same, and the operator is offered for the dtype. */
shoal_status arguments_reduction_of(const shoal_value *reduce, const shoal_value *factor, shoal_dtype dtype,
                                    struct reduction *reduction_out);

/* A rank of the group; the error names the argument. */
shoal_status arguments_rank(const char *name, const shoal_value *value, shoal_group *group, int *rank_out);

/* Not empty, one dtype; the error names the first that differs. */
shoal_status arguments_list(const shoal_value *tensors);

/* `shape` with dimension `dim` multiplied by the number of ranks; a 0-d tensor becomes [n_ranks]. */
shoal_status arguments_gathered(const shoal_tensor *self, int64_t dim, shoal_group *group,
                                struct layout *layout_out, int *dim_out);
/* Divided; `name` is that of the argument. SHOAL_ERR_INVALID, with the numbers, when it does not divide. */
shoal_status arguments_scattered(const char *name, const shoal_tensor *self, int64_t dim, shoal_group *group,
                                 struct layout *layout_out, int *dim_out);

/* Dimension `dim` of the layout multiplied by the number of ranks, if that can be counted. */
shoal_status arguments_multiply(struct layout *layout, int dim, shoal_group *group);

/* `out` has that shape and the dtype of `self`, and can be written; the error names the argument. */
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

/* A tensor of a list that is used at once with the others. */
struct tensor_use {
    const shoal_tensor *tensor;
    size_t index; /* in the list, for the error */
    bool is_written;
    uintptr_t first; /* for arguments_apart */
    uintptr_t end;
};

/* Whether any of them is not contiguous: the raw calls check the others, but see only buffers where these lie. */
bool arguments_have_gaps(const shoal_value *tensors);
/* SHOAL_ERR_INVALID, "NAME[0] and [2] share memory", when one that is written does with another. Sorts them. */
shoal_status arguments_apart(const char *name, struct tensor_use *uses, size_t n_uses);
/* The same of a list that is written, if it has gaps. */
shoal_status arguments_targets_apart(const char *name, const shoal_value *tensors);
/* For kernels that wait themselves, as the dispatcher does for others: it can be read, or overwritten. The error names the
   argument. */
shoal_status arguments_wait_readable(const char *argument, shoal_tensor *tensor);
shoal_status arguments_wait_writable(const char *argument, shoal_tensor *tensor);

/* Splits of dimension 0: both lists, or neither, fitting self and the group. *n_rows_out: of the result. */
shoal_status arguments_splits(const shoal_tensor *self, const shoal_value *output_splits,
                              const shoal_value *input_splits, shoal_group *group, int64_t *n_rows_out);

/* Destinations of a permutation. *source_out: who sends to the caller, -1: nobody; *destination_out likewise. */
shoal_status arguments_permutation(const shoal_value *destinations, shoal_group *group, int *source_out,
                                   int *destination_out);

/* Entry `index` of a list of dimensions; of an empty list: dimension 0. */
int64_t arguments_dim_at(const shoal_value *dims, size_t index);

/* Elements of one row: everything behind dimension 0. */
int64_t arguments_row_elements(const shoal_tensor *self);

#endif
