/* SPDX-License-Identifier: MIT */
/*
 * The library's allocator in tests: counts blocks, fails on demand, and holds the library to the contract of
 * shoal_allocator. Fresh memory is filled, so that nobody gets zeroes by luck.
 */
#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/ending.h"
#include "harness/test.h"
#include "shoal/memory.h"

/* Filling more than this would only slow down tests with large tensors. */
#define FILL_MAX_BYTES 65536
#define FILL_BYTE 0xA5
/* A sweep that never gets through is a test that makes no progress. */
#define SWEEP_MAX_RUNS 100000

static _Atomic size_t n_live;
static _Atomic size_t n_asked;       /* since test_fail_allocation */
static _Atomic size_t fail_number;   /* 0: none */
static _Atomic bool is_fail_lasting; /* all from fail_number on */
static size_t n_live_at_begin;
static _Atomic size_t n_kept;

static void *allocate(void *context, size_t bytes, size_t alignment)
{
    if (bytes == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) {
        test_failed(__FILE__, __LINE__, "the allocator was asked for %zu bytes at multiples of %zu", bytes,
                    alignment);
        return NULL;
    }
    size_t number = atomic_fetch_add(&n_asked, 1) + 1;
    size_t failing = atomic_load(&fail_number);
    if (failing != 0 && (number == failing || (number > failing && atomic_load(&is_fail_lasting)))) {
        return NULL;
    }
    size_t rounded = (bytes + alignment - 1) & ~(alignment - 1);
    void *memory = rounded < bytes ? NULL : aligned_alloc(alignment, rounded);
    if (memory) {
        memset(memory, FILL_BYTE, bytes < FILL_MAX_BYTES ? bytes : FILL_MAX_BYTES);
        atomic_fetch_add(&n_live, 1);
    }
    return memory;
}

static void release(void *context, void *memory)
{
    if (!memory) {
        test_failed(__FILE__, __LINE__, "the allocator was asked to release NULL");
        return;
    }
    atomic_fetch_sub(&n_live, 1);
    free(memory);
}

void harness_memory_install(void)
{
    /* For tests of the library's own allocator: the program then counts nothing. */
    if (getenv("SHOAL_TEST_PLAIN_MEMORY")) {
        return;
    }
    const shoal_allocator allocator = {
        .struct_size = sizeof allocator, .allocate = allocate, .release = release};
    if (shoal_allocator_set(&allocator) != SHOAL_OK) {
        (void)fprintf(stderr, "the harness cannot install its allocator: %s\n", shoal_error_text());
        exit(2);
    }
}

size_t test_live_blocks(void)
{
    return atomic_load(&n_live);
}

void test_keep_blocks(size_t count)
{
    atomic_fetch_add(&n_kept, count);
}

void test_fail_allocation(size_t number, bool is_lasting)
{
    atomic_store(&fail_number, 0);
    atomic_store(&n_asked, 0);
    atomic_store(&is_fail_lasting, is_lasting);
    atomic_store(&fail_number, number);
}

size_t test_count_allocations(void)
{
    return atomic_load(&n_asked);
}

void harness_memory_begin(void)
{
    test_fail_allocation(0, false);
    atomic_store(&n_kept, 0);
    n_live_at_begin = test_live_blocks();
}

static long long lost_blocks(void)
{
    return (long long)test_live_blocks() - (long long)n_live_at_begin - (long long)atomic_load(&n_kept);
}

void harness_memory_end(void)
{
    test_fail_allocation(0, false);
    long long lost = lost_blocks();
    if (lost > 0) {
        ending_at_exit(); /* something may wait for the work of a device */
        lost = lost_blocks();
    }
    if (lost != 0) {
        test_failed(__FILE__, __LINE__, "%lld blocks of memory were %s", lost > 0 ? lost : -lost,
                    lost > 0 ? "lost" : "released that were not allocated in this test");
    }
}

/* One run of the body with its k-th allocation failing. False when there is no use in going on. */
static bool sweep_once(shoal_status (*body)(void *context), void *context, size_t number, bool is_lasting)
{
    const char *what = is_lasting ? "and all later ones" : "alone";
    size_t n_before = test_live_blocks();
    test_fail_allocation(number, is_lasting);
    shoal_status status = body(context);
    size_t count = test_count_allocations();
    test_fail_allocation(0, false);
    long long lost = (long long)test_live_blocks() - (long long)n_before;
    bool was_clean = count < number;
    if (status != SHOAL_OK && (was_clean || status != SHOAL_ERR_NO_MEMORY)) {
        test_failed(__FILE__, __LINE__, "sweep: with allocation %zu failing %s the body gave %s: %s", number,
                    what, shoal_status_name(status), shoal_error_text());
    }
    if (lost != 0) {
        test_failed(__FILE__, __LINE__, "sweep: with allocation %zu failing %s the body lost %lld blocks",
                    number, what, lost);
    }
    return !was_clean && !test_has_failed();
}

size_t test_sweep_allocations(shoal_status (*body)(void *context), void *context)
{
    bool had_failed = test_has_failed();
    size_t number = 0;
    for (int is_lasting = 0; is_lasting <= 1 && !had_failed; is_lasting++) {
        number = 1;
        while (number < SWEEP_MAX_RUNS && sweep_once(body, context, number, is_lasting != 0)) {
            number++;
        }
        if (number == SWEEP_MAX_RUNS) {
            test_failed(__FILE__, __LINE__, "sweep: the body still allocates after %zu runs", number);
        }
    }
    return number > 0 ? number - 1 : 0;
}
