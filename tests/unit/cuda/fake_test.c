/* SPDX-License-Identifier: MIT */
/* The CUDA driver for tests (tests/fakecuda): start, handles, memory. It runs in both modes. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "fakecuda/opened.h"

__attribute__((constructor)) static void prepare(void)
{
    open_driver();
}

/* Start -------------------------------------------------------------------------------------------------- */

TEST(nothing_works_before_it_is_started)
{
    int count = 7;
    const char *text = NULL;
    CHECK_INT(cu.cuDeviceGetCount(&count), CUDA_NOT_INITIALIZED);
    CHECK_INT(cu.cuStreamQuery(NULL), CUDA_NOT_INITIALIZED);
    CHECK_INT(cu.cuCtxPushCurrent(NULL), CUDA_NOT_INITIALIZED);
    CHECK_INT(cu.cuDevicePrimaryCtxRelease(0), CUDA_NOT_INITIALIZED);
    CHECK_INT(count, 7);
    CHECK_CU(cu.cuDriverGetVersion(&count));
    CHECK_INT(count, 12000);
    CHECK_CU(cu.cuGetErrorName(CUDA_LAUNCH_FAILED, &text));
    CHECK_STRING(text, "CUDA_ERROR_LAUNCH_FAILED");
    CHECK_CU(cu.cuGetErrorString(CUDA_OUT_OF_MEMORY, &text));
    CHECK_STRING(text, "out of memory");
    CHECK_INT(cu.cuGetErrorName(12345, &text), CUDA_INVALID_VALUE);
    CHECK(!text);
    CHECK_INT(atomic_load(&settings->n_calls), 0);
}

static void start_without_devices(void *nothing)
{
    int count = 0;
    (void)setenv("FAKECUDA_DEVICES", "0", 1);
    CHECK_INT(cu.cuInit(0), CUDA_NO_DEVICE);
    CHECK_INT(cu.cuDeviceGetCount(&count), CUDA_NOT_INITIALIZED);
}

static void start_with_two_devices(void *nothing)
{
    int count = 0;
    struct CUctx_st *contexts[2];
    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    CHECK_CU(cu.cuInit(0));
    CHECK_CU(cu.cuDeviceGetCount(&count));
    CHECK_INT(count, 2);
    CHECK_CU(cu.cuDevicePrimaryCtxRetain(&contexts[0], 0));
    CHECK_CU(cu.cuDevicePrimaryCtxRetain(&contexts[1], 1));
    CHECK(contexts[0] != contexts[1]);
    CHECK_INT(cu.cuDevicePrimaryCtxRetain(&contexts[0], 2), INVALID_DEVICE);
}

static void start_in_another_mode(void *nothing)
{
    (void)setenv("FAKECUDA_MODE", "eager", 1);
    CHECK_INT(cu.cuInit(0), CUDA_INVALID_VALUE);
}

TEST(the_environment_says_what_there_is)
{
    test_in_child(start_without_devices, NULL);
    test_in_child(start_with_two_devices, NULL);
    test_in_child(start_in_another_mode, NULL);
}

TEST(functions_are_found_by_their_names)
{
    void *function = &function;
    int status = -1;
    CHECK_CU(find("cuMemFreeAsync", &function, 12080, 0, &status));
    CHECK(function == *(void **)&cu.cuMemFreeAsync && status == 0);
    CHECK_INT(find("cuMemFreeAsync", &function, 11000, 0, &status), CUDA_NOT_FOUND);
    CHECK(!function && status == 2);
    CHECK_INT(find("cuNoSuch", &function, 12000, 0, &status), CUDA_NOT_FOUND);
    CHECK(!function && status == 1);
    CHECK_CU(find("cuGetProcAddress", &function, 12000, 0, NULL));
    CHECK(function == *(void **)&find);
}

TEST(a_device_is_described)
{
    int value = 0;
    char name[8];
    size_t bytes[2] = {0, 0};
    begin();
    CHECK_CU(cu.cuDeviceGet(&value, 0));
    CHECK_INT(cu.cuDeviceGet(&value, 1), INVALID_DEVICE);
    CHECK_CU(cu.cuDeviceGetName(name, sizeof name, 0));
    CHECK_STRING(name, "Fake GP");
    CHECK_CU(cu.cuDeviceGetAttribute(&value, CUDA_CAPABILITY_MAJOR, 0));
    CHECK_INT(value, 8);
    CHECK_INT(cu.cuDeviceGetAttribute(&value, 12345, 0), CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuDeviceTotalMem(&bytes[0], 0));
    CHECK_CU(cu.cuMemGetInfo(&bytes[1], &bytes[1]));
    CHECK(bytes[0] == bytes[1]);
    end();
}

TEST(calls_need_a_context)
{
    struct CUctx_st *popped = NULL;
    begin();
    CHECK_CU(cu.cuCtxPushCurrent(context));
    CHECK_CU(cu.cuCtxPopCurrent(&popped));
    CHECK(popped == context);
    CHECK_CU(cu.cuStreamQuery(NULL));
    CHECK_CU(cu.cuCtxPopCurrent(NULL));
    CHECK_INT(cu.cuStreamQuery(NULL), INVALID_CONTEXT);
    CHECK_INT(cu.cuCtxPopCurrent(&popped), INVALID_CONTEXT);
    CHECK_INT(cu.cuCtxPushCurrent(NULL), INVALID_CONTEXT);
    CHECK_CU(cu.cuCtxPushCurrent(context));
    CHECK_CU(cu.cuDevicePrimaryCtxRelease(0));
    CHECK_INT(cu.cuStreamQuery(NULL), CONTEXT_IS_DESTROYED);
    CHECK_INT(cu.cuDevicePrimaryCtxRelease(0), INVALID_CONTEXT);
    CHECK_CU(cu.cuDevicePrimaryCtxRetain(&context, 0));
    end();
}

TEST(wrong_handles_are_told)
{
    int on_the_stack = 0;
    void *wrong[] = {&on_the_stack, (void *)3, (void *)(uintptr_t)-8};
    begin();
    struct CUstream_st *stream = make_stream();
    struct CUevent_st *event = make_event();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_INT(cu.cuStreamQuery(wrong[i]), INVALID_HANDLE);
        CHECK_INT(cu.cuStreamSynchronize(wrong[i]), INVALID_HANDLE);
        CHECK_INT(cu.cuEventRecord(wrong[i], stream), INVALID_HANDLE);
        CHECK_INT(cu.cuStreamWaitEvent(wrong[i], event, 0), INVALID_HANDLE);
        CHECK_INT(cu.cuEventDestroy(wrong[i]), INVALID_HANDLE);
        CHECK_INT(cu.cuMemPoolDestroy(wrong[i]), CUDA_INVALID_VALUE);
        CHECK_INT(cu.cuModuleUnload(wrong[i]), INVALID_HANDLE);
        CHECK_INT(cu.cuMemFreeHost(wrong[i]), CUDA_INVALID_VALUE);
        CHECK_INT(cu.cuMemFreeAsync((cuda_address)(uintptr_t)wrong[i], stream), CUDA_INVALID_VALUE);
        CHECK_INT(cu.cuLaunchKernel(wrong[i], 1, 1, 1, 1, 1, 1, 0, stream, wrong, NULL), INVALID_HANDLE);
    }
    CHECK_INT(cu.cuStreamDestroy((struct CUstream_st *)CUDA_STREAM_LEGACY), INVALID_HANDLE);
    CHECK_CU(cu.cuEventDestroy(event));
    CHECK_INT(cu.cuEventDestroy(event), INVALID_HANDLE);
    CHECK_INT(cu.cuEventRecord(event, stream), INVALID_HANDLE);
    CHECK_CU(cu.cuStreamDestroy(stream));
    CHECK_INT(cu.cuStreamDestroy(stream), INVALID_HANDLE);
    CHECK_INT(cu.cuStreamQuery(stream), INVALID_HANDLE);
    end();
}

/* Memory ------------------------------------------------------------------------------------------------- */

TEST(the_host_cannot_touch_memory)
{
    int ends[2];
    begin();
    struct CUstream_st *stream = make_stream();
    cuda_address memory = allocate(stream);
    REQUIRE(pipe(ends) == 0);
    CHECK(write(ends[1], (const void *)(uintptr_t)memory, 1) == -1 && errno == EFAULT);
    (void)close(ends[0]);
    (void)close(ends[1]);
    CHECK_CU(cu.cuStreamSynchronize(stream));
    CHECK(is_filled(settings->reach((const void *)(uintptr_t)memory, BYTES), 0xff));
    CHECK_CU(cu.cuMemFreeAsync(memory, stream));
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

TEST(memory_is_poisoned_when_the_stream_comes_to_it)
{
    begin();
    struct CUstream_st *stream = make_stream();
    cuda_address memory = allocate(stream);
    CHECK_CU(cu.cuMemsetD8Async(memory, 5, BYTES, stream));
    CHECK(holds(stream, memory, 5));
    const unsigned char *bytes = settings->reach((const void *)(uintptr_t)memory, BYTES);
    hold(stream);
    CHECK_CU(cu.cuMemFreeAsync(memory, stream));
    CHECK_INT(cu.cuStreamQuery(stream), CUDA_NOT_READY);
    CHECK(is_filled(bytes, 5));
    hold(NULL);
    CHECK_CU(cu.cuStreamSynchronize(stream));
    CHECK(is_filled(bytes, 0xff));
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

TEST(memory_is_given_out_again)
{
    begin();
    struct CUstream_st *streams[] = {make_stream(), make_stream()};
    cuda_address memory = allocate(streams[0]);
    CHECK_CU(cu.cuStreamSynchronize(streams[0]));
    hold(streams[0]);
    CHECK_CU(cu.cuMemFreeAsync(memory, streams[0]));
    CHECK_INT(cu.cuMemFreeAsync(memory, streams[0]), CUDA_INVALID_VALUE);
    /* To the same stream at once; to another one when the first has come to the free. */
    CHECK(allocate(streams[0]) == memory);
    CHECK_CU(cu.cuMemFreeAsync(memory, streams[0]));
    cuda_address other = allocate(streams[1]);
    CHECK(other != memory);
    hold(NULL);
    CHECK_CU(cu.cuStreamSynchronize(streams[0]));
    CHECK(allocate(streams[1]) == memory);
    CHECK_CU(cu.cuMemsetD8Async(memory, 3, BYTES, streams[1]));
    CHECK(holds(streams[1], memory, 3));
    CHECK_CU(cu.cuMemFreeAsync(memory, streams[1]));
    CHECK_CU(cu.cuMemFreeAsync(other, streams[1]));
    CHECK_CU(cu.cuStreamDestroy(streams[0]));
    CHECK_CU(cu.cuStreamDestroy(streams[1]));
    end();
}

TEST(pools_know_what_they_have)
{
    uint64_t zero = 0;
    int follows = 0;
    size_t n_free = 0;
    size_t total = 0;
    begin();
    uint64_t n_bytes = atomic_load(&settings->n_bytes);
    struct CUstream_st *stream = make_stream();
    cuda_address memory = allocate(stream);
    cuda_address other = allocate(stream);
    CHECK_INT(attribute(CUDA_POOL_USED), 2048);
    CHECK_INT(attribute(CUDA_POOL_RESERVED), 2048);
    CHECK_INT(atomic_load(&settings->n_bytes) - n_bytes, 2048);
    CHECK_CU(cu.cuMemGetInfo(&n_free, &total));
    CHECK_INT(total - n_free, 2048);
    CHECK_CU(cu.cuMemFreeAsync(memory, stream));
    CHECK_INT(attribute(CUDA_POOL_USED), 1024);
    CHECK_INT(attribute(CUDA_POOL_USED_HIGH), 2048);
    CHECK_CU(cu.cuMemPoolSetAttribute(pool, CUDA_POOL_USED_HIGH, &zero));
    CHECK_INT(attribute(CUDA_POOL_USED_HIGH), 1024);
    CHECK_INT(cu.cuMemPoolSetAttribute(pool, CUDA_POOL_USED, &zero), CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuMemPoolGetAttribute(pool, CUDA_POOL_FOLLOWS_EVENTS, &follows));
    CHECK_INT(follows, 1);
    CHECK_INT(cu.cuMemPoolGetAttribute(pool, 99, &zero), CUDA_INVALID_VALUE);
    /* What a pool is not to keep it has until somebody waits. */
    CHECK_CU(cu.cuMemPoolSetAttribute(pool, CUDA_POOL_KEEPS, &zero));
    CHECK_INT(attribute(CUDA_POOL_RESERVED), 2048);
    CHECK_CU(cu.cuStreamSynchronize(stream));
    CHECK_INT(attribute(CUDA_POOL_RESERVED), 1024);
    CHECK_INT(attribute(CUDA_POOL_RESERVED_HIGH), 2048);
    /* Or is told to give it up; what was not freed yet stays. */
    CHECK_CU(cu.cuMemPoolSetAttribute(pool, CUDA_POOL_KEEPS, &(uint64_t){UINT64_MAX}));
    hold(stream);
    CHECK_CU(cu.cuMemFreeAsync(other, stream));
    CHECK_CU(cu.cuMemPoolTrimTo(pool, 0));
    CHECK_INT(attribute(CUDA_POOL_RESERVED), 1024);
    hold(NULL);
    CHECK_CU(cu.cuStreamSynchronize(stream));
    CHECK_CU(cu.cuMemPoolTrimTo(pool, 1024));
    CHECK_INT(attribute(CUDA_POOL_RESERVED), 1024);
    CHECK_CU(cu.cuMemPoolTrimTo(pool, 0));
    CHECK_INT(attribute(CUDA_POOL_RESERVED), 0);
    CHECK_INT(atomic_load(&settings->n_bytes), n_bytes);
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

TEST(memory_runs_out)
{
    struct cuda_pool_properties properties = {
        .allocation = CUDA_ALLOCATION_PINNED, .location = CUDA_LOCATION_DEVICE, .most_bytes = 2048};
    struct CUmemPoolHandle_st *small = NULL;
    cuda_address memory[3] = {0};
    void *pinned = NULL;
    begin();
    struct CUstream_st *stream = make_stream();
    CHECK_CU(cu.cuMemPoolCreate(&small, &properties));
    CHECK_CU(cu.cuMemAllocFromPoolAsync(&memory[0], BYTES, small, stream));
    CHECK_CU(cu.cuMemAllocFromPoolAsync(&memory[1], BYTES, small, stream));
    CHECK_INT(cu.cuMemAllocFromPoolAsync(&memory[2], 1, small, stream), CUDA_OUT_OF_MEMORY);
    CHECK_INT(cu.cuMemAllocFromPoolAsync(&memory[2], SIZE_MAX, pool, stream), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemAllocFromPoolAsync(&memory[2], 0, pool, stream), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemHostAlloc(&pinned, SIZE_MAX, 0), CUDA_OUT_OF_MEMORY);
    atomic_store(&settings->no_memory_at, 2);
    CHECK_CU(cu.cuMemAllocFromPoolAsync(&memory[2], 1, pool, stream));
    CHECK_INT(cu.cuMemHostAlloc(&pinned, BYTES, CUDA_HOST_PORTABLE), CUDA_OUT_OF_MEMORY);
    CHECK_CU(cu.cuMemHostAlloc(&pinned, BYTES, CUDA_HOST_PORTABLE));
    CHECK_CU(cu.cuMemFreeHost(pinned));
    for (int i = 0; i < 3; i++) {
        CHECK_CU(cu.cuMemFreeAsync(memory[i], stream));
    }
    CHECK_CU(cu.cuMemPoolDestroy(small));
    properties.location = 2;
    CHECK_INT(cu.cuMemPoolCreate(&small, &properties), CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}
