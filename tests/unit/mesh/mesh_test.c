/* SPDX-License-Identifier: MIT */
/* Meshes: the examples of the specification, lifetimes, threads, and collectives along dimensions. */
#include <pthread.h>
#include <string.h>

#include "comm/group/group.h"
#include "fixtures/mesh_checks.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/mesh.h"

/* Examples --------------------------------------------------------------------------------------------- */

TEST(two_dimensions_as_in_the_specification)
{
    shoal_world *world = open_fake(8, 5);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 4), 2, NAMES("dp", "tp"), &mesh));
    check_ranks(mesh, INTS(0, 1, 2, 3, 4, 5, 6, 7), 8);
    CHECK_INT(shoal_mesh_n_dims(mesh), 2);
    CHECK_INT(shoal_mesh_shape(mesh)[0], 2);
    CHECK_INT(shoal_mesh_shape(mesh)[1], 4);
    CHECK_STRING(shoal_mesh_device(mesh), "cpu");
    CHECK_STRING(shoal_mesh_dim_name(mesh, -2), "dp");
    CHECK_INT(shoal_mesh_find_dim(mesh, "tp"), 1);
    CHECK(shoal_mesh_world(mesh) == world);
    int coordinate[2];
    REQUIRE(shoal_mesh_coordinate(mesh, coordinate));
    CHECK_INT(coordinate[0], 1);
    CHECK_INT(coordinate[1], 1);
    check_group_ranks(shoal_mesh_group(mesh, 0), INTS(1, 5), 2);
    check_group_ranks(shoal_mesh_group_by_name(mesh, "tp"), INTS(4, 5, 6, 7), 4);
    CHECK_STRING(shoal_mesh_group(mesh, 0)->tag, "mesh/dp");

    shoal_mesh *tp = NULL;
    shoal_mesh *dp = NULL;
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("tp"), 1, &tp));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("dp"), 1, &dp));
    check_ranks(tp, INTS(4, 5, 6, 7), 4);
    check_ranks(dp, INTS(1, 5), 2);
    CHECK(shoal_mesh_group(tp, 0) == shoal_mesh_group(mesh, 1));
    char text[128];
    size_t chars = shoal_mesh_describe(mesh, text, sizeof text);
    CHECK_INT(chars, strlen(text));
    CHECK_STRING(text, "mesh cpu dp=2 tp=4 [[0, 1, 2, 3], [4, 5, 6, 7]]");
    CHECK_INT(shoal_mesh_describe(mesh, NULL, 0), (long long)strlen(text));
    CHECK_INT(shoal_mesh_describe(mesh, text, 9), 47);
    CHECK_STRING(text, "mesh cpu");
    shoal_mesh_free(mesh);
    shoal_mesh_free(dp);
    check_ranks(tp, INTS(4, 5, 6, 7), 4); /* the family lives as long as one handle */
    shoal_mesh_free(tp);
    shoal_mesh_free(NULL);
    CHECK_OK(shoal_world_close(world));
}

TEST(flattening_dimensions_that_do_not_lie_together)
{
    shoal_world *world = open_fake(8, 3);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *slice = NULL;
    shoal_mesh *flat = NULL;
    shoal_mesh *again = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 2, 2), 3, NAMES("dp", "cp", "tp"), &mesh));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("dp", "cp"), 2, &slice));
    check_ranks(slice, INTS(1, 3, 5, 7), 4);
    REQUIRE_OK(shoal_mesh_flatten(slice, NULL, &flat));
    CHECK_STRING(shoal_mesh_dim_name(flat, 0), "dp_cp");
    check_ranks(flat, INTS(1, 3, 5, 7), 4);
    check_group_ranks(shoal_mesh_group_by_name(mesh, "dp_cp"), INTS(1, 3, 5, 7), 4);
    /* Asked again, with or without the name, it is the same one. */
    REQUIRE_OK(shoal_mesh_flatten(slice, "dp_cp", &again));
    CHECK(again == flat);
    shoal_mesh_free(again);

    /* (dp, tp) are not neighbours; still one dimension, and next to cp. */
    shoal_mesh *outer = NULL;
    shoal_mesh *both = NULL;
    shoal_mesh *split = NULL;
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("dp", "tp"), 2, &outer));
    shoal_mesh *dp_tp = NULL;
    REQUIRE_OK(shoal_mesh_flatten(outer, NULL, &dp_tp));
    check_ranks(dp_tp, INTS(2, 3, 6, 7), 4);
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("dp_tp", "cp"), 2, &both));
    check_ranks(both, INTS(0, 2, 1, 3, 4, 6, 5, 7), 8);
    CHECK(shoal_mesh_group(both, 0) == shoal_mesh_group(dp_tp, 0));
    REQUIRE_OK(shoal_mesh_unflatten(dp_tp, 0, INTS(2, 2), 2, NAMES("a", "b"), &split));
    check_ranks(split, INTS(2, 3, 6, 7), 4);
    check_group_ranks(shoal_mesh_group(split, 0), INTS(3, 7), 2);

    shoal_mesh *const handles[] = {mesh, slice, flat, outer, both, split, dp_tp};
    for (size_t i = 0; i < sizeof handles / sizeof handles[0]; i++) {
        shoal_mesh_free(handles[i]);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST(slices_transpose_and_are_cut_again)
{
    shoal_world *world = open_fake(12, 7);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *transposed = NULL;
    shoal_mesh *itself = NULL;
    shoal_mesh *line = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 3, 2), 3, NAMES("a", "b", "c"), &mesh));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("c", "b"), 2, &transposed));
    check_ranks(transposed, INTS(6, 8, 10, 7, 9, 11), 6);
    REQUIRE_OK(shoal_mesh_slice(transposed, NAMES("b"), 1, &line));
    check_ranks(line, INTS(7, 9, 11), 3);
    CHECK(shoal_mesh_group(line, 0) == shoal_mesh_group(mesh, 1));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("a", "b", "c"), 3, &itself));
    CHECK(itself == mesh);
    CHECK_STATUS(shoal_mesh_slice(transposed, NAMES("a"), 1, &line), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("\"a\"; there are \"c\", \"b\"");
    shoal_mesh_free(itself);
    shoal_mesh_free(mesh);
    shoal_mesh_free(transposed);
    shoal_mesh_free(line);
    CHECK_OK(shoal_world_close(world));
}

TEST(dimensions_of_size_one)
{
    shoal_world *world = open_fake(2, 1);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *slice = NULL;
    shoal_mesh *flat = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(1, 2, 1), 3, NAMES("dp", "cp", "tp"), &mesh));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("dp", "tp"), 2, &slice));
    check_ranks(slice, INTS(1), 1);
    REQUIRE_OK(shoal_mesh_flatten(slice, NULL, &flat));
    check_group_ranks(shoal_mesh_group(flat, 0), INTS(1), 1);
    shoal_mesh_free(slice);
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("dp_tp", "cp"), 2, &slice));
    check_ranks(slice, INTS(0, 1), 2);
    shoal_mesh_free(slice);
    shoal_mesh_free(flat);
    REQUIRE_OK(shoal_mesh_flatten(mesh, "all", &flat));
    check_ranks(flat, INTS(0, 1), 2);
    shoal_mesh_free(flat);
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}

TEST(a_mesh_of_the_whole_world_has_its_group)
{
    shoal_world *world = open_fake(4, 2);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(4), 1, NULL, &mesh));
    CHECK(shoal_mesh_group(mesh, 0) == shoal_world_group(world));
    CHECK(shoal_mesh_dim_name(mesh, 0) == NULL);
    shoal_mesh *flat = NULL;
    REQUIRE_OK(shoal_mesh_flatten(mesh, "lane", &flat));
    CHECK(shoal_mesh_group(flat, 0) != shoal_world_group(world));
    shoal_mesh_free(flat);
    shoal_mesh_free(mesh);
    /* In another order it is another group, and the order is the mesh's. */
    REQUIRE_OK(shoal_mesh_create(world, "cpu", INTS(3, 2, 1, 0), INTS(4), 1, NULL, &mesh));
    CHECK(shoal_mesh_group(mesh, 0) != shoal_world_group(world));
    CHECK_STRING(shoal_mesh_group(mesh, 0)->tag, "mesh_dim/0");
    CHECK_INT(shoal_group_rank(shoal_mesh_group(mesh, 0)), 1);
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}

TEST(a_rank_outside_has_no_coordinate)
{
    shoal_world *world = open_fake(6, 5);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *slice = NULL;
    shoal_mesh *flat = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 2), 2, NAMES("dp", "tp"), &mesh));
    CHECK(!shoal_mesh_coordinate(mesh, NULL));
    CHECK(shoal_mesh_group(mesh, 0) == NULL);
    CHECK_ERROR_TEXT("rank 5 is not among the 4 ranks");
    check_ranks(mesh, INTS(0, 1, 2, 3), 4);

    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("tp"), 1, &slice));
    CHECK_INT(shoal_mesh_shape(slice)[0], 2);
    int ranks[2];
    CHECK_STATUS(shoal_mesh_ranks(slice, ranks), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("rank 5");
    char text[64];
    (void)shoal_mesh_describe(slice, text, sizeof text);
    CHECK_STRING(text, "mesh cpu tp=2 without rank 5");
    REQUIRE_OK(shoal_mesh_flatten(mesh, NULL, &flat));
    CHECK(shoal_mesh_group_by_name(mesh, "dp_tp") == NULL);
    check_ranks(flat, INTS(0, 1, 2, 3), 4);
    shoal_mesh_free(mesh);
    shoal_mesh_free(slice);
    shoal_mesh_free(flat);
    CHECK_OK(shoal_world_close(world));
}

TEST(unflatten_and_concatenate)
{
    shoal_world *world = open_fake(16, 13);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *shard = NULL;
    shoal_mesh *split = NULL;
    shoal_mesh *ep = NULL;
    shoal_mesh *pp = NULL;
    shoal_mesh *joined = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 8), 2, NAMES("pp", "dp_shard"), &mesh));
    REQUIRE_OK(shoal_mesh_unflatten(mesh, 1, INTS(4, 2), 2, NAMES("efsdp", "ep"), &split));
    check_ranks(split, INTS(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
    CHECK(shoal_mesh_group(split, 0) == shoal_mesh_group(mesh, 0));
    check_group_ranks(shoal_mesh_group_by_name(split, "efsdp"), INTS(9, 11, 13, 15), 4);
    check_group_ranks(shoal_mesh_group_by_name(split, "ep"), INTS(12, 13), 2);
    REQUIRE_OK(shoal_mesh_slice(split, NAMES("ep"), 1, &ep));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("pp"), 1, &pp));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("dp_shard"), 1, &shard));
    REQUIRE_OK(shoal_mesh_concatenate((shoal_mesh *const[]){ep, pp}, 2, &joined));
    check_ranks(joined, INTS(4, 12, 5, 13), 4);
    CHECK(shoal_mesh_group(joined, 1) == shoal_mesh_group(mesh, 0));

    shoal_mesh *none = NULL;
    CHECK_STATUS(shoal_mesh_concatenate((shoal_mesh *const[]){ep, shard}, 2, &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("\"ep\" and \"dp_shard\" overlap");
    CHECK_STATUS(shoal_mesh_concatenate((shoal_mesh *const[]){ep, ep}, 2, &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("dimension \"ep\" is given twice");
    CHECK_STATUS(shoal_mesh_concatenate(NULL, 0, &none), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_mesh_concatenate((shoal_mesh *const[]){ep, NULL}, 2, &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("mesh 1 is NULL");
    shoal_mesh *stranger = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2), 1, NAMES("x"), &stranger));
    CHECK_STATUS(shoal_mesh_concatenate((shoal_mesh *const[]){ep, stranger}, 2, &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("were not derived from the same mesh");
    shoal_mesh *const handles[] = {mesh, shard, split, ep, pp, joined, stranger};
    for (size_t i = 0; i < sizeof handles / sizeof handles[0]; i++) {
        shoal_mesh_free(handles[i]);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Cuts of one dimension in different places have no common array, even where no rank would be there twice. */
TEST(cuts_that_do_not_fit_overlap)
{
    shoal_world *world = open_fake(12, 0);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *a = NULL;
    shoal_mesh *b = NULL;
    shoal_mesh *none = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 6), 2, NAMES("x", "y"), &mesh));
    REQUIRE_OK(shoal_mesh_unflatten(mesh, 1, INTS(2, 3), 2, NAMES("p", "q"), &a));
    REQUIRE_OK(shoal_mesh_unflatten(mesh, 1, INTS(3, 2), 2, NAMES("r", "s"), &b));
    shoal_mesh *p = NULL;
    shoal_mesh *r = NULL;
    REQUIRE_OK(shoal_mesh_slice(a, NAMES("p"), 1, &p));
    REQUIRE_OK(shoal_mesh_slice(b, NAMES("r"), 1, &r));
    CHECK_STATUS(shoal_mesh_concatenate((shoal_mesh *const[]){p, r}, 2, &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("overlap");
    shoal_mesh *const handles[] = {mesh, a, b, p, r};
    for (size_t i = 0; i < sizeof handles / sizeof handles[0]; i++) {
        shoal_mesh_free(handles[i]);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST(from_groups_that_exist)
{
    shoal_world *world = open_fake(4, 1);
    REQUIRE(world != NULL);
    shoal_group *rows[2] = {NULL, NULL};
    REQUIRE_OK(shoal_group_create(world, INTS(1, 3), 2, "mine", &rows[0]));
    REQUIRE_OK(shoal_group_create(world, INTS(0, 1), 2, NULL, &rows[1]));
    shoal_mesh *mesh = NULL;
    REQUIRE_OK(shoal_mesh_from_groups(&rows[0], 1, "cpu", NULL, NULL, 1, NAMES("dp"), &mesh));
    check_ranks(mesh, INTS(1, 3), 2);
    CHECK(shoal_mesh_group(mesh, 0) == rows[0]);
    shoal_mesh_free(mesh);
    REQUIRE_OK(shoal_mesh_from_groups(&rows[0], 1, "cpu", NULL, NULL, 0, NULL, &mesh));
    CHECK(shoal_mesh_dim_name(mesh, 0) == NULL);
    shoal_mesh_free(mesh);
    REQUIRE_OK(
        shoal_mesh_from_groups(rows, 2, "cpu", INTS(0, 1, 2, 3), INTS(2, 2), 2, NAMES("a", "b"), &mesh));
    CHECK(shoal_mesh_group_by_name(mesh, "b") == rows[1]);
    shoal_mesh_free(mesh);

    mesh = NULL;
    CHECK_STATUS(shoal_mesh_from_groups(NULL, 1, "cpu", NULL, NULL, 1, NULL, &mesh), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_mesh_from_groups(rows, 0, "cpu", NULL, NULL, 0, NULL, &mesh), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("0 groups");
    CHECK_STATUS(shoal_mesh_from_groups(rows, 2, "cpu", NULL, INTS(2, 2), 2, NAMES("a", "b"), &mesh),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("ranks is NULL, but 2 groups need it");
    CHECK_STATUS(shoal_mesh_from_groups(rows, 2, "cpu", INTS(0, 1, 2, 3), INTS(2, 2), 2, NULL, &mesh),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("2 groups need names");
    CHECK_STATUS(shoal_mesh_from_groups(rows, 2, "cpu", INTS(0, 1), INTS(2), 1, NAMES("a"), &mesh),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("2 groups are given for 1 dimensions");
    CHECK_STATUS(
        shoal_mesh_from_groups(rows, 2, "cpu", INTS(0, 1, 3, 2), INTS(2, 2), 2, NAMES("a", "b"), &mesh),
        SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("dimension 0 has rank 2 at index 1, but its group has rank 3 there");
    CHECK_STATUS(shoal_mesh_from_groups(rows, 1, "cpu", INTS(1), INTS(1), 1, NULL, &mesh), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("dimension 0 has size 1, but its group has 2 ranks");
    CHECK_STATUS(shoal_mesh_from_groups(rows, 1, "cpu", INTS(0, 2), INTS(2), 1, NULL, &mesh),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rank 1 has the group of dimension 0, but is not among");
    CHECK_STATUS(shoal_mesh_from_groups((shoal_group *const[]){rows[0], NULL}, 2, "cpu", INTS(0, 1, 2, 3),
                                        INTS(2, 2), 2, NAMES("a", "b"), &mesh),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group 1 is NULL");
    CHECK_OK(shoal_world_close(world));
}

TEST(equal_means_array_shape_device_and_names)
{
    shoal_world *world = open_fake(4, 0);
    REQUIRE(world != NULL);
    shoal_mesh *a = NULL;
    shoal_mesh *b = NULL;
    shoal_mesh *part = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 2), 2, NAMES("x", "y"), &a));
    struct {
        const int *ranks;
        const int *shape;
        int n_dims;
        const char *const *names;
        const char *device;
        bool is_equal;
    } cases[] = {
        {INTS(0, 1, 2, 3), INTS(2, 2), 2, NAMES("x", "y"), "cpu", true},
        {INTS(0, 2, 1, 3), INTS(2, 2), 2, NAMES("x", "y"), "cpu", false},
        {INTS(0, 1, 2, 3), INTS(1, 4), 2, NAMES("x", "y"), "cpu", false},
        {INTS(0, 1, 2, 3), INTS(4), 1, NAMES("x"), "cpu", false},
        {INTS(0, 1, 2, 3), INTS(2, 2), 2, NAMES("x", "z"), "cpu", false},
        {INTS(0, 1, 2, 3), INTS(2, 2), 2, NULL, "cpu", false},
        {INTS(0, 1, 2, 3), INTS(2, 2), 2, NAMES("x", "y"), "meta", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        REQUIRE_OK(shoal_mesh_create(world, cases[i].device, cases[i].ranks, cases[i].shape, cases[i].n_dims,
                                     cases[i].names, &b));
        CHECK_INT(shoal_mesh_equal(a, b), cases[i].is_equal);
        shoal_mesh_free(b);
    }
    /* From different families. */
    REQUIRE_OK(shoal_mesh_slice(a, NAMES("y"), 1, &part));
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2), 1, NAMES("y"), &b));
    CHECK(shoal_mesh_equal(part, b));
    CHECK(shoal_mesh_equal(NULL, NULL));
    CHECK(!shoal_mesh_equal(a, NULL));
    shoal_mesh_free(a);
    shoal_mesh_free(b);
    shoal_mesh_free(part);
    CHECK_OK(shoal_world_close(world));
}

/* Lifetimes -------------------------------------------------------------------------------------------- */

TEST(closing_the_world_frees_what_is_left)
{
    shoal_world *world = open_fake(4, 0);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *flat = NULL;
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 2), 2, NAMES("dp", "tp"), &mesh));
        REQUIRE_OK(shoal_mesh_flatten(mesh, NULL, &flat));
    }
    shoal_mesh_free(mesh); /* one of the two handles of the last one */
    CHECK_OK(shoal_world_close(world));
}

static shoal_status make_meshes(void *context)
{
    shoal_world *world = context;
    shoal_mesh *mesh = NULL;
    shoal_mesh *slice = NULL;
    shoal_mesh *flat = NULL;
    shoal_mesh *split = NULL;
    shoal_status status =
        shoal_mesh_create(world, "cpu", INTS(3, 2, 1, 0), INTS(2, 2), 2, NAMES("dp", "tp"), &mesh);
    if (status == SHOAL_OK) {
        status = shoal_mesh_slice(mesh, NAMES("tp"), 1, &slice);
    }
    if (status == SHOAL_OK) {
        status = shoal_mesh_flatten(mesh, NULL, &flat);
    }
    if (status == SHOAL_OK) {
        status = shoal_mesh_unflatten(flat, 0, INTS(2, 2), 2, NAMES("a", "b"), &split);
    }
    shoal_mesh_free(mesh);
    shoal_mesh_free(slice);
    shoal_mesh_free(flat);
    shoal_mesh_free(split);
    return status;
}

TEST(allocations_may_fail)
{
    shoal_world *world = open_fake(4, 0);
    REQUIRE(world != NULL);
    /* Groups stay with the world once made: make them before blocks are counted. */
    REQUIRE_OK(make_meshes(world));
    CHECK(test_sweep_allocations(make_meshes, world) > 10);
    CHECK_OK(shoal_world_close(world));
}

static void *cut_again_and_again(void *context)
{
    shoal_mesh *mesh = context;
    for (int i = 0; i < 200; i++) {
        shoal_mesh *slice = NULL;
        shoal_mesh *flat = NULL;
        CHECK_OK(shoal_mesh_slice(mesh, NAMES("b", "a"), 2, &slice));
        CHECK_OK(shoal_mesh_flatten(slice, NULL, &flat));
        CHECK_INT(shoal_mesh_n_ranks(flat), 6);
        CHECK(shoal_mesh_group_by_name(mesh, "b_a") == shoal_mesh_group(flat, 0));
        shoal_mesh_free(slice);
        shoal_mesh_free(flat);
    }
    return NULL;
}

TEST(threads_get_the_same_mesh)
{
    shoal_world *world = open_fake(12, 3);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 3, 2), 3, NAMES("a", "b", "c"), &mesh));
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, cut_again_and_again, mesh), 0);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}

/* With peers ------------------------------------------------------------------------------------------- */

static float sum_along(shoal_group *group, float mine)
{
    float sum = 0;
    CHECK(group != NULL);
    CHECK_OK(shoal_group_all_reduce(group, &mine, &sum, 1, SHOAL_F32, SHOAL_SUM));
    return sum;
}

TEST_RANKS(groups_along_dimensions_reduce, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *flat = NULL;
    shoal_mesh *reversed = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 2), 2, NAMES("dp", "tp"), &mesh));
    REQUIRE_OK(shoal_mesh_flatten(mesh, NULL, &flat));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("tp", "dp"), 2, &reversed));
    float mine = (float)(1 << self->rank);
    int row = self->rank / 2;
    int column = self->rank % 2;
    CHECK_DOUBLE((double)sum_along(shoal_mesh_group_by_name(mesh, "tp"), mine), row ? 12 : 3);
    CHECK_DOUBLE((double)sum_along(shoal_mesh_group_by_name(mesh, "dp"), mine), column ? 10 : 5);
    CHECK_DOUBLE((double)sum_along(shoal_mesh_group(reversed, 0), mine), row ? 12 : 3);
    CHECK_DOUBLE((double)sum_along(shoal_mesh_group(flat, 0), mine), 15);
    shoal_mesh_free(mesh);
    shoal_mesh_free(flat);
    shoal_mesh_free(reversed);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(only_members_make_groups, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", INTS(3, 1), INTS(2), 1, NULL, &mesh));
    if (self->rank % 2 == 1) {
        int32_t mine = self->rank;
        int32_t all[2] = {0, 0};
        CHECK_OK(shoal_group_all_gather(shoal_mesh_group(mesh, 0), &mine, all, 1, SHOAL_I32));
        CHECK_INT(all[0], 3);
        CHECK_INT(all[1], 1);
    } else {
        CHECK(shoal_mesh_group(mesh, 0) == NULL);
    }
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}
