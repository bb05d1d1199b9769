/* SPDX-License-Identifier: MIT */
/*
 * Checkpoints: a list of items (shoal/items.h) as files in a directory, and back, on any number of ranks, however
 * they share the model.
 *
 *     shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
 *     options.step = step;
 *     options.keep = 3;
 *     status = shoal_checkpoint_save(group, "run7", items, &options);            run7/step-000001000
 *
 *     shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
 *     status = shoal_checkpoint_load(group, "run7", items, &how, &found);        the newest that is complete
 *
 * Two formats. *Pieces*: each rank writes its own parts into a file of its own, in which tensors are named
 * "NAME@BEGIN+LENGTH,BEGIN+LENGTH", so that no other tool takes one for a whole tensor. *Whole*:
 * model-00001-of-0000n.safetensors and model.safetensors.index.json, or model.safetensors if one file is enough, as
 * other tools write and read them; other sections likewise, under their names. Aliases are in the metadata of whole
 * files, alias to name. Both have shoal.index.json beside them: what is where, sums of all data in
 * blocks of 1 MiB, numbers and strings, and the id of the save, which each file has, too. It is written last. A load
 * reads either format, and also whole files of other tools, which have no shoal.index.json and no sums.
 *
 * Each byte is written by one rank: those that have the same part share the work. Besides its shards a rank needs at
 * most 64 MiB (a save in the background: and a copy of what it writes), and the description of the checkpoint: about 1
 * KiB for each part that some rank has of some tensor, and 100 bytes for each block. A load reads only what the rank
 * needs, with whole blocks at both ends of it.
 *
 * A save is complete or absent: it is written beside its place, and moved there when all ranks have written theirs and
 * all of it has reached the disk. If a disk is full, all ranks get an error, and what was there before still is; the
 * save can be tried again on the same group. If a rank dies, the others get an error, and what was there before or the
 * new one is there. What remains of a save that died is removed by the next one. Of two saves to one directory at the
 * same time, of two jobs or of one in the background and another one, the second is SHOAL_ERR_STATE (on file systems
 * that know flock).
 *
 * A load looks at everything that it needs before it changes anything: values stay as they are on all ranks if any
 * rank finds a file that is damaged, cut off, of another save or a later version, names that do not fit, or a tensor
 * that cannot be written. Only if a file fails after that look are values undefined, and the error says so. If a
 * function of shoal_items_on_loaded refuses the values, they stay as they were loaded, except for what it puts right.
 *
 * Ranks: all ranks of the group make the call with the same directory, list and options; a difference is
 * SHOAL_ERR_MISMATCH on all of them. All see the same files: a directory that is not shared between the hosts of a
 * group is an error.
 * Meshes: the group is that of all ranks that have a part of the model, replicas included, not that of one dimension.
 * For a mesh of all ranks of the world it is shoal_world_group(world), for any other one
 *
 *     shoal_mesh_flatten(mesh, "all", &flat);
 *     shoal_group *group = shoal_mesh_group(flat, 0);                            shoal_mesh_free(flat) may follow
 *
 * Ownership: lists stay the caller's, and their values must not be changed during a call.
 * Threads: one call at a time on a group, waits included; a save in the background has a thread of its own.
 * Deadlines: ranks wait for each other after each phase, as long as for any operation of the group (timeout_s of
 * shoal/world.h). Where one rank may need longer than another by that much, to write its files, say, set a longer one.
 * Errors: status and text that names the file and what is wrong with it, on all ranks.
 */
#ifndef SHOAL_CHECKPOINT_H
#define SHOAL_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/items.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef enum shoal_checkpoint_format {
    SHOAL_CHECKPOINT_PIECES = 0,
    SHOAL_CHECKPOINT_WHOLE = 1
} shoal_checkpoint_format;

/*
 * How far a run has come. A run that goes on with another number of samples in a step, n_ranks x batch x n_accumulate,
 * is another run; one on other ranks that share as many is not. These three are said together; zeros: not said.
 */
typedef struct shoal_checkpoint_progress {
    int64_t n_ranks;      /* that share a batch */
    int64_t batch;        /* samples of a rank in one backward */
    int64_t n_accumulate; /* backwards in a step */
    int64_t sample;       /* the first one, of all, that was not used yet */
} shoal_checkpoint_progress;

typedef struct shoal_checkpoint_options {
    size_t struct_size; /* sizeof(shoal_checkpoint_options) */
    int64_t step;       /* names the checkpoint: not negative */
    shoal_checkpoint_format format;
    bool replaces; /* a checkpoint of that step; otherwise it is an error if there is one */
    /* Of this one and those of earlier steps so many stay, the newest; 0: all. Those of later steps always stay. One
       whose index cannot be read, or whose files are missing or of another size, does not count, and stays until there
       are enough newer ones. */
    int keep;
    size_t max_file_bytes;              /* whole: data of one file; 0: 5 GB. A tensor is never cut. */
    shoal_checkpoint_progress progress; /* zeros: not said */
    bool fails_if_busy; /* of save_start: while one is under way; otherwise it waits for that one */
} shoal_checkpoint_options;
#define SHOAL_CHECKPOINT_OPTIONS_INIT SHOAL_SIZED(shoal_checkpoint_options)

/* Collective. Options may be NULL: step 0. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_checkpoint_save(shoal_group *group, const char *directory,
                                                              const shoal_items *items,
                                                              const shoal_checkpoint_options *options);

/* In the background ---------------------------------------------------------------------------------------- */

typedef struct shoal_checkpoint_saving shoal_checkpoint_saving;

/*
 * Collective: copies what this rank has to write, and returns; a thread writes it while the program goes on. Values
 * may be changed and the list may be freed as soon as it has returned, and so may the working directory be changed.
 * Ranks agree on the end among themselves. Closing the world waits for the end first, and returns the error of a save
 * that has failed; save_wait is called all the same, before or after that. If ranks lose each other in the background
 * (one needs longer than the deadline), that save fails, and the group and the next save go on; after eight such saves
 * a start on this group is SHOAL_ERR_STATE.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_checkpoint_save_start(shoal_group *group, const char *directory,
                                                                    const shoal_items *items,
                                                                    const shoal_checkpoint_options *options,
                                                                    shoal_checkpoint_saving **saving_out);
/* Whether it has ended, well or not. */
SHOAL_API bool shoal_checkpoint_save_test(const shoal_checkpoint_saving *saving);
/* Waits for its end, returns its status and frees it. NULL is SHOAL_OK. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_checkpoint_save_wait(shoal_checkpoint_saving *saving);

/* Loading -------------------------------------------------------------------------------------------------- */

typedef struct shoal_checkpoint_load_options {
    size_t struct_size; /* sizeof(shoal_checkpoint_load_options) */
    bool has_step;      /* `step` says which one; otherwise the newest, which is that of the highest step */
    int64_t step;
    bool allows_missing;    /* items that the checkpoint does not have keep their values */
    bool allows_unexpected; /* what the list does not have is passed over */
    bool casts;             /* another floating dtype is converted, each element rounded once */
    bool skips_sums;        /* does not look at sums */
    const char *section;    /* only this one, which the list has; NULL: all, and numbers and strings, too */
    /* What the program will do; `sample` is not looked at. Another number of samples in a step than the saved one is
       SHOAL_ERR_INVALID, unless that is allowed. */
    shoal_checkpoint_progress progress;
    bool allows_other_batch;
    /* No complete checkpoint is no error: nothing is changed, and the step of info_out is -1. It is an error if the
       first rank sees none and another rank sees one. */
    bool allows_none;
    /* If files of the newest are damaged, missing or unreadable on any rank, the one before it is loaded, and so on;
       the log tells which. An error if all are damaged, and if a checkpoint does not fit. Not with has_step. */
    bool skips_damaged;
} shoal_checkpoint_load_options;
#define SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT SHOAL_SIZED(shoal_checkpoint_load_options)

/* What was loaded. The step is -1 if there was nothing to load. */
typedef struct shoal_checkpoint_info {
    size_t struct_size; /* sizeof(shoal_checkpoint_info), set by the caller */
    int64_t step;
    shoal_checkpoint_format format;
    shoal_checkpoint_progress progress; /* zeros: not said */
    size_t n_missing;                   /* items that kept their values */
    size_t n_unexpected;                /* tensors that were passed over */
    size_t n_damaged;                   /* newer checkpoints that were passed over */
} shoal_checkpoint_info;
#define SHOAL_CHECKPOINT_INFO_INIT SHOAL_SIZED(shoal_checkpoint_info)

/*
 * Collective. `directory` holds checkpoints, or is one. Options and info_out may be NULL. No complete checkpoint is
 * SHOAL_ERR_STATE, unless that is allowed. Names that are missing, not expected or of another shape or dtype are listed
 * in the error, the first eight of each with the number of all.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_checkpoint_load(shoal_group *group, const char *directory,
                                                              shoal_items *items,
                                                              const shoal_checkpoint_load_options *options,
                                                              shoal_checkpoint_info *info_out);

/*
 * The newest complete checkpoint of a directory, which is that of the highest step, without loading it. Its step is
 * -1 if there is none, also if there is no such directory, and that of its directory's name, or 0, for whole files of
 * another tool. Local: a load with
 * allows_none decides for all ranks.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_checkpoint_newest(const char *directory,
                                                                shoal_checkpoint_info *info_out);

/*
 * The steps of all complete checkpoints of a directory, ascending; the last is that of shoal_checkpoint_newest.
 * *count_out is how many there are, 0 also if there is no such directory. If there are more than `capacity`, steps_out
 * gets the newest; it may be NULL if capacity is 0. Looks at names only, unless the directory is a checkpoint itself:
 * whether files are damaged is found by a load. Local.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_checkpoint_list(const char *directory, int64_t *steps_out,
                                                              size_t capacity, size_t *count_out);

SHOAL_END_DECLS

#endif
