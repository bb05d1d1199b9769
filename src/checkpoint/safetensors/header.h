/* SPDX-License-Identifier: MIT */
/*
 * The header of a safetensors file: eight bytes of length (little-endian), then JSON with the tensors and where their
 * bytes lie in the data, which is the rest of the file:
 *
 *     {"__metadata__": {"key": "text", ...}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *
 * A header that was parsed is checked: offsets are within the data, fit dtype and shape, and together cover all of it,
 * each byte once.
 */
#ifndef CHECKPOINT_SAFETENSORS_HEADER_H
#define CHECKPOINT_SAFETENSORS_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"
#include "shoal/tensor.h"

#define SAFETENSORS_LENGTH_BYTES 8
/* As in the reference implementation. */
#define SAFETENSORS_MAX_HEADER_BYTES 100000000
/* The key of the metadata, which no tensor can have. */
#define SAFETENSORS_METADATA_KEY "__metadata__"

struct safetensors_tensor {
    const char *name;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    uint64_t begin; /* in the data */
    uint64_t end;
};

struct safetensors_pair {
    const char *key;
    const char *value;
};

struct safetensors_header {
    struct safetensors_tensor *tensors; /* in the order of their data; those without any by name */
    size_t n_tensors;
    const struct safetensors_tensor **by_name;
    struct safetensors_pair *pairs; /* the metadata */
    size_t n_pairs;
    char *strings; /* what all names, keys and values point into */
};

/* Reads the length of the header from the first SAFETENSORS_LENGTH_BYTES of a file of that size. */
shoal_status safetensors_header_length(const unsigned char *length, uint64_t file_bytes,
                                       size_t *header_bytes_out);

/* `text` need not end in a zero. On failure nothing is left to free. */
shoal_status safetensors_header_parse(const char *text, size_t bytes, uint64_t data_bytes,
                                      struct safetensors_header *header_out);

/* A header of zeros is allowed. */
void safetensors_header_free(struct safetensors_header *header);

/* Returns NULL if there is none. */
const struct safetensors_tensor *safetensors_header_find(const struct safetensors_header *header,
                                                         const char *name);

/* The row of safetensors/dtypes.def, by which tensors are ordered in a file; -1 if the format has no such dtype. */
int safetensors_dtype_row(shoal_dtype dtype);
/* The name of the dtype of a row in files. */
const char *safetensors_dtype_name(int row);
/* Finds a dtype by its name in files. Returns false if there is none. */
bool safetensors_dtype_find(const char *name, shoal_dtype *dtype_out);

/* Checks that `bytes` bytes from `offset` on lie within the tensor. */
shoal_status safetensors_check_range(const struct safetensors_tensor *tensor, uint64_t offset, size_t bytes);

/* For error texts: the name in quotes, cut if it is long, without control characters. */
#define SAFETENSORS_NAME_BYTES 112
const char *safetensors_format_name(char text[SAFETENSORS_NAME_BYTES], const char *name);

#endif
