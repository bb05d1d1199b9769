/* SPDX-License-Identifier: MIT */
/*
 * The version of these headers and of the library that is loaded. The build reads the three numbers from here.
 *
 * Ownership: the string belongs to the library.
 * Threads: any.
 * Errors: none.
 */
#ifndef SHOAL_VERSION_H
#define SHOAL_VERSION_H

#include "shoal/api.h"

#define SHOAL_VERSION_MAJOR 0
#define SHOAL_VERSION_MINOR 1
#define SHOAL_VERSION_PATCH 0

SHOAL_BEGIN_DECLS

/* The version of the loaded library: "0.1.0". */
SHOAL_API const char *shoal_version(void);

SHOAL_END_DECLS

#endif
