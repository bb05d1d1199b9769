/* SPDX-License-Identifier: MIT */
/* Damage of checkpoints that can be seen without reading their data. */
#ifndef CHECKPOINT_DAMAGE_H
#define CHECKPOINT_DAMAGE_H

#include <stdbool.h>

/*
 * Whether the index of the checkpoint in that directory cannot be read, or names a file that is not there or has
 * another size. Checkpoints without an index, of a later version or with a very large index are not looked at, and
 * neither is one for which there is no memory: false. The last error is undefined afterwards.
 */
bool damage_is_seen(const char *directory);

#endif
