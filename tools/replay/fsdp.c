/* SPDX-License-Identifier: MIT */
/*
 * replay_fsdp FILE.safetensors...: makes the training runs that the files have recorded, with ranks as threads and
 * through shoal_fully_shard, and compares losses, gradients, norms, shards and final parameters (fsdp_checks.h). One line
 * for each that is wrong, then one for the file, and last the total of all files:
 *
 *     N checked, M wrong, worst E of its bound
 *
 * Exit status: 0 nothing wrong, 1 something, 2 called wrongly or a file that can not be read.
 */
#include <math.h>
#include <stdio.h>

#include "fsdp_case.h"
#include "fsdp_checks.h"
#include "fsdp_plan.h"
#include "fsdp_run.h"
#include "shoal/safetensors.h"
#include "shoal_nn/nn.h"

enum {
    EXIT_RIGHT = 0,
    EXIT_WRONG = 1,
    EXIT_USAGE = 2
};

/* False: no memory. */
static bool play(const shoal_safetensors *file, struct fsdp_case *run, struct fsdp_checks *checks)
{
    struct fsdp_plan plan;
    if (!fsdp_case_read(shoal_safetensors_metadata(file, "case"), run, checks)) {
        return !checks->has_no_memory;
    }
    bool has_memory = fsdp_plan_make(&plan, run, file, checks);
    if (has_memory && plan.can_run && fsdp_run(&plan) != SHOAL_OK) {
        fsdp_checks_add_wrong(checks, "the run", "failed: %s", shoal_error_text());
    }
    fsdp_plan_free(&plan);
    return has_memory && !checks->has_no_memory;
}

static void add_totals(struct fsdp_totals *to, const struct fsdp_totals *from)
{
    to->n_checked += from->n_checked;
    to->n_wrong += from->n_wrong;
    to->worst = fmax(to->worst, from->worst);
}

/* False: the file could not be read, which was said. */
static bool replay_file(const char *path, struct fsdp_totals *totals)
{
    shoal_safetensors *file;
    struct fsdp_checks checks;
    struct fsdp_case run;
    struct fsdp_totals own = {0};
    if (shoal_safetensors_open(path, &file) != SHOAL_OK) {
        (void)fprintf(stderr, "replay_fsdp: %s\n", shoal_error_text());
        return false;
    }
    fsdp_checks_init(&checks);
    bool has_memory = play(file, &run, &checks);
    fsdp_checks_report(&checks, path, run.n_ranks, &own);
    printf("%s: %zu checked, %zu wrong, worst %.3g of its bound\n", path, own.n_checked, own.n_wrong,
           own.worst);
    add_totals(totals, &own);
    fsdp_case_free(&run);
    fsdp_checks_free(&checks);
    shoal_safetensors_close(file);
    if (!has_memory) {
        (void)fprintf(stderr, "replay_fsdp: %s: no memory\n", path);
    }
    return has_memory;
}

int main(int argc, char **argv)
{
    struct fsdp_totals totals = {0};
    bool is_readable = true;
    if (argc < 2 || argv[1][0] == '-') {
        (void)fprintf(stderr, "usage: replay_fsdp FILE.safetensors...\n");
        return EXIT_USAGE;
    }
    /* Ranks are threads here, and products small. */
    if (shoal_nn_set_threads(1) != SHOAL_OK) {
        (void)fprintf(stderr, "replay_fsdp: %s\n", shoal_error_text());
        return EXIT_USAGE;
    }
    for (int i = 1; i < argc; i++) {
        is_readable = replay_file(argv[i], &totals) && is_readable;
    }
    printf("%zu checked, %zu wrong, worst %.3g of its bound\n", totals.n_checked, totals.n_wrong,
           totals.worst);
    return !is_readable ? EXIT_USAGE : totals.n_wrong > 0 ? EXIT_WRONG : EXIT_RIGHT;
}
