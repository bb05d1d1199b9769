/* SPDX-License-Identifier: MIT */
/*
 * Directories of checkpoints: DIR/step-000001000 and so on, one directory each. One process at a time (the group's
 * first rank) works on names; others only write files into the directory that is being written.
 *
 *     DIR/.lock                    held (flock) by whoever saves
 *     DIR/.saving-ID               a save under way. Whoever holds the lock removes any other one: its job is dead.
 *     DIR/.removing-step-...       an old checkpoint that is being removed; renamed first, so it is never half there
 *     DIR/.replaced-step-...       if two names cannot be exchanged at once: the old checkpoint of a step, while the
 *                                  new one takes its place. It counts as long as there is no new one.
 *     DIR/step-000001000           complete: it has shoal.index.json, or is a foreign checkpoint
 */
#ifndef CHECKPOINT_DIRECTORY_H
#define CHECKPOINT_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

/* How many checkpoints stay. One that is seen to be damaged stays, too, unless there are enough newer ones that are
   not. */
struct directory_keep {
    int count;                            /* 0: all */
    bool (*is_damaged)(const char *path); /* NULL: none is */
};

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
 * Makes DIR if there is none (with its parents), takes the lock, removes what dead saves left, and makes
 * DIR/.saving-ID. SHOAL_ERR_STATE: another job saves there, or (unless it replaces) the step is there already.
 */
shoal_status directory_save_begin(const char *directory, int64_t step, const char *id, bool replaces,
                                  struct directory_save *save_out);

/*
 * Everything in `saving` is durable: makes the directory itself durable, moves it into place, durably, removes the one
 * that it replaces, then of this step and those before it all but the newest that are kept. Failing to remove old ones
 * is not an error of the save: the next one tries again. A move that cannot be made durable is an error, and is taken
 * back.
 */
shoal_status directory_save_commit(struct directory_save *save, bool replaces,
                                   const struct directory_keep *keep);

/* Gives the lock back; without a commit what was written is removed. DIRECTORY_SAVE_INIT is allowed. */
void directory_save_end(struct directory_save *save);

/* The step in the name of a checkpoint's directory; -1: it has another name. */
int64_t directory_step(const char *path);

/* The steps of complete checkpoints in `directory`, ascending, each once. None is no error, and neither is no such
   directory; the directory itself is not looked at. There is room for one more. Freed with mem_free. */
shoal_status directory_list(const char *directory, int64_t **steps_out, size_t *n_steps_out);

/*
 * The path of a checkpoint: of the complete ones in `directory` with a step from `least` to `most` the newest, whose
 * step is in *step_out; or the directory itself, with step -1, if that is one and has no complete one in it. NULL in
 * *path_out: there is none, or no such directory. Freed with mem_free.
 */
shoal_status directory_find(const char *directory, int64_t least, int64_t most, char **path_out,
                            int64_t *step_out);

#endif
