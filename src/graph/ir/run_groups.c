/* SPDX-License-Identifier: MIT */
#include "graph/ir/run_groups.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/try.h"

#define TAG_PREFIX "graph:"
#define TAG_BYTES 65      /* the longest tag, with the zero at its end */
#define TAG_NAME_BYTES 58 /* the longest name that fits behind the prefix */
#define TAG_CUT_BYTES 41  /* a longer name is cut to this, and followed by '~' and its hash */

/* Names contain no '~', so a short name never equals one that was cut. */
static void write_tag(char tag[TAG_BYTES], const char *name)
{
    size_t n_bytes = strlen(name);
    if (n_bytes <= TAG_NAME_BYTES) {
        (void)snprintf(tag, TAG_BYTES, TAG_PREFIX "%s", name);
        return;
    }
    (void)snprintf(tag, TAG_BYTES, TAG_PREFIX "%.*s~%016" PRIx64, TAG_CUT_BYTES, name,
                   hash_bytes(0, name, n_bytes));
}

shoal_status run_group_list(const struct graph_group *row, int self, int n_ranks, const int **list_out)
{
    const int *list = NULL;
    for (size_t i = 0; i < row->n_lists * row->size; i++) {
        if (n_ranks > 0 && row->ranks[i] >= n_ranks) {
            return error_set(SHOAL_ERR_INVALID, "group @%.64s has rank %d, but the world has %d rank%s",
                             row->name, row->ranks[i], n_ranks, n_ranks == 1 ? "" : "s");
        }
        if (row->ranks[i] == self) {
            list = row->ranks + i / row->size * row->size;
        }
    }
    if (!list) {
        return error_set(SHOAL_ERR_INVALID, "group @%.64s does not have this rank, %d", row->name, self);
    }
    *list_out = list;
    return SHOAL_OK;
}

shoal_status run_group_create(shoal_world *world, const char *name, const int *list, size_t size,
                              shoal_group **group_out)
{
    char tag[TAG_BYTES];
    write_tag(tag, name);
    shoal_status status = shoal_group_create(world, list, (int)size, tag, group_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "group @%.64s", name);
}
