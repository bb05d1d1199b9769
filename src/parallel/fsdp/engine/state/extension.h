/* SPDX-License-Identifier: MIT */
/*
 * What a parameter has gathered in place of its elements (shoal_gather_extension, shoal/fsdp_comm.h). What a rank sends
 * is its encoded shard: the buffers one after the other, each at a multiple of 16 bytes, with room for as many rows as
 * the longest shard has, so that it has the same size on every rank.
 */
#ifndef PARALLEL_FSDP_ENGINE_STATE_EXTENSION_H
#define PARALLEL_FSDP_ENGINE_STATE_EXTENSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/fsdp_comm.h"

struct fsdp_param;
struct fsdp_unit;

struct fsdp_extension {
    shoal_gather_extension given; /* it points to copies */
    char *name;
    char *metadata;
    shoal_gather_buffer buffers[SHOAL_GATHER_MAX_BUFFERS];
    size_t offsets[SHOAL_GATHER_MAX_BUFFERS]; /* bytes, in an encoded shard */
    size_t bytes;                             /* of an encoded shard */
    int n_shards;
    size_t staged_offset; /* bytes, in the unit's memory for encoded shards of this rank */
    size_t window_offset; /* bytes, in a window over several hosts: the encoded shards of all ranks */
};

/* Checks what a caller gave for a parameter, and copies it. */
shoal_status fsdp_extension_create(const struct fsdp_param *param, int n_shards,
                                   const shoal_gather_extension *given,
                                   struct fsdp_extension **extension_out);
void fsdp_extension_free(struct fsdp_extension *extension);

/* Whether a parameter may move to a device: with an extension to the CPU only. */
shoal_status fsdp_extension_check_move(const struct fsdp_param *param, shoal_device device);

/* Whether a unit has a parameter with an extension; and one that is not decoded row by row, so that each rank has full
   parameters of its own. */
bool fsdp_has_extension(const struct fsdp_unit *unit);
bool fsdp_has_whole_extension(const struct fsdp_unit *unit);

/* Encodes this rank's rows. `group` has the ranks of the shards. */
shoal_status fsdp_extension_encode(const struct fsdp_param *param, shoal_group *group, char *encoded);
/* Decodes the rows of one shard to their place in the whole. For extensions by rows. */
shoal_status fsdp_extension_decode(const struct fsdp_param *param, int shard, const char *encoded,
                                   char *full);
/* Decodes all shards; `stride` bytes lie between two of them. By rows or not. */
shoal_status fsdp_extension_decode_all(const struct fsdp_param *param, const char *encoded, size_t stride,
                                       char *full);

#endif
