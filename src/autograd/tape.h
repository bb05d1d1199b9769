/* SPDX-License-Identifier: MIT */
/* The tape that the dispatcher finds through a tensor's history (op/tape.h). */
#ifndef AUTOGRAD_TAPE_H
#define AUTOGRAD_TAPE_H

#include <stdint.h>

#include "op/tape.h"

extern const struct op_tape autograd_tape;

/*
 * A kernel may leave a number for its gradient function: which call on the object at `place` it was, from 1 (a
 * collective on a group). The kernel calls tape_note while it runs. The gradient function of the same call gets the
 * number from tape_noted; 0 if there is none for this place.
 */
void tape_note(const void *place, uint64_t number);
uint64_t tape_noted(const void *place);

#endif
