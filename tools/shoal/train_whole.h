/* SPDX-License-Identifier: MIT */
/* Whole parameters of a model that ranks share, on rank 0: for their digest and for samples. */
#ifndef TRAIN_WHOLE_H
#define TRAIN_WHOLE_H

#include "train_job.h"

/*
 * Collective, but in mode none. On rank 0 digest_out is a hash of all parameters in the order of the model, and *whole_out,
 * if it is not NULL, a plain GPT with these values, to be freed by shoal_module_unref; elsewhere they are 0 and NULL.
 */
shoal_status train_whole(struct train_job *job, uint64_t *digest_out, shoal_module **whole_out);

#endif
