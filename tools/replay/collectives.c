/* SPDX-License-Identifier: MIT */
/*
 * replay_collectives FILE.safetensors...: repeats every call whose inputs and results are recorded in the files, with
 * ranks as threads, and compares the results (compare.h). Prints one line for each case that is wrong, and at the end
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
#include "compare.h"
#include "shoal/scope.h"
#include "shoal/world.h"

enum {
    EXIT_RIGHT = 0,
    EXIT_WRONG = 1,
    EXIT_USAGE = 2
};

/* What the ranks of one world share. */
struct run {
    const shoal_safetensors *file;
    struct replay_case *const *cases;
    size_t n_cases;
    size_t first;
    pthread_mutex_t lock; /* of what follows, and of what cases came to */
    size_t failed;        /* the first whose call failed; n_cases: none */
};

/* What a case came to ---------------------------------------------------------------------------------- */

/* Of several failures the first in time is kept: the others are its echo. */
static shoal_status note_failure(struct run *run, size_t at, int rank, shoal_status status)
{
    struct replay_case *self = run->cases[at];
    char text[REPLAY_REASON_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    (void)pthread_mutex_lock(&run->lock);
    if (!self->is_failed) {
        self->is_failed = true;
        replay_case_set_reason(self, "rank %d: %s", rank, text);
    }
    if (at < run->failed) {
        run->failed = at;
    }
    (void)pthread_mutex_unlock(&run->lock);
    return status;
}

/* Of several wrong results that of the lowest rank is kept, so that two runs say the same. */
static void note_difference(struct run *run, struct replay_case *self, int rank, double worst,
                            const char *reason)
{
    (void)pthread_mutex_lock(&run->lock);
    if (worst > self->worst) {
        self->worst = worst;
    }
    if (reason[0] != '\0' && !self->is_failed && (self->reason[0] == '\0' || rank < self->wrong_rank)) {
        self->wrong_rank = rank;
        replay_case_set_reason(self, "%s", reason);
    }
    (void)pthread_mutex_unlock(&run->lock);
}

/* One case on one rank --------------------------------------------------------------------------------- */

/* What a rank has in hands for one case. */
struct turn {
    struct run *run;
    struct replay_case *self;
    int rank;
    shoal_group *group;
    shoal_tensor **ins;  /* n_tensors */
    shoal_tensor **outs; /* n_tensors */
    const void **sources;
};

static bool has_same_shape(const shoal_tensor *a, const shoal_tensor *b)
{
    size_t bytes = (size_t)shoal_tensor_n_dims(a) * sizeof(int64_t);
    return shoal_tensor_n_dims(a) == shoal_tensor_n_dims(b) &&
           memcmp(shoal_tensor_shape(a), shoal_tensor_shape(b), bytes) == 0;
}

static void format_shape(char *text, size_t text_bytes, const shoal_tensor *tensor)
{
    size_t length = (size_t)snprintf(text, text_bytes, "%s [", shoal_dtype_name(shoal_tensor_dtype(tensor)));
    for (int i = 0; i < shoal_tensor_n_dims(tensor) && length < text_bytes; i++) {
        length += (size_t)snprintf(text + length, text_bytes - length, "%s%lld", i ? ", " : "",
                                   (long long)shoal_tensor_shape(tensor)[i]);
    }
    if (length < text_bytes) {
        (void)snprintf(text + length, text_bytes - length, "]");
    }
}

/* Where the result of a reduction comes from: from the same place, or from the rank's block along a dimension. */
static void place_inputs(const struct turn *turn, size_t i, struct comparison *comparison)
{
    const shoal_tensor *in = turn->ins[i];
    const shoal_tensor *out = turn->outs[i];
    int n_dims = shoal_tensor_n_dims(in);
    comparison->block_elems = comparison->count;
    comparison->input_step = 0;
    comparison->input_begin = 0;
    if (!turn->self->call.row->is_scatter || n_dims == 0) {
        return;
    }
    int dim = (int)(turn->self->call.dim < 0 ? turn->self->call.dim + n_dims : turn->self->call.dim);
    int64_t inner = 1;
    for (int d = dim + 1; d < n_dims; d++) {
        inner *= shoal_tensor_shape(in)[d];
    }
    comparison->block_elems = shoal_tensor_shape(out)[dim] * inner;
    comparison->input_step = shoal_tensor_shape(in)[dim] * inner;
    comparison->input_begin = turn->rank * comparison->block_elems;
}

/* Addresses of input i of all ranks. */
static bool read_sources(const struct turn *turn, size_t i)
{
    const struct replay_case *self = turn->self;
    for (int rank = 0; rank < self->n_ranks; rank++) {
        int64_t number = self->ins[(size_t)rank * self->n_tensors + i];
        turn->sources[rank] = shoal_data(shoal_safetensors_tensor(turn->run->file, number));
        if (!turn->sources[rank]) {
            return false;
        }
    }
    return true;
}

/* Returns false if something could not be had, with the error in the scope. */
static bool check_output(const struct turn *turn, size_t i)
{
    struct replay_case *self = turn->self;
    int64_t number = self->outs[(size_t)turn->rank * self->n_tensors + i];
    const shoal_tensor *got = turn->outs[i];
    const shoal_tensor *want = shoal_safetensors_tensor(turn->run->file, number);
    char reason[REPLAY_REASON_BYTES] = "";
    if (!got || !want) {
        return false;
    }
    if (shoal_tensor_dtype(got) != self->dtype || !has_same_shape(got, want)) {
        char a[200];
        char b[200];
        format_shape(a, sizeof a, got);
        format_shape(b, sizeof b, want);
        (void)snprintf(reason, sizeof reason, "rank%d.out%zu: got %s, expected %s", turn->rank, i, a, b);
        note_difference(turn->run, self, turn->rank, 0, reason);
        return true;
    }
    struct comparison comparison = {
        .kind = compare_kind_of(self->call.row->is_reduce, self->call.reduce, self->dtype),
        .dtype = self->dtype,
        .n_ranks = self->n_ranks,
        .count = shoal_tensor_count(got),
        .got = shoal_data(got),
        .want = shoal_data(want),
        .ins = turn->sources};
    if (!comparison.got || !comparison.want || (comparison.kind == COMPARE_SUM && !read_sources(turn, i))) {
        return false;
    }
    place_inputs(turn, i, &comparison);
    struct difference difference = compare(&comparison);
    if (difference.worst > 1) {
        (void)snprintf(reason, sizeof reason, "rank%d.out%zu, element %lld: %s, %.3g of its bound",
                       turn->rank, i, (long long)difference.element, difference.text, difference.worst);
    }
    note_difference(turn->run, self, turn->rank, difference.worst, reason);
    return true;
}

/* What goes wrong is an error of the scope that is open. */
static void play(const struct turn *turn)
{
    const struct replay_case *self = turn->self;
    for (size_t i = 0; i < self->n_tensors; i++) {
        turn->ins[i] =
            shoal_safetensors_tensor(turn->run->file, self->ins[(size_t)turn->rank * self->n_tensors + i]);
    }
    if (shoal_scope_error() != SHOAL_OK) {
        return;
    }
    self->call.row->run(&self->call, turn->rank, turn->group, turn->ins, self->n_tensors, turn->outs);
    for (size_t i = 0; i < self->n_tensors && check_output(turn, i); i++) {
    }
}

/* A result that could not be had without anybody saying why, such as for want of memory here. */
static bool has_outputs(const struct turn *turn)
{
    for (size_t i = 0; i < turn->self->n_tensors; i++) {
        if (!turn->outs[i]) {
            return false;
        }
    }
    return true;
}

static shoal_status play_case(struct run *run, size_t at, shoal_world *world)
{
    struct replay_case *self = run->cases[at];
    struct turn turn = {.run = run,
                        .self = self,
                        .rank = shoal_world_rank(world),
                        .group = shoal_world_group(world),
                        .ins = calloc(self->n_tensors, sizeof(shoal_tensor *)),
                        .outs = calloc(self->n_tensors, sizeof(shoal_tensor *)),
                        .sources = calloc((size_t)self->n_ranks, sizeof(void *))};
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    if (turn.ins && turn.outs && turn.sources) {
        status = shoal_scope_begin();
        if (status == SHOAL_OK) {
            play(&turn);
            bool is_complete = has_outputs(&turn);
            status = shoal_scope_end();
            status = status == SHOAL_OK && !is_complete ? SHOAL_ERR_NO_MEMORY : status;
        }
    }
    free(turn.ins);
    free(turn.outs);
    free(turn.sources);
    return status == SHOAL_OK ? status : note_failure(run, at, shoal_world_rank(world), status);
}

/* Worlds ----------------------------------------------------------------------------------------------- */

static shoal_status play_rank(shoal_world *world, void *context)
{
    struct run *run = context;
    for (size_t i = run->first; i < run->n_cases; i++) {
        shoal_status status = play_case(run, i, world);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return SHOAL_OK;
}

/* What those behind a failure came to counts for nothing: they run again. */
static void forget_behind(struct run *run, size_t from)
{
    for (size_t i = from; i < run->n_cases; i++) {
        struct replay_case *self = run->cases[i];
        self->is_failed = false;
        self->worst = 0;
        self->reason[0] = '\0';
    }
}

/* Cases that all have the same number of ranks. */
static void play_cases(const shoal_safetensors *file, struct replay_case *const *cases, size_t n_cases)
{
    struct run run = {.file = file, .cases = cases, .n_cases = n_cases, .lock = PTHREAD_MUTEX_INITIALIZER};
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
    double worst;
};

static void report(const struct replay_cases *cases, struct totals *totals)
{
    for (size_t i = 0; i < cases->n_cases; i++) {
        const struct replay_case *self = &cases->cases[i];
        totals->n_checked++;
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
    printf("%zu checked, %zu wrong, worst %.3g of its bound\n", totals.n_checked, totals.n_wrong,
           totals.worst);
    return totals.n_wrong > 0 ? EXIT_WRONG : EXIT_RIGHT;
}
