/* SPDX-License-Identifier: MIT */
/*
 * A recorded training run, as the metadata key "case" of the file describes it. The net is
 *
 *     x -> layer 0 -> tanh -> layer 1 -> tanh -> ... -> last layer, times scale
 *
 * with layers.i.weight [out, in], layers.i.bias [out] and scale [out of the last]. With `is_tied` layer 2 uses the
 * weight of layer 1, and only the name of the latter occurs.
 */
#ifndef REPLAY_FSDP_CASE_H
#define REPLAY_FSDP_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdp_checks.h"
#include "shoal/dtype.h"
#include "shoal/fsdp.h"

#define FSDP_NAME_BYTES 48

/* A parameter of the net. */
struct fsdp_name {
    char text[FSDP_NAME_BYTES];
    int layer; /* -1 for the parameter "scale" */
    int n_dims;
    int64_t shape[2];
    bool is_frozen;
    bool is_cut_along_1;
};

enum fsdp_accumulation {
    FSDP_REDUCE_ALWAYS,
    FSDP_NO_SYNC,
    FSDP_NO_ALL_REDUCE
};

struct fsdp_case {
    int n_ranks;
    int n_replicas; /* 0 if the mesh has one dimension */
    int n_shards;
    int64_t *sizes; /* n_layers + 1 */
    int n_layers;
    int64_t batch;
    int n_steps;
    int n_micro;
    double lr;
    bool is_adamw;
    shoal_dtype param_dtype;  /* 0 if there is none */
    shoal_dtype reduce_dtype; /* 0 if there is none */
    shoal_reshard reshard;
    int reshard_ranks;
    bool is_tied;
    enum fsdp_accumulation accumulation;
    bool clips;
    double max_norm;
    double divide; /* 0 means as usual */
    struct fsdp_name *names;
    int n_names;
};

/* Returns false if the run cannot be made; `checks` has why. Either way it is freed. */
bool fsdp_case_read(const char *text, struct fsdp_case *self, struct fsdp_checks *checks);
void fsdp_case_free(struct fsdp_case *self);

/* "layers.1.weight" is there twice when tied: this is whether layer i has the weight of the one before. */
bool fsdp_case_shares_weight(const struct fsdp_case *self, int layer);

#endif
