/* SPDX-License-Identifier: MIT */
/*
 * Each token is drawn with a random number that depends on the seed and on how many tokens there were before, so the same
 * seed gives the same tokens on any number of ranks.
 */
#include "model/sampler.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal_nn/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

shoal_status sampler_make(struct sampler *sampler, const int32_t *prompt, size_t n_prompt, size_t n_more)
{
    sampler->tokens = mem_alloc_zeroed(n_prompt + n_more, sizeof(sampler->tokens[0]));
    sampler->weights = mem_alloc_zeroed((size_t)sampler->vocabulary, sizeof(sampler->weights[0]));
    sampler->sorted = mem_alloc_zeroed((size_t)sampler->vocabulary, sizeof(sampler->sorted[0]));
    if (!sampler->tokens || !sampler->weights || !sampler->sorted) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(sampler->tokens, prompt, n_prompt * sizeof(prompt[0]));
    sampler->n_tokens = (int64_t)n_prompt;
    return SHOAL_OK;
}

void sampler_free(struct sampler *sampler)
{
    mem_free(sampler->tokens);
    mem_free(sampler->weights);
    mem_free(sampler->sorted);
    sampler->tokens = NULL;
    sampler->weights = NULL;
    sampler->sorted = NULL;
}

/* Weights ---------------------------------------------------------------------------------------------- */

static int compare_down(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a < b) - (a > b);
}

/* Sets all weights to 0 except the top_k largest; of equal ones the first stay. */
static void keep_likeliest(struct sampler *sampler)
{
    int64_t n = sampler->vocabulary;
    if (sampler->top_k == 0 || sampler->top_k >= n) {
        return;
    }
    memcpy(sampler->sorted, sampler->weights, (size_t)n * sizeof(sampler->sorted[0]));
    qsort(sampler->sorted, (size_t)n, sizeof(sampler->sorted[0]), compare_down);
    double lowest = sampler->sorted[sampler->top_k - 1];
    int64_t n_equal = sampler->top_k; /* that stay */
    for (int64_t i = 0; i < sampler->top_k; i++) {
        n_equal -= sampler->sorted[i] > lowest ? 1 : 0;
    }
    for (int64_t i = 0; i < n; i++) {
        bool is_equal = sampler->weights[i] == lowest;
        bool stays = sampler->weights[i] > lowest || (is_equal && n_equal > 0);
        n_equal -= is_equal ? 1 : 0;
        sampler->weights[i] = stays ? sampler->weights[i] : 0.0;
    }
}

static int64_t find_largest(const float *logits, int64_t n_logits)
{
    int64_t largest = 0;
    for (int64_t i = 1; i < n_logits; i++) {
        largest = logits[i] > logits[largest] ? i : largest;
    }
    return largest;
}

/* Fills the weights, and returns their sum. */
static double weigh(struct sampler *sampler, const float *logits, double largest)
{
    double sum = 0.0;
    for (int64_t i = 0; i < sampler->vocabulary; i++) {
        sampler->weights[i] = exp(((double)logits[i] - largest) / sampler->temperature);
    }
    keep_likeliest(sampler);
    for (int64_t i = 0; i < sampler->vocabulary; i++) {
        sum += sampler->weights[i];
    }
    return sum;
}

static int64_t choose(const double *weights, int64_t n_weights, double point)
{
    int64_t chosen = 0;
    for (int64_t i = 0; i < n_weights; i++) {
        chosen = weights[i] > 0.0 ? i : chosen;
        point -= weights[i];
        if (point < 0.0 && weights[i] > 0.0) {
            break;
        }
    }
    return chosen;
}

static shoal_status check_finite(const float *logits, int64_t n_logits)
{
    for (int64_t i = 0; i < n_logits; i++) {
        if (!isfinite(logits[i])) {
            return error_set(SHOAL_ERR_STATE, "the model gives token %lld the logit %g: nothing can be drawn",
                             (long long)i, (double)logits[i]);
        }
    }
    return SHOAL_OK;
}

static shoal_status draw(struct sampler *sampler, const float *logits, int64_t *token_out)
{
    const shoal_nn_draws draws = {sampler->seed, shoal_nn_stream("sample"), 0, (uint64_t)sampler->n_tokens};
    uint32_t word = 0;
    TRY(check_finite(logits, sampler->vocabulary));
    int64_t largest = find_largest(logits, sampler->vocabulary);
    *token_out = largest;
    if (sampler->temperature == 0.0) {
        return SHOAL_OK;
    }
    TRY(shoal_nn_words(&draws, 0, 1, &word));
    double sum = weigh(sampler, logits, (double)logits[largest]);
    *token_out = choose(sampler->weights, sampler->vocabulary, sum * ((double)word / 4294967296.0));
    return SHOAL_OK;
}

/* Tokens ----------------------------------------------------------------------------------------------- */

shoal_status sampler_logits(shoal_module *module, const int32_t *tokens, int64_t count,
                            shoal_tensor **logits_out)
{
    const int64_t shape[] = {1, count};
    void *memory = (void *)(uintptr_t)tokens; /* it is only read */
    shoal_tensor *input = shoal_from_memory(memory, shape, 2, SHOAL_I32, NULL, NULL, NULL);
    TRY(shoal_scope_set_grad(false));
    return shoal_module_call(module, &input, 1, logits_out, 1);
}

static shoal_status next_in_scope(struct sampler *sampler, int64_t *token_out)
{
    bool is_long = sampler->n_tokens > sampler->context;
    int64_t n_seen = is_long ? sampler->context : sampler->n_tokens;
    shoal_tensor *logits = NULL;
    TRY(sampler_logits(sampler->module, sampler->tokens + sampler->n_tokens - n_seen, n_seen, &logits));
    const float *values = shoal_data(logits);
    if (!values) {
        return error_set(SHOAL_ERR_STATE, "logits cannot be read: %s", shoal_error_text());
    }
    return draw(sampler, values + (n_seen - 1) * sampler->vocabulary, token_out);
}

shoal_status sampler_next(struct sampler *sampler, int32_t *token_out)
{
    int64_t token = 0;
    TRY(shoal_scope_begin());
    shoal_status status = next_in_scope(sampler, &token);
    shoal_status ended = shoal_scope_end();
    TRY(status == SHOAL_OK ? ended : status);
    if (sampler->group) {
        /* Processors of different kinds may round differently, and ranks must agree on what comes next. */
        TRY(shoal_group_broadcast(sampler->group, &token, 1, SHOAL_I64, 0));
    }
    *token_out = (int32_t)token;
    sampler->tokens[sampler->n_tokens++] = *token_out;
    return SHOAL_OK;
}
