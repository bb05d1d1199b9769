/* SPDX-License-Identifier: MIT */
/*
 * What is said when the program writes where it may only read. With SHOAL_EXPLAIN_FAULTS=1, a signal 11 at an
 * address of a known range first writes a line about that range to standard error; then the signal does what it would
 * have done: a core file, status 139. Only where nobody else has a handler for it. Without the option nothing is
 * installed, and the functions below do nothing.
 */
#ifndef BASE_EXPLAIN_FAULTS_H
#define BASE_EXPLAIN_FAULTS_H

#include <stddef.h>

enum {
    EXPLAIN_FAULTS_NONE = -1
};

/* Memory that the program may read, not write. Returns its number, or EXPLAIN_FAULTS_NONE if faults are not explained or
   there are too many ranges. */
int explain_faults_add(const void *data, size_t bytes);
/* What a write there is called; at most 255 characters. */
void explain_faults_name(int number, const char *text);
void explain_faults_remove(int number);

#endif
