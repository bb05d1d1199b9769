/* SPDX-License-Identifier: MIT */
/*
 * Who watches the operations of a scope. A tracer sees every call before it runs, with arguments complete and
 * checked, and decides: run it (op_execute) and note it, or answer from shapes alone.
 */
#ifndef OP_TRACER_H
#define OP_TRACER_H

#include "op/op.h"

struct op_tracer {
    shoal_status (*call)(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                         shoal_value *result_out);
};

/* For the innermost scope and those opened inside it from now on; NULL ends it. SHOAL_ERR_STATE without a scope. */
shoal_status op_set_tracer(struct op_tracer *tracer);

#endif
