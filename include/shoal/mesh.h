/* SPDX-License-Identifier: MIT */
/*
 * Meshes: ranks of a world arranged in an array with named dimensions, and a group along every dimension.
 *
 *     shoal_mesh *mesh, *tp;
 *     shoal_mesh_create(world, "cpu", NULL, (int[]){2, 4}, 2, (const char *[]){"dp", "tp"}, &mesh);
 *     shoal_group *replicas = shoal_mesh_group_by_name(mesh, "dp");     rank 5: ranks 1, 5
 *     shoal_mesh_slice(mesh, (const char *[]){"tp"}, 1, &tp);           rank 5: ranks 4, 5, 6, 7
 *
 * The group of dimension k holds the ranks that one gets by moving along k alone, in the order of the mesh, so the
 * rank in the group is the coordinate. Its tag is "mesh/<name>", or "mesh_dim/<k>" where dimensions have no
 * names: two meshes with the same line of ranks under the same name share the group, and with it the rule that
 * all members call its collectives in the same order. A one-dimensional mesh of all ranks in order has the
 * world's own group.
 *
 * Nothing here communicates, and only members make groups. Every rank must describe the same mesh; a rank that
 * describes another one is found out when a group is used (SHOAL_ERR_MISMATCH, or SHOAL_ERR_TIMEOUT for a group
 * that nobody else has).
 *
 * What is cut from a mesh, or made of its dimensions, is a mesh of the same family, and asking again gives the
 * same one. On a rank that is not in the mesh it has a shape but no coordinate and no groups.
 *
 * Ownership: each call that gives a mesh gives a handle of its own, freed by shoal_mesh_free. Names and shapes are
 * borrowed and live as long as a handle to any mesh of the family. Groups live until they or their world are closed,
 * also when the mesh is gone; a mesh whose group was closed keeps that group, and calls on it are SHOAL_ERR_STATE.
 * Closing the world frees what is left.
 * Threads: any.
 * Errors: status and text. Calls that return a pointer or a number give NULL or -1 and leave the reason in
 * shoal_error_text.
 */
#ifndef SHOAL_MESH_H
#define SHOAL_MESH_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/api.h"
#include "shoal/group.h"
#include "shoal/status.h"
#include "shoal/world.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_mesh shoal_mesh;

/* More dimensions than this are an error. */
#define SHOAL_MESH_MAX_DIMS 8
/* Names are printable ASCII; longer ones are an error. */
#define SHOAL_MESH_MAX_NAME 59

/* Making meshes ---------------------------------------------------------------------------------------- */

/*
 * World ranks in row-major order over the shape, none of them twice; `ranks` NULL: 0, 1, 2, ..., as many as the world
 * has, or fewer. `device` is a kind of device without an index: "cpu". `names` holds n_dims different names, or is
 * NULL.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_create(shoal_world *world, const char *device,
                                                          const int *ranks, const int *shape, int n_dims,
                                                          const char *const *names, shoal_mesh **mesh_out);

/*
 * Group k becomes the group of dimension k: its ranks must be the line along k that the caller is on. With one
 * group `ranks`, `shape` and `names` may be NULL; with more all are needed.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_from_groups(shoal_group *const *groups, int n_groups,
                                                               const char *device, const int *ranks,
                                                               const int *shape, int n_dims,
                                                               const char *const *names,
                                                               shoal_mesh **mesh_out);

/* Adds a handle to the same mesh, to be freed by shoal_mesh_free as well. Returns its argument. */
SHOAL_API shoal_mesh *shoal_mesh_ref(shoal_mesh *mesh);
/* NULL is allowed. */
SHOAL_API void shoal_mesh_free(shoal_mesh *mesh);

/* What it is. Dimensions may be negative: -1 is the last ----------------------------------------------- */

SHOAL_API int shoal_mesh_n_dims(const shoal_mesh *mesh);
SHOAL_API int shoal_mesh_n_ranks(const shoal_mesh *mesh);
SHOAL_API const int *shoal_mesh_shape(const shoal_mesh *mesh);
SHOAL_API const char *shoal_mesh_device(const shoal_mesh *mesh);
SHOAL_API shoal_world *shoal_mesh_world(const shoal_mesh *mesh);

/* NULL where dimensions have no names (which is no error), and for a number that is no dimension. */
SHOAL_API const char *shoal_mesh_dim_name(const shoal_mesh *mesh, int dim);
/* -1: there is none; the reason lists those there are. */
SHOAL_API int shoal_mesh_find_dim(const shoal_mesh *mesh, const char *name);

/* n_dims numbers; false, and nothing written, on a rank outside of the mesh. coordinate_out may be NULL. */
SHOAL_API bool shoal_mesh_coordinate(const shoal_mesh *mesh, int *coordinate_out);

/*
 * All n_ranks world ranks in row-major order. What was cut from a mesh has ranks only for its members: which of the
 * pieces is meant depends on the rank that asks.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_ranks(const shoal_mesh *mesh, int *ranks_out);

/* The group along a dimension, in which the caller's rank is its coordinate; NULL on a rank outside of the mesh. By
   name: also that of a flattened mesh, if `mesh` is the one the family began with. */
SHOAL_API shoal_group *shoal_mesh_group(const shoal_mesh *mesh, int dim);
SHOAL_API shoal_group *shoal_mesh_group_by_name(const shoal_mesh *mesh, const char *name);

/* Whether both have the same array, shape, device and names, in the same world. */
SHOAL_API bool shoal_mesh_equal(const shoal_mesh *a, const shoal_mesh *b);

/*
 * "mesh cpu dp=2 tp=4 [[0, 1, 2, 3], [4, 5, 6, 7]]", cut to fit and ended; returns the number of characters of the
 * whole text. `text` may be NULL if bytes is 0.
 */
SHOAL_API size_t shoal_mesh_describe(const shoal_mesh *mesh, char *text, size_t bytes);

/* Meshes of meshes ------------------------------------------------------------------------------------- */

/*
 * The dimensions named, in the order given (another order than the mesh's transposes), the others fixed at the
 * caller's coordinates. The groups are those of `mesh`. All its names in its own order give the mesh itself. From
 * the mesh the family began with, names of flattened meshes can be given too, next to dimensions that are not in
 * them.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_slice(shoal_mesh *mesh, const char *const *names,
                                                         int n_names, shoal_mesh **mesh_out);

/*
 * All dimensions as one, in row-major order, with a group of its own. Without a name it is that of the dimensions
 * joined by "_". A mesh of one dimension under its own name is itself. A name stands for one thing in the family:
 * a name of a dimension, or one that was given to another flattened mesh, is an error.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_flatten(shoal_mesh *mesh, const char *name,
                                                           shoal_mesh **mesh_out);

/*
 * One dimension as several, whose sizes multiply to its size, with groups of their own. `names` may be NULL if no
 * dimension of the mesh has a name.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_unflatten(shoal_mesh *mesh, int dim, const int *sizes,
                                                             int n_sizes, const char *const *names,
                                                             shoal_mesh **mesh_out);

/* The dimensions of several meshes of one family, one after the other, with the groups they have. None may cover
   another. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_concatenate(shoal_mesh *const *meshes, int n_meshes,
                                                               shoal_mesh **mesh_out);

SHOAL_END_DECLS

#endif
