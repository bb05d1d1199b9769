/* SPDX-License-Identifier: MIT */
/*
 * Reading safetensors files: named tensors, and strings about them.
 *
 * Opening reads and checks the header only; the data of a tensor is read when it is asked for. The reader is strict: a
 * file that the format does not allow is refused with the tensor and both values that contradict each other. Tensors
 * are numbered in the order of their data in the file.
 *
 * Ownership: a file is closed by shoal_safetensors_close; strings and infos are its own. Tensors are copies that belong
 * to the innermost scope and outlive the file.
 * Threads: a file may be read by any number of threads; open and close are called by one.
 * Errors: status and text; shoal_safetensors_tensor gives NULL with the error in the scope.
 *
 *     shoal_safetensors *file;
 *     if (shoal_safetensors_open("model.safetensors", &file) != SHOAL_OK) { ... shoal_error_text() ... }
 *     shoal_tensor *weight = shoal_safetensors_tensor(file, shoal_safetensors_find(file, "layers.0.weight"));
 *     shoal_safetensors_close(file);
 */
#ifndef SHOAL_SAFETENSORS_H
#define SHOAL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_safetensors shoal_safetensors;

/* The file stays open until it is closed, and must not be changed meanwhile: what was read before and after would not
   belong together. One that becomes shorter is an error of the read that misses its bytes. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_open(const char *path,
                                                               shoal_safetensors **file_out);

/* A file that is in memory, which is borrowed until it is closed. It may lie anywhere. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_open_memory(const void *data, size_t bytes,
                                                                      shoal_safetensors **file_out);

/* NULL is allowed. */
SHOAL_API void shoal_safetensors_close(shoal_safetensors *file);

/* What is in it ---------------------------------------------------------------------------------------- */

SHOAL_API int64_t shoal_safetensors_count(const shoal_safetensors *file);

/* The number of the tensor of that name, or -1. */
SHOAL_API int64_t shoal_safetensors_find(const shoal_safetensors *file, const char *name);

typedef struct shoal_safetensors_info {
    size_t struct_size; /* sizeof(shoal_safetensors_info), set by the caller */
    const char *name;
    shoal_dtype dtype;
    int n_dims;
    const int64_t *shape;
    size_t bytes;
    uint64_t file_offset; /* where in the file its data begins */
} shoal_safetensors_info;
#define SHOAL_SAFETENSORS_INFO_INIT SHOAL_SIZED(shoal_safetensors_info)

/* SHOAL_ERR_INVALID for a number that is not within 0..count-1. What `info` points to lives as long as the file. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_get(const shoal_safetensors *file, int64_t index,
                                                              shoal_safetensors_info *info_out);

/* What the file says about itself under that key, or NULL. */
SHOAL_API const char *shoal_safetensors_metadata(const shoal_safetensors *file, const char *key);

/* The key with that number, in the order of the file, or NULL: for (i = 0; (key = ...(file, i)); i++). */
SHOAL_API const char *shoal_safetensors_metadata_key(const shoal_safetensors *file, int64_t index);

/* Data ------------------------------------------------------------------------------------------------- */

/* A contiguous copy, with the name of the tensor. A bool whose byte is neither 0 nor 1 is an error. */
SHOAL_API shoal_tensor *shoal_safetensors_tensor(const shoal_safetensors *file, int64_t index);

/* The bytes as they are in the file, into memory of the caller's; `bytes` is the size of the tensor. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_read(const shoal_safetensors *file, int64_t index,
                                                               void *data_out, size_t bytes);

/* Some of these bytes: those from `offset` in the tensor. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_read_range(const shoal_safetensors *file,
                                                                     int64_t index, uint64_t offset,
                                                                     void *data_out, size_t bytes);

/*
 * The elements with indices begin[d] .. begin[d] + length[d] - 1 in each dimension d, as they are in the file, into
 * memory of the caller's, whose first element is at `data_out`. `begin` NULL: from 0. `length` NULL: to the end.
 * `strides` are in elements, may be negative, and must give each element a place of its own; NULL: contiguous
 * (row-major).
 *
 * Long runs are read straight into the memory; short ones together, with gaps of up to 16 KiB between them, through a
 * buffer of at most 1 MiB. A read that fails may have written some of the elements.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_read_box(const shoal_safetensors *file,
                                                                   int64_t index, const int64_t *begin,
                                                                   const int64_t *length, void *data_out,
                                                                   const int64_t *strides);

SHOAL_END_DECLS

#endif
