/* SPDX-License-Identifier: MIT */
/* One step: batches, forward and backward of the parts that this process has, clipping, the optimizer. */
#include "train/step.h"
#include "train/graph.h"

#include "base/error.h"
#include "base/try.h"
#include "shoal/autograd.h"
#include "shoal/ddp.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal/update.h"
#include "shoal_nn/nn.h"

#include <stdlib.h>

/* Updates in the backward pass --------------------------------------------------------------------------- */

/*
 * Gradients of shards arrive unit by unit while the backward pass goes on. A parameter is updated at once, while its
 * gradient is in a cache, and the gradient is dropped: its memory serves the next one. The values are those of an
 * optimizer's step after the backward pass, because nothing reads the shard in between: the pass computes with copies,
 * gathered from several ranks or cast. Otherwise it reads the parameters themselves. Where all gradients are needed at
 * once (clipping, sums of parts or of several backward passes) they cannot be dropped.
 */
bool train_updates_early(const struct train_job *job)
{
    bool has_copies = job->options->dtype == TRAIN_BF16 || job->n_parts > 1;
    bool is_sharded =
        job->options->dtype == TRAIN_BF16 || (job->mode >= TRAIN_ZERO1 && job->mode <= TRAIN_HSDP);
    return has_copies && is_sharded && job->mode != TRAIN_SINGLE && job->n_micro == 1 &&
           !job->options->compiles && job->options->clip == 0.0;
}

static shoal_status update(void *context, shoal_tensor *parameter)
{
    const struct train_update *row = context;
    TRY(shoal_nn_optimizer_step_one(row->job->optimizer, row->index));
    return shoal_set_grad(parameter, NULL);
}

shoal_status train_updates_make(struct train_job *job)
{
    if (!train_updates_early(job)) {
        return SHOAL_OK;
    }
    job->updates = calloc(job->n_parameters, sizeof(job->updates[0]));
    if (!job->updates || shoal_nn_optimizer_count(job->optimizer) != job->n_parameters) {
        return job->updates
                   ? error_set(SHOAL_ERR_INTERNAL, "the optimizer has other parameters than the model")
                   : error_set(SHOAL_ERR_NO_MEMORY, "no memory for a list of updates");
    }
    for (size_t i = 0; i < job->n_parameters; i++) {
        job->updates[i] = (struct train_update){.job = job, .index = i};
        TRY(shoal_on_accumulated(job->parameters[i], update, &job->updates[i], NULL));
    }
    return SHOAL_OK;
}

/* Forward and backward ----------------------------------------------------------------------------------- */

/* One backward pass; those of a part are averaged. */
static shoal_status compute(struct train_job *job, shoal_tensor *const *inputs, shoal_tensor **loss_out)
{
    shoal_tensor *arguments[] = {inputs[TRAIN_TOKENS],
                                 job->n_inputs > TRAIN_POSITION ? inputs[TRAIN_POSITION] : NULL};
    shoal_tensor *logits = NULL;
    TRY(shoal_module_call(job->module, arguments, 2, &logits, 1));
    shoal_tensor *loss = shoal_nn_cross_entropy(logits, inputs[TRAIN_TARGETS]);
    if (!loss) {
        return shoal_scope_error();
    }
    *loss_out = loss;
    if (job->updates) {
        TRY(shoal_nn_schedule_next(&job->schedule, job->optimizer));
    }
    if (job->n_micro == 1) {
        return shoal_backward(loss, NULL);
    }
    shoal_tensor *root = shoal_mul_scalar(loss, 1.0 / (double)job->n_micro);
    return root ? shoal_backward(root, NULL) : shoal_scope_error();
}

/* Of several backward passes of a part only the last one reduces. */
static shoal_status set_sync(struct train_job *job, bool is_last)
{
    if (job->n_micro == 1) {
        return SHOAL_OK;
    }
    if (job->fsdp) {
        return shoal_fsdp_set_sync(shoal_fully_shard_unit(job->module, true), is_last);
    }
    return job->mode == TRAIN_DDP ? shoal_ddp_set_sync(job->module, is_last) : SHOAL_OK;
}

/* What is captured: all backward passes of a part. Gradients that wait for the last one are part of the graph. */
static shoal_status compute_sets(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **losses, size_t n_losses)
{
    struct train_job *job = context;
    (void)n_inputs;
    for (size_t i = 0; i < n_losses; i++) {
        TRY(set_sync(job, i == n_losses - 1));
        TRY(compute(job, inputs + i * job->n_inputs, &losses[i]));
    }
    return SHOAL_OK;
}

shoal_status train_step_compile(struct train_job *job)
{
    return shoal_compile(job->world, compute_sets, job, job->n_sets, NULL, &job->compiled);
}

static shoal_status read_loss(shoal_tensor *loss, double *sum)
{
    const float *value = loss ? shoal_data(loss) : NULL;
    if (!value) {
        return error_set(SHOAL_ERR_STATE, "the loss has no value: %s", shoal_error_text());
    }
    *sum += (double)*value;
    return SHOAL_OK;
}

static shoal_status run_eagerly(struct train_job *job, double *sum)
{
    shoal_tensor *loss = NULL;
    TRY(shoal_scope_begin());
    shoal_status status = compute(job, job->inputs, &loss);
    if (status == SHOAL_OK) {
        status = read_loss(loss, sum);
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

static shoal_status run_compiled(struct train_job *job, double *sum)
{
    bool is_written = job->options->graph && !shoal_compiled_graph(job->compiled); /* the first run */
    TRY(is_written ? train_graph_write_before(job, compute_sets) : SHOAL_OK);
    TRY(shoal_compiled_run(job->compiled, job->inputs, job->n_sets * job->n_inputs, job->losses,
                           job->n_sets));
    shoal_status status = is_written ? train_graph_write_after(job) : SHOAL_OK;
    for (size_t i = 0; i < job->n_sets; i++) {
        if (status == SHOAL_OK) {
            status = read_loss(job->losses[i], sum);
        }
        shoal_tensor_unref(job->losses[i]);
    }
    return status;
}

/* The samples from `first` on. */
static shoal_status fill_set(struct train_job *job, shoal_tensor *const *set, int64_t first)
{
    int32_t *tokens = shoal_mutable_data(set[TRAIN_TOKENS]);
    int32_t *targets = shoal_mutable_data(set[TRAIN_TARGETS]);
    bool has_position = job->n_inputs > TRAIN_POSITION;
    int64_t *position = has_position ? shoal_mutable_data(set[TRAIN_POSITION]) : NULL;
    if (!tokens || !targets || (has_position && !position)) {
        return error_set(SHOAL_ERR_STATE, "the batch cannot be written: %s", shoal_error_text());
    }
    if (position) {
        position[0] = job->options->seed;
        position[1] = job->schedule.step;
        position[2] = first;
    }
    return train_data_fill(job->data, (uint64_t)job->options->seed, job->schedule.step, first,
                           job->options->batch, job->options->context, tokens, targets);
}

/* Parts are numbered over all replicas. Eagerly the same set of inputs is filled again for each backward pass. */
static shoal_status run_part(struct train_job *job, int64_t part, double *sum)
{
    for (int64_t i = 0; i < job->n_micro; i++) {
        size_t set = job->compiled ? (size_t)i : 0;
        TRY(fill_set(job, job->inputs + set * job->n_inputs,
                     (part * job->n_micro + i) * job->options->batch));
        if (!job->compiled) {
            TRY(set_sync(job, i == job->n_micro - 1));
            TRY(run_eagerly(job, sum));
        }
    }
    return job->compiled ? run_compiled(job, sum) : SHOAL_OK;
}

static shoal_status run_parts(struct train_job *job, double *sum)
{
    if (job->mode != TRAIN_SINGLE) {
        return run_part(job, job->rank, sum);
    }
    for (int64_t i = 0; i < job->n_replicas * job->n_parts; i++) {
        TRY(run_part(job, i, sum));
        TRY(train_sums_add(job, i / job->n_parts, i % job->n_parts));
    }
    return train_sums_finish(job);
}

/* Clipping --------------------------------------------------------------------------------------------- */

/* The norm is the same number in every mode. Without clipping it is not computed: that would cost a reduction. */
static shoal_status clip(struct train_job *job)
{
    const double max_norm = job->options->clip;
    job->norm = -1.0;
    if (max_norm == 0.0) {
        return SHOAL_OK;
    }
    if (train_job_is_local(job)) {
        return shoal_clip_grad_norm(job->parameters, job->n_parameters, max_norm, 2.0, false, &job->norm);
    }
    if (job->fsdp) {
        return shoal_fsdp_clip_grad_norm(job->fsdp, max_norm, 2.0, false, &job->norm);
    }
    return shoal_ddp_clip_grad_norm(job->module, max_norm, 2.0, false, &job->norm);
}

shoal_status train_step(struct train_job *job, double *loss_out)
{
    double sum = 0.0;
    TRY(run_parts(job, &sum));
    TRY(clip(job));
    *loss_out = sum;
    if (job->updates) {
        return SHOAL_OK;
    }
    TRY(shoal_nn_schedule_next(&job->schedule, job->optimizer));
    TRY(shoal_nn_optimizer_step(job->optimizer));
    return shoal_nn_optimizer_zero_grad(job->optimizer);
}
