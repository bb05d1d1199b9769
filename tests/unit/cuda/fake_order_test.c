/* SPDX-License-Identifier: MIT */
/* The CUDA driver for tests (tests/fakecuda): order of work, failures, images. It runs in both modes. */
#include <pthread.h>

#include "fakecuda/opened.h"

__attribute__((constructor)) static void prepare(void)
{
    open_driver();
}

#define LEGACY ((struct CUstream_st *)CUDA_STREAM_LEGACY)
#define PER_THREAD ((struct CUstream_st *)CUDA_STREAM_PER_THREAD)

static unsigned char *make_pinned(void)
{
    void *memory = NULL;
    CHECK_CU(cu.cuMemHostAlloc(&memory, BYTES, CUDA_HOST_PORTABLE));
    return memory;
}

static void wait_for(struct CUevent_st *event)
{
    cuda_result result;
    while ((result = cu.cuEventQuery(event)) == CUDA_NOT_READY) {
        test_pause(0.0001);
    }
    CHECK_CU(result);
}

/* Copies ------------------------------------------------------------------------------------------------- */

TEST(pinned_memory_is_read_and_written_late)
{
    unsigned char ordinary[BYTES];
    begin();
    struct CUstream_st *stream = make_stream();
    struct CUevent_st *event = make_event();
    cuda_address memory[] = {allocate(stream), allocate(stream)};
    unsigned char *pinned = make_pinned();
    unsigned char *back = make_pinned();
    fill(ordinary, 1);
    fill(pinned, 1);
    fill(back, 1);
    hold(stream);
    CHECK_CU(cu.cuMemcpyHtoDAsync(memory[0], ordinary, BYTES, stream));
    CHECK_CU(cu.cuMemcpyHtoDAsync(memory[1], pinned, BYTES, stream));
    CHECK_CU(cu.cuMemcpyDtoHAsync(back, memory[1], BYTES, stream));
    CHECK_CU(cu.cuEventRecord(event, stream));
    fill(ordinary, 2);
    fill(pinned, 2);
    CHECK_INT(cu.cuEventQuery(event), CUDA_NOT_READY);
    CHECK(is_filled(back, 1));
    hold(NULL);
    wait_for(event);
    CHECK(is_filled(back, 2));
    CHECK(holds(stream, memory[0], 1));
    CHECK(holds(stream, memory[1], 2));
    CHECK_CU(cu.cuMemcpyDtoDAsync(memory[0], memory[1], BYTES, stream));
    CHECK(holds(stream, memory[0], 2));
    CHECK_INT(cu.cuMemcpyHtoDAsync(memory[0], pinned + BYTES - 8, 16, stream), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemcpyHtoDAsync(memory[0], NULL, 16, stream), CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuMemcpyHtoDAsync(0, NULL, 0, stream));
    CHECK_CU(cu.cuMemFreeHost(pinned));
    CHECK_CU(cu.cuMemFreeHost(back));
    CHECK_CU(cu.cuMemFreeAsync(memory[0], stream));
    CHECK_CU(cu.cuMemFreeAsync(memory[1], stream));
    CHECK_CU(cu.cuEventDestroy(event));
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

TEST(pinned_memory_that_is_used_must_not_be_freed)
{
    begin();
    struct CUstream_st *stream = make_stream();
    cuda_address memory = allocate(stream);
    unsigned char *pinned = make_pinned();
    hold(stream);
    CHECK_CU(cu.cuMemcpyHtoDAsync(memory, pinned, BYTES, stream));
    CHECK_INT(cu.cuMemFreeHost(pinned), CUDA_ILLEGAL_ADDRESS);
    CHECK_INT(cu.cuStreamQuery(stream), CUDA_ILLEGAL_ADDRESS);
    settings->forget_failure();
    hold(NULL);
    CHECK_CU(cu.cuStreamSynchronize(stream));
    CHECK_CU(cu.cuMemFreeAsync(memory, stream));
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

/* Order -------------------------------------------------------------------------------------------------- */

/* One stream fills, another one copies, and the first waits for that before it fills again. */
TEST(events_keep_streams_in_order)
{
    begin();
    struct CUstream_st *streams[] = {make_stream(), make_stream()};
    struct CUevent_st *filled = make_event();
    struct CUevent_st *copied = make_event();
    cuda_address from = allocate(streams[0]);
    cuda_address to = allocate(streams[1]);
    for (unsigned i = 1; i <= 100; i++) {
        unsigned char value = (unsigned char)i;
        atomic_store(&settings->seed, i);
        CHECK_CU(cu.cuStreamWaitEvent(streams[0], copied, 0)); /* which was never recorded at first */
        CHECK_CU(cu.cuMemsetD8Async(from, value, BYTES, streams[0]));
        CHECK_CU(cu.cuEventRecord(filled, streams[0]));
        CHECK_CU(cu.cuStreamWaitEvent(streams[1], filled, 0));
        CHECK_CU(cu.cuMemcpyDtoDAsync(to, from, BYTES, streams[1]));
        CHECK_CU(cu.cuEventRecord(copied, streams[1]));
        if (i % 10 == 0) {
            CHECK(holds(streams[1], to, value));
        }
    }
    CHECK_CU(cu.cuStreamSynchronize(streams[0]));
    CHECK_CU(cu.cuMemFreeAsync(from, streams[1])); /* the last to use it */
    CHECK_CU(cu.cuMemFreeAsync(to, streams[1]));
    CHECK_CU(cu.cuEventDestroy(filled));
    CHECK_CU(cu.cuEventDestroy(copied));
    CHECK_CU(cu.cuStreamDestroy(streams[0]));
    CHECK_CU(cu.cuStreamDestroy(streams[1]));
    end();
}

TEST(a_wait_is_for_the_record_that_it_found)
{
    begin();
    struct CUstream_st *streams[] = {make_stream(), make_stream(), make_stream()};
    struct CUevent_st *event = make_event();
    CHECK_CU(cu.cuEventQuery(event));
    CHECK_CU(cu.cuStreamWaitEvent(streams[1], event, 0));
    CHECK_CU(cu.cuStreamSynchronize(streams[1]));
    hold(streams[0]);
    CHECK_CU(cu.cuEventRecord(event, streams[0]));
    CHECK_CU(cu.cuStreamWaitEvent(streams[1], event, 0));
    CHECK_CU(cu.cuEventRecord(event, streams[2]));
    wait_for(event);
    CHECK_CU(cu.cuEventDestroy(event));
    CHECK_INT(cu.cuStreamQuery(streams[1]), CUDA_NOT_READY);
    hold(NULL);
    CHECK_CU(cu.cuStreamSynchronize(streams[1]));
    for (int i = 0; i < 3; i++) {
        CHECK_CU(cu.cuStreamDestroy(streams[i]));
    }
    end();
}

/* A stream that asked to be left alone goes on while the legacy stream is held; others wait for it. */
TEST(the_legacy_stream_keeps_others_in_order)
{
    struct CUstream_st *blocking = NULL;
    begin();
    struct CUstream_st *alone = make_stream();
    CHECK_CU(cu.cuStreamCreateWithPriority(&blocking, 0, -1));
    cuda_address memory = allocate(alone);
    CHECK_CU(cu.cuStreamSynchronize(alone));
    hold(LEGACY);
    CHECK_CU(cu.cuMemsetD8Async(memory, 1, BYTES, NULL));
    CHECK_CU(cu.cuMemsetD8Async(memory, 2, BYTES, blocking));
    CHECK_CU(cu.cuMemsetD8Async(memory, 3, BYTES, LEGACY));
    CHECK_CU(cu.cuMemsetD8Async(memory, 4, BYTES, PER_THREAD));
    CHECK_CU(cu.cuStreamSynchronize(alone));
    CHECK_INT(cu.cuStreamQuery(blocking), CUDA_NOT_READY);
    CHECK_INT(cu.cuStreamQuery(PER_THREAD), CUDA_NOT_READY);
    hold(NULL);
    CHECK(holds(NULL, memory, 4));
    CHECK_CU(cu.cuMemFreeAsync(memory, NULL));
    CHECK_CU(cu.cuStreamDestroy(blocking));
    CHECK_CU(cu.cuStreamSynchronize(LEGACY));
    CHECK_CU(cu.cuStreamDestroy(alone));
    end();
}

TEST(work_of_a_destroyed_stream_is_done)
{
    begin();
    struct CUstream_st *streams[] = {make_stream(), make_stream()};
    struct CUevent_st *event = make_event();
    cuda_address memory = allocate(streams[0]);
    hold(streams[0]);
    CHECK_CU(cu.cuMemsetD8Async(memory, 9, BYTES, streams[0]));
    CHECK_CU(cu.cuEventRecord(event, streams[0]));
    CHECK_CU(cu.cuStreamDestroy(streams[0]));
    CHECK_CU(cu.cuStreamWaitEvent(streams[1], event, 0));
    CHECK_INT(cu.cuStreamQuery(streams[1]), CUDA_NOT_READY);
    hold(NULL);
    CHECK(holds(streams[1], memory, 9));
    CHECK_CU(cu.cuMemFreeAsync(memory, streams[1]));
    CHECK_CU(cu.cuEventDestroy(event));
    CHECK_CU(cu.cuStreamDestroy(streams[1]));
    end();
}

static void *fill_in_a_thread(void *context_of_all)
{
    CHECK_CU(cu.cuCtxPushCurrent(context_of_all));
    struct CUstream_st *stream = make_stream();
    struct CUevent_st *event = make_event();
    for (unsigned char i = 0; i < 50; i++) {
        cuda_address memory = allocate(stream);
        CHECK_CU(cu.cuMemsetD8Async(memory, i, BYTES, stream));
        CHECK(holds(stream, memory, i));
        CHECK_CU(cu.cuMemFreeAsync(memory, stream));
        CHECK_CU(cu.cuEventRecord(event, stream));
        wait_for(event);
    }
    CHECK_CU(cu.cuEventDestroy(event));
    CHECK_CU(cu.cuStreamDestroy(stream));
    CHECK_CU(cu.cuCtxPopCurrent(NULL));
    return NULL;
}

TEST(threads_use_it_at_the_same_time)
{
    pthread_t threads[4];
    begin();
    atomic_store(&settings->seed, 5);
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, fill_in_a_thread, context) == 0);
    }
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_INT(attribute(CUDA_POOL_USED), 0);
    end();
}

/* How many of four streams have worked when the first one is done: a set of bits. */
static unsigned work_for_the_first(uint64_t seed)
{
    struct CUstream_st *streams[4];
    unsigned char *done[4];
    unsigned worked = 0;
    unsigned char source = 1;
    atomic_store(&settings->seed, seed);
    cuda_address memory = allocate(LEGACY);
    CHECK_CU(cu.cuMemsetD8Async(memory, source, BYTES, LEGACY));
    CHECK_CU(cu.cuStreamSynchronize(LEGACY));
    for (int i = 0; i < 4; i++) {
        streams[i] = make_stream();
        done[i] = make_pinned();
        CHECK_CU(cu.cuMemcpyDtoHAsync(done[i], memory, 1, streams[i]));
    }
    for (int i = 0; i < 4; i++) {
        CHECK(done[i][0] == 0xff);
    }
    CHECK_CU(cu.cuStreamSynchronize(streams[0]));
    for (int i = 0; i < 4; i++) {
        worked |= done[i][0] == source ? 1u << i : 0;
    }
    for (int i = 0; i < 4; i++) {
        CHECK_CU(cu.cuStreamSynchronize(streams[i]));
        CHECK_CU(cu.cuMemFreeHost(done[i]));
        CHECK_CU(cu.cuStreamDestroy(streams[i]));
    }
    CHECK_CU(cu.cuMemFreeAsync(memory, LEGACY));
    return worked;
}

TEST(lazy_work_is_done_when_somebody_looks)
{
    unsigned found = 0;
    if (!is_lazy) {
        test_skip("streams have workers");
        return;
    }
    begin();
    for (uint64_t seed = 1; seed <= 20; seed++) {
        unsigned worked = work_for_the_first(seed);
        CHECK(worked % 2 == 1);
        found |= 1u << (worked / 2);
    }
    CHECK((found & (found - 1)) != 0); /* more than one order */
    end();
}

/* Failures ----------------------------------------------------------------------------------------------- */

static cuda_result use_a_stream(void)
{
    struct CUstream_st *stream = NULL;
    struct CUevent_st *event = NULL;
    cuda_address memory = 0;
    cuda_result result = cu.cuStreamCreateWithPriority(&stream, CUDA_STREAM_NON_BLOCKING, 0);
    result = result ? result : cu.cuEventCreate(&event, 0);
    result = result ? result : cu.cuMemAllocFromPoolAsync(&memory, BYTES, pool, stream);
    result = result ? result : cu.cuMemsetD8Async(memory, 1, BYTES, stream);
    result = result ? result : cu.cuEventRecord(event, stream);
    result = result ? result : cu.cuStreamSynchronize(stream);
    cuda_result failure = result;
    if (memory) {
        CHECK_INT(cu.cuMemFreeAsync(memory, stream), failure);
    }
    if (event) {
        CHECK_INT(cu.cuEventQuery(event), failure);
        CHECK_INT(cu.cuEventDestroy(event), failure);
    }
    if (stream) {
        CHECK_INT(cu.cuStreamDestroy(stream), failure);
    }
    return result;
}

TEST(each_call_can_fail)
{
    begin();
    uint64_t n_bytes = atomic_load(&settings->n_bytes);
    uint64_t n_calls = atomic_load(&settings->n_calls);
    CHECK_CU(use_a_stream());
    n_calls = atomic_load(&settings->n_calls) - n_calls;
    CHECK_INT(n_calls, 6);
    for (int64_t i = 1; i <= (int64_t)n_calls; i++) {
        atomic_store(&settings->fail_at, i);
        CHECK_INT(use_a_stream(), CUDA_LAUNCH_FAILED);
        CHECK_INT(use_a_stream(), CUDA_LAUNCH_FAILED);
        settings->forget_failure();
        CHECK_INT(atomic_load(&settings->n_bytes), n_bytes);
        CHECK_CU(use_a_stream());
    }
    end();
}

TEST(addresses_of_nobody_are_a_failure)
{
    char host[4] = {0};
    begin();
    struct CUstream_st *stream = make_stream();
    cuda_address memory = allocate(stream);
    CHECK_INT(cu.cuMemsetD8Async((cuda_address)(uintptr_t)host, 0, 4, stream), CUDA_ILLEGAL_ADDRESS);
    CHECK_INT(cu.cuStreamQuery(stream), CUDA_ILLEGAL_ADDRESS);
    settings->forget_failure();
    CHECK_INT(cu.cuMemcpyHtoDAsync(memory, host, (size_t)1 << 60, stream), CUDA_ILLEGAL_ADDRESS);
    settings->forget_failure();
    CHECK_INT(cu.cuMemcpyDtoDAsync(memory, memory + 1, 2, stream), CUDA_ILLEGAL_ADDRESS);
    settings->forget_failure();
    CHECK_CU(cu.cuMemFreeAsync(memory, stream));
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

static void use_in_a_child(void *stream)
{
    int count = 0;
    CHECK_INT(cu.cuInit(0), CUDA_NOT_INITIALIZED);
    CHECK_INT(cu.cuDeviceGetCount(&count), CUDA_NOT_INITIALIZED);
    CHECK_INT(cu.cuStreamQuery(stream), CUDA_NOT_INITIALIZED);
    CHECK_INT(cu.cuStreamDestroy(stream), CUDA_NOT_INITIALIZED);
    CHECK_INT(cu.cuCtxPopCurrent(NULL), CUDA_NOT_INITIALIZED);
    CHECK_INT(atomic_load(&settings->n_inherited), 5);
}

TEST(a_child_cannot_use_it)
{
    begin();
    struct CUstream_st *stream = make_stream();
    test_in_child(use_in_a_child, stream);
    CHECK_INT(atomic_load(&settings->n_inherited), 0);
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

/* Images ------------------------------------------------------------------------------------------------- */

#define HEAD "//\n// Generated\n//\n\n.version 7.4\n.target sm_80\n.address_size 64\n\n"
#define KERNEL ".visible .entry nobody(\n\t.param .align 8 .b8 nobody_param_0[24]\n)\n{\n\tret;\n}\n"

TEST(images_are_ptx)
{
    static const struct {
        const char *text;
        cuda_result result;
    } images[] = {
        {HEAD KERNEL, CUDA_OK},
        {HEAD, INVALID_PTX},
        {".version 7.4\n.target sm_80\n" KERNEL, INVALID_PTX},
        {"\177ELF", NO_BINARY_FOR_GPU},
        {"// .version 7.4", CUDA_INVALID_IMAGE},
        {"", CUDA_INVALID_IMAGE},
    };
    begin();
    for (size_t i = 0; i < sizeof images / sizeof images[0]; i++) {
        struct CUmod_st *module = NULL;
        struct CUfunc_st *function = NULL;
        int options[] = {CUDA_JIT_OPTIMIZATION};
        void *values[] = {(void *)1};
        CHECK_INT(cu.cuModuleLoadDataEx(&module, images[i].text, 1, options, values), images[i].result);
        if (module) {
            CHECK_INT(cu.cuModuleGetFunction(&function, module, "nobody"), CUDA_NOT_FOUND);
            CHECK_CU(cu.cuModuleUnload(module));
            CHECK_INT(cu.cuModuleGetFunction(&function, module, "nobody"), INVALID_HANDLE);
        }
        options[0] = 99;
        CHECK_INT(cu.cuModuleLoadDataEx(&module, images[i].text, 1, options, values), CUDA_INVALID_VALUE);
    }
    end();
}
