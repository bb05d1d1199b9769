/* SPDX-License-Identifier: MIT */
/* Copies bytes: by memcpy, or bypassing the cache for outputs so large that they would evict everything else. */
#include "kernel/kernel.h"

#include "kernel/simd.h"

#include <string.h>

bool kernel_is_streaming(size_t output_bytes)
{
    const struct simd_table *table = simd_table();
    return table->copy_stream != table->copy && simd_is_streaming(output_bytes);
}

void kernel_copy_part(void *dst, const void *src, size_t bytes, size_t whole_bytes)
{
    /* Coinciding memory is allowed here and not by memcpy; NULL may come with no bytes. */
    if (bytes == 0 || dst == src) {
        return;
    }
    if (kernel_is_streaming(whole_bytes)) {
        simd_table()->copy_stream(dst, src, bytes);
        return;
    }
    memcpy(dst, src, bytes);
}

void kernel_stream(void *dst, const void *src, size_t bytes)
{
    if (bytes > 0 && dst != src) {
        simd_table()->copy_stream_open(dst, src, bytes);
    }
}

void kernel_stream_end(void)
{
    simd_table()->stream_end();
}

void kernel_copy(void *dst, const void *src, size_t bytes)
{
    kernel_copy_part(dst, src, bytes, bytes);
}

#define LINE_BYTES 64

/* The builtin asks for the right to write only where the compiler may use all of a processor's instructions. */
static void fetch_line_to_write(const char *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*line)); /* does nothing on processors that do not have it */
#else
    __builtin_prefetch(line, 1);
#endif
}

void kernel_fetch_to_write(const void *memory, size_t bytes)
{
    const char *at = memory;
    for (size_t i = 0; i < bytes; i += LINE_BYTES) {
        fetch_line_to_write(at + i);
    }
}
