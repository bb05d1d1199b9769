/* SPDX-License-Identifier: MIT */
/*
 * For whole tensors of which ranks have parts that are not contiguous in the file, such as columns. Such a tensor is
 * cut into slices that are contiguous, and each slice is assembled on one rank. In every round each rank gets one
 * slice, by one all_to_all. A round needs at most 24 MiB for what is sent, and 8 MiB each for what arrives and for
 * the slice.
 */
#ifndef CHECKPOINT_SAVE_EXCHANGE_H
#define CHECKPOINT_SAVE_EXCHANGE_H

#include "checkpoint/save/save.h"

/* Called with each slice of this rank, in the order of files, contiguous; the memory is used again afterwards. */
typedef shoal_status (*save_slice_visit)(void *context, const struct save_job *slice);

/*
 * Collective. If a visit fails, this rank makes no more visits, but still takes part in all rounds, because other ranks
 * wait for it. The failure is returned at the end, on this rank only.
 */
shoal_status save_exchange(struct save *save, save_slice_visit visit, void *context);

#endif
