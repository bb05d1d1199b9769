/* SPDX-License-Identifier: MIT */
/*
 * Meshes and their families.
 *
 * A family is the mesh that a call of create or from_group made, and all meshes derived from it since. Its meshes
 * differ in their dimensions, never change once they are listed, and live as long as the family. Handles are references
 * to the family.
 */
#ifndef MESH_MESH_H
#define MESH_MESH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mesh/layout.h"
#include "comm/owned.h"
#include "shoal/mesh.h"

struct mesh_dim {
    const char *name; /* NULL: none; a mesh's own, a plan's borrowed */
    struct mesh_line line;
    /* A mesh's: a reference, NULL on ranks outside of the family. A plan's: borrowed, NULL: make it. */
    shoal_group *group;
};

/* The dimensions that a mesh shall have. */
struct mesh_plan {
    int n_dims;
    struct mesh_dim dims[SHOAL_MESH_MAX_DIMS];
};

struct shoal_mesh {
    struct mesh_family *family;
    struct shoal_mesh *next;
    bool is_flattened; /* its name stands for it when the root is asked; under the family's lock */
    int n_dims;
    int n_ranks;
    int shape[SHOAL_MESH_MAX_DIMS];
    struct mesh_dim dims[SHOAL_MESH_MAX_DIMS];
};

struct mesh_family {
    struct owned owned; /* first: the world's list */
    _Atomic uint32_t references;
    shoal_world *world;
    const char *device; /* of the table of devices */
    pthread_mutex_t lock;
    struct shoal_mesh *meshes;
    struct shoal_mesh *root;
    int position; /* the caller's; -1: not in it */
    int n_ranks;
    int ranks[]; /* by position */
};

/*
 * Returns the family's mesh with these dimensions, and makes it if there is none; counts one handle. With is_flattened,
 * the mesh can be found by its name, which must not be the name of another one.
 */
shoal_status mesh_intern(struct mesh_family *family, const struct mesh_plan *plan, bool is_flattened,
                         shoal_mesh **mesh_out);

/* The flattened mesh of that name, or NULL. */
shoal_mesh *mesh_find_flattened(struct mesh_family *family, const char *name);

/* Where the caller is; another place of the family on a rank outside of it, for what holds everywhere alike. */
int mesh_position(const struct mesh_family *family);

/* Checks a new name: there, printable, not too long. `what` and `index` say which it is. */
shoal_status mesh_check_name(const char *name, const char *what, int index);

/* An error for a name that no dimension has: lists those there are, and the nearest. */
shoal_status mesh_fail_with_unknown_name(const shoal_mesh *mesh, const char *name);

/* -1: none has it; no error is set. */
int mesh_dim_of(const shoal_mesh *mesh, const char *name);

#endif
