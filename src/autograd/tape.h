/* SPDX-License-Identifier: MIT */
/* The tape that the dispatcher finds through a tensor's history (op/tape.h). */
#ifndef AUTOGRAD_TAPE_H
#define AUTOGRAD_TAPE_H

#include "op/tape.h"

extern const struct op_tape autograd_tape;

#endif
