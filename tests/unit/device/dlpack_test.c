/* SPDX-License-Identifier: MIT */
/* DLPack on a device: the same memory on both sides, and the order of work between streams. */
#include <dlpack/dlpack.h>

#include "fixtures/apart.h"
#include "fixtures/apart_streams.h"
#include "fixtures/scoped.h"
#include "harness/test.h"
#include "shoal/shoal.h"

/* Somebody else's tensor, on `apart`. */
struct foreign {
    struct DLManagedTensor managed;
    int64_t shape[2];
    int64_t strides[2];
    _Atomic int n_deleted;
};

static void delete_foreign(struct DLManagedTensor *managed)
{
    struct foreign *foreign = managed->manager_ctx;
    (void)atomic_fetch_add(&foreign->n_deleted, 1);
}

/* f32 [n] */
static void foreign_init(struct foreign *foreign, void *data, int64_t n)
{
    *foreign = (struct foreign){.shape = {n}};
    foreign->managed = (struct DLManagedTensor){
        .dl_tensor = {.data = data,
                      .device = {.device_type = kDLExtDev},
                      .ndim = 1,
                      .dtype = {kDLFloat, 32, 1},
                      .shape = foreign->shape},
        .manager_ctx = foreign,
        .deleter = delete_foreign,
    };
}

/* Export ------------------------------------------------------------------------------------------------- */

SCOPED_TEST(an_export_is_the_same_memory)
{
    struct DLManagedTensor *managed = NULL;
    uint64_t n_bytes = (apart(), atomic_load(&test_apart()->n_bytes));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *there = shoal_to_device(count_up(DIMS(4, 3), 0), apart());
    shoal_tensor *view = shoal_transpose(shoal_narrow(there, 0, 1, 2), 0, 1);
    REQUIRE_OK(shoal_to_dlpack(view, &managed));
    const DLTensor *tensor = &managed->dl_tensor;
    CHECK_INT(tensor->device.device_type, kDLExtDev);
    CHECK_INT(tensor->device.device_id, 0);
    CHECK((char *)tensor->data + tensor->byte_offset == address_in(view));
    CHECK((char *)tensor->data + tensor->byte_offset == (char *)address_in(there) + 12);
    CHECK_INT(tensor->ndim, 2);
    CHECK(tensor->shape[0] == 3 && tensor->shape[1] == 2);
    CHECK(tensor->strides[0] == 1 && tensor->strides[1] == 3);
    CHECK_STATUS(shoal_tensor_release_data(there), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("DLPack exports");
    shoal_tensor *back = shoal_from_dlpack(managed);
    REQUIRE(back);
    CHECK(shoal_tensor_device(back) == apart() && address_in(back) == address_in(view));
    CHECK(shoal_mul_scalar_(back, 10));
    check_values(there, (const float[]){0, 1, 2, 30, 40, 50, 60, 70, 80, 9, 10, 11}, 12);
    check_values(back, (const float[]){30, 60, 40, 70, 50, 80}, 6);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_device_synchronize(apart()));
    CHECK_INT(atomic_load(&test_apart()->n_bytes), n_bytes);
}

SCOPED_TEST(an_export_waits_for_the_device)
{
    struct DLManagedTensor *managed = NULL;
    shoal_tensor *there = shoal_to_device(count_up(DIMS(3), 1), apart());
    atomic_store(&test_apart()->is_held, 1);
    CHECK(shoal_add_scalar_(there, 1));
    CHECK_STATUS(shoal_to_dlpack(there, &managed), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("to_dlpack: device apart: waited 0.5 s for the work of a device");
    CHECK(!managed);
    REQUIRE_OK(shoal_to_dlpack_on(there, -1, &managed)); /* does not wait */
    atomic_store(&test_apart()->is_held, 0);
    managed->deleter(managed);
    CHECK_OK(shoal_to_dlpack(there, &managed));
    CHECK(ends_within(stream_compute(apart()), 5));
    managed->deleter(managed);
    CHECK_OK(shoal_tensor_release_data(there)); /* no export is left */
}

/* The host does not wait: the consumer's stream does. */
SCOPED_TEST(a_stream_of_the_consumer_waits)
{
    struct DLManagedTensor *managed = NULL;
    float values[3] = {0};
    float again[3] = {0};
    void *consumer = make_stream();
    shoal_tensor *there = shoal_to_device(count_up(DIMS(3), 1), apart());
    hold_stream(stream_compute(apart()));
    CHECK(shoal_add_scalar_(there, 1));
    REQUIRE_OK(shoal_to_dlpack_on(there, number_of(consumer), &managed));
    CHECK(!ends_within(consumer, 0.05));
    stream_enter(apart(), consumer);
    CHECK_OK(device_row(apart())->copy_out(values, managed->dl_tensor.data, sizeof values));
    stream_leave();
    hold_stream(NULL);
    CHECK(ends_within(consumer, 5));
    CHECK(values[0] == 2.0F && values[2] == 4.0F);
    /* The consumer's work is done before its export ends, or the device waits for it. */
    hold_stream(consumer);
    stream_enter(apart(), consumer);
    CHECK_OK(device_row(apart())->copy_out(again, managed->dl_tensor.data, sizeof again));
    stream_leave();
    CHECK_OK(shoal_device_follow(apart(), number_of(consumer)));
    managed->deleter(managed);
    CHECK_OK(shoal_tensor_release_data(there));
    shoal_tensor *next = shoal_to_device(count_up(DIMS(3), 7), apart()); /* in the same memory */
    CHECK(!ends_within(stream_compute(apart()), 0.05));
    hold_stream(NULL);
    check_values(next, (const float[]){7, 8, 9}, 3);
    CHECK(again[0] == 2.0F && again[2] == 4.0F);
    end_stream(consumer);
}

/* Import ------------------------------------------------------------------------------------------------- */

SCOPED_TEST(an_import_is_the_same_memory)
{
    struct foreign foreign;
    shoal_tensor *owner = shoal_to_device(count_up(DIMS(8), 0), apart());
    foreign_init(&foreign, address_in(owner), 2);
    foreign.managed.dl_tensor.byte_offset = 4 * sizeof(float);
    foreign.managed.dl_tensor.ndim = 2;
    foreign.managed.dl_tensor.strides = foreign.strides;
    foreign.shape[1] = 3;
    foreign.strides[0] = -3;
    foreign.strides[1] = 1;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *imported = shoal_from_dlpack(&foreign.managed);
    REQUIRE(imported);
    CHECK(address_in(imported) == (char *)address_in(owner) + 16);
    check_values(imported, (const float[]){4, 5, 6, 1, 2, 3}, 6);
    atomic_store(&test_apart()->is_held, 1);
    CHECK(shoal_add_scalar_(imported, 10));
    CHECK_OK(shoal_scope_end());
    CHECK_INT(foreign.n_deleted, 0); /* the device works on it yet */
    atomic_store(&test_apart()->is_held, 0);
    CHECK_OK(shoal_device_synchronize(apart()));
    CHECK_INT(foreign.n_deleted, 1);
    check_values(owner, (const float[]){0, 11, 12, 13, 14, 15, 16, 7}, 8);
}

/* What the producer has asked of the device comes first: by its stream, or by ours that it was given. */
SCOPED_TEST(the_work_of_the_producer_comes_first)
{
    const float written[] = {5, 6, 7};
    int64_t ours = 0;
    void *producer = make_stream();
    CHECK_OK(shoal_device_stream(apart(), &ours));
    CHECK(ours == number_of(stream_compute(apart())));
    for (int is_given = 0; is_given < 2; is_given++) {
        struct foreign foreign;
        shoal_tensor *owner = shoal_to_device(count_up(DIMS(3), 0), apart());
        test_finish(apart());
        foreign_init(&foreign, address_in(owner), 3);
        hold_stream(producer);
        stream_enter(apart(), producer);
        CHECK_OK(device_row(apart())->copy_in(address_in(owner), written, sizeof written));
        stream_leave();
        if (is_given) {
            CHECK_OK(stream_order(apart(), producer, (void *)(uintptr_t)ours));
        } else {
            CHECK_OK(shoal_device_follow(apart(), number_of(producer)));
        }
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *imported = shoal_from_dlpack(&foreign.managed);
        CHECK(shoal_add_scalar_(imported, 1));
        CHECK(!ends_within(stream_compute(apart()), 0.05));
        hold_stream(NULL);
        check_values(imported, (const float[]){6, 7, 8}, 3);
        CHECK_OK(shoal_scope_end());
        CHECK_OK(shoal_device_synchronize(apart()));
        CHECK_INT(foreign.n_deleted, 1);
    }
    end_stream(producer);
}

/* What is refused ---------------------------------------------------------------------------------------- */

TEST(memory_of_no_device_stays_the_callers)
{
    struct foreign foreign;
    float value = 1;
    foreign_init(&foreign, &value, 1);
    (void)apart();
    foreign.managed.dl_tensor.device.device_type = kDLCUDA;
    CHECK_SCOPE_ERROR(
        shoal_from_dlpack(&foreign.managed), SHOAL_ERR_UNSUPPORTED,
        "from_dlpack: memory of DLPack's device type 2, number 0: this process has no such device");
    foreign.managed.dl_tensor.device = (DLDevice){(DLDeviceType)0, 0};
    CHECK_SCOPE_ERROR(shoal_from_dlpack(&foreign.managed), SHOAL_ERR_UNSUPPORTED, "device type 0, number 0");
    foreign.managed.dl_tensor.device = (DLDevice){(DLDeviceType)77, 1};
    CHECK_SCOPE_ERROR(shoal_from_dlpack(&foreign.managed), SHOAL_ERR_UNSUPPORTED, "device type 77, number 1");
    foreign.managed.dl_tensor.device = (DLDevice){kDLExtDev, 3};
    CHECK_SCOPE_ERROR(
        shoal_from_dlpack(&foreign.managed), SHOAL_ERR_UNSUPPORTED,
        "memory of DLPack's device type 12, number 3: device apart of this process is number 0");
    CHECK_INT(foreign.n_deleted, 0);
    foreign.managed.dl_tensor.device = (DLDevice){kDLCPU, 0};
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_data(shoal_from_dlpack(&foreign.managed)) == &value);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(foreign.n_deleted, 1);
}

SCOPED_TEST(what_cannot_be_exported)
{
    struct DLManagedTensor *managed = NULL;
    shoal_device beside = SHOAL_CPU;
    REQUIRE_OK(shoal_device_find("beside", &beside));
    shoal_tensor *here = count_up(DIMS(2), 0);
    CHECK_STATUS(shoal_to_dlpack(shoal_to_device(here, beside), &managed), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("to_dlpack: the tensor is on device beside, for which DLPack has no number");
    shoal_tensor *there = shoal_to_device(here, apart());
    CHECK_STATUS(shoal_to_dlpack_on(there, 0, &managed), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("to_dlpack_on: stream: 0 is no stream");
    CHECK_STATUS(shoal_to_dlpack_on(there, -2, &managed), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("to_dlpack_on: stream: -2 is no stream of device apart");
    CHECK_STATUS(shoal_to_dlpack_on(here, 1, &managed), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("to_dlpack_on: device cpu has no streams");
    CHECK_STATUS(shoal_to_dlpack_on(NULL, 1, &managed), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_to_dlpack_on(there, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_to_dlpack_on(shoal_empty_on(DIMS(1), SHOAL_F32, SHOAL_META), -1, &managed),
                 SHOAL_ERR_STATE);
    CHECK(!managed);
    REQUIRE_OK(shoal_to_dlpack_on(here, -1, &managed));
    CHECK(managed->dl_tensor.data == shoal_data(here));
    managed->deleter(managed);
    int64_t stream = 5;
    CHECK_STATUS(shoal_device_stream(SHOAL_CPU, &stream), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("device_stream: device cpu has no streams");
    CHECK_STATUS(shoal_device_stream(apart(), NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_device_follow(SHOAL_META, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_device_follow(apart(), 0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("device_follow: stream: 0 is no stream of device apart");
    CHECK_STATUS(shoal_device_follow((shoal_device)9, 1), SHOAL_ERR_INVALID);
    CHECK_INT(stream, 5);
}

SCOPED_TEST(a_device_that_has_failed_says_why)
{
    struct DLManagedTensor *managed = NULL;
    shoal_tensor *there = shoal_to_device(count_up(DIMS(2), 0), apart());
    void *consumer = make_stream();
    for (int at = 1; at <= 2; at++) {
        atomic_store(&test_apart()->fail_at, at);
        CHECK_STATUS(shoal_to_dlpack_on(there, number_of(consumer), &managed), SHOAL_ERR_SYSTEM);
        CHECK_ERROR_TEXT("to_dlpack_on: device apart has failed: call ");
        CHECK_STATUS(shoal_to_dlpack(there, &managed), SHOAL_ERR_SYSTEM);
        test_forget_failure();
    }
    CHECK(!managed);
    CHECK_OK(shoal_tensor_release_data(there));
    end_stream(consumer);
}
