/* SPDX-License-Identifier: MIT */
/* The command line of `shoal train`: its table, and what options say together. */
#include "config/options.h"
#include "common/commands.h"
#include "common/tool.h"
#include "run/rank.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_COUNT = 1 << 30,
    N_VALIDATIONS = 20 /* of a run, about */
};

#define AT(member) offsetof(struct train_options, member)
#define MODES "none|single|ddp|zero1|zero2|fsdp|hsdp"
#define DTYPES "f32|bf16"
#define BINDINGS "cores|none"

static const struct tool_option rows[] = {
    {"--data", "FILE", TOOL_OPTION_TEXT, AT(data), .help = "text to learn; each byte is a token"},
    {"--tokens", "FILE", TOOL_OPTION_TEXT, AT(tokens),
     .help = "tokens to learn: a file of shoal tokens or llm.c, or u16 alone"},
    {"--vocabulary", "N", TOOL_OPTION_INT64, AT(vocabulary), 1, TRAIN_MAX_VOCABULARY,
     .help = "vocabulary of --tokens; default: as the file needs"},
    {"--ranks", "N", TOOL_OPTION_INT64, AT(n_ranks), 1, RUN_MAX_RANKS, .alias = "-n",
     .help = "ranks to start; not under shoal run, mpirun or torchrun"},
    {"--mode", "NAME", TOOL_OPTION_CHOICE, AT(mode), .standard = "auto", .choices = MODES,
     .help = MODES "; default: fsdp, or single on one rank"},
    {"--replicas", "N", TOOL_OPTION_INT64, AT(n_replicas), 1, RUN_MAX_RANKS, .standard = "2",
     .help = "replicas of hsdp; divides the ranks"},
    {"--compile", NULL, TOOL_OPTION_FLAG, AT(compiles), .help = "compiles the step and runs it as a plan"},
    {"--graph", "FILE", TOOL_OPTION_TEXT, AT(graph),
     .help = "with --compile: writes the captured step to FILE, after passes to FILE.after"},
    {"--dtype", "NAME", TOOL_OPTION_CHOICE, AT(dtype), .standard = "f32", .choices = DTYPES,
     .help = "dtype of compute; weights and sums of gradients are f32"},
    {"--layers", "N", TOOL_OPTION_INT64, AT(n_layers), 1, 10000, .standard = "2",
     .help = "blocks of the model"},
    {"--width", "N", TOOL_OPTION_INT64, AT(width), 1, 1 << 20, .standard = "192",
     .help = "width of the model"},
    {"--heads", "N", TOOL_OPTION_INT64, AT(n_heads), 1, 1 << 20, .standard = "6",
     .help = "heads of attention; divides the width"},
    {"--context", "N", TOOL_OPTION_INT64, AT(context), 1, 1 << 20, .standard = "128",
     .help = "tokens of a sequence"},
    {"--batch", "N", TOOL_OPTION_INT64, AT(batch), 1, 1 << 20, .standard = "4",
     .help = "sequences per rank in one backward pass"},
    {"--accumulate", "K", TOOL_OPTION_PARTS, AT(accumulate), .standard = "1",
     .help = "backward passes per step; with single: parts, also AxB"},
    {"--steps", "N", TOOL_OPTION_INT64, AT(n_steps), 1, MAX_COUNT, .standard = "400",
     .help = "steps of the whole run"},
    {"--lr", "RATE", TOOL_OPTION_REAL, AT(lr), 0, 1e6, .standard = "0.001",
     .help = "highest learning rate; a cosine lowers it to a tenth"},
    {"--warmup", "N", TOOL_OPTION_INT64, AT(n_warmup), -1, MAX_COUNT, .standard = "-1",
     .help = "steps in which the rate rises; -1: a tenth of all, at most 100"},
    {"--clip", "NORM", TOOL_OPTION_REAL, AT(clip), 0, 1e30, .standard = "1",
     .help = "largest norm of the gradients; 0: any"},
    {"--dropout", "P", TOOL_OPTION_REAL, AT(dropout), 0, 0.999, .standard = "0",
     .help = "probability that an element is dropped"},
    {"--seed", "N", TOOL_OPTION_INT64, AT(seed), 0, 9e15, .standard = "1",
     .help = "seed of weights, batches, dropout and samples"},
    {"--threads", "N", TOOL_OPTION_INT64, AT(n_threads), 1, 4096, .standard = "1",
     .help = "threads that compute, in each rank"},
    {"--bind", "NAME", TOOL_OPTION_CHOICE, AT(binds), .standard = "none", .choices = BINDINGS,
     .help = "none, or cores: ranks have cores of their own, if there are enough"},
    {"--transport", "NAME", TOOL_OPTION_TEXT, AT(transport), .name_at = tool_transport_at,
     .help = "transport of the ranks; shoal info lists the names"},
    {"--checkpoint", "DIR", TOOL_OPTION_TEXT, AT(checkpoint), .help = "saves a checkpoint there at the end"},
    {"--every", "K", TOOL_OPTION_INT64, AT(every), 1, MAX_COUNT,
     .help = "saves after every K steps, too, in the background"},
    {"--resume", NULL, TOOL_OPTION_FLAG, AT(resumes), .stray = "--checkpoint",
     .help = "continues from the newest checkpoint of --checkpoint"},
    {"--load", "DIR", TOOL_OPTION_TEXT, AT(load),
     .help = "begins with the weights of a checkpoint, or of a GPT-2 of Hugging Face"},
    {"--prompt", "TEXT", TOOL_OPTION_TEXT, AT(prompt),
     .help = "prints what the model writes after this text"},
    {"--sample", "N", TOOL_OPTION_INT64, AT(n_sample), -1, 1 << 20, .standard = "-1",
     .help = "tokens to write; -1: 256 with --prompt, otherwise none"},
    {"--val", "WHAT", TOOL_OPTION_TEXT, AT(val),
     .help = "validates with a file, or with this fraction of the data, as 0.1"},
    {"--val-every", "N", TOOL_OPTION_INT64, AT(val_every), 1, MAX_COUNT,
     .help = "validates every N steps; default: about 20 times in the run"},
    {"--log", "FILE", TOOL_OPTION_TEXT, AT(log), .help = "writes a line of JSON for each step"},
    {"--report", "FILE", TOOL_OPTION_TEXT, AT(report),
     .help = "writes a page (HTML) about the run; see shoal report"},
    {"--trace", "FILE", TOOL_OPTION_TEXT, AT(trace), .help = "records a trace; see shoal trace"},
    {"--verify", NULL, TOOL_OPTION_FLAG, AT(verifies),
     .help = "repeats the run in one process and compares the bits"},
    {"--verify-steps", "N", TOOL_OPTION_INT64, AT(n_verify), 1, MAX_COUNT,
     .help = "with --verify: repeats only the first N steps"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(has_json), .help = "prints one line of JSON, and nothing else"},
    /* Of the launcher, which sees the terminal that ranks do not see, and knows that it has started them. */
    {"--live", "COLUMNS", TOOL_OPTION_INT64, AT(live_columns), 0, 10000, .standard = "0"},
    {"--started", NULL, TOOL_OPTION_FLAG, AT(is_started), .help = NULL},
};

#define N_ROWS (sizeof rows / sizeof rows[0])

const struct tool_options command_train_options = {
    .about = "Trains a GPT on text, on one rank or several, and prints progress and a summary.\n",
    TOOL_OPTIONS_ROWS(rows),
    .notes = "Without --data and --tokens the text is the source of Shoal, or, where that is not there, its\n"
             "headers and documents.\n",
    .stray = "--data",
};

/* The command line ------------------------------------------------------------------------------------- */

/* Returns what is wrong whatever the number of ranks is; NULL if nothing is. */
static const char *find_contradiction(const struct train_options *options)
{
    const struct {
        bool is_wrong;
        const char *text;
    } rules[] = {
        {options->data && options->tokens, "--data and --tokens are two sources: give one"},
        {options->vocabulary > 0 && !options->tokens, "--vocabulary is about --tokens: bytes have 256"},
        {options->graph && !options->compiles,
         "--graph needs --compile: a step that is not compiled has none"},
        {options->every > 0 && !options->checkpoint, "--every needs --checkpoint DIR"},
        {options->resumes && !options->checkpoint, "--resume needs --checkpoint DIR"},
        {options->resumes && options->verifies,
         "--verify repeats a run from its beginning: not with --resume"},
        {options->n_verify > 0 && !options->verifies, "--verify-steps needs --verify"},
        {options->val_every > 0 && !options->val, "--val-every needs --val FILE or --val FRACTION"},
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

/* A number is a fraction of the data, anything else a file. */
static bool read_fraction(struct train_options *options)
{
    char *end = NULL;
    double fraction = strtod(options->val, &end);
    if (*end != '\0') {
        return true;
    }
    options->val_fraction = fraction;
    if (!(fraction > 0.0 && fraction < 1.0)) {
        fprintf(
            stderr,
            "shoal train: --val: %s is not a fraction of the data, more than 0 and less than 1; a file of "
            "that name is ./%s\n",
            options->val, options->val);
        return false;
    }
    return true;
}

void train_options_default(struct train_options *options)
{
    *options = (struct train_options){0};
    (void)tool_options_default(&command_train_options, options);
}

bool train_options_read(int argc, char **argv, struct train_options *options, int *exit_status_out)
{
    *options = (struct train_options){0};
    if (!tool_options_read(&command_train_options, argc, argv, options, &options->given, exit_status_out)) {
        return false;
    }
    *exit_status_out = TOOL_USAGE;
    return !options->transport || tool_set_transport(options->transport);
}

bool train_options_check(struct train_options *options)
{
    const char *wrong = find_contradiction(options);
    if (wrong) {
        (void)tool_refuse("%s", wrong);
        return false;
    }
    if (options->val && !read_fraction(options)) {
        return false;
    }
    if (options->width % options->n_heads != 0 && !options->load) {
        (void)tool_refuse("--heads %" PRId64 " does not divide --width %" PRId64, options->n_heads,
                          options->width);
        return false;
    }
    return true;
}

bool train_options_given(const struct train_options *options, const char *name)
{
    return tool_option_is_given(&command_train_options, &options->given, name);
}

/* With ranks --------------------------------------------------------------------------------------------- */

static const char *find_misfit(const struct train_options *options, int n_ranks)
{
    bool is_single = options->mode == TRAIN_SINGLE;
    const struct {
        bool is_wrong;
        const char *text;
    } rules[] = {
        {is_single && n_ranks > 1, "--mode single is one process: --accumulate N does what N ranks do"},
        {options->mode != TRAIN_HSDP && train_options_given(options, "--replicas"),
         "--replicas is about --mode hsdp"},
        {options->accumulate.has_x && !is_single,
         "--accumulate AxB is for --mode single: hsdp has --replicas"},
        {options->mode == TRAIN_NONE && options->verifies, "--verify has nothing to compare in --mode none"},
        {options->mode == TRAIN_NONE && options->checkpoint,
         "--checkpoint saves one model: not in --mode none"},
        {options->mode == TRAIN_NONE && options->val, "--val is about one model: not in --mode none"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].is_wrong) {
            return rules[i].text;
        }
    }
    return NULL;
}

int64_t train_options_warmup(int64_t n_steps)
{
    return n_steps / 10 < 100 ? n_steps / 10 : 100;
}

/* "use --replicas 2 or 3": the numbers that divide the ranks. */
static bool refuse_replicas(const struct train_options *options, int n_ranks)
{
    const char *before = ": use --replicas ";
    if (!tool_speaks()) {
        return false;
    }
    fprintf(stderr, "shoal train: --replicas %" PRId64 " does not divide the number of ranks, %d",
            options->n_replicas, n_ranks);
    for (int n = n_ranks > 1 ? 2 : 1; n <= n_ranks; n++) {
        if (n_ranks % n == 0) {
            fprintf(stderr, "%s%d", before, n);
            before = " or ";
        }
    }
    fputc('\n', stderr);
    return false;
}

bool train_options_settle(struct train_options *options, int n_ranks)
{
    if (options->mode == TRAIN_AUTO) {
        options->mode = n_ranks > 1 ? TRAIN_FSDP : TRAIN_SINGLE;
    }
    const char *wrong = find_misfit(options, n_ranks);
    if (wrong) {
        (void)tool_refuse("%s", wrong);
        return false;
    }
    if (options->mode == TRAIN_HSDP && n_ranks % options->n_replicas != 0) {
        return refuse_replicas(options, n_ranks);
    }
    options->n_ranks = n_ranks;
    if (options->n_sample < 0) {
        options->n_sample = options->prompt ? 256 : 0;
    }
    if (options->n_warmup < 0) {
        options->n_warmup = train_options_warmup(options->n_steps);
    }
    if (options->report && !options->log) {
        (void)snprintf(options->own_log, sizeof options->own_log, "%s.jsonl", options->report);
        options->has_own_log = true;
        options->log = options->own_log;
    }
    options->has_own_every = options->val_every == 0;
    if (options->has_own_every) {
        options->val_every = options->n_steps > N_VALIDATIONS ? options->n_steps / N_VALIDATIONS : 1;
    }
    if (options->n_verify == 0 || options->n_verify > options->n_steps) {
        options->n_verify = options->n_steps;
    }
    return true;
}

static bool is_among(const struct tool_option *row, const char *const *names)
{
    while (*names && strcmp(row->name, *names) != 0) {
        names++;
    }
    return *names != NULL;
}

/* What a rank may have for itself. The data is compared by what is in it. */
static bool is_own(const struct tool_option *row)
{
    static const char *const names[] = {"--data",   "--tokens", "--ranks", "--threads", "--prompt",
                                        "--sample", "--json",   "--live",  "--started", NULL};
    return is_among(row, names);
}

bool train_options_is_kept(const struct tool_option *row)
{
    static const char *const names[] = {
        "--vocabulary", "--mode",    "--replicas", "--compile",    "--dtype", "--layers",    "--width",
        "--heads",      "--context", "--batch",    "--accumulate", "--steps", "--lr",        "--warmup",
        "--clip",       "--dropout", "--seed",     "--threads",    "--every", "--val-every", NULL};
    return is_among(row, names);
}

static struct train_mark make_mark(const struct tool_option *row, const char *value)
{
    const struct tool_parts *parts = (const struct tool_parts *)(const void *)value;
    struct train_mark mark = {.name = row->name, .kind = TRAIN_MARK_CODE};
    switch (row->kind) {
    case TOOL_OPTION_FLAG:
        mark.integer = *(const bool *)(const void *)value;
        break;
    case TOOL_OPTION_TEXT:
        mark.integer = *(const char *const *)(const void *)value != NULL;
        break;
    case TOOL_OPTION_PARTS:
        mark.integer = parts->n_outer << 20 | parts->n_inner;
        break;
    case TOOL_OPTION_INT64:
        mark.kind = TRAIN_MARK_INTEGER;
        mark.integer = *(const int64_t *)(const void *)value;
        break;
    case TOOL_OPTION_REAL:
        mark.kind = TRAIN_MARK_REAL;
        mark.real = *(const double *)(const void *)value;
        break;
    case TOOL_OPTION_CHOICE:
        mark.integer = *(const int64_t *)(const void *)value;
        break;
    case TOOL_OPTION_INT: /* the table has none of these */
    case TOOL_OPTION_COUNT:
    case TOOL_OPTION_BYTES:
    case TOOL_OPTION_NAME:
    case TOOL_OPTION_OTHER:
    case TOOL_OPTION_REST:
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
    static char name[16];
    return tool_option_choice(MODES, mode, name, sizeof name) ? name : "auto";
}
