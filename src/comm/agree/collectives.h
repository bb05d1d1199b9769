/* SPDX-License-Identifier: MIT */
/* The collectives of an agreement. */
#ifndef COMM_AGREE_COLLECTIVES_H
#define COMM_AGREE_COLLECTIVES_H

#include "comm/agree/agree.h"

/* Each number becomes the smallest of all ranks. */
shoal_status agree_find_least(const struct agreement *agreement, int64_t *numbers, size_t n_numbers);
/* Gives all ranks the bytes of all. */
shoal_status agree_gather_into(const struct agreement *agreement, const void *mine, size_t bytes, void *all);

#endif
