/* SPDX-License-Identifier: MIT */
/* The command line of `shoal train`: a table with a row for each option, and what options say together. */
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The order of the names in the row of --mode. */
enum train_mode {
    TRAIN_AUTO = -1, /* fsdp on several ranks, single on one */
    TRAIN_NONE,      /* ranks train alone, each its own model, and do not communicate */
    TRAIN_SINGLE,    /* one process adds up the gradients of all parts of a batch */
    TRAIN_DDP,
    TRAIN_ZERO1,
    TRAIN_ZERO2,
    TRAIN_FSDP,
    TRAIN_HSDP,
    TRAIN_N_MODES
};

enum train_dtype {
    TRAIN_F32,
    TRAIN_BF16
};

enum train_binding {
    TRAIN_BIND_CORES,
    TRAIN_BIND_NONE
};

/* "4", or "2x3": two sums of three parts each. */
struct train_parts {
    int64_t n_outer; /* 1 without 'x' */
    int64_t n_inner;
    bool has_x;
};

struct train_options {
    const char *data;   /* NULL means the source of this program */
    const char *tokens; /* NULL if there is none */
    int64_t vocabulary; /* of tokens; 0 if it is to be found in the file */
    int64_t n_ranks;    /* 0 means those that the launcher started, or one */
    int64_t mode;       /* enum train_mode */
    int64_t n_replicas;
    bool has_heads; /* it was given */
    bool compiles;
    int64_t dtype; /* enum train_dtype */
    int64_t n_layers;
    int64_t width;
    int64_t n_heads;
    int64_t context;
    int64_t batch;
    struct train_parts accumulate;
    int64_t n_steps;
    double lr;
    int64_t n_warmup;
    double clip;
    double dropout;
    int64_t seed;
    int64_t n_threads;
    int64_t binds;         /* enum train_binding */
    const char *transport; /* NULL means what SHOAL_TRANSPORT says */
    const char *checkpoint;
    int64_t every;
    bool resumes;
    const char *load;
    const char *prompt;
    int64_t n_sample;
    const char *trace;
    bool verifies;
    int64_t n_verify; /* steps; 0 means all */
    bool has_json;
    int64_t live_columns; /* 0 means no live line */
};

/*
 * Reads argv[1] and the rest; argv[0] is "train". Returns false if help was printed or an argument was wrong, which was
 * reported; the caller then returns *exit_status_out.
 */
bool train_options_read(int argc, char **argv, struct train_options *options, int *exit_status_out);

/* Once the number of ranks is known: sets the mode and n_ranks, and checks what depends on them. Returns false if
   something is wrong, after a message. */
bool train_options_settle(struct train_options *options, int n_ranks);

enum {
    TRAIN_MAX_MARKS = 64
};

/* An option that all ranks must have alike. */
struct train_mark {
    const char *name;
    enum {
        TRAIN_MARK_INTEGER,
        TRAIN_MARK_REAL,
        TRAIN_MARK_CODE /* an integer that says nothing to people */
    } kind;
    int64_t integer; /* the same where the values are */
    double real;
};

/* Of settled options; returns how many there are. Paths may differ: of them it counts whether there is one. */
size_t train_options_marks(const struct train_options *options, struct train_mark marks[TRAIN_MAX_MARKS]);

/* "fsdp" */
const char *train_mode_name(int64_t mode);

#endif
