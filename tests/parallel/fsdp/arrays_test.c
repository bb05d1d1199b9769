/* SPDX-License-Identifier: MIT */
/*
 * Arrays that are cut like parameters, by the explicit calls: whole ones come in and out, of any dtype, for parameters of
 * all kinds. And what a program can ask about a parameter: its number by name, its shapes.
 */
#include <stdlib.h>

#include "fixtures/fsdp_kinds.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

#define CHECK_REFUSED(call, status, text) \
    do {                                  \
        CHECK_STATUS(call, status);       \
        CHECK_ERROR_TEXT(text);           \
    } while (0)

/* Dtypes that are not the parameter's: moments of halves are f32, masks are bytes. */
static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_U8, SHOAL_I64};

enum {
    ROOM = 1024
};

static size_t count_of(int kind)
{
    return bytes_of(kind) / shoal_dtype_bytes(kinds[kind].dtype);
}

static void fill_bytes(unsigned char *bytes, size_t n, int salt)
{
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (unsigned char)((i * 7 + (size_t)salt) % 60);
    }
}

/* This rank's part of the whole, by the layout alone. Returns its bytes. */
static size_t cut(const shoal_shard_layout *layout, size_t element, const unsigned char *full,
                  unsigned char *shard)
{
    size_t outer = 1;
    size_t row = element;
    size_t n = 0;
    for (int i = 0; i < layout->n_dims; i++) {
        outer *= i < layout->dim ? (size_t)layout->shape[i] : 1;
        row *= i > layout->dim ? (size_t)layout->shape[i] : 1;
    }
    for (size_t o = 0; o < outer; o++) {
        size_t from = (o * (size_t)layout->shape[layout->dim] + (size_t)layout->offset) * row;
        memcpy(shard + n, full + from, (size_t)layout->length * row);
        n += (size_t)layout->length * row;
    }
    return n;
}

static void check_layout(const struct setting *s, int kind, shoal_shard_layout *layout)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    size_t count = 1;
    *layout = (shoal_shard_layout){.struct_size = sizeof *layout};
    REQUIRE_OK(shoal_fsdp_update_shard(s->fsdp, kind, &shard));
    REQUIRE_OK(shoal_fsdp_get_layout(shoal_fsdp_param_of(s->fsdp, kind), layout));
    CHECK_INT(layout->struct_size, sizeof *layout);
    CHECK_INT(layout->unit, 0);
    CHECK_INT(layout->dtype, kinds[kind].dtype);
    REQUIRE(layout->n_dims == kinds[kind].n_dims);
    CHECK_INT(layout->dim, kinds[kind].dim < 0 ? kinds[kind].dim + kinds[kind].n_dims : kinds[kind].dim);
    CHECK_INT(layout->offset, shard.offset);
    CHECK_INT(layout->length, shard.length);
    CHECK_INT(layout->count, count_of(kind));
    CHECK_INT(layout->shard_count, shard.count);
    for (int i = 0; i < layout->n_dims; i++) {
        CHECK_INT(layout->shape[i], kinds[kind].shape[i]);
        CHECK_INT(layout->shard_shape[i], i == layout->dim ? shard.length : kinds[kind].shape[i]);
        count *= (size_t)layout->shard_shape[i];
    }
    CHECK_INT(count, shard.count);
    CHECK_INT(layout->shape[SHOAL_MAX_DIMS - 1], 0);
}

/* Exactly as many bytes as there are, so that sanitizers see what is read or written behind them. */
static void check_array(const struct setting *s, int kind, const shoal_shard_layout *layout,
                        shoal_dtype dtype)
{
    size_t element = shoal_dtype_bytes(dtype);
    size_t full_bytes = count_of(kind) * element;
    unsigned char full[ROOM];
    unsigned char wanted[ROOM];
    unsigned char got[ROOM];
    unsigned char *shard = layout->shard_count > 0 ? malloc(layout->shard_count * element) : NULL;
    REQUIRE(full_bytes < ROOM && (shard || layout->shard_count == 0));
    fill_bytes(full, full_bytes, 3);
    size_t bytes = cut(layout, element, full, wanted);
    CHECK_INT(bytes, layout->shard_count * element);
    CHECK_OK(shoal_fsdp_load_array(shoal_fsdp_param_of(s->fsdp, kind), dtype, full_bytes > 0 ? full : NULL,
                                   shard));
    CHECK(bytes == 0 || CHECK_BYTES(shard, wanted, bytes));
    memset(got, 0xEE, sizeof got);
    CHECK_OK(shoal_fsdp_gather_array(shoal_fsdp_param_of(s->fsdp, kind), dtype, shard,
                                     full_bytes > 0 ? got : NULL, SHOAL_FSDP_ALL_RANKS));
    CHECK_BYTES(got, full, full_bytes);
    CHECK_INT(got[full_bytes], 0xEE);
    for (int root = 0; root < s->n_ranks; root++) {
        bool is_here = s->rank == root;
        fill_bytes(full, full_bytes, is_here ? 20 + root : 90);
        CHECK_OK(shoal_fsdp_broadcast_array(shoal_fsdp_param_of(s->fsdp, kind), dtype, is_here ? full : NULL,
                                            shard, root));
        fill_bytes(full, full_bytes, 20 + root);
        CHECK(bytes == 0 ||
              (cut(layout, element, full, wanted) == bytes && CHECK_BYTES(shard, wanted, bytes)));
        memset(got, 0xEE, sizeof got);
        CHECK_OK(shoal_fsdp_gather_array(shoal_fsdp_param_of(s->fsdp, kind), dtype, shard,
                                         is_here ? got : NULL, root));
        CHECK(!is_here || CHECK_BYTES(got, full, full_bytes));
        CHECK_INT(got[is_here ? full_bytes : 0], 0xEE);
    }
    free(shard);
}

static void check_kinds(struct rank *self, enum model_mode mode)
{
    struct setting s;
    unsigned char bytes[256];
    REQUIRE(setting_open(self, &s, mode, NULL));
    for (int kind = 0; kind < LENGTH(kinds); kind++) {
        fill(kind, bytes, 0);
        CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 0, "w", kinds[kind].dtype, kinds[kind].n_dims,
                                            kinds[kind].shape, kinds[kind].dim, bytes, NULL));
        CHECK_OK(shoal_fsdp_set_requires_grad(s.fsdp, kind, false)); /* of several dtypes */
    }
    for (int kind = 0; kind < LENGTH(kinds) && !test_has_failed(); kind++) {
        shoal_shard_layout layout;
        check_layout(&s, kind, &layout);
        for (int d = 0; d < LENGTH(dtypes); d++) {
            check_array(&s, kind, &layout, dtypes[d]);
        }
        check_gathered(&s, kind, 0); /* the parameter is as it was */
    }
    setting_close(&s);
}

TEST_RANKS(arrays_alone, 1)
{
    check_kinds(self, MODEL_FSDP);
}

TEST_RANKS(arrays_of_two_shards, 2)
{
    check_kinds(self, MODEL_FSDP);
}

TEST_RANKS(arrays_of_four_shards, 4)
{
    check_kinds(self, MODEL_FSDP);
}

TEST_RANKS(arrays_of_two_by_two, 4)
{
    check_kinds(self, MODEL_HSDP);
}

TEST_RANKS(arrays_of_replicas, 3)
{
    check_kinds(self, MODEL_DDP);
}

/* The gradient of a shard is such an array, and so are the values themselves, to read. */
TEST_RANKS(gradients_are_gathered, 3)
{
    struct setting s;
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    float got[7] = {0.0F};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    const float values[7] = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F};
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(7), values, NULL));
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
    float *grad = shoal_fsdp_grad(s.fsdp, 0);
    for (int i = 0; grad && i < 7; i++) {
        grad[i] += (float)(i * (s.rank + 1));
    }
    CHECK_OK(shoal_fsdp_post_backward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, 0, &shard));
    CHECK_OK(shoal_fsdp_gather_array(shoal_fsdp_param_of(s.fsdp, 0), SHOAL_F32, shard.grad, got,
                                     SHOAL_FSDP_ALL_RANKS));
    for (int i = 0; i < 7; i++) {
        CHECK_DOUBLE((double)got[i], 2.0 * i);
    }
    CHECK_OK(shoal_fsdp_gather_array(shoal_fsdp_param_of(s.fsdp, 0), SHOAL_F32, shard.data, got,
                                     SHOAL_FSDP_ALL_RANKS));
    CHECK_BYTES(got, values, sizeof values);
    setting_close(&s);
}

/* A moment goes out and comes in while units are open, gathered ahead and reduced. */
static void move_array(const struct setting *s, float *part, float first)
{
    float full[7] = {0.0F};
    float values[7];
    for (int i = 0; i < 7; i++) {
        values[i] = first + (float)i;
    }
    CHECK_OK(shoal_fsdp_broadcast_array(shoal_fsdp_param_of(s->fsdp, 1), SHOAL_F32,
                                        s->rank == 0 ? values : NULL, part, 0));
    CHECK_OK(shoal_fsdp_gather_array(shoal_fsdp_param_of(s->fsdp, 1), SHOAL_F32, part, full,
                                     SHOAL_FSDP_ALL_RANKS));
    CHECK_BYTES(full, values, sizeof values);
}

TEST_RANKS(arrays_in_the_middle_of_a_step, 3)
{
    struct setting s;
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    float part[7];
    REQUIRE(setting_open(self, &s, MODEL_FSDP, &(shoal_fsdp_options){.max_reduces = 2}));
    for (int unit = 0; unit < 3; unit++) {
        CHECK_OK(shoal_fsdp_add_param(s.fsdp, unit, "w", SHOAL_F32, 1, SHAPE(7), NULL, NULL));
    }
    REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, 1, &shard));
    for (int step = 0; step < 3; step++) {
        for (int unit = 0; unit < 3; unit++) {
            CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, unit));
            move_array(&s, part, 1.0F);
            CHECK_OK(shoal_fsdp_post_forward(s.fsdp, unit));
        }
        for (int unit = 2; unit >= 0; unit--) {
            CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, unit));
            float *grad = shoal_fsdp_grad(s.fsdp, unit);
            move_array(&s, part, 2.0F);
            for (int i = 0; grad && i < 7; i++) {
                grad[i] += (float)(unit + s.rank);
            }
            CHECK_OK(shoal_fsdp_post_backward(s.fsdp, unit));
            move_array(&s, part, 3.0F);
        }
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        for (int unit = 0; unit < 3; unit++) {
            REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, unit, &shard));
            for (size_t i = 0; i < shard.count; i++) {
                CHECK_DOUBLE((double)((const float *)shard.grad)[i], unit + 1.0);
            }
        }
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    }
    setting_close(&s);
}

/* Asking ------------------------------------------------------------------------------------------------- */

TEST_RANKS(parameters_by_name, 2)
{
    static const char *const names[] = {"wte", "h.0.attn.w", "h.0.mlp.w", "h.1.attn.w", "h.1.mlp.w"};
    struct setting s;
    int id = -7;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_REFUSED(shoal_fsdp_find_param(s.fsdp, "wte", &id), SHOAL_ERR_INVALID,
                  "find_param: there is no parameter \"wte\"; there are no parameters");
    for (int i = 0; i < LENGTH(names); i++) {
        CHECK_OK(shoal_fsdp_add_param(s.fsdp, i, names[i], SHOAL_F32, 1, SHAPE(3), NULL, NULL));
    }
    for (int i = 0; i < LENGTH(names); i++) {
        CHECK_OK(shoal_fsdp_find_param(s.fsdp, names[i], &id));
        CHECK_INT(id, i);
    }
    id = -7;
    CHECK_REFUSED(shoal_fsdp_find_param(s.fsdp, "h.1.atn.w", &id), SHOAL_ERR_INVALID,
                  "find_param: there is no parameter \"h.1.atn.w\"; the nearest are \"h.1.attn.w\", "
                  "\"h.0.attn.w\" and \"h.1.mlp.w\"");
    CHECK_REFUSED(shoal_fsdp_find_param(s.fsdp, "", &id), SHOAL_ERR_INVALID, "\"wte\"");
    CHECK_REFUSED(shoal_fsdp_find_param(s.fsdp, NULL, &id), SHOAL_ERR_INVALID, "find_param: name is NULL");
    CHECK_REFUSED(shoal_fsdp_find_param(s.fsdp, "wte", NULL), SHOAL_ERR_INVALID,
                  "find_param: id_out is NULL");
    CHECK_REFUSED(shoal_fsdp_find_param(NULL, "wte", &id), SHOAL_ERR_INVALID, "find_param: fsdp is NULL");
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 1, "wte", SHOAL_F32, 1, SHAPE(3), NULL, NULL));
    CHECK_REFUSED(shoal_fsdp_find_param(s.fsdp, "wte", &id), SHOAL_ERR_INVALID,
                  "find_param: \"wte\" is the name of parameter 0 of unit 0 and of parameter 5 of unit 1");
    CHECK_INT(id, -7);
    setting_close(&s);
}

/* Structs of programs that were compiled with an earlier or a later library. */
TEST_RANKS(layouts_of_other_sizes, 2)
{
    struct setting s;
    struct {
        shoal_shard_layout layout;
        int64_t later;
    } longer = {.layout = {.struct_size = sizeof longer}, .later = 77};
    shoal_shard_layout layout = {.struct_size = offsetof(shoal_shard_layout, dim), .dim = -7};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 2, SHAPE(5, 3), NULL, NULL));
    CHECK_OK(shoal_fsdp_get_layout(shoal_fsdp_param_of(s.fsdp, 0), &longer.layout));
    CHECK_INT(longer.layout.struct_size, sizeof longer);
    CHECK_INT(longer.layout.n_shards, 2);
    CHECK_INT(longer.layout.shard, s.rank);
    CHECK_INT(longer.later, 0);
    CHECK_OK(shoal_fsdp_get_layout(shoal_fsdp_param_of(s.fsdp, 0), &layout));
    CHECK_INT(layout.n_dims, 2);
    CHECK_INT(layout.dim, -7);
    layout.struct_size = 3;
    CHECK_REFUSED(shoal_fsdp_get_layout(shoal_fsdp_param_of(s.fsdp, 0), &layout), SHOAL_ERR_INVALID,
                  "get_layout: parameter w: layout_out: struct_size is 3");
    CHECK_REFUSED(shoal_fsdp_get_layout(shoal_fsdp_param_of(s.fsdp, 0), NULL), SHOAL_ERR_INVALID,
                  "get_layout: parameter w: layout_out is NULL");
    CHECK_REFUSED(shoal_fsdp_get_layout(shoal_fsdp_param_of(s.fsdp, 1), &layout), SHOAL_ERR_INVALID,
                  "get_layout: there is no parameter 1");
    setting_close(&s);
}

/* What is gathered has the param_dtype of the unit, known before the first forward pass; integers stay. */
TEST_RANKS(layouts_say_what_is_gathered, 2)
{
    for (size_t k = 0; k < 2; k++) {
        struct setting s;
        const shoal_fsdp_options options = {.struct_size = sizeof options,
                                            .param_dtype = k == 0 ? 0 : SHOAL_BF16};
        shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
        REQUIRE(setting_open(self, &s, MODEL_FSDP, &options));
        CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 2, SHAPE(5, 3), NULL, NULL));
        CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "n", SHOAL_I32, 1, SHAPE(4), NULL, NULL));
        for (int i = 0; i < 2; i++) {
            CHECK_OK(shoal_fsdp_get_layout(shoal_fsdp_param_of(s.fsdp, 0), &layout));
            CHECK_INT(layout.dtype, SHOAL_F32);
            CHECK_INT(layout.gathered_dtype, k == 0 ? SHOAL_F32 : SHOAL_BF16);
            CHECK_OK(shoal_fsdp_get_layout(shoal_fsdp_param_of(s.fsdp, 1), &layout));
            CHECK_INT(layout.gathered_dtype, SHOAL_I32);
            CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
            CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
        }
        setting_close(&s);
    }
}

/* Refusals ----------------------------------------------------------------------------------------------- */

TEST_RANKS(arrays_that_are_refused, 2)
{
    struct setting s;
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    float full[6] = {0.0F};
    float part[6] = {0.0F};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "bias", SHOAL_F32, 1, SHAPE(6), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "weight", SHOAL_F32, 1, SHAPE(6), NULL, NULL));
    REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, 1, &shard));
    CHECK_REFUSED(
        shoal_fsdp_gather_array(shoal_fsdp_param_of(NULL, 1), SHOAL_F32, part, full, SHOAL_FSDP_ALL_RANKS),
        SHOAL_ERR_INVALID, "gather_array: fsdp is NULL");
    CHECK_REFUSED(
        shoal_fsdp_gather_array(shoal_fsdp_param_of(s.fsdp, 2), SHOAL_F32, part, full, SHOAL_FSDP_ALL_RANKS),
        SHOAL_ERR_INVALID, "gather_array: there is no parameter 2");
    CHECK_REFUSED(shoal_fsdp_gather_array(shoal_fsdp_param_of(s.fsdp, 1), (shoal_dtype)99, part, full,
                                          SHOAL_FSDP_ALL_RANKS),
                  SHOAL_ERR_INVALID, "gather_array: parameter weight: dtype");
    CHECK_ERROR_TEXT("99");
    CHECK_REFUSED(
        shoal_fsdp_gather_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, NULL, full, SHOAL_FSDP_ALL_RANKS),
        SHOAL_ERR_INVALID,
        "gather_array: parameter weight: shard is NULL, but this rank's part of it has 3 elements");
    CHECK_REFUSED(
        shoal_fsdp_gather_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, part, NULL, SHOAL_FSDP_ALL_RANKS),
        SHOAL_ERR_INVALID, "gather_array: parameter weight: full is NULL, but has 6 elements");
    CHECK_REFUSED(shoal_fsdp_gather_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, part, full, 2),
                  SHOAL_ERR_INVALID, "gather_array: parameter weight: root 2 is outside of the 2 ranks");
    CHECK_REFUSED(shoal_fsdp_gather_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, part, NULL, s.rank),
                  SHOAL_ERR_INVALID, "gather_array: parameter weight: full is NULL");
    CHECK_REFUSED(shoal_fsdp_load_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, NULL, part),
                  SHOAL_ERR_INVALID, "load_array: parameter weight: full is NULL");
    CHECK_REFUSED(shoal_fsdp_load_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, full, NULL),
                  SHOAL_ERR_INVALID, "load_array: parameter weight: shard is NULL");
    CHECK_REFUSED(shoal_fsdp_load_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, full, shard.data),
                  SHOAL_ERR_INVALID, "load_array: shard holds the values of parameter weight itself");
    CHECK_REFUSED(shoal_fsdp_broadcast_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, full, part, -1),
                  SHOAL_ERR_INVALID, "broadcast_array: parameter weight: root -1 is outside of the 2 ranks");
    CHECK_REFUSED(shoal_fsdp_broadcast_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, NULL, part, s.rank),
                  SHOAL_ERR_INVALID, "broadcast_array: parameter weight: full is NULL");
    CHECK_REFUSED(shoal_fsdp_broadcast_array(shoal_fsdp_param_of(s.fsdp, 1), SHOAL_F32, full, shard.data, 0),
                  SHOAL_ERR_INVALID, "shoal_fsdp_broadcast");
    setting_close(&s);
}

/* Without memory ----------------------------------------------------------------------------------------- */

/* Rank 1 has none for the staging of its call, the first thing that is allocated after the calls were compared. */
static void check_without_memory(const struct setting *s, size_t n_before, int way)
{
    float full[5] = {0.0F};
    float part[5] = {0.0F};
    shoal_status status;
    if (s->rank == 1) {
        test_fail_allocation(n_before + 1, false);
    }
    if (way == 0) {
        status = shoal_fsdp_gather(shoal_fsdp_param_of(s->fsdp, 0), full, SHOAL_FSDP_ALL_RANKS);
    } else if (way == 1) {
        status = shoal_fsdp_gather_array(shoal_fsdp_param_of(s->fsdp, 0), SHOAL_F32, part, full, 1);
    } else {
        status = shoal_fsdp_broadcast_array(shoal_fsdp_param_of(s->fsdp, 0), SHOAL_F32, full, part, 1);
    }
    test_fail_allocation(0, false);
    CHECK_INT(status, SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT(s->rank == 1 ? "parameter w: no memory" : "parameter w: rank 1: no memory");
    CHECK_OK(shoal_fsdp_gather(shoal_fsdp_param_of(s->fsdp, 0), full,
                               SHOAL_FSDP_ALL_RANKS)); /* nothing is left of it */
}

TEST_PROCESSES(a_rank_without_memory_tells_the_others, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "w", SHOAL_F32, 1, SHAPE(5), NULL, NULL));
    CHECK_OK(shoal_group_barrier(shoal_world_group(s.world))); /* the first connects the ranks */
    CHECK_OK(shoal_fsdp_gather(shoal_fsdp_param_of(s.fsdp, 0), (float[5]){0.0F}, SHOAL_FSDP_ALL_RANKS));
    test_fail_allocation(0, false);
    CHECK_OK(shoal_group_barrier(shoal_world_group(s.world)));
    size_t n_before = test_count_allocations();
    for (int way = 0; way < 3; way++) {
        check_without_memory(&s, n_before, way);
    }
    setting_close(&s);
}

/* Ranks that differ -------------------------------------------------------------------------------------- */

/* Two parameters of equal shapes, in one unit. On rank 1 one argument is another. */
struct array_way {
    const char *what;
    int id;
    shoal_dtype dtype;
    int root;
    bool is_broadcast; /* instead of gather_array_to */
};

static shoal_status call_array(const struct setting *s, const struct array_way *way, float *part, float *full)
{
    return way->is_broadcast ? shoal_fsdp_broadcast_array(shoal_fsdp_param_of(s->fsdp, way->id), way->dtype,
                                                          full, part, way->root)
                             : shoal_fsdp_gather_array(shoal_fsdp_param_of(s->fsdp, way->id), way->dtype,
                                                       part, full, way->root);
}

static void check_difference(struct rank *self, enum model_mode mode, bool is_broadcast,
                             const struct array_way *other)
{
    struct setting s;
    struct array_way way = {"", 0, SHOAL_F32, 0, is_broadcast};
    float part[8] = {1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F};
    float full[8] = {2.0F, 2.0F, 2.0F, 2.0F, 2.0F, 2.0F, 2.0F, 2.0F};
    REQUIRE(setting_open(self, &s, mode, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "moment a", SHOAL_F32, 1, SHAPE(8), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(s.fsdp, 0, "moment b", SHOAL_F32, 1, SHAPE(8), NULL, NULL));
    if (s.rank == 1) {
        way = *other;
    }
    CHECK_STATUS(call_array(&s, &way, part, full), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(way.is_broadcast ? "broadcast_array: parameter moment"
                                      : "gather_array: parameter moment");
    CHECK_ERROR_TEXT("moment a as f32 (root 0)");
    CHECK_ERROR_TEXT(other->what);
    CHECK(part[0] == 1.0F && full[0] == 2.0F); /* nothing has moved */
    CHECK_STATUS(
        shoal_fsdp_gather_array(shoal_fsdp_param_of(s.fsdp, 0), SHOAL_F32, part, full, SHOAL_FSDP_ALL_RANKS),
        SHOAL_ERR_MISMATCH);
    shoal_fsdp_free(s.fsdp);
    shoal_mesh_free(s.mesh);
    (void)shoal_world_close(s.world); /* of a group that has failed */
}

static void check_differences(struct rank *self, enum model_mode mode)
{
    static const struct array_way others[] = {{"moment b as f32 (root 0)", 1, SHOAL_F32, 0, false},
                                              {"moment a as i32 (root 0)", 0, SHOAL_I32, 0, false},
                                              {"moment a as f32 (root 1)", 0, SHOAL_F32, 1, false},
                                              {"broadcast_array of", 0, SHOAL_F32, 0, true},
                                              {"moment b as f32 (root 0)", 1, SHOAL_F32, 0, true},
                                              {"moment a as i32 (root 0)", 0, SHOAL_I32, 0, true},
                                              {"moment a as f32 (root 1)", 0, SHOAL_F32, 1, true}};
    for (int i = 0; i < LENGTH(others) && !test_has_failed(); i++) {
        check_difference(self, mode, i > 3, &others[i]);
    }
}

TEST_RANKS(shards_that_differ, 2)
{
    check_differences(self, MODEL_FSDP);
}

TEST_RANKS(replicas_that_differ, 3)
{
    check_differences(self, MODEL_DDP);
}

TEST_RANKS(replicas_of_shards_that_differ, 4)
{
    check_differences(self, MODEL_HSDP);
}
