/* SPDX-License-Identifier: MIT */
/* Prints what the model writes after a prompt, as `shoal generate` does with its defaults. */
#include "train/sample.h"
#include "model/sampler.h"
#include "text/show.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

#include <stdio.h>
#include <string.h>

/* What a sample goes on from. Tokens of a file are no text: any of them begins. */
static const char *find_prompt(const struct train_job *job)
{
    if (job->options->prompt) {
        return job->options->prompt;
    }
    return job->data->token_bytes == 1 ? "\n" : "\1";
}

shoal_status train_sample_check(const struct train_job *job)
{
    const char *prompt = find_prompt(job);
    for (size_t i = 0; job->options->n_sample > 0 && prompt[i]; i++) {
        if ((unsigned char)prompt[i] >= job->gpt.vocabulary) {
            return error_set(SHOAL_ERR_INVALID, "--prompt: byte %zu is %d, but the model has %lld tokens", i,
                             (int)(unsigned char)prompt[i], (long long)job->gpt.vocabulary);
        }
    }
    return SHOAL_OK;
}

static void print_tokens(const struct train_job *job, const struct sampler *sampler)
{
    struct show show = {.out = stdout};
    for (int64_t i = 0; i < sampler->n_tokens; i++) {
        const char byte = (char)sampler->tokens[i];
        if (job->data->token_bytes > 1) {
            printf(" %d", (int)sampler->tokens[i]);
        } else {
            show_bytes(&show, &byte, 1);
        }
    }
    show_end(&show);
}

static shoal_status write_sample(const struct train_job *job, struct sampler *sampler, const int32_t *prompt,
                                 size_t n_prompt)
{
    TRY(sampler_make(sampler, prompt, n_prompt, (size_t)job->options->n_sample));
    for (int64_t i = 0; i < job->options->n_sample; i++) {
        int32_t token = 0;
        TRY(sampler_next(sampler, &token));
    }
    print_tokens(job, sampler);
    return SHOAL_OK;
}

shoal_status train_sample(const struct train_job *job, shoal_module *whole)
{
    const char *text = find_prompt(job);
    size_t n_prompt = strlen(text);
    struct sampler sampler = {.module = whole,
                              .context = job->gpt.context,
                              .vocabulary = job->gpt.vocabulary,
                              .seed = job->gpt.seed,
                              .temperature = SAMPLER_TEMPERATURE,
                              .top_k = SAMPLER_TOP_K};
    int32_t *prompt = mem_alloc_zeroed(n_prompt, sizeof(prompt[0]));
    TRY(prompt ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    for (size_t i = 0; i < n_prompt; i++) {
        prompt[i] = (unsigned char)text[i];
    }
    shoal_status status = write_sample(job, &sampler, prompt, n_prompt);
    sampler_free(&sampler);
    mem_free(prompt);
    return status;
}
