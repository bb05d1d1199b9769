/* SPDX-License-Identifier: MIT */
/*
 * The built-in ops, one for each row of ops.def. Ops of rows OP are made by the first call of op_get. Those of rows
 * OP_OF_RANKS have their functions in a higher layer, which calls op_hand_in.
 */
#include <assert.h>
#include <pthread.h>

#include "op/rows.h"

static shoal_op builtin[OP_COUNT];
static pthread_once_t is_made = PTHREAD_ONCE_INIT;

void op_hand_in(const struct op_row *rows, size_t n_rows)
{
    for (size_t i = 0; i < n_rows; i++) {
        const struct op_row *row = &rows[i];
        shoal_op *op = &builtin[row->id];
        *op = (shoal_op){.name = row->name,
                         .signature = row->signature,
                         .doc = row->doc,
                         .flags = row->flags,
                         .index = (int)row->id,
                         .meta = row->meta,
                         .kernel = row->kernel,
                         .gradient = row->gradient};
        shoal_status status = op_parse_signature(op, row->saves);
        assert(status == SHOAL_OK);
        (void)status;
    }
}

static void make_ops(void)
{
    static const struct op_row rows[] = {
#define OP(id, signature, flags, meta, kernel, gradient, saves, doc) \
    OP_ROW(id, signature, flags, meta_##meta, run_##kernel, NULL, saves, doc),
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP
    };
    op_hand_in(rows, sizeof(rows) / sizeof(rows[0]));
#define WORKSPACE(op, function) builtin[OP_##op].workspace = workspace_##function;
#include "op/workspaces.def"
#undef WORKSPACE
}

const shoal_op *op_get(enum op_id id)
{
    (void)pthread_once(&is_made, make_ops);
    return &builtin[id];
}
