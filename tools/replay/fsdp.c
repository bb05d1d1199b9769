/* SPDX-License-Identifier: MIT */
/*
 * replay_fsdp FILE.safetensors...: repeats the training runs that the files have recorded, with ranks as threads and
 * with shoal_fully_shard, and compares losses, gradients, norms, shards and final parameters (fsdp_checks.h). Prints
 * one line for each result that is wrong, one for each file or case, and at the end the total of all files. A case that
 * PyTorch refused has nothing to compare; one that needs something that the library does not have is named, and not run.
 *
 *     N checked, M wrong, worst E of its bound
 *
 * Exit status: 0 nothing wrong, 1 something wrong, 2 wrong arguments or a file that cannot be read.
 */
#include <stdio.h>
#include <string.h>

#include "files.h"
#include "fsdp_case.h"
#include "fsdp_checks.h"
#include "fsdp_plan.h"
#include "fsdp_run.h"
#include "shoal/safetensors.h"

/* What cases of a file came to that were not run. */
struct skipped {
    size_t n_refused; /* by PyTorch */
    size_t n_missing; /* what they need is not there */
};

/* Returns false if memory runs out. */
static bool play(const shoal_safetensors *file, const char *prefix, struct fsdp_case *run,
                 struct fsdp_checks *checks)
{
    struct fsdp_plan plan;
    bool has_memory = fsdp_plan_make(&plan, run, file, prefix, checks);
    bool is_run = has_memory && plan.can_run;
    if (is_run && fsdp_run(&plan) != SHOAL_OK) {
        fsdp_checks_add_wrong(checks, "the run", "failed: %s", shoal_error_text());
    } else if (is_run) {
        fsdp_checks_end(checks, run->n_ranks);
    }
    fsdp_plan_free(&plan);
    return has_memory && !checks->has_no_memory;
}

/* One case, with a line about it. `name` is NULL for the only one of a file. Returns false if memory runs out. */
static bool replay_case(const shoal_safetensors *file, const char *path, const char *name, const json_t *json,
                        struct fsdp_totals *totals, struct skipped *skipped)
{
    char prefix[FSDP_TENSOR_BYTES] = "";
    char label[1024];
    struct fsdp_case run = {.n_ranks = 0};
    struct fsdp_checks checks;
    struct fsdp_totals own = {0};
    bool has_memory = true;
    fsdp_checks_init(&checks);
    (void)snprintf(label, sizeof label, "%s%s%s", path, name ? ": " : "", name ? name : "");
    if (name) {
        (void)snprintf(prefix, sizeof prefix, "%s/", name);
    }
    bool is_read = fsdp_case_read(json, name != NULL, &run, &checks);
    const char *missing = is_read && !run.is_refused ? fsdp_case_find_missing(&run) : NULL;
    if (missing) {
        printf("%s: not run: the library has no %s\n", label, missing);
        skipped->n_missing++;
    } else if (is_read) {
        has_memory = play(file, prefix, &run, &checks);
        skipped->n_refused += run.is_refused ? 1 : 0;
    }
    has_memory = has_memory && !checks.has_no_memory;
    fsdp_checks_report(&checks, label, run.n_ranks, &own);
    if (!missing && !run.is_refused) {
        printf("%s: %zu checked, %zu wrong, worst %.3g of its bound\n", label, own.n_checked, own.n_wrong,
               own.worst);
    }
    replay_add_totals(totals, &own);
    fsdp_case_free(&run);
    fsdp_checks_free(&checks);
    return has_memory;
}

/* A line about the file itself. */
static void add_wrong(const char *path, const char *name, const char *reason, struct fsdp_totals *totals)
{
    printf("%s: %s: %s\n", path, name, reason);
    totals->n_checked++;
    totals->n_wrong++;
}

/* Tensors behind the name of no case. */
static void refuse_others(const shoal_safetensors *file, const char *path, const json_t *cases,
                          struct fsdp_totals *totals)
{
    for (int64_t i = 0; i < shoal_safetensors_count(file); i++) {
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        const char *slash = shoal_safetensors_get(file, i, &info) == SHOAL_OK ? strchr(info.name, '/') : NULL;
        char name[FSDP_TENSOR_BYTES] = "";
        if (slash && (size_t)(slash - info.name) < sizeof name) {
            memcpy(name, info.name, (size_t)(slash - info.name));
        }
        if (!json_object_get(cases, name)) {
            add_wrong(path, info.name, "there is no such case", totals);
        }
    }
}

static bool replay_cases(const shoal_safetensors *file, const char *path, const json_t *cases,
                         struct fsdp_totals *totals)
{
    struct skipped skipped = {0};
    const char *name;
    json_t *json;
    json_object_foreach((json_t *)(uintptr_t)cases, name, json)
    {
        if (!json_is_object(json) || strlen(name) + 2 > FSDP_TENSOR_BYTES / 2) {
            add_wrong(path, name, "is no case", totals);
        } else if (!replay_case(file, path, name, json, totals, &skipped)) {
            return false;
        }
    }
    refuse_others(file, path, cases, totals);
    printf("%s: %zu cases, %zu refused by PyTorch, %zu not run\n", path, json_object_size(cases),
           skipped.n_refused, skipped.n_missing);
    return true;
}

/* Keys that mean nothing here are known by name. */
static void check_keys(const shoal_safetensors *file, const char *path, struct fsdp_totals *totals)
{
    static const char *const known[] = {"case", "cases", "torch", "format"};
    const char *key;
    for (int64_t i = 0; (key = shoal_safetensors_metadata_key(file, i)) != NULL; i++) {
        bool is_known = false;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
            is_known = is_known || strcmp(key, known[k]) == 0;
        }
        if (!is_known) {
            add_wrong(path, key, "unknown key of the metadata", totals);
        }
    }
}

/* Returns false if memory runs out. */
static bool replay_open_file(const shoal_safetensors *file, const char *path, struct fsdp_totals *totals)
{
    const char *one = shoal_safetensors_metadata(file, "case");
    const char *many = shoal_safetensors_metadata(file, "cases");
    struct fsdp_checks checks;
    struct fsdp_totals own = {0};
    struct skipped skipped = {0};
    bool has_memory = true;
    fsdp_checks_init(&checks);
    check_keys(file, path, totals);
    if (one && many) {
        fsdp_checks_add_wrong(&checks, "cases", "is there beside case");
    }
    json_t *json = replay_read_case(many ? many : one, &checks);
    has_memory = !checks.has_no_memory;
    fsdp_checks_report(&checks, path, 0, &own);
    replay_add_totals(totals, &own);
    fsdp_checks_free(&checks);
    if (json && many) {
        has_memory = replay_cases(file, path, json, totals);
    } else if (json) {
        has_memory = replay_case(file, path, NULL, json, totals, &skipped);
    } else {
        printf("%s: %zu checked, %zu wrong, worst %.3g of its bound\n", path, own.n_checked, own.n_wrong,
               own.worst);
    }
    json_decref(json);
    return has_memory;
}

/* Returns false if the file could not be read, after a message. */
static bool replay_file(const char *path, struct fsdp_totals *totals)
{
    shoal_safetensors *file;
    if (shoal_safetensors_open(path, &file) != SHOAL_OK) {
        (void)fprintf(stderr, "replay_fsdp: %s\n", shoal_error_text());
        return false;
    }
    bool has_memory = replay_open_file(file, path, totals);
    shoal_safetensors_close(file);
    if (!has_memory) {
        (void)fprintf(stderr, "replay_fsdp: %s: no memory\n", path);
    }
    return has_memory;
}

int main(int argc, char **argv)
{
    return replay_files("replay_fsdp", argc, argv, replay_file);
}
