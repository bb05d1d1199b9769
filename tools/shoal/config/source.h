/* SPDX-License-Identifier: MIT */
/* The text that `shoal train` learns if none is named: the source of this program, or its headers and documents. */
#ifndef CONFIG_SOURCE_H
#define CONFIG_SOURCE_H

#include "shoal/status.h"

#include <stddef.h>

/* All files, in the order of their paths, joined. The caller frees the text. `name_out` has room for 256 bytes. */
shoal_status train_source_read(char **text_out, size_t *bytes_out, char *name_out);

#endif
