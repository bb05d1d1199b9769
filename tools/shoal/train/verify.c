/* SPDX-License-Identifier: MIT */
/* One process takes the parts of all ranks in order, as mode single does, and must end with the same bits. */
#include "train/verify.h"
#include "train/load.h"
#include "train/whole.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/try.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define LIVE_NS 200000000

static void show_progress(const struct train_report *report, int64_t done, int64_t all, int64_t *last_ns)
{
    int64_t now_ns = clock_now_ns();
    if (report->is_shown && report->columns > 0 && (done == all || now_ns - *last_ns >= LIVE_NS)) {
        printf("%s  step %" PRId64 "/%" PRId64 " again, in one process\n",
               *last_ns > 0 ? "\033[1A\033[2K" : "", done, all);
        (void)fflush(stdout);
        *last_ns = now_ns;
    }
}

static shoal_status repeat_steps(struct train_job *job, const struct train_report *report)
{
    int64_t last_ns = 0;
    double loss = 0.0;
    int64_t n_steps = job->options->n_verify;
    TRY(train_model_make(job));
    while (job->schedule.step < n_steps) {
        TRY(train_step(job, &loss));
        show_progress(report, job->schedule.step, n_steps, &last_ns);
    }
    return SHOAL_OK;
}

static shoal_status repeat(const struct train_job *ranks, const struct train_report *report,
                           shoal_world *world, uint64_t *digest_out)
{
    struct train_options options = *ranks->options;
    struct train_job job;
    options.mode = TRAIN_SINGLE;
    options.n_ranks = 1;
    options.compiles = false;
    options.checkpoint = NULL;
    train_job_init(&job, &options, ranks->data, world);
    job.gpt = ranks->gpt;
    job.n_replicas = ranks->n_replicas;
    job.n_parts = ranks->n_parts;
    job.n_micro = ranks->n_micro;
    shoal_status status = repeat_steps(&job, report);
    if (status == SHOAL_OK) {
        status = train_whole(&job, digest_out, NULL);
    }
    train_job_free(&job);
    return status;
}

/* Of --json the last line of stdout is the JSON, and nothing else is there. */
static void print_sentence(const struct train_job *job, bool is_same)
{
    FILE *out = job->options->has_json ? stderr : stdout;
    int64_t n_verify = job->options->n_verify;
    const char *bits = is_same ? "the same bits" : "DIFFERENT bits";
    if (n_verify == job->options->n_steps) {
        fprintf(out, "%d rank%s (%s) and one process, %" PRId64 " steps each, ended in %s.\n", job->n_ranks,
                job->n_ranks == 1 ? "" : "s", train_mode_name((int64_t)job->mode), n_verify, bits);
    } else {
        fprintf(out,
                "The first %" PRId64 " of these %" PRId64
                " steps on %d rank%s (%s) and in one process gave %s.\n",
                n_verify, job->options->n_steps, job->n_ranks, job->n_ranks == 1 ? "" : "s",
                train_mode_name((int64_t)job->mode), bits);
    }
    (void)fflush(out);
}

shoal_status train_verify(const struct train_job *job, const struct train_report *report, uint64_t digest,
                          bool *is_same_out)
{
    char key[64];
    uint64_t found = 0;
    shoal_world *world = NULL;
    shoal_world_options options = SHOAL_WORLD_OPTIONS_INIT;
    (void)snprintf(key, sizeof key, "train-%ld-%" PRId64, (long)getpid(), clock_now_ns());
    options.n_ranks = 1;
    options.key = key;
    TRY(shoal_world_open(&options, &world));
    shoal_status status = repeat(job, report, world, &found);
    if (status == SHOAL_OK) {
        status = shoal_world_close(world);
        *is_same_out = found == digest;
        if (report->is_shown || found != digest) {
            print_sentence(job, found == digest);
        }
    }
    return status;
}
