/* SPDX-License-Identifier: MIT */
/* Everything that a mesh refuses, with the words that say why. */
#include "fixtures/mesh_checks.h"
#include "harness/test.h"
#include "shoal/mesh.h"

TEST(wrong_meshes_are_refused)
{
    shoal_world *world = open_fake(8, 0);
    REQUIRE(world != NULL);
    const struct {
        const char *device;
        const int *ranks; /* NULL: in order */
        const int *shape;
        int n_dims;
        const char *const *names;
        const char *words;
    } cases[] = {
        {"cpu:0", NULL, INTS(2), 1, NULL, "device is \"cpu:0\""},
        {"gpu", NULL, INTS(2), 1, NULL, "there is no device \"gpu\""},
        {NULL, NULL, INTS(2), 1, NULL, "device is NULL"},
        {"cpu", NULL, INTS(2), 0, NULL, "n_dims is 0, 1 to 8 expected"},
        {"cpu", NULL, INTS(1, 1, 1, 1, 1, 1, 1, 1, 1), 9, NULL, "n_dims is 9"},
        {"cpu", NULL, INTS(2), -1, NULL, "n_dims is -1"},
        {"cpu", NULL, NULL, 1, NULL, "shape is NULL"},
        {"cpu", NULL, INTS(2, 0), 2, NULL, "dimension 1 has size 0"},
        {"cpu", NULL, INTS(-2, 2), 2, NULL, "dimension 0 has size -2"},
        {"cpu", NULL, INTS(3, 3), 2, NULL, "the first 2 dimensions need 9 ranks, but the world has 8"},
        {"cpu", NULL, INTS(2147483647, 2147483647, 2147483647), 3, NULL, "need 2147483647 ranks"},
        {"cpu", NULL, INTS(2, 2), 2, NAMES("dp", "dp"), "dimensions 0 and 1 are both called \"dp\""},
        {"cpu", NULL, INTS(2, 2), 2, NAMES("dp", NULL), "name 1 is NULL"},
        {"cpu", NULL, INTS(2, 2), 2, NAMES("", "b"), "name 0 has 0 characters"},
        {"cpu", NULL, INTS(2), 1, NAMES("a name of sixty characters, which is one more than there may be"),
         "name 0 has"},
        {"cpu", NULL, INTS(2, 2), 2, NAMES("a", "b\n"), "name 1: character 1 (0x0a) is not printable ASCII"},
        {"cpu", INTS(0, 1, 2, 8), INTS(2, 2), 2, NULL,
         "ranks has rank 8 at position 3, but the world has ranks 0 to 7"},
        {"cpu", INTS(0, -1), INTS(2), 1, NULL, "rank -1 at position 1"},
        {"cpu", INTS(4, 1, 2, 4), INTS(2, 2), 2, NULL, "ranks has rank 4 twice, at positions 0 and 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        shoal_mesh *mesh = NULL;
        shoal_status status = shoal_mesh_create(world, cases[i].device, cases[i].ranks, cases[i].shape,
                                                cases[i].n_dims, cases[i].names, &mesh);
        CHECK_STATUS(status, SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(cases[i].words);
        CHECK(mesh == NULL);
    }
    shoal_mesh *mesh = NULL;
    CHECK_STATUS(shoal_mesh_create(NULL, "cpu", NULL, INTS(2), 1, NULL, &mesh), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_mesh_create(world, "cpu", NULL, INTS(2), 1, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_world_close(world));
}

TEST(wrong_questions_and_cuts_are_refused)
{
    shoal_world *world = open_fake(8, 0);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *out = NULL;
    shoal_mesh *plain = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 4), 2, NAMES("replicate", "shard"), &mesh));
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 4), 2, NULL, &plain));

    CHECK(shoal_mesh_group(mesh, 2) == NULL);
    CHECK_ERROR_TEXT("there is no dimension 2; there are -2 to 1");
    CHECK(shoal_mesh_group(mesh, -3) == NULL);
    CHECK(shoal_mesh_group_by_name(mesh, "shrd") == NULL);
    CHECK_ERROR_TEXT(
        "there is no dimension \"shrd\"; there are \"replicate\", \"shard\"; the nearest is \"shard\"");
    CHECK(shoal_mesh_group_by_name(plain, "shard") == NULL);
    CHECK_ERROR_TEXT("were not given names");
    CHECK_INT(shoal_mesh_find_dim(mesh, "nothing"), -1);
    CHECK_INT(shoal_mesh_find_dim(mesh, NULL), -1);
    CHECK(shoal_mesh_dim_name(mesh, 5) == NULL);
    CHECK_ERROR_TEXT("there is no dimension 5");
    CHECK(shoal_mesh_group(NULL, 0) == NULL);
    CHECK_ERROR_TEXT("mesh is NULL");
    CHECK_STATUS(shoal_mesh_ranks(mesh, NULL), SHOAL_ERR_INVALID);
    CHECK_INT(shoal_mesh_n_dims(NULL) + shoal_mesh_n_ranks(NULL), 0);
    CHECK(shoal_mesh_shape(NULL) == NULL && shoal_mesh_device(NULL) == NULL &&
          shoal_mesh_world(NULL) == NULL);
    CHECK(shoal_mesh_ref(NULL) == NULL);

    CHECK_STATUS(shoal_mesh_slice(plain, NAMES("shard"), 1, &out), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("were not given names");
    CHECK_STATUS(shoal_mesh_slice(mesh, NAMES("shardd"), 1, &out), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("mesh_slice: mesh: there is no dimension \"shardd\"");
    CHECK_STATUS(shoal_mesh_slice(mesh, NAMES("shard", "shard"), 2, &out), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("dimension \"shard\" is given twice");
    CHECK_STATUS(shoal_mesh_slice(mesh, NULL, 0, &out), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_mesh_slice(mesh, NAMES(NULL), 1, &out), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_mesh_slice(NULL, NAMES("a"), 1, &out), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_mesh_slice(mesh, NAMES("shard"), 1, NULL), SHOAL_ERR_INVALID);

    CHECK_STATUS(shoal_mesh_flatten(plain, NULL, &out), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("needs a name");
    CHECK_STATUS(shoal_mesh_flatten(mesh, "shard", &out), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("\"shard\" is the name of a dimension");
    CHECK_STATUS(shoal_mesh_flatten(mesh, "", &out), SHOAL_ERR_INVALID);
    REQUIRE_OK(shoal_mesh_flatten(mesh, "all", &out));
    shoal_mesh *shard = NULL;
    shoal_mesh *none = NULL;
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("shard"), 1, &shard));
    CHECK_STATUS(shoal_mesh_flatten(shard, "all", &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("of size 8; these have size 4");
    REQUIRE_OK(shoal_mesh_flatten(shard, "shard", &none));
    CHECK(none == shard);
    shoal_mesh_free(none);
    CHECK_STATUS(shoal_mesh_slice(mesh, NAMES("all", "shard"), 2, &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("\"all\" and \"shard\" overlap");
    CHECK_STATUS(shoal_mesh_slice(shard, NAMES("all"), 1, &none), SHOAL_ERR_INVALID);
    shoal_mesh_free(shard);
    shoal_mesh_free(out);

    CHECK_STATUS(shoal_mesh_unflatten(mesh, 1, INTS(2, 3), 2, NAMES("a", "b"), &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("the product of the sizes is at least 6, but the dimension has size 4");
    CHECK_STATUS(shoal_mesh_unflatten(mesh, 1, INTS(2, 0), 2, NAMES("a", "b"), &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("sizes[1] is 0, at least 1 expected");
    CHECK_STATUS(shoal_mesh_unflatten(mesh, 1, INTS(2), 1, NAMES("a"), &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("the product of the sizes is 2, but the dimension has size 4");
    CHECK_STATUS(shoal_mesh_unflatten(mesh, 2, INTS(2, 2), 2, NAMES("a", "b"), &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("there is no dimension 2");
    CHECK_STATUS(shoal_mesh_unflatten(mesh, 1, INTS(2, 2), 2, NULL, &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("names is NULL");
    CHECK_STATUS(shoal_mesh_unflatten(plain, 1, INTS(2, 2), 2, NAMES("a", "b"), &none), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("but the other 1 dimensions of the mesh have no names");
    CHECK_STATUS(shoal_mesh_unflatten(mesh, 1, INTS(2, 2), 2, NAMES("a", "replicate"), &none),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("dimension \"replicate\" is given twice");
    CHECK_STATUS(shoal_mesh_unflatten(mesh, 1, NULL, 2, NAMES("a", "b"), &none), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_mesh_unflatten(mesh, 1, INTS(2, 2, 1, 1, 1, 1, 1, 1), 8,
                                      NAMES("a", "b", "c", "d", "e", "f", "g", "h"), &none),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("more than 8 dimensions");
    shoal_mesh_free(mesh);
    shoal_mesh_free(plain);
    CHECK_OK(shoal_world_close(world));
}

TEST(what_was_flattened_apart_is_not_cut_inside)
{
    shoal_world *world = open_fake(12, 1);
    REQUIRE(world != NULL);
    shoal_mesh *mesh = NULL;
    shoal_mesh *ends = NULL;
    shoal_mesh *flat = NULL;
    shoal_mesh *none = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 2, 3), 3, NAMES("a", "b", "c"), &mesh));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("a", "c"), 2, &ends));
    REQUIRE_OK(shoal_mesh_flatten(ends, NULL, &flat));
    CHECK_STATUS(shoal_mesh_unflatten(flat, 0, INTS(3, 2), 2, NAMES("x", "y"), &none), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("are not adjacent");
    shoal_mesh_free(mesh);
    shoal_mesh_free(ends);
    shoal_mesh_free(flat);
    CHECK_OK(shoal_world_close(world));
}
