/* SPDX-License-Identifier: MIT */
/*
 * replay_collectives FILE.safetensors...: repeats every call whose inputs and results are recorded in the files, with
 * ranks as threads, and compares results and gradients (compare.h). Prints one line for each case that is wrong, one
 * with the number of calls that PyTorch refused if there are any, and at the end
 *
 *     N checked, M wrong, worst E of its bound
 *
 * Exit status: 0 nothing wrong, 1 something wrong, 2 wrong arguments or a file that cannot be read.
 *
 * All cases with the same number of ranks run in one world. A call that fails may have made that world unusable, so the
 * cases after it run again in a new one.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "play.h"
#include "shoal/world.h"

enum {
    EXIT_RIGHT = 0,
    EXIT_WRONG = 1,
    EXIT_USAGE = 2
};

/* Worlds ----------------------------------------------------------------------------------------------- */

static shoal_status play_rank(shoal_world *world, void *context)
{
    struct replay_run *run = context;
    for (size_t i = run->first; i < run->n_cases; i++) {
        shoal_status status = replay_play_case(run, i, world);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return SHOAL_OK;
}

/* What those behind a failure came to counts for nothing: they run again. */
static void forget_behind(struct replay_run *run, size_t from)
{
    for (size_t i = from; i < run->n_cases; i++) {
        struct replay_case *self = run->cases[i];
        self->is_failed = false;
        self->is_handed_on = false;
        self->worst = 0;
        self->reason[0] = '\0';
    }
}

/* Cases that all have the same number of ranks. */
static void play_cases(const shoal_safetensors *file, struct replay_case *const *cases, size_t n_cases)
{
    struct replay_run run = {
        .file = file, .cases = cases, .n_cases = n_cases, .lock = PTHREAD_MUTEX_INITIALIZER};
    while (run.first < n_cases) {
        run.failed = n_cases;
        shoal_status status = shoal_world_run_threads(cases[run.first]->n_ranks, play_rank, &run);
        if (status == SHOAL_OK) {
            return;
        }
        if (run.failed == n_cases) {
            /* No call failed, so the world itself did: the next one would too. */
            for (size_t i = run.first; i < n_cases; i++) {
                replay_case_set_reason(cases[i], "%s", shoal_error_text());
            }
            return;
        }
        run.first = run.failed + 1;
        forget_behind(&run, run.first);
    }
}

static int compare_sizes(const void *a, const void *b)
{
    const struct replay_case *first = *(struct replay_case *const *)a;
    const struct replay_case *second = *(struct replay_case *const *)b;
    int order = (first->n_ranks > second->n_ranks) - (first->n_ranks < second->n_ranks);
    return order ? order : strcmp(first->name, second->name);
}

/* Gives those that can be run, by size. Returns false if memory runs out. */
static bool play_all(const shoal_safetensors *file, const struct replay_cases *cases)
{
    struct replay_case **sorted = calloc(cases->n_cases + 1, sizeof(*sorted));
    if (!sorted) {
        return false;
    }
    size_t n_sorted = 0;
    for (size_t i = 0; i < cases->n_cases; i++) {
        if (cases->cases[i].reason[0] == '\0') {
            sorted[n_sorted++] = &cases->cases[i];
        }
    }
    qsort(sorted, n_sorted, sizeof(*sorted), compare_sizes);
    size_t begin = 0;
    while (begin < n_sorted) {
        size_t end = begin;
        while (end < n_sorted && sorted[end]->n_ranks == sorted[begin]->n_ranks) {
            end++;
        }
        play_cases(file, &sorted[begin], end - begin);
        begin = end;
    }
    free(sorted);
    return true;
}

/* Files ------------------------------------------------------------------------------------------------ */

struct totals {
    size_t n_checked;
    size_t n_wrong;
    size_t n_refused;
    size_t n_handed_on;
    double worst;
};

static void report(const struct replay_cases *cases, struct totals *totals)
{
    totals->n_refused += cases->n_refused;
    for (size_t i = 0; i < cases->n_cases; i++) {
        const struct replay_case *self = &cases->cases[i];
        totals->n_checked++;
        totals->n_handed_on += self->is_handed_on ? 1 : 0;
        totals->worst = self->worst > totals->worst ? self->worst : totals->worst;
        if (self->reason[0] != '\0') {
            totals->n_wrong++;
            printf("%s: %s\n", self->name, self->reason);
        }
    }
}

/* Returns false if the file could not be read, after a message. */
static bool replay_file(const char *path, struct totals *totals)
{
    shoal_safetensors *file;
    struct replay_cases cases;
    if (shoal_safetensors_open(path, &file) != SHOAL_OK) {
        (void)fprintf(stderr, "replay_collectives: %s\n", shoal_error_text());
        return false;
    }
    bool has_memory = replay_cases_collect(file, &cases);
    if (has_memory) {
        has_memory = play_all(file, &cases);
        report(&cases, totals);
        replay_cases_free(&cases);
    }
    shoal_safetensors_close(file);
    if (!has_memory) {
        (void)fprintf(stderr, "replay_collectives: %s: no memory\n", path);
    }
    return has_memory;
}

int main(int argc, char **argv)
{
    struct totals totals = {0};
    if (argc < 2 || argv[1][0] == '-') {
        (void)fprintf(stderr, "usage: replay_collectives FILE.safetensors...\n");
        return EXIT_USAGE;
    }
    for (int i = 1; i < argc; i++) {
        if (!replay_file(argv[i], &totals)) {
            return EXIT_USAGE;
        }
    }
    if (totals.n_refused > 0) {
        printf("%zu were refused by PyTorch and have nothing to compare\n", totals.n_refused);
    }
    if (totals.n_handed_on > 0) {
        printf("%zu gradients that PyTorch hands on unchanged were compared with the adjoint\n",
               totals.n_handed_on);
    }
    printf("%zu checked, %zu wrong, worst %.3g of its bound\n", totals.n_checked, totals.n_wrong,
           totals.worst);
    return totals.n_wrong > 0 ? EXIT_WRONG : EXIT_RIGHT;
}
