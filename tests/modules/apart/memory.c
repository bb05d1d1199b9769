/* SPDX-License-Identifier: MIT */
/*
 * Device addresses are a reservation that nobody can access. The bytes lie at the same distance in a second mapping, of
 * which only this module knows. Memory that is released can be given out again at once: the work of the compute stream
 * keeps it in order, and all of it is filled with NaN there when it is released.
 */
#include "modules/apart/apart.h"

#include <stdlib.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

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

void *apart_allocate(size_t bytes, void *stream)
{
    if (!apart_call("allocate")) {
        (void)apart_failure();
        return NULL;
    }
    struct piece *piece = NULL;
    (void)pthread_mutex_lock(&lock);
    if (bytes < SPACE_BYTES && reserve()) {
        piece = take(bytes > 0 ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT);
    }
    (void)pthread_mutex_unlock(&lock);
    if (!piece) {
        (void)apart_services->set_error(SHOAL_ERR_NO_MEMORY, "apart: no memory for %zu bytes", bytes);
        return NULL;
    }
    (void)atomic_fetch_add_explicit(&apart_settings.n_bytes, piece->bytes, memory_order_relaxed);
    enqueue_poisoning(piece->offset, piece->bytes, stream);
    return space + piece->offset;
}

void apart_release(void *data, void *stream)
{
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

void *apart_reach(const void *data, size_t bytes)
{
    /* Relaxed by nature: whoever has an address of the device has got it from an allocation. */
    const char *at = data;
    if (!space || at < space || at > space + SPACE_BYTES || bytes > (size_t)(space + SPACE_BYTES - at)) {
        apart_fail("work was given %p, which is no address of the device", data);
        return NULL;
    }
    return bytes_of_space + (at - space);
}
