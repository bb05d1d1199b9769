/* SPDX-License-Identifier: MIT */
/* Parameters of all kinds, cut along any dimension, in pieces: loaded by slices, and whole on one rank alone. */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_kinds.h"

/* On one rank after the other, and nowhere else. */
static void check_gathered_to(const struct setting *s, int kind, int salt)
{
    unsigned char wanted[256];
    fill(kind, wanted, salt);
    for (int root = 0; root < s->n_ranks; root++) {
        unsigned char actual[256];
        bool is_here = s->rank == root;
        memset(actual, 0xEE, sizeof actual);
        CHECK_OK(shoal_fsdp_gather(shoal_fsdp_param_of(s->fsdp, kind), is_here ? actual : NULL, root));
        CHECK(!is_here || CHECK_BYTES(actual, wanted, bytes_of(kind)));
        CHECK_INT(actual[is_here ? bytes_of(kind) : 0], 0xEE);
    }
}

/* Indices begin ... begin + length of the dimension that is cut, packed. */
static size_t pack_slice(int kind, const unsigned char *full, int64_t begin, int64_t length,
                         unsigned char *slice)
{
    int dim = kinds[kind].dim < 0 ? kinds[kind].dim + kinds[kind].n_dims : kinds[kind].dim;
    int64_t outer = 1;
    size_t row = shoal_dtype_bytes(kinds[kind].dtype);
    size_t n = 0;
    for (int i = 0; i < kinds[kind].n_dims; i++) {
        outer *= i < dim ? kinds[kind].shape[i] : 1;
        row *= i > dim ? (size_t)kinds[kind].shape[i] : 1;
    }
    for (int64_t o = 0; o < outer; o++) {
        memcpy(slice + n, full + (size_t)(o * kinds[kind].shape[dim] + begin) * row, (size_t)length * row);
        n += (size_t)length * row;
    }
    return n;
}

/* Three indices at a time, as if a file were read; then exactly this rank's part. */
static void check_slices(const struct setting *s, int kind)
{
    unsigned char full[256];
    unsigned char slice[256];
    int dim = kinds[kind].dim < 0 ? kinds[kind].dim + kinds[kind].n_dims : kinds[kind].dim;
    int64_t size = kinds[kind].shape[dim];
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    fill(kind, full, 3);
    for (int64_t at = 0; at < size; at += 3) {
        int64_t length = size - at < 3 ? size - at : 3;
        size_t n = pack_slice(kind, full, at, length, slice);
        CHECK_OK(shoal_fsdp_load_slice(shoal_fsdp_param_of(s->fsdp, kind), at, length, n > 0 ? slice : NULL));
    }
    CHECK(bytes_of(kind) == 0 || size > 0);
    if (bytes_of(kind) > 0) {
        check_gathered(s, kind, 3);
        check_gathered_to(s, kind, 3);
    }
    fill(kind, full, 4);
    REQUIRE_OK(shoal_fsdp_update_shard(s->fsdp, kind, &shard));
    size_t n = pack_slice(kind, full, shard.offset, shard.length, slice);
    CHECK_OK(shoal_fsdp_load_slice(shoal_fsdp_param_of(s->fsdp, kind), shard.offset, shard.length,
                                   n > 0 ? slice : NULL));
    check_gathered(s, kind, 4);
    CHECK_STATUS(shoal_fsdp_load_slice(shoal_fsdp_param_of(s->fsdp, kind), 0, size + 1, slice),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("load_slice: parameter w has");
    CHECK_STATUS(shoal_fsdp_load_slice(shoal_fsdp_param_of(s->fsdp, kind), -1, 1, slice), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_load_slice(shoal_fsdp_param_of(s->fsdp, kind), INT64_MAX, INT64_MAX, slice),
                 SHOAL_ERR_INVALID);
}

/* All in one unit. */
static void check_kinds(struct rank *self, enum model_mode mode)
{
    struct setting s;
    unsigned char bytes[256] = {0};
    REQUIRE(setting_open(self, &s, mode, NULL));
    for (int kind = 0; kind < LENGTH(kinds); kind++) {
        CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 0, "w", kinds[kind].dtype, kinds[kind].n_dims,
                                            kinds[kind].shape, kinds[kind].dim, NULL, NULL));
        CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, kind, false)); /* of several dtypes */
    }
    for (int kind = 0; kind < LENGTH(kinds); kind++) {
        check_slices(&s, kind);
    }
    CHECK_STATUS(shoal_fsdp_load_slice(shoal_fsdp_param_of(s.fsdp, 0), 0, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("slice is NULL");
    CHECK_STATUS(shoal_fsdp_load_slice(shoal_fsdp_param_of(s.fsdp, -1), 0, 1, bytes), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_gather(shoal_fsdp_param_of(s.fsdp, 0), bytes, s.n_ranks), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("gather: parameter w: root");
    CHECK_STATUS(shoal_fsdp_gather(shoal_fsdp_param_of(s.fsdp, 0), NULL, s.rank), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("gather: parameter w: full is NULL on the root");
    setting_close(&s);
}

TEST_RANKS(slices_alone, 1)
{
    check_kinds(self, MODEL_FSDP);
}

TEST_RANKS(slices_of_two_shards, 2)
{
    check_kinds(self, MODEL_FSDP);
}

TEST_RANKS(slices_of_four_shards, 4)
{
    check_kinds(self, MODEL_FSDP);
}

TEST_RANKS(slices_of_two_by_two, 4)
{
    check_kinds(self, MODEL_HSDP);
}

TEST_RANKS(slices_of_replicas, 3)
{
    check_kinds(self, MODEL_DDP);
}

/* What is still gathered is not what was loaded; in the middle of a step nothing can be. */
TEST_RANKS(slices_are_seen_by_the_next_forward, 2)
{
    struct setting s;
    shoal_fsdp_options options = {.struct_size = sizeof options, .reshard = SHOAL_RESHARD_NEVER};
    const float values[] = {1.0F, 2.0F, 3.0F};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, &options));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, (const int64_t[]){3}, NULL, NULL));
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_STATUS(shoal_fsdp_load_slice(shoal_fsdp_param_of(s.fsdp, 0), 0, 3, values), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("load_slice: unit 0 is in the middle of a step");
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_load_slice(shoal_fsdp_param_of(s.fsdp, 0), 0, 3, values));
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_BYTES(shoal_fsdp_full_param(s.fsdp, 0), values, sizeof values);
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    setting_close(&s);
}
