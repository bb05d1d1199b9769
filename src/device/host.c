/* SPDX-License-Identifier: MIT */
/* Memory of the host. */
#include "device/host.h"

#include <stdalign.h>
#include <stdint.h>

#include "base/error.h"
#include "base/mem.h"

void *host_allocate(size_t header_bytes, size_t bytes, void **data_out)
{
    size_t total;
    /* What is shorter than a cache line gains nothing from starting at one. */
    size_t alignment = bytes < MEM_DATA_ALIGNMENT ? alignof(max_align_t) : MEM_DATA_ALIGNMENT;
    if (__builtin_add_overflow(bytes, header_bytes + alignment, &total)) {
        (void)error_set(SHOAL_ERR_NO_MEMORY, "%zu bytes are more than can be addressed", bytes);
        return NULL;
    }
    void *header = mem_alloc(total);
    if (header) {
        uintptr_t data = (uintptr_t)header + header_bytes;
        *data_out = (void *)((data + alignment - 1) & ~(uintptr_t)(alignment - 1));
    }
    return header;
}

void host_release(void *header, void *data)
{
    mem_free(header); /* the data is in the same block */
}
