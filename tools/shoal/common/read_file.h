/* SPDX-License-Identifier: MIT */
/* Small files, read as a whole. */
#ifndef COMMON_READ_FILE_H
#define COMMON_READ_FILE_H

#include "shoal/status.h"

#include <stddef.h>

/*
 * Reads a regular file of at most max_bytes bytes. *bytes_out does not count the 0 that follows the last byte. Freed
 * with mem_free. The error names the file; SHOAL_ERR_STATE means that there is none.
 */
shoal_status tool_read_file(const char *path, size_t max_bytes, char **text_out, size_t *bytes_out);

#endif
