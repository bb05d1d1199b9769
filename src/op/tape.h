/* SPDX-License-Identifier: MIT */
/*
 * How ops are recorded for a backward pass. A tensor that needs a gradient has a tensor_history, which points to the
 * tape. The dispatcher calls the tape in two steps, so that nothing can fail after data was changed:
 *
 *   prepare   after shapes are known, before the kernel runs: checks, allocates, may refuse the call
 *   commit    after the kernel succeeded: attaches histories to the outputs; cannot fail
 *   cancel    after the kernel failed: forgets what prepare made
 */
#ifndef OP_TAPE_H
#define OP_TAPE_H

#include <stddef.h>

#include "op/op.h"

struct tape_entry;

struct op_tape {
    shoal_status (*prepare)(const shoal_op *op, const shoal_value *arguments, shoal_tensor *const *outputs,
                            size_t n_outputs, struct tape_entry **entry_out);
    void (*commit)(struct tape_entry *entry, shoal_tensor *const *outputs, size_t n_outputs);
    void (*cancel)(struct tape_entry *entry);
};

#endif
