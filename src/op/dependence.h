/* SPDX-License-Identifier: MIT */
/*
 * What a captured step depends on though no call says so: settings of a module, say. The owner has one, and so has each
 * graph that was captured with it; graphs may outlive the owner.
 */
#ifndef OP_DEPENDENCE_H
#define OP_DEPENDENCE_H

#include <stdint.h>

#include "shoal/status.h"

struct op_dependence;

/* `state` gives a number that is another one when a captured step would be. One reference, the owner's. */
shoal_status op_dependence_create(uint64_t (*state)(const void *owner), const void *owner,
                                  struct op_dependence **dependence_out);
struct op_dependence *op_dependence_ref(struct op_dependence *dependence);
void op_dependence_unref(struct op_dependence *dependence); /* NULL is allowed */

/* The owner ends, and gives up its reference. NULL is allowed. */
void op_dependence_leave(struct op_dependence *dependence);

/* Of the owner, now; 0 when it has ended. */
uint64_t op_dependence_state(const struct op_dependence *dependence);

#endif
