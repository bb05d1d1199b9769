/* SPDX-License-Identifier: MIT */
/* Checks that the parts of an index that was read do not contradict each other. Errors are SHOAL_ERR_INVALID. */
#ifndef CHECKPOINT_INDEX_CHECK_H
#define CHECKPOINT_INDEX_CHECK_H

#include "checkpoint/index/index.h"
#include "checkpoint/index/names.h"

/* Checks that the number of elements and of bytes can be counted. */
shoal_status index_check_shape(const struct index_tensor *tensor);

/* Checks that a piece lies in its tensor and in its file. The piece's file must be one of the index. */
shoal_status index_check_piece(const struct checkpoint_index *index, const struct index_tensor *tensor,
                               const struct index_piece *piece);

/* Sorts the pieces, and checks that each element is in exactly one of them. */
shoal_status index_check_pieces(struct index_tensor *tensor);

/* Sorts the runs, and checks that each byte is in exactly one of them. */
shoal_status index_check_runs(struct index_file *file);

/* Checks that no two pieces share bytes of a file, and that no two files have the same name. */
shoal_status index_check_files(const struct checkpoint_index *index);

/* Checks that all names and aliases of a section differ, and puts them into `names`. */
shoal_status index_check_names(const struct checkpoint_index *index, struct map *names);

#endif
