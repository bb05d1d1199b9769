/* SPDX-License-Identifier: MIT */
/* shoal_reduced_gradients_part: how a hook finds the gradients of single parameters in what was reduced. */
#include "base/error.h"
#include "base/struct_size.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "shoal/fsdp_comm.h"

/* The parameter of that number among those that were reduced; NULL if there are fewer. */
static const struct fsdp_param *find_part(const struct fsdp_unit *unit, size_t index)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced && index-- == 0) {
            return param;
        }
    }
    return NULL;
}

shoal_status shoal_reduced_gradients_part(const shoal_reduced_gradients *reduced, size_t index,
                                          shoal_reduced_part *part_out)
{
    error_clear();
    if (!reduced || !reduced->layout) {
        return error_set(SHOAL_ERR_INVALID,
                         "reduced_gradients_part: reduced is %s; it is what an all-reduce hook was given",
                         reduced ? "without a layout" : "NULL");
    }
    const struct fsdp_unit *unit = reduced->layout;
    const struct fsdp_param *param = find_part(unit, index);
    if (!param) {
        return error_set(SHOAL_ERR_INVALID,
                         "reduced_gradients_part: index: %zu is not one of the %zu parts of %s", index,
                         reduced->n_parts, unit->name);
    }
    shoal_reduced_part part = SHOAL_REDUCED_PART_INIT;
    part.name = param->name;
    part.data = (char *)reduced->data + param->output_offset;
    part.count = param->shard_count;
    return struct_size_write("reduced_gradients_part: part_out", part_out, sizeof(size_t), &part,
                             sizeof part);
}
