/* SPDX-License-Identifier: MIT */
/* Checks that, among buffers that are used at the same time, those that are written overlap no other one. */
#ifndef COMM_CALL_APART_H
#define COMM_CALL_APART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct apart_interval {
    uintptr_t begin;
    uintptr_t end;
    size_t number; /* the part that it belongs to; buffers of one part may overlap */
    bool is_written;
};

/* Sorts the intervals. SHOAL_ERR_INVALID, "WHAT 0 and 2 overlap, and one is written", if a buffer that is written
   overlaps one with another number. */
shoal_status apart_check(const char *what, struct apart_interval *intervals, size_t n);

#endif
