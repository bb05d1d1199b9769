/* SPDX-License-Identifier: MIT */
/*
 * What model a directory has: a checkpoint of `shoal train` or of a program that saved a GPT, or a GPT-2 of Hugging
 * Face. The shapes of the tensors give all sizes of the model except the number of heads, which the checkpoint or
 * config.json says.
 */
#ifndef MODEL_DESCRIBE_H
#define MODEL_DESCRIBE_H

#include "shoal/status.h"
#include "shoal_nn/modules.h"

#include <stdbool.h>
#include <stdint.h>

/* The vocabulary of models whose tokens are bytes, unless they were loaded with a larger one. */
#define MODEL_BYTE_VOCABULARY 256

struct model_description {
    bool is_foreign; /* of Hugging Face */
    int64_t step;    /* of a checkpoint among others in the directory; -1 if the directory is the model */
    bool is_bytes;   /* tokens are bytes */
    /* n_heads is 0 if nothing says it. `dropout` is that of the training, 0 if nothing says it. */
    shoal_nn_gpt_options gpt;
};

/* Local; reads no values. Errors name the directory or the file, and say which sizes contradict each other. */
shoal_status model_describe(const char *directory, struct model_description *description_out);

/*
 * Settles the number of heads: `given` is what the user has given, 0 if nothing. An error if nothing says how many
 * there are, if both say different things, or if they do not divide the width.
 */
shoal_status model_settle_heads(struct model_description *description, const char *directory, int64_t given);

#endif
