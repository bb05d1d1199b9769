/* SPDX-License-Identifier: MIT */
/*
 * Memory that processes share. Its maker exports it as a descriptor of a file and keeps that open. The others copy the
 * descriptor out of the maker's process, by its number, and import it. The driver keeps the memory until no process
 * has it mapped or holds a handle or a descriptor of it, so that each can drop it when it likes, or die.
 */
#include "cuda/share.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/try.h"
#include "cuda/driver.h"
#include "cuda/failure.h"
#include "cuda/gpu.h"
#include "cuda/memory.h"
#include "cuda/services.h"

/* What a process needs to map memory of another. */
struct card {
    int64_t process;
    int64_t fd;
    uint64_t bytes; /* of the memory, which is larger than what was asked for */
};
_Static_assert(sizeof(struct card) <= DEVICE_SHARE_BYTES, "a descriptor holds a card");

/* What this process has of shared memory. */
struct shared {
    struct shared *next;
    size_t bytes;
    cuda_address address; /* 0: none is reserved */
    cuda_memory memory;
    bool has_memory;
    bool is_mapped;
    int fd; /* of the maker; -1: none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared *first; /* under the lock */

/* Errors ----------------------------------------------------------------------------------------------- */

/* Some systems have GPUs, and no memory of theirs that processes can share. */
static shoal_status refuse_sharing(const char *call, cuda_result result)
{
    const char *name = NULL;
    const char *text = NULL;
    (void)cuda.cuGetErrorName(result, &name);
    (void)cuda.cuGetErrorString(result, &text);
    return cuda_services->set_error(
        SHOAL_ERR_UNSUPPORTED, "device %s: memory cannot be shared here: %s: %s (%d): %s", cuda_row->name,
        call, name ? name : "unknown", result, text ? text : "no text");
}

/* In the context, as all that calls it. */
static shoal_status check(const char *call, cuda_result result, size_t bytes)
{
    size_t n_free = 0;
    size_t total = 0;
    if (result == CUDA_OK) {
        return SHOAL_OK;
    }
    if (cuda_is_refusal(result)) {
        return refuse_sharing(call, result);
    }
    if (result != CUDA_OUT_OF_MEMORY) {
        cuda_fail(call, result, "shared memory");
        return cuda_failure();
    }
    (void)cuda.cuMemGetInfo(&n_free, &total);
    return cuda_services->set_error(
        SHOAL_ERR_NO_MEMORY,
        "device %s: %s: no memory for %zu bytes to be shared: %zu of %zu are free, in all processes",
        cuda_row->name, call, bytes, n_free, total);
}

/* Makes a call of the driver for `shared`, and leaves the function if it fails. */
#define CALL(name, ...) TRY(check(#name, cuda.name(__VA_ARGS__), shared->bytes))

static void check_freed(const char *call, cuda_result result)
{
    if (result != CUDA_OK) {
        cuda_fail(call, result, "shared memory");
    }
}

static shoal_status refuse(const char *call, const struct card *card)
{
    const char *why = ": kernel.yama.ptrace_scope or the container forbids it";
    bool is_forbidden = errno == EPERM || errno == EACCES || errno == ENOSYS;
    return cuda_services->set_error(
        is_forbidden ? SHOAL_ERR_UNSUPPORTED : SHOAL_ERR_SYSTEM,
        "device %s: %s of descriptor %lld of process %lld, for shared memory: %s%s", cuda_row->name, call,
        (long long)card->fd, (long long)card->process, strerror(errno), is_forbidden ? why : "");
}

/* Having and dropping ---------------------------------------------------------------------------------- */

/* Enters the context. NULL if there is no memory, or the device has failed. */
static struct shared *begin(void)
{
    struct shared *shared = cuda_services->alloc(sizeof *shared);
    if (shared && !cuda_enter()) {
        cuda_services->free(shared);
        return NULL;
    }
    if (shared) {
        *shared = (struct shared){.fd = -1};
    }
    return shared;
}

static shoal_status fail_begin(void)
{
    TRY(cuda_failure());
    return SHOAL_ERR_NO_MEMORY;
}

/* Gives back as much as there is of it, after a failure too. */
static void let_go(struct shared *shared)
{
    if (cuda_enter_to_free()) {
        if (shared->is_mapped) {
            check_freed("cuMemUnmap", cuda.cuMemUnmap(shared->address, shared->bytes));
        }
        if (shared->address) {
            check_freed("cuMemAddressFree", cuda.cuMemAddressFree(shared->address, shared->bytes));
        }
        if (shared->has_memory) {
            check_freed("cuMemRelease", cuda.cuMemRelease(shared->memory));
        }
        cuda_leave();
    }
    if (shared->fd >= 0) {
        (void)close(shared->fd);
    }
    cuda_services->free(shared);
}

/* Leaves the context. What a failed call has left of the memory is given back. */
static shoal_status end(shoal_status status, struct shared *shared, void **data_out)
{
    cuda_leave();
    if (status != SHOAL_OK) {
        let_go(shared);
        return status;
    }
    *data_out = (void *)(uintptr_t)shared->address;
    (void)pthread_mutex_lock(&lock);
    shared->next = first;
    first = shared;
    (void)pthread_mutex_unlock(&lock);
    return SHOAL_OK;
}

void cuda_share_drop(void *data)
{
    cuda_address address = (cuda_address)(uintptr_t)data;
    (void)pthread_mutex_lock(&lock);
    struct shared **at = &first;
    while (*at && (*at)->address != address) {
        at = &(*at)->next;
    }
    struct shared *shared = *at;
    if (shared) {
        *at = shared->next;
    }
    (void)pthread_mutex_unlock(&lock);
    if (shared) {
        let_go(shared);
    }
}

/* Gives memory an address. */
static shoal_status map(struct shared *shared)
{
    const struct cuda_access access = {
        .location = CUDA_LOCATION_DEVICE, .device = cuda_gpu.device, .flags = CUDA_ACCESS_READ_WRITE};
    CALL(cuMemAddressReserve, &shared->address, shared->bytes, 0, 0, 0);
    CALL(cuMemMap, shared->address, shared->bytes, 0, shared->memory, 0);
    shared->is_mapped = true;
    CALL(cuMemSetAccess, shared->address, shared->bytes, &access, 1);
    return SHOAL_OK;
}

/* Creating --------------------------------------------------------------------------------------------- */

static shoal_status create(struct shared *shared, size_t bytes)
{
    const struct cuda_memory_properties properties = {.allocation = CUDA_ALLOCATION_PINNED,
                                                      .handles = CUDA_HANDLE_DESCRIPTOR,
                                                      .location = CUDA_LOCATION_DEVICE,
                                                      .device = cuda_gpu.device};
    size_t granularity = 1;
    shared->bytes = bytes;
    if (bytes > cuda_gpu.memory_bytes) { /* perhaps more than can be rounded up */
        return check("cuMemCreate", CUDA_OUT_OF_MEMORY, bytes);
    }
    CALL(cuMemGetAllocationGranularity, &granularity, &properties, CUDA_GRANULARITY_MINIMUM);
    shared->bytes = (bytes + granularity - 1) / granularity * granularity;
    cuda_result made = cuda.cuMemCreate(&shared->memory, shared->bytes, &properties, 0);
    if (made == CUDA_OUT_OF_MEMORY) {
        cuda_make_room(cuda_stream());
        made = cuda.cuMemCreate(&shared->memory, shared->bytes, &properties, 0);
    }
    TRY(check("cuMemCreate", made, shared->bytes));
    shared->has_memory = true;
    CALL(cuMemExportToShareableHandle, &shared->fd, shared->memory, CUDA_HANDLE_DESCRIPTOR, 0);
    (void)fcntl(shared->fd, F_SETFD, FD_CLOEXEC);
    return map(shared);
}

shoal_status cuda_share_create(size_t bytes, char descriptor[DEVICE_SHARE_BYTES], void **data_out)
{
    struct shared *shared = begin();
    if (!shared) {
        return fail_begin();
    }
    shoal_status status = create(shared, bytes);
    os_let_siblings_read(); /* otherwise they may not take the descriptor either */
    struct card card = {.process = os_process(), .fd = shared->fd, .bytes = shared->bytes};
    memset(descriptor, 0, DEVICE_SHARE_BYTES);
    memcpy(descriptor, &card, sizeof card);
    return end(status, shared, data_out);
}

/* Mapping ---------------------------------------------------------------------------------------------- */

/* A descriptor of this process for what the card says. */
static shoal_status take_descriptor(const struct card *card, int *fd_out)
{
    const char *call = "dup";
    *fd_out = card->process == os_process() ? os_duplicate((int)card->fd)
                                            : os_take_descriptor(card->process, (int)card->fd, &call);
    return *fd_out >= 0 ? SHOAL_OK : refuse(call, card);
}

static shoal_status import(struct shared *shared, int fd)
{
    CALL(cuMemImportFromShareableHandle, &shared->memory, (void *)(uintptr_t)fd, CUDA_HANDLE_DESCRIPTOR);
    shared->has_memory = true;
    return map(shared);
}

shoal_status cuda_share_map(const char descriptor[DEVICE_SHARE_BYTES], size_t bytes, void **data_out)
{
    int fd = -1;
    struct card card;
    memcpy(&card, descriptor, sizeof card);
    if (card.bytes < bytes) {
        return cuda_services->set_error(SHOAL_ERR_SYSTEM, "device %s: %llu bytes are shared, and not %zu",
                                        cuda_row->name, (unsigned long long)card.bytes, bytes);
    }
    TRY(take_descriptor(&card, &fd));
    struct shared *shared = begin();
    shoal_status status = SHOAL_OK;
    if (shared) {
        shared->bytes = (size_t)card.bytes;
        status = end(import(shared, fd), shared, data_out);
    } else {
        status = fail_begin();
    }
    (void)close(fd); /* the driver has taken what it needs */
    return status;
}
