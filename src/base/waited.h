/* SPDX-License-Identifier: MIT */
/*
 * How long the calling thread has been in communication: waiting for a collective, or carrying one itself. It does not
 * compute during that time, so this is exposed communication. It is always counted, in ticks of clock_ticks.
 */
#ifndef BASE_WAITED_H
#define BASE_WAITED_H

#include <stdint.h>

/* Since the thread began. */
uint64_t waited_ticks(void);

void waited_add(uint64_t ticks);

#endif
