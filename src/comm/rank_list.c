/* SPDX-License-Identifier: MIT */
/* Writing lists of ranks. */
#include "comm/rank_list.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* More are counted instead. */
#define NAMED_MAX 8

static void append(char text[RANK_LIST_BYTES], const char *before, int number)
{
    size_t used = strlen(text);
    (void)snprintf(text + used, RANK_LIST_BYTES - used, "%s%d", before, number);
}

int rank_list_write(char text[RANK_LIST_BYTES], int n_ranks, bool (*is_in)(void *context, int rank),
                    void *context)
{
    int named[NAMED_MAX];
    int count = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        if (is_in(context, rank)) {
            if (count < NAMED_MAX) {
                named[count] = rank;
            }
            count++;
        }
    }
    int n_named = count < NAMED_MAX ? count : NAMED_MAX;
    (void)snprintf(text, RANK_LIST_BYTES, "%s", count == 1 ? "rank " : "ranks ");
    for (int i = 0; i < n_named; i++) {
        const char *before = i == 0 ? "" : (i == count - 1 ? " and " : ", ");
        append(text, before, named[i]);
    }
    if (count > n_named) {
        append(text, " and ", count - n_named);
        append(text, " more of ", n_ranks);
    }
    return count;
}
