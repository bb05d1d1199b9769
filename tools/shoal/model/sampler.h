/* SPDX-License-Identifier: MIT */
/* Draws tokens from a model, one after the other. */
#ifndef MODEL_SAMPLER_H
#define MODEL_SAMPLER_H

#include "shoal/group.h"
#include "shoal/module.h"
#include "shoal_nn/modules.h"

#include <stddef.h>
#include <stdint.h>

/* How `shoal train` draws, and the defaults of `shoal generate`. */
#define SAMPLER_TEMPERATURE 0.7
#define SAMPLER_TOP_K 40
/* The same for tables of options. */
#define SAMPLER_TEMPERATURE_TEXT "0.7"
#define SAMPLER_TOP_K_TEXT "40"

struct sampler {
    shoal_module *module; /* a GPT, whole or sharded over `group` */
    shoal_group
        *group; /* of ranks that draw together: all get the token of the first; NULL if one process does */
    int64_t context;
    int64_t vocabulary;
    uint64_t seed;
    double temperature; /* 0: always the likeliest token, of several the first */
    int64_t top_k;      /* draws from so many of the likeliest; 0: from all */
    int32_t *tokens;    /* the prompt and what was drawn, with room for more */
    int64_t n_tokens;   /* at least 1 */
    double *weights;    /* memory for `vocabulary` numbers */
    double *sorted;     /* for another so many */
};

/* Makes the memory, for so many tokens, and copies the prompt. */
shoal_status sampler_make(struct sampler *sampler, const int32_t *prompt, size_t n_prompt, size_t n_more);
void sampler_free(struct sampler *sampler);

/* Draws the next token, after the last ones that fit into the context, and appends it. Collective if there is a group. */
shoal_status sampler_next(struct sampler *sampler, int32_t *token_out);

/*
 * Computes the logits after each of `count` tokens, at most the context. *logits_out has count x vocabulary numbers, and
 * belongs to the innermost scope. Collective if the module is sharded.
 */
shoal_status sampler_logits(shoal_module *module, const int32_t *tokens, int64_t count,
                            shoal_tensor **logits_out);

#endif
