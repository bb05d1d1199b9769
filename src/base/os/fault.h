/* SPDX-License-Identifier: MIT */
/*
 * Test builds only: calls of base/os that fail on purpose. Calls that can fail are counted, of all kinds and threads
 * together; the armed one does nothing and gives the armed error. Tests arm, run the code until the count is below the
 * armed number, and so try every one.
 */
#ifndef BASE_OS_FAULT_H
#define BASE_OS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef SHOAL_FAIL_POINTS

/* Counts from 1 again; call `number` fails with `code`, an errno. 0 arms nothing, and only counts. */
void os_fault_arm(uint64_t number, int code);
uint64_t os_fault_count(void);
/* What the call that failed was for; "" when none has. */
const char *os_fault_name(void);

/* Sets errno, and returns true, when this call shall fail. */
bool os_fault(const char *name);

#else

static inline bool os_fault(const char *name)
{
    (void)name;
    return false;
}

#endif

#endif
