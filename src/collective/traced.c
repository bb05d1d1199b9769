/* SPDX-License-Identifier: MIT */
#include "collective/traced.h"

#include "base/try.h"
#include "op/box.h"
#include "op/tracer.h"
#include "shoal/collective.h"
#include "tensor/scope.h"

static bool is_traced(void)
{
    return scope_current() && scope_current()->tracer;
}

shoal_tensor *traced_wait(shoal_tensor *tensor)
{
    return tensor && is_traced() ? BOX_ONE(wait_tensor, box_tensor(tensor)) : tensor;
}

shoal_tensor *const *traced_wait_list(shoal_tensor *const *tensors, size_t n_tensors)
{
    if (!tensors || !is_traced()) {
        return tensors;
    }
    shoal_tensor **waited = scope_alloc(scope_current(), n_tensors * sizeof waited[0]);
    if (!waited) {
        (void)scope_fail(SHOAL_ERR_NO_MEMORY);
        return NULL;
    }
    for (size_t i = 0; i < n_tensors; i++) {
        waited[i] = BOX_ONE(wait_tensor, box_tensor(tensors[i]));
        if (!waited[i]) {
            return NULL;
        }
    }
    return waited;
}

shoal_tensor *traced_wait_received(shoal_tensor *tensor)
{
    return op_capture_running() ? tensor : traced_wait(tensor);
}

shoal_tensor *const *traced_wait_received_list(shoal_tensor *const *tensors, size_t n_tensors)
{
    return op_capture_running() ? tensors : traced_wait_list(tensors, n_tensors);
}

/* Whether the op is not followed by a wait at once: it is waited for later, or never. */
static bool is_waited_later(const shoal_op *op)
{
    bool is_received = op == op_get(OP_irecv) || op == op_get(OP_batch_p2p_ops);
    return op == op_get(OP_isend) || (is_received && op_capture_running());
}

shoal_status shoal_op_call_collective(const shoal_op *op, const shoal_value *arguments, size_t n_arguments,
                                      shoal_value *result_out)
{
    TRY(shoal_op_call(op, arguments, n_arguments, result_out));
    if (!(op->flags & SHOAL_OP_COLLECTIVE) || is_waited_later(op) || !is_traced()) {
        return SHOAL_OK;
    }
    if (result_out->kind == SHOAL_VALUE_TENSOR) {
        result_out->as.tensor = traced_wait(result_out->as.tensor);
        return result_out->as.tensor ? SHOAL_OK : shoal_scope_error();
    }
    result_out->as.tensors = traced_wait_list(result_out->as.tensors, result_out->count);
    return result_out->as.tensors ? SHOAL_OK : shoal_scope_error();
}
