/* SPDX-License-Identifier: MIT */
/* What --resume makes of the options and of the configuration of the checkpoint. */
#ifndef CONFIG_MERGE_H
#define CONFIG_MERGE_H

#include "config/config.h"

/* What is another one from here on. "" if nothing is. */
struct train_changes {
    char options[512]; /* "--lr 0.001 -> 0.1, --steps 8 -> 9" */
    char split[256];   /* "on 2 ranks instead of 3: --batch 6" */
};

/*
 * Options that were not given become those of the configuration. If there are `n_ranks` of a launcher (0: there is none),
 * or --ranks says how many, the rows of a step are divided among these; otherwise the ranks that shoal train had started
 * are started again. The options refer to the configuration from then on.
 *
 * SHOAL_ERR_INVALID: options that were given cannot hold. The text lists all of them, old -> new, and what works.
 */
shoal_status train_merge(const struct train_config *config, int n_ranks, struct train_options *options,
                         struct train_changes *changes);

/* Whether the data is what the run has learnt so far; `text` says what is not. */
bool train_merge_has_same_data(const struct train_config *config, const struct train_options *options,
                               const struct train_data *data, char *text, size_t bytes);

#endif
