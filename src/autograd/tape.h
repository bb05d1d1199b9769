/* SPDX-License-Identifier: MIT */
/* The tape that the dispatcher finds through a tensor's history (op/tape.h). */
#ifndef AUTOGRAD_TAPE_H
#define AUTOGRAD_TAPE_H

#include <stdint.h>

#include "op/tape.h"

extern const struct op_tape autograd_tape;

/*
 * What a kernel notes of its call for its gradient function: which call of the thing at `place` it was, from 1. Made
 * by kernels while they run; read, for the same place, while the gradient function of that call runs. 0: none.
 */
void tape_note(const void *place, uint64_t number);
uint64_t tape_noted(const void *place);

#endif
