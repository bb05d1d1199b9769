/* SPDX-License-Identifier: MIT */
/* A collective that the user names. */
#include "common/tool.h"

#include <string.h>

bool tool_find_collective(const char *name, enum collective_kind *kind_out)
{
    for (int i = 0; i < COLLECTIVE_COUNT; i++) {
        if (strcmp(collective_rows[i].name, name) == 0) {
            *kind_out = (enum collective_kind)i;
            return true;
        }
    }
    return false;
}
