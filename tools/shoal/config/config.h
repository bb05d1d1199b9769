/* SPDX-License-Identifier: MIT */
/*
 * The configuration of a run: everything that defines it. Each checkpoint of `shoal train` has it, as JSON in the string
 * "train.config" of its index, so it is written and replaced together with the weights. Whoever has the directory can
 * read it, without ranks.
 */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include "config/data.h"
#include "config/options.h"

#include "shoal/status.h"

#include <limits.h>

#define TRAIN_CONFIG_ITEM "train.config"

enum {
    TRAIN_CONFIG_BYTES = 4 * PATH_MAX, /* of the text, with a zero */
    TRAIN_PRODUCTS_BYTES = 256         /* of the description of what computes products, with a zero */
};

/* What the run learns. */
enum train_data_kind {
    TRAIN_DATA_TEXT,   /* --data: tokens are bytes */
    TRAIN_DATA_TOKENS, /* --tokens */
    TRAIN_DATA_SOURCE  /* neither: the source of Shoal; tokens are bytes */
};

struct train_config {
    /* Where it was found: */
    char directory[PATH_MAX]; /* of the checkpoint, DIR/step-000000100 */
    int64_t step;             /* that are done */
    char run[24];             /* id of the first of the runs that went on; "" if it is not known */
    /* The model: */
    int64_t n_layers;
    int64_t width;
    int64_t n_heads;
    int64_t context; /* positions that it has; rows of the run may be shorter (options.context) */
    int64_t vocabulary;
    double eps; /* of its norms */
    /* How a step was divided: n_replicas x n_parts parts (ranks, except in mode single) x n_micro backward passes x
       options.batch rows. */
    int64_t n_ranks;
    bool has_started_ranks; /* shoal train started the ranks itself */
    int64_t n_replicas;
    int64_t n_parts;
    int64_t n_micro;
    int64_t n_rows; /* of a step: the product of all these */
    /* What computed products of the run's dtype (shoal_nn_products_info), on which bits depend; "" if not known. */
    char products[TRAIN_PRODUCTS_BYTES];
    /* The data: */
    enum train_data_kind data_kind;
    char data_path[PATH_MAX]; /* absolute; "" of the source, and of names that are not UTF-8 */
    int64_t data_bytes;
    uint64_t data_first_hash; /* of its first MiB */
    uint64_t data_hash;       /* of all of it */
    int64_t data_vocabulary;
    char val[PATH_MAX]; /* --val: a fraction, or an absolute path; "" if there is none */
    bool has_lost_val;  /* there was one, with a path that is not UTF-8 and was not kept */
    /* All options that train_options_is_kept, with sizes as the model has them. */
    struct train_options options;
};

/*
 * Reads the configuration of the newest checkpoint in a directory, or of the directory itself, if that is a checkpoint.
 * *is_found_out: whether there is any checkpoint. If the newest index is damaged, the next one that is not is read.
 * Fails if no index can be read, or if the one that can has no configuration.
 */
shoal_status train_config_read(const char *directory, struct train_config *config, bool *is_found_out);

/* Refuses a directory that has a model of Hugging Face, which is no run. Where neither is, there may be one. */
shoal_status train_config_check(const char *directory);

/* --val as checkpoints have it: a fraction as it is, the path of a file absolute; "" if there is none. `text` has
   PATH_MAX bytes. */
void train_config_val(const struct train_options *options, char *text);

/* The data becomes that of the options, which is open, and --val theirs. */
void train_config_take_data(const struct train_options *options, const struct train_data *data,
                            struct train_config *config);

/* Writes all except `directory` and `step` as text; `text` has TRAIN_CONFIG_BYTES. */
shoal_status train_config_write(const struct train_config *config, char *text);

#endif
