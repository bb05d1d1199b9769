/* SPDX-License-Identifier: MIT */
/*
 * What programs hold of a unit, a parameter or a context (shoal/fsdp_unit.h): small structs that end with what they stand
 * for. With SHOAL_DEBUG_HANDLES the last ones that ended are kept, so that using one is an error that says so; otherwise
 * it is undefined.
 */
#ifndef PARALLEL_FSDP_ENGINE_HANDLE_H
#define PARALLEL_FSDP_ENGINE_HANDLE_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/fsdp.h"
#include "shoal/status.h"

struct fsdp_context;
struct fsdp_unit;

typedef shoal_status (*fsdp_unit_visitor)(struct fsdp_unit *unit, void *context);

/* One unit, or several: all of a context, or those of a module and the modules inside. */
struct shoal_fsdp_unit {
    bool is_gone;
    struct fsdp_unit *unit; /* NULL: several */
    /* Visits the several units of `owner`. */
    shoal_status (*each)(void *owner, fsdp_unit_visitor visit, void *context);
    void *owner;
};

struct shoal_fsdp_param {
    bool is_gone;
    struct fsdp_unit *unit;
    size_t index; /* in the unit */
};

struct fsdp_way; /* way.h: what differs between the two ways in */

struct shoal_fsdp {
    bool is_gone;
    struct fsdp_context *context;
    const struct fsdp_way *way;
    void *owner; /* the way's */
    struct shoal_fsdp_unit all;
    /* With the explicit calls: parameters by their numbers. */
    struct shoal_fsdp_param **params;
    size_t n_params;
    size_t capacity;
};

/* The end of one, which was allocated by the library; NULL is allowed. */
void fsdp_unit_handle_free(struct shoal_fsdp_unit *handle);
void fsdp_param_handle_free(struct shoal_fsdp_param *handle);
void fsdp_handle_free(struct shoal_fsdp *handle);

/* For tests: so many are kept from now on, instead of what the option says. Forgets those that were. */
void fsdp_handles_keep(size_t n_handles);

/*
 * In a call that gives a handle, when there is none to give: puts the call's name before the text, and notes that this text
 * says why. If the program passes the NULL on at once, the call that gets it has the same reason.
 */
void fsdp_handle_not_found(const char *finder);
/* What such a call begins with: fsdp_handle_alive without the name of the call. */
shoal_status fsdp_handle_there(const struct shoal_fsdp *handle);

/*
 * What other public calls begin with: whether there is such a thing, and its world is open. The text begins with the call.
 * On NULL it says why there is no handle, if the call that should have given it was the last to fail.
 */
shoal_status fsdp_handle_check(const char *call, const struct shoal_fsdp *handle);
/* Also when the world is closed. */
shoal_status fsdp_handle_alive(const char *call, const struct shoal_fsdp *handle);
shoal_status fsdp_handle_one(const char *call, const struct shoal_fsdp_unit *handle,
                             struct fsdp_unit **unit_out);
/* Of each unit that the handle stands for. */
shoal_status fsdp_handle_each(const char *call, const struct shoal_fsdp_unit *handle, fsdp_unit_visitor visit,
                              void *context);
/* Also when the world is closed: fsdp_unit_check_open says whether it is. */
shoal_status fsdp_handle_param(const char *call, const struct shoal_fsdp_param *handle,
                               struct fsdp_unit **unit_out, size_t *index_out);
shoal_status fsdp_unit_check_open(const char *call, const struct fsdp_unit *unit);

#endif
