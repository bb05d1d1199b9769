/* SPDX-License-Identifier: MIT */
/*
 * State that a captured step depends on although no op shows it, such as the settings of a module. The owner of the
 * state holds a reference, and so does each graph that was captured with it. Graphs may outlive the owner.
 */
#ifndef OP_DEPENDENCE_H
#define OP_DEPENDENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct op_dependence;

struct op_dependence_kind {
    /* Returns a number that changes whenever a capture would give another graph. */
    uint64_t (*state)(const void *owner);
    /* Writes what has changed last: "parameter weight of linear was replaced". It is NULL if nothing is known. */
    void (*describe)(const void *owner, char *text, size_t text_bytes);
    /* Collective: compares with other ranks what the state is made of. Called before a compiled step is planned. It is NULL
       if ranks have nothing to compare but their plans. */
    shoal_status (*agree)(const void *owner);
    /* Called before each run of a compiled step; it does not wait for other ranks. It is NULL if nothing is to be done. */
    shoal_status (*begin_run)(const void *owner);
    bool never_returns; /* a state that has changed never comes back */
};

/* Returns the owner's reference. `kind` must have static storage duration. */
shoal_status op_dependence_create(const struct op_dependence_kind *kind, const void *owner,
                                  struct op_dependence **dependence_out);
struct op_dependence *op_dependence_ref(struct op_dependence *dependence);
void op_dependence_unref(struct op_dependence *dependence); /* NULL is allowed */

/* Call when the owner is freed: drops its reference. From now on the state is `last`. NULL is allowed. */
void op_dependence_leave(struct op_dependence *dependence, uint64_t last);

/* The owner's present state. */
uint64_t op_dependence_state(const struct op_dependence *dependence);
/* Compares the state with other ranks. */
shoal_status op_dependence_agree(const struct op_dependence *dependence);
/* A compiled step is about to run. */
shoal_status op_dependence_begin_run(const struct op_dependence *dependence);
/* Whether `state` was the state, is not any more, and will never be again. */
bool op_dependence_has_gone(const struct op_dependence *dependence, uint64_t state);
/* Writes what has changed last, "" if that is not known. */
void op_dependence_describe(const struct op_dependence *dependence, char *text, size_t text_bytes);

#endif
