/* SPDX-License-Identifier: MIT */
/*
 * The layout of a safetensors file that is to be written: its tensors, where their bytes lie, and the header.
 *
 * Tensors are numbered in the order in which they were added. In the file they are in the order of the reference
 * implementation: by dtype, larger elements first, then by name. So every tensor is aligned to its elements, the file
 * does not depend on the order of calls, and equal contents give equal files.
 */
#ifndef CHECKPOINT_SAFETENSORS_LAYOUT_H
#define CHECKPOINT_SAFETENSORS_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "checkpoint/safetensors/header.h"
#include "shoal/safetensors.h"

struct shoal_safetensors_layout {
    _Atomic uint32_t references;
    bool is_fixed; /* a writer uses it: nothing can be added */
    struct safetensors_tensor *tensors;
    size_t n_tensors;
    size_t tensor_capacity;
    struct map names; /* from hashes to indices of `tensors`: names must not repeat */
    struct safetensors_pair *pairs;
    size_t n_pairs;
    size_t pair_capacity;
    struct map keys; /* from hashes to indices of `pairs`: keys must not repeat */

    /* Made by safetensors_layout_arrange; NULL if something was added since. */
    char *header; /* begins with the bytes of its length */
    size_t header_bytes;
    uint64_t file_bytes;
};

/* Returns the number of the tensor with this name, or -1 if there is none. */
int64_t safetensors_layout_find(const shoal_safetensors_layout *layout, const char *name);

/* Places the tensors and makes the header. */
shoal_status safetensors_layout_arrange(shoal_safetensors_layout *layout);

/* Where in the file the data of a tensor begins. The layout was arranged, and nothing was added since. */
uint64_t safetensors_layout_offset(const shoal_safetensors_layout *layout, size_t index);

/* Arranges the layout, to which nothing can be added afterwards. Adds a reference. */
shoal_status safetensors_layout_fix(shoal_safetensors_layout *layout);

/* Makes the header; `tensors` are in the order of the file. Its size, including that of its length, is a multiple of 8.
   Freed with mem_free. */
shoal_status safetensors_text_make(const struct safetensors_tensor *const *tensors, size_t n_tensors,
                                   const struct safetensors_pair *pairs, size_t n_pairs, char **header_out,
                                   size_t *header_bytes_out);

/* Checks that the string is UTF-8, as JSON requires. The error begins with `what`. */
shoal_status safetensors_text_check(const char *what, const char *string);

#endif
