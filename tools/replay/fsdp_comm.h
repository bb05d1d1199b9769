/* SPDX-License-Identifier: MIT */
/* The ranks of units, and callbacks in their communication. */
#ifndef REPLAY_FSDP_COMM_H
#define REPLAY_FSDP_COMM_H

#include <stddef.h>

#include "fsdp_case.h"
#include "shoal/fsdp_unit.h"
#include "shoal/group.h"
#include "shoal/mesh.h"
#include "shoal/world.h"

#define FSDP_MAX_MESHES 16

/* What was made for units of the same ranks, once. */
struct fsdp_made_mesh {
    struct fsdp_ranks ranks;
    shoal_group *group; /* where there are no replicas */
    shoal_mesh *mesh;
    shoal_group *others; /* ranks with the same place in the other groups; made for a hook */
    int n_groups;
    const struct fsdp_case *run;
};

struct fsdp_meshes {
    struct fsdp_made_mesh made[FSDP_MAX_MESHES];
    size_t n_made;
};

/* All ranks ask for the same ones, in the same order. One of the two results is NULL. */
shoal_status fsdp_meshes_find(struct fsdp_meshes *self, shoal_world *world, const struct fsdp_ranks *ranks,
                              shoal_group **group_out, shoal_mesh **mesh_out);
void fsdp_meshes_free(struct fsdp_meshes *self);

/* Sets the hook and the objects that the case has, for a unit over ranks that were found before. They point into
   `self`. */
shoal_status fsdp_comm_set(struct fsdp_meshes *self, const struct fsdp_case *run, shoal_fsdp_unit *unit,
                           const struct fsdp_ranks *ranks);

#endif
