/* SPDX-License-Identifier: MIT */
/*
 * One training of a case: in one process with whole parameters, or fully sharded on ranks that are threads. Each block
 * is a unit, and everything else is one more unit.
 *
 * Ranks divide the rows of the batch: rank r of n has rows r * batch / n to (r + 1) * batch / n - 1. The recorded loss
 * is the mean over all targets that count, so a rank multiplies the mean over its own targets by
 *
 *     n * (targets of the rank that count) / (targets of all ranks that count)
 *
 * and the average of gradients over the ranks is the gradient of the recorded loss. A rank without such targets, or
 * without rows, computes the first row with other targets and the weight 0.
 */
#ifndef REPLAY_GPT2_RUN_H
#define REPLAY_GPT2_RUN_H

#include <stdbool.h>
#include <stddef.h>

#include "fsdp_checks.h"
#include "gpt2_case.h"
#include "shoal/safetensors.h"

#define GPT2_LOGITS_BOUND 1e-5
#define GPT2_LOSS_BOUND 2e-6
#define GPT2_GRADIENT_BOUND 5e-5
/* Final parameters, differences of all of them: root of the mean square, the largest, and how many are above LIMIT. */
#define GPT2_RMS_BOUND 5e-6
#define GPT2_LARGEST_BOUND 2e-3
#define GPT2_LIMIT 1e-5
#define GPT2_SHARE_BOUND 5e-3

struct gpt2_run {
    const struct gpt2_case *plan;
    const shoal_safetensors *file;
    struct fsdp_checks *checks; /* of this training */
    int n_ranks;
    bool is_sharded;
};

/* Adds a check for each result that the file has, and fills it in. A failure is an error of the training. */
shoal_status gpt2_run(struct gpt2_run *self);

#endif
