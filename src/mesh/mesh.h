/* SPDX-License-Identifier: MIT */
/*
 * Meshes and their families.
 *
 * A family is a mesh that was made by shoal_mesh_create or from groups, and all meshes derived from it. Its meshes
 * differ in their dimensions, do not change once they are listed, and live as long as the family. A handle is a
 * reference to the family.
 */
#ifndef MESH_MESH_H
#define MESH_MESH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mesh/layout.h"
#include "comm/group/owned.h"
#include "shoal/mesh.h"

struct mesh_dim {
    const char *name; /* NULL if it has none. A mesh owns it, a plan borrows it */
    struct mesh_line line;
    /* In a mesh: a reference; NULL on ranks outside of the family. In a plan: borrowed; NULL if it has yet to be
       made. */
    shoal_group *group;
};

/* The dimensions of a mesh that is to be found or made. */
struct mesh_plan {
    int n_dims;
    struct mesh_dim dims[SHOAL_MESH_MAX_DIMS];
};

struct shoal_mesh {
    struct mesh_family *family;
    struct shoal_mesh *next;
    bool is_flattened; /* the root finds it by the name of its dimension; under the family's lock */
    int n_dims;
    int n_ranks;
    int shape[SHOAL_MESH_MAX_DIMS];
    struct mesh_dim dims[SHOAL_MESH_MAX_DIMS];
};

struct mesh_family {
    struct owned owned; /* first: the world's list */
    _Atomic uint32_t references;
    shoal_world *world;
    const char *device; /* a name in the table of devices */
    pthread_mutex_t lock;
    struct shoal_mesh *meshes;
    struct shoal_mesh *root;
    int position; /* the caller's; -1 if the caller is not in the family */
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

/* The caller's position; 0 on ranks outside of the family, for results that are the same for all ranks. */
int mesh_position(const struct mesh_family *family);

/* Checks a new name: not NULL or empty, printable, not too long. `what` and `index` name it in the error. */
shoal_status mesh_check_name(const char *name, const char *what, int index);

/* Sets the error for a name that no dimension has. The text lists the names, and the nearest one. */
shoal_status mesh_fail_with_unknown_name(const shoal_mesh *mesh, const char *name);

/* The dimension of that name; -1 if there is none. Sets no error. */
int mesh_dim_of(const shoal_mesh *mesh, const char *name);

#endif
