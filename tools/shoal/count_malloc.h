/* SPDX-License-Identifier: MIT */
/*
 * Calls of malloc and its relatives, counted: the functions of this program come before those of the C library, whoever calls
 * them. Those of a BLAS are left out, which is a library with "blas" in its name.
 */
#ifndef COUNT_MALLOC_H
#define COUNT_MALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* False: nothing is counted, because a sanitizer has taken these functions, or the C library is another. */
bool count_malloc_works(void);

/* Counts from now on, on all threads of the process, beginning with 0. */
void count_malloc_begin(void);
/* How many there were. */
uint64_t count_malloc_end(void);

#endif
