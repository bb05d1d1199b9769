/* SPDX-License-Identifier: MIT */
/*
 * Numbered places where a test can make something happen: in builds with SHOAL_FAIL_POINTS every passage of a
 * FAIL_POINT counts up, and the armed action runs at the armed number. Elsewhere they compile to nothing.
 *
 * A test counts the passages of a clean run, then runs it again for k = 1..n with "kill me", "stop" or
 * "return an error" armed at k.
 */
#ifndef BASE_FAIL_POINT_H
#define BASE_FAIL_POINT_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/try.h"
#include "shoal/status.h"

#ifdef SHOAL_FAIL_POINTS

/* What the armed action makes of a passage; SHOAL_OK lets it go on. */
typedef shoal_status (*fail_point_action)(void *context, const char *name);

/* Passages are counted from 1 again; 0 arms nothing and only counts. Not while other threads pass points. */
void fail_point_arm(uint64_t number, fail_point_action action, void *context);
uint64_t fail_point_passages(void);
shoal_status fail_point_pass(const char *name);

/* From now on only requests to the system are counted, and the other points do nothing; false ends that. */
void fail_point_count_only_requests(bool is_only);
shoal_status fail_point_pass_request(const char *name);

/* Returns from the function when the armed action says so. */
#define FAIL_POINT(name) TRY(fail_point_pass(name))

/* For a request to the system: 0, or the errno that the armed action has set before it failed. */
#define FAIL_POINT_CODE(name) (fail_point_pass_request(name) == SHOAL_OK ? 0 : errno)

#else

#define FAIL_POINT(name) ((void)0)
#define FAIL_POINT_CODE(name) 0

#endif

#endif
