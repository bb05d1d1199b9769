/* SPDX-License-Identifier: MIT */
/*
 * One training in one process: a rank's share of a step, or, in mode single, all of it.
 *
 * A step has n_replicas x n_parts parts, one for each rank, and each part has n_micro backward passes. Samples are
 * numbered over the whole step: those of a part are consecutive. Gradients are added in this order: those of the
 * backward passes of a part; then those of the parts of a replica, divided by n_parts; then those of the replicas,
 * divided by their number. Ranks do that by their reductions and one process by its sums (train/sums.c): the bits are
 * the same.
 *
 *   train/same.c     what ranks must have in common
 *   train/bind.c     processors for each rank
 *   train/model.c    makes the model, shares it among ranks as the mode says, makes the optimizer
 *   train/step.c     one step
 *   train/sums.c     sums of gradients in one process
 *   train/outputs.c  the files that are written
 *   train/loop.c     all steps, with losses
 *   train/times.c    what became of the time of each step
 *   train/validate.c the validation loss
 *   train/log.c      the log of all steps
 *   train/whole.c    whole parameters, and their digest
 *   train/save.c     checkpoints
 *   train/lock.c     one run at a time in a directory of checkpoints
 *   config/config.c  what a checkpoint says about its run
 *   config/merge.c   options of the command line and those of a checkpoint
 *   train/peek.c     which checkpoint --resume loads
 *   train/load.c     weights of another run or another tool
 */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include "config/config.h"
#include "config/data.h"
#include "config/options.h"

#include "shoal/checkpoint.h"
#include "shoal/compile.h"
#include "shoal/fully_shard.h"
#include "shoal/mesh.h"
#include "shoal/module.h"
#include "shoal/tensor.h"
#include "shoal/world.h"
#include "shoal_nn/modules.h"
#include "shoal_nn/optim.h"
#include "shoal_nn/schedule.h"

enum train_input {
    TRAIN_TOKENS,
    TRAIN_TARGETS,
    TRAIN_POSITION, /* of dropout: seed, step, first sample; not there without dropout */
    TRAIN_N_INPUTS
};

/* Whole gradients in one process; NULL where parts need no sums. */
struct train_sums {
    float **inner;            /* of the parts of a replica */
    float **outer;            /* of replicas; NULL if there is one */
    shoal_tensor **gradients; /* over the memory of the last sum */
};

struct train_validation;
struct train_lock;
struct train_job;

/* A parameter that is updated as soon as its gradient has arrived. */
struct train_update {
    struct train_job *job;
    size_t index;
};

struct train_job {
    const struct train_options *options;
    const struct train_data *data;
    shoal_nn_gpt_options gpt; /* what the model looks like */
    enum train_mode mode;
    int64_t n_replicas;
    int64_t n_parts;
    int64_t n_micro;
    char run[24]; /* id of the run, which it keeps when it goes on; "" if the checkpoint has none */
    shoal_world *world;
    shoal_group *group; /* of all ranks */
    int rank;
    int n_ranks;
    int n_bound; /* processors that this rank keeps to; 0 means all */
    /* The model: */
    shoal_module *module;
    shoal_mesh *mesh;          /* of hsdp */
    shoal_fsdp *fsdp;          /* NULL if the model is not sharded */
    size_t n_params;           /* elements of all parameters, whole */
    shoal_tensor **parameters; /* those of this process, shards or whole */
    size_t n_parameters;
    shoal_nn_optimizer *optimizer;
    struct train_update *updates; /* of each parameter; NULL if all are updated after the backward pass */
    shoal_nn_schedule schedule;   /* its step is the next one of the run */
    shoal_compiled *compiled;     /* NULL if steps are not compiled */
    shoal_tensor **inputs;        /* n_inputs for each of n_sets backward passes */
    size_t n_inputs;
    size_t n_sets;         /* 1, or n_micro: a compiled step has all backward passes of a part in one */
    shoal_tensor **losses; /* room for those of n_sets */
    struct train_sums sums;
    double norm; /* of the gradients of the last step; less than 0 if it was not computed */
    struct train_validation *validation; /* NULL without --val */
    shoal_items *items;                  /* of checkpoints; NULL if there is none */
    shoal_checkpoint_saving *saving;
    struct train_lock *lock; /* of the directory of checkpoints, on rank 0 */
    /* The call that failed has failed on all ranks with the same reason: one of them says it. */
    bool is_agreed;
    int speaker; /* who says it */
    struct train_saved {
        char config[TRAIN_CONFIG_BYTES];
        double loss_first;
        double loss_last;
    } saved;
};

/* How a job splits its steps, from the options; the world is opened already. */
void train_job_init(struct train_job *job, const struct train_options *options, const struct train_data *data,
                    shoal_world *world);
/* Samples of a step, over all ranks. */
int64_t train_job_samples(const struct train_job *job);
/* Whether gradients are added up in this process alone. */
bool train_job_is_local(const struct train_job *job);

/* Notes a failure that all ranks have, unless it is that one of them is gone. Returns `status`. */
shoal_status train_job_agree(struct train_job *job, shoal_status status);

/* What computes the products of the run's dtype: row, version, instruction set. If that cannot be loaded, `text` stays
   as it is. */
void train_job_products(const struct train_job *job, char text[TRAIN_PRODUCTS_BYTES]);

/* Makes everything of the model; train_job_free frees what there is, also after a failure. */
shoal_status train_model_make(struct train_job *job);
void train_job_free(struct train_job *job);

/* Step number schedule.step. loss_out: the sum over the backward passes of this process. */
shoal_status train_step(struct train_job *job, double *loss_out);

/* Whether parameters are updated in the backward pass: where that gives the same bits. */
bool train_updates_early(const struct train_job *job);
shoal_status train_updates_make(struct train_job *job);

/* Memory for sums, where a job needs any. */
shoal_status train_sums_make(struct train_job *job);
void train_sums_free(struct train_job *job);
/* The parameters' gradients are those of a part: they go into the sums, and from the parameters. */
shoal_status train_sums_add(struct train_job *job, int64_t replica, int64_t part);
/* The mean becomes the gradient. */
shoal_status train_sums_finish(struct train_job *job);

#endif
