/* SPDX-License-Identifier: MIT */
/*
 * An address in the memory of some device. The host may be unable to access what is there, so this is a type that cannot
 * be dereferenced: what lies there is read and written by kernels (kernel/enqueue.h), and by the host where
 * tensor_host_address or storage_host_base have checked that it can.
 */
#ifndef DEVICE_ADDRESS_H
#define DEVICE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct address {
    void *pointer;
};

#define ADDRESS_NONE ((struct address){NULL})

static inline bool address_is_none(struct address address)
{
    return !address.pointer;
}

static inline struct address address_of(const void *pointer)
{
    return (struct address){(void *)(uintptr_t)pointer};
}

/* `bytes` may be negative. */
static inline struct address address_add(struct address address, ptrdiff_t bytes)
{
    return (struct address){(char *)address.pointer + bytes};
}

static inline uintptr_t address_number(struct address address)
{
    return (uintptr_t)address.pointer;
}

/* The pointer, which is one of the device. `make lint` has the list of files that may call this. */
static inline void *address_pointer(struct address address)
{
    return address.pointer;
}

#endif
