/* SPDX-License-Identifier: MIT */
/*
 * Counts calls of malloc and its relatives. This program defines these functions itself, and its definitions take
 * precedence over the C library's, whoever calls them. Calls from a library with "blas" in its name are not counted.
 */
#ifndef COMMON_COUNT_MALLOC_H
#define COMMON_COUNT_MALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* False: nothing is counted, because a sanitizer has taken these functions, or the C library is another. */
bool count_malloc_works(void);

/* Counts from now on, on all threads of the process, beginning with 0. */
void count_malloc_begin(void);
/* How many there were. */
uint64_t count_malloc_end(void);

#endif
