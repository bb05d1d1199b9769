/* SPDX-License-Identifier: MIT */
/* What the driver that counts (counted.c) tells: calls since the program began, or since somebody has set them to 0. */
#ifndef GPU_COUNTED_H
#define GPU_COUNTED_H

#include <stdatomic.h>
#include <stdint.h>

#define COUNTED_SYMBOL "counted_calls"

struct counted {
    _Atomic uint64_t n_launches;
    _Atomic uint64_t n_copies; /* and fills */
    _Atomic uint64_t n_allocations;
    _Atomic uint64_t n_events; /* recorded, or waited for by a stream */
    /* What loading took: images, finding functions in them, and the first launch of each function, until it returns. */
    _Atomic uint64_t n_images;
    _Atomic uint64_t n_functions;
    _Atomic uint64_t image_ns;
    _Atomic uint64_t function_ns;
    _Atomic uint64_t first_launch_ns;
};

#endif
