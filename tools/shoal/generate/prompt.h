/* SPDX-License-Identifier: MIT */
/* What `shoal generate` begins with, and how its tokens are printed. */
#ifndef GENERATE_PROMPT_H
#define GENERATE_PROMPT_H

#include "generate/options.h"
#include "model/describe.h"
#include "text/show.h"
#include "text/tokenizer.h"

/* How tokens of a model are written: as bytes, by a tokenizer, or as numbers. */
struct writing {
    bool is_bytes;
    struct tokenizer *tokenizer; /* NULL if there is none */
    struct show show;
    size_t n_numbers; /* that were printed */
};

/* Opens the tokenizer, if one was given or is beside the model. writing_close closes it. */
shoal_status writing_open(const struct generate_options *options, const struct model_description *description,
                          struct writing *writing_out);
void writing_close(struct writing *writing);

/* The tokens of the prompt, at least one; all are of the model. */
shoal_status prompt_read(const struct generate_options *options, const struct model_description *description,
                         struct writing *writing, struct token_list *prompt_out);

/* Prints a token to standard output. */
void writing_print(struct writing *writing, int32_t token);
/* Ends the line. */
void writing_end(struct writing *writing);

#endif
