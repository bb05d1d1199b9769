/* SPDX-License-Identifier: MIT */
/*
 * Memory that processes share: files without a name, and handles of them. A file is there until nobody has a descriptor
 * of it or has it mapped, in any process. It is filled with NaN when it is created.
 */
#include "fakecuda/memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEMORIES_MOST 4096
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static struct fake_memory all_memories[MEMORIES_MOST];
static struct fake_slots memories = FAKE_SLOTS(all_memories);
static uint64_t n_created; /* under the lock */

uint64_t fake_shared_created(void)
{
    return n_created;
}

/* Handles ------------------------------------------------------------------------------------------------ */

struct fake_memory *fake_memory_of(cuda_memory handle)
{
    struct fake_memory *memory = (void *)(uintptr_t)handle;
    return fake_slot_is_open(&memories, memory) ? memory : NULL;
}

/* Closes the descriptor if it fails. */
static cuda_result open_memory(int fd, size_t bytes, bool is_exportable, bool is_created,
                               cuda_memory *memory_out)
{
    struct fake_memory *memory = fake_slot_take(&memories);
    if (!memory) {
        (void)close(fd);
        return CUDA_OUT_OF_MEMORY;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    memory->fd = fd;
    memory->bytes = bytes;
    memory->is_exportable = is_exportable;
    memory->is_created = is_created;
    memory->is_released = false;
    memory->n_mapped = 0;
    n_created += is_created ? bytes : 0;
    (void)pthread_mutex_unlock(&fake_memory_lock);
    fake_slot_open(memory);
    *memory_out = (cuda_memory)(uintptr_t)memory;
    return CUDA_OK;
}

void fake_memory_end_if_unused(struct fake_memory *memory)
{
    if (memory->is_released && memory->n_mapped == 0) {
        n_created -= memory->is_created ? memory->bytes : 0;
        fake_slot_give(memory);
    }
}

/* Creating ----------------------------------------------------------------------------------------------- */

static bool is_known(const struct cuda_memory_properties *properties)
{
    return properties && properties->allocation == CUDA_ALLOCATION_PINNED &&
           (properties->handles == 0 || properties->handles == CUDA_HANDLE_DESCRIPTOR) &&
           properties->location == CUDA_LOCATION_DEVICE && fake_is_device(properties->device) &&
           !properties->security && properties->compression == 0 && properties->allows_rdma == 0 &&
           properties->usage == 0;
}

cuda_result cuMemGetAllocationGranularity(size_t *bytes_out, const struct cuda_memory_properties *properties,
                                          int option)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!bytes_out || !is_known(properties) || option < 0 || option > 1) {
        return CUDA_INVALID_VALUE;
    }
    *bytes_out = FAKE_GRANULARITY;
    return CUDA_OK;
}

/* A file that keeps its size, filled with NaN; -1 if there is no memory. */
static int make_file(size_t bytes)
{
    unsigned char poison[4096];
    int fd = memfd_create("fakecuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    for (size_t i = 0; i < sizeof poison; i++) {
        poison[i] = FAKE_POISON;
    }
    for (size_t n = 0; fd >= 0 && n < bytes; n += sizeof poison) {
        if (pwrite(fd, poison, sizeof poison, (off_t)n) != (ssize_t)sizeof poison) {
            (void)close(fd);
            fd = -1;
        }
    }
    if (fd >= 0) {
        (void)fcntl(fd, F_ADD_SEALS, SEALS);
    }
    return fd;
}

cuda_result cuMemCreate(cuda_memory *memory_out, size_t bytes,
                        const struct cuda_memory_properties *properties, uint64_t flags)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!memory_out || bytes == 0 || bytes % FAKE_GRANULARITY != 0 || !is_known(properties) || flags != 0) {
        return CUDA_INVALID_VALUE;
    }
    int fd = bytes <= FAKE_SHARED_BYTES && fake_has_memory() ? make_file(bytes) : -1;
    if (fd < 0) {
        return CUDA_OUT_OF_MEMORY;
    }
    return open_memory(fd, bytes, properties->handles == CUDA_HANDLE_DESCRIPTOR, /*is_created=*/true,
                       memory_out);
}

/* It stays where it is mapped. */
cuda_result cuMemRelease(cuda_memory handle)
{
    cuda_result result = fake_begin_query();
    if (!fake_may_free(result)) {
        return result;
    }
    struct fake_memory *memory = (void *)(uintptr_t)handle;
    if (!fake_slot_close(&memories, memory)) {
        return CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    (void)close(memory->fd);
    memory->is_released = true;
    fake_memory_end_if_unused(memory);
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return result;
}

/* Handing on --------------------------------------------------------------------------------------------- */

cuda_result cuMemExportToShareableHandle(void *handle_out, cuda_memory handle, int handle_type,
                                         uint64_t flags)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    const struct fake_memory *memory = fake_memory_of(handle);
    if (!handle_out || !memory || !memory->is_exportable || handle_type != CUDA_HANDLE_DESCRIPTOR ||
        flags != 0) {
        return CUDA_INVALID_VALUE;
    }
    const char *sharing = getenv("FAKECUDA_SHARING");
    if (sharing && strcmp(sharing, "off") == 0) {
        return CUDA_NOT_SUPPORTED;
    }
    int fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return CUDA_OUT_OF_MEMORY;
    }
    *(int *)handle_out = fd;
    return CUDA_OK;
}

/* The descriptor stays the caller's. */
cuda_result cuMemImportFromShareableHandle(cuda_memory *memory_out, void *handle, int handle_type)
{
    struct stat file;
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    int fd = (int)(uintptr_t)handle;
    if (!memory_out || handle_type != CUDA_HANDLE_DESCRIPTOR || fcntl(fd, F_GET_SEALS) != SEALS ||
        fstat(fd, &file) != 0) {
        return CUDA_INVALID_VALUE;
    }
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return CUDA_OUT_OF_MEMORY;
    }
    return open_memory(fd, (size_t)file.st_size, /*is_exportable=*/true, /*is_created=*/false, memory_out);
}
