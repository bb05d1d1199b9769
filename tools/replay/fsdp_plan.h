/* SPDX-License-Identifier: MIT */
/*
 * Which tensors a case needs in its file, and which of them are results to compare:
 *
 *     init.NAME, rankR.x.S.M, rankR.y.S.M                      what the run starts from
 *     rankR.loss.S.M, rankR.grad.S.NAME, rankR.norm.S, rankR.param.S.NAME, final.NAME
 *
 * In a file with several cases these names stand behind CASE/.
 */
#ifndef REPLAY_FSDP_PLAN_H
#define REPLAY_FSDP_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdp_case.h"
#include "fsdp_checks.h"
#include "shoal/safetensors.h"

#define FSDP_TENSOR_BYTES 256 /* of the longest name */

enum fsdp_kind {
    FSDP_LOSS,
    FSDP_GRAD,
    FSDP_PARAM,
    FSDP_NORM,
    FSDP_FINAL
};

struct fsdp_plan {
    const struct fsdp_case *run;
    const shoal_safetensors *file;
    const char *prefix; /* of all names in the file */
    struct fsdp_checks *checks;
    size_t *numbers; /* of checks: fsdp_plan_number */
    bool can_run;    /* all that the run starts from is there */
};

/* Returns false if memory runs out. */
bool fsdp_plan_make(struct fsdp_plan *self, const struct fsdp_case *run, const shoal_safetensors *file,
                    const char *prefix, struct fsdp_checks *checks);
void fsdp_plan_free(struct fsdp_plan *self);

/* The check of a result. `index`: of the micro-batch or the name; 0 for the norm. */
size_t fsdp_plan_number(const struct fsdp_plan *self, enum fsdp_kind kind, int step, int index);

/* What the file has for it, on that rank, in the scope; NULL where there is none, which is noted already. */
shoal_tensor *fsdp_plan_want(const struct fsdp_plan *self, size_t number, enum fsdp_kind kind, int rank);

/* A tensor of the file by its name, in the scope. */
shoal_tensor *fsdp_plan_read(const struct fsdp_plan *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
