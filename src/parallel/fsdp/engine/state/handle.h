/* SPDX-License-Identifier: MIT */
/*
 * The handles of units, parameters and contexts that programs hold (shoal/fsdp_unit.h): small structs, freed with
 * what they stand for. With SHOAL_DEBUG_HANDLES the last ones that were freed are kept, and using one is an error
 * that says so; otherwise it is undefined.
 */
#ifndef PARALLEL_FSDP_ENGINE_STATE_HANDLE_H
#define PARALLEL_FSDP_ENGINE_STATE_HANDLE_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/fsdp.h"
#include "shoal/status.h"

struct fsdp_context;
struct fsdp_unit;

typedef shoal_status (*fsdp_unit_visitor)(struct fsdp_unit *unit, void *context);

/* A handle of one unit, or of several: all units of a context, or those of a module and the modules inside. */
struct shoal_fsdp_unit {
    bool is_gone;
    struct fsdp_unit *unit; /* NULL if the handle stands for several */
    /* Visits the units of `owner`, for a handle of several. */
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
    void *owner; /* belongs to the way */
    struct shoal_fsdp_unit all;
    /* With the explicit calls: parameters by their numbers. */
    struct shoal_fsdp_param **params;
    size_t n_params;
    size_t capacity;
};

/* Frees a handle that the library allocated; NULL is allowed. */
void fsdp_unit_handle_free(struct shoal_fsdp_unit *handle);
void fsdp_param_handle_free(struct shoal_fsdp_param *handle);
void fsdp_handle_free(struct shoal_fsdp *handle);

/* For tests: keeps up to `n_handles` freed handles from now on, whatever the option says. Frees those kept so far. */
void fsdp_handles_keep(size_t n_handles);

/*
 * For a call that returns a handle and has none to return: puts its name before the error text, and remembers that
 * this text is the reason. If the program passes the NULL on at once, the call that gets it reports the same reason.
 */
void fsdp_handle_not_found(const char *finder);
/* Calls that return a handle begin with this: fsdp_handle_alive without the name of the call. */
shoal_status fsdp_handle_there(const struct shoal_fsdp *handle);

/*
 * Other public calls begin with this. Checks that the handle is valid and its world open; an error text begins with
 * `call`. If the handle is NULL because the call that should have returned it was the last to fail, the text gives
 * that reason.
 */
shoal_status fsdp_handle_check(const char *call, const struct shoal_fsdp *handle);
/* Checks the handle as fsdp_handle_check does, but the world may be closed. */
shoal_status fsdp_handle_alive(const char *call, const struct shoal_fsdp *handle);
shoal_status fsdp_handle_one(const char *call, const struct shoal_fsdp_unit *handle,
                             struct fsdp_unit **unit_out);
/* Visits each unit that the handle stands for. */
shoal_status fsdp_handle_each(const char *call, const struct shoal_fsdp_unit *handle, fsdp_unit_visitor visit,
                              void *context);
/* Finds the parameter. The world may be closed: fsdp_unit_check_open tells whether it is. */
shoal_status fsdp_handle_param(const char *call, const struct shoal_fsdp_param *handle,
                               struct fsdp_unit **unit_out, size_t *index_out);
/* SHOAL_ERR_STATE in hooks, custom collectives and extensions: they must not call the context that calls them. A reset,
   for example, would free the memory that they work on. `context` is NULL before the first call of a module. */
shoal_status fsdp_check_outside(const char *call, const struct fsdp_context *context);
shoal_status fsdp_unit_check_open(const char *call, const struct fsdp_unit *unit);

#endif
