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
 */
#include "measure/measure.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

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
    uint64_t wrong;
    int64_t cpu_ns;
};

struct measure_page {
    _Atomic uint32_t has_failed;
    uint32_t n_ranks;
    size_t max_iterations;
    struct line lines[]; /* n_ranks; then max_iterations times of each rank */
};

static size_t max_iterations(const struct measure_request *request)
{
    enum {
        LARGEST_DEFAULT = 4096
    };
    return request->iterations > LARGEST_DEFAULT ? (size_t)request->iterations : LARGEST_DEFAULT;
}

static size_t page_bytes(const struct measure_request *request)
{
    size_t rank_bytes = sizeof(struct line) + max_iterations(request) * sizeof(int64_t);
    return sizeof(struct measure_page) + (size_t)request->n_ranks * rank_bytes;
}

struct measure_page *measure_page_map(const struct measure_request *request, const char *path)
{
    size_t bytes = page_bytes(request);
    int fd = -1;
    if (path) {
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
            return NULL;
        }
    }
    void *mapped =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, path ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd, 0);
    if (fd >= 0) {
        close(fd);
    }
    if (mapped == MAP_FAILED) {
        return NULL;
    }
    /* All ranks write the same. */
    struct measure_page *page = mapped;
    page->n_ranks = (uint32_t)request->n_ranks;
    page->max_iterations = max_iterations(request);
    return page;
}

void measure_page_unmap(struct measure_page *page, const struct measure_request *request)
{
    munmap(page, page_bytes(request));
}

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

static bool meet_once(struct measure_page *page, int rank, enum patience patience)
{
    uint32_t count = atomic_load_explicit(&page->lines[rank].met, memory_order_relaxed) + 1;
    /* Pairs with the loads below. */
    atomic_store_explicit(&page->lines[rank].met, count, memory_order_release);
    unsigned n_spins = 0;
    for (uint32_t other = 0; other < page->n_ranks; other++) {
        /* Nobody is more than one meeting ahead; counts may wrap. Pairs with the store above. */
        while ((int32_t)(atomic_load_explicit(&page->lines[other].met, memory_order_acquire) - count) < 0) {
            if (atomic_load_explicit(&page->has_failed, memory_order_relaxed) != 0) {
                return false;
            }
            relax(patience, ++n_spins);
        }
    }
    return true;
}

bool measure_page_meet(struct measure_page *page, int rank)
{
    return meet_once(page, rank, SLEEPY) && meet_once(page, rank, AWAKE);
}

void measure_page_fail(struct measure_page *page)
{
    atomic_store_explicit(&page->has_failed, 1, memory_order_relaxed);
}

void measure_page_enter(struct measure_page *page, int rank)
{
    /* The library's barrier orders this before the others' loads: that is what is tested. */
    atomic_fetch_add_explicit(&page->lines[rank].entered, 1, memory_order_relaxed);
}

size_t measure_page_count_absent(const struct measure_page *page, int rank)
{
    uint32_t count = atomic_load_explicit(&page->lines[rank].entered, memory_order_relaxed);
    size_t n_absent = 0;
    for (uint32_t other = 0; other < page->n_ranks; other++) {
        n_absent +=
            (int32_t)(atomic_load_explicit(&page->lines[other].entered, memory_order_relaxed) - count) < 0;
    }
    return n_absent;
}

int64_t *measure_page_times(struct measure_page *page, int rank)
{
    char *times = (char *)&page->lines[page->n_ranks];
    return (int64_t *)(void *)times + (size_t)rank * page->max_iterations;
}

uint64_t *measure_page_wrong(struct measure_page *page, int rank)
{
    return &page->lines[rank].wrong;
}

int64_t *measure_page_cpu_ns(struct measure_page *page, int rank)
{
    return &page->lines[rank].cpu_ns;
}
