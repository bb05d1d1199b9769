/* SPDX-License-Identifier: MIT */
/* Lists of names in options. */
#include <ctype.h>
#include <string.h>

#include "base/try.h"
#include "graph/passes/passes.h"

shoal_status pass_each_name(const char *names, pass_visit visit, void *context)
{
    while (names && *names) {
        size_t bytes = strcspn(names, ",");
        const char *name = names;
        names += bytes + (names[bytes] == ',' ? 1 : 0);
        while (bytes > 0 && isspace((unsigned char)name[0])) {
            name++;
            bytes--;
        }
        while (bytes > 0 && isspace((unsigned char)name[bytes - 1])) {
            bytes--;
        }
        if (bytes > 0) {
            TRY(visit(context, name, bytes));
        }
    }
    return SHOAL_OK;
}
