/* SPDX-License-Identifier: MIT */
/*
 * The CUDA driver for tests (tests/fakecuda): memory that processes share. It runs in both modes. Each test has
 * processes of its own, because a forked one cannot use the driver of its parent.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fakecuda/opened.h"

__attribute__((constructor)) static void prepare(void)
{
    open_driver();
}

static const struct cuda_memory_properties properties = {.allocation = CUDA_ALLOCATION_PINNED,
                                                         .handles = CUDA_HANDLE_DESCRIPTOR,
                                                         .location = CUDA_LOCATION_DEVICE};
static const struct cuda_access access_all = {.location = CUDA_LOCATION_DEVICE,
                                              .flags = CUDA_ACCESS_READ_WRITE};
static size_t granularity;

/* What all tests begin with: a stream, too. */
static struct CUstream_st *begin_sharing(void)
{
    begin();
    CHECK_CU(cu.cuMemGetAllocationGranularity(&granularity, &properties, CUDA_GRANULARITY_MINIMUM));
    return make_stream();
}

static void end_sharing(struct CUstream_st *stream)
{
    CHECK_CU(cu.cuStreamDestroy(stream));
    end();
}

static cuda_memory create(void)
{
    cuda_memory memory = 0;
    CHECK_CU(cu.cuMemCreate(&memory, granularity, &properties, 0));
    return memory;
}

static cuda_address reserve(void)
{
    cuda_address address = 0;
    CHECK_CU(cu.cuMemAddressReserve(&address, granularity, 0, 0, 0));
    return address;
}

static cuda_address map(cuda_memory memory)
{
    cuda_address address = reserve();
    CHECK_CU(cu.cuMemMap(address, granularity, 0, memory, 0));
    CHECK_CU(cu.cuMemSetAccess(address, granularity, &access_all, 1));
    return address;
}

static void unmap(cuda_address address)
{
    CHECK_CU(cu.cuMemUnmap(address, granularity));
    CHECK_CU(cu.cuMemAddressFree(address, granularity));
}

/* Work on the memory makes the device fail, which is forgotten. */
static void check_not_accessible(cuda_address address, struct CUstream_st *stream)
{
    CHECK_INT(cu.cuMemsetD8Async(address, 1, BYTES, stream), CUDA_ILLEGAL_ADDRESS);
    settings->forget_failure();
}

/* One process -------------------------------------------------------------------------------------------- */

TEST_PROCESSES(it_is_memory_of_the_device, 1)
{
    int ends[2];
    size_t n_free[2];
    size_t total;
    struct CUstream_st *stream = begin_sharing();
    CHECK_CU(cu.cuMemGetInfo(&n_free[0], &total));
    cuda_memory memory = create();
    CHECK_CU(cu.cuMemGetInfo(&n_free[1], &total));
    CHECK(n_free[0] - n_free[1] == granularity);
    cuda_address shared = map(memory);
    cuda_address other = allocate(stream);
    CHECK(holds(stream, shared, 0xff));
    CHECK_CU(cu.cuMemsetD8Async(shared + 64, 7, BYTES, stream));
    CHECK_CU(cu.cuMemcpyDtoDAsync(other, shared + 64, BYTES, stream));
    CHECK(holds(stream, other, 7));
    CHECK(is_filled(settings->reach((const void *)(uintptr_t)(shared + 64), BYTES), 7));
    REQUIRE(pipe(ends) == 0);
    CHECK(write(ends[1], (const void *)(uintptr_t)shared, 1) == -1 && errno == EFAULT);
    (void)close(ends[0]);
    (void)close(ends[1]);
    /* Released memory is there while it is mapped. */
    CHECK_CU(cu.cuMemRelease(memory));
    CHECK(holds(stream, shared + 64, 7));
    CHECK_CU(cu.cuMemGetInfo(&n_free[1], &total));
    CHECK(n_free[0] - n_free[1] > granularity);
    CHECK_CU(cu.cuMemUnmap(shared, granularity));
    CHECK_CU(cu.cuMemAddressFree(shared, granularity));
    CHECK_CU(cu.cuMemFreeAsync(other, stream));
    end_sharing(stream);
}

TEST_PROCESSES(memory_can_be_mapped_twice, 1)
{
    struct CUstream_st *stream = begin_sharing();
    cuda_memory memory = create();
    cuda_address addresses[] = {map(memory), map(memory)};
    CHECK(addresses[0] != addresses[1]);
    CHECK_CU(cu.cuMemsetD8Async(addresses[0], 3, BYTES, stream));
    CHECK(holds(stream, addresses[1], 3));
    unmap(addresses[0]);
    CHECK(holds(stream, addresses[1], 3));
    unmap(addresses[1]);
    CHECK_CU(cu.cuMemRelease(memory));
    end_sharing(stream);
}

TEST_PROCESSES(only_what_is_mapped_is_accessible, 1)
{
    const struct cuda_access none = {.location = CUDA_LOCATION_DEVICE, .flags = CUDA_ACCESS_NONE};
    struct CUstream_st *stream = begin_sharing();
    cuda_memory memory = create();
    cuda_address address = reserve();
    check_not_accessible(address, stream);
    CHECK_CU(cu.cuMemMap(address, granularity, 0, memory, 0));
    check_not_accessible(address, stream);
    CHECK_CU(cu.cuMemSetAccess(address, granularity, &access_all, 1));
    CHECK_CU(cu.cuMemsetD8Async(address, 1, granularity, stream));
    CHECK_CU(cu.cuStreamSynchronize(stream));
    check_not_accessible(address + granularity - BYTES + 1, stream);
    check_not_accessible(address - 1, stream);
    CHECK_CU(cu.cuMemSetAccess(address, granularity, &none, 1));
    check_not_accessible(address, stream);
    CHECK_CU(cu.cuMemUnmap(address, granularity));
    check_not_accessible(address, stream);
    /* It can be mapped again, and is made accessible anew. */
    CHECK_CU(cu.cuMemMap(address, granularity, 0, memory, 0));
    check_not_accessible(address, stream);
    CHECK_CU(cu.cuMemSetAccess(address, granularity, &access_all, 1));
    CHECK(holds(stream, address, 1));
    unmap(address);
    check_not_accessible(address, stream);
    CHECK_CU(cu.cuMemRelease(memory));
    end_sharing(stream);
}

TEST_PROCESSES(addresses_are_not_soon_used_again, 1)
{
    struct CUstream_st *stream = begin_sharing();
    cuda_address first = reserve();
    CHECK_CU(cu.cuMemAddressFree(first, granularity));
    for (int i = 0; i < 100; i++) {
        cuda_address address = 0;
        CHECK_CU(cu.cuMemAddressReserve(&address, 2 * granularity, 8 * granularity, 0, 0));
        CHECK(address != first && address % granularity == 0);
        CHECK_CU(cu.cuMemAddressFree(address, 2 * granularity));
    }
    end_sharing(stream);
}

TEST_PROCESSES(wrong_arguments_are_told, 1)
{
    struct cuda_memory_properties other = properties;
    cuda_memory memory = 0;
    cuda_address address = 0;
    size_t bytes = 0;
    int fd = -1;
    struct CUstream_st *stream = begin_sharing();
    other.location = 2;
    CHECK_INT(cu.cuMemGetAllocationGranularity(&bytes, &other, CUDA_GRANULARITY_MINIMUM), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemCreate(&memory, granularity, &other, 0), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemCreate(&memory, granularity + 1, &properties, 0), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemCreate(&memory, 0, &properties, 0), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemCreate(&memory, granularity, &properties, 1), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemCreate(&memory, granularity << 30, &properties, 0), CUDA_OUT_OF_MEMORY);
    CHECK_INT(cu.cuMemAddressReserve(&address, granularity + 1, 0, 0, 0), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemAddressReserve(&address, granularity, 3, 0, 0), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemAddressReserve(&address, granularity << 30, 0, 0, 0), CUDA_OUT_OF_MEMORY);
    CHECK_INT(cu.cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)-1, CUDA_HANDLE_DESCRIPTOR),
              CUDA_INVALID_VALUE);
    fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    CHECK_INT(cu.cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)fd, CUDA_HANDLE_DESCRIPTOR),
              CUDA_INVALID_VALUE);
    (void)close(fd);
    other = properties;
    other.handles = 0;
    CHECK_CU(cu.cuMemCreate(&memory, granularity, &other, 0));
    CHECK_INT(cu.cuMemExportToShareableHandle(&fd, memory, CUDA_HANDLE_DESCRIPTOR, 0), CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuMemRelease(memory));
    end_sharing(stream);
}

TEST_PROCESSES(wrong_handles_and_ranges_are_told, 1)
{
    int fd = -1;
    struct CUstream_st *stream = begin_sharing();
    cuda_memory memory = create();
    cuda_memory wrong[] = {0, 5, memory + 8, (cuda_memory)(uintptr_t)&fd};
    cuda_address address = reserve();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_INT(cu.cuMemRelease(wrong[i]), CUDA_INVALID_VALUE);
        CHECK_INT(cu.cuMemMap(address, granularity, 0, wrong[i], 0), CUDA_INVALID_VALUE);
        CHECK_INT(cu.cuMemExportToShareableHandle(&fd, wrong[i], CUDA_HANDLE_DESCRIPTOR, 0),
                  CUDA_INVALID_VALUE);
    }
    CHECK_INT(cu.cuMemMap(address + 1, granularity, 0, memory, 0), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemMap(address, granularity / 2, 0, memory, 0), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemUnmap(address, granularity), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemSetAccess(address, granularity, &access_all, 1), CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuMemMap(address, granularity, 0, memory, 0));
    CHECK_INT(cu.cuMemMap(address, granularity, 0, memory, 0), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemSetAccess(address, granularity, &access_all, 0), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemAddressFree(address, granularity), CUDA_INVALID_VALUE);
    unmap(address);
    CHECK_INT(cu.cuMemAddressFree(address, granularity), CUDA_INVALID_VALUE);
    CHECK_CU(cu.cuMemRelease(memory));
    CHECK_INT(cu.cuMemRelease(memory), CUDA_INVALID_VALUE);
    end_sharing(stream);
}

/* Failures ----------------------------------------------------------------------------------------------- */

TEST_PROCESSES(calls_are_counted_and_fail, 1)
{
    int fd = -1;
    cuda_memory memory = 0;
    struct CUstream_st *stream = begin_sharing();
    uint64_t n_calls = atomic_load(&settings->n_calls);
    memory = create();
    CHECK_CU(cu.cuMemExportToShareableHandle(&fd, memory, CUDA_HANDLE_DESCRIPTOR, 0));
    cuda_address address = map(memory);
    CHECK_INT(atomic_load(&settings->n_calls) - n_calls, 5);
    (void)close(fd);
    atomic_store(&settings->fail_at, 1);
    CHECK_INT(cu.cuMemCreate(&memory, granularity, &properties, 0), CUDA_LAUNCH_FAILED);
    CHECK_INT(cu.cuMemAddressReserve(&address, granularity, 0, 0, 0), CUDA_LAUNCH_FAILED);
    /* What frees works, gives the failure, and is not counted. */
    n_calls = atomic_load(&settings->n_calls);
    CHECK_INT(cu.cuMemUnmap(address, granularity), CUDA_LAUNCH_FAILED);
    CHECK_INT(cu.cuMemAddressFree(address, granularity), CUDA_LAUNCH_FAILED);
    CHECK_INT(cu.cuMemRelease(memory), CUDA_LAUNCH_FAILED);
    CHECK_INT(atomic_load(&settings->n_calls), n_calls);
    settings->forget_failure();
    CHECK_INT(cu.cuMemRelease(memory), CUDA_INVALID_VALUE);
    CHECK_INT(cu.cuMemAddressFree(address, granularity), CUDA_INVALID_VALUE);
    atomic_store(&settings->no_memory_at, 1);
    CHECK_INT(cu.cuMemCreate(&memory, granularity, &properties, 0), CUDA_OUT_OF_MEMORY);
    end_sharing(stream);
}

TEST_PROCESSES(memory_that_a_copy_uses_must_stay, 1)
{
    struct CUstream_st *stream = begin_sharing();
    cuda_memory memory = create();
    cuda_address address = map(memory);
    CHECK_CU(cu.cuMemsetD8Async(address, 1, BYTES, stream));
    CHECK_CU(cu.cuStreamSynchronize(stream));
    hold(stream);
    CHECK_CU(cu.cuMemsetD8Async(address, 2, BYTES, stream));
    CHECK_INT(cu.cuMemUnmap(address, granularity), CUDA_ILLEGAL_ADDRESS);
    CHECK_INT(cu.cuMemAddressFree(address, granularity), CUDA_ILLEGAL_ADDRESS);
    settings->forget_failure();
    hold(NULL);
    CHECK_CU(cu.cuStreamSynchronize(stream));
    CHECK_CU(cu.cuMemRelease(memory));
    end_sharing(stream);
}

/* Two processes ------------------------------------------------------------------------------------------ */

struct told {
    _Atomic int process;
    _Atomic int fd;
};

/* What the first rank has told. */
static cuda_memory import(const struct told *told)
{
    cuda_memory memory = 0;
    int process = (int)syscall(SYS_pidfd_open, atomic_load(&told->process), 0);
    int fd = (int)syscall(SYS_pidfd_getfd, process, atomic_load(&told->fd), 0);
    CHECK(process >= 0 && fd >= 0);
    CHECK_CU(cu.cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)fd, CUDA_HANDLE_DESCRIPTOR));
    (void)close(process);
    (void)close(fd);
    return memory;
}

TEST_PROCESSES(processes_share_memory, 2)
{
    struct told *told = self->shared;
    cuda_memory memory = 0;
    int fd = -1;
    struct CUstream_st *stream = begin_sharing();
    if (self->rank == 0) {
        memory = create();
        CHECK_CU(cu.cuMemExportToShareableHandle(&fd, memory, CUDA_HANDLE_DESCRIPTOR, 0));
        atomic_store(&told->process, (int)getpid());
        atomic_store(&told->fd, fd);
    }
    test_barrier(self);
    memory = self->rank == 0 ? memory : import(told);
    cuda_address address = map(memory);
    if (self->rank == 0) {
        CHECK_CU(cu.cuMemsetD8Async(address, 5, BYTES, stream));
        CHECK_CU(cu.cuStreamSynchronize(stream));
    }
    test_barrier(self);
    if (self->rank == 1) {
        CHECK(holds(stream, address, 5));
        CHECK_CU(cu.cuMemsetD8Async(address, 6, BYTES, stream));
        CHECK_CU(cu.cuStreamSynchronize(stream));
    }
    test_barrier(self);
    /* The memory stays when its maker has dropped it. */
    CHECK(holds(stream, address, 6));
    if (self->rank == 0) {
        unmap(address);
        CHECK_CU(cu.cuMemRelease(memory));
        (void)close(fd);
    }
    test_barrier(self);
    if (self->rank == 1) {
        CHECK(holds(stream, address, 6));
        unmap(address);
        CHECK_CU(cu.cuMemRelease(memory));
    }
    end_sharing(stream);
}
