/* SPDX-License-Identifier: MIT */
/*
 * The page of shared memory on which ranks meet before a call and leave their times after it. Each rank has a cache
 * line: it writes its own and reads the others', as the barriers of all libraries do, so no library is favoured.
 *
 * Meeting: a rank increments the count in its own line and waits until every other count is as high. Counts are stored
 * with release and loaded with acquire, so whatever a rank wrote to the page before is visible to the ranks that it
 * meets. Ranks meet twice in a row. The first time they sleep if it takes long: an early rank must not take the
 * processor from threads of a library that still work for another rank. The second time all ranks are there already and
 * stay awake, so they leave together.
 *
 * Ranks that a launcher started have a link. Their first meeting goes over the link, which notices ranks that died and
 * reaches other hosts; the second one is of the ranks of a host, on the page that they share.
 */
#include "measure/measure.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define AWAKE_NS 10000000000 /* for which a linked rank, which nobody watches, stays awake */

enum {
    LINE_BYTES = 128, /* two cache lines: some processors fetch pairs */
    SPINS = 4000      /* before the processor is offered to others: there may be more ranks than processors */
};

enum patience {
    SLEEPY,
    AWAKE
};

struct line {
    _Alignas(LINE_BYTES) _Atomic uint32_t met;
    _Atomic uint32_t entered;
    _Atomic uint32_t is_here; /* the rank has mapped this memory */
    uint64_t wrong;
    int64_t cpu_ns;
};

struct shared {
    _Atomic uint32_t has_failed;
    _Atomic uint32_t has_begun;
    struct line lines[]; /* of all ranks; then max_iterations times of each rank */
};

struct measure_page {
    struct shared *shared;
    size_t bytes;
    uint32_t n_ranks;
    size_t max_iterations;
    const struct measure_link *link; /* NULL if there is none */
    bool is_over;                    /* the link has told that a rank failed: nobody uses it any more */
    uint32_t n_here;
    uint32_t here[]; /* the ranks that map this memory */
};

/* Mapping ---------------------------------------------------------------------------------------------- */

static size_t max_iterations(const struct measure_request *request)
{
    enum {
        LARGEST_DEFAULT = 4096
    };
    return request->iterations > LARGEST_DEFAULT ? (size_t)request->iterations : LARGEST_DEFAULT;
}

static void *map(size_t bytes, const char *path)
{
    int fd = -1;
    if (path) {
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) {
            return MAP_FAILED;
        }
        if (ftruncate(fd, (off_t)bytes) != 0) {
            close(fd);
            return MAP_FAILED;
        }
    }
    void *mapped =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, path ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd, 0);
    if (fd >= 0) {
        close(fd);
    }
    return mapped;
}

struct measure_page *measure_page_map(const struct measure_request *request, const char *path)
{
    uint32_t n_ranks = (uint32_t)request->n_ranks;
    size_t rank_bytes = sizeof(struct line) + max_iterations(request) * sizeof(int64_t);
    size_t bytes = sizeof(struct shared) + n_ranks * rank_bytes;
    struct measure_page *page = calloc(1, sizeof(*page) + n_ranks * sizeof(page->here[0]));
    if (!page) {
        errno = ENOMEM;
        return NULL;
    }
    void *mapped = map(bytes, path);
    if (mapped == MAP_FAILED) {
        free(page);
        return NULL;
    }
    page->shared = mapped;
    page->bytes = bytes;
    page->n_ranks = n_ranks;
    page->max_iterations = max_iterations(request);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        page->here[page->n_here++] = rank;
    }
    return page;
}

struct measure_page *measure_page_map_linked(const struct measure_request *request, const char *path,
                                             const struct measure_link *link, int rank)
{
    struct measure_page *page = measure_page_map(request, path);
    if (page) {
        /* Pairs with the loads below, on the ranks that meet this one. */
        atomic_store_explicit(&page->shared->lines[rank].is_here, 1, memory_order_release);
    }
    /* Once they have met, all have marked their lines, or one could not. */
    if (!link->meet(link->context, page != NULL) || !page) {
        if (page) {
            measure_page_unmap(page);
            errno = ECANCELED;
        }
        return NULL;
    }
    page->link = link;
    page->n_here = 0;
    for (uint32_t other = 0; other < page->n_ranks; other++) {
        /* Pairs with the store above. */
        if (atomic_load_explicit(&page->shared->lines[other].is_here, memory_order_acquire) != 0) {
            page->here[page->n_here++] = other;
        }
    }
    return page;
}

void measure_page_unmap(struct measure_page *page)
{
    munmap(page->shared, page->bytes);
    free(page);
}

/* Meeting ---------------------------------------------------------------------------------------------- */

/* Offers the processor, the longer it takes the more. */
static void relax(enum patience patience, unsigned n_spins)
{
    const struct timespec nap = {.tv_nsec = 20 * 1000};
    if (n_spins <= SPINS) {
        return;
    }
    if (patience == SLEEPY) {
        nanosleep(&nap, NULL);
    } else {
        sched_yield();
    }
}

/* Whether a wait is over that nothing else will end. The clock is looked at only in waits that are long anyway. */
static bool is_late(const struct measure_page *page, unsigned n_spins, int64_t *until_ns)
{
    if (!page->link || n_spins <= SPINS) {
        return false;
    }
    *until_ns = *until_ns == 0 ? clock_now_ns() + AWAKE_NS : *until_ns;
    return clock_now_ns() > *until_ns;
}

/* Nobody is more than one meeting ahead; counts may wrap. Pairs with the store of meet_once. */
static bool has_met(struct line *line, uint32_t count)
{
    return (int32_t)(atomic_load_explicit(&line->met, memory_order_acquire) - count) >= 0;
}

static bool meet_once(struct measure_page *page, int rank, enum patience patience)
{
    struct line *lines = page->shared->lines;
    uint32_t count = atomic_load_explicit(&lines[rank].met, memory_order_relaxed) + 1;
    /* Pairs with the load of has_met. */
    atomic_store_explicit(&lines[rank].met, count, memory_order_release);
    unsigned n_spins = 0;
    int64_t until_ns = 0;
    for (uint32_t i = 0; i < page->n_here; i++) {
        struct line *other = &lines[page->here[i]];
        while (!has_met(other, count)) {
            /* Acquire: whoever failed after this meeting has seen that all had come, and so does this rank then. */
            if (atomic_load_explicit(&page->shared->has_failed, memory_order_acquire) != 0 &&
                !has_met(other, count)) {
                return false;
            }
            relax(patience, ++n_spins);
            if (is_late(page, n_spins, &until_ns)) {
                fprintf(stderr, "rank %d: rank %u does not arrive\n", rank, page->here[i]);
                return false;
            }
        }
    }
    return true;
}

/* Over the link. After a failure nobody uses it again, so that ranks never wait for one that is gone. */
static bool meet_linked(struct measure_page *page, bool is_well)
{
    if (page->is_over) {
        return false;
    }
    page->is_over = !page->link->meet(page->link->context, is_well);
    return !page->is_over;
}

bool measure_page_meet(struct measure_page *page, int rank)
{
    bool have_met = page->link ? meet_linked(page, true) : meet_once(page, rank, SLEEPY);
    return have_met && meet_once(page, rank, AWAKE);
}

void measure_page_fail(struct measure_page *page)
{
    /* Pairs with the load of meet_once. */
    atomic_store_explicit(&page->shared->has_failed, 1, memory_order_release);
}

void measure_page_begin(struct measure_page *page)
{
    /* Relaxed: it is read when the ranks have ended. */
    atomic_store_explicit(&page->shared->has_begun, 1, memory_order_relaxed);
}

bool measure_page_has_begun(const struct measure_page *page)
{
    return atomic_load_explicit(&page->shared->has_begun, memory_order_relaxed) != 0;
}

bool measure_page_agree(struct measure_page *page, bool is_well)
{
    return page->link ? meet_linked(page, is_well) : is_well;
}

/* Barriers --------------------------------------------------------------------------------------------- */

void measure_page_enter(struct measure_page *page, int rank)
{
    /* The library's barrier orders this before the others' loads: that is what is tested. */
    atomic_fetch_add_explicit(&page->shared->lines[rank].entered, 1, memory_order_relaxed);
}

size_t measure_page_count_absent(const struct measure_page *page, int rank)
{
    const struct line *lines = page->shared->lines;
    uint32_t count = atomic_load_explicit(&lines[rank].entered, memory_order_relaxed);
    size_t n_absent = 0;
    for (uint32_t i = 0; i < page->n_here; i++) {
        uint32_t other = atomic_load_explicit(&lines[page->here[i]].entered, memory_order_relaxed);
        n_absent += (int32_t)(other - count) < 0;
    }
    return n_absent;
}

/* What ranks found --------------------------------------------------------------------------------------- */

int64_t *measure_page_times(struct measure_page *page, int rank)
{
    char *times = (char *)&page->shared->lines[page->n_ranks];
    return (int64_t *)(void *)times + (size_t)rank * page->max_iterations;
}

uint64_t *measure_page_wrong(struct measure_page *page, int rank)
{
    return &page->shared->lines[rank].wrong;
}

int64_t *measure_page_cpu_ns(struct measure_page *page, int rank)
{
    return &page->shared->lines[rank].cpu_ns;
}

/* One rank's part of a collection: wrong, cpu_ns, times. */
static void write_found(struct measure_page *page, int rank, int64_t *found, size_t n_times)
{
    found[0] = (int64_t)*measure_page_wrong(page, rank);
    found[1] = *measure_page_cpu_ns(page, rank);
    memcpy(found + 2, measure_page_times(page, rank), n_times * sizeof(found[0]));
}

static void read_found(struct measure_page *page, int rank, const int64_t *found, size_t n_times)
{
    *measure_page_wrong(page, rank) = (uint64_t)found[0];
    *measure_page_cpu_ns(page, rank) = found[1];
    memcpy(measure_page_times(page, rank), found + 2, n_times * sizeof(found[0]));
}

bool measure_page_collect(struct measure_page *page, int rank, size_t n_times)
{
    if (page->n_here == page->n_ranks) {
        return true;
    }
    size_t n_words = n_times + 2;
    int64_t *found = calloc((page->n_ranks + 1) * n_words, sizeof(found[0]));
    if (!meet_linked(page, found != NULL) || !found) {
        free(found);
        return false;
    }
    write_found(page, rank, found, n_times);
    int64_t *all = found + n_words;
    bool is_good = page->link->gather(page->link->context, found, all, n_words * sizeof(found[0]));
    /* One rank of a host writes for all of it. */
    for (uint32_t other = 0; is_good && (uint32_t)rank == page->here[0] && other < page->n_ranks; other++) {
        if (atomic_load_explicit(&page->shared->lines[other].is_here, memory_order_relaxed) == 0) {
            read_found(page, (int)other, all + other * n_words, n_times);
        }
    }
    free(found);
    page->is_over = page->is_over || !is_good;
    return meet_linked(page, is_good);
}
