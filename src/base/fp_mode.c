/* SPDX-License-Identifier: MIT */
/* The public calls over fp_mode.h, for kernels outside of the library. */
#include "base/fp_mode.h"

#include "shoal/fp_mode.h"

uint64_t shoal_fp_mode_enter(void)
{
    return fp_mode_enter();
}

void shoal_fp_mode_leave(uint64_t mode)
{
    fp_mode_leave(mode);
}
