/* SPDX-License-Identifier: MIT */
/* Writing to files without a signal. */
#ifndef BASE_WRITE_H
#define BASE_WRITE_H

#include <stddef.h>

/*
 * Writes everything. Returns 0, or an errno. A file that would outgrow RLIMIT_FSIZE gives EFBIG; the signal that the kernel
 * sends with it, and that would end the process, is taken back.
 */
int write_all(int fd, const void *bytes, size_t n_bytes);

#endif
