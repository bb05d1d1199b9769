/* SPDX-License-Identifier: MIT */
/*
 * Checkpoints of other tools: whole safetensors files in a directory, either model.safetensors alone, or several with
 * model.safetensors.index.json, whose "weight_map" tells which tensor is in which file. They are turned into an index
 * without sums, in which all tensors are in the section of the model.
 */
#ifndef CHECKPOINT_LOAD_FOREIGN_H
#define CHECKPOINT_LOAD_FOREIGN_H

#include <stddef.h>

#include "checkpoint/index/index.h"

#define FOREIGN_INDEX_NAME "model.safetensors.index.json"
#define FOREIGN_FILE_NAME "model.safetensors"

/*
 * Reads the headers of all files. `text` has `bytes` bytes and is that of FOREIGN_INDEX_NAME; it is NULL if the
 * directory has FOREIGN_FILE_NAME only. Errors name the file. On failure nothing is left to free.
 */
shoal_status load_foreign_read(const char *directory, const char *text, size_t bytes,
                               struct checkpoint_index *index_out);

/* Frees what load_foreign_read has made. Zeros are allowed. */
void load_foreign_free(struct checkpoint_index *index);

#endif
