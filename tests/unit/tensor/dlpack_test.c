/* SPDX-License-Identifier: MIT */
/* DLPack in and out: same elements, nothing copied, ownership exact on success and on failure. */
#include <dlpack/dlpack.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "base/completion.h"
#include "base/error.h"
#include "harness/test.h"
#include "shoal/dlpack.h"
#include "shoal/ops.h"
#include "shoal/tensor.h"
#include "tensor/dtype.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

/* Somebody else's tensor. */
struct foreign {
    struct DLManagedTensor managed;
    int64_t shape[SHOAL_MAX_DIMS + 1];
    int64_t strides[SHOAL_MAX_DIMS + 1];
    _Atomic int n_deleted;
};

static void delete_foreign(struct DLManagedTensor *managed)
{
    struct foreign *foreign = managed->manager_ctx;
    atomic_fetch_add(&foreign->n_deleted, 1);
}

static void foreign_init(struct foreign *foreign, void *data, shoal_dtype dtype, int n_dims)
{
    static const DLDataType types[] = {
        [SHOAL_F64] = {kDLFloat, 64, 1},
        [SHOAL_F32] = {kDLFloat, 32, 1},
        [SHOAL_F16] = {kDLFloat, 16, 1},
        [SHOAL_BF16] = {kDLBfloat, 16, 1},
        [SHOAL_I8] = {kDLInt, 8, 1},
        [SHOAL_I16] = {kDLInt, 16, 1},
        [SHOAL_I32] = {kDLInt, 32, 1},
        [SHOAL_I64] = {kDLInt, 64, 1},
        [SHOAL_U8] = {kDLUInt, 8, 1},
        [SHOAL_U16] = {kDLUInt, 16, 1},
        [SHOAL_U32] = {kDLUInt, 32, 1},
        [SHOAL_U64] = {kDLUInt, 64, 1},
        [SHOAL_BOOL] = {6, 8, 1},
        [SHOAL_C64] = {kDLComplex, 64, 1},
        [SHOAL_C128] = {kDLComplex, 128, 1},
        [SHOAL_F8_E4M3FN] = {10, 8, 1},
        [SHOAL_F8_E5M2] = {12, 8, 1},
    };
    _Static_assert(sizeof(types) / sizeof(types[0]) == DTYPE_COUNT, "a dtype without its DLPack type");
    *foreign = (struct foreign){.n_deleted = 0};
    foreign->managed = (struct DLManagedTensor){
        .dl_tensor = {.data = data,
                      .device = {.device_type = kDLCPU},
                      .ndim = n_dims,
                      .dtype = types[dtype],
                      .shape = foreign->shape,
                      .strides = NULL},
        .manager_ctx = foreign,
        .deleter = delete_foreign,
    };
}

/* Import ----------------------------------------------------------------------------------------------- */

TEST(import_of_every_dtype)
{
    _Alignas(16) char memory[6 * 16];
    for (int d = 1; d < DTYPE_COUNT; d++) {
        struct foreign foreign;
        foreign_init(&foreign, memory, (shoal_dtype)d, 2);
        foreign.shape[0] = 2;
        foreign.shape[1] = 3;
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *t = shoal_from_dlpack(&foreign.managed);
        REQUIRE(t);
        CHECK_INT(shoal_tensor_dtype(t), d);
        CHECK(shoal_data(t) == memory);
        CHECK_INT(shoal_tensor_strides(t)[0], 3);
        CHECK_INT(shoal_tensor_strides(t)[1], 1);
        CHECK_INT(foreign.n_deleted, 0);
        CHECK_OK(shoal_scope_end());
        CHECK_INT(foreign.n_deleted, 1);
    }
}

TEST(import_honours_strides_and_byte_offset)
{
    int32_t memory[12];
    for (int i = 0; i < 12; i++) {
        memory[i] = i;
    }
    struct foreign foreign;
    foreign_init(&foreign, memory, SHOAL_I32, 2);
    foreign.managed.dl_tensor.byte_offset = 5 * sizeof(int32_t);
    foreign.managed.dl_tensor.strides = foreign.strides;
    foreign.shape[0] = 2;
    foreign.shape[1] = 3;
    foreign.strides[0] = -1;
    foreign.strides[1] = 2;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_from_dlpack(&foreign.managed);
    REQUIRE(t);
    CHECK(shoal_data(t) == &memory[5]);
    const int32_t *copy = shoal_data(shoal_clone(t));
    REQUIRE(copy);
    for (int i = 0; i < 6; i++) {
        CHECK_INT(copy[i], 5 - i / 3 + 2 * (i % 3));
    }
    CHECK_OK(shoal_scope_end());
    CHECK_INT(foreign.n_deleted, 1);
}

TEST(import_of_nothing_and_of_a_scalar)
{
    double value = 4;
    struct foreign empty;
    struct foreign scalar;
    foreign_init(&empty, NULL, SHOAL_F32, 1);
    empty.shape[0] = 0;
    foreign_init(&scalar, &value, SHOAL_F64, 0);
    scalar.managed.dl_tensor.shape = NULL;
    scalar.managed.deleter = NULL; /* allowed: nobody wants to know */
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_data(shoal_from_dlpack(&empty.managed)));
    CHECK(shoal_data(shoal_from_dlpack(&scalar.managed)) == &value);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(empty.n_deleted, 1);
}

static void check_import_refused(struct foreign *foreign, shoal_status expected, const char *words)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_from_dlpack(&foreign->managed));
    CHECK_ERROR_TEXT(words);
    CHECK(strncmp(shoal_error_text(), "from_dlpack: ", 13) == 0);
    CHECK(!strstr(shoal_error_text(), "from_memory"));
    CHECK_STATUS(shoal_scope_end(), expected);
    CHECK_INT(foreign->n_deleted, 0);
}

TEST(a_refused_import_stays_the_callers)
{
    _Alignas(16) char memory[64];
    struct foreign foreign;
    CHECK(!shoal_from_dlpack(NULL));
    CHECK_ERROR_TEXT("no scope");
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_from_dlpack(NULL));
    CHECK_ERROR_TEXT("managed is NULL");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);

    foreign_init(&foreign, memory, SHOAL_F32, 1);
    foreign.shape[0] = 2;
    foreign.managed.dl_tensor.dtype.lanes = 4;
    check_import_refused(&foreign, SHOAL_ERR_UNSUPPORTED, "4 lanes");
    foreign.managed.dl_tensor.dtype.lanes = 0;
    check_import_refused(&foreign, SHOAL_ERR_UNSUPPORTED, "0 lanes");
    foreign.managed.dl_tensor.dtype = (DLDataType){kDLFloat, 8, 1};
    check_import_refused(&foreign, SHOAL_ERR_UNSUPPORTED, "8 bits");
    foreign.managed.dl_tensor.dtype = (DLDataType){77, 32, 1};
    check_import_refused(&foreign, SHOAL_ERR_UNSUPPORTED, "code 77");
    foreign.managed.dl_tensor.dtype = (DLDataType){0, 0, 1};
    check_import_refused(&foreign, SHOAL_ERR_UNSUPPORTED, "0 bits");
    foreign.managed.dl_tensor.dtype = (DLDataType){kDLFloat, 32, 1};
    foreign.managed.dl_tensor.device.device_type = kDLCUDA;
    check_import_refused(&foreign, SHOAL_ERR_UNSUPPORTED, "device type 2");
    foreign.managed.dl_tensor.device.device_type = kDLCPU;
    foreign.managed.dl_tensor.ndim = 9;
    check_import_refused(&foreign, SHOAL_ERR_INVALID, "9");
    foreign.managed.dl_tensor.ndim = -1;
    check_import_refused(&foreign, SHOAL_ERR_INVALID, "-1");
    foreign.managed.dl_tensor.ndim = 1;
    foreign.shape[0] = -2;
    check_import_refused(&foreign, SHOAL_ERR_INVALID, "-2");
    foreign.shape[0] = 2;
    foreign.managed.dl_tensor.shape = NULL;
    check_import_refused(&foreign, SHOAL_ERR_INVALID, "shape");
    foreign.managed.dl_tensor.shape = foreign.shape;
    foreign.managed.dl_tensor.byte_offset = 2;
    check_import_refused(&foreign, SHOAL_ERR_INVALID, "aligned");
    foreign.managed.dl_tensor.byte_offset = 0;
    foreign.managed.dl_tensor.data = NULL;
    check_import_refused(&foreign, SHOAL_ERR_INVALID, "data is NULL");
}

/* Export ----------------------------------------------------------------------------------------------- */

TEST(round_trip_of_every_dtype)
{
    for (int d = 1; d < DTYPE_COUNT; d++) {
        struct DLManagedTensor *managed = NULL;
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *t = shoal_full((int64_t[]){2, 3, 2}, 3, 1, (shoal_dtype)d);
        shoal_tensor *view = shoal_transpose(shoal_narrow(t, 1, 1, 2), 0, 2);
        REQUIRE(view);
        CHECK_OK(shoal_to_dlpack(view, &managed));
        REQUIRE(managed);
        CHECK_INT(managed->dl_tensor.ndim, 3);
        CHECK_INT(managed->dl_tensor.device.device_type, kDLCPU);
        CHECK_INT(managed->dl_tensor.dtype.lanes, 1);
        CHECK_INT((managed->dl_tensor.dtype.bits + 7) / 8, shoal_dtype_bytes((shoal_dtype)d));
        const char *first = (const char *)managed->dl_tensor.data + managed->dl_tensor.byte_offset;
        CHECK(first == shoal_data(view));
        for (int i = 0; i < 3; i++) {
            CHECK_INT(managed->dl_tensor.shape[i], shoal_tensor_shape(view)[i]);
            CHECK_INT(managed->dl_tensor.strides[i], shoal_tensor_strides(view)[i]);
        }
        shoal_tensor *back = shoal_from_dlpack(managed);
        REQUIRE(back);
        CHECK_INT(shoal_tensor_dtype(back), d);
        CHECK(shoal_data(back) == shoal_data(view));
        CHECK_OK(shoal_scope_end());
    }
}

TEST(an_export_keeps_the_memory_alive)
{
    struct DLManagedTensor *managed = NULL;
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_to_dlpack(shoal_full((int64_t[]){3}, 1, 7, SHOAL_I32), &managed));
    CHECK_OK(shoal_scope_end());
    REQUIRE(managed);
    CHECK_INT(((const int32_t *)managed->dl_tensor.data)[2], 7);
    managed->deleter(managed);
}

TEST(an_export_pins_the_memory)
{
    struct DLManagedTensor *a = NULL;
    struct DLManagedTensor *b = NULL;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){3}, 1, 7, SHOAL_I32);
    REQUIRE(t);
    CHECK_OK(shoal_tensor_set_name(t, "exported"));
    CHECK_OK(shoal_to_dlpack(t, &a));
    CHECK_OK(shoal_to_dlpack(shoal_narrow(t, 0, 0, 1), &b));
    REQUIRE(a && b);
    CHECK_STATUS(shoal_tensor_release_data(t), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("exported");
    CHECK_ERROR_TEXT("2");
    CHECK_STATUS(shoal_tensor_rebind_data(t, NULL, NULL, NULL), SHOAL_ERR_STATE);
    a->deleter(a);
    CHECK_STATUS(shoal_tensor_release_data(t), SHOAL_ERR_STATE);
    b->deleter(b);
    CHECK_OK(shoal_tensor_release_data(t));
    CHECK_OK(shoal_scope_end());
}

TEST(bad_exports_are_refused)
{
    struct DLManagedTensor *managed = (struct DLManagedTensor *)&managed;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *t = shoal_full((int64_t[]){3}, 1, 7, SHOAL_I32);
    REQUIRE(t);
    CHECK_STATUS(shoal_to_dlpack(NULL, &managed), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensor is NULL");
    CHECK_STATUS(shoal_to_dlpack(t, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("managed_out is NULL");
    CHECK_STATUS(shoal_to_dlpack(shoal_empty_on((int64_t[]){1}, 1, SHOAL_F32, SHOAL_META), &managed),
                 SHOAL_ERR_STATE);
    CHECK_OK(shoal_tensor_release_data(t));
    CHECK_STATUS(shoal_to_dlpack(t, &managed), SHOAL_ERR_STATE);
    CHECK_OK(shoal_tensor_rebind_data(t, NULL, NULL, NULL));
    struct completion *write = completion_create();
    REQUIRE(write);
    CHECK_OK(storage_add_write(t->storage, write));
    completion_finish(write, error_set(SHOAL_ERR_PEER, "rank 1 left"));
    CHECK_STATUS(shoal_to_dlpack(t, &managed), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 1 left");
    completion_unref(write);
    CHECK(managed == (struct DLManagedTensor *)&managed);
    /* A refused export pins nothing. */
    CHECK_OK(shoal_tensor_release_data(t));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_PEER);
}

static shoal_status round_trip(void *context)
{
    struct DLManagedTensor *managed = NULL;
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *t = shoal_zeros((int64_t[]){2}, 1, SHOAL_F32);
    if (t) {
        status = shoal_to_dlpack(t, &managed);
    }
    if (managed && !shoal_from_dlpack(managed)) {
        managed->deleter(managed); /* refused: still ours */
    }
    shoal_status end = shoal_scope_end();
    return end != SHOAL_OK ? end : status;
}

TEST(round_trip_survives_failing_allocations)
{
    CHECK(test_sweep_allocations(round_trip, NULL) >= 4);
}
