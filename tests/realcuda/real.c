/* SPDX-License-Identifier: MIT */
/*
 * A CUDA driver for tests on a GPU: the real one, but memory of the device is host memory that the GPU can reach, at the same
 * addresses. So tests that look at memory of a device (fixtures/test_device.h) run there too. Kernels, streams, events, images
 * and contexts are the real driver's. SHOAL_CUDA names this library; REALCUDA_DRIVER the driver, libcuda.so.1 by default.
 *
 *   memory of pools    pieces of pinned memory, in the order of streams, filled with NaN when they are given out
 *   shared memory      files in memory, mapped and registered with the driver when access to them is given
 *
 * It has none of the controls of tests/fakecuda: calls do not fail, and streams cannot be held.
 */
#define REAL_EXPORT __attribute__((visibility("default")))

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/driver_types.h"
#include "modules/apart/settings.h"

#define CHUNK_BYTES ((size_t)16 << 20)
#define SMALLEST_LOG2 9
#define LARGEST_LOG2 32 /* more than that is more than there is */
#define ORDERS (LARGEST_LOG2 + 1)
#define POISON 0xff  /* NaN in every floating-point dtype */
#define HOST_FLAGS 3 /* for all contexts, and mapped */

typedef cuda_result find_function(const char *name, void **function_out, int version, uint64_t flags,
                                  int *status_out);
REAL_EXPORT find_function cuGetProcAddress_v2;
extern REAL_EXPORT struct apart_settings fakecuda_settings;

static struct {
#define CUDA_CALL(name, parameters) cuda_result(*name) parameters;
#include "cuda/driver.def"
    CUDA_CALL(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags))
    CUDA_CALL(cuMemHostUnregister, (void *memory))
    CUDA_CALL(cuMemHostGetDevicePointer_v2, (cuda_address * address_out, void *memory, unsigned flags))
    CUDA_CALL(cuMemcpyAsync,
              (cuda_address target, cuda_address source, size_t bytes, struct CUstream_st *stream))
#undef CUDA_CALL
} real;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What tests ask of it --------------------------------------------------------------------------------------- */

static void forget_failure(void)
{
}

static void *reach(const void *data, size_t bytes)
{
    (void)bytes;
    return (void *)(uintptr_t)data;
}

struct apart_settings fakecuda_settings = {.forget_failure = forget_failure, .reach = reach};

/* Memory of pools -------------------------------------------------------------------------------------------- */

/* A piece that is given out or, in the list of its order of size, free behind an event. */
struct piece {
    struct piece *next;
    char *data;
    size_t bytes;
    int order;
    struct CUstream_st *stream; /* where it was freed */
    struct CUevent_st *freed;
};

static struct piece *pieces;              /* those that are given out; under the lock */
static struct piece *free_pieces[ORDERS]; /* under the lock */
static char *chunk;
static size_t chunk_left;

static int find_order(size_t bytes)
{
    int order = SMALLEST_LOG2;
    while (order <= LARGEST_LOG2 && ((size_t)1 << order) < bytes) {
        order++;
    }
    return order;
}

/* Under the lock. */
static cuda_result make_piece(int order, struct piece **piece_out)
{
    const size_t bytes = (size_t)1 << order;
    cuda_result result = CUDA_OK;
    struct piece *piece = calloc(1, sizeof *piece);
    if (!piece) {
        return CUDA_OUT_OF_MEMORY;
    }
    if (bytes > CHUNK_BYTES / 4) {
        result = real.cuMemHostAlloc((void **)&piece->data, bytes, HOST_FLAGS);
    } else {
        if (chunk_left < bytes) {
            result = real.cuMemHostAlloc((void **)&chunk, CHUNK_BYTES, HOST_FLAGS);
            chunk_left = result == CUDA_OK ? CHUNK_BYTES : 0;
        }
        piece->data = chunk;
        chunk += result == CUDA_OK ? bytes : 0;
        chunk_left -= result == CUDA_OK ? bytes : 0;
    }
    result = result == CUDA_OK ? real.cuEventCreate(&piece->freed, CUDA_EVENT_DISABLE_TIMING) : result;
    if (result != CUDA_OK) {
        free(piece); /* and what it had stays as it is */
        return result;
    }
    piece->order = order;
    *piece_out = piece;
    return CUDA_OK;
}

/* One that was freed before in this stream, or whose event is past. Under the lock. */
static struct piece *take_free(int order, struct CUstream_st *stream)
{
    for (struct piece **at = &free_pieces[order]; *at; at = &(*at)->next) {
        struct piece *piece = *at;
        if (piece->stream == stream || real.cuEventQuery(piece->freed) == CUDA_OK) {
            *at = piece->next;
            return piece;
        }
    }
    return NULL;
}

static cuda_result allocate(cuda_address *memory_out, size_t bytes, struct CUmemPoolHandle_st *pool,
                            struct CUstream_st *stream)
{
    (void)pool;
    int order = find_order(bytes);
    if (order > LARGEST_LOG2) {
        return CUDA_OUT_OF_MEMORY;
    }
    cuda_result result = CUDA_OK;
    (void)pthread_mutex_lock(&lock);
    struct piece *piece = take_free(order, stream);
    if (!piece) {
        result = make_piece(order, &piece);
    }
    if (result == CUDA_OK) {
        piece->bytes = bytes;
        piece->next = pieces;
        pieces = piece;
        atomic_fetch_add(&fakecuda_settings.n_bytes, bytes);
    }
    (void)pthread_mutex_unlock(&lock);
    if (result == CUDA_OK) {
        *memory_out = (cuda_address)(uintptr_t)piece->data;
        result = real.cuMemsetD8Async(*memory_out, POISON, bytes, stream);
    }
    return result;
}

static cuda_result release(cuda_address memory, struct CUstream_st *stream)
{
    (void)pthread_mutex_lock(&lock);
    struct piece **at = &pieces;
    while (*at && (cuda_address)(uintptr_t)(*at)->data != memory) {
        at = &(*at)->next;
    }
    struct piece *piece = *at;
    cuda_result result = CUDA_INVALID_VALUE;
    if (piece) {
        *at = piece->next;
        piece->stream = stream;
        (void)real.cuMemsetD8Async(memory, POISON, piece->bytes, stream);
        result = real.cuEventRecord(piece->freed, stream);
        piece->next = free_pieces[piece->order];
        free_pieces[piece->order] = piece;
        atomic_fetch_sub(&fakecuda_settings.n_bytes, piece->bytes);
    }
    (void)pthread_mutex_unlock(&lock);
    return result;
}

/* Shared memory ---------------------------------------------------------------------------------------------- */

/* Memory without an address is the descriptor of a file in memory, plus one. */
static cuda_memory memory_of(int fd)
{
    return (cuda_memory)fd + 1;
}

static int fd_of(cuda_memory memory)
{
    return (int)(memory - 1);
}

static cuda_result make_shared(cuda_memory *memory_out, size_t bytes,
                               const struct cuda_memory_properties *properties, uint64_t flags)
{
    (void)properties;
    (void)flags;
    int fd = memfd_create("realcuda", MFD_CLOEXEC);
    if (fd < 0) {
        return CUDA_OUT_OF_MEMORY;
    }
    if (ftruncate(fd, (off_t)bytes) != 0) {
        (void)close(fd);
        return CUDA_OUT_OF_MEMORY;
    }
    *memory_out = memory_of(fd);
    return CUDA_OK;
}

static cuda_result drop_shared(cuda_memory memory)
{
    return close(fd_of(memory)) == 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}

static cuda_result export_shared(void *handle_out, cuda_memory memory, int handle_type, uint64_t flags)
{
    (void)handle_type;
    (void)flags;
    int fd = dup(fd_of(memory));
    *(int *)handle_out = fd;
    return fd >= 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}

static cuda_result import_shared(cuda_memory *memory_out, void *handle, int handle_type)
{
    (void)handle_type;
    int fd = dup((int)(intptr_t)handle);
    *memory_out = memory_of(fd);
    return fd >= 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}

/* A multiple of the driver's granularity, at one. */
static cuda_result reserve(cuda_address *address_out, size_t bytes, size_t alignment, cuda_address wanted,
                           uint64_t flags)
{
    (void)alignment;
    (void)wanted;
    (void)flags;
    void *mapped = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return CUDA_OUT_OF_MEMORY;
    }
    *address_out = (cuda_address)(uintptr_t)mapped;
    return CUDA_OK;
}

static cuda_result unreserve(cuda_address address, size_t bytes)
{
    return munmap((void *)(uintptr_t)address, bytes) == 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}

static cuda_result map_shared(cuda_address address, size_t bytes, size_t offset, cuda_memory memory,
                              uint64_t flags)
{
    (void)flags;
    void *mapped = mmap((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                        fd_of(memory), (off_t)offset);
    return mapped == MAP_FAILED ? CUDA_OUT_OF_MEMORY : CUDA_OK;
}

/* From now on the GPU may use it. */
static cuda_result give_access(cuda_address address, size_t bytes, const struct cuda_access *accesses,
                               size_t n_accesses)
{
    cuda_address found = 0;
    if (n_accesses != 1 || accesses[0].flags != CUDA_ACCESS_READ_WRITE) {
        return CUDA_INVALID_VALUE;
    }
    cuda_result result = real.cuMemHostRegister_v2((void *)(uintptr_t)address, bytes, HOST_FLAGS);
    if (result == CUDA_OK) {
        result = real.cuMemHostGetDevicePointer_v2(&found, (void *)(uintptr_t)address, 0);
    }
    return result == CUDA_OK && found != address ? CUDA_INVALID_VALUE : result;
}

static cuda_result unmap_shared(cuda_address address, size_t bytes)
{
    cuda_result result = real.cuMemHostUnregister((void *)(uintptr_t)address);
    void *mapped = mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return mapped == MAP_FAILED ? CUDA_INVALID_VALUE : result;
}

/* Copies: the driver finds out what both addresses are --------------------------------------------------------- */

static cuda_result copy_in(cuda_address target, const void *source, size_t bytes, struct CUstream_st *stream)
{
    return real.cuMemcpyAsync(target, (cuda_address)(uintptr_t)source, bytes, stream);
}

static cuda_result copy_out(void *target, cuda_address source, size_t bytes, struct CUstream_st *stream)
{
    return real.cuMemcpyAsync((cuda_address)(uintptr_t)target, source, bytes, stream);
}

static cuda_result copy(cuda_address target, cuda_address source, size_t bytes, struct CUstream_st *stream)
{
    return real.cuMemcpyAsync(target, source, bytes, stream);
}

/* Functions by their names --------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static find_function *find;

static void open_driver(void)
{
    const char *given = getenv("REALCUDA_DRIVER");
    void *library = dlopen(given && *given ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *(void **)&find = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!find) {
        (void)fprintf(stderr, "realcuda: %s\n", library ? "cuGetProcAddress_v2 is missing" : dlerror());
        return;
    }
#define CUDA_CALL(name, parameters) (void)find(#name, (void **)&real.name, 12000, 0, NULL);
#include "cuda/driver.def"
    CUDA_CALL(cuMemHostUnregister, ())
    CUDA_CALL(cuMemcpyAsync, ())
#undef CUDA_CALL
    /* Names without the number of the version, which is asked for. */
    (void)find("cuMemHostRegister", (void **)&real.cuMemHostRegister_v2, 12000, 0, NULL);
    (void)find("cuMemHostGetDevicePointer", (void **)&real.cuMemHostGetDevicePointer_v2, 12000, 0, NULL);
}

#define REPLACED(name, function)          \
    {                                     \
#name, (void (*)(void))(function) \
    }
static const struct {
    const char *name;
    void (*function)(void);
} replaced[] = {
    REPLACED(cuMemAllocFromPoolAsync, allocate),
    REPLACED(cuMemFreeAsync, release),
    REPLACED(cuMemCreate, make_shared),
    REPLACED(cuMemRelease, drop_shared),
    REPLACED(cuMemExportToShareableHandle, export_shared),
    REPLACED(cuMemImportFromShareableHandle, import_shared),
    REPLACED(cuMemAddressReserve, reserve),
    REPLACED(cuMemAddressFree, unreserve),
    REPLACED(cuMemMap, map_shared),
    REPLACED(cuMemUnmap, unmap_shared),
    REPLACED(cuMemSetAccess, give_access),
    REPLACED(cuMemcpyHtoDAsync, copy_in),
    REPLACED(cuMemcpyDtoHAsync, copy_out),
    REPLACED(cuMemcpyDtoDAsync, copy),
};

cuda_result cuGetProcAddress_v2(const char *name, void **function_out, int version, uint64_t flags,
                                int *status_out)
{
    (void)pthread_once(&once, open_driver);
    cuda_result result = find ? find(name, function_out, version, flags, status_out) : CUDA_NOT_FOUND;
    for (size_t i = 0; result == CUDA_OK && i < sizeof replaced / sizeof replaced[0]; i++) {
        if (strcmp(replaced[i].name, name) == 0) {
            memcpy(function_out, &replaced[i].function, sizeof *function_out);
        }
    }
    return result;
}
