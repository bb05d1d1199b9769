/* SPDX-License-Identifier: MIT */
/* The text that `shoal train` learns when nobody names one: the source of this program, or its headers and documents. */
#ifndef TRAIN_SOURCE_H
#define TRAIN_SOURCE_H

#include "shoal/status.h"

#include <stddef.h>

/* All files one after the other, in the order of their paths; freed by the caller. `name_out` has room for 256 bytes. */
shoal_status train_source_read(char **text_out, size_t *bytes_out, char *name_out);

#endif
