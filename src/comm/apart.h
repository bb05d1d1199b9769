/* SPDX-License-Identifier: MIT */
/* Checks that, among buffers that are used at the same time, those that are written overlap no other one. */
#ifndef COMM_APART_H
#define COMM_APART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct apart_interval {
    uintptr_t begin;
    uintptr_t end;
    size_t number; /* whose it is; those of one number may overlap */
    bool is_written;
};

/* Sorts them. SHOAL_ERR_INVALID, "WHAT 0 and 2 overlap", when one that is written touches another number's. */
shoal_status apart_check(const char *what, struct apart_interval *intervals, size_t n);

#endif
