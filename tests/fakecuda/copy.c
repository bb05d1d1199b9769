/* SPDX-License-Identifier: MIT */
/*
 * Copies and fills. The source of a copy to the device is read when the copy is executed if it is pinned, and at the
 * call otherwise. A copy to the host writes pinned memory when it is executed; of other memory the call waits for
 * that.
 */
#include "fakecuda/fake.h"

#include <stdlib.h>
#include <string.h>

struct copy {
    struct fake_job job;
    void *target;
    const void *source;
    size_t bytes;
    struct fake_pinned *pinned;   /* NULL: none */
    struct fake_range *ranges[2]; /* of shared memory; NULL: none */
    char staged[];
};

static void run_copy(struct fake_job *job)
{
    const struct copy *copy = (const struct copy *)job;
    memcpy(copy->target, copy->source, copy->bytes);
    fake_pinned_unuse(copy->pinned);
    fake_range_unuse(copy->ranges[0]);
    fake_range_unuse(copy->ranges[1]);
}

/* A copy whose source and target the processor can reach, with room for some bytes. */
static struct copy *make_copy(void *target, const void *source, size_t bytes, size_t staged_bytes)
{
    struct copy *copy = fake_job(sizeof *copy + staged_bytes, run_copy);
    if (copy) {
        copy->target = target;
        copy->source = source;
        copy->bytes = bytes;
        copy->pinned = NULL;
        copy->ranges[0] = copy->ranges[1] = NULL;
    }
    return copy;
}

/* What all copies check first. With no bytes nothing else is checked, and there is no stream. */
static cuda_result begin_copy(struct CUstream_st *handle, size_t bytes, struct CUstream_st **stream_out)
{
    cuda_result result = fake_begin();
    *stream_out = NULL;
    if (result != CUDA_OK) {
        return result;
    }
    struct CUstream_st *stream = fake_stream(handle);
    if (bytes > 0) {
        *stream_out = stream;
    }
    return stream ? CUDA_OK : FAKE_INVALID_HANDLE;
}

cuda_result cuMemcpyHtoDAsync(cuda_address target, const void *source, size_t bytes,
                              struct CUstream_st *handle)
{
    struct CUstream_st *stream;
    struct fake_pinned *pinned;
    cuda_result result = begin_copy(handle, bytes, &stream);
    if (!stream) {
        return result;
    }
    void *reached = fake_reach(target, bytes);
    if (!reached) {
        return fake_failure();
    }
    result = source ? fake_pinned_use(source, bytes, &pinned) : CUDA_INVALID_VALUE;
    if (result != CUDA_OK) {
        return result;
    }
    struct copy *copy = make_copy(reached, source, bytes, pinned ? 0 : bytes);
    if (!copy) {
        fake_pinned_unuse(pinned);
        return CUDA_OUT_OF_MEMORY;
    }
    copy->pinned = pinned;
    if (!pinned) {
        copy->source = memcpy(copy->staged, source, bytes);
    }
    copy->ranges[0] = fake_range_use(target);
    fake_push(stream, &copy->job);
    return CUDA_OK;
}

/* Memory that is not pinned: the caller waits. */
static cuda_result copy_and_wait(struct CUstream_st *stream, struct copy *copy)
{
    struct fake_counter *counter = fake_counter_make();
    if (!counter) {
        free(copy);
        return fake_failure();
    }
    copy->job.done = counter;
    fake_push(stream, &copy->job);
    fake_wait(counter, 1);
    return fake_failure();
}

cuda_result cuMemcpyDtoHAsync(void *target, cuda_address source, size_t bytes, struct CUstream_st *handle)
{
    struct CUstream_st *stream;
    struct fake_pinned *pinned;
    cuda_result result = begin_copy(handle, bytes, &stream);
    if (!stream) {
        return result;
    }
    const void *reached = fake_reach(source, bytes);
    if (!reached) {
        return fake_failure();
    }
    result = target ? fake_pinned_use(target, bytes, &pinned) : CUDA_INVALID_VALUE;
    if (result != CUDA_OK) {
        return result;
    }
    struct copy *copy = make_copy(target, reached, bytes, 0);
    if (!copy) {
        fake_pinned_unuse(pinned);
        return CUDA_OUT_OF_MEMORY;
    }
    copy->pinned = pinned;
    copy->ranges[0] = fake_range_use(source);
    if (!pinned) {
        return copy_and_wait(stream, copy);
    }
    fake_push(stream, &copy->job);
    return CUDA_OK;
}

cuda_result cuMemcpyDtoDAsync(cuda_address target, cuda_address source, size_t bytes,
                              struct CUstream_st *handle)
{
    struct CUstream_st *stream;
    cuda_result result = begin_copy(handle, bytes, &stream);
    if (!stream) {
        return result;
    }
    void *to = fake_reach(target, bytes);
    const void *from = fake_reach(source, bytes);
    if (to && from && target < source + bytes && source < target + bytes) {
        fake_fail(CUDA_ILLEGAL_ADDRESS, "a copy of %zu bytes overlaps itself", bytes);
    }
    if (fake_failure() != CUDA_OK) {
        return fake_failure();
    }
    struct copy *copy = make_copy(to, from, bytes, 0);
    if (!copy) {
        return CUDA_OUT_OF_MEMORY;
    }
    copy->ranges[0] = fake_range_use(target);
    copy->ranges[1] = fake_range_use(source);
    fake_push(stream, &copy->job);
    return CUDA_OK;
}

/* Fills -------------------------------------------------------------------------------------------------- */

struct fill {
    struct fake_job job;
    struct fake_range *range;
    void *target;
    size_t bytes;
    unsigned char value;
};

static void run_fill(struct fake_job *job)
{
    const struct fill *fill = (const struct fill *)job;
    memset(fill->target, fill->value, fill->bytes);
    fake_range_unuse(fill->range);
}

cuda_result cuMemsetD8Async(cuda_address target, unsigned char value, size_t count,
                            struct CUstream_st *handle)
{
    struct CUstream_st *stream;
    cuda_result result = begin_copy(handle, count, &stream);
    if (!stream) {
        return result;
    }
    void *reached = fake_reach(target, count);
    if (!reached) {
        return fake_failure();
    }
    struct fill *fill = fake_job(sizeof *fill, run_fill);
    if (!fill) {
        return CUDA_OUT_OF_MEMORY;
    }
    fill->target = reached;
    fill->bytes = count;
    fill->value = value;
    fill->range = fake_range_use(target);
    fake_push(stream, &fill->job);
    return CUDA_OK;
}
