/* SPDX-License-Identifier: MIT */
/* Whether the parts of an index that was read contradict each other. SHOAL_ERR_INVALID says which and how. */
#ifndef CHECKPOINT_INDEX_CHECK_H
#define CHECKPOINT_INDEX_CHECK_H

#include "checkpoint/index.h"
#include "checkpoint/index_names.h"

/* The shape can be counted, in elements and in bytes. */
shoal_status index_check_shape(const struct index_tensor *tensor);

/* A piece lies in its tensor and in its file. The piece's file is one of the index. */
shoal_status index_check_piece(const struct checkpoint_index *index, const struct index_tensor *tensor,
                               const struct index_piece *piece);

/* Sorts the pieces. Each element is in one of them. */
shoal_status index_check_pieces(struct index_tensor *tensor);

/* Sorts the runs. Each byte is in one of them. */
shoal_status index_check_runs(struct index_file *file);

/* No two pieces share bytes of a file, and no two files a name. */
shoal_status index_check_files(const struct checkpoint_index *index);

/* Names and aliases of a section differ: all of them are put into `names`. */
shoal_status index_check_names(const struct checkpoint_index *index, struct arena *arena,
                               struct index_names *names);

#endif
