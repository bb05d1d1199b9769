/* SPDX-License-Identifier: MIT */
/* Damage of checkpoints that can be seen without reading their data. */
#ifndef CHECKPOINT_INDEX_DAMAGE_H
#define CHECKPOINT_INDEX_DAMAGE_H

#include <stdbool.h>

/*
 * Whether the index of the checkpoint in that directory cannot be read, or names a file that is missing or has another
 * size. False for checkpoints that are not examined: without an index, of a later version, with a very large index, or
 * if there is no memory. The last error is undefined afterwards.
 */
bool damage_is_seen(const char *directory);

#endif
