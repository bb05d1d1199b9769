/* SPDX-License-Identifier: MIT */
/*
 * A mesh arranges ranks of a world in an array with named dimensions, such as "dp" (data parallel) and "tp" (tensor
 * parallel), and has a group along each of them. FSDP takes meshes; use them for rows and columns of ranks in general.
 *
 *     shoal_mesh *mesh, *tp;
 *     shoal_mesh_create(world, "cpu", NULL, (int[]){2, 4}, 2, (const char *[]){"dp", "tp"}, &mesh);
 *     shoal_group *replicas = shoal_mesh_group_by_name(mesh, "dp");     on rank 5: the ranks 1, 5
 *     shoal_mesh_slice(mesh, (const char *[]){"tp"}, 1, &tp);           on rank 5: the ranks 4, 5, 6, 7
 *
 * The group of dimension k has the ranks whose coordinates differ from the caller's in dimension k only, in the order
 * of the mesh: the rank in the group is the coordinate. Its tag is "mesh/<name>", or "mesh_dim/<k>" if dimensions have
 * no names. So two meshes that have the same ranks along a dimension of the same name share that group, and all members
 * must call its collectives in one order. A mesh of one dimension with all ranks in order has the world's own group.
 *
 * No call here communicates or waits. Every rank makes the same mesh. If ranks make different ones, that is found when
 * a group is used: SHOAL_ERR_MISMATCH, or SHOAL_ERR_TIMEOUT for a group that no other rank has made.
 *
 * Meshes that are derived from a mesh (by slice, flatten, unflatten, concatenate) form a family with it; the mesh that
 * was created is its root. Deriving the same mesh again gives the same one. On a rank that is not in the mesh, a mesh
 * has a shape, but no coordinate and no groups.
 *
 * Ownership: each call that gives a mesh adds a handle, which shoal_mesh_free releases. Returned names and shapes are
 * borrowed, and live as long as a handle to any mesh of the family. Groups outlive the mesh: they end when they or
 * their world are closed. If the group of a dimension was closed, the mesh still returns it, and calls on it are
 * SHOAL_ERR_STATE. Closing the world frees the meshes that are left.
 * Threads: any.
 * Errors: status and text. A wrong argument is SHOAL_ERR_INVALID. Calls that return a pointer or a number give NULL or
 * -1 and leave the reason in shoal_error_text. For a NULL mesh, sizes are 0.
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
/* Names of dimensions are printable ASCII, 1 to 59 characters. */
#define SHOAL_MESH_MAX_NAME 59

/* Making meshes ---------------------------------------------------------------------------------------- */

/*
 * Makes a mesh of the given shape. `ranks` has the world ranks in row-major order, each at most once; NULL stands for
 * 0, 1, 2, ..., as many as the shape needs, which may be fewer than the world has. `device` is a kind of device without
 * an index: "cpu". `names` has n_dims different names, or is NULL. Every rank of the mesh calls it. A rank outside of
 * the mesh may call it, too, to ask for its shape.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_create(shoal_world *world, const char *device,
                                                          const int *ranks, const int *shape, int n_dims,
                                                          const char *const *names,
                                                          SHOAL_GIVES shoal_mesh **mesh_out);

/*
 * Makes a mesh from groups that the program has: groups[k] becomes the group of dimension k. It must have the ranks
 * along k that include the caller, in the order of the mesh. With one group `ranks` (and then `shape`) and `names` may
 * be NULL; with several, all are needed, and n_dims is n_groups.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_from_groups(shoal_group *const *groups, int n_groups,
                                                               const char *device, const int *ranks,
                                                               const int *shape, int n_dims,
                                                               const char *const *names,
                                                               SHOAL_GIVES shoal_mesh **mesh_out);

/* Adds a handle to the same mesh, which shoal_mesh_free releases as well. Returns its argument. */
SHOAL_API SHOAL_GIVES shoal_mesh *shoal_mesh_ref(shoal_mesh *mesh);
/* Releases a handle. When the last handle to any mesh of a family is released, all of them are freed.
   NULL is allowed. */
SHOAL_API void shoal_mesh_free(SHOAL_TAKES shoal_mesh *mesh);

/* What it is. Dimensions may be negative: -1 is the last ----------------------------------------------- */

/* How many dimensions it has, how many ranks, and how many of these along each dimension: n_dims numbers. */
SHOAL_API int shoal_mesh_n_dims(const shoal_mesh *mesh);
SHOAL_API int shoal_mesh_n_ranks(const shoal_mesh *mesh);
SHOAL_API const int *shoal_mesh_shape(const shoal_mesh *mesh);
/* The kind of device, and the world that it was made in. */
SHOAL_API const char *shoal_mesh_device(const shoal_mesh *mesh);
SHOAL_API shoal_world *shoal_mesh_world(const shoal_mesh *mesh);

/* Returns the name of a dimension. It is NULL without an error text if dimensions have no names, and NULL with one if
   there is no such dimension. */
SHOAL_API const char *shoal_mesh_dim_name(const shoal_mesh *mesh, int dim);
/* Returns the number of the dimension with this name. If there is none, it returns -1, and the error text lists the
   names that there are. */
SHOAL_API int shoal_mesh_find_dim(const shoal_mesh *mesh, const char *name);

/* Writes the caller's coordinate, n_dims numbers, and returns true. On a rank outside of the mesh it returns false and
   writes nothing. coordinate_out may be NULL. */
SHOAL_API bool shoal_mesh_coordinate(const shoal_mesh *mesh, int *coordinate_out);

/*
 * Writes the world ranks of the mesh, n_ranks of them, in row-major order. Which ranks a slice has depends on the
 * caller: these are the ranks of the caller's own. SHOAL_ERR_STATE: the mesh is a slice, and the caller is outside.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_ranks(const shoal_mesh *mesh, int *ranks_out);

/*
 * The group along a dimension, in which the caller's rank is its coordinate. Borrowed. It is NULL if there is no such
 * dimension, or the caller is outside of the mesh. On the root of a family, _by_name also finds the group of a
 * flattened mesh.
 */
SHOAL_API shoal_group *shoal_mesh_group(const shoal_mesh *mesh, int dim);
SHOAL_API shoal_group *shoal_mesh_group_by_name(const shoal_mesh *mesh, const char *name);

/* Whether both have the same ranks, shape, device and names, in the same world. */
SHOAL_API bool shoal_mesh_equal(const shoal_mesh *a, const shoal_mesh *b);

/*
 * Writes a text such as "mesh cpu dp=2 tp=4 [[0, 1, 2, 3], [4, 5, 6, 7]]" to `text`, which has room for `bytes` bytes.
 * It is cut to fit, with a zero at its end. Returns the number of characters of the whole text, as snprintf does.
 * `text` may be NULL if bytes is 0.
 */
SHOAL_API size_t shoal_mesh_describe(const shoal_mesh *mesh, char *text, size_t bytes);

/* Deriving meshes -------------------------------------------------------------------------------------- */

/*
 * Gives the mesh of some dimensions, in the order of `names`: the ranks that have the caller's coordinates in all other
 * dimensions. It shares its groups with `mesh`. Another order than the mesh's transposes it; all names in the mesh's
 * own order give the mesh itself. On the root of a family, names of flattened meshes may be given too, together with
 * dimensions that are not part of them.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_slice(shoal_mesh *mesh, const char *const *names,
                                                         int n_names, SHOAL_GIVES shoal_mesh **mesh_out);

/*
 * Gives the mesh with all dimensions of `mesh` as one, in row-major order, with a group of its own. If `name` is NULL,
 * it is the names of the dimensions joined by "_". A mesh of one dimension, flattened under its own name, is itself. A
 * name means one thing in a family: the name of a dimension, or of another flattened mesh, is SHOAL_ERR_INVALID.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_flatten(shoal_mesh *mesh, const char *name,
                                                           SHOAL_GIVES shoal_mesh **mesh_out);

/*
 * Gives the mesh with dimension `dim` divided into several, with groups of their own. The product of `sizes` must be
 * the dimension's size. `names` may be NULL only if the dimensions of the mesh have no names.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_unflatten(shoal_mesh *mesh, int dim, const int *sizes,
                                                             int n_sizes, const char *const *names,
                                                             SHOAL_GIVES shoal_mesh **mesh_out);

/* Gives the mesh of the dimensions of several meshes of one family, one after the other, with the groups that they
   have. The dimensions must not overlap. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_mesh_concatenate(shoal_mesh *const *meshes, int n_meshes,
                                                               SHOAL_GIVES shoal_mesh **mesh_out);

SHOAL_END_DECLS

#endif
