/* SPDX-License-Identifier: MIT */
/*
 * The tensors of a model in a directory, by name, without their values: of a checkpoint of Shoal, or of safetensors
 * files of another tool.
 */
#ifndef MODEL_TENSORS_H
#define MODEL_TENSORS_H

#include "checkpoint/index/index.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_tensors {
    char *path; /* of the directory that has the files */
    int64_t
        step; /* of a checkpoint among others, in a directory of its own; -1 if the directory is the checkpoint */
    bool is_foreign; /* of another tool */
    struct checkpoint_index index;
    const struct index_tensor **sorted; /* those of the model, by name */
    size_t n_sorted;
};

/* The newest checkpoint in the directory, or the directory itself. SHOAL_ERR_STATE: it has neither. */
shoal_status model_tensors_open(const char *directory, struct model_tensors *tensors_out);
/* Zeros are allowed. */
void model_tensors_close(struct model_tensors *tensors);

/* The tensor of that name; NULL if there is none. */
const struct index_tensor *model_tensors_find(const struct model_tensors *tensors, const char *prefix,
                                              const char *name);

/* Whether the checkpoint has a string of that name. */
bool model_tensors_has_string(const struct model_tensors *tensors, const char *name);

/* Whether two matrices of foreign files have the same shape, dtype and bytes. */
shoal_status model_tensors_compare(const struct model_tensors *tensors, const struct index_tensor *left,
                                   const struct index_tensor *right, bool *is_same_out);

#endif
