/* SPDX-License-Identifier: MIT */
/* What the library takes from the heap, counted in the table that it allocates from. */
#ifndef COMMON_COUNT_HEAP_H
#define COMMON_COUNT_HEAP_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

/* Before the library is used. */
shoal_status count_heap_begin(void);

/* How often memory was asked for. */
uint64_t count_heap_calls(void);
/* Bytes that the library has now, and the most that it had at once since the beginning or the last restart. */
size_t count_heap_live(void);
size_t count_heap_peak(void);
/* The peak is what is live now. Only while no other thread allocates. */
void count_heap_restart(void);

#endif
