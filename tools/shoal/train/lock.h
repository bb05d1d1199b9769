/* SPDX-License-Identifier: MIT */
/*
 * One run at a time saves into a directory of checkpoints: two would remove each other's. Rank 0 locks DIR/.run for as
 * long as the run lasts. The kernel drops the lock with the process, so a run that was killed can be resumed at once.
 * The file says who holds it. Nobody who only reads checkpoints asks for it.
 */
#ifndef TRAIN_LOCK_H
#define TRAIN_LOCK_H

#include "shoal/status.h"

struct train_lock;

/*
 * Makes the directory, if there is none, and locks it. SHOAL_ERR_STATE: another run holds it; the text says which
 * process that is. Where the file system has no locks, others have none either, and the call succeeds without one.
 */
shoal_status train_lock_take(const char *directory, struct train_lock **lock_out);

/* Removes the file, and directories that the call above has made and nobody has used. NULL is allowed. */
void train_lock_free(struct train_lock *lock);

#endif
