/* SPDX-License-Identifier: MIT */
/*
 * Memory of the GPU comes from pools of the driver, in the order of streams: what is released can be given out again at once
 * to the same stream. A pool keeps what it has reserved, because giving it back and reserving it anew waits for the GPU, and
 * never adds waits between streams that nobody asked for.
 */
#include "cuda/memory.h"

#include <string.h>

#include "base/clock.h"
#include "base/try.h"
#include "base/wait.h"
#include "cuda/driver.h"
#include "cuda/failure.h"
#include "cuda/gpu.h"
#include "cuda/services.h"

/* How long an allocation waits for what was freed. */
#define ROOM_SECONDS 20

/* One for each cause, so that the driver counts what is used for it. */
static struct CUmemPoolHandle_st *pools[DEVICE_CAUSE_COUNT];

static bool check(const char *call, cuda_result result)
{
    if (result != CUDA_OK) {
        cuda_fail(call, result, NULL);
    }
    return result == CUDA_OK;
}

static bool make_pool(struct CUmemPoolHandle_st **pool_out)
{
    const struct cuda_pool_properties properties = {
        .allocation = CUDA_ALLOCATION_PINNED, .location = CUDA_LOCATION_DEVICE, .device = cuda_gpu.device};
    uint64_t keeps = UINT64_MAX;
    int adds = 0;
    return check("cuMemPoolCreate", cuda.cuMemPoolCreate(pool_out, &properties)) &&
           check("cuMemPoolSetAttribute", cuda.cuMemPoolSetAttribute(*pool_out, CUDA_POOL_KEEPS, &keeps)) &&
           check("cuMemPoolSetAttribute",
                 cuda.cuMemPoolSetAttribute(*pool_out, CUDA_POOL_ADDS_DEPENDENCIES, &adds));
}

shoal_status cuda_memory_open(void)
{
    bool is_made = true;
    if (!cuda_enter()) {
        return cuda_failure();
    }
    for (int i = 0; i < DEVICE_CAUSE_COUNT && is_made; i++) {
        is_made = make_pool(&pools[i]);
    }
    cuda_leave();
    return cuda_failure();
}

static void set_no_memory(size_t bytes)
{
    size_t n_free = 0;
    size_t total = 0;
    (void)cuda.cuMemGetInfo(&n_free, &total);
    (void)cuda_services->set_error(
        SHOAL_ERR_NO_MEMORY, "device %s: no memory for %zu bytes: %zu of %zu are free, in all processes",
        cuda_row->name, bytes, n_free, total);
}

static shoal_status ask_idle(void *stream, bool *is_idle_out)
{
    cuda_result result = cuda.cuStreamQuery(stream);
    *is_idle_out = result == CUDA_OK;
    return result == CUDA_OK || result == CUDA_NOT_READY ? SHOAL_OK : SHOAL_ERR_SYSTEM;
}

/* What was freed counts as used by its pool until the host has seen that the stream is past it. */
void cuda_make_room(struct CUstream_st *stream)
{
    const struct wait_options options = {.deadline_ns = clock_deadline_after(ROOM_SECONDS),
                                         .what = "memory of the GPU"};
    (void)!wait_until(ask_idle, stream, &options);
    for (int i = 0; i < DEVICE_CAUSE_COUNT; i++) {
        (void)check("cuMemPoolTrimTo", cuda.cuMemPoolTrimTo(pools[i], 0));
    }
}

/* More than the GPU has is not asked for: drivers may say of such a number that it is wrong, which is another error, and there
   is nothing to wait for. */
void *cuda_allocate(size_t bytes, enum device_cause cause, void *stream)
{
    cuda_address memory = 0;
    cuda_result result = CUDA_OUT_OF_MEMORY;
    const bool can_be = bytes <= cuda_gpu.memory_bytes;
    bytes = bytes > 0 ? bytes : 1;
    if (!cuda_enter()) {
        (void)cuda_failure();
        return NULL;
    }
    if (can_be) {
        result = cuda.cuMemAllocFromPoolAsync(&memory, bytes, pools[cause], stream);
    }
    if (result == CUDA_OUT_OF_MEMORY && can_be) {
        cuda_make_room(stream);
        result = cuda.cuMemAllocFromPoolAsync(&memory, bytes, pools[cause], stream);
    }
    if (result == CUDA_OUT_OF_MEMORY) {
        set_no_memory(bytes);
    } else if (!check("cuMemAllocFromPoolAsync", result)) {
        (void)cuda_failure();
    }
    cuda_leave();
    return result == CUDA_OK ? (void *)(uintptr_t)memory : NULL;
}

/* Reports ---------------------------------------------------------------------------------------------- */

static void read_pool(struct CUmemPoolHandle_st *pool, int now, int most, bool resets_most,
                      struct device_usage *usage)
{
    uint64_t value = 0;
    if (check("cuMemPoolGetAttribute", cuda.cuMemPoolGetAttribute(pool, now, &value))) {
        usage->now += value;
    }
    if (check("cuMemPoolGetAttribute", cuda.cuMemPoolGetAttribute(pool, most, &value))) {
        usage->most += value;
    }
    value = 0;
    if (resets_most) {
        (void)check("cuMemPoolSetAttribute", cuda.cuMemPoolSetAttribute(pool, most, &value));
    }
}

shoal_status cuda_report(struct device_report *report_out, bool resets_most)
{
    struct device_report report = {.total_bytes = 0};
    size_t n_free = 0;
    size_t total = 0;
    if (cuda_enter()) {
        for (int i = 0; i < DEVICE_CAUSE_COUNT; i++) {
            read_pool(pools[i], CUDA_POOL_USED, CUDA_POOL_USED_HIGH, resets_most, &report.causes[i]);
            read_pool(pools[i], CUDA_POOL_RESERVED, CUDA_POOL_RESERVED_HIGH, resets_most, &report.reserved);
        }
        (void)check("cuMemGetInfo", cuda.cuMemGetInfo(&n_free, &total));
        cuda_leave();
    }
    report.host.now = report.host.most = cuda_pinned_bytes();
    report.free_bytes = n_free;
    report.total_bytes = total;
    *report_out = report;
    return cuda_failure();
}

/* Releasing -------------------------------------------------------------------------------------------- */

void cuda_release(void *data, void *stream)
{
    if (cuda_enter_to_free()) {
        (void)check("cuMemFreeAsync", cuda.cuMemFreeAsync((cuda_address)(uintptr_t)data, stream));
        cuda_leave();
    }
}

/* Copies ----------------------------------------------------------------------------------------------- */

/* What is copied at a time, so that little pinned memory serves copies of any size. */
#define PIECE_BYTES ((size_t)8 << 20)

/* The source may change when this has returned, and a copy from it would make the driver wait: so it is copied twice. */
static shoal_status copy_piece(cuda_address target, const void *source, size_t bytes,
                               struct CUstream_st *stream)
{
    void *pinned = cuda_pinned_take(bytes);
    if (!pinned) {
        TRY(cuda_failure());
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(pinned, source, bytes);
    if (cuda_enter()) {
        (void)check("cuMemcpyHtoDAsync", cuda.cuMemcpyHtoDAsync(target, pinned, bytes, stream));
        cuda_leave();
    }
    cuda_pinned_give_later(pinned, stream);
    return cuda_failure();
}

shoal_status cuda_copy_in(void *target, const void *source, size_t bytes)
{
    struct CUstream_st *stream = cuda_stream();
    for (size_t n_done = 0; n_done < bytes; n_done += PIECE_BYTES) {
        size_t n_piece = bytes - n_done < PIECE_BYTES ? bytes - n_done : PIECE_BYTES;
        TRY(copy_piece((cuda_address)(uintptr_t)target + n_done, (const char *)source + n_done, n_piece,
                       stream));
    }
    return cuda_failure();
}

shoal_status cuda_copy_out(void *target, const void *source, size_t bytes)
{
    if (bytes > 0 && cuda_enter()) {
        (void)check("cuMemcpyDtoHAsync",
                    cuda.cuMemcpyDtoHAsync(target, (cuda_address)(uintptr_t)source, bytes, cuda_stream()));
        cuda_leave();
    }
    return cuda_failure();
}
