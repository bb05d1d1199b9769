/* SPDX-License-Identifier: MIT */
/*
 * replay_fsdp FILE.safetensors...: repeats the training runs that the files have recorded, with ranks as threads and
 * with shoal_fully_shard, and compares losses, gradients, norms, shards and final parameters (fsdp_checks.h). Prints
 * one line for each result that is wrong, one for each file, and at the end the total of all files:
 *
 *     N checked, M wrong, worst E of its bound
 *
 * Exit status: 0 nothing wrong, 1 something wrong, 2 wrong arguments or a file that cannot be read.
 */
#include <stdio.h>

#include "files.h"
#include "fsdp_case.h"
#include "fsdp_checks.h"
#include "fsdp_plan.h"
#include "fsdp_run.h"
#include "shoal/safetensors.h"

/* Returns false if memory runs out. */
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

/* Returns false if the file could not be read, after a message. */
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
    replay_add_totals(totals, &own);
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
    return replay_files("replay_fsdp", argc, argv, replay_file);
}
