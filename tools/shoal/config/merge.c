/* SPDX-License-Identifier: MIT */
/*
 * A run that goes on keeps what defines it. Options may change how it is computed and how far it goes, but not the model,
 * the seed and the rows of a step: without these it would be another run.
 */
#include "config/merge.h"
#include "common/commands.h"

#include "base/error.h"
#include "base/try.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    VALUE_BYTES = 64,
    MAX_WAYS = 6, /* that are named */
    MAX_PARTS = 4096
};

/* A text that grows, and is cut where there is no room. */
struct text {
    char *chars;
    size_t bytes;
    size_t length;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text->chars + text->length, text->bytes - text->length, format, arguments);
    va_end(arguments);
    size_t room = text->bytes - text->length - 1;
    text->length += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room;
}

static const char *comma(const struct text *text)
{
    return text->length > 0 ? ", " : "";
}

/* Options ------------------------------------------------------------------------------------------------ */

/* What cannot be another one. */
static bool is_fixed(const struct tool_option *row)
{
    static const char *const names[] = {"--layers", "--width", "--heads", "--vocabulary", "--seed"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(row->name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* These together are the rows of a step, which is looked at as a whole. */
static bool is_split(const struct tool_option *row)
{
    static const char *const names[] = {"--batch", "--accumulate", "--mode", "--replicas"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(row->name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_impossible(const struct tool_option *row, const struct train_config *config,
                          const struct train_options *options)
{
    return is_fixed(row) || (strcmp(row->name, "--context") == 0 && options->context > config->context) ||
           (strcmp(row->name, "--steps") == 0 && options->n_steps < config->step);
}

static void compare_option(const struct tool_option *row, const struct train_config *config,
                           const struct train_options *options, struct text *refused, struct text *noted)
{
    char before[VALUE_BYTES];
    char now[VALUE_BYTES];
    tool_option_print(row, &config->options, before, sizeof before);
    tool_option_print(row, options, now, sizeof now);
    if (strcmp(before, now) == 0) {
        return;
    }
    bool is_refused = is_impossible(row, config, options);
    struct text *out = is_refused ? refused : noted;
    add(out, "%s%s %s -> %s", comma(out), row->name, before, now);
    if (is_refused && strcmp(row->name, "--steps") == 0) {
        add(out, " (%" PRId64 " are done)", config->step);
    } else if (is_refused && strcmp(row->name, "--context") == 0) {
        add(out, " (the model has %" PRId64 " positions)", config->context);
    }
}

static void take_options(const struct train_config *config, struct train_options *options,
                         struct text *refused, struct text *noted)
{
    for (size_t i = 0; i < command_train_options.n_rows; i++) {
        const struct tool_option *row = &command_train_options.rows[i];
        if (!train_options_is_kept(row)) {
            continue;
        }
        if (!options->given.rows[i]) {
            tool_option_copy(row, &config->options, options);
        } else if (!is_split(row)) {
            compare_option(row, config, options, refused, noted);
        }
    }
}

/* The vocabulary of tokens stays, whatever the largest token of the data is. Text has none to set. */
static shoal_status take_data(const struct train_config *config, struct train_options *options)
{
    bool is_given = options->data || options->tokens;
    if (!is_given && config->data_kind != TRAIN_DATA_SOURCE && !config->data_path[0]) {
        return error_set(SHOAL_ERR_INVALID,
                         "--resume: the path of the data is not UTF-8, and was not kept: name it with %s",
                         config->data_kind == TRAIN_DATA_TEXT ? "--data" : "--tokens");
    }
    if (!is_given && config->data_path[0]) {
        options->data = config->data_kind == TRAIN_DATA_TEXT ? config->data_path : NULL;
        options->tokens = config->data_kind == TRAIN_DATA_TOKENS ? config->data_path : NULL;
    }
    options->vocabulary = options->tokens ? config->data_vocabulary : 0;
    return SHOAL_OK;
}

/* Fewer steps than the rate was to rise in: it rises as in a run of so many steps. */
static void take_warmup(const struct train_config *config, struct train_options *options, struct text *noted)
{
    if (options->n_warmup >= options->n_steps && !train_options_given(options, "--warmup")) {
        options->n_warmup = train_options_warmup(options->n_steps);
        add(noted, "%s--warmup %" PRId64 " -> %" PRId64, comma(noted), config->options.n_warmup,
            options->n_warmup);
    }
}

/* A fraction of the data that the training does not see is a part of the run. */
static shoal_status take_val(const struct train_config *config, struct train_options *options,
                             struct text *noted)
{
    char now[PATH_MAX];
    bool is_given = train_options_given(options, "--val");
    if (config->has_lost_val && !is_given) {
        return error_set(SHOAL_ERR_INVALID,
                         "--resume: the path of --val is not UTF-8, and was not kept: name it with --val");
    }
    if (!is_given) {
        options->val = config->val[0] ? config->val : NULL;
        bool has_every = options->val || train_options_given(options, "--val-every");
        options->val_every = has_every ? options->val_every : 0;
        return SHOAL_OK;
    }
    train_config_val(options, now);
    if (strcmp(now, config->val) != 0 && !config->has_lost_val) {
        add(noted, "%s--val %s -> %s", comma(noted), config->val[0] ? config->val : "none", now);
    }
    return SHOAL_OK;
}

/* The rows of a step ------------------------------------------------------------------------------------- */

static int64_t count_parts(const struct train_options *options, int64_t n_ranks)
{
    return options->mode == TRAIN_SINGLE ? options->accumulate.n_outer * options->accumulate.n_inner
                                         : n_ranks * options->accumulate.n_inner;
}

/* The mode that was not given: one process has a mode of its own, and ranks have others. */
static void choose_mode(int64_t n_ranks, struct train_options *options)
{
    bool was_single = options->mode == TRAIN_SINGLE;
    if (n_ranks > 1 && was_single) {
        options->mode = TRAIN_FSDP;
    } else if (n_ranks == 1 && !was_single) {
        options->mode = TRAIN_SINGLE;
    }
}

/*
 * Nothing was given: one process takes the parts of all ranks one after the other, and adds them in their order, so that
 * the bits stay. Ranks share the rows: each has as many backward passes as before, of more or fewer rows.
 */
static void divide_as_before(const struct train_config *config, int64_t n_ranks,
                             struct train_options *options)
{
    bool was_single = config->options.mode == TRAIN_SINGLE;
    bool is_single = options->mode == TRAIN_SINGLE;
    if (is_single && was_single) {
        return;
    }
    if (is_single && config->n_micro == 1) {
        options->accumulate = (struct tool_parts){
            .n_outer = config->n_replicas, .n_inner = config->n_parts, .has_x = config->n_replicas > 1};
        return;
    }
    int64_t n_passes = is_single ? config->n_replicas * config->n_parts * config->n_micro : config->n_micro;
    options->accumulate = (struct tool_parts){.n_outer = 1, .n_inner = n_passes};
    options->batch = config->n_rows / count_parts(options, n_ranks);
}

static void divide_rows(const struct train_config *config, int64_t n_ranks, struct train_options *options)
{
    bool has_batch = train_options_given(options, "--batch");
    bool has_parts = train_options_given(options, "--accumulate");
    if (!train_options_given(options, "--mode")) {
        choose_mode(n_ranks, options);
    }
    if (!has_batch && !has_parts) {
        divide_as_before(config, n_ranks, options);
    } else if (!has_batch) {
        options->batch = config->n_rows / count_parts(options, n_ranks);
    } else if (!has_parts) {
        int64_t n_in_a_row = options->batch * (options->mode == TRAIN_SINGLE ? 1 : n_ranks);
        options->accumulate = (struct tool_parts){.n_outer = 1, .n_inner = config->n_rows / n_in_a_row};
    }
}

static int64_t count_rows(const struct train_options *options, int64_t n_ranks)
{
    return count_parts(options, n_ranks) * options->batch;
}

static bool is_divided(const struct train_config *config, int64_t n_ranks,
                       const struct train_options *options)
{
    return options->batch >= 1 && options->accumulate.n_inner >= 1 &&
           options->accumulate.n_inner <= MAX_PARTS && count_rows(options, n_ranks) == config->n_rows;
}

static bool has_replicas(const struct train_options *options, int64_t n_ranks)
{
    return options->mode != TRAIN_HSDP || n_ranks % options->n_replicas == 0;
}

/* Whether the run can go on with these options, whose rows are not divided yet. */
static bool can_go_on(const struct train_config *config, int64_t n_ranks, const struct train_options *options)
{
    struct train_options tried = *options;
    divide_rows(config, n_ranks, &tried);
    bool is_contradicted = (tried.mode == TRAIN_SINGLE && n_ranks > 1) ||
                           (tried.mode != TRAIN_HSDP && train_options_given(options, "--replicas"));
    return is_divided(config, n_ranks, &tried) && has_replicas(&tried, n_ranks) && !is_contradicted;
}

/* Numbers of ranks with which the run can go on; none if there is none. */
static void name_ranks(const struct train_config *config, const struct train_options *options,
                       struct text *text)
{
    int64_t n_named = 0;
    for (int64_t n = 1; n <= config->n_rows && n <= MAX_PARTS && n_named < MAX_WAYS; n++) {
        if (can_go_on(config, n, options)) {
            add(text, "%s%" PRId64, n_named == 0 ? ": use --ranks " : " or ", n);
            n_named++;
        }
    }
}

/* What fits a number of ranks that the replicas do not divide. */
static void name_replicas(const struct train_config *config, int64_t n_ranks,
                          const struct train_options *options, struct text *text)
{
    struct train_options tried = *options;
    size_t length = text->length;
    name_ranks(config, options, text);
    const char *before = text->length > length ? ", --replicas " : ": use --replicas ";
    for (int64_t n = 2, n_named = 0; n <= n_ranks && n_named < MAX_WAYS; n++) {
        tried.n_replicas = n;
        if (can_go_on(config, n_ranks, &tried)) {
            add(text, "%s%" PRId64, before, n);
            before = " or ";
            n_named++;
        }
    }
    tried.mode = TRAIN_FSDP;
    if (n_ranks > 1 && can_go_on(config, n_ranks, &tried)) {
        add(text, "%s--mode fsdp", text->length > length ? ", or " : ": use ");
    }
}

/* What --batch and --accumulate can be: on each rank they make n_rows together. */
static void name_splits(int64_t n_rows, struct text *text)
{
    add(text, ": use");
    for (int64_t n = 1, n_named = 0; n <= n_rows && n <= MAX_PARTS && n_named < MAX_WAYS; n++) {
        if (n_rows % n == 0) {
            add(text, "%s --batch %" PRId64 " --accumulate %" PRId64, n_named > 0 ? " or" : "", n_rows / n,
                n);
            n_named++;
        }
    }
}

/* What was given, or else what stays, although it does not divide the rows. */
static void name_divisors(const struct train_options *options, struct text *text)
{
    char parts[VALUE_BYTES];
    bool has_batch = train_options_given(options, "--batch");
    bool has_parts = train_options_given(options, "--accumulate");
    tool_option_print(tool_option_find(&command_train_options, "--accumulate"), options, parts, sizeof parts);
    if (has_batch) {
        add(text, "--batch %" PRId64 "%s", options->batch, has_parts ? " " : "");
    }
    if (has_parts || !has_batch) {
        add(text, "--accumulate %s", parts);
    }
}

/* `before` are the options whose rows were not divided yet: with other numbers of ranks they are divided again. */
static void compare_rows(const struct train_config *config, int64_t n_ranks,
                         const struct train_options *options, const struct train_options *before,
                         struct text *refused)
{
    int64_t n_rows = config->n_rows;
    int64_t n_shared = options->mode == TRAIN_SINGLE ? 1 : n_ranks;
    bool fits = has_replicas(options, n_ranks);
    if (fits && is_divided(config, n_ranks, options)) {
        return;
    }
    add(refused, "%s", comma(refused));
    if (!fits) {
        add(refused, "%" PRId64 " rank%s, as hsdp has %" PRId64 " replicas", n_ranks, n_ranks == 1 ? "" : "s",
            options->n_replicas);
        name_replicas(config, n_ranks, before, refused);
        return;
    }
    if (n_rows % n_shared != 0) {
        add(refused, "%" PRId64 " ranks, as a step has %" PRId64 " rows", n_shared, n_rows);
        name_ranks(config, before, refused);
        return;
    }
    name_divisors(options, refused);
    add(refused, ", as a step has %" PRId64 " rows", n_rows);
    if (n_shared > 1) {
        add(refused, ", %" PRId64 " on each rank", n_rows / n_shared);
    }
    name_splits(n_rows / n_shared, refused);
}

static void tell_split(const struct train_config *config, int64_t n_ranks,
                       const struct train_options *options, struct text *text)
{
    char mode[VALUE_BYTES];
    char parts[VALUE_BYTES];
    const struct tool_options *table = &command_train_options;
    if (n_ranks == config->n_ranks) {
        return;
    }
    tool_option_print(tool_option_find(table, "--mode"), options, mode, sizeof mode);
    tool_option_print(tool_option_find(table, "--accumulate"), options, parts, sizeof parts);
    add(text, "on %" PRId64 " rank%s instead of %" PRId64 ": --mode %s --batch %" PRId64 " --accumulate %s",
        n_ranks, n_ranks == 1 ? "" : "s", config->n_ranks, mode, options->batch, parts);
    add(text, ", %" PRId64 " rows in a step as before", config->n_rows);
}

/* All of it ---------------------------------------------------------------------------------------------- */

static int64_t choose_ranks(const struct train_config *config, int n_ranks,
                            const struct train_options *options)
{
    return n_ranks > 0                 ? n_ranks
           : options->n_ranks > 0      ? options->n_ranks
           : config->has_started_ranks ? config->n_ranks
                                       : 1;
}

shoal_status train_merge(const struct train_config *config, int n_ranks, struct train_options *options,
                         struct train_changes *changes)
{
    char wrong[ERROR_TEXT_BYTES - 128] = "";
    struct text refused = {.chars = wrong, .bytes = sizeof wrong};
    struct text noted = {.chars = changes->options, .bytes = sizeof changes->options};
    struct text split = {.chars = changes->split, .bytes = sizeof changes->split};
    *changes = (struct train_changes){.options = ""};
    take_options(config, options, &refused, &noted);
    TRY(take_data(config, options));
    TRY(take_val(config, options, &noted));
    take_warmup(config, options, &noted);
    int64_t n_all = choose_ranks(config, n_ranks, options);
    const struct train_options before = *options;
    divide_rows(config, n_all, options);
    compare_rows(config, n_all, options, &before, &refused);
    if (refused.length > 0) {
        return error_set(SHOAL_ERR_INVALID, "--resume: the run in %.100s cannot go on with %s",
                         options->checkpoint, wrong);
    }
    tell_split(config, n_all, options, &split);
    options->n_ranks = n_ranks > 0 ? options->n_ranks : n_all;
    options->load = NULL; /* the checkpoint has the weights */
    options->from = config;
    return SHOAL_OK;
}

/* The data ----------------------------------------------------------------------------------------------- */

bool train_merge_has_same_data(const struct train_config *config, const struct train_options *options,
                               const struct train_data *data, char *text, size_t bytes)
{
    int64_t n_bytes = (int64_t)(data->n_tokens * data->token_bytes);
    bool is_given = train_options_given(options, "--data") || train_options_given(options, "--tokens");
    const char *before = config->data_path[0] ? config->data_path : "the source of Shoal";
    if (n_bytes == config->data_bytes && data->hash == config->data_hash) {
        return true;
    }
    if (is_given) {
        (void)snprintf(text, bytes,
                       "learnt from %s (%" PRId64 " bytes) so far, now from %s (%" PRId64 " bytes)", before,
                       config->data_bytes, data->name, n_bytes);
    } else {
        const char *where = n_bytes != config->data_bytes                 ? ""
                            : data->first_hash != config->data_first_hash ? ", with another first MiB"
                                                                          : ", with the same first MiB";
        (void)snprintf(text, bytes,
                       "learns from a file that has changed: %s had %" PRId64 " bytes, now %" PRId64 "%s",
                       before, config->data_bytes, n_bytes, where);
    }
    return false;
}
