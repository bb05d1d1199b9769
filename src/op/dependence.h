/* SPDX-License-Identifier: MIT */
/*
 * State that a captured step depends on although no op shows it, such as the settings of a module. The owner of the
 * state holds a reference, and so does each graph that was captured with it. Graphs may outlive the owner.
 */
#ifndef OP_DEPENDENCE_H
#define OP_DEPENDENCE_H

#include <stdint.h>

#include "shoal/status.h"

struct op_dependence;

/* `state` returns a number that changes whenever a capture would give another graph. Returns the owner's reference. */
shoal_status op_dependence_create(uint64_t (*state)(const void *owner), const void *owner,
                                  struct op_dependence **dependence_out);
struct op_dependence *op_dependence_ref(struct op_dependence *dependence);
void op_dependence_unref(struct op_dependence *dependence); /* NULL is allowed */

/* Call when the owner is freed: drops its reference. NULL is allowed. */
void op_dependence_leave(struct op_dependence *dependence);

/* The owner's present state; 0 if the owner was freed. */
uint64_t op_dependence_state(const struct op_dependence *dependence);

#endif
