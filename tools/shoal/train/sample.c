/* SPDX-License-Identifier: MIT */
/*
 * Draws tokens one after the other. Each is drawn from the most likely ones, with a random number that depends on the
 * seed and on how many tokens were drawn before.
 */
#include "train/sample.h"

#include "base/error.h"
#include "base/try.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEMPERATURE 0.7

enum {
    N_LIKELIEST = 40
};

struct writer {
    const struct train_job *job;
    shoal_module *whole;
    int32_t *tokens; /* the prompt, and what was drawn */
    int64_t n_tokens;
    double *weights; /* of the vocabulary */
};

/* The chance of the N_LIKELIEST-th token, below which none is drawn. */
static double find_lowest(const double *weights, int64_t n_weights)
{
    double best[N_LIKELIEST] = {0};
    for (int64_t i = 0; i < n_weights; i++) {
        double weight = weights[i];
        for (int k = 0; k < N_LIKELIEST && weight > 0.0; k++) {
            if (weight > best[k]) {
                double other = best[k];
                best[k] = weight;
                weight = other;
            }
        }
    }
    return best[N_LIKELIEST - 1];
}

/* Weights of the tokens, and their sum. */
static double weigh(const float *logits, int64_t n_logits, double *weights)
{
    double largest = (double)logits[0];
    double sum = 0.0;
    for (int64_t i = 1; i < n_logits; i++) {
        largest = (double)logits[i] > largest ? (double)logits[i] : largest;
    }
    for (int64_t i = 0; i < n_logits; i++) {
        weights[i] = exp(((double)logits[i] - largest) / TEMPERATURE);
    }
    double lowest = find_lowest(weights, n_logits);
    for (int64_t i = 0; i < n_logits; i++) {
        weights[i] = weights[i] >= lowest ? weights[i] : 0.0;
        sum += weights[i];
    }
    return sum;
}

static int32_t choose(const double *weights, int64_t n_weights, double point)
{
    int64_t chosen = 0;
    for (int64_t i = 0; i < n_weights; i++) {
        chosen = weights[i] > 0.0 ? i : chosen;
        point -= weights[i];
        if (point < 0.0 && weights[i] > 0.0) {
            break;
        }
    }
    return (int32_t)chosen;
}

static shoal_status draw_next(struct writer *writer)
{
    const struct train_job *job = writer->job;
    int64_t n_seen = writer->n_tokens < job->gpt.context ? writer->n_tokens : job->gpt.context;
    const int64_t shape[] = {1, n_seen};
    const shoal_nn_draws draws = {job->gpt.seed, shoal_nn_stream("sample"), 0, (uint64_t)writer->n_tokens};
    shoal_tensor *input =
        shoal_from_memory(writer->tokens + writer->n_tokens - n_seen, shape, 2, SHOAL_I32, NULL, NULL, NULL);
    shoal_tensor *logits = NULL;
    uint32_t word = 0;
    TRY(shoal_scope_set_grad(false));
    TRY(shoal_module_call(writer->whole, &input, 1, &logits, 1));
    const float *values = shoal_data(logits);
    if (!values) {
        return error_set(SHOAL_ERR_STATE, "logits cannot be read: %s", shoal_error_text());
    }
    TRY(shoal_nn_words(&draws, 0, 1, &word));
    double sum = weigh(values + (n_seen - 1) * job->gpt.vocabulary, job->gpt.vocabulary, writer->weights);
    double point = sum * ((double)word / 4294967296.0);
    writer->tokens[writer->n_tokens++] = choose(writer->weights, job->gpt.vocabulary, point);
    return SHOAL_OK;
}

static void print_token(const struct train_job *job, int32_t token)
{
    bool is_plain = token == '\n' || token == '\t' || (token >= ' ' && token <= '~');
    if (job->data->token_bytes > 1) {
        printf(" %d", (int)token);
    } else if (is_plain) {
        (void)putchar((int)token);
    } else {
        printf("\\x%02x", (unsigned)token & 0xffu);
    }
}

static shoal_status write_all(struct writer *writer)
{
    int64_t n_wanted = writer->n_tokens + writer->job->options->n_sample;
    while (writer->n_tokens < n_wanted) {
        TRY(shoal_scope_begin());
        shoal_status status = draw_next(writer);
        shoal_status ended = shoal_scope_end();
        TRY(status == SHOAL_OK ? ended : status);
    }
    for (int64_t i = 0; i < n_wanted; i++) {
        print_token(writer->job, writer->tokens[i]);
    }
    (void)putchar('\n');
    return SHOAL_OK;
}

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

shoal_status train_sample(const struct train_job *job, shoal_module *whole)
{
    const char *prompt = find_prompt(job);
    size_t n_prompt = strlen(prompt);
    struct writer writer = {.job = job, .whole = whole};
    writer.tokens = calloc(n_prompt + (size_t)job->options->n_sample, sizeof(writer.tokens[0]));
    writer.weights = calloc((size_t)job->gpt.vocabulary, sizeof(writer.weights[0]));
    for (size_t i = 0; writer.tokens && i < n_prompt; i++) {
        writer.tokens[writer.n_tokens++] = (unsigned char)prompt[i];
    }
    shoal_status status = writer.tokens && writer.weights
                              ? write_all(&writer)
                              : error_set(SHOAL_ERR_NO_MEMORY, "no memory for a sample");
    free(writer.tokens);
    free(writer.weights);
    return status;
}
