/* SPDX-License-Identifier: MIT */
/* Random chains of mesh operations against arrays that are reshaped naively, seen from every rank of a world. */
#include <stdio.h>
#include <string.h>

#include "fixtures/mesh_checks.h"
#include "harness/test.h"
#include "shoal/mesh.h"

#define MAX_RANKS 24

/* What a mesh is to one rank: an array written out. */
struct model {
    int n_dims;
    int shape[SHOAL_MESH_MAX_DIMS];
    char names[SHOAL_MESH_MAX_DIMS][96];
    int ranks[MAX_RANKS];
    int n_ranks;
};

static int model_rank_at(const struct model *model, const int *coordinate)
{
    int place = 0;
    for (int i = 0; i < model->n_dims; i++) {
        place = place * model->shape[i] + coordinate[i];
    }
    return model->ranks[place];
}

/* The coordinates of a place counted row-major. */
static void unfold(const struct model *model, int place, int *coordinate)
{
    for (int i = model->n_dims - 1; i >= 0; i--) {
        coordinate[i] = place % model->shape[i];
        place /= model->shape[i];
    }
}

/* Where `rank` is; where index 0 is for a rank outside. */
static bool model_coordinate(const struct model *model, int rank, int *coordinate)
{
    unfold(model, 0, coordinate);
    for (int i = 0; i < model->n_ranks; i++) {
        if (model->ranks[i] == rank) {
            unfold(model, i, coordinate);
            return true;
        }
    }
    return false;
}

static void check_against_model(const shoal_mesh *mesh, const struct model *model, int rank)
{
    CHECK_INT(shoal_mesh_n_dims(mesh), model->n_dims);
    CHECK_INT(shoal_mesh_n_ranks(mesh), model->n_ranks);
    int coordinate[SHOAL_MESH_MAX_DIMS];
    int actual[SHOAL_MESH_MAX_DIMS];
    bool is_member = model_coordinate(model, rank, coordinate);
    CHECK_INT(shoal_mesh_coordinate(mesh, actual), is_member);
    for (int i = 0; i < model->n_dims; i++) {
        CHECK_INT(shoal_mesh_shape(mesh)[i], model->shape[i]);
        CHECK_STRING(shoal_mesh_dim_name(mesh, i), model->names[i]);
        if (!is_member) {
            CHECK(shoal_mesh_group(mesh, i) == NULL);
            continue;
        }
        CHECK_INT(actual[i], coordinate[i]);
        int line[MAX_RANKS];
        int moving[SHOAL_MESH_MAX_DIMS];
        memcpy(moving, coordinate, sizeof moving);
        for (moving[i] = 0; moving[i] < model->shape[i]; moving[i]++) {
            line[moving[i]] = model_rank_at(model, moving);
        }
        check_group_ranks(shoal_mesh_group(mesh, i), line, model->shape[i]);
        CHECK_INT(shoal_group_rank(shoal_mesh_group(mesh, i)), coordinate[i]);
    }
    if (!is_member) {
        return;
    }
    check_ranks(mesh, model->ranks, model->n_ranks);
}

/* Keeps dims[0], dims[1], ... in that order; the others stay where the rank is. */
static void model_slice(struct model *model, const int *dims, int n_dims, int rank)
{
    struct model part = {.n_dims = n_dims, .n_ranks = 1};
    int coordinate[SHOAL_MESH_MAX_DIMS];
    (void)model_coordinate(model, rank, coordinate);
    for (int i = 0; i < n_dims; i++) {
        part.shape[i] = model->shape[dims[i]];
        part.n_ranks *= part.shape[i];
        memcpy(part.names[i], model->names[dims[i]], sizeof part.names[i]);
    }
    for (int place = 0; place < part.n_ranks; place++) {
        int inner[SHOAL_MESH_MAX_DIMS];
        unfold(&part, place, inner);
        for (int i = 0; i < n_dims; i++) {
            coordinate[dims[i]] = inner[i];
        }
        part.ranks[place] = model_rank_at(model, coordinate);
    }
    *model = part;
}

static void model_flatten(struct model *model, const char *name)
{
    model->n_dims = 1;
    model->shape[0] = model->n_ranks;
    (void)snprintf(model->names[0], sizeof model->names[0], "%s", name);
}

static void model_unflatten(struct model *model, int dim, const int *sizes, int n_sizes,
                            const char *const *names)
{
    struct model old = *model;
    for (int i = 0; i < n_sizes; i++) {
        model->shape[dim + i] = sizes[i];
        (void)snprintf(model->names[dim + i], sizeof model->names[0], "%s", names[i]);
    }
    for (int i = dim + 1; i < old.n_dims; i++) {
        model->shape[i + n_sizes - 1] = old.shape[i];
        memcpy(model->names[i + n_sizes - 1], old.names[i], sizeof old.names[i]);
    }
    model->n_dims += n_sizes - 1;
}

/* All that is random depends on the seed alone, so that every rank does the same. */
struct walk {
    struct test_random random;
    int rank;
    int n_named; /* names made up so far */
    shoal_mesh *mesh;
    struct model model;
};

static int pick(struct walk *walk, int bound)
{
    return (int)test_random_below(&walk->random, (uint64_t)bound);
}

static void step_to(struct walk *walk, shoal_mesh *mesh)
{
    shoal_mesh_free(walk->mesh);
    walk->mesh = mesh;
}

static void walk_slice(struct walk *walk)
{
    int dims[SHOAL_MESH_MAX_DIMS];
    const char *names[SHOAL_MESH_MAX_DIMS];
    int n_dims = walk->model.n_dims;
    for (int i = 0; i < n_dims; i++) {
        int k = pick(walk, i + 1);
        dims[i] = dims[k];
        dims[k] = i;
    }
    int n_kept = 1 + pick(walk, n_dims);
    for (int i = 0; i < n_kept; i++) {
        names[i] = walk->model.names[dims[i]];
    }
    shoal_mesh *mesh = NULL;
    if (!CHECK_OK(shoal_mesh_slice(walk->mesh, names, n_kept, &mesh))) {
        return;
    }
    model_slice(&walk->model, dims, n_kept, walk->rank);
    step_to(walk, mesh);
}

static void walk_flatten(struct walk *walk)
{
    char name[32];
    (void)snprintf(name, sizeof name, "flat%d", walk->n_named++);
    shoal_mesh *mesh = NULL;
    if (!CHECK_OK(shoal_mesh_flatten(walk->mesh, name, &mesh))) {
        return;
    }
    model_flatten(&walk->model, name);
    step_to(walk, mesh);
}

/* Returns false where the sizes cut through what was flattened apart. */
static bool walk_unflatten(struct walk *walk)
{
    int dim = pick(walk, walk->model.n_dims);
    int size = walk->model.shape[dim];
    int first = 1 + pick(walk, size);
    while (size % first != 0) {
        first--;
    }
    int sizes[] = {first, size / first};
    char texts[2][32];
    (void)snprintf(texts[0], sizeof texts[0], "cut%d", walk->n_named++);
    (void)snprintf(texts[1], sizeof texts[1], "cut%d", walk->n_named++);
    const char *names[] = {texts[0], texts[1]};
    if (walk->model.n_dims == SHOAL_MESH_MAX_DIMS) {
        return true;
    }
    shoal_mesh *mesh = NULL;
    shoal_status status = shoal_mesh_unflatten(walk->mesh, dim, sizes, 2, names, &mesh);
    if (status == SHOAL_ERR_UNSUPPORTED) {
        return false;
    }
    if (CHECK_OK(status)) {
        model_unflatten(&walk->model, dim, sizes, 2, names);
        step_to(walk, mesh);
    }
    return true;
}

/* Each dimension cut out alone, then joined again: nothing changes. */
static void walk_concatenate(struct walk *walk)
{
    shoal_mesh *lines[SHOAL_MESH_MAX_DIMS] = {NULL};
    for (int i = 0; i < walk->model.n_dims; i++) {
        CHECK_OK(shoal_mesh_slice(walk->mesh, NAMES(walk->model.names[i]), 1, &lines[i]));
    }
    shoal_mesh *joined = NULL;
    CHECK_OK(shoal_mesh_concatenate(lines, walk->model.n_dims, &joined));
    CHECK(joined == walk->mesh);
    shoal_mesh_free(joined);
    for (int i = 0; i < walk->model.n_dims; i++) {
        shoal_mesh_free(lines[i]);
    }
}

static void model_begin(struct model *model, struct test_random *random, int n_world_ranks)
{
    *model = (struct model){.n_ranks = 1};
    do {
        int size = 1 + (int)test_random_below(random, 4);
        if (model->n_ranks * size > n_world_ranks) {
            break;
        }
        (void)snprintf(model->names[model->n_dims], sizeof model->names[0], "dim%d", model->n_dims);
        model->shape[model->n_dims] = size;
        model->n_ranks *= size;
        model->n_dims++;
    } while (model->n_dims < 5);
    if (model->n_dims == 0) {
        model->n_dims = 1;
        model->shape[0] = 1;
        (void)snprintf(model->names[0], sizeof model->names[0], "dim0");
    }
    int shuffled[MAX_RANKS];
    for (int i = 0; i < n_world_ranks; i++) {
        int k = (int)test_random_below(random, (uint64_t)i + 1);
        shuffled[i] = shuffled[k];
        shuffled[k] = i;
    }
    memcpy(model->ranks, shuffled, (size_t)model->n_ranks * sizeof(int));
}

static void walk_once(shoal_world *world, uint64_t salt, int *n_uncuttable)
{
    struct walk walk = {.random = test_random_begin(salt), .rank = shoal_world_rank(world)};
    model_begin(&walk.model, &walk.random, shoal_world_n_ranks(world));
    const char *names[SHOAL_MESH_MAX_DIMS];
    for (int i = 0; i < walk.model.n_dims; i++) {
        names[i] = walk.model.names[i];
    }
    if (!CHECK_OK(shoal_mesh_create(world, "cpu", walk.model.ranks, walk.model.shape, walk.model.n_dims,
                                    names, &walk.mesh))) {
        return;
    }
    check_against_model(walk.mesh, &walk.model, walk.rank);
    for (int step = 0; step < 8 && !test_has_failed(); step++) {
        switch (pick(&walk, 6)) {
        case 0:
            walk_slice(&walk);
            break;
        case 1:
            walk_flatten(&walk);
            break;
        case 2:
            walk_concatenate(&walk);
            break;
        default:
            *n_uncuttable += walk_unflatten(&walk) ? 0 : 1;
            break;
        }
        check_against_model(walk.mesh, &walk.model, walk.rank);
    }
    shoal_mesh_free(walk.mesh);
}

TEST(random_chains_are_reshaped_arrays)
{
    struct test_random random = test_random_begin(1);
    int n_uncuttable = 0;
    for (int turn = 0; turn < 12 && !test_has_failed(); turn++) {
        int n_ranks = turn == 0 ? MAX_RANKS : 1 + (int)test_random_below(&random, MAX_RANKS);
        for (int rank = 0; rank < n_ranks && !test_has_failed(); rank++) {
            shoal_world *world = open_fake(n_ranks, rank);
            REQUIRE(world != NULL);
            for (uint64_t k = 0; k < 4; k++) {
                walk_once(world, 100 + (uint64_t)turn * 10 + k, &n_uncuttable);
            }
            CHECK_OK(shoal_world_close(world));
        }
    }
}
