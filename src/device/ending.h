/* SPDX-License-Identifier: MIT */
/*
 * What is to be called when a device has done its work so far: deleters of memory that programs have lent. An event
 * behind the work of the compute stream is noted, and the thread goes on. Later calls ask for the event, and whoever
 * finds it done calls what waited for it:
 *
 *   - every allocation and release of memory of a device, every copy to the host, and the next ending; but not while a
 *     thread works on a stream of a lane, because other ranks would wait for the program then;
 *   - shoal_device_synchronize, for programs that make no such call any more;
 *   - the end of the process, which waits a few seconds for the device.
 *
 * A thread of the library that waits for events would need no later call. But it could not wait inside the device,
 * which may hang, so it would have to ask again and again, too; and it would call the program's functions at times
 * when the program does not expect them, such as while it forks or ends. Host callbacks of a device come from threads
 * in which calls of the device are forbidden, and freeing its memory is one.
 *
 * A device that has failed does no work any more: what waits for it is called at once.
 */
#ifndef DEVICE_ENDING_H
#define DEVICE_ENDING_H

#include "device/device.h"

/* In memory of the caller, so that ending needs none; until `call` is called. */
struct ending {
    struct ending *next;
    shoal_device device;
    void *event; /* NULL if it could not be recorded: recorded by those who ask, behind more work */
    void (*call)(struct ending *ending);
};

/* `call` is called once, perhaps before this returns. The thread's error text stays. */
void ending_add(struct ending *ending, shoal_device device, void (*call)(struct ending *ending));
/* Calls what need not wait any more. Never waits. */
void ending_poll(void);

/* When the process ends (atexit): waits until nothing waits any more, a few seconds at most. */
void ending_at_exit(void);
/* In a forked child: what the parent's work waits for is the parent's. */
void ending_begin_child(void);

#endif
