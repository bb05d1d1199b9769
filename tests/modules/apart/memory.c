/* SPDX-License-Identifier: MIT */
/*
 * Device addresses are a reservation that nobody can access. The bytes lie at the same distance in a second mapping, of
 * which only this module knows. Memory that is released can be given out again at once: the work of the compute stream
 * keeps it in order, and all of it is filled with NaN there when it is released.
 */
#include "modules/apart/apart.h"

#include <stdlib.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SPACE_BYTES ((size_t)1 << 36)
#define ALIGNMENT 256
#define POISON 0xff /* NaN in every floating-point dtype */

struct piece {
    struct piece *next; /* by address */
    size_t offset;
    size_t bytes; /* a multiple of ALIGNMENT */
    bool is_free;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct piece *first; /* all of the space, piece by piece */
static char *space;         /* device addresses */
static char *bytes_of_space;

static bool reserve(void)
{
    if (space) {
        return true;
    }
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *reserved = mmap(NULL, SPACE_BYTES, PROT_NONE, flags, -1, 0);
    char *reached = mmap(NULL, SPACE_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    struct piece *piece = malloc(sizeof *piece);
    if (reserved == MAP_FAILED || reached == MAP_FAILED || !piece) {
        return false; /* the process has no room; tests end then */
    }
    *piece = (struct piece){.bytes = SPACE_BYTES, .is_free = true};
    first = piece;
    bytes_of_space = reached;
    space = reserved;
    return true;
}

/* Under the lock. */
static struct piece *take(size_t bytes)
{
    struct piece *piece = first;
    while (piece && (!piece->is_free || piece->bytes < bytes)) {
        piece = piece->next;
    }
    struct piece *rest = piece && piece->bytes > bytes ? malloc(sizeof *rest) : NULL;
    if (!piece || (piece->bytes > bytes && !rest)) {
        return NULL;
    }
    if (rest) {
        *rest = (struct piece){.next = piece->next,
                               .offset = piece->offset + bytes,
                               .bytes = piece->bytes - bytes,
                               .is_free = true};
        piece->next = rest;
        piece->bytes = bytes;
    }
    piece->is_free = false;
    return piece;
}

/* Under the lock: joins a free piece with free ones behind it. */
static void join(struct piece *piece)
{
    while (piece->is_free && piece->next && piece->next->is_free) {
        struct piece *next = piece->next;
        piece->bytes += next->bytes;
        piece->next = next->next;
        free(next);
    }
}

struct poisoning {
    struct job job;
    void *at;
    size_t bytes;
};

static void poison(struct job *job)
{
    const struct poisoning *poisoning = (const struct poisoning *)job;
    memset(poisoning->at, POISON, poisoning->bytes);
}

static void enqueue_poisoning(size_t offset, size_t bytes, void *stream)
{
    struct poisoning *poisoning = apart_job(sizeof *poisoning, poison);
    if (poisoning) {
        poisoning->at = bytes_of_space + offset;
        poisoning->bytes = bytes;
        apart_enqueue(stream, &poisoning->job);
    }
}

/* Whether tests have asked for this allocation to fail. */
static bool has_no_memory(void)
{
    return atomic_load(&apart_settings.no_memory_at) > 0 &&
           atomic_fetch_sub(&apart_settings.no_memory_at, 1) == 1;
}

void *apart_allocate(size_t bytes, enum device_cause cause, void *stream)
{
    (void)cause;
    if (!apart_call("allocate")) {
        (void)apart_failure();
        return NULL;
    }
    struct piece *piece = NULL;
    (void)pthread_mutex_lock(&lock);
    if (!has_no_memory() && bytes < SPACE_BYTES && reserve()) {
        piece = take(bytes > 0 ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT);
    }
    (void)pthread_mutex_unlock(&lock);
    if (!piece) {
        (void)apart_services->set_error(SHOAL_ERR_NO_MEMORY, "device " APART_NAME ": no memory for %zu bytes",
                                        bytes);
        return NULL;
    }
    (void)atomic_fetch_add_explicit(&apart_settings.n_bytes, piece->bytes, memory_order_relaxed);
    enqueue_poisoning(piece->offset, piece->bytes, stream);
    return space + piece->offset;
}

void apart_release(void *data, void *stream)
{
    apart_note_process();
    size_t offset = (size_t)((char *)data - space);
    (void)pthread_mutex_lock(&lock);
    struct piece *before = NULL;
    struct piece *piece = first;
    while (piece->offset != offset) {
        before = piece;
        piece = piece->next;
    }
    (void)atomic_fetch_sub_explicit(&apart_settings.n_bytes, piece->bytes, memory_order_relaxed);
    enqueue_poisoning(offset, piece->bytes, stream);
    piece->is_free = true;
    join(piece);
    if (before) {
        join(before);
    }
    (void)pthread_mutex_unlock(&lock);
}

/* Shared memory ------------------------------------------------------------------------------------------ */

/* Memory that other processes can map: a reservation and a second mapping of its own, of a file without a name. */
struct region {
    struct region *next;
    char *space;
    char *bytes_of_space;
    _Atomic size_t bytes; /* 0 once it was dropped */
    int fd;
};

/* What a process needs to map memory of another. */
struct card {
    int64_t process;
    int64_t fd;
};
_Static_assert(sizeof(struct card) <= DEVICE_SHARE_BYTES, "a descriptor holds a card");

/* Only added to: a lock would be an order between streams. Dropped ones keep their place, without memory. */
static _Atomic(struct region *) regions;

static shoal_status fail_sharing(const char *what)
{
    return apart_services->set_error(errno == ENOMEM ? SHOAL_ERR_NO_MEMORY : SHOAL_ERR_SYSTEM,
                                     "device " APART_NAME ": %s: %s", what, strerror(errno));
}

static shoal_status map_region(int fd, size_t bytes, void **data_out)
{
    struct region *region = malloc(sizeof *region);
    char *reserved = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *reached = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!region || reserved == MAP_FAILED || reached == MAP_FAILED) {
        shoal_status status = fail_sharing("mapping shared memory");
        free(region);
        (void)(reserved == MAP_FAILED || munmap(reserved, bytes));
        (void)(reached == MAP_FAILED || munmap(reached, bytes));
        (void)close(fd);
        return status;
    }
    *region = (struct region){.space = reserved, .bytes_of_space = reached, .fd = fd};
    atomic_init(&region->bytes, bytes);
    region->next = atomic_load(&regions);
    while (!atomic_compare_exchange_weak(&regions, &region->next, region)) {
    }
    *data_out = reserved;
    return SHOAL_OK;
}

shoal_status apart_share_create(size_t bytes, char descriptor[DEVICE_SHARE_BYTES], void **data_out)
{
    if (!apart_call("share_create")) {
        return apart_failure();
    }
    int fd = memfd_create("apart", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        return fail_sharing("memory to be shared");
    }
    struct card card = {.process = getpid(), .fd = fd};
    memset(descriptor, 0, DEVICE_SHARE_BYTES);
    memcpy(descriptor, &card, sizeof card);
    return map_region(fd, bytes, data_out);
}

shoal_status apart_share_map(const char descriptor[DEVICE_SHARE_BYTES], size_t bytes, void **data_out)
{
    char path[64];
    struct card card;
    if (!apart_call("share_map")) {
        return apart_failure();
    }
    memcpy(&card, descriptor, sizeof card);
    (void)snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)card.process, (long long)card.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd >= 0 ? map_region(fd, bytes, data_out) : fail_sharing(path);
}

/* A job may still use the memory when the device has failed. */
void apart_share_drop(void *data)
{
    bool is_used = apart_failure() != SHOAL_OK;
    for (struct region *region = atomic_load(&regions); region; region = region->next) {
        size_t bytes = region->space == data ? atomic_exchange(&region->bytes, 0) : 0;
        if (bytes > 0 && !is_used) {
            (void)munmap(region->space, bytes);
            (void)munmap(region->bytes_of_space, bytes);
        }
        if (bytes > 0) {
            (void)close(region->fd);
        }
    }
}

/* Reaching ----------------------------------------------------------------------------------------------- */

static void *reach_in(char *begin, char *reached, size_t length, const char *at, size_t bytes)
{
    bool is_inside = begin && at >= begin && at <= begin + length && bytes <= (size_t)(begin + length - at);
    return is_inside ? reached + (at - begin) : NULL;
}

void *apart_reach(const void *data, size_t bytes)
{
    /* Whoever has an address of the device has got it from an allocation. */
    void *found = reach_in(space, bytes_of_space, SPACE_BYTES, data, bytes);
    for (struct region *region = atomic_load(&regions); region && !found; region = region->next) {
        size_t length = atomic_load(&region->bytes);
        found = length > 0 ? reach_in(region->space, region->bytes_of_space, length, data, bytes) : NULL;
    }
    if (!found) {
        apart_fail("work was given %p with %zu bytes, which is no address of the device", data, bytes);
    }
    return found;
}
