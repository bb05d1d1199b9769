/* SPDX-License-Identifier: MIT */
/*
 * Safetensors files: named tensors, and strings about them. Reading all of one, ranges and boxes; saving tensors;
 * writing one file from several processes.
 *
 * Opening reads and checks the header only; data is read when it is asked for. The reader is strict: a file that the
 * format does not allow is refused with the tensor and both values that contradict each other. Tensors of a file are
 * numbered in the order of their data.
 *
 * Files are written under another name beside the target, PATH.partial-0123456789abcdef, and get theirs when they are
 * complete and durable: whatever happens meanwhile, PATH is the old file or the new one. A process that is killed
 * leaves such a file behind; the next one that writes PATH removes it. A symbolic link is followed, and stays; a file
 * that is replaced passes its permissions on.
 *
 * Ownership: a file is closed by shoal_safetensors_close; strings and infos are its own. Tensors are copies that
 * belong to the innermost scope and outlive the file. Layouts and writers are freed by their creator; a writer keeps
 * what it needs of its layout.
 * Threads: a file may be read by any number of threads, and so may a writer be written to; every other call on a
 * file, layout or writer is for one thread at a time.
 * Errors: status and text; shoal_safetensors_tensor and
 * shoal_safetensors_tensor_by_name give NULL with the error in the scope. A request that the system
 * refuses is SHOAL_ERR_SYSTEM, with the file, the request, the number of bytes and the reason.
 *
 *     shoal_safetensors *file;
 *     if (shoal_safetensors_open("model.safetensors", &file) != SHOAL_OK) { ... shoal_error_text() ... }
 *     shoal_tensor *weight = shoal_safetensors_tensor_by_name(file, "layers.0.weight");
 *     shoal_safetensors_close(file);
 *
 *     const char *names[] = {"layers.0.weight"};
 *     const char *metadata[] = {"format", "pt", NULL};
 *     status = shoal_safetensors_save("copy.safetensors", names, &weight, 1, metadata);
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

/* A contiguous copy of the tensor with this name. A name that is not there is SHOAL_ERR_INVALID, and the text has the
   nearest names. */
SHOAL_API shoal_tensor *shoal_safetensors_tensor_by_name(const shoal_safetensors *file, const char *name);

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

/* Saving ----------------------------------------------------------------------------------------------- */

/*
 * Writes tensors to a file that is complete and durable when the call returns; after an error `path` is as before.
 * (If only the last step failed, making the name durable, it is the new file already.) Waits for tensors in flight.
 * Tensors of any layout are saved as contiguous ones, with a buffer of at most 1 MiB; elements of bool become 0 or 1.
 * `metadata`: key, value, key, value, ..., NULL; NULL: none.
 *
 * Parameters of a fully sharded module are shards, which would be saved as they are. Gather the whole ones, and save
 * them on one rank (shoal_fsdp_gather); or let every rank write its own part with a writer (below), where
 * shoal_fsdp_get_layout says which part that is.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_save(const char *path, const char *const *names,
                                                               shoal_tensor *const *tensors, size_t n_tensors,
                                                               const char *const *metadata);

/* Layouts: what a file is to look like ----------------------------------------------------------------- */

/*
 * A layout is a list of tensors without data. Its tensors are numbered 0, 1, 2, ... in the order in which they are
 * added. In the file they lie as the reference implementation of the format puts them: those of larger elements
 * first, of one dtype by name, the first at a multiple of 8. So each tensor is aligned to its elements, and equal
 * tensors give equal files in whatever order they were added. Metadata keeps the order in which it was added.
 */
typedef struct shoal_safetensors_layout shoal_safetensors_layout;

SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_safetensors_layout_create(shoal_safetensors_layout **layout_out);
/* NULL is allowed. Writers that were made with the layout are not affected. */
SHOAL_API void shoal_safetensors_layout_free(shoal_safetensors_layout *layout);

/*
 * Adds a tensor. A name that is there already or is not UTF-8, "__metadata__", and a shape with a negative size or
 * too many bytes are SHOAL_ERR_INVALID; C128, which the format has not, is SHOAL_ERR_UNSUPPORTED; a layout with which
 * a writer was made is SHOAL_ERR_STATE.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_layout_add(shoal_safetensors_layout *layout,
                                                                     const char *name, const int64_t *shape,
                                                                     int n_dims, shoal_dtype dtype);

/* Adds a string about the file. A key that is there already is an error. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_safetensors_layout_add_metadata(shoal_safetensors_layout *layout, const char *key, const char *value);

SHOAL_API int64_t shoal_safetensors_layout_count(const shoal_safetensors_layout *layout);

/* The number of the tensor of that name, or -1. */
SHOAL_API int64_t shoal_safetensors_layout_find(const shoal_safetensors_layout *layout, const char *name);

/* A tensor, and where in the file it lies; size of the file. What the info points to, and the places, hold until
   something is added. A header above the 100,000,000 bytes that the format allows is an error of these and of making
   a writer. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_layout_get(shoal_safetensors_layout *layout,
                                                                     int64_t index,
                                                                     shoal_safetensors_info *info_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_layout_file_bytes(shoal_safetensors_layout *layout,
                                                                            uint64_t *bytes_out);

/* Writers: one file, written by one or several processes ----------------------------------------------- */

/*
 * One process creates the file and tells the others shoal_safetensors_writer_path; they join, with equal layouts.
 * Each writes parts of tensors; bytes that nobody writes are 0. Each then finishes: those that joined first, the
 * creator when all of them have. Only then does `path` name the new file.
 */
typedef struct shoal_safetensors_writer shoal_safetensors_writer;

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_writer_create(
    const char *path, shoal_safetensors_layout *layout, shoal_safetensors_writer **writer_out);

/* SHOAL_ERR_INVALID if the file was created with another layout. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_writer_join(const char *writer_path,
                                                                      shoal_safetensors_layout *layout,
                                                                      shoal_safetensors_writer **writer_out);

/* The file that is being written, for those who join. Belongs to the writer; NULL for NULL. */
SHOAL_API const char *shoal_safetensors_writer_path(const shoal_safetensors_writer *writer);

/* Bytes of tensor `index` of the layout, from `offset` in it, as they shall be in the file. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_write(shoal_safetensors_writer *writer,
                                                                int64_t index, uint64_t offset,
                                                                const void *data, size_t bytes);

/*
 * The counterpart of shoal_safetensors_read_box. Every run that is contiguous in the file is one request to the
 * system: rows are cheap, a column of a matrix is one request for each element.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_write_box(shoal_safetensors_writer *writer,
                                                                    int64_t index, const int64_t *begin,
                                                                    const int64_t *length, const void *data,
                                                                    const int64_t *strides);

/*
 * Makes durable what this process has written; the creator's call also gives the file its name. Afterwards nothing
 * can be written. SHOAL_ERR_STATE if a write has failed before, or finishing has: such a file is never given its
 * name.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_writer_finish(shoal_safetensors_writer *writer);

/* Frees the writer. If its creator has not finished it, the file is removed. NULL is allowed. */
SHOAL_API void shoal_safetensors_writer_close(shoal_safetensors_writer *writer);

SHOAL_END_DECLS

#endif
