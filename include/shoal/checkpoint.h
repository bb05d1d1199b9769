/* SPDX-License-Identifier: MIT */
/*
 * Checkpoints: save a list of items (shoal/items.h) to a directory, and load it again on any number of ranks, however
 * these share the model. Each rank writes and reads only its own parts.
 *
 *     shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
 *     options.step = step;
 *     options.keep = 3;
 *     status = shoal_checkpoint_save(group, "run7", items, &options);            makes run7/step-000001000
 *
 *     shoal_checkpoint_info found = SHOAL_CHECKPOINT_INFO_INIT;
 *     shoal_checkpoint_load_options how = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
 *     status = shoal_checkpoint_load(group, "run7", items, &how, &found);        the newest that is complete
 *
 * docs/checkpoints.md has a loop that resumes training, and how to exchange files with PyTorch and Hugging Face.
 *
 * Saves: a checkpoint is complete or absent. It is written under another name, and gets its own when all ranks have
 * written their parts and everything has reached the disk. If a disk is full, all ranks get an error, what was there
 * before still is, and the save can be repeated on the same group. If a rank dies, the others get an error, and either
 * the old state or the new checkpoint is there. The next save removes what a save that died has left. If two saves to
 * one directory overlap, of two jobs or in the background, the second is SHOAL_ERR_STATE (on file systems that have
 * flock).
 *
 * Loads: everything that is needed is checked before anything is changed. If any rank finds a file that is damaged,
 * cut off, of another save or of a later version, names that do not fit, or a tensor that cannot be written, all ranks
 * get the error, and values stay as they are on all of them. Only if a file fails after this check, values are
 * undefined, and the error says so. If a function of shoal_items_on_loaded refuses the values, they stay as they were
 * loaded, except for what it changes.
 *
 * Formats: SHOAL_CHECKPOINT_PIECES has a file for each rank, in which tensors are named
 * "NAME@BEGIN+LENGTH,BEGIN+LENGTH", so that no other tool takes a part for a whole tensor. SHOAL_CHECKPOINT_WHOLE has
 * whole tensors in files that other tools read: model.safetensors, or model-00001-of-0000n.safetensors and so on with
 * model.safetensors.index.json, and the same for other sections under their names; the metadata of these files map
 * each alias to its name. Both have a shoal.index.json, which is written last: what is where, checksums of all data in
 * blocks of 1 MiB, numbers and strings, and the id of the save, which each file has, too. Loads read both formats, and
 * whole files of other tools, which have no shoal.index.json and no checksums.
 *
 * Memory: besides its shards a rank needs at most 64 MiB (a save in the background also a copy of what the rank
 * writes), and the description of the checkpoint: about 1 KiB for each part that some rank has of some tensor, and 100
 * bytes for each block. Of values on a device that the host cannot access, every save and load also makes a copy in
 * host memory, of what the rank writes or loads. Each byte is written by one rank; ranks that have the same part share
 * the work. A load reads what the rank needs, rounded to whole blocks.
 *
 * Ranks: saves and loads are collective. All ranks of the group give the same directory, list of items and options; a
 * difference is SHOAL_ERR_MISMATCH on all of them, and the group can still be used. All ranks see the same files: a
 * directory that the hosts of a group do not share is SHOAL_ERR_STATE.
 * Meshes: the group consists of all ranks that have a part of the model, replicas included. For a mesh of all ranks of
 * the world it is shoal_world_group(world), for any other mesh:
 *
 *     status = shoal_mesh_flatten(mesh, "all", &flat);
 *     shoal_group *group = shoal_mesh_group(flat, 0);                            shoal_mesh_free(flat) may follow
 *
 * Ownership: the list of items is the caller's. Its values must not be changed during a call. Names and options are
 * copied.
 * Threads: one call at a time on a group, waits included. A save in the background has a thread of its own.
 * Deadlines: after each phase ranks wait for each other as long as the group's timeout (shoal_group_set_timeout). Set
 * a longer one if a rank may need that much longer than another, to write its files, say.
 * Errors: status and a text that names the file and what is wrong with it, on all ranks. SHOAL_ERR_SYSTEM: the system
 * refused something. SHOAL_ERR_INVALID: an argument is wrong, a file is damaged, or a checkpoint does not fit.
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
    SHOAL_CHECKPOINT_PIECES = 0, /* a file for each rank */
    SHOAL_CHECKPOINT_WHOLE = 1   /* whole tensors, for other tools */
} shoal_checkpoint_format;

/* How far a run has come. A step uses n_ranks x batch x n_accumulate samples. A run that goes on with another number
   of samples in a step is another run; one that divides the same number differently is not. Set these three together,
   or leave them 0 for "not said". Negative numbers are SHOAL_ERR_INVALID. */
typedef struct shoal_checkpoint_progress {
    int64_t n_ranks;      /* ranks that share a batch */
    int64_t batch;        /* samples of a rank in one backward pass */
    int64_t n_accumulate; /* backward passes in a step */
    int64_t sample;       /* the first sample of the data that was not used yet */
} shoal_checkpoint_progress;

typedef struct shoal_checkpoint_options {
    size_t struct_size; /* sizeof(shoal_checkpoint_options) */
    int64_t step;       /* names the checkpoint; 0 or more */
    shoal_checkpoint_format format;
    /* An existing checkpoint of that step is replaced; otherwise it is SHOAL_ERR_STATE. */
    bool replaces;
    /* How many checkpoints stay: this one, and the newest of earlier steps. Older ones are removed. With 0 all stay.
       Checkpoints of later steps always stay. A damaged one (its index cannot be read, or files are missing or have
       another size) does not count; it stays until there are enough newer ones. Neither does a step that is a symbolic
       link. Links are never followed when a checkpoint is removed: the link goes, what it points to stays. The same
       holds for `replaces`. */
    int keep;
    size_t max_file_bytes; /* WHOLE: the most data in one file; 0 means 5 * 10^9. A tensor is never cut */
    shoal_checkpoint_progress progress; /* zeros: not said */
    /* Of save_start: SHOAL_ERR_STATE while another save of this group runs in the background. If false, save_start
       waits for that one. */
    bool fails_if_busy;
} shoal_checkpoint_options;
#define SHOAL_CHECKPOINT_OPTIONS_INIT SHOAL_SIZED(shoal_checkpoint_options)

/* Saves all items as the checkpoint DIRECTORY/step-NNNNNNNNN, and makes directories as needed. Collective. It is on
   the disk when the call returns. options may be NULL, which means step 0. SHOAL_ERR_STATE: the checkpoint exists and
   `replaces` is not set, or another save to the directory is under way. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_checkpoint_save(shoal_group *group, const char *directory, const shoal_items *items,
                      const shoal_checkpoint_options *options);

/* In the background ---------------------------------------------------------------------------------------- */

typedef struct shoal_checkpoint_saving shoal_checkpoint_saving;

/*
 * Starts a save in the background: copies what this rank has to write, and returns; a thread writes it while the
 * program goes on. Collective. As soon as it has returned, values may be changed, the list may be freed, and the
 * working directory may be changed. The program may use the group meanwhile. Call shoal_checkpoint_save_wait for each
 * save.
 *
 * Closing the world waits for saves, and returns the error of one that has failed and was not waited for. If ranks
 * wait longer than the deadline for each other in the background, that save fails, but the group and later saves go
 * on; after eight such saves this call is SHOAL_ERR_STATE on the group.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_checkpoint_save_start(
    shoal_group *group, const char *directory, const shoal_items *items,
    const shoal_checkpoint_options *options, SHOAL_GIVES shoal_checkpoint_saving **saving_out);
/* Tells whether a save in the background has ended, well or not, without waiting. True for NULL. Local. */
SHOAL_API bool shoal_checkpoint_save_test(const shoal_checkpoint_saving *saving);
/* Waits for the end of a save, returns its status and frees the handle. Local. Also after the world was closed, but
   not while another thread closes it, because that waits for the save, too. NULL is SHOAL_OK. */
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_checkpoint_save_wait(SHOAL_TAKES shoal_checkpoint_saving *saving);

/* Loading -------------------------------------------------------------------------------------------------- */

typedef struct shoal_checkpoint_load_options {
    size_t struct_size; /* sizeof(shoal_checkpoint_load_options) */
    bool has_step;      /* load the checkpoint of `step`; if false, the newest, which has the highest step */
    int64_t step;
    /* Items that the checkpoint does not have keep their values; if false, they are SHOAL_ERR_INVALID. */
    bool allows_missing;
    /* Tensors that the list does not have are passed over; if false, they are SHOAL_ERR_INVALID. */
    bool allows_unexpected;
    /* Another floating dtype is converted, each element rounded once; if false, it is SHOAL_ERR_INVALID. */
    bool casts;
    bool skips_sums; /* checksums are not checked */
    /* Load only this section, which the list has; NULL means all sections, and numbers and strings. */
    const char *section;
    /* What the program will do; `sample` is ignored. If its number of samples in a step differs from the checkpoint's,
       that is SHOAL_ERR_INVALID, unless allows_other_batch is set. */
    shoal_checkpoint_progress progress;
    bool allows_other_batch;
    /* If there is no complete checkpoint, the load succeeds and changes nothing, and info_out->step is -1. It is
       SHOAL_ERR_STATE if the first rank sees none and another rank sees one. */
    bool allows_none;
    /* If files of the newest checkpoint are damaged, missing or unreadable on any rank, the one before it is loaded,
       and so on; the log tells which were passed over. It is SHOAL_ERR_INVALID if all are damaged, also with
       allows_none, and if a checkpoint does not fit the list. Not together with has_step. */
    bool skips_damaged;
} shoal_checkpoint_load_options;
#define SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT SHOAL_SIZED(shoal_checkpoint_load_options)

/* What was loaded, or is there. */
typedef struct shoal_checkpoint_info {
    size_t struct_size; /* sizeof(shoal_checkpoint_info), set by the caller */
    int64_t step;       /* -1 if there is no checkpoint */
    shoal_checkpoint_format format;
    shoal_checkpoint_progress progress; /* zeros: not said */
    size_t n_missing;                   /* items that kept their values */
    size_t n_unexpected;                /* tensors that were passed over */
    size_t n_damaged;                   /* newer checkpoints that were passed over */
} shoal_checkpoint_info;
#define SHOAL_CHECKPOINT_INFO_INIT SHOAL_SIZED(shoal_checkpoint_info)

/*
 * Loads a checkpoint into the items of a list. Collective. `directory` holds checkpoints, or is one. options and
 * info_out may be NULL. Values of items change; numbers and strings are set on every rank.
 *
 * SHOAL_ERR_STATE: there is no complete checkpoint, or none of that step. SHOAL_ERR_INVALID: names are missing, not
 * expected, or of another shape or dtype (the text says how many of each kind there are, and lists the first eight, or
 * as many as fit), or files are damaged.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_checkpoint_load(shoal_group *group, const char *directory, shoal_items *items,
                      const shoal_checkpoint_load_options *options, shoal_checkpoint_info *info_out);

/* Describes the newest complete checkpoint of a directory, which has the highest step, without loading it. Local. The
   step is -1 if there is none, also if there is no such directory; for files of another tool it is the step in the
   directory's name, or 0. Ranks may see different things; a load with allows_none decides for all. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_checkpoint_newest(const char *directory,
                                                                shoal_checkpoint_info *info_out);

/*
 * Lists the steps of all complete checkpoints of a directory, ascending. Local. *count_out is how many there are; 0
 * also if there is no such directory. If there are more than `capacity`, steps_out gets the newest; it may be NULL if
 * capacity is 0. Only names are looked at, unless the directory is a checkpoint itself; a load finds out whether files
 * are damaged.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_checkpoint_list(const char *directory, int64_t *steps_out,
                                                              size_t capacity, size_t *count_out);

SHOAL_END_DECLS

#endif
