/* SPDX-License-Identifier: MIT */
/*
 * Device `apart`: memory that the host cannot touch, and work that is done later. It stands for a GPU in tests. Kernels are
 * the CPU's; they reach the memory through a second mapping.
 *
 *   memory.c   device addresses are a reservation without access; the same pages lie at a constant distance from it
 *   stream.c   a worker thread per stream, with delays, so that a wait that is missing is seen
 *   kernels.c  the table of kernels: each call becomes a job of the current stream
 *   module.c   the row, and what tests can ask for
 */
#ifndef MODULES_APART_APART_H
#define MODULES_APART_APART_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/module.h"
#include "kernel/table.h"
#include "modules/apart/settings.h"

/* The tests have a second device of another name, which is the same otherwise. */
#ifndef APART_NAME
#define APART_NAME "apart"
#endif
#ifndef APART_DLPACK
#define APART_DLPACK 12 /* kDLExtDev, for devices of nobody else */
#endif

extern const struct device_services *apart_services;
extern const struct kernel_table apart_kernels;
extern const struct device_streams apart_streams;
extern const struct device_row apart_row;
extern struct apart_settings apart_settings;

/* The device --------------------------------------------------------------------------------------------- */

/* Counts a call of the device. False, and the device has failed, if tests asked for the failure of this one. */
bool apart_call(const char *name);
/* Counts a call that comes from another process than has loaded the device. */
void apart_note_process(void);
/* The device has failed; only the first reason counts. */
void apart_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
shoal_status apart_failure(void);

/* Memory ------------------------------------------------------------------------------------------------- */

void *apart_allocate(size_t bytes, enum device_cause cause, void *stream);
void apart_release(void *data, void *stream);
shoal_status apart_share_create(size_t bytes, char descriptor[DEVICE_SHARE_BYTES], void **data_out);
shoal_status apart_share_map(const char descriptor[DEVICE_SHARE_BYTES], size_t bytes, void **data_out);
void apart_share_drop(void *data);
/* Where the processor reaches memory of the device. The device fails if `bytes` there are not its own. */
void *apart_reach(const void *data, size_t bytes);

/* Streams ------------------------------------------------------------------------------------------------ */

/* Work of a stream. Jobs are allocated with apart_job, and freed when they have run. */
struct job {
    struct job *next;
    void (*run)(struct job *job);
};

/* Memory for a job: a struct that begins with struct job. NULL if there is none, and the device has failed. */
void *apart_job(size_t bytes, void (*run)(struct job *job));
/* Puts a job behind the work of a stream. */
void apart_enqueue(void *stream, struct job *job);

#endif
