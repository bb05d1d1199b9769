/* SPDX-License-Identifier: MIT */
/* Reading the command line of `shoal train` by its table, and its usage from the same table. */
#include "train/options.h"
#include "run/rank.h"
#include "common/tool.h"

#include "base/option_parse.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_COLUMNS = 20, /* of an option with its value in the usage */
    MAX_CHOICES = 8,
    NAME_BYTES = 16, /* of a choice */
    MAX_COUNT = 1 << 30
};

enum option_kind {
    OPTION_FLAG,   /* bool, set to true; no value follows */
    OPTION_INT,    /* int64_t */
    OPTION_REAL,   /* double */
    OPTION_CHOICE, /* int64_t, the number of the name in `choices`; "auto" as default: -1 */
    OPTION_TEXT,   /* const char *, not "" */
    OPTION_PARTS   /* struct train_parts */
};

struct option_row {
    const char *name;
    const char *value; /* what the usage calls it */
    enum option_kind kind;
    size_t at;            /* in the options */
    const char *standard; /* the default, as on a command line; NULL means zeros */
    double least;         /* of numbers */
    double most;
    const char *choices; /* separated by '|' */
    const char *help;    /* NULL if it is not shown */
};

#define AT(member) offsetof(struct train_options, member)
#define MODES "none|single|ddp|zero1|zero2|fsdp|hsdp"
#define DTYPES "f32|bf16"
#define BINDINGS "cores|none"

static const struct option_row rows[] = {
    {"--data", "FILE", OPTION_TEXT, AT(data), NULL, 0, 0, NULL, "text to learn; each byte is a token"},
    {"--tokens", "FILE", OPTION_TEXT, AT(tokens), NULL, 0, 0, NULL, "tokens to learn, two bytes each (u16)"},
    {"--vocabulary", "N", OPTION_INT, AT(vocabulary), NULL, 1, 65536, NULL,
     "vocabulary of --tokens; default: as the file needs"},
    {"--ranks", "N", OPTION_INT, AT(n_ranks), NULL, 1, RUN_MAX_RANKS, NULL,
     "ranks to start; not under shoal run, mpirun or torchrun"},
    {"--mode", "NAME", OPTION_CHOICE, AT(mode), "auto", 0, 0, MODES,
     MODES "; default: fsdp, or single on one rank"},
    {"--replicas", "N", OPTION_INT, AT(n_replicas), "2", 1, RUN_MAX_RANKS, NULL,
     "replicas of hsdp; divides the ranks"},
    {"--compile", NULL, OPTION_FLAG, AT(compiles), NULL, 0, 0, NULL,
     "compiles the step and runs it as a plan"},
    {"--dtype", "NAME", OPTION_CHOICE, AT(dtype), "f32", 0, 0, DTYPES,
     "dtype of compute; weights and sums of gradients are f32"},
    {"--layers", "N", OPTION_INT, AT(n_layers), "2", 1, 10000, NULL, "blocks of the model"},
    {"--width", "N", OPTION_INT, AT(width), "192", 1, 1 << 20, NULL, "width of the model"},
    {"--heads", "N", OPTION_INT, AT(n_heads), "6", 1, 1 << 20, NULL, "heads of attention; divides the width"},
    {"--context", "N", OPTION_INT, AT(context), "128", 1, 1 << 20, NULL, "tokens of a sequence"},
    {"--batch", "N", OPTION_INT, AT(batch), "4", 1, 1 << 20, NULL, "sequences per rank in one backward pass"},
    {"--accumulate", "K", OPTION_PARTS, AT(accumulate), "1", 0, 0, NULL,
     "backward passes per step; with single: parts, also AxB"},
    {"--steps", "N", OPTION_INT, AT(n_steps), "400", 1, MAX_COUNT, NULL, "steps of the whole run"},
    {"--lr", "RATE", OPTION_REAL, AT(lr), "0.001", 0, 1e6, NULL,
     "highest learning rate; a cosine lowers it to a tenth"},
    {"--warmup", "N", OPTION_INT, AT(n_warmup), "-1", -1, MAX_COUNT, NULL,
     "steps in which the rate rises; -1: a tenth of all, at most 100"},
    {"--clip", "NORM", OPTION_REAL, AT(clip), "1", 0, 1e30, NULL, "largest norm of the gradients; 0: any"},
    {"--dropout", "P", OPTION_REAL, AT(dropout), "0", 0, 0.999, NULL,
     "probability that an element is dropped"},
    {"--seed", "N", OPTION_INT, AT(seed), "1", 0, 9e15, NULL,
     "seed of weights, batches, dropout and samples"},
    {"--threads", "N", OPTION_INT, AT(n_threads), "1", 1, 4096, NULL, "threads that compute, in each rank"},
    {"--bind", "NAME", OPTION_CHOICE, AT(binds), "none", 0, 0, BINDINGS,
     "none, or cores: ranks have cores of their own, if there are enough"},
    {"--transport", "NAME", OPTION_TEXT, AT(transport), NULL, 0, 0, NULL,
     "transport of the ranks; shoal info lists the names"},
    {"--checkpoint", "DIR", OPTION_TEXT, AT(checkpoint), NULL, 0, 0, NULL,
     "saves a checkpoint there at the end"},
    {"--every", "K", OPTION_INT, AT(every), NULL, 1, MAX_COUNT, NULL,
     "saves after every K steps, too, in the background"},
    {"--resume", NULL, OPTION_FLAG, AT(resumes), NULL, 0, 0, NULL,
     "continues from the newest checkpoint of --checkpoint"},
    {"--load", "DIR", OPTION_TEXT, AT(load), NULL, 0, 0, NULL,
     "begins with weights of GPT-2 (safetensors, Hugging Face's names)"},
    {"--prompt", "TEXT", OPTION_TEXT, AT(prompt), NULL, 0, 0, NULL,
     "prints what the model writes after this text"},
    {"--sample", "N", OPTION_INT, AT(n_sample), "-1", -1, 1 << 20, NULL,
     "tokens to write; -1: 256 with --prompt, otherwise none"},
    {"--trace", "FILE", OPTION_TEXT, AT(trace), NULL, 0, 0, NULL, "records a trace; see shoal trace"},
    {"--verify", NULL, OPTION_FLAG, AT(verifies), NULL, 0, 0, NULL,
     "repeats the run in one process and compares the bits"},
    {"--verify-steps", "N", OPTION_INT, AT(n_verify), NULL, 1, MAX_COUNT, NULL,
     "with --verify: repeats only the first N steps"},
    {"--json", NULL, OPTION_FLAG, AT(has_json), NULL, 0, 0, NULL,
     "prints one line of JSON, and nothing else"},
    /* Of the launcher, which sees the terminal that ranks do not see. */
    {"--live", "COLUMNS", OPTION_INT, AT(live_columns), "0", 0, 10000, NULL, NULL},
};

#define N_ROWS (sizeof rows / sizeof rows[0])

/* Usage ------------------------------------------------------------------------------------------------ */

static void print_row(FILE *out, const struct option_row *row)
{
    int columns = fprintf(out, "  %s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
    fprintf(out, "%*s %s", columns < NAME_COLUMNS + 2 ? NAME_COLUMNS + 2 - columns : 0, "", row->help);
    bool is_shown = row->standard && row->standard[0] != '-' && strcmp(row->standard, "auto") != 0;
    fprintf(out, is_shown ? "; default %s\n" : "\n", row->standard);
}

static void print_usage(FILE *out)
{
    fputs("usage: shoal train [options]\n"
          "Trains a GPT on text, on one rank or several, and prints progress and a summary.\n",
          out);
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].help) {
            print_row(out, &rows[i]);
        }
    }
    fputs("Without --data and --tokens the text is the source of Shoal, or, where that is not there, its\n"
          "headers and documents.\n",
          out);
}

/* Values ----------------------------------------------------------------------------------------------- */

/* Splits "a|b|c"; returns how many. */
static size_t split_choices(const char *choices, char (*names)[NAME_BYTES])
{
    size_t n_names = 0;
    while (choices && n_names < MAX_CHOICES) {
        size_t length = strcspn(choices, "|");
        (void)snprintf(names[n_names++], NAME_BYTES, "%.*s", (int)length, choices);
        choices = choices[length] == '|' ? choices + length + 1 : NULL;
    }
    return n_names;
}

static int complain_choice(const struct option_row *row, const char *text)
{
    char names[MAX_CHOICES][NAME_BYTES];
    struct tool_choice choices[MAX_CHOICES] = {{0}};
    size_t n_names = split_choices(row->choices, names);
    for (size_t i = 0; i < n_names; i++) {
        choices[i].name = names[i];
    }
    return tool_choice_unknown(row->name + 2, text, choices, n_names);
}

static bool complain_range(const struct option_row *row, const char *text)
{
    fprintf(stderr, "shoal train: %s: '%s' is not a %s from %.16g to %.16g\n", row->name, text,
            row->kind == OPTION_INT ? "whole number" : "number", row->least, row->most);
    return false;
}

static bool read_real(const char *text, double *value_out)
{
    char *end = NULL;
    *value_out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value_out);
}

static bool read_number(const struct option_row *row, const char *text, char *to)
{
    double real = 0.0;
    int64_t whole = 0;
    if (row->kind == OPTION_INT) {
        if (!option_parse_int(text, &whole) || (double)whole < row->least || (double)whole > row->most) {
            return complain_range(row, text);
        }
        *(int64_t *)(void *)to = whole;
        return true;
    }
    if (!read_real(text, &real) || real < row->least || real > row->most) {
        return complain_range(row, text);
    }
    *(double *)(void *)to = real;
    return true;
}

static bool read_parts(const struct option_row *row, const char *text, char *to)
{
    struct train_parts *parts = (struct train_parts *)(void *)to;
    char outer[NAME_BYTES];
    const char *x = strchr(text, 'x');
    size_t length = x ? (size_t)(x - text) : 0;
    (void)snprintf(outer, sizeof outer, "%.*s", (int)(length < sizeof outer ? length : 0), text);
    struct train_parts found = {.n_outer = 1, .has_x = x != NULL};
    bool is_right = option_parse_int(x ? x + 1 : text, &found.n_inner) &&
                    (!x || option_parse_int(outer, &found.n_outer)) && found.n_inner >= 1 &&
                    found.n_inner <= 4096 && found.n_outer >= 1 && found.n_outer <= 4096;
    if (!is_right) {
        fprintf(stderr,
                "shoal train: %s: '%s' is neither a number of parts from 1 to 4096 nor two of them, as 2x2\n",
                row->name, text);
        return false;
    }
    *parts = found;
    return true;
}

static bool read_choice(const struct option_row *row, const char *text, char *to)
{
    int index = TRAIN_AUTO;
    bool is_default = row->standard && strcmp(text, row->standard) == 0 && strcmp(text, "auto") == 0;
    if (!is_default && !option_parse_choice(text, row->choices, &index)) {
        (void)complain_choice(row, text);
        return false;
    }
    *(int64_t *)(void *)to = index;
    return true;
}

static bool read_value(const struct option_row *row, const char *text, struct train_options *options)
{
    char *to = (char *)options + row->at;
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)(void *)to = true;
        return true;
    case OPTION_INT:
    case OPTION_REAL:
        return read_number(row, text, to);
    case OPTION_CHOICE:
        return read_choice(row, text, to);
    case OPTION_PARTS:
        return read_parts(row, text, to);
    case OPTION_TEXT:
        break;
    }
    if (text[0] == '\0') {
        fprintf(stderr, "shoal train: %s needs a value that is not empty\n", row->name);
        return false;
    }
    *(const char **)(void *)to = text;
    return true;
}

/* The command line ------------------------------------------------------------------------------------- */

static int complain_unknown(const char *word)
{
    if (word[0] != '-') {
        fprintf(stderr, "shoal train: '%s' belongs to no option; did you mean --data %s?\n", word, word);
        return TOOL_USAGE;
    }
    struct tool_choice choices[N_ROWS + 1] = {{0}};
    size_t n_choices = 0;
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].help) {
            choices[n_choices++].name = rows[i].name;
        }
    }
    choices[n_choices++].name = "--help";
    return tool_choice_unknown("option", word, choices, n_choices);
}

/* How many words were taken; 0 after an error. */
static int read_option(int argc, char **argv, struct train_options *options)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (strcmp(argv[0], rows[i].name) != 0) {
            continue;
        }
        int n_words = rows[i].kind == OPTION_FLAG ? 1 : 2;
        if (argc < n_words) {
            fprintf(stderr, "shoal train: %s needs a value\n", argv[0]);
            return 0;
        }
        return read_value(&rows[i], argv[n_words - 1], options) ? n_words : 0;
    }
    (void)complain_unknown(argv[0]);
    return 0;
}

/* Returns what is wrong whatever the number of ranks is; NULL if nothing is. */
static const char *find_contradiction(const struct train_options *options)
{
    const struct {
        bool is_wrong;
        const char *text;
    } rules[] = {
        {options->data && options->tokens, "--data and --tokens are two sources: give one"},
        {options->vocabulary > 0 && !options->tokens, "--vocabulary is about --tokens: bytes have 256"},
        {options->every > 0 && !options->checkpoint, "--every needs --checkpoint DIR"},
        {options->resumes && !options->checkpoint, "--resume needs --checkpoint DIR"},
        {options->resumes && options->verifies,
         "--verify repeats a run from its beginning: not with --resume"},
        {options->n_verify > 0 && !options->verifies, "--verify-steps needs --verify"},
        {options->lr <= 0.0, "--lr must be more than 0"},
        {options->n_warmup >= options->n_steps, "--warmup must be less than --steps"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].is_wrong) {
            return rules[i].text;
        }
    }
    return NULL;
}

bool train_options_read(int argc, char **argv, struct train_options *options, int *exit_status_out)
{
    *options = (struct train_options){0};
    *exit_status_out = TOOL_USAGE;
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].standard && !read_value(&rows[i], rows[i].standard, options)) {
            return false;
        }
    }
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_usage(stdout);
            *exit_status_out = TOOL_DONE;
            return false;
        }
        int n_words = read_option(argc - i, argv + i, options);
        if (n_words == 0) {
            return false;
        }
        options->has_heads = options->has_heads || strcmp(argv[i], "--heads") == 0;
        i += n_words;
    }
    if (options->transport && !tool_set_transport(options->transport)) {
        return false;
    }
    const char *wrong = find_contradiction(options);
    if (wrong) {
        fprintf(stderr, "shoal train: %s\n", wrong);
        return false;
    }
    if (options->width % options->n_heads != 0 && !options->load) {
        fprintf(stderr, "shoal train: --heads %" PRId64 " does not divide --width %" PRId64 "\n",
                options->n_heads, options->width);
        return false;
    }
    return true;
}

/* With ranks --------------------------------------------------------------------------------------------- */

static const char *find_misfit(const struct train_options *options, int n_ranks)
{
    bool is_single = options->mode == TRAIN_SINGLE;
    const struct {
        bool is_wrong;
        const char *text;
    } rules[] = {
        {options->n_ranks != 0 && options->n_ranks != n_ranks,
         "--ranks is not the number of ranks that were started"},
        {is_single && n_ranks > 1, "--mode single is one process: --accumulate N does what N ranks do"},
        {options->accumulate.has_x && !is_single,
         "--accumulate AxB is for --mode single: hsdp has --replicas"},
        {options->mode == TRAIN_NONE && options->verifies, "--verify has nothing to compare in --mode none"},
        {options->mode == TRAIN_NONE && options->checkpoint,
         "--checkpoint saves one model: not in --mode none"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].is_wrong) {
            return rules[i].text;
        }
    }
    return NULL;
}

bool train_options_settle(struct train_options *options, int n_ranks)
{
    if (options->mode == TRAIN_AUTO) {
        options->mode = n_ranks > 1 ? TRAIN_FSDP : TRAIN_SINGLE;
    }
    const char *wrong = find_misfit(options, n_ranks);
    if (wrong) {
        fprintf(stderr, "shoal train: %s\n", wrong);
        return false;
    }
    if (options->mode == TRAIN_HSDP && n_ranks % options->n_replicas != 0) {
        fprintf(stderr, "shoal train: --replicas %" PRId64 " does not divide the number of ranks, %d\n",
                options->n_replicas, n_ranks);
        return false;
    }
    options->n_ranks = n_ranks;
    if (options->n_sample < 0) {
        options->n_sample = options->prompt ? 256 : 0;
    }
    if (options->n_warmup < 0) {
        options->n_warmup = options->n_steps / 10 < 100 ? options->n_steps / 10 : 100;
    }
    if (options->n_verify == 0 || options->n_verify > options->n_steps) {
        options->n_verify = options->n_steps;
    }
    return true;
}

/* What a rank may have for itself. The data is compared by what is in it. */
static bool is_own(const struct option_row *row)
{
    static const char *const names[] = {"--data",   "--tokens", "--ranks", "--threads",
                                        "--prompt", "--sample", "--json",  "--live"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(row->name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static struct train_mark make_mark(const struct option_row *row, const char *value)
{
    const struct train_parts *parts = (const struct train_parts *)(const void *)value;
    struct train_mark mark = {.name = row->name, .kind = TRAIN_MARK_CODE};
    switch (row->kind) {
    case OPTION_FLAG:
        mark.integer = *(const bool *)(const void *)value;
        break;
    case OPTION_TEXT:
        mark.integer = *(const char *const *)(const void *)value != NULL;
        break;
    case OPTION_PARTS:
        mark.integer = parts->n_outer << 20 | parts->n_inner;
        break;
    case OPTION_INT:
        mark.kind = TRAIN_MARK_INTEGER;
        mark.integer = *(const int64_t *)(const void *)value;
        break;
    case OPTION_REAL:
        mark.kind = TRAIN_MARK_REAL;
        mark.real = *(const double *)(const void *)value;
        break;
    case OPTION_CHOICE:
        mark.integer = *(const int64_t *)(const void *)value;
        break;
    }
    return mark;
}

size_t train_options_marks(const struct train_options *options, struct train_mark marks[TRAIN_MAX_MARKS])
{
    size_t n_marks = 0;
    _Static_assert(N_ROWS <= TRAIN_MAX_MARKS, "room for all options");
    for (size_t i = 0; i < N_ROWS; i++) {
        if (!is_own(&rows[i])) {
            marks[n_marks++] = make_mark(&rows[i], (const char *)options + rows[i].at);
        }
    }
    return n_marks;
}

const char *train_mode_name(int64_t mode)
{
    static char names[MAX_CHOICES][NAME_BYTES];
    if (names[0][0] == '\0') {
        (void)split_choices(MODES, names);
    }
    return mode >= 0 && mode < TRAIN_N_MODES ? names[mode] : "auto";
}
