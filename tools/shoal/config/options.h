/* SPDX-License-Identifier: MIT */
/* The command line of `shoal train`: a table with a row for each option, and what options say together. */
#ifndef CONFIG_OPTIONS_H
#define CONFIG_OPTIONS_H

#include "common/options.h"

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

enum {
    TRAIN_MAX_VOCABULARY = 1 << 22
};

struct model_description;
struct train_config;
struct train_changes;

struct train_options {
    const char *data;   /* NULL means the source of this program */
    const char *tokens; /* NULL if there is none */
    int64_t vocabulary; /* of tokens; 0 if it is to be found in the file */
    int64_t n_ranks;    /* 0 means those that the launcher started, or one */
    int64_t mode;       /* enum train_mode */
    int64_t n_replicas;
    const char *graph; /* NULL: it is not written */
    int64_t dtype;     /* enum train_dtype */
    int64_t n_layers;
    int64_t width;
    int64_t n_heads;
    int64_t context;
    int64_t batch;
    struct tool_parts accumulate;
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
    const char *load;
    const char *prompt;
    int64_t n_sample;
    const char *trace;
    const char *log;
    const char *report;
    char own_log[4096];   /* --report without --log: the log, which is removed when the page is written */
    const char *val;      /* a file, or a fraction of the data; NULL if there is none */
    double val_fraction;  /* 0 if `val` is a file */
    int64_t val_every;    /* 0 until it is settled, unless it was given */
    bool has_own_every;   /* val_every follows from n_steps: nobody has given it */
    int64_t n_verify;     /* steps; 0 means all */
    int64_t live_columns; /* 0 means no live line */
    bool compiles;
    bool resumes;
    bool verifies;
    bool has_json;
    bool has_own_log; /* the log is own_log */
    bool is_started;  /* shoal train has started this rank */
    struct tool_given given;
    /* Of --resume, if there is a checkpoint; otherwise NULL: */
    const struct train_config *from;
    const struct train_changes *changes;
    /* Of --load, once train_load_settle has looked at it; otherwise NULL: */
    const struct model_description *loaded;
};

/*
 * Reads argv[1] and the rest; argv[0] is "train". Returns false if help was printed or an argument was wrong, which was
 * reported; the caller then returns *exit_status_out.
 */
bool train_options_read(int argc, char **argv, struct train_options *options, int *exit_status_out);
void train_options_default(struct train_options *options);

/* What options say together, after --resume has added those of the checkpoint. Returns false if something is wrong, after
   a message. */
bool train_options_check(struct train_options *options);

/* The default of --warmup. */
int64_t train_options_warmup(int64_t n_steps);

/* Whether an option defines the run, so that checkpoints have it. */
bool train_options_is_kept(const struct tool_option *row);

/* Once the number of ranks is known: sets the mode and n_ranks, and checks what depends on them. Returns false if
   something is wrong, after a message. */
bool train_options_settle(struct train_options *options, int n_ranks);

/* Whether the user gave the option of that name. */
bool train_options_given(const struct train_options *options, const char *name);

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
