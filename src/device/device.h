/* SPDX-License-Identifier: MIT */
/*
 * The places where a tensor's bytes can be. Each is a row: what differs between devices is in it, and nothing above this
 * layer asks which device it has. The CPU and meta are always there; others come from modules (device/module.h), and get
 * numbers from DEVICE_FIRST_MODULE on when they are loaded.
 */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fork.h"
#include "device/address.h"
#include "device/host.h"
#include "device/row.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

/* The devices that are always there. */
enum {
#define DEVICE(NAME, row) DEVICE_INDEX_##NAME,
#include "device/devices.def"
#undef DEVICE
    DEVICE_COUNT
};

#define DEVICE_FIRST_MODULE 16
#define DEVICE_MODULES_MOST 8

extern const struct device_row device_host_row;
extern const struct device_row device_meta_row;

extern const struct device_row *const device_rows[DEVICE_COUNT];

/* A device of a module. Written once, before its number is given out; only the compute stream may change. */
struct device_slot {
    const struct device_row *row;
    void *own_stream;        /* of the library; NULL if the row has no streams */
    _Atomic(void *) compute; /* device/stream.h: that one, or a stream of the program */
    uint32_t n_forks;        /* fork_count() when it was loaded */
};
extern struct device_slot device_slots[DEVICE_MODULES_MOST];

static inline struct device_slot *device_slot(shoal_device device)
{
    return &device_slots[device - DEVICE_FIRST_MODULE];
}

/* The row of a number that device_check or device_find has accepted. */
static inline const struct device_row *device_row(shoal_device device)
{
    return (int)device < DEVICE_COUNT ? device_rows[device] : device_slot(device)->row;
}

static inline const char *device_name(shoal_device device)
{
    return device_row(device)->name;
}

static inline bool device_has_data(shoal_device device)
{
    return device_row(device)->has_data;
}

static inline bool device_is_host(shoal_device device)
{
    return device_row(device)->is_host;
}

/*
 * A child of fork() has the numbers of its parent's devices, but not their threads, and not their drivers' state. Every
 * use of one there is SHOAL_ERR_STATE with its name. Freeing what is on it touches nothing: it is the parent's.
 */
static inline bool device_is_inherited(shoal_device device)
{
    return (int)device >= DEVICE_FIRST_MODULE && fork_is_child(device_slot(device)->n_forks);
}
shoal_status device_fail_inherited(shoal_device device);
static inline shoal_status device_check_process(shoal_device device)
{
    return device_is_inherited(device) ? device_fail_inherited(device) : SHOAL_OK;
}

/* Of a device of a module. */
shoal_status device_allocate_apart(shoal_device device, size_t header_bytes, size_t bytes, void **header_out,
                                   void **data_out);
void device_release_apart(shoal_device device, void *header, void *data);

/*
 * header_bytes of host memory, for what the caller keeps about the data, and `bytes` of the device's memory, which has
 * some. They are one allocation on the CPU, whose functions are called directly: results of every op are allocated. The
 * data begins at a multiple of MEM_DATA_ALIGNMENT unless it is shorter.
 */
static inline shoal_status device_allocate(shoal_device device, size_t header_bytes, size_t bytes,
                                           void **header_out, void **data_out)
{
    if (device != SHOAL_CPU) {
        return device_allocate_apart(device, header_bytes, bytes, header_out, data_out);
    }
    *header_out = host_allocate(header_bytes, bytes, data_out);
    return *header_out ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static inline void device_release(shoal_device device, void *header, void *data)
{
    if (device == SHOAL_CPU) {
        host_release(header, data);
    } else {
        device_release_apart(device, header, data);
    }
}

/*
 * Memory that its owner frees: of `bytes`, which may be 0, aligned to MEM_DATA_ALIGNMENT. As for all memory of a device,
 * it is freed behind the work of the compute stream so far.
 */
shoal_status device_memory_allocate(shoal_device device, size_t bytes, struct address *memory_out);
/* ADDRESS_NONE is allowed. */
void device_memory_free(shoal_device device, struct address memory);

/* SHOAL_ERR_INVALID, naming the argument, for a number that is no device. */
shoal_status device_check(shoal_device device, const char *argument);

/* Finds a device by its name. One that is not there yet is looked for among the modules, and loaded. */
shoal_status device_find(const char *name, shoal_device *device_out);

/* Finds the device of this process that DLPack has these numbers for. SHOAL_ERR_UNSUPPORTED if there is none. */
shoal_status device_find_dlpack(int type, int id, shoal_device *device_out);

/* For loading (find.c), one at a time: among the devices that are there, how many are of modules, and one more. */
bool device_find_known(const char *name, shoal_device *device_out);
int device_count_loaded(void);
shoal_device device_add(struct device_slot slot);

#endif
