/* SPDX-License-Identifier: MIT */
/*
 * Ranks end each phase of a save or load together: every rank tells whether its part succeeded, and all get the status
 * and text of the first rank that failed. So an error of one rank is an error on all ranks.
 *
 * This uses small collectives of the group; a dead peer or a missed deadline is their error.
 */
#ifndef CHECKPOINT_RANKS_AGREE_H
#define CHECKPOINT_RANKS_AGREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/group.h"
#include "shoal/status.h"

/*
 * Collective. `status` is what this rank's part of the phase returned, with its error text if it is not SHOAL_OK.
 * Returns SHOAL_OK on all ranks or an error on all of them: a rank that failed keeps its own error, the others get
 * the first failed rank's with its number ("rank 2: ..."). `phase` is for texts and is compared.
 */
shoal_status agree(shoal_group *group, const char *phase, shoal_status status);

/* Numbers that must be the same on all ranks, with the names that errors give them: "options.keep". */
struct agree_number {
    const char *name;
    int64_t value;
};
#define AGREE_MAX_NUMBERS 16

/* Collective. A difference is SHOAL_ERR_MISMATCH on all ranks, with the name, the first rank whose number differs from
   the first rank's, and both values. All ranks have the same names. */
shoal_status agree_on_numbers(shoal_group *group, const struct agree_number *numbers, size_t n_numbers);

/* Collective. The same for a string, which may be NULL. */
shoal_status agree_on_string(shoal_group *group, const char *name, const char *value);

/* Collective. The same for bytes. The error names `what`, and the first rank whose bytes differ from the first
   rank's. */
shoal_status agree_on(shoal_group *group, const char *what, const void *data, size_t bytes);

/* Collective. Gives all ranks the bytes of the group's first rank; `data` of other ranks is ignored. *data_out is freed
   with mem_free. */
shoal_status agree_receive(shoal_group *group, const void *data, size_t bytes, void **data_out,
                           size_t *bytes_out);

/*
 * Collective. Gathers bytes of every rank, each of any number. `only_first`: only the group's first rank gets them,
 * others get NULL. The bytes of rank r are those from offsets[r] to offsets[r + 1]. Both are freed with mem_free.
 */
shoal_status agree_collect(shoal_group *group, const void *data, size_t bytes, bool only_first,
                           char **data_out, uint64_t **offsets_out);

#endif
