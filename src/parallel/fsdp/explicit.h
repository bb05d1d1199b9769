/* SPDX-License-Identifier: MIT */
/* What the files behind shoal/fsdp.h share: explicit.c (parameters and steps), explicit_units.c (settings), clip.c. */
#ifndef PARALLEL_FSDP_EXPLICIT_H
#define PARALLEL_FSDP_EXPLICIT_H

#include <stddef.h>

#include "parallel/fsdp/unit.h"
#include "shoal/fsdp.h"

#define EXPLICIT_FAILURE_BYTES 512

/* Where a parameter is. */
struct explicit_place {
    size_t unit;
    size_t index;
};

struct shoal_fsdp {
    struct fsdp_context *context;
    struct explicit_place *places; /* by id */
    size_t n_places;
    size_t capacity;
    shoal_status failure; /* of the group: the first, and its text */
    char failure_text[EXPLICIT_FAILURE_BYTES];
};

/* Each clears the error of the thread first; texts begin with the call. */
shoal_status explicit_check(const char *call, const shoal_fsdp *fsdp);
shoal_status explicit_find_unit(const char *call, const shoal_fsdp *fsdp, int unit,
                                struct fsdp_unit **unit_out);
/* And the group has not failed. */
shoal_status explicit_find_unit_of_step(const char *call, const shoal_fsdp *fsdp, int unit,
                                        struct fsdp_unit **unit_out);
shoal_status explicit_find_param(const char *call, const shoal_fsdp *fsdp, int id,
                                 struct fsdp_unit **unit_out, struct fsdp_param **param_out);

/* What optimizers see of it. */
shoal_fsdp_shard explicit_shard(const struct fsdp_param *param);

/* Not all calls talk to others, but all fail once the group has. */
shoal_status explicit_check_failure(const shoal_fsdp *fsdp);
/* The end of a call that others took part in: remembers what lasts. */
shoal_status explicit_end_call(shoal_fsdp *fsdp, shoal_status status);

/* Who forgets to end a backward would train with what happens to have arrived. */
shoal_status explicit_check_ended(const shoal_fsdp *fsdp, const char *what);
/* Nor are gradients on their way. */
shoal_status explicit_check_landed(const shoal_fsdp *fsdp, const char *what);
/* Between steps nothing is gathered, and nothing on its way. */
shoal_status explicit_check_between_steps(const struct fsdp_unit *unit, const char *what);

#endif
