/* SPDX-License-Identifier: MIT */
/*
 * Names, reaches and messages of statuses, from the rows of status.def. The compiler keeps the rows and the
 * public enum equal: a row without a value fails its assertion, a value without a row fails the switch.
 */
#include "base/status.h"

#include <stddef.h>

struct status_row {
    const char *name;
    shoal_reach reach;
    const char *message;
};

static const struct status_row rows[] = {
#define STATUS(row_name, row_reach, row_message) \
    {.name = "SHOAL_" #row_name, .reach = SHOAL_REACH_##row_reach, .message = row_message},
#include "base/status.def"
#undef STATUS
};

enum row_index {
#define STATUS(row_name, row_reach, row_message) ROW_##row_name,
#include "base/status.def"
#undef STATUS
};

#define STATUS(row_name, row_reach, row_message)                  \
    _Static_assert((int)SHOAL_##row_name == -(int)ROW_##row_name, \
                   "row k of status.def must have the value -k: SHOAL_" #row_name);
#include "base/status.def"
#undef STATUS

/* An error in every build; without a default clang knows it by the second name only. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wswitch-enum"
#pragma GCC diagnostic error "-Wswitch"
/* NULL for a number that is no status: callers may pass what they read from elsewhere. */
static const struct status_row *find_row(shoal_status status)
{
    switch (status) {
#define STATUS(row_name, row_reach, row_message) \
    case SHOAL_##row_name:                       \
        return &rows[ROW_##row_name];
#include "base/status.def"
#undef STATUS
    }
    return NULL;
}
#pragma GCC diagnostic pop

bool status_is_known(shoal_status status)
{
    return find_row(status) != NULL;
}

shoal_reach shoal_status_reach(shoal_status status)
{
    const struct status_row *row = find_row(status);
    /* Nobody knows what an unknown failure ruined. */
    return row ? row->reach : SHOAL_REACH_PROCESS;
}

const char *shoal_status_name(shoal_status status)
{
    const struct status_row *row = find_row(status);
    return row ? row->name : "SHOAL_ERR_?";
}

const char *shoal_status_message(shoal_status status)
{
    const struct status_row *row = find_row(status);
    return row ? row->message : "This number is not a status of the library.";
}
