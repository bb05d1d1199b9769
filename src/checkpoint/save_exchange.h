/* SPDX-License-Identifier: MIT */
/*
 * Whole tensors of which ranks have parts that are not contiguous in the file, such as columns. Such a tensor is cut
 * into slices, which are, and each slice is assembled on one rank: in every round all ranks get one, with one
 * all_to_all. A round needs at most 24 MiB for what is sent and 8 MiB each for what arrives and the slice.
 */
#ifndef CHECKPOINT_SAVE_EXCHANGE_H
#define CHECKPOINT_SAVE_EXCHANGE_H

#include "checkpoint/save.h"

/* Called with each slice of this rank, in the order of files, contiguous; the memory is used again afterwards. */
typedef shoal_status (*save_slice_visit)(void *context, const struct save_job *slice);

/*
 * Collective. A visit that fails ends the visits, not the rounds, which others wait for: the failure is returned when
 * all are over, on this rank only.
 */
shoal_status save_exchange(struct save *save, save_slice_visit visit, void *context);

#endif
