/* SPDX-License-Identifier: MIT */
/*
 * `shoal export`: writes a model as a GPT-2 of Hugging Face, a directory with model.safetensors, config.json and, if the
 * tokens are known, the files of a tokenizer. Parameters of Shoal's GPT have the names and the layout of
 * GPT2LMHeadModel already. The same parameters give the same bytes, whatever ranks have saved them.
 */
#include "export/tokenizer.h"
#include "common/commands.h"
#include "common/tool.h"
#include "model/config_json.h"
#include "model/load.h"
#include "run/job.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/load/foreign.h"
#include "shoal/checkpoint.h"
#include "shoal/module.h"
#include "shoal/safetensors.h"
#include "shoal/scope.h"
#include "shoal/world.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct arguments {
    const char *from;
    const char *to;
    const char *tokenizer;
    int64_t n_heads; /* 0 if it was not given */
    bool replaces;
};

#define AT(member) offsetof(struct arguments, member)

static const struct tool_option rows[] = {
    {"FROM", "directory of a model", TOOL_OPTION_TEXT, AT(from),
     .missing = "needs the directory of a model, and one to write to",
     .help = "directory of shoal train --checkpoint, of which the newest step is taken, or DIR/step-N"},
    {"TO", "directory to write to", TOOL_OPTION_TEXT, AT(to), .missing = "needs a directory to write to",
     .help = "directory to write to; it is made if it is not there"},
    {"--tokenizer", "DIR", TOOL_OPTION_TEXT, AT(tokenizer),
     .help = "directory of the tokenizer of the model: vocab.json and merges.txt are copied"},
    {"--heads", "N", TOOL_OPTION_INT64, AT(n_heads), 1, 1 << 20,
     .help = "heads of attention, where the model does not say how many"},
    {"--replace", NULL, TOOL_OPTION_FLAG, AT(replaces), .help = "replaces a model that is in TO"},
};

const struct tool_options command_export_options = {
    .about = "Writes a model as a GPT-2 of Hugging Face: model.safetensors and config.json.\n",
    TOOL_OPTIONS_ROWS(rows),
    .notes = "Read it with GPT2LMHeadModel.from_pretrained(TO) of transformers, shoal generate TO, or\n"
             "shoal train --load TO. A model of bytes gets a tokenizer of bytes, too.\n",
};

struct course {
    const struct arguments *arguments;
    struct model_description description;
    shoal_module *module;
    size_t n_params; /* elements */
    size_t n_lost;   /* of these, that are infinite or NaN */
};

/* The directory -------------------------------------------------------------------------------------------- */

static bool has_file(const char *directory, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path &&
           access(path, F_OK) == 0;
}

static const char *const model_files[] = {FOREIGN_FILE_NAME, FOREIGN_INDEX_NAME, MODEL_CONFIG_NAME};
static const char *const tokenizer_files[] = {"vocab.json", "merges.txt"};

static bool is_same(const char *left, const char *right)
{
    struct stat a;
    struct stat b;
    return stat(left, &a) == 0 && stat(right, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* A directory of checkpoints would still be one: what is beside them would never be loaded. */
static shoal_status check_directory(const struct arguments *arguments)
{
    int64_t step = 0;
    size_t n_steps = 0;
    if (has_file(arguments->to, "shoal.index.json")) {
        return error_set(SHOAL_ERR_STATE, "%s is a checkpoint: name another directory", arguments->to);
    }
    if (!has_file(arguments->to, FOREIGN_FILE_NAME) && !has_file(arguments->to, FOREIGN_INDEX_NAME)) {
        TRY(shoal_checkpoint_list(arguments->to, &step, 1, &n_steps));
    }
    if (n_steps > 0) {
        return error_set(SHOAL_ERR_STATE, "%s has checkpoints up to step %" PRId64 ": name another directory",
                         arguments->to, step);
    }
    if (is_same(arguments->from, arguments->to)) {
        return error_set(SHOAL_ERR_INVALID, "%s is where the model comes from: name another directory",
                         arguments->to);
    }
    for (size_t i = 0; i < sizeof model_files / sizeof model_files[0]; i++) {
        if (!arguments->replaces && has_file(arguments->to, model_files[i])) {
            return error_set(SHOAL_ERR_STATE, "%s has a %s already: --replace writes over it", arguments->to,
                             model_files[i]);
        }
    }
    return SHOAL_OK;
}

static shoal_status remove_file(const char *directory, const char *name)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    if (unlink(path) != 0 && errno != ENOENT) {
        return error_set(SHOAL_ERR_SYSTEM, "%s: %s", path, error_errno_text(errno));
    }
    return SHOAL_OK;
}

/* What describes the old model goes first: it must not describe the new one, whenever this process ends. */
static shoal_status clear_directory(const struct arguments *arguments)
{
    if (mkdir(arguments->to, 0777) != 0 && errno != EEXIST) {
        return error_set(SHOAL_ERR_SYSTEM, "%s: %s", arguments->to, error_errno_text(errno));
    }
    for (size_t i = 1; i < sizeof model_files / sizeof model_files[0]; i++) {
        TRY(remove_file(arguments->to, model_files[i]));
    }
    /* An old tokenizer, too. One that was given is written over, and may be this one. */
    for (size_t i = 0; !arguments->tokenizer && i < sizeof tokenizer_files / sizeof tokenizer_files[0]; i++) {
        TRY(remove_file(arguments->to, tokenizer_files[i]));
    }
    return SHOAL_OK;
}

/* The weights ---------------------------------------------------------------------------------------------- */

struct list {
    char **names;
    shoal_tensor **tensors;
    size_t count;
    size_t n_params;
    size_t n_lost;
};

static size_t count_lost(const shoal_tensor *tensor)
{
    const float *values = shoal_tensor_dtype(tensor) == SHOAL_F32 ? shoal_data(tensor) : NULL;
    size_t n_lost = 0;
    for (int64_t i = 0; values && i < shoal_tensor_count(tensor); i++) {
        n_lost += isfinite(values[i]) ? 0 : 1;
    }
    return n_lost;
}

static shoal_status add_parameter(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct list *list = context;
    (void)next;
    char *name = mem_copy_string(entry->path);
    TRY(name ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    list->names[list->count] = name;
    list->tensors[list->count++] = entry->tensor;
    list->n_params += (size_t)shoal_tensor_count(entry->tensor);
    list->n_lost += count_lost(entry->tensor);
    return SHOAL_OK;
}

static shoal_status save_list(struct course *course, struct list *list)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/" FOREIGN_FILE_NAME, course->arguments->to);
    TRY(shoal_module_walk(course->module, SHOAL_WALK_PARAMETERS, add_parameter, list));
    course->n_params = list->n_params;
    course->n_lost = list->n_lost;
    return shoal_safetensors_save(path, (const char *const *)list->names, list->tensors, list->count,
                                  metadata);
}

/* A tied parameter is there once, under its first name, as transformers writes it. */
static shoal_status save_weights(struct course *course)
{
    size_t n = 0;
    TRY(shoal_module_count(course->module, SHOAL_WALK_PARAMETERS, &n));
    struct list list = {.names = mem_alloc_zeroed(n, sizeof(list.names[0])),
                        .tensors = mem_alloc_zeroed(n, sizeof(list.tensors[0]))};
    shoal_status status = list.names && list.tensors ? save_list(course, &list) : SHOAL_ERR_NO_MEMORY;
    for (size_t i = 0; i < list.count; i++) {
        mem_free(list.names[i]);
    }
    mem_free(list.names);
    mem_free(list.tensors);
    return status;
}

/* The command ---------------------------------------------------------------------------------------------- */

static shoal_status load_module(struct course *course, shoal_world *world)
{
    shoal_nn_gpt_options gpt = course->description.gpt;
    gpt.dropout = 0.0;
    gpt.device = SHOAL_CPU;
    TRY(shoal_nn_gpt_create(&gpt, &course->module));
    return model_load(shoal_world_group(world), course->arguments->from, &course->description,
                      course->module);
}

static shoal_status open_and_load(struct course *course)
{
    char key[64];
    shoal_world *world = NULL;
    shoal_world_options options = SHOAL_WORLD_OPTIONS_INIT;
    (void)snprintf(key, sizeof key, "export-%ld-%" PRId64, (long)getpid(), clock_now_ns());
    options.n_ranks = 1;
    options.key = key;
    TRY(shoal_world_open(&options, &world));
    TRY(load_module(course, world));
    return shoal_world_close(world);
}

static shoal_status export_model(struct course *course)
{
    const struct arguments *arguments = course->arguments;
    const shoal_nn_gpt_options *gpt = &course->description.gpt;
    TRY(model_describe(arguments->from, &course->description));
    TRY(model_settle_heads(&course->description, arguments->from, arguments->n_heads));
    TRY(check_directory(arguments));
    if (arguments->tokenizer) {
        TRY(export_check_tokenizer(arguments->tokenizer, gpt->vocabulary));
    }
    TRY(open_and_load(course));
    TRY(clear_directory(arguments));
    TRY(save_weights(course));
    if (arguments->tokenizer || course->description.is_bytes) {
        TRY(export_tokenizer(arguments->tokenizer, arguments->to));
    }
    return model_config_write(arguments->to, gpt);
}

static void print_result(const struct course *course)
{
    const shoal_nn_gpt_options *gpt = &course->description.gpt;
    printf("%s: a GPT-2 of %.2f million parameters (%" PRId64 " layers, width %" PRId64 ", %" PRId64
           " heads, %" PRId64 " positions, %" PRId64 " tokens)",
           course->arguments->to, (double)course->n_params * 1e-6, gpt->n_layers, gpt->width, gpt->n_heads,
           gpt->context, gpt->vocabulary);
    if (course->description.step >= 0) {
        printf(", from step %" PRId64, course->description.step);
    }
    printf(" of %s\n", course->arguments->from);
}

int command_export(int argc, char **argv)
{
    struct arguments arguments = {0};
    struct course course = {.arguments = &arguments};
    int exit_status;
    run_fill_standard_files();
    if (!tool_options_read(&command_export_options, argc, argv, &arguments, NULL, &exit_status)) {
        return exit_status;
    }
    shoal_status status = export_model(&course);
    shoal_module_unref(course.module);
    if (status != SHOAL_OK) {
        fprintf(stderr, "shoal export: %s\n", shoal_error_text());
        return TOOL_FAILED;
    }
    print_result(&course);
    if (course.n_lost > 0) {
        (void)fflush(stdout);
        fprintf(stderr, "shoal export: warning: %zu of %zu parameters are infinite or no numbers\n",
                course.n_lost, course.n_params);
    }
    return TOOL_DONE;
}
