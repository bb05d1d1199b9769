/* SPDX-License-Identifier: MIT */
/* Ranks in a text: "rank 3", "ranks 1, 4 and 5", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more". */
#ifndef BASE_RANK_LIST_H
#define BASE_RANK_LIST_H

#include <stdbool.h>

#define RANK_LIST_BYTES 128

/* Writes those for which `is_in` holds, and returns how many there are. */
int rank_list_write(char text[RANK_LIST_BYTES], int n_ranks, bool (*is_in)(void *context, int rank),
                    void *context);

#endif
