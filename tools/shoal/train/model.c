/* SPDX-License-Identifier: MIT */
/* Makes the model of `shoal train`, its values, optimizer and schedule, and divides it among ranks as the mode says. */
#include "train/job.h"
#include "train/load.h"
#include "train/lock.h"
#include "train/step.h"
#include "train/validate.h"

#include "base/error.h"
#include "base/try.h"
#include "shoal/autograd.h"
#include "shoal/ddp.h"
#include "shoal/group.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

#include <stdlib.h>

#define WEIGHT_DECAY 0.1
#define BETA2 0.95

/* How each mode shares the model. */
static const struct mode_row {
    bool is_sharded; /* by shoal_fully_shard over all ranks */
    shoal_sharded sharded;
} mode_rows[TRAIN_N_MODES] = {
    [TRAIN_NONE] = {false, SHOAL_SHARDED_PARAMETERS}, [TRAIN_SINGLE] = {false, SHOAL_SHARDED_PARAMETERS},
    [TRAIN_DDP] = {false, SHOAL_SHARDED_PARAMETERS},  [TRAIN_ZERO1] = {true, SHOAL_SHARDED_STATE},
    [TRAIN_ZERO2] = {true, SHOAL_SHARDED_GRADIENTS},  [TRAIN_FSDP] = {true, SHOAL_SHARDED_PARAMETERS},
    [TRAIN_HSDP] = {true, SHOAL_SHARDED_PARAMETERS},
};

/* Sharing ---------------------------------------------------------------------------------------------- */

/* A unit for each block, and one for the rest. */
static shoal_status shard_units(struct train_job *job, const shoal_fully_shard_options *how)
{
    for (int64_t i = 0; i < job->gpt.n_layers; i++) {
        TRY(shoal_fully_shard(shoal_nn_gpt_block(job->module, i), how));
    }
    return shoal_fully_shard(job->module, how);
}

static shoal_status make_mesh(struct train_job *job)
{
    const int shape[] = {(int)job->n_replicas, (int)job->n_parts};
    const char *const names[] = {"replicas", "shards"};
    return shoal_mesh_create(job->world, "cpu", NULL, shape, 2, names, &job->mesh);
}

/* Also for whole parameters in bf16: their f32 values are what an optimizer sees, as those of shards are. */
static shoal_status shard(struct train_job *job)
{
    const struct mode_row *row = &mode_rows[job->mode];
    shoal_fully_shard_options how = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    how.group = job->group;
    how.sharded = row->sharded;
    how.is_replicated = !row->is_sharded;
    if (job->options->dtype == TRAIN_BF16) {
        how.param_dtype = SHOAL_BF16;
        how.reduce_dtype = SHOAL_F32;
    }
    if (train_job_is_local(job) && train_updates_early(job)) {
        /* Copies in bf16 are kept for the backward pass, instead of cast again: gradients take no memory then. */
        how.reshard = SHOAL_RESHARD_NEVER;
    }
    if (train_job_is_local(job) && job->n_ranks > 1) {
        TRY(shoal_group_create(job->world, &job->rank, 1, "train", &how.group));
    }
    if (job->mode == TRAIN_HSDP) {
        TRY(make_mesh(job));
        how.group = NULL;
        how.mesh = job->mesh;
    }
    return shard_units(job, &how);
}

static shoal_status share(struct train_job *job)
{
    if (mode_rows[job->mode].is_sharded || job->options->dtype == TRAIN_BF16) {
        return shard(job);
    }
    if (job->mode == TRAIN_DDP) {
        shoal_ddp_options how = SHOAL_DDP_OPTIONS_INIT;
        how.group = job->group;
        how.keeps_parameters = true; /* every rank made the same ones */
        return shoal_ddp(job->module, &how);
    }
    return SHOAL_OK;
}

/* Making ----------------------------------------------------------------------------------------------- */

static shoal_status count_params(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    (void)next;
    *(size_t *)context += (size_t)shoal_tensor_count(entry->tensor);
    return SHOAL_OK;
}

/* Sharded models are made without memory, so that no rank ever has a whole one. */
static shoal_status make_module(struct train_job *job)
{
    bool is_meta = mode_rows[job->mode].is_sharded;
    job->gpt.device = is_meta ? SHOAL_META : SHOAL_CPU;
    TRY(shoal_nn_gpt_create(&job->gpt, &job->module));
    TRY(shoal_module_walk(job->module, SHOAL_WALK_PARAMETERS, count_params, &job->n_params));
    TRY(share(job));
    if (job->options->load) {
        TRY(train_load(job));
    } else if (is_meta) {
        TRY(shoal_nn_initialize_modules(job->module, job->gpt.seed));
    }
    return shoal_is_fully_sharded(job->module) ? shoal_fully_shard_context(job->module, &job->fsdp)
                                               : SHOAL_OK;
}

static shoal_status list_parameters(struct train_job *job)
{
    shoal_tensor *const *parameters = shoal_module_parameters(job->module, &job->n_parameters);
    if (!parameters) {
        return shoal_scope_error();
    }
    job->parameters = calloc(job->n_parameters, sizeof(job->parameters[0]));
    if (!job->parameters) {
        job->n_parameters = 0;
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for a list of parameters");
    }
    for (size_t i = 0; i < job->n_parameters; i++) {
        job->parameters[i] = shoal_tensor_ref(parameters[i]);
    }
    return SHOAL_OK;
}

static shoal_status make_set(struct train_job *job, shoal_tensor **set)
{
    const int64_t shape[] = {job->options->batch, job->options->context};
    const int64_t three = 3;
    for (size_t i = 0; i < job->n_inputs; i++) {
        shoal_tensor *made =
            i == TRAIN_POSITION ? shoal_empty(&three, 1, SHOAL_I64) : shoal_empty(shape, 2, SHOAL_I32);
        set[i] = shoal_tensor_ref(made);
    }
    return shoal_scope_error();
}

static shoal_status make_inputs(struct train_job *job)
{
    job->n_inputs = job->gpt.dropout > 0.0 ? TRAIN_N_INPUTS : TRAIN_POSITION;
    job->n_sets = job->options->compiles ? (size_t)job->n_micro : 1;
    job->inputs = calloc(job->n_sets * job->n_inputs, sizeof(job->inputs[0]));
    job->losses = calloc(job->n_sets, sizeof(job->losses[0]));
    if (!job->inputs || !job->losses) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for a list of inputs");
    }
    for (size_t i = 0; i < job->n_sets; i++) {
        TRY(make_set(job, job->inputs + i * job->n_inputs));
    }
    return SHOAL_OK;
}

static shoal_status make_optimizer(struct train_job *job)
{
    shoal_nn_adamw_options options = SHOAL_NN_ADAMW_OPTIONS_INIT;
    shoal_nn_param_group vectors = SHOAL_NN_PARAM_GROUP_INIT;
    options.lr = job->options->lr;
    options.beta2 = BETA2;
    options.weight_decay = WEIGHT_DECAY;
    vectors.max_dims = 1; /* biases and norms */
    vectors.weight_decay = 0.0;
    return shoal_nn_adamw_create_for(job->module, &options, &vectors, 1, &job->optimizer);
}

static shoal_status make_in_scope(struct train_job *job)
{
    TRY(make_module(job));
    TRY(list_parameters(job));
    TRY(make_inputs(job));
    TRY(make_optimizer(job));
    TRY(train_updates_make(job));
    TRY(train_sums_make(job));
    return job->options->compiles ? train_step_compile(job) : SHOAL_OK;
}

shoal_status train_model_make(struct train_job *job)
{
    TRY(shoal_scope_begin());
    shoal_status status = make_in_scope(job);
    if (status == SHOAL_ERR_NO_MEMORY) {
        status = error_prefix(status, "a model of %lld layers and width %lld", (long long)job->gpt.n_layers,
                              (long long)job->gpt.width);
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

void train_job_free(struct train_job *job)
{
    train_lock_free(job->lock);
    shoal_items_free(job->items);
    train_validate_free(job);
    shoal_compiled_free(job->compiled);
    shoal_nn_optimizer_free(job->optimizer);
    train_sums_free(job);
    for (size_t i = 0; job->inputs && i < job->n_sets * job->n_inputs; i++) {
        shoal_tensor_unref(job->inputs[i]);
    }
    free(job->inputs);
    free(job->losses);
    for (size_t i = 0; i < job->n_parameters; i++) {
        shoal_tensor_unref(job->parameters[i]);
    }
    free(job->parameters);
    shoal_module_unref(job->module);
    free(job->updates); /* hooks of the parameters have been told of them */
    shoal_mesh_free(job->mesh);
    *job = (struct train_job){0};
}
