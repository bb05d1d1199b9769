/* SPDX-License-Identifier: MIT */
/* The properties of a mesh: sizes, names, coordinates, ranks, groups, text. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/name.h"
#include "base/try.h"
#include "mesh/mesh.h"

int shoal_mesh_n_dims(const shoal_mesh *mesh)
{
    return mesh ? mesh->n_dims : 0;
}

int shoal_mesh_n_ranks(const shoal_mesh *mesh)
{
    return mesh ? mesh->n_ranks : 0;
}

const int *shoal_mesh_shape(const shoal_mesh *mesh)
{
    return mesh ? mesh->shape : NULL;
}

const char *shoal_mesh_device(const shoal_mesh *mesh)
{
    return mesh ? mesh->family->device : NULL;
}

shoal_world *shoal_mesh_world(const shoal_mesh *mesh)
{
    return mesh ? mesh->family->world : NULL;
}

/* Dimensions ------------------------------------------------------------------------------------------- */

/* Turns a dimension that may count from the end into 0 to n_dims - 1. If there is none, returns -1 and sets the
   error. */
static int find_dim(const shoal_mesh *mesh, int dim)
{
    if (!mesh) {
        (void)error_set(SHOAL_ERR_INVALID, "mesh is NULL");
        return -1;
    }
    if (dim < -mesh->n_dims || dim >= mesh->n_dims) {
        (void)error_set(SHOAL_ERR_INVALID, "mesh: there is no dimension %d; there are %d to %d", dim,
                        -mesh->n_dims, mesh->n_dims - 1);
        return -1;
    }
    return dim < 0 ? dim + mesh->n_dims : dim;
}

const char *shoal_mesh_dim_name(const shoal_mesh *mesh, int dim)
{
    int index = find_dim(mesh, dim);
    return index >= 0 ? mesh->dims[index].name : NULL;
}

int mesh_dim_of(const shoal_mesh *mesh, const char *name)
{
    for (int i = 0; i < mesh->n_dims; i++) {
        if (mesh->dims[i].name && strcmp(mesh->dims[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

shoal_status mesh_fail_with_unknown_name(const shoal_mesh *mesh, const char *name)
{
    if (!mesh->dims[0].name) {
        return error_set(SHOAL_ERR_INVALID,
                         "mesh: there is no dimension \"%.64s\": its %d dimensions were not given names",
                         name, mesh->n_dims);
    }
    char list[256] = "";
    size_t n_chars = 0;
    const char *nearest = mesh->dims[0].name;
    for (int i = 0; i < mesh->n_dims; i++) {
        const char *known = mesh->dims[i].name;
        if (n_chars < sizeof list) {
            n_chars +=
                (size_t)snprintf(list + n_chars, sizeof list - n_chars, "%s\"%.64s\"", i ? ", " : "", known);
        }
        if (name_distance(name, known) < name_distance(name, nearest)) {
            nearest = known;
        }
    }
    return error_set(SHOAL_ERR_INVALID,
                     "mesh: there is no dimension \"%.64s\"; there are %s; the nearest is \"%.64s\"", name,
                     list, nearest);
}

int shoal_mesh_find_dim(const shoal_mesh *mesh, const char *name)
{
    if (!mesh || !name) {
        (void)error_set(SHOAL_ERR_INVALID, "mesh_find_dim: %s is NULL", mesh ? "name" : "mesh");
        return -1;
    }
    int dim = mesh_dim_of(mesh, name);
    if (dim < 0) {
        (void)mesh_fail_with_unknown_name(mesh, name);
    }
    return dim;
}

/* Places ----------------------------------------------------------------------------------------------- */

bool shoal_mesh_coordinate(const shoal_mesh *mesh, int *coordinate_out)
{
    if (!mesh || mesh->family->position < 0) {
        return false;
    }
    for (int i = 0; coordinate_out && i < mesh->n_dims; i++) {
        coordinate_out[i] = mesh_line_index(&mesh->dims[i].line, mesh->family->position);
    }
    return true;
}

static shoal_status fail_outside(const shoal_mesh *mesh, const char *what)
{
    return error_set(SHOAL_ERR_STATE, "mesh: rank %d is not among the %d ranks of the mesh, so it has no %s",
                     shoal_world_rank(mesh->family->world), mesh->family->n_ranks, what);
}

/* The position of index 0 in every dimension. */
static int origin(const shoal_mesh *mesh)
{
    int position = mesh_position(mesh->family);
    int start = position;
    for (int i = 0; i < mesh->n_dims; i++) {
        const struct mesh_line *line = &mesh->dims[i].line;
        start -= mesh_line_offset(line, mesh_line_index(line, position));
    }
    return start;
}

/* A mesh of all ranks of the family has the same ranks for every caller. Others depend on the caller's position. */
static shoal_status check_has_ranks(const shoal_mesh *mesh)
{
    if (mesh->family->position < 0 && mesh->n_ranks != mesh->family->n_ranks) {
        return fail_outside(mesh, "slices of it");
    }
    return SHOAL_OK;
}

/* The world rank at a place in row-major order. */
static int rank_at_place(const shoal_mesh *mesh, int start, int place)
{
    int position = start;
    for (int i = mesh->n_dims - 1; i >= 0; i--) {
        position += mesh_line_offset(&mesh->dims[i].line, place % mesh->shape[i]);
        place /= mesh->shape[i];
    }
    return mesh->family->ranks[position];
}

shoal_status shoal_mesh_ranks(const shoal_mesh *mesh, int *ranks_out)
{
    error_clear();
    if (!mesh || !ranks_out) {
        return error_set(SHOAL_ERR_INVALID, "mesh_ranks: %s is NULL", mesh ? "ranks_out" : "mesh");
    }
    TRY(check_has_ranks(mesh));
    int start = origin(mesh);
    for (int i = 0; i < mesh->n_ranks; i++) {
        ranks_out[i] = rank_at_place(mesh, start, i);
    }
    return SHOAL_OK;
}

/* Groups ----------------------------------------------------------------------------------------------- */

static shoal_group *group_of(const shoal_mesh *mesh, int index)
{
    if (!mesh->dims[index].group) {
        (void)fail_outside(mesh, "groups");
    }
    return mesh->dims[index].group;
}

shoal_group *shoal_mesh_group(const shoal_mesh *mesh, int dim)
{
    int index = find_dim(mesh, dim);
    return index >= 0 ? group_of(mesh, index) : NULL;
}

shoal_group *shoal_mesh_group_by_name(const shoal_mesh *mesh, const char *name)
{
    if (!mesh || !name) {
        (void)error_set(SHOAL_ERR_INVALID, "mesh_group_by_name: %s is NULL", mesh ? "name" : "mesh");
        return NULL;
    }
    int dim = mesh_dim_of(mesh, name);
    if (dim >= 0) {
        return group_of(mesh, dim);
    }
    const shoal_mesh *flattened = mesh == mesh->family->root ? mesh_find_flattened(mesh->family, name) : NULL;
    if (!flattened) {
        (void)mesh_fail_with_unknown_name(mesh, name);
        return NULL;
    }
    return group_of(flattened, 0);
}

/* Equality and text ------------------------------------------------------------------------------------ */

static bool names_equal(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : !a && !b;
}

static bool dims_equal(const shoal_mesh *a, const shoal_mesh *b)
{
    for (int i = 0; i < a->n_dims; i++) {
        if (a->shape[i] != b->shape[i] || !names_equal(a->dims[i].name, b->dims[i].name)) {
            return false;
        }
    }
    return true;
}

static bool ranks_equal(const shoal_mesh *a, const shoal_mesh *b)
{
    int a_start = origin(a);
    int b_start = origin(b);
    for (int i = 0; i < a->n_ranks; i++) {
        if (rank_at_place(a, a_start, i) != rank_at_place(b, b_start, i)) {
            return false;
        }
    }
    return true;
}

bool shoal_mesh_equal(const shoal_mesh *a, const shoal_mesh *b)
{
    if (a == b) {
        return true;
    }
    if (!a || !b || a->family->world != b->family->world ||
        strcmp(a->family->device, b->family->device) != 0 || a->n_dims != b->n_dims) {
        return false;
    }
    /* On a rank outside of the family, the part at position 0 is compared. */
    return (a->family->position < 0) == (b->family->position < 0) && dims_equal(a, b) && ranks_equal(a, b);
}

/* Text that is cut when there is no more room, while its length is still counted. */
struct writer {
    char *text;
    size_t bytes;
    size_t n_chars;
};

static void write_text(struct writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void write_text(struct writer *writer, const char *format, ...)
{
    bool has_room = writer->n_chars < writer->bytes;
    va_list arguments;
    va_start(arguments, format);
    int n_more = vsnprintf(has_room ? writer->text + writer->n_chars : NULL,
                           has_room ? writer->bytes - writer->n_chars : 0, format, arguments);
    va_end(arguments);
    writer->n_chars += n_more > 0 ? (size_t)n_more : 0;
}

static void write_ranks(struct writer *writer, const shoal_mesh *mesh)
{
    int start = origin(mesh);
    for (int place = 0; place < mesh->n_ranks; place++) {
        /* Brackets open and close with every dimension that begins or ends here. */
        int block = 1;
        for (int i = mesh->n_dims - 1; i >= 0; i--) {
            block *= mesh->shape[i];
            write_text(writer, "%s", place % block == 0 ? "[" : "");
        }
        write_text(writer, "%d", rank_at_place(mesh, start, place));
        block = 1;
        for (int i = mesh->n_dims - 1; i >= 0; i--) {
            block *= mesh->shape[i];
            write_text(writer, "%s", (place + 1) % block == 0 ? "]" : "");
        }
        write_text(writer, "%s", place + 1 < mesh->n_ranks ? ", " : "");
    }
}

size_t shoal_mesh_describe(const shoal_mesh *mesh, char *text, size_t bytes)
{
    struct writer writer = {.text = text, .bytes = text ? bytes : 0};
    if (!mesh) {
        write_text(&writer, "no mesh");
        return writer.n_chars;
    }
    write_text(&writer, "mesh %s", mesh->family->device);
    for (int i = 0; i < mesh->n_dims; i++) {
        const char *name = mesh->dims[i].name;
        write_text(&writer, " %s%s%d", name ? name : "", name ? "=" : "", mesh->shape[i]);
    }
    write_text(&writer, " ");
    if (mesh->family->position < 0 && mesh->n_ranks != mesh->family->n_ranks) {
        write_text(&writer, "without rank %d", shoal_world_rank(mesh->family->world));
    } else {
        write_ranks(&writer, mesh);
    }
    return writer.n_chars;
}
