/* SPDX-License-Identifier: MIT */
/* Copying bytes: memcpy, and past the cache for outputs so large that they would only push others out. */
#include "kernel/kernel.h"

#include "kernel/simd.h"

#include <string.h>

void kernel_copy(void *dst, const void *src, size_t bytes)
{
    /* Coinciding memory is allowed here and not by memcpy; NULL may come with no bytes. */
    if (bytes == 0 || dst == src) {
        return;
    }
    if (simd_is_streaming(bytes)) {
        simd_table()->copy_stream(dst, src, bytes);
        return;
    }
    memcpy(dst, src, bytes);
}
