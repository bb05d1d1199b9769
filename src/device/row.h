/* SPDX-License-Identifier: MIT */
/* A row of the table of devices: what libshoal needs to know of a device. */
#ifndef DEVICE_ROW_H
#define DEVICE_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct kernel_table; /* kernel/table.h */

#define DEVICE_INTERFACE 1
#define DEVICE_SHARE_BYTES 64 /* what a process needs to map memory of another */

/*
 * Work of a device that is done after the call that asked for it has returned. A stream is a queue: each piece of work
 * begins after the one before it. An event is a place in a stream. All functions may be called from any thread; none of
 * them waits for work. `record` and `follow` also take streams of the program: a stream is passed as the address whose
 * number DLPack's protocol has for it (for CUDA a cudaStream_t).
 */
struct device_streams {
    shoal_status (*create)(void **stream_out);
    /* All work of the stream is done, or the device has failed. */
    void (*destroy)(void *stream);
    /* Gives an event behind the stream's work so far. */
    shoal_status (*record)(void *stream, void **event_out);
    /* Later work of the stream begins after the event. The event may be dropped when the call has returned. */
    shoal_status (*follow)(void *stream, void *event);
    shoal_status (*query)(void *event, bool *is_done_out);
    void (*drop)(void *event);
};

/* What memory is for: a report of it says so. */
enum device_cause {
    DEVICE_TENSORS, /* of tensors, and of ops while they run */
    DEVICE_BUFFERS, /* of owners that free it themselves */
    DEVICE_CAUSE_COUNT
};

/* Bytes: now, and the most at a time. */
struct device_usage {
    uint64_t now;
    uint64_t most;
};

struct device_report {
    struct device_usage causes[DEVICE_CAUSE_COUNT];
    struct device_usage reserved; /* for all of them */
    struct device_usage host;     /* of the host, for copies */
    uint64_t free_bytes;          /* of the device, whoever uses the rest */
    uint64_t total_bytes;
};

/* Kernels of the program: shoal/cuda.h. */
struct device_programs {
    shoal_status (*load)(const void *image, void **program_out);
    void (*unload)(void *program);
    shoal_status (*launch)(void *program, const char *kernel, const uint32_t blocks[3],
                           const uint32_t threads[3], uint32_t shared_bytes, void **arguments);
};

struct device_row {
    size_t
        struct_size; /* these two come first in every version: sizeof(struct device_row), DEVICE_INTERFACE */
    uint32_t interface;
    bool has_data; /* tensors there have bytes; otherwise only shapes */
    bool is_host;  /* the host can access the bytes */
    int dlpack;    /* DLPack's number of such devices; 0 if tensors there are not exchanged */
    int dlpack_id; /* DLPack's number of this one among them */
    const char *name;
    const char *doc;

    /* What follows is NULL for the CPU and for devices without data. */

    /* What they do is put behind the work of the stream that `stream` of the services gives (device/module.h). */
    const struct kernel_table *kernels;
    /* Memory, aligned to MEM_DATA_ALIGNMENT (base/mem.h), for later work of a stream. Returns NULL, with the error text
       set, when there is none. */
    void *(*allocate)(size_t bytes, enum device_cause cause, void *stream);
    /* Behind the work of the stream so far. */
    void (*release)(void *data, void *stream);
    /* Both put a copy behind the stream's work. The source of copy_in is host memory, which may change when the call has
       returned; the target of copy_out is host memory, which is written when an event behind the copy is done. */
    shoal_status (*copy_in)(void *target, const void *source, size_t bytes);
    shoal_status (*copy_out)(void *target, const void *source, size_t bytes);
    /* Host memory that copy_out writes without making anybody wait, and its end; NULL if it does so with all memory. */
    void *(*take_host)(size_t bytes);
    void (*give_host)(void *memory);
    /* SHOAL_OK, or what has made the device unusable, with its text: the first failure, again and again. */
    shoal_status (*failure)(void);
    /* Memory that other processes of this machine can map, for work of all streams, and what they need for that; the
       bytes at such an address. Both are dropped by share_drop, each in its process. NULL: memory is not shared. */
    shoal_status (*share_create)(size_t bytes, char descriptor[DEVICE_SHARE_BYTES], void **data_out);
    shoal_status (*share_map)(const char descriptor[DEVICE_SHARE_BYTES], size_t bytes, void **data_out);
    void (*share_drop)(void *data);
    const struct device_streams *streams; /* NULL: the work of every call is done when it returns */
    /* Both NULL on devices without. The most of each begins anew if `resets_most`. */
    shoal_status (*report)(struct device_report *report_out, bool resets_most);
    const struct device_programs *programs;
};

#define DEVICE_ROW_INIT .struct_size = sizeof(struct device_row), .interface = DEVICE_INTERFACE

#endif
