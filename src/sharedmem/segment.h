/* SPDX-License-Identifier: MIT */
/*
 * Shared memory: a memfd, mapped. Nothing of it is ever in a file system, so nothing is left behind however a
 * rank ends. Memory is reserved when a segment is made: a shortage is an error then, not a signal later. A sparse
 * segment has addresses for all of its bytes, and gets memory for parts of it later, in the same way.
 *
 * A process maps a segment once, however many of its thread ranks use it, so that the thread sanitizer sees one
 * address (the table of mapped segments is process-wide).
 */
#ifndef SHAREDMEM_SEGMENT_H
#define SHAREDMEM_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/status.h"

struct segment;

/* A descriptor of `bytes` zeroed, reserved bytes (rounded up to pages), closed on exec; the caller's. */
shoal_status segment_create_fd(const char *name, size_t bytes, int *fd_out);

/*
 * Maps the memory of a descriptor, and returns one reference. The descriptor stays the caller's. SHOAL_ERR_INVALID when
 * it is not a memfd of at least that size.
 */
shoal_status segment_map(int fd, size_t bytes, struct segment **segment_out);

/*
 * Makes or maps a sparse segment: its pages have no memory until segment_reserve gives it to them, and nobody may touch
 * them before. Such a segment keeps a descriptor. A process that has closed it can still use the segment, but
 * segment_reserve is SHOAL_ERR_STATE then.
 */
shoal_status segment_create_sparse_fd(const char *name, size_t bytes, int *fd_out);
shoal_status segment_map_sparse(int fd, size_t bytes, struct segment **segment_out);

/* Parts of a sparse segment, of the same place in each of its blocks, which lie `stride` bytes apart: from `from`, whose
   page has its memory unless it is the first byte of it, to before `to`. */
struct segment_parts {
    size_t stride;
    size_t n_blocks;
    size_t from;
    size_t to;
};

/* Gives the pages of these parts their memory, zeroed. SHOAL_ERR_NO_MEMORY, with the sizes: nothing has changed. */
shoal_status segment_reserve(struct segment *segment, const char *name, const struct segment_parts *parts);
/* Takes back what segment_reserve has given. Nobody uses it. */
void segment_release(struct segment *segment, const struct segment_parts *parts);

struct segment *segment_ref(struct segment *segment);
void segment_unref(struct segment *segment); /* NULL is allowed */

void *segment_base(const struct segment *segment);
size_t segment_bytes(const struct segment *segment); /* whole pages */

/*
 * Makes a second, read-only mapping of the same memory, which lives as long as the segment. Under the thread sanitizer
 * it returns the first mapping, so that the sanitizer sees one address.
 */
shoal_status segment_read_only(struct segment *segment, const void **base_out);

/* Makes the pages of a part present in this process, so that the first use is not slow. */
void segment_touch(struct segment *segment, size_t offset, size_t bytes);

/* Reserved bytes of all segments mapped by this process, for tests. */
size_t segment_mapped_bytes(void);

#endif
