/* SPDX-License-Identifier: MIT */
/*
 * Test builds only: makes calls of base/os fail on purpose. All calls that can fail are counted, of all kinds and
 * threads together; the armed one does nothing and returns the armed error. Tests arm call 1, 2, 3, ... and run the
 * code each time, until it makes fewer calls than that; so every call fails once.
 */
#ifndef BASE_OS_FAULT_H
#define BASE_OS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef SHOAL_FAIL_POINTS

/* Counts from 1 again; call `number` fails with `code`, an errno. 0 arms nothing, and only counts. */
void os_fault_arm(uint64_t number, int code);
/* Every call of this kind fails with `code`, until a NULL name is armed. The name is kept, not copied. */
void os_fault_arm_kind(const char *name, int code);
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
