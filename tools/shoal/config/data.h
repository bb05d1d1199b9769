/* SPDX-License-Identifier: MIT */
/*
 * What `shoal train` learns from: tokens, and the rows of a batch. The tokens of a sample depend on the seed, the step
 * and the number of the sample in the whole batch, so it does not matter how ranks divide a batch.
 */
#ifndef CONFIG_DATA_H
#define CONFIG_DATA_H

#include "config/options.h"

#include "shoal/status.h"

#include <stddef.h>

struct train_data {
    int fd;              /* of a file; -1 if the tokens are in `text` */
    char *text;          /* NULL if the tokens are in a file */
    size_t header_bytes; /* of a file of llm.c; otherwise 0 */
    size_t token_bytes;  /* 1: bytes of text; 2 or 4: tokens of a file */
    size_t n_tokens;
    size_t n_train; /* of them: the first ones, from which batches are drawn; the others are for --val */
    int64_t vocabulary;
    uint64_t hash;       /* of all tokens */
    uint64_t first_hash; /* of the first MiB of them */
    char name[256];
};

/* Opens the file of the options, or the program's own source, and reads all of it once. */
shoal_status train_data_open(const struct train_options *options, struct train_data *data);
/* Once the context is known: whether every sample of a step can have a row of its own. */
shoal_status train_data_check(const struct train_data *data, int64_t context, int64_t n_samples);
void train_data_close(struct train_data *data);

/* Samples first .. first + n_rows - 1 of a step: the tokens of each row, and for each the token that follows. */
shoal_status train_data_fill(const struct train_data *data, uint64_t seed, int64_t step, int64_t first,
                             int64_t n_rows, int64_t context, int32_t *tokens, int32_t *targets);

/* One row that begins with token number `at`. */
shoal_status train_data_row(const struct train_data *data, size_t at, int64_t context, int32_t *tokens,
                            int32_t *targets);

#endif
