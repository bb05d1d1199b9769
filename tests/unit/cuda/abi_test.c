/* SPDX-License-Identifier: MIT */
/*
 * Types and numbers of the driver's interface that src/cuda has written down, against CUDA's own header where there is one.
 * The compiler checks them: what is left to run is to say whether it has.
 */
#include "cuda/driver_types.h"
#include "harness/test.h"

#ifdef TEST_CUDA_HEADER

#include <cuda.h>

#define SAME_NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is " #theirs)
#define SAME_PLACE(ours, our_member, theirs, their_member)                       \
    _Static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member), \
                   #our_member " is " #their_member);                            \
    _Static_assert(sizeof(((ours *)0)->our_member) == sizeof(((theirs *)0)->their_member), #our_member)

SAME_NUMBER(CUDA_OK, CUDA_SUCCESS);
SAME_NUMBER(CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME_NUMBER(CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_NUMBER(CUDA_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME_NUMBER(CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_NUMBER(CUDA_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME_NUMBER(CUDA_MEMORY_DAMAGED, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_NUMBER(CUDA_LINK_FAILED, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME_NUMBER(CUDA_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME_NUMBER(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME_NUMBER(CUDA_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_NUMBER(CUDA_OUT_OF_RESOURCES, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME_NUMBER(CUDA_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME_NUMBER(CUDA_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME_NUMBER(CUDA_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME_NUMBER(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME_NUMBER(CUDA_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME_NUMBER(CUDA_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
_Static_assert(CUDA_STREAM_LEGACY == 1 && CUDA_STREAM_PER_THREAD == 2,
               "CU_STREAM_LEGACY, CU_STREAM_PER_THREAD");
SAME_NUMBER(CUDA_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_NUMBER(CUDA_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_NUMBER(CUDA_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_NUMBER(CUDA_HAS_POOLS, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
SAME_NUMBER(CUDA_POOL_FOLLOWS_EVENTS, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES);
SAME_NUMBER(CUDA_POOL_REUSES_BY_CHANCE, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
SAME_NUMBER(CUDA_POOL_ADDS_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
SAME_NUMBER(CUDA_POOL_KEEPS, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
SAME_NUMBER(CUDA_POOL_RESERVED, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
SAME_NUMBER(CUDA_POOL_RESERVED_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
SAME_NUMBER(CUDA_POOL_USED, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
SAME_NUMBER(CUDA_POOL_USED_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
SAME_NUMBER(CUDA_JIT_ERRORS, CU_JIT_ERROR_LOG_BUFFER);
SAME_NUMBER(CUDA_JIT_ERRORS_BYTES, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
SAME_NUMBER(CUDA_JIT_OPTIMIZATION, CU_JIT_OPTIMIZATION_LEVEL);
SAME_NUMBER(CUDA_DYNAMIC_SHARED_MOST, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_NUMBER(CUDA_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_NUMBER(CUDA_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_NUMBER(CUDA_HANDLE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_NUMBER(CUDA_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_NUMBER(CUDA_ACCESS_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
SAME_NUMBER(CUDA_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

_Static_assert(sizeof(struct cuda_pool_properties) == sizeof(CUmemPoolProps), "properties of a pool");
SAME_PLACE(struct cuda_pool_properties, allocation, CUmemPoolProps, allocType);
SAME_PLACE(struct cuda_pool_properties, handles, CUmemPoolProps, handleTypes);
SAME_PLACE(struct cuda_pool_properties, location, CUmemPoolProps, location.type);
SAME_PLACE(struct cuda_pool_properties, device, CUmemPoolProps, location.id);
SAME_PLACE(struct cuda_pool_properties, security, CUmemPoolProps, win32SecurityAttributes);
SAME_PLACE(struct cuda_pool_properties, most_bytes, CUmemPoolProps, maxSize);
SAME_PLACE(struct cuda_pool_properties, usage, CUmemPoolProps, usage);

_Static_assert(sizeof(struct cuda_memory_properties) == sizeof(CUmemAllocationProp), "properties of memory");
SAME_PLACE(struct cuda_memory_properties, allocation, CUmemAllocationProp, type);
SAME_PLACE(struct cuda_memory_properties, handles, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(struct cuda_memory_properties, location, CUmemAllocationProp, location.type);
SAME_PLACE(struct cuda_memory_properties, device, CUmemAllocationProp, location.id);
SAME_PLACE(struct cuda_memory_properties, security, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(struct cuda_memory_properties, compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_PLACE(struct cuda_memory_properties, allows_rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_PLACE(struct cuda_memory_properties, usage, CUmemAllocationProp, allocFlags.usage);
SAME_PLACE(struct cuda_memory_properties, reserved, CUmemAllocationProp, allocFlags.reserved);

_Static_assert(sizeof(struct cuda_access) == sizeof(CUmemAccessDesc), "access to memory");
SAME_PLACE(struct cuda_access, location, CUmemAccessDesc, location.type);
SAME_PLACE(struct cuda_access, device, CUmemAccessDesc, location.id);
SAME_PLACE(struct cuda_access, flags, CUmemAccessDesc, flags);

/* Functions: that the header's can be called with the arguments of ours. Where its parameters are enums, ours are numbers of their
   size, which the calling convention does not tell apart. */
_Static_assert(sizeof(CUresult) == sizeof(cuda_result) && sizeof(CUdevice) == sizeof(cuda_device) &&
                   sizeof(CUdeviceptr) == sizeof(cuda_address) && sizeof(CUdevice_attribute) == sizeof(int) &&
                   sizeof(CUmemPool_attribute) == sizeof(int) && sizeof(CUjit_option) == sizeof(int) &&
                   sizeof(CUmemGenericAllocationHandle) == sizeof(cuda_memory) &&
                   sizeof(CUmemAllocationHandleType) == sizeof(int) &&
                   sizeof(CUmemAllocationGranularity_flags) == sizeof(int),
               "types of arguments");

TEST(agrees_with_the_header_of_cuda)
{
    CHECK(CUDA_VERSION >= 12000);
}

#else

TEST(agrees_with_the_header_of_cuda)
{
    test_skip("cuda.h is not there");
}

#endif
