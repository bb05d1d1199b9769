/* SPDX-License-Identifier: MIT */
/* How a job divides its steps among ranks. */
#include "train/job.h"
#include "config/config.h"
#include "model/describe.h"

#include "base/trace.h"
#include "shoal/group.h"
#include "shoal_nn/nn.h"

#include <inttypes.h>
#include <stdio.h>

#define LOWEST_RATE 0.1 /* of the highest */

static shoal_nn_gpt_options make_gpt(const struct train_options *options, const struct train_data *data)
{
    shoal_nn_gpt_options gpt = SHOAL_NN_GPT_OPTIONS_INIT;
    gpt.n_layers = options->n_layers;
    gpt.width = options->width;
    gpt.n_heads = options->n_heads;
    gpt.context = options->context;
    gpt.vocabulary = data->vocabulary;
    if (options->from) {
        gpt.context = options->from->context;
        gpt.vocabulary = options->from->vocabulary;
        gpt.eps = options->from->eps;
    }
    return gpt;
}

void train_job_init(struct train_job *job, const struct train_options *options, const struct train_data *data,
                    shoal_world *world)
{
    const struct tool_parts *parts = &options->accumulate;
    *job = (struct train_job){
        .options = options, .data = data, .mode = (enum train_mode)options->mode, .world = world};
    job->group = shoal_world_group(world);
    job->rank = shoal_world_rank(world);
    job->n_ranks = shoal_world_n_ranks(world);
    bool is_single = job->mode == TRAIN_SINGLE;
    job->n_replicas = is_single ? parts->n_outer : job->mode == TRAIN_HSDP ? options->n_replicas : 1;
    job->n_parts = is_single ? parts->n_inner : job->n_ranks / job->n_replicas;
    job->n_micro = is_single ? 1 : parts->n_inner;
    job->gpt = options->loaded ? options->loaded->gpt : make_gpt(options, data);
    job->gpt.dropout = options->dropout;
    job->gpt.seed = (uint64_t)options->seed;
    if (options->from) {
        (void)snprintf(job->run, sizeof job->run, "%s", options->from->run);
    } else {
        (void)snprintf(job->run, sizeof job->run, "%016" PRIx64, trace_run());
    }
    job->schedule = (shoal_nn_schedule)SHOAL_NN_SCHEDULE_INIT;
    job->schedule.kind = SHOAL_NN_SCHEDULE_COSINE;
    job->schedule.lr = options->lr;
    job->schedule.n_warmup = options->n_warmup;
    job->schedule.n_steps = options->n_steps;
    job->schedule.min_lr = LOWEST_RATE * options->lr;
}

int64_t train_job_samples(const struct train_job *job)
{
    return job->n_replicas * job->n_parts * job->n_micro * job->options->batch;
}

bool train_job_is_local(const struct train_job *job)
{
    return job->mode == TRAIN_SINGLE || job->mode == TRAIN_NONE;
}

shoal_status train_job_agree(struct train_job *job, shoal_status status)
{
    job->is_agreed = status != SHOAL_OK && status != SHOAL_ERR_PEER;
    job->speaker = 0;
    return status;
}

void train_job_products(const struct train_job *job, char text[TRAIN_PRODUCTS_BYTES])
{
    shoal_nn_products info = SHOAL_NN_PRODUCTS_INIT;
    if (shoal_nn_products_info(&info) == SHOAL_OK) {
        (void)snprintf(text, TRAIN_PRODUCTS_BYTES, "%s",
                       job->options->dtype == TRAIN_BF16 ? info.bf16 : info.f32);
    }
}
