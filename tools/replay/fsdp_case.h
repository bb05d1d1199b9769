/* SPDX-License-Identifier: MIT */
/*
 * A recorded training run, as JSON in the metadata of the file describes it: the key "case" for one, or "cases", an
 * object of them by name. The net is
 *
 *     x -> layer 0 -> tanh -> layer 1 -> tanh -> ... -> last layer, times scale
 *
 * with layers.i.weight [out, in], layers.i.bias [out] and scale [out of the last]. With `is_tied` layer 2 uses the
 * weight of layer 1, and only the name of the latter occurs.
 */
#ifndef REPLAY_FSDP_CASE_H
#define REPLAY_FSDP_CASE_H

#include <jansson.h>
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
    bool is_weight;
    int n_dims;
    int64_t shape[3]; /* a weight may be [p, out / p, in], and is used as [out, in] */
    bool is_frozen;
    int cut_dim;
};

/* The ranks over which a unit is sharded. */
struct fsdp_ranks {
    int n_replicas; /* 0 if there is one dimension */
    int n_shards;
    bool is_apart; /* groups of n_shards neighbouring ranks, which are not reduced among each other */
};

/* A layer, or, as the last one, the root. */
struct fsdp_unit_case {
    struct fsdp_ranks ranks;
    double divide; /* 0 means as usual */
    bool no_sync;  /* does not reduce until the last micro-batch */
};

enum fsdp_custom {
    FSDP_DEFAULT_COMM,
    FSDP_CUSTOM_COMM,
    FSDP_CUSTOM_PREMUL /* and what is neither a sum nor an average is multiplied first and then summed */
};

enum fsdp_hook {
    FSDP_NO_HOOK,
    FSDP_HALVE,
    FSDP_AVERAGE_GROUPS /* over the ranks with the same place in the other groups */
};

enum fsdp_gather {
    FSDP_PLAIN_GATHER,
    FSDP_GATHER_BF16,
    FSDP_GATHER_INT8
};

enum fsdp_accumulation {
    FSDP_REDUCE_ALWAYS,
    FSDP_NO_SYNC,
    FSDP_NO_ALL_REDUCE
};

struct fsdp_case {
    int n_ranks;
    struct fsdp_ranks ranks;
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
    bool force_sum;
    enum fsdp_custom custom;
    enum fsdp_hook hook;
    enum fsdp_gather gather;
    bool has_meshes;              /* named for units */
    bool is_by_parameter;         /* meshes are named for parameters */
    bool keeps_gathered;          /* not resharded after backward, but for the last micro-batch */
    bool says_last;               /* which backward pass is the last */
    bool is_refused;              /* PyTorch refused it, and there are no tensors */
    bool is_one_of_many;          /* no final parameters, and shards only where they say something new */
    struct fsdp_unit_case *units; /* n_layers + 1 */
    struct fsdp_name *names;
    int n_names;
};

/* Returns false if the run cannot be made; `checks` has why. Either way it is freed. */
bool fsdp_case_read(const json_t *json, bool is_one_of_many, struct fsdp_case *self,
                    struct fsdp_checks *checks);
void fsdp_case_free(struct fsdp_case *self);

/* What the library does not have and the run needs; NULL if it has everything. */
const char *fsdp_case_find_missing(const struct fsdp_case *self);

/* Whether the file has shards of parameters after this step. */
bool fsdp_case_has_params(const struct fsdp_case *self, int step);

/* "layers.1.weight" is there twice when tied: this is whether layer i has the weight of the one before. */
bool fsdp_case_shares_weight(const struct fsdp_case *self, int layer);

#endif
