/* SPDX-License-Identifier: MIT */
#include "parallel/functional.h"

#include "collective/rows.h"
#include "op/box.h"
#include "op/tracer.h"
#include "shoal/collective.h"
#include "shoal/ops.h"
#include "tensor/scope.h"

/* Tells a capture what the call is for. */
static bool label(shoal_group *group, const char *what)
{
    struct op_tracer *tracer = op_capture_running();
    shoal_status status = tracer ? tracer->capture->label(tracer, group, what) : SHOAL_OK;
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return status == SHOAL_OK;
}

static shoal_tensor *call(enum op_id id, const shoal_value *arguments, size_t n_arguments)
{
    shoal_value result;
    collective_hand_in();
    return shoal_op_call_collective(op_get(id), arguments, n_arguments, &result) == SHOAL_OK
               ? result.as.tensor
               : NULL;
}

/* The factor is the last argument of a row, and is left out if the operator does not use it. */
static size_t count_given(size_t n_arguments, struct functional_reduce reduce)
{
    return reduce.op == SHOAL_PREMUL_SUM ? n_arguments : n_arguments - 1;
}

shoal_tensor *functional_all_reduce(shoal_tensor *tensor, struct functional_reduce reduce, shoal_group *group,
                                    const char *what)
{
    const shoal_value arguments[] = {box_tensor(tensor), box_string(shoal_reduce_op_name(reduce.op)),
                                     box_group(group), box_float(reduce.factor)};
    if (!label(group, what)) {
        return NULL;
    }
    return call(OP_all_reduce, arguments, count_given(BOX_COUNT(arguments), reduce));
}

shoal_tensor *functional_reduce_scatter(shoal_tensor *tensor, struct functional_reduce reduce, int64_t dim,
                                        shoal_group *group, const char *what)
{
    const shoal_value arguments[] = {box_tensor(tensor), box_string(shoal_reduce_op_name(reduce.op)),
                                     box_int(dim), box_group(group), box_float(reduce.factor)};
    if (!label(group, what)) {
        return NULL;
    }
    return call(OP_reduce_scatter_tensor, arguments, count_given(BOX_COUNT(arguments), reduce));
}

shoal_tensor *functional_all_gather(shoal_tensor *tensor, int64_t dim, shoal_group *group, const char *what)
{
    if (!label(group, what)) {
        return NULL;
    }
    return dim == 0
               ? call(OP_all_gather_into_tensor, BOX_LIST(box_tensor(tensor), box_group(group)))
               : call(OP_all_gather_tensor, BOX_LIST(box_tensor(tensor), box_int(dim), box_group(group)));
}

shoal_tensor *functional_broadcast(shoal_tensor *tensor, int root, shoal_group *group, const char *what)
{
    if (!label(group, what)) {
        return NULL;
    }
    return call(OP_broadcast, BOX_LIST(box_tensor(tensor), box_int(root), box_group(group)));
}

shoal_tensor *functional_cast(shoal_tensor *tensor, shoal_dtype dtype)
{
    return tensor && tensor->dtype == dtype ? tensor : shoal_to_dtype(tensor, dtype);
}
