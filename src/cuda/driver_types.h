/* SPDX-License-Identifier: MIT */
/* The types and numbers of the CUDA driver's interface that the module uses. It is built without CUDA's headers; where they
   are found, a test compares the two (tests/unit/cuda/abi). */
#ifndef CUDA_DRIVER_TYPES_H
#define CUDA_DRIVER_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int cuda_result;
typedef int cuda_device;
typedef uint64_t cuda_address;
typedef uint64_t cuda_memory; /* memory without an address */

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct CUmemPoolHandle_st;

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_IMAGE = 200,
    CUDA_MEMORY_DAMAGED = 214,
    CUDA_LINK_FAILED = 220,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_READY = 600,
    CUDA_ILLEGAL_ADDRESS = 700,
    CUDA_OUT_OF_RESOURCES = 701,
    CUDA_LAUNCH_FAILED = 719,
    CUDA_NOT_PERMITTED = 800,
    CUDA_NOT_SUPPORTED = 801
};

/* Flags. */
enum {
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_DISABLE_TIMING = 2,
    CUDA_HOST_PORTABLE = 1
};

/* Streams that every context has, by their numbers. */
enum {
    CUDA_STREAM_LEGACY = 1,
    CUDA_STREAM_PER_THREAD = 2
};

/* Attributes of a device. */
enum {
    CUDA_MULTIPROCESSORS = 16,
    CUDA_CAPABILITY_MAJOR = 75,
    CUDA_CAPABILITY_MINOR = 76,
    CUDA_HAS_POOLS = 115
};

/* Attributes of a pool, with the type of the value. */
enum {
    CUDA_POOL_FOLLOWS_EVENTS = 1,    /* int */
    CUDA_POOL_REUSES_BY_CHANCE = 2,  /* int: what another stream happens to have done */
    CUDA_POOL_ADDS_DEPENDENCIES = 3, /* int: waits that nobody asked for */
    CUDA_POOL_KEEPS = 4,             /* uint64_t: bytes that stay reserved */
    CUDA_POOL_RESERVED = 5,          /* uint64_t */
    CUDA_POOL_RESERVED_HIGH = 6,     /* uint64_t */
    CUDA_POOL_USED = 7,              /* uint64_t */
    CUDA_POOL_USED_HIGH = 8          /* uint64_t; writing 0 sets it to what is used */
};

/* How images are compiled. */
enum {
    CUDA_JIT_ERRORS = 5,       /* char *: what the compiler says of an image that it refuses */
    CUDA_JIT_ERRORS_BYTES = 6, /* how much of that there is room for */
    CUDA_JIT_OPTIMIZATION = 7  /* 0 to 4 */
};

/* Attributes of a function. */
enum {
    CUDA_DYNAMIC_SHARED_MOST = 8 /* bytes; CUDA_DYNAMIC_SHARED_PLAIN if nobody has set it */
};
#define CUDA_DYNAMIC_SHARED_PLAIN (48 * 1024)

#define CUDA_ALLOCATION_PINNED 1
#define CUDA_LOCATION_DEVICE 1
#define CUDA_HANDLE_DESCRIPTOR 1   /* what memory is exported as: a descriptor of a file */
#define CUDA_GRANULARITY_MINIMUM 0 /* sizes of memory are multiples of it */
#define CUDA_ACCESS_NONE 0
#define CUDA_ACCESS_READ_WRITE 3

struct cuda_pool_properties {
    int allocation; /* CUDA_ALLOCATION_PINNED */
    int handles;    /* 0 */
    int location;   /* CUDA_LOCATION_DEVICE */
    int device;
    void *security;
    size_t most_bytes; /* 0: no limit */
    unsigned short usage;
    unsigned char reserved[54];
};

struct cuda_memory_properties {
    int allocation; /* CUDA_ALLOCATION_PINNED */
    int handles;    /* CUDA_HANDLE_DESCRIPTOR, or 0 */
    int location;   /* CUDA_LOCATION_DEVICE */
    int device;
    void *security;
    unsigned char compression;
    unsigned char allows_rdma;
    unsigned short usage;
    unsigned char reserved[4];
};

struct cuda_access {
    int location; /* CUDA_LOCATION_DEVICE */
    int device;   /* that may reach the memory */
    int flags;    /* CUDA_ACCESS_READ_WRITE */
};

#endif
