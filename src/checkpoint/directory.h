/* SPDX-License-Identifier: MIT */
/*
 * Directories of checkpoints: DIR/step-000001000 and so on, one directory each. One process at a time (the group's
 * first rank) works on names; others only write files into the directory that is being written.
 *
 *     DIR/.lock                    held (flock) by whoever saves
 *     DIR/.saving-ID               a save under way; once the lock is held, any other one is of a dead job, and is removed
 *     DIR/.removing-step-...       an old checkpoint that is being removed: renamed first, so that it is never half there
 *     DIR/.replaced-step-...       where two names cannot be exchanged at once: the old one of a step, while the new one
 *                                  takes its place. It counts as long as there is no new one.
 *     DIR/step-000001000           complete: it has shoal.index.json, or is a foreign checkpoint
 */
#ifndef CHECKPOINT_DIRECTORY_H
#define CHECKPOINT_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

struct directory_save {
    char *directory;
    char *saving; /* DIR/.saving-ID */
    char *target; /* DIR/step-... */
    int64_t step;
    int lock_fd;
    bool
        is_moved; /* `target` is the new one; if it replaced another, that one is `saving` now. It stays set if the
                      move was taken back, but not durably. */
};
#define DIRECTORY_SAVE_INIT \
    {                       \
        .lock_fd = -1       \
    }

/*
 * Makes DIR if there is none (with its parents), takes the lock, removes what dead saves left, and makes DIR/.saving-ID.
 * SHOAL_ERR_STATE: another job saves there, or (unless it replaces) the step is there already.
 */
shoal_status directory_save_begin(const char *directory, int64_t step, const char *id, bool replaces,
                                  struct directory_save *save_out);

/*
 * Everything in `saving` is durable: makes the directory itself durable, moves it into place, durably, removes the one
 * that it replaces, then of this step and those before it all but the `keep` newest (0: none are removed). Failing to remove old ones is not an error of
 * the save: the next one tries again. A move that cannot be made durable is an error, and is taken back.
 */
shoal_status directory_save_commit(struct directory_save *save, bool replaces, int keep);

/* Gives the lock back; without a commit what was written is removed. DIRECTORY_SAVE_INIT is allowed. */
void directory_save_end(struct directory_save *save);

/* The path of a checkpoint: the newest complete one in `directory` (or of that step, if it is not -1), or the directory
   itself, if that is one and has none in it. NULL in *path_out: there is none, or no such directory. Freed with
   mem_free. */
shoal_status directory_find(const char *directory, int64_t step, char **path_out);

#endif
