/* SPDX-License-Identifier: MIT */
#include "base/waited.h"

static _Thread_local uint64_t n_ticks;

uint64_t waited_ticks(void)
{
    return n_ticks;
}

void waited_add(uint64_t ticks)
{
    n_ticks += ticks;
}
