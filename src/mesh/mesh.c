/* SPDX-License-Identifier: MIT */
/* Making meshes, and the list of a family's meshes: shoal/mesh.h, mesh/mesh.h. */
#include "mesh/mesh.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "device/device.h"

int mesh_position(const struct mesh_family *family)
{
    return family->position < 0 ? 0 : family->position;
}

/* Meshes of a family ----------------------------------------------------------------------------------- */

static void mesh_destroy(shoal_mesh *mesh)
{
    for (int i = 0; i < mesh->n_dims; i++) {
        mem_free((char *)mesh->dims[i].name);
        group_unref(mesh->dims[i].group);
    }
    mem_free(mesh);
}

/* World ranks of the line that the caller is on. */
static void line_ranks(const struct mesh_family *family, const struct mesh_line *line, int *ranks)
{
    int position = mesh_position(family);
    int start = position - mesh_line_offset(line, mesh_line_index(line, position));
    for (int i = 0; i < line->size; i++) {
        ranks[i] = family->ranks[start + mesh_line_offset(line, i)];
    }
}

static shoal_status create_group(const struct mesh_family *family, const struct mesh_dim *dim, int index,
                                 shoal_group **group_out)
{
    char tag[SHOAL_MESH_MAX_NAME + 16];
    if (dim->name) {
        (void)snprintf(tag, sizeof tag, "mesh/%s", dim->name);
    } else {
        (void)snprintf(tag, sizeof tag, "mesh_dim/%d", index);
    }
    int *ranks = mem_alloc((size_t)dim->line.size * sizeof(int));
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    line_ranks(family, &dim->line, ranks);
    shoal_status status = shoal_group_create(family->world, ranks, dim->line.size, tag, group_out);
    mem_free(ranks);
    return status;
}

/* Fills in a dimension of a new mesh. After a failure, what it has is freed with the mesh. */
static shoal_status complete_dim(const struct mesh_family *family, const struct mesh_dim *plan, int index,
                                 struct mesh_dim *dim)
{
    dim->line = plan->line;
    if (plan->name) {
        dim->name = mem_copy_string(plan->name);
        if (!dim->name) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    if (family->position < 0) {
        return SHOAL_OK;
    }
    if (plan->group) {
        dim->group = group_ref(plan->group);
        return SHOAL_OK;
    }
    shoal_group *group = NULL;
    TRY(create_group(family, plan, index, &group));
    dim->group = group_ref(group);
    return SHOAL_OK;
}

static shoal_status mesh_make(struct mesh_family *family, const struct mesh_plan *plan, shoal_mesh **mesh_out)
{
    shoal_mesh *mesh = mem_alloc_zeroed(1, sizeof(*mesh));
    if (!mesh) {
        return SHOAL_ERR_NO_MEMORY;
    }
    mesh->family = family;
    mesh->n_ranks = 1;
    for (int i = 0; i < plan->n_dims; i++) {
        mesh->n_dims = i + 1;
        mesh->shape[i] = plan->dims[i].line.size;
        mesh->n_ranks *= mesh->shape[i];
        shoal_status status = complete_dim(family, &plan->dims[i], i, &mesh->dims[i]);
        if (status != SHOAL_OK) {
            mesh_destroy(mesh);
            return status;
        }
    }
    *mesh_out = mesh;
    return SHOAL_OK;
}

static bool names_equal(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : !a && !b;
}

static bool is_as_planned(const shoal_mesh *mesh, const struct mesh_plan *plan)
{
    if (mesh->n_dims != plan->n_dims) {
        return false;
    }
    for (int i = 0; i < plan->n_dims; i++) {
        if (!names_equal(mesh->dims[i].name, plan->dims[i].name) ||
            !mesh_line_equal(&mesh->dims[i].line, &plan->dims[i].line)) {
            return false;
        }
    }
    return true;
}

/* Under the family's lock. */
static shoal_mesh *find_planned(const struct mesh_family *family, const struct mesh_plan *plan)
{
    shoal_mesh *mesh = family->meshes;
    while (mesh && !is_as_planned(mesh, plan)) {
        mesh = mesh->next;
    }
    return mesh;
}

/* Under the family's lock. */
static shoal_mesh *find_flattened(const struct mesh_family *family, const char *name)
{
    shoal_mesh *mesh = family->meshes;
    while (mesh && !(mesh->is_flattened && strcmp(mesh->dims[0].name, name) == 0)) {
        mesh = mesh->next;
    }
    return mesh;
}

shoal_mesh *mesh_find_flattened(struct mesh_family *family, const char *name)
{
    (void)pthread_mutex_lock(&family->lock);
    shoal_mesh *mesh = find_flattened(family, name);
    (void)pthread_mutex_unlock(&family->lock);
    return mesh;
}

/* Under the family's lock: a name can belong to one flattened mesh only. */
static shoal_status check_flattened_name(const struct mesh_family *family, const struct mesh_plan *plan)
{
    const shoal_mesh *other = find_flattened(family, plan->dims[0].name);
    if (!other || mesh_line_equal(&other->dims[0].line, &plan->dims[0].line)) {
        return SHOAL_OK;
    }
    return error_set(
        SHOAL_ERR_INVALID,
        "mesh_flatten: \"%s\" is the name of other dimensions already, of size %d; these have size %d",
        plan->dims[0].name, other->shape[0], plan->dims[0].line.size);
}

/*
 * Called under the family's lock. Returns the mesh if there is one. Otherwise adds *made to the list, unless it is
 * NULL, and sets *made to NULL.
 */
static shoal_status find_or_list(struct mesh_family *family, const struct mesh_plan *plan, bool is_flattened,
                                 shoal_mesh **made, shoal_mesh **mesh_out)
{
    if (is_flattened) {
        TRY(check_flattened_name(family, plan));
    }
    shoal_mesh *mesh = find_planned(family, plan);
    if (!mesh && *made) {
        mesh = *made;
        *made = NULL;
        mesh->next = family->meshes;
        family->meshes = mesh;
    }
    if (mesh && is_flattened) {
        mesh->is_flattened = true;
    }
    *mesh_out = mesh;
    return SHOAL_OK;
}

static shoal_status find_or_list_locked(struct mesh_family *family, const struct mesh_plan *plan,
                                        bool is_flattened, shoal_mesh **made, shoal_mesh **mesh_out)
{
    (void)pthread_mutex_lock(&family->lock);
    shoal_status status = find_or_list(family, plan, is_flattened, made, mesh_out);
    (void)pthread_mutex_unlock(&family->lock);
    return status;
}

shoal_status mesh_intern(struct mesh_family *family, const struct mesh_plan *plan, bool is_flattened,
                         shoal_mesh **mesh_out)
{
    shoal_mesh *made = NULL;
    shoal_mesh *mesh = NULL;
    TRY(find_or_list_locked(family, plan, is_flattened, &made, &mesh));
    if (!mesh) {
        /* Groups are made without the lock. If two threads make the same mesh, only the first is listed. */
        TRY(mesh_make(family, plan, &made));
        shoal_status status = find_or_list_locked(family, plan, is_flattened, &made, &mesh);
        if (made) {
            mesh_destroy(made);
        }
        TRY(status);
    }
    *mesh_out = shoal_mesh_ref(mesh);
    return SHOAL_OK;
}

/* Families --------------------------------------------------------------------------------------------- */

static void family_destroy(struct owned *owned)
{
    struct mesh_family *family = (struct mesh_family *)owned;
    while (family->meshes) {
        shoal_mesh *mesh = family->meshes;
        family->meshes = mesh->next;
        mesh_destroy(mesh);
    }
    (void)pthread_mutex_destroy(&family->lock);
    mem_free(family);
}

static struct mesh_family *family_create(shoal_world *world, const char *device, const int *ranks,
                                         int n_ranks)
{
    struct mesh_family *family = mem_alloc_zeroed(1, sizeof(*family) + (size_t)n_ranks * sizeof(int));
    if (!family) {
        return NULL;
    }
    family->owned.destroy = family_destroy;
    atomic_init(&family->references, 0);
    family->world = world;
    family->device = device;
    family->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    family->position = -1;
    family->n_ranks = n_ranks;
    for (int i = 0; i < n_ranks; i++) {
        family->ranks[i] = ranks ? ranks[i] : i;
        if (family->ranks[i] == shoal_world_rank(world)) {
            family->position = i;
        }
    }
    return family;
}

shoal_mesh *shoal_mesh_ref(shoal_mesh *mesh)
{
    if (mesh) {
        refcount_get(&mesh->family->references);
    }
    return mesh;
}

void shoal_mesh_free(shoal_mesh *mesh)
{
    if (mesh && refcount_put(&mesh->family->references)) {
        struct mesh_family *family = mesh->family;
        owned_list_remove(world_owned(family->world), &family->owned);
        family_destroy(&family->owned);
    }
}

/* Checking arguments ----------------------------------------------------------------------------------- */

static shoal_status find_device(const char *name, const char **device_out)
{
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "mesh: device is NULL, the name of a device (\"cpu\") expected");
    }
    size_t n_letters = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    if (name[n_letters] != '\0') {
        return error_set(SHOAL_ERR_INVALID,
                         "mesh: device is \"%.32s\", but a mesh takes the name of a kind of device "
                         "(\"cpu\"), without an index",
                         name);
    }
    shoal_device device;
    shoal_status status = device_find(name, &device);
    if (status != SHOAL_OK) {
        return error_prefix(status, "mesh");
    }
    *device_out = device_name(device);
    return SHOAL_OK;
}

static shoal_status check_shape(const int *shape, int n_dims, int n_world_ranks, int *n_ranks_out)
{
    if (n_dims < 1 || n_dims > SHOAL_MESH_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID, "mesh: n_dims is %d, 1 to %d expected", n_dims,
                         SHOAL_MESH_MAX_DIMS);
    }
    if (!shape) {
        return error_set(SHOAL_ERR_INVALID, "mesh: shape is NULL");
    }
    int64_t n_ranks = 1;
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] < 1) {
            return error_set(SHOAL_ERR_INVALID, "mesh: dimension %d has size %d, at least 1 expected", i,
                             shape[i]);
        }
        n_ranks *= shape[i];
        if (n_ranks > n_world_ranks) {
            return error_set(SHOAL_ERR_INVALID,
                             "mesh: the first %d dimensions need %lld ranks, but the world has %d", i + 1,
                             (long long)n_ranks, n_world_ranks);
        }
    }
    *n_ranks_out = (int)n_ranks;
    return SHOAL_OK;
}

shoal_status mesh_check_name(const char *name, const char *what, int index)
{
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "%s: name %d is NULL", what, index);
    }
    size_t n_chars = strlen(name);
    if (n_chars == 0 || n_chars > SHOAL_MESH_MAX_NAME) {
        return error_set(SHOAL_ERR_INVALID, "%s: name %d has %zu characters, 1 to %d expected", what, index,
                         n_chars, SHOAL_MESH_MAX_NAME);
    }
    for (size_t i = 0; i < n_chars; i++) {
        if (name[i] < ' ' || name[i] > '~') {
            return error_set(SHOAL_ERR_INVALID, "%s: name %d: character %zu (0x%02x) is not printable ASCII",
                             what, index, i, (unsigned)(unsigned char)name[i]);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_names(const char *const *names, int n_dims)
{
    for (int i = 0; names && i < n_dims; i++) {
        TRY(mesh_check_name(names[i], "mesh", i));
        for (int k = 0; k < i; k++) {
            if (strcmp(names[i], names[k]) == 0) {
                return error_set(SHOAL_ERR_INVALID, "mesh: dimensions %d and %d are both called \"%s\"", k, i,
                                 names[i]);
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status check_ranks_with(const int *ranks, int n_ranks, int n_world_ranks, int *place_of)
{
    for (int i = 0; i < n_ranks; i++) {
        int rank = ranks[i];
        if (rank < 0 || rank >= n_world_ranks) {
            return error_set(SHOAL_ERR_INVALID,
                             "mesh: ranks has rank %d at position %d, but the world has ranks 0 to %d", rank,
                             i, n_world_ranks - 1);
        }
        if (place_of[rank] != 0) {
            return error_set(SHOAL_ERR_INVALID, "mesh: ranks has rank %d twice, at positions %d and %d", rank,
                             place_of[rank] - 1, i);
        }
        place_of[rank] = i + 1;
    }
    return SHOAL_OK;
}

static shoal_status check_ranks(const int *ranks, int n_ranks, int n_world_ranks)
{
    int *place_of = mem_alloc_zeroed((size_t)n_world_ranks, sizeof(int));
    if (!place_of) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = check_ranks_with(ranks, n_ranks, n_world_ranks, place_of);
    mem_free(place_of);
    return status;
}

/* Making the first mesh of a family -------------------------------------------------------------------- */

/* Makes a family without a mesh, for a first mesh of this shape. If `ranks` is NULL, they are 0, 1, 2, ... */
static shoal_status begin_family(shoal_world *world, const char *device, const int *ranks, const int *shape,
                                 int n_dims, const char *const *names, struct mesh_family **family_out)
{
    int n_world_ranks = shoal_world_n_ranks(world);
    const char *device_name = NULL;
    int n_ranks = 0;
    TRY(find_device(device, &device_name));
    TRY(check_shape(shape, n_dims, n_world_ranks, &n_ranks));
    TRY(check_names(names, n_dims));
    if (ranks) {
        TRY(check_ranks(ranks, n_ranks, n_world_ranks));
    }
    *family_out = family_create(world, device_name, ranks, n_ranks);
    return *family_out ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static void plan_root(const struct mesh_family *family, const int *shape, int n_dims,
                      const char *const *names, struct mesh_plan *plan)
{
    *plan = (struct mesh_plan){.n_dims = n_dims};
    int stride = family->n_ranks;
    for (int i = 0; i < n_dims; i++) {
        stride /= shape[i];
        plan->dims[i].name = names ? names[i] : NULL;
        mesh_line_init(&plan->dims[i].line, shape[i], stride);
    }
}

static bool is_whole_world_in_order(const struct mesh_family *family)
{
    if (family->n_ranks != shoal_world_n_ranks(family->world)) {
        return false;
    }
    for (int i = 0; i < family->n_ranks; i++) {
        if (family->ranks[i] != i) {
            return false;
        }
    }
    return true;
}

/* Makes the first mesh of the family. From now on the family belongs to its handles. */
static shoal_status finish_family(struct mesh_family *family, const struct mesh_plan *plan,
                                  shoal_mesh **mesh_out)
{
    shoal_mesh *root = NULL;
    shoal_status status = mesh_intern(family, plan, false, &root);
    if (status != SHOAL_OK) {
        family_destroy(&family->owned);
        return status;
    }
    family->root = root;
    owned_list_add(world_owned(family->world), &family->owned);
    *mesh_out = root;
    return SHOAL_OK;
}

static shoal_status create_mesh(shoal_world *world, const char *device, const int *ranks, const int *shape,
                                int n_dims, const char *const *names, shoal_mesh **mesh_out)
{
    if (!world) {
        return error_set(SHOAL_ERR_INVALID, "mesh: world is NULL");
    }
    if (!mesh_out) {
        return error_set(SHOAL_ERR_INVALID, "mesh: mesh_out is NULL");
    }
    struct mesh_family *family;
    TRY(begin_family(world, device, ranks, shape, n_dims, names, &family));
    struct mesh_plan plan;
    plan_root(family, shape, n_dims, names, &plan);
    if (n_dims == 1 && is_whole_world_in_order(family)) {
        plan.dims[0].group = shoal_world_group(world);
    }
    return finish_family(family, &plan, mesh_out);
}

shoal_status shoal_mesh_create(shoal_world *world, const char *device, const int *ranks, const int *shape,
                               int n_dims, const char *const *names, shoal_mesh **mesh_out)
{
    error_clear();
    return create_mesh(world, device, ranks, shape, n_dims, names, mesh_out);
}

/* From groups ------------------------------------------------------------------------------------------ */

/* Checks that the group consists of the ranks of the caller's line along the dimension. */
static shoal_status check_group(const struct mesh_family *family, const struct mesh_dim *dim, int index,
                                const shoal_group *group)
{
    const struct mesh_line *line = &dim->line;
    int n_ranks = shoal_group_n_ranks(group);
    if (n_ranks != line->size) {
        return error_set(SHOAL_ERR_INVALID,
                         "mesh_from_groups: dimension %d has size %d, but its group has %d ranks", index,
                         line->size, n_ranks);
    }
    if (family->position < 0) {
        return error_set(
            SHOAL_ERR_INVALID,
            "mesh_from_groups: rank %d has the group of dimension %d, but is not among the ranks "
            "of the mesh",
            shoal_world_rank(family->world), index);
    }
    int start = family->position - mesh_line_offset(line, mesh_line_index(line, family->position));
    for (int i = 0; i < n_ranks; i++) {
        int expected = family->ranks[start + mesh_line_offset(line, i)];
        if (shoal_group_world_rank(group, i) != expected) {
            return error_set(
                SHOAL_ERR_INVALID,
                "mesh_from_groups: dimension %d has rank %d at index %d, but its group has rank %d there",
                index, expected, i, shoal_group_world_rank(group, i));
        }
    }
    return SHOAL_OK;
}

static shoal_status use_groups(const struct mesh_family *family, struct mesh_plan *plan,
                               shoal_group *const *groups)
{
    for (int i = 0; i < plan->n_dims; i++) {
        TRY(check_group(family, &plan->dims[i], i, groups[i]));
        plan->dims[i].group = groups[i];
    }
    return SHOAL_OK;
}

static shoal_status check_group_list(shoal_group *const *groups, int n_groups)
{
    if (n_groups < 1) {
        return error_set(SHOAL_ERR_INVALID, "mesh_from_groups: %d groups are given, at least 1 expected",
                         n_groups);
    }
    if (!groups) {
        return error_set(SHOAL_ERR_INVALID, "mesh_from_groups: groups is NULL");
    }
    for (int i = 0; i < n_groups; i++) {
        if (!groups[i]) {
            return error_set(SHOAL_ERR_INVALID, "mesh_from_groups: group %d is NULL", i);
        }
        if (shoal_group_world(groups[i]) != shoal_group_world(groups[0])) {
            return error_set(SHOAL_ERR_INVALID, "mesh_from_groups: groups 0 and %d are of different worlds",
                             i);
        }
    }
    return SHOAL_OK;
}

static shoal_status mesh_from_groups(shoal_group *const *groups, const char *device, const int *ranks,
                                     const int *shape, int n_dims, const char *const *names,
                                     shoal_mesh **mesh_out)
{
    struct mesh_family *family;
    TRY(begin_family(shoal_group_world(groups[0]), device, ranks, shape, n_dims, names, &family));
    struct mesh_plan plan;
    plan_root(family, shape, n_dims, names, &plan);
    shoal_status status = use_groups(family, &plan, groups);
    if (status != SHOAL_OK) {
        family_destroy(&family->owned);
        return status;
    }
    return finish_family(family, &plan, mesh_out);
}

static shoal_status mesh_from_one_group(shoal_group *group, const char *device, const char *const *names,
                                        shoal_mesh **mesh_out)
{
    int n_ranks = shoal_group_n_ranks(group);
    int *ranks = mem_alloc((size_t)n_ranks * sizeof(int));
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = shoal_group_world_rank(group, i);
    }
    shoal_status status = mesh_from_groups(&group, device, ranks, &n_ranks, 1, names, mesh_out);
    mem_free(ranks);
    return status;
}

shoal_status shoal_mesh_from_groups(shoal_group *const *groups, int n_groups, const char *device,
                                    const int *ranks, const int *shape, int n_dims, const char *const *names,
                                    shoal_mesh **mesh_out)
{
    error_clear();
    TRY(check_group_list(groups, n_groups));
    if (!mesh_out) {
        return error_set(SHOAL_ERR_INVALID, "mesh: mesh_out is NULL");
    }
    if (n_groups == 1 && !ranks) {
        return mesh_from_one_group(groups[0], device, names, mesh_out);
    }
    if (!ranks) {
        return error_set(SHOAL_ERR_INVALID, "mesh_from_groups: ranks is NULL, but %d groups need it",
                         n_groups);
    }
    if (n_groups > 1 && !names) {
        return error_set(SHOAL_ERR_INVALID, "mesh_from_groups: names is NULL, but %d groups need names",
                         n_groups);
    }
    if (n_dims != n_groups) {
        return error_set(SHOAL_ERR_INVALID, "mesh_from_groups: %d groups are given for %d dimensions",
                         n_groups, n_dims);
    }
    return mesh_from_groups(groups, device, ranks, shape, n_dims, names, mesh_out);
}
