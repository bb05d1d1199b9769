/* SPDX-License-Identifier: MIT */
/* Memory for kernels' own use: a plan's, or allocated and freed when the call ends. */
#include <stdalign.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "op/dispatch.h"
#include "tensor/memory.h"

/* The header of an allocation; the memory after it is given out. */
struct op_scratch {
    alignas(SHOAL_OP_WORKSPACE_ALIGNMENT) struct op_scratch *next;
    struct memory *memory; /* of a device; then nothing follows. NULL otherwise */
};

static void *allocate(shoal_op_call_context *call, size_t bytes)
{
    struct op_scratch *scratch = NULL;
    if (bytes <= SIZE_MAX - sizeof *scratch) {
        scratch = mem_alloc_aligned(sizeof *scratch + bytes, SHOAL_OP_WORKSPACE_ALIGNMENT);
    }
    if (!scratch) {
        (void)error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu bytes of scratch memory", bytes);
        return NULL;
    }
    *scratch = (struct op_scratch){.next = call->scratches};
    call->scratches = scratch;
    return scratch + 1;
}

shoal_status op_device_scratch(shoal_op_call_context *call, shoal_device device, size_t bytes,
                               struct address *address_out)
{
    if (device_is_host(device)) {
        void *scratch = shoal_op_workspace(call, bytes);
        *address_out = address_of(scratch);
        return scratch ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    }
    struct memory *memory = NULL;
    TRY(memory_create(device, bytes, &memory));
    struct op_scratch *scratch = mem_alloc_aligned(sizeof *scratch, SHOAL_OP_WORKSPACE_ALIGNMENT);
    if (!scratch) {
        memory_unref(memory);
        return SHOAL_ERR_NO_MEMORY;
    }
    *scratch = (struct op_scratch){.next = call->scratches, .memory = memory};
    call->scratches = scratch;
    *address_out = memory->base;
    return SHOAL_OK;
}

void *shoal_op_workspace(shoal_op_call_context *call, size_t bytes)
{
    if (!call || !call->is_kernel) {
        (void)error_set(SHOAL_ERR_STATE, "op_workspace: %s",
                        call ? "only a kernel may call it" : "call is NULL");
        return NULL;
    }
    size_t rounded = op_round_workspace(bytes);
    if (!call->workspace || rounded > call->workspace_bytes) {
        return allocate(call, bytes);
    }
    void *given = call->workspace;
    call->workspace += rounded;
    call->workspace_bytes -= rounded;
    return given;
}

void op_free_scratches(shoal_op_call_context *call)
{
    while (call->scratches) {
        struct op_scratch *next = call->scratches->next;
        memory_unref(call->scratches->memory); /* a device frees it when the kernels before this have ended */
        mem_free(call->scratches);
        call->scratches = next;
    }
}
