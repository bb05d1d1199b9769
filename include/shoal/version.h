/* SPDX-License-Identifier: MIT */
/*
 * The version of the headers that a program was compiled with (the macros), and of the library that it runs with
 * (shoal_version). Until version 1.0, libraries whose minor versions differ do not replace each other.
 *
 * Ownership: the string belongs to the library.
 * Threads: any.
 * Errors: none.
 */
#ifndef SHOAL_VERSION_H
#define SHOAL_VERSION_H

#include "shoal/api.h"

/* The build reads the three numbers from here. */
#define SHOAL_VERSION_MAJOR 0
#define SHOAL_VERSION_MINOR 1
#define SHOAL_VERSION_PATCH 0

SHOAL_BEGIN_DECLS

/* The version of the loaded library: "0.1.0". */
SHOAL_API const char *shoal_version(void);

SHOAL_END_DECLS

#endif
