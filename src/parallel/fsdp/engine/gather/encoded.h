/* SPDX-License-Identifier: MIT */
/*
 * Encoded shards (state/extension.h) on their way into a window. This rank's are staged in memory of its own, and their
 * rows are decoded from there into the window. If the window is one of several hosts, the encoded shards of all ranks
 * have places behind the full parameters: the bytes that came from another host are decoded by the rank that took them.
 */
#ifndef PARALLEL_FSDP_ENGINE_GATHER_ENCODED_H
#define PARALLEL_FSDP_ENGINE_GATHER_ENCODED_H

#include <stddef.h>

#include "parallel/fsdp/engine/state/unit.h"
#include "shoal/window.h"

/* Calls the program's function for this rank's rows. */
shoal_status fsdp_encode(const struct fsdp_unit *unit, const struct fsdp_param *param,
                         struct address encoded);

/* Chooses the places of encoded shards, and the size of the unit's window. Full parameters have their places. */
void fsdp_encoded_lay_out(struct fsdp_unit *unit);
/* Encodes this rank's shards into memory of its own, if some parameter has an extension and the unit is not gathered
   from what neighbours kept. If that fails, the other ranks are told. */
shoal_status fsdp_encoded_stage(struct fsdp_unit *unit);
void fsdp_encoded_drop(struct fsdp_unit *unit);
/* Fills in the piece by which an encoded shard goes to other hosts. Returns how many pieces that are: 0 if all ranks
   are on one host. */
size_t fsdp_encoded_piece(const struct fsdp_unit *unit, const struct fsdp_param *param,
                          shoal_window_piece *piece);
/* Decodes the rows of a member, of this rank or of one on another host, into the window: a window_decoder
   (transport/collective.h) whose context is the unit. */
shoal_status fsdp_encoded_decode(void *context, int member, char *window);
/* A gather has failed with `status`. If that was this rank's decoding, all lanes of the context fail, so that ranks of
   other replicas and meshes are told, and the function's own status is returned. */
shoal_status fsdp_encoded_tell(struct fsdp_unit *unit, shoal_status status);

/* If there is one shard: encodes and decodes it into the unit's memory for full parameters. */
shoal_status fsdp_encoded_alone(struct fsdp_unit *unit);

#endif
