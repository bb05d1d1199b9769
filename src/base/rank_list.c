/* SPDX-License-Identifier: MIT */
/* Writing lists of ranks. */
#include "base/rank_list.h"

#include "base/text.h"

/* More are counted instead. */
#define NAMED_MAX 8

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
    struct text list = text_begin(text, RANK_LIST_BYTES);
    text_add(&list, "%s", count == 1 ? "rank " : "ranks ");
    for (int i = 0; i < n_named; i++) {
        const char *before = i == 0 ? "" : (i == count - 1 ? " and " : ", ");
        text_add(&list, "%s%d", before, named[i]);
    }
    if (count > n_named) {
        text_add(&list, " and %d more of %d", count - n_named, n_ranks);
    }
    return count;
}
