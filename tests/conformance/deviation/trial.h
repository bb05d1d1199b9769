/* SPDX-License-Identifier: MIT */
/*
 * Running a program on ranks that are threads, and judging how it went:
 *
 *   told      every rank got an error that names what both did, and nothing that was shown before was wrong
 *   legal     every rank came to the end, and all that was shown is what the oracle says
 *   refused   the rank that deviates was refused by its own library, and left; the others heard of it
 *
 * Anything else is a failure.
 */
#ifndef TESTS_DEVIATION_TRIAL_H
#define TESTS_DEVIATION_TRIAL_H

#include <pthread.h>
#include <unistd.h>

#include "conformance/deviation/generate.h"

enum verdict {
    VERDICT_TOLD,
    VERDICT_LEGAL,
    VERDICT_REFUSED,
    VERDICT_WRONG, /* the first that is a failure */
    VERDICT_LATE,
    VERDICT_ONE_SIDED,
    VERDICT_UNNAMED,
    N_VERDICTS
};

static const char *const verdict_words[N_VERDICTS] = {
    [VERDICT_TOLD] = "told",
    [VERDICT_LEGAL] = "legal",
    [VERDICT_REFUSED] = "refused",
    [VERDICT_WRONG] = "wrong values",
    [VERDICT_LATE] = "a rank waited until its deadline",
    [VERDICT_ONE_SIDED] = "ranks were not told alike",
    [VERDICT_UNNAMED] = "the text does not name both",
};

/* Running ------------------------------------------------------------------------------------------------ */

/* The calls of one rank. */
static inline int list_calls(const struct program *p, int rank, struct call *calls)
{
    const struct deviation *deviation = &p->deviation;
    int n = 0;
    for (int i = 0; i < p->n_calls; i++) {
        calls[n++] = p->calls[i];
        if (rank != deviation->rank || i != deviation->call) {
            continue;
        }
        switch (deviation->kind) {
        case DEVIATE_ARGUMENT:
            calls[n - 1].choices[deviation->argument] = deviation->choice;
            break;
        case DEVIATE_SWAP:
            calls[n - 1] = p->calls[i + 1];
            calls[n++] = p->calls[i++];
            break;
        case DEVIATE_DROP:
            n--;
            break;
        case DEVIATE_DOUBLE:
        case N_DEVIATIONS:
        default:
            calls[n++] = p->calls[i];
            break;
        }
    }
    return n;
}

static inline shoal_status run_call(struct runner *runner, const struct call *call)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    status = call->kind->run(runner, call);
    (void)snprintf(runner->text, sizeof runner->text, "%s", shoal_error_text());
    shoal_status end = shoal_scope_end();
    if (status == SHOAL_OK && end != SHOAL_OK) {
        (void)snprintf(runner->text, sizeof runner->text, "%s", shoal_error_text());
    }
    return status == SHOAL_OK ? end : status;
}

static inline void run_calls(struct runner *runner)
{
    struct call *calls = malloc((MAX_CALLS + 1) * sizeof *calls);
    int n = calls ? list_calls(runner->program, runner->rank, calls) : 0;
    for (int i = 0; i < n && runner->status == SHOAL_OK; i++) {
        runner->last_call = calls[i].id;
        runner->status = run_call(runner, &calls[i]);
    }
    free(calls);
}

static inline shoal_status open_world(struct runner *runner, const char *key)
{
    double seconds = 20 * test_time_scale();
    const shoal_world_options options = {.struct_size = sizeof options,
                                         .n_ranks = runner->program->n_ranks,
                                         .rank = runner->rank,
                                         .key = key,
                                         .startup_timeout_s = 3 * seconds,
                                         .timeout_s = seconds,
                                         .close_timeout_s = 3 * seconds};
    shoal_status status = shoal_world_open(&options, &runner->world);
    if (status == SHOAL_OK && runner->program->layout == LAYOUT_MESH) {
        status = shoal_mesh_create(runner->world, "cpu", NULL, (const int[]){2, 2}, 2,
                                   (const char *const[]){"replica", "shard"}, &runner->mesh);
    }
    runner->group = status == SHOAL_OK ? shoal_world_group(runner->world) : NULL;
    return status;
}

static inline void clean_up(struct runner *runner)
{
    for (int m = 0; m < MAX_MODELS; m++) {
        shoal_fsdp_free(runner->contexts[m]);
        free_net(&runner->nets[MODULES][m]);
        free_net(&runner->nets[WRAPPED][m]);
    }
    (void)!shoal_scope_end();
    shoal_mesh_free(runner->mesh);
    shoal_symmetric_free(runner->symmetric);
    (void)shoal_world_close(runner->world); /* of groups that may have failed */
}

struct rank_thread {
    struct runner runner;
    char key[64];
    pthread_t thread;
};

static inline void *run_rank(void *argument)
{
    struct rank_thread *rank = argument;
    struct runner *runner = &rank->runner;
    runner->last_call = -1;
    runner->status = open_world(runner, rank->key);
    if (runner->status == SHOAL_OK) {
        runner->status = shoal_scope_begin();
        run_calls(runner);
        clean_up(runner);
    }
    return NULL;
}

/* Judging ------------------------------------------------------------------------------------------------ */

/* "rank 0 called X, rank 1 called Y, on group ...": the two differ, in more than "(their parts or counts differ)". */
static inline bool names_calls(const char *text)
{
    const char *first = strstr(text, " called ");
    const char *middle = first ? strstr(first, ", rank ") : NULL;
    const char *second = middle ? strstr(middle, " called ") : NULL;
    const char *end = second ? strstr(second, ", on group ") : NULL;
    size_t length = first && middle ? (size_t)(middle - first) : 0;
    return end && !strstr(second, "(their parts or counts differ)") &&
           ((size_t)(end - second) != length || strncmp(first, second, length) != 0);
}

/* What this rank has, and what another one has. */
static inline bool names_both(const char *text)
{
    return names_calls(text) || (strstr(text, " here") && strstr(text, " on rank ")) ||
           strstr(text, " differs on rank ") ||
           (strstr(text, " sends ") && strstr(text, " which expects ")) ||
           strstr(text, "another replica, on rank");
}

static inline bool is_refusal(shoal_status status)
{
    return status == SHOAL_ERR_INVALID || status == SHOAL_ERR_STATE || status == SHOAL_ERR_UNSUPPORTED;
}

/*
 * With replicas, a unit is gathered by the ranks of one row of the mesh, and the other row may have gathered its own
 * before. If its next call is no call of FSDP, it finds that a rank of the row that deviated has closed its world.
 */
static inline bool is_left_alone(const struct program *p, const struct runner *runner)
{
    return p->layout == LAYOUT_MESH && runner->rank / 2 != p->deviation.rank / 2 &&
           runner->status == SHOAL_ERR_PEER && strstr(runner->text, "has closed its world");
}

static inline enum verdict judge(const struct program *p, const struct rank_thread *ranks)
{
    int n_ok = 0;
    int n_told = 0;
    int n_alone = 0;
    int n_unnamed = 0;
    for (int r = 0; r < p->n_ranks; r++) {
        const struct runner *runner = &ranks[r].runner;
        if (runner->wrong[0] != '\0') {
            return VERDICT_WRONG;
        }
        if (runner->status == SHOAL_ERR_TIMEOUT) {
            return VERDICT_LATE;
        }
        bool is_told = runner->status == SHOAL_ERR_MISMATCH;
        n_ok += runner->status == SHOAL_OK;
        n_told += is_told;
        n_alone += is_left_alone(p, runner);
        n_unnamed += is_told && !names_both(runner->text);
    }
    if (n_told + n_alone == p->n_ranks && n_told > 0) {
        return n_unnamed > 0 ? VERDICT_UNNAMED : VERDICT_TOLD;
    }
    if (n_ok == p->n_ranks) {
        return VERDICT_LEGAL;
    }
    return n_ok == 0 && is_refusal(ranks[p->deviation.rank].runner.status) ? VERDICT_REFUSED
                                                                           : VERDICT_ONE_SIDED;
}

static inline void print_ranks(const struct program *p, const struct rank_thread *ranks)
{
    for (int r = 0; r < p->n_ranks; r++) {
        const struct runner *runner = &ranks[r].runner;
        (void)fprintf(stderr, "  rank %d: %s at #%d: %s\n", r, shoal_status_name(runner->status),
                      runner->last_call, runner->status == SHOAL_OK ? "" : runner->text);
        if (runner->wrong[0] != '\0') {
            (void)fprintf(stderr, "  %s\n", runner->wrong);
        }
    }
}

/* Prints the program if it failed, or if it is asked to. */
static inline enum verdict trial(const struct program *p, bool is_loud)
{
    static int n_trials;
    struct rank_thread *ranks = calloc((size_t)p->n_ranks, sizeof *ranks);
    if (!ranks) {
        return VERDICT_ONE_SIDED;
    }
    n_trials++;
    for (int r = 0; r < p->n_ranks; r++) {
        ranks[r].runner.program = p;
        ranks[r].runner.rank = r;
        (void)snprintf(ranks[r].key, sizeof ranks[r].key, "deviation-%d-%d", (int)getpid(), n_trials);
        if (pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]) != 0) {
            test_failed(__FILE__, __LINE__, "no thread for rank %d", r);
        }
    }
    for (int r = 0; r < p->n_ranks; r++) {
        (void)pthread_join(ranks[r].thread, NULL);
    }
    enum verdict verdict = judge(p, ranks);
    if (is_loud || verdict >= VERDICT_WRONG) {
        (void)fprintf(stderr, "%s\n", verdict_words[verdict]);
        program_print(p);
        print_ranks(p, ranks);
    }
    free(ranks);
    return verdict;
}

#endif
