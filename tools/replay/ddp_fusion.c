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
 * A file is a list of cases, or an object whose member "ddp_fusion" has graphs by their kinds, "before", and "cases"
 * that name them. Where PyTorch raised ("error"), ours must be a valid graph.
 *
 * One difference from PyTorch is intended but still counts as wrong: gradients of different groups, operators or
 * divisors never share a bucket here, so a file in which they do is wrong. Two are allowed for: PyTorch reverses blocks
 * that it moves (fusion_nodes_order, fusion_check_order), and it concatenates gradients of several dtypes, which
 * changes the dtype of some; such a case is counted, and ours must be a valid graph.
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
    size_t n_raised; /* by PyTorch */
    size_t n_mixed;  /* PyTorch joined several dtypes */
};

/* What a case asks for. */
struct task {
    const char **passes;
    size_t n_passes;
    bool moves_blocks; /* schedule_comm_wait is among them */
    bool is_raised;    /* PyTorch has no result */
    bool is_mixed;     /* PyTorch's result joins several dtypes */
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

/* "error": null or absent, or the text of what PyTorch raised, and there is no graph after it. */
static enum fusion_verdict read_error(struct fusion_case *self, const json_t *json, struct task *task)
{
    const json_t *error = json_object_get(json, "error");
    if (!error || json_is_null(error)) {
        return FUSION_RIGHT;
    }
    const json_t *after = json_object_get(json, "after");
    if (!json_is_string(error) || (after && !json_is_null(after))) {
        return fusion_say(self, FUSION_UNREADABLE, "\"error\" is not a text, or \"after\" is there too");
    }
    task->is_raised = true;
    return FUSION_RIGHT;
}

static enum fusion_verdict check_keys(struct fusion_case *self, const json_t *json, const char *const *known,
                                      size_t n_known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        bool is_known = false;
        for (size_t i = 0; i < n_known; i++) {
            is_known = is_known || strcmp(key, known[i]) == 0;
        }
        if (!is_known) {
            return fusion_say(self, FUSION_UNREADABLE, "\"%.80s\" is unknown", key);
        }
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
    static const char *const known[] = {"kind", "passes", "bucket_size_mb", "before", "after", "error"};
    enum fusion_verdict verdict = check_keys(self, json, known, sizeof known / sizeof known[0]);
    if (verdict == FUSION_RIGHT) {
        verdict = read_error(self, json, task);
    }
    return verdict == FUSION_RIGHT ? read_passes(self, json_object_get(json, "passes"), task) : verdict;
}

/* Whether a cat of the file has inputs of several dtypes. */
static bool joins_dtypes(const struct fusion_nodes *nodes)
{
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        const struct fusion_node *node = &nodes->nodes[i];
        const char *first = NULL;
        bool is_cat = strncmp(node->target, "aten.cat", strlen("aten.cat")) == 0;
        for (size_t k = 0; is_cat && k < node->n_inputs; k++) {
            const char *dtype = json_string_value(json_array_get(nodes->nodes[node->inputs[k]].meta, 1));
            if (first && dtype && strcmp(first, dtype) != 0) {
                return true;
            }
            first = dtype;
        }
    }
    return false;
}

/* Passes check the graph after each of them. */
static enum fusion_verdict run_passes(struct fusion_case *self, const struct task *task, shoal_graph *ours)
{
    if (shoal_graph_run_passes(ours, task->passes, task->n_passes, &task->options, NULL) != SHOAL_OK ||
        shoal_graph_lint(ours) != SHOAL_OK) {
        return fusion_say(self, FUSION_WRONG, "the passes failed: %.400s", shoal_error_text());
    }
    return FUSION_RIGHT;
}

static enum fusion_verdict compare(struct fusion_case *self, const struct task *task, shoal_graph *ours,
                                   const shoal_graph *theirs)
{
    struct fusion_match match;
    enum fusion_verdict verdict = run_passes(self, task, ours);
    if (verdict == FUSION_RIGHT) {
        verdict = fusion_match(self, ours, theirs, &match);
    }
    return verdict == FUSION_RIGHT ? fusion_check_order(self, &match) : verdict;
}

/* What is read of a case. */
struct graphs {
    struct fusion_nodes before;
    struct fusion_nodes after;
    shoal_graph *ours;
    shoal_graph *theirs;
};

/* Both graphs are read for their form first, so that what is unreadable is never taken for wrong. */
static enum fusion_verdict read_graphs(struct fusion_case *self, const json_t *json, struct task *task,
                                       struct graphs *graphs)
{
    enum fusion_verdict verdict =
        fusion_nodes_read(self, "before", json_object_get(json, "before"), &graphs->before);
    if (verdict == FUSION_RIGHT && !task->is_raised) {
        verdict = fusion_nodes_read(self, "after", json_object_get(json, "after"), &graphs->after);
        task->is_mixed = verdict == FUSION_RIGHT && joins_dtypes(&graphs->after);
    }
    if (verdict == FUSION_RIGHT) {
        verdict = fusion_nodes_order(self, &graphs->before, false, FUSION_UNREADABLE);
    }
    return verdict == FUSION_RIGHT ? fusion_build(self, &graphs->before, FUSION_UNREADABLE, &graphs->ours)
                                   : verdict;
}

static enum fusion_verdict check_graphs(struct fusion_case *self, const struct task *task,
                                        struct graphs *graphs)
{
    if (task->is_raised || task->is_mixed) {
        return run_passes(self, task, graphs->ours);
    }
    enum fusion_verdict verdict = fusion_nodes_order(self, &graphs->after, task->moves_blocks, FUSION_WRONG);
    if (verdict == FUSION_RIGHT) {
        verdict = fusion_build(self, &graphs->after, FUSION_WRONG, &graphs->theirs);
    }
    return verdict == FUSION_RIGHT ? compare(self, task, graphs->ours, graphs->theirs) : verdict;
}

static enum fusion_verdict check_case(struct fusion_case *self, const json_t *json, struct task *task)
{
    struct graphs graphs = {.ours = NULL};
    enum fusion_verdict verdict = read_task(self, json, task);
    if (verdict == FUSION_RIGHT) {
        verdict = read_graphs(self, json, task, &graphs);
    }
    if (verdict == FUSION_RIGHT) {
        verdict = check_graphs(self, task, &graphs);
    }
    fusion_nodes_free(&graphs.before);
    fusion_nodes_free(&graphs.after);
    shoal_graph_free(graphs.ours);
    shoal_graph_free(graphs.theirs);
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
        totals->n_raised += task.is_raised ? 1 : 0;
        totals->n_mixed += task.is_mixed ? 1 : 0;
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

static bool complain(const char *path, const char *what)
{
    (void)fprintf(stderr, "replay_ddp_fusion: %s: %s\n", path, what);
    return false;
}

/* The cases of an object name their graphs by kind. Adds the graphs to them. Returns false after a message. */
static bool add_graphs(const char *path, json_t *fusion)
{
    const json_t *graphs = json_object_get(fusion, "before");
    json_t *cases = json_object_get(fusion, "cases");
    if (!json_is_object(graphs) || !json_is_array(cases) || json_object_size(fusion) != 2) {
        return complain(path, "\"ddp_fusion\" is not an object of \"before\" and \"cases\" alone");
    }
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i);
        const char *kind = json_string_value(json_object_get(item, "kind"));
        json_t *graph = kind ? json_object_get(graphs, kind) : NULL;
        if (!graph) {
            return complain(path, "a case of \"ddp_fusion\" has a kind that \"before\" does not have");
        }
        if (json_object_get(item, "before") || json_object_set(item, "before", graph) != 0) {
            return complain(path, "a case of \"ddp_fusion\" has a graph of its own");
        }
    }
    return true;
}

/* The list of cases in a file, which is borrowed. Returns NULL after a message. */
static const json_t *find_cases(const char *path, json_t *file)
{
    const char *key;
    json_t *value;
    if (json_is_array(file)) {
        return file;
    }
    json_t *fusion = json_object_get(file, "ddp_fusion");
    if (!fusion) {
        (void)complain(path, "is not a list of cases, nor an object with \"ddp_fusion\"");
        return NULL;
    }
    json_object_foreach(file, key, value)
    {
        if (strcmp(key, "ddp_fusion") != 0 && strcmp(key, "lowering") != 0 && strcmp(key, "torch") != 0) {
            (void)complain(path, "has an unknown member beside \"ddp_fusion\", \"lowering\" and \"torch\"");
            return NULL;
        }
    }
    return add_graphs(path, fusion) ? json_object_get(fusion, "cases") : NULL;
}

/* Returns false if the file, or a case of it, could not be read, after a message. */
static bool replay_file(const char *path, const char *disabled, struct totals *totals)
{
    json_error_t error;
    json_t *file = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!file) {
        (void)fprintf(stderr, "replay_ddp_fusion: %s: line %d, column %d: %s\n", path, error.line,
                      error.column, error.text);
        return false;
    }
    const json_t *cases = find_cases(path, file);
    bool is_readable = cases != NULL;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        is_readable = replay_case(path, i, json_array_get(cases, i), disabled, totals) && is_readable;
    }
    json_decref(file);
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
    if (totals.n_raised > 0) {
        printf("%zu for which PyTorch raised an error had to be valid graphs\n", totals.n_raised);
    }
    if (totals.n_mixed > 0) {
        printf("%zu in which PyTorch joined several dtypes had to be valid graphs\n", totals.n_mixed);
    }
    printf("%zu checked, %zu wrong\n", totals.n_checked, totals.n_wrong);
    return !is_readable ? EXIT_USAGE : totals.n_wrong > 0 ? EXIT_WRONG : EXIT_RIGHT;
}
