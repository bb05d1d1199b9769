/* SPDX-License-Identifier: MIT */
/*
 * replay_lowering FILE.json...: reads functions that Inductor has lowered (member "lowering" of the file), lowers the
 * same graphs, and compares what both decided (lowering.h). Prints two lines for each function in which they differ,
 *
 *     FILE: NAME: Inductor: ...
 *     FILE: NAME: here: ...
 *
 * and at the end the total: N checked, M differ, K were refused by Inductor. Where the recording lets Inductor reorder
 * ("overlap"), our pass reorder_compute_for_overlap runs first.
 *
 * Exit status: 0 everything was read, 1 a graph could not be lowered here, 2 wrong arguments, or a file or a function of
 * it that cannot be read.
 */
#include <stdio.h>
#include <string.h>

#include "lowering.h"
#include "shoal_nn/nn.h"

enum {
    EXIT_RIGHT = 0,
    EXIT_WRONG = 1,
    EXIT_USAGE = 2
};

struct totals {
    size_t n_checked;
    size_t n_differ;
    size_t n_refused;
    size_t n_failed;
    bool is_unreadable;
};

/* The names end with NULL. */
static bool has_only(const json_t *object, const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        size_t i = 0;
        while (known[i] && strcmp(key, known[i]) != 0) {
            i++;
        }
        if (!known[i]) {
            return false;
        }
    }
    return true;
}

static bool is_absent(const json_t *item, const char *key)
{
    const json_t *value = json_object_get(item, key);
    return !value || json_is_null(value);
}

/* PyTorch refused it with a text, and then there are no steps; or there is no "error". */
static bool has_right_error(const json_t *item)
{
    bool is_text = json_is_string(json_object_get(item, "error"));
    return is_text ? is_absent(item, "steps") : is_absent(item, "error");
}

static bool has_known_keys(const json_t *item)
{
    static const char *const known[] = {"name",  "world", "shape", "overlap", "before",
                                        "steps", "code",  "error", NULL};
    return json_is_object(item) && has_only(item, known) && has_right_error(item) &&
           (is_absent(item, "overlap") || json_is_boolean(json_object_get(item, "overlap"))) &&
           json_is_string(json_object_get(item, "name")) && json_is_integer(json_object_get(item, "world")) &&
           json_integer_value(json_object_get(item, "world")) > 0 &&
           json_integer_value(json_object_get(item, "world")) <= 1024;
}

static void complain(const char *path, const char *name, const char *reason, struct totals *totals)
{
    (void)fprintf(stderr, "replay_lowering: %s: %s: %s\n", path, name, reason);
    totals->is_unreadable = true;
}

static void compare(const char *path, const char *name, const struct lowering_decisions *theirs,
                    const struct lowering_decisions *ours, struct totals *totals)
{
    static struct lowering_text lines[2];
    memset(lines, 0, sizeof lines);
    lowering_finish(theirs, &lines[0]);
    lowering_finish(ours, &lines[1]);
    if (lowering_is_full(&lines[0]) || lowering_is_full(&lines[1]) ||
        lowering_is_full(&theirs->collectives) || lowering_is_full(&ours->collectives)) {
        complain(path, name, "has more decisions than can be compared", totals);
        return;
    }
    totals->n_checked++;
    if (strcmp(lines[0].bytes, lines[1].bytes) != 0) {
        totals->n_differ++;
        printf("%s: %s: Inductor: %s\n", path, name, lines[0].bytes);
        printf("%s: %s: here: %s\n", path, name, lines[1].bytes);
    }
}

static void replay_function(const char *path, const json_t *item, struct totals *totals)
{
    static struct lowering_decisions theirs;
    static struct lowering_decisions ours;
    static struct lowering_text graph;
    struct lowering_text reason = {.length = 0};
    char name[120];
    memset(&theirs, 0, sizeof theirs);
    memset(&ours, 0, sizeof ours);
    memset(&graph, 0, sizeof graph);
    if (!has_known_keys(item)) {
        complain(path, "a function",
                 "is not an object with a name and a world and known keys and values alone", totals);
        return;
    }
    bool overlaps = json_is_true(json_object_get(item, "overlap"));
    const json_t *before = json_object_get(item, "before");
    (void)snprintf(name, sizeof name, "%.100s%s", json_string_value(json_object_get(item, "name")),
                   overlaps ? " (overlap)" : "");
    if (json_is_string(json_object_get(item, "error"))) {
        totals->n_refused++;
        return;
    }
    int n_ranks = (int)json_integer_value(json_object_get(item, "world"));
    if (!json_is_array(before) || !json_is_array(json_object_get(item, "steps")) ||
        !lowering_read_graph(before, n_ranks, &graph, &reason) ||
        !lowering_read_steps(before, json_object_get(item, "steps"), &theirs, &reason)) {
        complain(path, name, reason.length > 0 ? reason.bytes : "\"before\" or \"steps\" is not a list",
                 totals);
        return;
    }
    if (!lowering_decide(&graph, overlaps, &ours, &reason)) {
        printf("%s: %s: %s\n", path, name, reason.bytes);
        totals->n_failed++;
        return;
    }
    compare(path, name, &theirs, &ours, totals);
}

static void replay_file(const char *path, struct totals *totals)
{
    static const char *const known[] = {"lowering", "ddp_fusion", "torch", NULL};
    json_error_t error;
    json_t *file = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    const json_t *functions = json_object_get(file, "lowering");
    if (!file) {
        complain(path, "JSON", error.text, totals);
    } else if (!json_is_array(functions)) {
        complain(path, "lowering", "is not there, or not a list", totals);
    } else if (!has_only(file, known)) {
        complain(path, "JSON", "has an unknown member beside \"lowering\", \"ddp_fusion\" and \"torch\"",
                 totals);
    }
    for (size_t i = 0; i < json_array_size(functions); i++) {
        replay_function(path, json_array_get(functions, i), totals);
    }
    json_decref(file);
}

int main(int argc, char **argv)
{
    struct totals totals = {0};
    if (argc < 2 || argv[1][0] == '-' || shoal_nn_init() != SHOAL_OK) {
        (void)fprintf(stderr, "usage: replay_lowering FILE.json...\n");
        return EXIT_USAGE;
    }
    for (int i = 1; i < argc; i++) {
        replay_file(argv[i], &totals);
    }
    printf("%zu checked, %zu differ, %zu were refused by Inductor\n", totals.n_checked, totals.n_differ,
           totals.n_refused);
    return totals.is_unreadable ? EXIT_USAGE : totals.n_failed > 0 ? EXIT_WRONG : EXIT_RIGHT;
}
