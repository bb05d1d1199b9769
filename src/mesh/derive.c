/* SPDX-License-Identifier: MIT */
/* Makes meshes from meshes: slice, flatten, unflatten, concatenate. Each plans dimensions; mesh_intern does the
   rest. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "mesh/mesh.h"

static shoal_status check_arguments(const char *what, const shoal_mesh *mesh, shoal_mesh *const *mesh_out)
{
    if (!mesh || !mesh_out) {
        return error_set(SHOAL_ERR_INVALID, "%s: %s is NULL", what, mesh ? "mesh_out" : "mesh");
    }
    return SHOAL_OK;
}

/* Adds a dimension to the plan, if it is compatible with those it has. */
static shoal_status add_dim(const char *what, struct mesh_plan *plan, const struct mesh_dim *dim)
{
    if (plan->n_dims == SHOAL_MESH_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID, "%s: the mesh would have more than %d dimensions", what,
                         SHOAL_MESH_MAX_DIMS);
    }
    for (int i = 0; i < plan->n_dims; i++) {
        const struct mesh_dim *other = &plan->dims[i];
        if (dim->name && other->name && strcmp(dim->name, other->name) == 0) {
            return error_set(SHOAL_ERR_INVALID, "%s: dimension \"%s\" is given twice", what, dim->name);
        }
        if (mesh_lines_overlap(&dim->line, &other->line)) {
            return error_set(SHOAL_ERR_INVALID, "%s: dimensions \"%s\" and \"%s\" overlap", what,
                             other->name ? other->name : "?", dim->name ? dim->name : "?");
        }
    }
    plan->dims[plan->n_dims] = *dim;
    plan->n_dims++;
    return SHOAL_OK;
}

/* Slice ------------------------------------------------------------------------------------------------ */

/* Finds a dimension of the mesh by name. For the root of a family, also finds flattened meshes. */
static shoal_status find_named(shoal_mesh *mesh, const char *name, const struct mesh_dim **dim_out)
{
    int dim = mesh_dim_of(mesh, name);
    if (dim >= 0) {
        *dim_out = &mesh->dims[dim];
        return SHOAL_OK;
    }
    const shoal_mesh *flattened = mesh == mesh->family->root ? mesh_find_flattened(mesh->family, name) : NULL;
    if (!flattened) {
        return error_prefix(mesh_fail_with_unknown_name(mesh, name), "mesh_slice");
    }
    *dim_out = &flattened->dims[0];
    return SHOAL_OK;
}

static shoal_status plan_slice(shoal_mesh *mesh, const char *const *names, int n_names,
                               struct mesh_plan *plan)
{
    for (int i = 0; i < n_names; i++) {
        if (!names[i]) {
            return error_set(SHOAL_ERR_INVALID, "mesh_slice: name %d is NULL", i);
        }
        const struct mesh_dim *dim = NULL;
        TRY(find_named(mesh, names[i], &dim));
        TRY(add_dim("mesh_slice", plan, dim));
    }
    return SHOAL_OK;
}

shoal_status shoal_mesh_slice(shoal_mesh *mesh, const char *const *names, int n_names, shoal_mesh **mesh_out)
{
    error_clear();
    TRY(check_arguments("mesh_slice", mesh, mesh_out));
    if (!mesh->dims[0].name) {
        return error_set(SHOAL_ERR_INVALID, "mesh_slice: the %d dimensions of the mesh were not given names",
                         mesh->n_dims);
    }
    if (n_names < 1 || !names) {
        return error_set(SHOAL_ERR_INVALID, "mesh_slice: %d names are given, at least 1 expected",
                         names ? n_names : 0);
    }
    struct mesh_plan plan = {0};
    TRY(plan_slice(mesh, names, n_names, &plan));
    return mesh_intern(mesh->family, &plan, false, mesh_out);
}

/* Flatten ---------------------------------------------------------------------------------------------- */

/* The names of the dimensions with "_" between them. */
static shoal_status join_names(const shoal_mesh *mesh, char *joined, size_t bytes)
{
    if (!mesh->dims[0].name) {
        return error_set(
            SHOAL_ERR_INVALID,
            "mesh_flatten: the dimensions of the mesh were not given names: the new one needs a name");
    }
    size_t n_chars = 0;
    for (int i = 0; i < mesh->n_dims; i++) {
        const char *name = mesh->dims[i].name;
        size_t n_more = strlen(name) + (i > 0 ? 1 : 0);
        if (n_more >= bytes - n_chars) {
            return error_set(
                SHOAL_ERR_INVALID,
                "mesh_flatten: the names of the %d dimensions together have more than %d characters: "
                "the new one needs a name",
                mesh->n_dims, SHOAL_MESH_MAX_NAME);
        }
        if (i > 0) {
            joined[n_chars] = '_';
        }
        memcpy(joined + n_chars + (i > 0 ? 1 : 0), name, strlen(name));
        n_chars += n_more;
    }
    joined[n_chars] = '\0';
    return SHOAL_OK;
}

static shoal_status check_is_free(const shoal_mesh *mesh, const char *name)
{
    const shoal_mesh *root = mesh->family->root;
    if (mesh_dim_of(root, name) >= 0 || mesh_dim_of(mesh, name) >= 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "mesh_flatten: \"%s\" is the name of a dimension; what is flattened needs another",
                         name);
    }
    return SHOAL_OK;
}

shoal_status shoal_mesh_flatten(shoal_mesh *mesh, const char *name, shoal_mesh **mesh_out)
{
    error_clear();
    TRY(check_arguments("mesh_flatten", mesh, mesh_out));
    char joined[SHOAL_MESH_MAX_NAME + 1];
    if (name) {
        TRY(mesh_check_name(name, "mesh_flatten", 0));
    } else {
        TRY(join_names(mesh, joined, sizeof joined));
        name = joined;
    }
    if (mesh->n_dims == 1 && mesh->dims[0].name && strcmp(mesh->dims[0].name, name) == 0) {
        *mesh_out = shoal_mesh_ref(mesh);
        return SHOAL_OK;
    }
    TRY(check_is_free(mesh, name));
    struct mesh_plan plan = {.n_dims = 1, .dims[0] = {.name = name, .line = mesh->dims[0].line}};
    for (int i = 1; i < mesh->n_dims; i++) {
        mesh_line_append(&plan.dims[0].line, &mesh->dims[i].line);
    }
    return mesh_intern(mesh->family, &plan, true, mesh_out);
}

/* Unflatten -------------------------------------------------------------------------------------------- */

static shoal_status check_sizes(const struct mesh_line *line, const int *sizes, int n_sizes)
{
    if (n_sizes < 1 || n_sizes > SHOAL_MESH_MAX_DIMS || !sizes) {
        return error_set(SHOAL_ERR_INVALID, "mesh_unflatten: %d sizes are given, 1 to %d expected",
                         sizes ? n_sizes : 0, SHOAL_MESH_MAX_DIMS);
    }
    int64_t product = 1;
    for (int i = 0; i < n_sizes; i++) {
        if (sizes[i] < 1) {
            return error_set(SHOAL_ERR_INVALID, "mesh_unflatten: sizes[%d] is %d, at least 1 expected", i,
                             sizes[i]);
        }
        product *= sizes[i];
        if (product > line->size) {
            break;
        }
    }
    if (product != line->size) {
        return error_set(SHOAL_ERR_INVALID,
                         "mesh_unflatten: the product of the sizes is %s%lld, but the dimension has size %d",
                         product > line->size ? "at least " : "", (long long)product, line->size);
    }
    return SHOAL_OK;
}

static shoal_status check_part_names(const shoal_mesh *mesh, const char *const *names, int n_names)
{
    if (!names && mesh->dims[0].name) {
        return error_set(SHOAL_ERR_INVALID,
                         "mesh_unflatten: names is NULL; the other dimensions of the mesh have names");
    }
    if (names && !mesh->dims[0].name && mesh->n_dims > 1) {
        return error_set(
            SHOAL_ERR_INVALID,
            "mesh_unflatten: names is given, but the other %d dimensions of the mesh have no names",
            mesh->n_dims - 1);
    }
    for (int i = 0; names && i < n_names; i++) {
        TRY(mesh_check_name(names[i], "mesh_unflatten", i));
    }
    return SHOAL_OK;
}

static shoal_status plan_unflatten(const shoal_mesh *mesh, int dim, const struct mesh_line *parts,
                                   int n_parts, const char *const *names, struct mesh_plan *plan)
{
    for (int i = 0; i < mesh->n_dims; i++) {
        if (i != dim) {
            TRY(add_dim("mesh_unflatten", plan, &mesh->dims[i]));
            continue;
        }
        for (int k = 0; k < n_parts; k++) {
            struct mesh_dim part = {.name = names ? names[k] : NULL, .line = parts[k]};
            TRY(add_dim("mesh_unflatten", plan, &part));
        }
    }
    return SHOAL_OK;
}

shoal_status shoal_mesh_unflatten(shoal_mesh *mesh, int dim, const int *sizes, int n_sizes,
                                  const char *const *names, shoal_mesh **mesh_out)
{
    error_clear();
    TRY(check_arguments("mesh_unflatten", mesh, mesh_out));
    if (dim < -mesh->n_dims || dim >= mesh->n_dims) {
        return error_set(SHOAL_ERR_INVALID, "mesh_unflatten: there is no dimension %d; there are %d to %d",
                         dim, -mesh->n_dims, mesh->n_dims - 1);
    }
    int index = dim < 0 ? dim + mesh->n_dims : dim;
    const struct mesh_line *line = &mesh->dims[index].line;
    TRY(check_sizes(line, sizes, n_sizes));
    TRY(check_part_names(mesh, names, n_sizes));
    struct mesh_line parts[SHOAL_MESH_MAX_DIMS];
    if (!mesh_line_split(line, sizes, n_sizes, parts)) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "mesh_unflatten: dimension %d was flattened from dimensions that are not adjacent, "
                         "and these sizes would divide one of them",
                         index);
    }
    struct mesh_plan plan = {0};
    TRY(plan_unflatten(mesh, index, parts, n_sizes, names, &plan));
    return mesh_intern(mesh->family, &plan, false, mesh_out);
}

/* Concatenate ------------------------------------------------------------------------------------------ */

static shoal_status plan_concatenation(shoal_mesh *const *meshes, int n_meshes, struct mesh_plan *plan)
{
    for (int i = 0; i < n_meshes; i++) {
        const shoal_mesh *mesh = meshes[i];
        if (!mesh) {
            return error_set(SHOAL_ERR_INVALID, "mesh_concatenate: mesh %d is NULL", i);
        }
        if (mesh->family != meshes[0]->family) {
            return error_set(SHOAL_ERR_INVALID,
                             "mesh_concatenate: meshes 0 and %d were not derived from the same mesh", i);
        }
        for (int k = 0; k < mesh->n_dims; k++) {
            TRY(add_dim("mesh_concatenate", plan, &mesh->dims[k]));
        }
    }
    return SHOAL_OK;
}

shoal_status shoal_mesh_concatenate(shoal_mesh *const *meshes, int n_meshes, shoal_mesh **mesh_out)
{
    error_clear();
    if (!meshes || n_meshes < 1) {
        return error_set(SHOAL_ERR_INVALID, "mesh_concatenate: %d meshes are given, at least 1 expected",
                         meshes ? n_meshes : 0);
    }
    TRY(check_arguments("mesh_concatenate", meshes[0], mesh_out));
    struct mesh_plan plan = {0};
    TRY(plan_concatenation(meshes, n_meshes, &plan));
    return mesh_intern(meshes[0]->family, &plan, false, mesh_out);
}
