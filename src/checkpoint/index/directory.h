/* SPDX-License-Identifier: MIT */
/*
 * Directories of checkpoints: DIR/step-000001000 and so on, one directory each. One process at a time (the group's
 * first rank) works on names; others only write files into the directory that is being written.
 *
 *     DIR/.lock                    held (flock) by whoever saves
 *     DIR/.saving-ID               a save under way. Whoever holds the lock removes all others: their jobs are dead.
 *     DIR/.removing-step-...       an old checkpoint that is being removed: renamed first, so that nobody reads it
 *     DIR/.replaced-step-...       on file systems that cannot exchange two names: the old checkpoint of a step, while
 *                                  the new one takes its place. It is used as long as there is no new one.
 *     DIR/step-000001000           complete: it has shoal.index.json, or is a foreign checkpoint
 */
#ifndef CHECKPOINT_INDEX_DIRECTORY_H
#define CHECKPOINT_INDEX_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

/* How many checkpoints stay. Damaged ones do not count: they stay until there are enough newer ones without damage. The
   same holds for symbolic links, of which only the link is removed. */
struct directory_keep {
    int count;                            /* 0 means all */
    bool (*is_damaged)(const char *path); /* NULL if none is */
};

struct directory_save {
    char *directory;
    char *saving; /* DIR/.saving-ID */
    char *target; /* DIR/step-... */
    int64_t step;
    int lock_fd;
    /* `target` is the new checkpoint; if it replaced another one, that is in `saving` now. Stays true if the move was
       undone, but not durably. */
    bool is_moved;
};
#define DIRECTORY_SAVE_INIT \
    {                       \
        .lock_fd = -1       \
    }

/*
 * Makes DIR if there is none (with its parents), takes the lock, removes what dead saves left, and makes
 * DIR/.saving-ID. SHOAL_ERR_STATE: another job saves there, or the step exists already and `replaces` is false.
 */
shoal_status directory_save_begin(const char *directory, int64_t step, const char *id, bool replaces,
                                  struct directory_save *save_out);

/*
 * Call when all files in `saving` are durable. Makes the directory itself durable, moves it into place durably, removes
 * the checkpoint that it replaces, and then old checkpoints: of this step and earlier ones, the newest stay. If an old
 * one cannot be removed, that is not an error of the save; the next save tries again. If the move cannot be made
 * durable, that is an error, and the move is undone.
 */
shoal_status directory_save_commit(struct directory_save *save, bool replaces,
                                   const struct directory_keep *keep);

/* Releases the lock. Without a commit, removes what was written. DIRECTORY_SAVE_INIT is allowed. */
void directory_save_end(struct directory_save *save);

/* The step in the name of a checkpoint's directory; -1 if it has another name. */
int64_t directory_step(const char *path);

/* The steps of complete checkpoints in `directory`, ascending, each once. It is no error if there are none, or no such
   directory. A directory that is a checkpoint itself does not count. The array has room for one more; it is freed with
   mem_free. */
shoal_status directory_list(const char *directory, int64_t **steps_out, size_t *n_steps_out);

/*
 * The path of the newest complete checkpoint in `directory` with a step from `least` to `most`; *step_out is its step.
 * If there is no complete one, but the directory is a checkpoint itself, gives the directory, with step -1. NULL in
 * *path_out: there is none, or no such directory. Freed with mem_free.
 */
shoal_status directory_find(const char *directory, int64_t least, int64_t most, char **path_out,
                            int64_t *step_out);

#endif
