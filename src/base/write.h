/* SPDX-License-Identifier: MIT */
/*
 * Writes to files without a signal. A write beyond RLIMIT_FSIZE fails with EFBIG. The SIGXFSZ that the kernel sends
 * with it, which would end the process, is removed.
 */
#ifndef BASE_WRITE_H
#define BASE_WRITE_H

#include <stddef.h>
#include <stdint.h>

/* Writes everything. Returns 0, or an errno. */
int write_all(int fd, const void *bytes, size_t n_bytes);

/* Writes everything at that place of the file, whose position stays. Returns 0, or an errno. */
int write_all_at(int fd, uint64_t offset, const void *bytes, size_t n_bytes);

/* Gives the file that many bytes; new ones are zeros. Returns 0, or an errno. */
int write_resize(int fd, uint64_t n_bytes);

#endif
