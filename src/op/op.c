/* SPDX-License-Identifier: MIT */
/* The public calls that describe an op. */
#include "op/op.h"

#include "base/error.h"
#include "base/struct_size.h"

const char *shoal_op_name(const shoal_op *op)
{
    return op ? op->name : "";
}

shoal_status shoal_op_describe(const shoal_op *op, shoal_op_info *info_out)
{
    error_clear();
    if (!op) {
        return error_set(SHOAL_ERR_INVALID, "op_describe: op is NULL");
    }
    const shoal_op_info info = {
        .name = op->name, .signature = op->signature, .doc = op->doc, .flags = op->flags};
    return struct_size_write("op_describe: info_out", info_out, sizeof(size_t), &info, sizeof(info));
}
