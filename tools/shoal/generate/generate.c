/* SPDX-License-Identifier: MIT */
/*
 * `shoal generate`: what a model writes after a prompt. On several ranks the model is sharded, and all of them compute
 * the same; the first one prints.
 */
#include "generate/prompt.h"
#include "common/commands.h"
#include "common/meet.h"
#include "common/paths.h"
#include "common/place.h"
#include "common/tool.h"
#include "model/load.h"
#include "model/sampler.h"
#include "run/again.h"
#include "run/job.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/load/foreign.h"
#include "shoal/fully_shard.h"
#include "shoal/ops.h"
#include "shoal/safetensors.h"
#include "shoal/scope.h"
#include "shoal/world.h"
#include "shoal_nn/nn.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define GRACE_S 2.0

struct course {
    const struct generate_options *options;
    struct model_description description;
    struct writing writing;
    struct token_list prompt;
    shoal_world *world;
    shoal_group *group;
    int rank;
    int n_ranks;
    shoal_module *module;
    bool is_agreed;              /* all ranks have failed with the same reason */
    int speaker;                 /* which then says it */
    shoal_status status;         /* of what this rank has read before it met the others */
    char text[ERROR_TEXT_BYTES]; /* of a failure */
};

static int say_failure(int rank, int n_ranks)
{
    if (n_ranks > 1) {
        fprintf(stderr, "shoal generate: rank %d: %s\n", rank, shoal_error_text());
    } else {
        fprintf(stderr, "shoal generate: %s\n", shoal_error_text());
    }
    return TOOL_FAILED;
}

/* The model ---------------------------------------------------------------------------------------------- */

/* Launchers may have given ranks different commands, and hosts may have different files. */
static shoal_status compare_ranks(const struct course *course)
{
    const struct generate_options *options = course->options;
    const shoal_nn_gpt_options *gpt = &course->description.gpt;
    uint64_t prompt = hash_bytes(course->prompt.count, course->prompt.tokens,
                                 course->prompt.count * sizeof(course->prompt.tokens[0]));
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"the step of the checkpoint", course->description.step},
                   {"the number of layers", gpt->n_layers},
                   {"the width", gpt->width},
                   {"the number of heads", gpt->n_heads},
                   {"the context", gpt->context},
                   {"the vocabulary", gpt->vocabulary},
                   {"--length", options->length},
                   {"--logits", options->logits != NULL}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        TRY(shoal_group_check_equal_integer(course->group, numbers[i].name, numbers[i].value));
    }
    shoal_status status =
        shoal_group_check_equal_integer(course->group, "the prompt", (int64_t)(prompt >> 1));
    return status == SHOAL_ERR_INVALID ? error_set(status, "the prompt is not the same on all ranks")
                                       : status;
}

/* A unit for each block, and one for the rest. Sharded models are made without memory. */
static shoal_status make_module(struct course *course)
{
    shoal_nn_gpt_options gpt = course->description.gpt;
    shoal_fully_shard_options how = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    gpt.dropout = 0.0;
    gpt.device = course->n_ranks > 1 ? SHOAL_META : SHOAL_CPU;
    TRY(shoal_nn_gpt_create(&gpt, &course->module));
    if (course->n_ranks == 1) {
        return SHOAL_OK;
    }
    how.group = course->group;
    for (int64_t i = 0; i < gpt.n_layers; i++) {
        TRY(shoal_fully_shard(shoal_nn_gpt_block(course->module, i), &how));
    }
    return shoal_fully_shard(course->module, &how);
}

static shoal_status agree(struct course *course, shoal_status status)
{
    course->is_agreed = status != SHOAL_OK && status != SHOAL_ERR_PEER;
    return status;
}

/* A rank that could not read the model tells the others. */
static shoal_status meet(struct course *course)
{
    shoal_status status = course->status;
    status = status == SHOAL_OK ? SHOAL_OK : error_set(status, "%s", course->text);
    int speaker;
    status = tool_meet(course->group, status, &speaker);
    course->is_agreed = speaker >= 0;
    course->speaker = speaker >= 0 ? speaker : 0;
    return status;
}

static shoal_status prepare(struct course *course)
{
    TRY(meet(course));
    if (course->n_ranks > 1) {
        TRY(agree(course, compare_ranks(course)));
    }
    TRY(make_module(course));
    return agree(course,
                 model_load(course->group, course->options->directory, &course->description, course->module));
}

/* Logits --------------------------------------------------------------------------------------------------- */

static shoal_status write_logits(const struct course *course, int32_t *tokens, int64_t count)
{
    static const char *const names[] = {"tokens", "logits"};
    const int64_t shape[] = {count, course->description.gpt.vocabulary};
    shoal_tensor *tensors[2] = {shoal_from_memory(tokens, shape, 1, SHOAL_I32, NULL, NULL, NULL), NULL};
    TRY(sampler_logits(course->module, tokens, count, &tensors[1]));
    tensors[1] = shoal_reshape(tensors[1], shape, 2);
    if (!tensors[0] || !tensors[1]) {
        return shoal_scope_error();
    }
    return course->rank == 0 ? shoal_safetensors_save(course->options->logits, names, tensors, 2, NULL)
                             : SHOAL_OK;
}

/* Of the last tokens of the prompt that fit into the context. All ranks compute them. */
static shoal_status save_logits(const struct course *course)
{
    int64_t n_prompt = (int64_t)course->prompt.count;
    int64_t context = course->description.gpt.context;
    int64_t count = n_prompt < context ? n_prompt : context;
    TRY(shoal_scope_begin());
    shoal_status status = write_logits(course, course->prompt.tokens + n_prompt - count, count);
    shoal_status ended = shoal_scope_end();
    status = status == SHOAL_OK ? ended : status;
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "--logits");
}

/* Text ----------------------------------------------------------------------------------------------------- */

static void print_prompt(struct course *course)
{
    size_t n_prompt = course->prompt.count;
    int64_t context = course->description.gpt.context;
    if ((int64_t)n_prompt > context) {
        fprintf(stderr, "shoal generate: the prompt has %zu tokens; the model sees the last %" PRId64 "\n",
                n_prompt, context);
    }
    for (size_t i = 0; i < n_prompt; i++) {
        writing_print(&course->writing, course->prompt.tokens[i]);
    }
}

static shoal_status write_text(struct course *course, struct sampler *sampler)
{
    bool is_first = course->rank == 0;
    TRY(sampler_make(sampler, course->prompt.tokens, course->prompt.count, (size_t)course->options->length));
    if (is_first) {
        print_prompt(course);
    }
    for (int64_t i = 0; i < course->options->length; i++) {
        int32_t token = 0;
        TRY(sampler_next(sampler, &token));
        if (is_first) {
            writing_print(&course->writing, token);
        }
    }
    if (is_first) {
        writing_end(&course->writing);
    }
    return SHOAL_OK;
}

static shoal_status generate(struct course *course)
{
    const struct generate_options *options = course->options;
    struct sampler sampler = {.group = course->n_ranks > 1 ? course->group : NULL,
                              .context = course->description.gpt.context,
                              .vocabulary = course->description.gpt.vocabulary,
                              .seed = (uint64_t)options->seed,
                              .temperature = options->temperature,
                              .top_k = options->top_k};
    TRY(prepare(course));
    if (options->logits) {
        TRY(save_logits(course));
    }
    sampler.module = course->module;
    shoal_status status = write_text(course, &sampler);
    sampler_free(&sampler);
    return status;
}

/* The command ---------------------------------------------------------------------------------------------- */

/* A rank that fails alone ends at once, without closing the world: the others notice. */
static int run_in_world(struct course *course)
{
    course->group = shoal_world_group(course->world);
    course->rank = shoal_world_rank(course->world);
    course->n_ranks = shoal_world_n_ranks(course->world);
    shoal_status status = generate(course);
    if (status != SHOAL_OK && (!course->is_agreed || course->rank == course->speaker)) {
        (void)say_failure(course->rank, course->is_agreed && course->rank == 0 ? 1 : course->n_ranks);
    }
    if (status != SHOAL_OK && !course->is_agreed) {
        return TOOL_FAILED;
    }
    shoal_module_unref(course->module);
    shoal_status closed = shoal_world_close(course->world);
    if (status == SHOAL_OK && closed != SHOAL_OK) {
        return say_failure(course->rank, course->n_ranks);
    }
    return status == SHOAL_OK ? TOOL_DONE : TOOL_FAILED;
}

static shoal_status open_world(struct course *course)
{
    TRY(shoal_nn_set_threads((int)course->options->n_threads));
    return shoal_world_open(NULL, &course->world);
}

/* --logits must not be a file that is read. */
static shoal_status check_logits(const struct generate_options *options)
{
    char weights[PATH_MAX];
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(weights, sizeof weights, "%s/" FOREIGN_FILE_NAME, options->directory);
    const struct tool_path paths[] = {{"--logits", options->logits, true},
                                      {"the weights of the model", weights, false},
                                      {"the tokenizer", options->tokenizer, false}};
    return tool_paths_are_apart(paths, sizeof paths / sizeof paths[0], text, sizeof text)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s", text);
}

/* Everything that can be wrong with files and prompts is found before ranks are started. */
static shoal_status read_model(struct course *course)
{
    const struct generate_options *options = course->options;
    TRY(check_logits(options));
    TRY(model_describe(options->directory, &course->description));
    TRY(model_settle_heads(&course->description, options->directory, options->n_heads));
    TRY(writing_open(options, &course->description, &course->writing));
    return prompt_read(options, &course->description, &course->writing, &course->prompt);
}

static int run(struct course *course, const struct tool_place *place, int argc, char **argv)
{
    const struct generate_options *options = course->options;
    course->status = read_model(course);
    if (course->status != SHOAL_OK && place->n_ranks == 1) {
        return say_failure(place->rank, place->n_ranks);
    }
    (void)snprintf(course->text, sizeof course->text, "%s", shoal_error_text());
    if (!place->is_launched && options->n_ranks > 1) {
        const struct run_again how = {.command = "shoal generate",
                                      .n_ranks = (int)options->n_ranks,
                                      .grace_s = GRACE_S,
                                      .argc = argc,
                                      .argv = argv};
        return run_again(&how);
    }
    return open_world(course) == SHOAL_OK ? run_in_world(course) : say_failure(place->rank, place->n_ranks);
}

int command_generate(int argc, char **argv)
{
    struct generate_options options;
    struct tool_place place;
    struct course course = {.options = &options};
    int exit_status;
    run_fill_standard_files();
    if (!generate_options_read(argc, argv, &options, &exit_status)) {
        return exit_status;
    }
    if (!tool_place_read(&place)) {
        return TOOL_FAILED;
    }
    if (!tool_place_may_start(&place, options.n_ranks > 0 ? "--ranks" : NULL) ||
        !tool_place_has_transport(&place, options.transport)) {
        return TOOL_USAGE;
    }
    exit_status = run(&course, &place, argc, argv);
    mem_free(course.prompt.tokens);
    writing_close(&course.writing);
    return exit_status;
}
