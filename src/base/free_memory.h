/* SPDX-License-Identifier: MIT */
/* How much memory could be taken now without the kernel ending a process for it. */
#ifndef BASE_FREE_MEMORY_H
#define BASE_FREE_MEMORY_H

#include <stdint.h>

/*
 * The least of what the machine has available and what the limits of this process's control groups leave, less
 * a sixteenth. UINT64_MAX when nothing can be learned.
 */
uint64_t free_memory_bytes(void);

#endif
