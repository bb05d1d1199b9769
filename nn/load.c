/* SPDX-License-Identifier: MIT */
/* Of the shared library only: whoever loads it has the ops, also `shoal opt --load`, which calls none of its functions. */
#include "ops.h"

/* What fails here is tried again, and told, by the first call that needs an op. */
__attribute__((constructor)) static void register_ops(void)
{
    (void)nn_register_ops();
}
