/* SPDX-License-Identifier: MIT */
/*
 * Safetensors files: named tensors, and strings about them, in the format that PyTorch and transformers use. Read
 * whole tensors, ranges of bytes or boxes; save tensors; write one file from several processes. For a whole training
 * run see shoal/checkpoint.h.
 *
 *     shoal_safetensors *file;
 *     if (shoal_safetensors_open("model.safetensors", &file) != SHOAL_OK) { ... shoal_error_text() ... }
 *     shoal_tensor *weight = shoal_safetensors_tensor_by_name(file, "layers.0.weight");
 *     shoal_safetensors_close(file);
 *
 *     const char *names[] = {"layers.0.weight"};
 *     const char *metadata[] = {"format", "pt", NULL};
 *     status = shoal_safetensors_save("copy.safetensors", names, &weight, 1, metadata);
 *
 * Reading: opening a file reads and checks its header; data is read when it is asked for. The reader is strict: a file
 * that the format does not allow is SHOAL_ERR_INVALID, with the tensor and the two values that contradict each other.
 * Tensors of a file are numbered 0, 1, 2, ... in the order of their data.
 *
 * Writing: a file is written under another name beside its own, PATH.partial-0123456789abcdef, and renamed when it is
 * complete and on the disk. Whatever happens meanwhile, PATH is the old file or the new one. A process that is killed
 * leaves the other file; the next writer of PATH removes it. A symbolic link is followed, and stays. A file that is
 * replaced passes on its permissions.
 *
 * Ownership: shoal_safetensors_close frees a file; names, shapes and strings belong to it. Tensors are copies that
 * belong to the innermost scope, and outlive the file. Layouts and writers are freed by the caller, in any order.
 * Threads: any number of threads may read from one file at once, and write to one writer. Other calls on a file,
 * layout or writer are for one thread at a time.
 * Errors: status and text. Calls that return a tensor return NULL and leave the error in the scope. SHOAL_ERR_SYSTEM:
 * the system refused something; the text has the file, what was asked for, the number of bytes and the reason.
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

/* Opens a file for reading, and checks its header. The file must not be changed until it is closed; reading one
   that became shorter is an error. SHOAL_ERR_SYSTEM: it cannot be opened. SHOAL_ERR_INVALID: it is not a
   safetensors file. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_open(const char *path,
                                                               SHOAL_GIVES shoal_safetensors **file_out);

/* Opens a file that is in memory, at any alignment. The memory is borrowed until the file is closed. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_safetensors_open_memory(const void *data, size_t bytes, SHOAL_GIVES shoal_safetensors **file_out);

/* Closes a file and frees it. NULL is allowed. */
SHOAL_API void shoal_safetensors_close(SHOAL_TAKES shoal_safetensors *file);

/* What is in it ---------------------------------------------------------------------------------------- */

/* How many tensors the file has. 0 for NULL. */
SHOAL_API int64_t shoal_safetensors_count(const shoal_safetensors *file);

/* Returns the number of the tensor with this name; -1 if there is none. */
SHOAL_API int64_t shoal_safetensors_find(const shoal_safetensors *file, const char *name);

/* A tensor of a file. */
typedef struct shoal_safetensors_info {
    size_t struct_size; /* sizeof(shoal_safetensors_info), set by the caller */
    const char *name;
    shoal_dtype dtype;
    int n_dims;
    const int64_t *shape;
    size_t bytes;         /* of its data */
    uint64_t file_offset; /* where its data begins in the file */
} shoal_safetensors_info;
#define SHOAL_SAFETENSORS_INFO_INIT SHOAL_SIZED(shoal_safetensors_info)

/* Describes a tensor by its number. What the info points to belongs to the file. SHOAL_ERR_INVALID: there is no such
   number. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_get(const shoal_safetensors *file, int64_t index,
                                                              shoal_safetensors_info *info_out);

/* Returns the string that the file has under this key; NULL if there is none. */
SHOAL_API const char *shoal_safetensors_metadata(const shoal_safetensors *file, const char *key);

/* Returns key number `index`, in the order of the file; NULL past the last: for (i = 0; (key = ...(file, i)); i++). */
SHOAL_API const char *shoal_safetensors_metadata_key(const shoal_safetensors *file, int64_t index);

/* Data ------------------------------------------------------------------------------------------------- */

/* Reads a tensor: a contiguous copy in the innermost scope, with the name that it has in the file. SHOAL_ERR_INVALID:
   there is no such number, or a byte of a bool is neither 0 nor 1. */
SHOAL_API shoal_tensor *shoal_safetensors_tensor(const shoal_safetensors *file, int64_t index);

/* Reads the tensor with this name. SHOAL_ERR_INVALID: there is none; the text has the nearest names. */
SHOAL_API shoal_tensor *shoal_safetensors_tensor_by_name(const shoal_safetensors *file, const char *name);

/* Reads `bytes` bytes of a tensor, as they are in the file, from `offset` bytes after its beginning, into memory of the
   caller's. SHOAL_ERR_INVALID: they are not within the tensor. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_read_range(const shoal_safetensors *file,
                                                                     int64_t index, uint64_t offset,
                                                                     void *data_out, size_t bytes);

/*
 * Reads a box: the elements with indices begin[d] to begin[d] + length[d] - 1 in each dimension d, into memory of the
 * caller's, whose first element is at `data_out`. If `begin` is NULL, the box begins at 0; if `length` is NULL, it goes
 * to the end. `strides` are the strides of the memory, in elements; they may be negative, and must give each element a
 * place of its own. NULL means contiguous (row-major).
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
 * Saves tensors to a file, which is complete and on the disk when the call returns. Tensors of any strides are saved
 * as contiguous ones, with a buffer of at most 1 MiB; elements of bool become 0 or 1. Tensors in flight are waited
 * for. `metadata` is a list: key, value, key, value, ..., NULL; or NULL for none. After an error `path` is as before,
 * except if only the last step failed, making the new name durable. SHOAL_ERR_INVALID: a name occurs twice or is not
 * UTF-8, or a tensor is on the meta device. SHOAL_ERR_UNSUPPORTED: a tensor is on a device that the host cannot access
 * (shoal_to_device).
 *
 * Parameters of a fully sharded module are shards, and would be saved as shards. Gather whole ones with
 * shoal_fsdp_gather and save them on one rank, or let every rank write its part with a writer (below;
 * shoal_fsdp_get_layout says which part that is).
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_save(const char *path, const char *const *names,
                                                               shoal_tensor *const *tensors, size_t n_tensors,
                                                               const char *const *metadata);

/* Layouts: what a file is to look like ----------------------------------------------------------------- */

/*
 * A layout is a list of tensors without data: what a file will look like. Its tensors are numbered 0, 1, 2, ... in the
 * order of adding. In the file they lie as the reference implementation of the format puts them: larger elements
 * first, within a dtype by name, the first tensor at a multiple of 8 bytes. So each tensor is aligned to its elements,
 * and the same tensors give the same file in whatever order they were added. Metadata keeps the order of adding.
 */
typedef struct shoal_safetensors_layout shoal_safetensors_layout;

/* Makes an empty layout. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_safetensors_layout_create(SHOAL_GIVES shoal_safetensors_layout **layout_out);
/* Frees a layout. Writers that were made with it are not affected. NULL is allowed. */
SHOAL_API void shoal_safetensors_layout_free(SHOAL_TAKES shoal_safetensors_layout *layout);

/* Adds a tensor. The name is copied. SHOAL_ERR_INVALID: the name occurs already, is "__metadata__" or is not UTF-8, or
   the shape has a negative size or too many bytes. SHOAL_ERR_UNSUPPORTED: SHOAL_C128, which the format does not have.
   SHOAL_ERR_STATE: a writer was made with the layout. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_layout_add(shoal_safetensors_layout *layout,
                                                                     const char *name, const int64_t *shape,
                                                                     int n_dims, shoal_dtype dtype);

/* Adds a string about the file. Key and value are copied. SHOAL_ERR_INVALID: the key occurs already, or one of them is
   not UTF-8. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_safetensors_layout_add_metadata(shoal_safetensors_layout *layout, const char *key, const char *value);

/* Writers: one file, written by one or several processes ----------------------------------------------- */

/*
 * One process creates the file, and tells the others its shoal_safetensors_writer_path. They join it, with equal
 * layouts. Each writes parts of tensors; bytes that no process writes are 0. Then the processes that joined finish,
 * and when all have, the creator finishes: only then `path` names the new file.
 */
typedef struct shoal_safetensors_writer shoal_safetensors_writer;

/* Creates a file of this layout. Nothing can be added to the layout from then on. SHOAL_ERR_INVALID: the header has
   more than the 100,000,000 bytes that the format allows. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_writer_create(
    const char *path, shoal_safetensors_layout *layout, SHOAL_GIVES shoal_safetensors_writer **writer_out);

/* Joins a writer of another process. SHOAL_ERR_INVALID: the file was created with another layout. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_safetensors_writer_join(const char *writer_path, shoal_safetensors_layout *layout,
                              SHOAL_GIVES shoal_safetensors_writer **writer_out);

/* Returns the path of the file that is being written, for the processes that join. It belongs to the writer. NULL for
   NULL. */
SHOAL_API const char *shoal_safetensors_writer_path(const shoal_safetensors_writer *writer);

/* Writes bytes of tensor `index` of the layout, from `offset` bytes after its beginning, as they shall be in the file.
   SHOAL_ERR_INVALID: they are not within the tensor. SHOAL_ERR_STATE: the writer has finished. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_write(shoal_safetensors_writer *writer,
                                                                int64_t index, uint64_t offset,
                                                                const void *data, size_t bytes);

/* Writes a box; arguments as of shoal_safetensors_read_box. Every run that is contiguous in the file is one request to
   the system: rows are cheap, while a column of a matrix is one request for each element. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_write_box(shoal_safetensors_writer *writer,
                                                                    int64_t index, const int64_t *begin,
                                                                    const int64_t *length, const void *data,
                                                                    const int64_t *strides);

/* Brings to the disk what this process has written; if it is the creator, it also gives the file its name. Nothing can
   be written afterwards. SHOAL_ERR_STATE: an earlier write or finish has failed; such a file never gets its name. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_safetensors_writer_finish(shoal_safetensors_writer *writer);

/* Frees the writer. If it is the creator's and has not finished, the file is removed. NULL is allowed. */
SHOAL_API void shoal_safetensors_writer_close(SHOAL_TAKES shoal_safetensors_writer *writer);

SHOAL_END_DECLS

#endif
