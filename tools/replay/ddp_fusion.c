/* SPDX-License-Identifier: MIT */
/*
 * replay_ddp_fusion [--disable PASS]... FILE.json...: reads graphs that PyTorch's passes have fused, runs our passes of
 * the same names on the graphs before fusion, and compares with the graphs after it. Both must have the same operations
 * over the same values (ddp_fusion_match.h), in the same order where order matters (ddp_fusion_order.h). Prints one
 * line for each case that is wrong, and at the end the total of all files:
 *
 *     N checked, M wrong
 *
 * --disable skips a pass, so that what it should have done is reported as missing.
 *
 * One difference from PyTorch is intended but still counts as wrong: gradients of different groups, operators, dtypes
 * or divisors never share a bucket here, so a file in which they do is wrong. Another is allowed for: PyTorch reverses
 * blocks that it moves (fusion_nodes_order, fusion_check_order).
 *
 * Exit status: 0 nothing wrong, 1 something wrong, 2 wrong arguments, or a file or a case of it that cannot be read.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp_fusion_build.h"
#include "ddp_fusion_match.h"
#include "ddp_fusion_nodes.h"
#include "ddp_fusion_order.h"
#include "ddp_fusion_say.h"
#include "shoal/compile.h"
#include "shoal/graph.h"

enum {
    EXIT_RIGHT = 0,
    EXIT_WRONG = 1,
    EXIT_USAGE = 2
};

struct totals {
    size_t n_checked;
    size_t n_wrong;
};

/* What a case asks for. */
struct task {
    const char **passes;
    size_t n_passes;
    bool moves_blocks; /* schedule_comm_wait is among them */
    shoal_pass_options options;
};

/* Cases ------------------------------------------------------------------------------------------------ */

static bool is_pass(const char *name)
{
    shoal_pass_definition pass = SHOAL_PASS_DEFINITION_INIT;
    for (size_t i = 0; shoal_pass_at(i, &pass) == SHOAL_OK; i++) {
        if (strcmp(pass.name, name) == 0) {
            return true;
        }
    }
    return false;
}

static enum fusion_verdict read_passes(struct fusion_case *self, const json_t *list, struct task *task)
{
    if (!json_is_array(list)) {
        return fusion_say(self, FUSION_UNREADABLE, "\"passes\" is %s", list ? "not a list" : "missing");
    }
    task->n_passes = json_array_size(list);
    task->passes = fusion_alloc(self, task->n_passes, sizeof task->passes[0]);
    if (!task->passes) {
        return fusion_no_memory(self);
    }
    for (size_t i = 0; i < task->n_passes; i++) {
        task->passes[i] = json_string_value(json_array_get(list, i));
        if (!task->passes[i] || !is_pass(task->passes[i])) {
            return fusion_say(self, FUSION_UNREADABLE, "\"passes\": %s%.100s",
                              task->passes[i] ? "there is no pass " : "",
                              task->passes[i] ? task->passes[i] : "one is not a string");
        }
        task->moves_blocks = task->moves_blocks || strcmp(task->passes[i], "schedule_comm_wait") == 0;
    }
    return FUSION_RIGHT;
}

static enum fusion_verdict read_task(struct fusion_case *self, const json_t *json, struct task *task)
{
    const json_t *size = json_object_get(json, "bucket_size_mb");
    if (!json_is_object(json)) {
        return fusion_say(self, FUSION_UNREADABLE, "is not an object");
    }
    if (!json_is_string(json_object_get(json, "kind"))) {
        return fusion_say(self, FUSION_UNREADABLE, "\"kind\" is missing or not a string");
    }
    if (!json_is_number(size)) {
        return fusion_say(self, FUSION_UNREADABLE, "\"bucket_size_mb\" is missing or not a number");
    }
    /* 0 MiB means a bucket for each gradient in PyTorch; here that is any negative size, and 0 is the default size. */
    task->options.bucket_size_mb = json_number_value(size) > 0 ? json_number_value(size) : -1;
    return read_passes(self, json_object_get(json, "passes"), task);
}

static enum fusion_verdict compare(struct fusion_case *self, const struct task *task, shoal_graph *ours,
                                   const shoal_graph *theirs)
{
    struct fusion_match match;
    if (shoal_graph_run_passes(ours, task->passes, task->n_passes, &task->options, NULL) != SHOAL_OK) {
        return fusion_say(self, FUSION_WRONG, "the passes failed: %.400s", shoal_error_text());
    }
    enum fusion_verdict verdict = fusion_match(self, ours, theirs, &match);
    return verdict == FUSION_RIGHT ? fusion_check_order(self, &match) : verdict;
}

/* Both graphs are read for their form first, so that what is unreadable is never taken for wrong. */
static enum fusion_verdict check_case(struct fusion_case *self, const json_t *json, struct task *task)
{
    struct fusion_nodes before = {.numbers = NULL};
    struct fusion_nodes after = {.numbers = NULL};
    shoal_graph *ours = NULL;
    shoal_graph *theirs = NULL;
    enum fusion_verdict verdict = read_task(self, json, task);
    if (verdict == FUSION_RIGHT) {
        verdict = fusion_nodes_read(self, "before", json_object_get(json, "before"), &before);
    }
    if (verdict == FUSION_RIGHT) {
        verdict = fusion_nodes_read(self, "after", json_object_get(json, "after"), &after);
    }
    if (verdict == FUSION_RIGHT) {
        verdict = fusion_nodes_order(self, &before, false, FUSION_UNREADABLE);
    }
    if (verdict == FUSION_RIGHT) {
        verdict = fusion_build(self, &before, FUSION_UNREADABLE, &ours);
    }
    if (verdict == FUSION_RIGHT) {
        verdict = fusion_nodes_order(self, &after, task->moves_blocks, FUSION_WRONG);
    }
    if (verdict == FUSION_RIGHT) {
        verdict = fusion_build(self, &after, FUSION_WRONG, &theirs);
    }
    if (verdict == FUSION_RIGHT) {
        verdict = compare(self, task, ours, theirs);
    }
    fusion_nodes_free(&before);
    fusion_nodes_free(&after);
    shoal_graph_free(ours);
    shoal_graph_free(theirs);
    return verdict;
}

/* Files ------------------------------------------------------------------------------------------------ */

/* Returns false if it could not be read. */
static bool replay_case(const char *path, size_t index, const json_t *json, const char *disabled,
                        struct totals *totals)
{
    struct fusion_case self = {.chunks = NULL};
    struct task task = {.options = SHOAL_PASS_OPTIONS_INIT};
    const char *kind = json_string_value(json_object_get(json, "kind"));
    task.options.disabled = disabled;
    enum fusion_verdict verdict = check_case(&self, json, &task);
    bool is_checked = verdict == FUSION_RIGHT || verdict == FUSION_WRONG;
    if (is_checked) {
        totals->n_checked++;
        totals->n_wrong += verdict == FUSION_WRONG;
    }
    if (verdict == FUSION_WRONG) {
        printf("%s: case %zu (%.80s, %.80s): %s\n", path, index, kind,
               task.n_passes > 0 ? task.passes[0] : "no pass", self.text);
    } else if (!is_checked) {
        (void)fprintf(stderr, "replay_ddp_fusion: %s: case %zu: %s\n", path, index, self.text);
    }
    fusion_case_free(&self);
    return is_checked;
}

/* Returns false if the file, or a case of it, could not be read, after a message. */
static bool replay_file(const char *path, const char *disabled, struct totals *totals)
{
    json_error_t error;
    bool is_readable = true;
    json_t *cases = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_array(cases)) {
        if (cases) {
            (void)fprintf(stderr, "replay_ddp_fusion: %s: is not a list of cases\n", path);
        } else {
            (void)fprintf(stderr, "replay_ddp_fusion: %s: line %d, column %d: %s\n", path, error.line,
                          error.column, error.text);
        }
        json_decref(cases);
        return false;
    }
    for (size_t i = 0; i < json_array_size(cases); i++) {
        is_readable = replay_case(path, i, json_array_get(cases, i), disabled, totals) && is_readable;
    }
    json_decref(cases);
    return is_readable;
}

/* Joins names of passes by commas. Returns NULL if memory runs out, or one is not a pass, after a message. */
static char *join_disabled(char **argv, int n_options)
{
    size_t bytes = 1;
    for (int i = 0; i < n_options; i++) {
        bytes += strlen(argv[2 + 2 * i]) + 1;
    }
    char *joined = calloc(bytes, 1);
    for (int i = 0; joined && i < n_options; i++) {
        const char *name = argv[2 + 2 * i];
        if (!is_pass(name)) {
            (void)fprintf(stderr, "replay_ddp_fusion: --disable: there is no pass %s\n", name);
            free(joined);
            return NULL;
        }
        size_t length = strlen(joined);
        (void)snprintf(joined + length, bytes - length, "%s%s", i > 0 ? "," : "", name);
    }
    return joined;
}

int main(int argc, char **argv)
{
    struct totals totals = {0};
    bool is_readable = true;
    int n_options = 0;
    while (2 * n_options + 2 < argc && strcmp(argv[1 + 2 * n_options], "--disable") == 0) {
        n_options++;
    }
    if (argc < 2 + 2 * n_options || argv[1 + 2 * n_options][0] == '-') {
        (void)fprintf(stderr, "usage: replay_ddp_fusion [--disable PASS]... FILE.json...\n");
        return EXIT_USAGE;
    }
    char *disabled = join_disabled(argv, n_options);
    if (!disabled) {
        return EXIT_USAGE;
    }
    for (int i = 1 + 2 * n_options; i < argc; i++) {
        is_readable = replay_file(argv[i], n_options > 0 ? disabled : NULL, &totals) && is_readable;
    }
    free(disabled);
    printf("%zu checked, %zu wrong\n", totals.n_checked, totals.n_wrong);
    return !is_readable ? EXIT_USAGE : totals.n_wrong > 0 ? EXIT_WRONG : EXIT_RIGHT;
}
