/* SPDX-License-Identifier: MIT */
/* Public calls on devices. */
#include <inttypes.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "base/try.h"
#include "device/ending.h"
#include "device/stream.h"
#include "shoal/dlpack.h"
#include "shoal/tensor.h"

shoal_status device_synchronize(shoal_device device)
{
    const struct wait_options options = {.deadline_ns = clock_deadline_after(option_seconds(OPTION_TIMEOUT)),
                                         .may_spin = true,
                                         .what = "the work of a device"};
    TRY(device_check(device, "device"));
    shoal_status status = stream_finish(device, &options);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "device %s", device_name(device));
}

shoal_status shoal_device_synchronize(shoal_device device)
{
    error_clear();
    shoal_status status = device_synchronize(device);
    ending_poll(); /* also where there was nothing to wait for, or waiting failed */
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "device_synchronize");
}

/* Streams of DLPack's protocol ----------------------------------------------------------------------------- */

static shoal_status check_streams(shoal_device device)
{
    TRY(device_check(device, "device"));
    TRY(device_check_process(device));
    return stream_has_any(device)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_UNSUPPORTED, "device %s has no streams", device_name(device));
}

static shoal_status check_stream(shoal_device device, int64_t stream)
{
    TRY(check_streams(device));
    return stream > 0 ? SHOAL_OK
                      : error_set(SHOAL_ERR_INVALID, "stream: %" PRId64 " is no stream of device %s", stream,
                                  device_name(device));
}

static void *stream_of(int64_t number)
{
    return (void *)(uintptr_t)number;
}

shoal_status device_lead(shoal_device device, int64_t stream)
{
    TRY(check_stream(device, stream));
    return stream_order(device, stream_compute(device), stream_of(stream));
}

static shoal_status follow(shoal_device device, int64_t stream)
{
    TRY(check_stream(device, stream));
    return stream_order(device, stream_of(stream), stream_compute(device));
}

shoal_status shoal_device_follow(shoal_device device, int64_t stream)
{
    error_clear();
    shoal_status status = follow(device, stream);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "device_follow");
}

shoal_status shoal_device_stream(shoal_device device, int64_t *stream_out)
{
    error_clear();
    if (!stream_out) {
        return error_set(SHOAL_ERR_INVALID, "device_stream: stream_out is NULL");
    }
    shoal_status status = check_streams(device);
    if (status != SHOAL_OK) {
        return error_prefix(status, "device_stream");
    }
    *stream_out = (int64_t)(uintptr_t)stream_compute(device);
    return SHOAL_OK;
}

/* DLPack's protocol has this number for a stream that every thread has one of, in whose order nothing can be freed. */
#define PER_THREAD_STREAM 2

static shoal_status use_stream(shoal_device device, int64_t stream)
{
    TRY(stream == 0 ? check_streams(device) : check_stream(device, stream));
    if (stream == PER_THREAD_STREAM) {
        return error_set(SHOAL_ERR_INVALID, "stream: %d is another stream in each thread", PER_THREAD_STREAM);
    }
    return stream_use(device, stream_of(stream));
}

shoal_status shoal_device_use_stream(shoal_device device, int64_t stream)
{
    error_clear();
    shoal_status status = use_stream(device, stream);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "device_use_stream");
}
