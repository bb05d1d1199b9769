/* SPDX-License-Identifier: MIT */
/*
 * The order of a device's work. A device has one compute stream in a process, for all threads: ops put their work behind
 * each other's, and a tensor that one thread has made can be used by another. The threads of lanes work on streams of
 * their own. Devices whose work is done when a call returns, such as the CPU, have no streams: for them, all of this does
 * nothing.
 *
 *   the program's thread            a lane's thread
 *   op, op, stream_mark   ------->  stream_enter, stream_follow, kernels, stream_finish, stream_leave
 *
 * Rules:
 *   - Work on a tensor is put behind the work that wrote it: on the compute stream by order, on a lane's stream by
 *     stream_follow. What a lane's stream has written may be used after stream_finish, without an event.
 *   - Memory is freed behind the compute stream's work so far, whichever thread drops the last reference. What a lane
 *     uses is kept until its stream has finished.
 *   - Memory of the program is given back when the work of the compute stream so far is done (device/ending.h).
 *   - The host waits in stream_finish only: until the deadline, looking at failures of the device and asking about peers
 *     meanwhile.
 */
#ifndef DEVICE_STREAM_H
#define DEVICE_STREAM_H

#include <stdatomic.h>

#include "base/wait.h"
#include "device/address.h"
#include "device/device.h"

/* For device_find: makes the compute stream of a device that was loaded. */
shoal_status stream_create_compute(struct device_slot *slot);

/* The compute stream; NULL if the device has no streams. */
static inline void *stream_compute(shoal_device device)
{
    if ((int)device < DEVICE_FIRST_MODULE) {
        return NULL;
    }
    /* Acquire: pairs with the release in stream_use. Work that is put behind the new stream comes after that of the old one. */
    return atomic_load_explicit(&device_slot(device)->compute, memory_order_acquire);
}

/* Where work of this thread goes: the stream that it has entered, or the compute stream. */
void *stream_current(shoal_device device);

static inline bool stream_has_any(shoal_device device)
{
    return device_row(device)->streams != NULL;
}

/* From now on, work of this thread for the device goes to this stream; until stream_leave. */
void stream_enter(shoal_device device, void *stream);
void stream_leave(void);
/* Whether this thread has entered a stream: it works for a lane. */
bool stream_has_entered(void);

/* Gives an event behind the work of the current stream so far; NULL if the device has no streams. */
shoal_status stream_mark(shoal_device device, void **event_out);
/* Later work of the current stream begins after the event. Both take NULL. */
shoal_status stream_follow(shoal_device device, void *event);
void stream_drop(shoal_device device, void *event);

/* Later work of the second stream begins after the work of the first so far. */
shoal_status stream_order(shoal_device device, void *before, void *after);

/* Waits until the work of the current stream so far is done. */
shoal_status stream_finish(shoal_device device, const struct wait_options *options);

/* For public calls: wait for the work of the device; make a stream of the program, by its number in DLPack's protocol,
   wait for it. */
shoal_status device_synchronize(shoal_device device);
shoal_status device_lead(shoal_device device, int64_t stream);

/* Makes another stream the compute stream, behind the work of both so far; the library's own for NULL. */
shoal_status stream_use(shoal_device device, void *stream);

/* Puts a copy from host memory, which may change afterwards, behind the work of the current stream. */
shoal_status stream_write(shoal_device device, struct address target, const void *source, size_t bytes);
/* Copies to host memory behind the work of the current stream, and waits until that is done. */
shoal_status stream_read(shoal_device device, void *target, struct address source, size_t bytes,
                         const struct wait_options *options);

/* In a forked child: other threads of the parent may have held locks. */
void stream_begin_child(void);

#endif
