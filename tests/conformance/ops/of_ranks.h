/* SPDX-License-Identifier: MIT */
/* Which rows of ops.def need a group, or wait for one: they have tests of their own, functional_*_test.c. */
#ifndef CONFORMANCE_OF_RANKS_H
#define CONFORMANCE_OF_RANKS_H

#include "op/op.h"

static inline bool is_of_ranks(enum op_id id)
{
    static const bool rows[OP_COUNT] = {
#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) [OP_##name] = false,
#define OP_OF_RANKS(name, signature, flags, meta, kernel, gradient, saves, doc) [OP_##name] = true,
#include "op/ops.def"
#undef OP
    };
    return rows[id];
}

#endif
