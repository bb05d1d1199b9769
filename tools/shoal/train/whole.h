/* SPDX-License-Identifier: MIT */
/* Whole parameters of a model that ranks share, on rank 0: for their digest and for samples. */
#ifndef TRAIN_WHOLE_H
#define TRAIN_WHOLE_H

#include "train/job.h"

/*
 * Gathers the whole model on rank 0. There *digest_out is a hash of all parameters in the order of the model, and
 * *whole_out, if it is not NULL, a plain GPT with these values; free it with shoal_module_unref. Other ranks get 0 and
 * NULL. Collective, except in mode none.
 */
shoal_status train_whole(struct train_job *job, uint64_t *digest_out, shoal_module **whole_out);

#endif
