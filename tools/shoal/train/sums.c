/* SPDX-License-Identifier: MIT */
/*
 * Adds gradients of several parts in one process in the order in which the reductions of ranks add them: from the first
 * part to the last, then one division. With replicas this is done for the parts of each replica, and then for the
 * results.
 */
#include "train/job.h"

#include "base/error.h"
#include "base/try.h"
#include "shoal/autograd.h"

#include <stdlib.h>
#include <string.h>

static size_t count_of(const struct train_job *job, size_t index)
{
    return (size_t)shoal_tensor_count(job->parameters[index]);
}

static bool has_sums(const struct train_job *job)
{
    return job->mode == TRAIN_SINGLE && job->n_replicas * job->n_parts > 1;
}

static bool make_arrays(const struct train_job *job, float ***arrays_out)
{
    float **arrays = calloc(job->n_parameters, sizeof(arrays[0]));
    *arrays_out = arrays;
    for (size_t i = 0; arrays && i < job->n_parameters; i++) {
        arrays[i] = malloc(count_of(job, i) * sizeof(arrays[i][0]));
        if (!arrays[i]) {
            return false;
        }
    }
    return arrays != NULL;
}

static shoal_status wrap_last(struct train_job *job)
{
    float **last = job->sums.outer ? job->sums.outer : job->sums.inner;
    for (size_t i = 0; i < job->n_parameters; i++) {
        const shoal_tensor *parameter = job->parameters[i];
        shoal_tensor *made = shoal_from_memory(last[i], shoal_tensor_shape(parameter),
                                               shoal_tensor_n_dims(parameter), SHOAL_F32, NULL, NULL, NULL);
        if (!made) {
            return error_set(SHOAL_ERR_STATE, "sums of gradients: %s", shoal_error_text());
        }
        job->sums.gradients[i] = shoal_tensor_ref(made);
    }
    return SHOAL_OK;
}

shoal_status train_sums_make(struct train_job *job)
{
    if (!has_sums(job)) {
        return SHOAL_OK;
    }
    job->sums.gradients = calloc(job->n_parameters, sizeof(job->sums.gradients[0]));
    if (!job->sums.gradients || !make_arrays(job, &job->sums.inner) ||
        (job->n_replicas > 1 && !make_arrays(job, &job->sums.outer))) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for sums of gradients");
    }
    return wrap_last(job);
}

static void free_arrays(const struct train_job *job, float **arrays)
{
    for (size_t i = 0; arrays && i < job->n_parameters; i++) {
        free(arrays[i]);
    }
    free(arrays);
}

void train_sums_free(struct train_job *job)
{
    for (size_t i = 0; job->sums.gradients && i < job->n_parameters; i++) {
        shoal_tensor_unref(job->sums.gradients[i]);
    }
    free(job->sums.gradients);
    free_arrays(job, job->sums.inner);
    free_arrays(job, job->sums.outer);
    job->sums = (struct train_sums){0};
}

static void add(float *sum, const float *values, size_t count, bool is_first)
{
    if (is_first) {
        memcpy(sum, values, count * sizeof(sum[0]));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        sum[i] += values[i];
    }
}

static void divide(float *sum, size_t count, int64_t divisor)
{
    for (size_t i = 0; i < count && divisor > 1; i++) {
        sum[i] /= (float)divisor;
    }
}

shoal_status train_sums_add(struct train_job *job, int64_t replica, int64_t part)
{
    for (size_t i = 0; i < job->n_parameters && has_sums(job); i++) {
        size_t count = count_of(job, i);
        shoal_tensor *gradient = shoal_grad(job->parameters[i]);
        const float *values = gradient ? shoal_data(gradient) : NULL;
        if (!values || shoal_tensor_dtype(gradient) != SHOAL_F32 || !shoal_tensor_is_contiguous(gradient)) {
            return error_set(SHOAL_ERR_STATE, "parameter %zu has no gradient in f32: %s", i,
                             shoal_error_text());
        }
        add(job->sums.inner[i], values, count, part == 0);
        TRY(shoal_set_grad(job->parameters[i], NULL));
        if (part == job->n_parts - 1) {
            divide(job->sums.inner[i], count, job->n_parts);
        }
        if (part == job->n_parts - 1 && job->sums.outer) {
            add(job->sums.outer[i], job->sums.inner[i], count, replica == 0);
        }
    }
    return SHOAL_OK;
}

shoal_status train_sums_finish(struct train_job *job)
{
    for (size_t i = 0; i < job->n_parameters && has_sums(job); i++) {
        if (job->sums.outer) {
            divide(job->sums.outer[i], count_of(job, i), job->n_replicas);
        }
        TRY(shoal_set_grad(job->parameters[i], job->sums.gradients[i]));
    }
    return SHOAL_OK;
}
