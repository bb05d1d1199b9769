/* SPDX-License-Identifier: MIT */
/*
 * replay_gpt2 FILE.safetensors...: repeats the trainings of small GPT-2 models that the files have recorded, three
 * times each: in one process, and fully sharded on 2 and on 3 ranks, which are threads. Compares logits, losses,
 * gradients and final parameters (gpt2_run.h). Prints one line for each result that is wrong, one for each training,
 * and at the end the total:
 *
 *     N checked, M wrong, worst E of its bound
 *
 * Exit status: 0 nothing wrong, 1 something wrong, 2 wrong arguments or a file that cannot be read.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "fsdp_checks.h"
#include "gpt2_case.h"
#include "gpt2_run.h"
#include "shoal/safetensors.h"

static const struct {
    const char *name;
    int n_ranks;
    bool is_sharded;
} modes[] = {{"one process", 1, false}, {"2 ranks", 2, true}, {"3 ranks", 3, true}};

/* What the file must have ------------------------------------------------------------------------------- */

/* While names are looked up. */
struct looking {
    const shoal_safetensors *file;
    struct fsdp_checks *checks;
    bool *is_used; /* tensors of the file */
    bool can_run;
};

static void need(struct looking *looking, const char *name, shoal_dtype dtype, int n_dims,
                 const int64_t *shape, bool is_input)
{
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    int64_t at = shoal_safetensors_find(looking->file, name);
    if (at < 0 || shoal_safetensors_get(looking->file, at, &info) != SHOAL_OK) {
        fsdp_checks_add_wrong(looking->checks, name, "is missing");
        looking->can_run = looking->can_run && !is_input;
        return;
    }
    looking->is_used[at] = true;
    /* One number may have any shape. */
    bool is_number = n_dims == 0 && info.bytes == shoal_dtype_bytes(dtype);
    if (is_number) {
        n_dims = info.n_dims;
        shape = info.shape;
    }
    if (info.dtype != dtype || info.n_dims != n_dims ||
        (n_dims > 0 && memcmp(info.shape, shape, (size_t)n_dims * sizeof shape[0]) != 0)) {
        fsdp_checks_add_wrong(looking->checks, name, "has another shape or dtype than the case says");
        looking->can_run = false;
    }
}

static void need_step(struct looking *looking, const struct gpt2_case *plan, int step)
{
    const int64_t shape[] = {plan->batch, plan->n_tokens, plan->vocabulary};
    char name[2 * GPT2_NAME_BYTES];
    (void)snprintf(name, sizeof name, "step%d.tokens", step);
    need(looking, name, SHOAL_I32, 2, shape, true);
    (void)snprintf(name, sizeof name, "step%d.targets", step);
    need(looking, name, SHOAL_I32, 2, shape, true);
    (void)snprintf(name, sizeof name, "step%d.logits", step);
    need(looking, name, SHOAL_F32, 3, shape, false);
    (void)snprintf(name, sizeof name, "step%d.loss", step);
    need(looking, name, SHOAL_F32, 0, NULL, false);
    for (size_t i = 0; i < plan->n_names; i++) {
        (void)snprintf(name, sizeof name, "step%d.grad.%s", step, plan->names[i].text);
        need(looking, name, SHOAL_F32, plan->names[i].n_dims, plan->names[i].shape, false);
    }
}

static void look(struct looking *looking, const struct gpt2_case *plan)
{
    char name[2 * GPT2_NAME_BYTES];
    for (size_t i = 0; i < plan->n_names; i++) {
        (void)snprintf(name, sizeof name, "init.%s", plan->names[i].text);
        need(looking, name, SHOAL_F32, plan->names[i].n_dims, plan->names[i].shape, true);
        (void)snprintf(name, sizeof name, "final.%s", plan->names[i].text);
        need(looking, name, SHOAL_F32, plan->names[i].n_dims, plan->names[i].shape, false);
    }
    for (int step = 0; step < GPT2_STEPS; step++) {
        need_step(looking, plan, step);
    }
    for (int64_t i = 0; i < shoal_safetensors_count(looking->file); i++) {
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        if (!looking->is_used[i] && shoal_safetensors_get(looking->file, i, &info) == SHOAL_OK) {
            fsdp_checks_add_wrong(looking->checks, info.name, "the case has no such tensor");
        }
    }
}

/* Returns false if the case cannot be run, and `checks` has why. */
static bool prepare(const char *path, const shoal_safetensors *file, struct gpt2_case *plan,
                    struct fsdp_totals *totals)
{
    struct fsdp_checks checks;
    fsdp_checks_init(&checks);
    struct looking looking = {.file = file,
                              .checks = &checks,
                              .can_run = true,
                              .is_used = calloc((size_t)shoal_safetensors_count(file) + 1, sizeof(bool))};
    if (!looking.is_used) {
        fsdp_checks_add_wrong(&checks, "case", "no memory");
    }
    bool is_right =
        looking.is_used && gpt2_case_read(shoal_safetensors_metadata(file, "case"), plan, &checks);
    if (is_right) {
        look(&looking, plan);
    }
    fsdp_checks_report(&checks, path, 1, totals);
    fsdp_checks_free(&checks);
    free(looking.is_used);
    return is_right && looking.can_run;
}

/* Replaying --------------------------------------------------------------------------------------------- */

static void replay(const char *path, const shoal_safetensors *file, const struct gpt2_case *plan, size_t mode,
                   struct fsdp_totals *totals)
{
    struct fsdp_checks checks;
    struct fsdp_totals own = {0};
    char name[512];
    fsdp_checks_init(&checks);
    struct gpt2_run run = {.plan = plan,
                           .file = file,
                           .checks = &checks,
                           .n_ranks = modes[mode].n_ranks,
                           .is_sharded = modes[mode].is_sharded};
    if (gpt2_run(&run) != SHOAL_OK) {
        fsdp_checks_add_wrong(&checks, "the run", "failed: %s", shoal_error_text());
    }
    (void)snprintf(name, sizeof name, "%s, %s", path, modes[mode].name);
    fsdp_checks_report(&checks, name, run.n_ranks, &own);
    printf("%s: %zu checked, %zu wrong, worst %.3g of its bound\n", name, own.n_checked, own.n_wrong,
           own.worst);
    replay_add_totals(totals, &own);
    fsdp_checks_free(&checks);
}

/* Returns false if the file could not be read, after a message. */
static bool replay_file(const char *path, struct fsdp_totals *totals)
{
    shoal_safetensors *file;
    struct gpt2_case plan = {0};
    if (shoal_safetensors_open(path, &file) != SHOAL_OK) {
        (void)fprintf(stderr, "replay_gpt2: %s\n", shoal_error_text());
        return false;
    }
    bool can_run = prepare(path, file, &plan, totals);
    for (size_t i = 0; can_run && i < sizeof modes / sizeof modes[0]; i++) {
        replay(path, file, &plan, i, totals);
    }
    gpt2_case_free(&plan);
    shoal_safetensors_close(file);
    return true;
}

int main(int argc, char **argv)
{
    return replay_files("replay_gpt2", argc, argv, replay_file);
}
