/* SPDX-License-Identifier: MIT */
/*
 * The options of the library: environment variables SHOAL_*, read once, at first use. SHOAL_RANK, SHOAL_RANKS and
 * SHOAL_KEY are read by each shoal_world_open. `shoal info` prints them all.
 *
 * Ownership: all strings belong to the library.
 * Threads: any.
 * Errors: a bad value keeps the default and is reported through the log; unknown SHOAL_* names likewise,
 * with the nearest known name.
 */
#ifndef SHOAL_OPTION_H
#define SHOAL_OPTION_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/api.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_option_info {
    size_t struct_size;        /* sizeof(shoal_option_info), set by the caller */
    const char *name;          /* "SHOAL_LOG" */
    const char *type;          /* "choice", "seconds", "bytes", "int", "text" */
    const char *range;         /* what is accepted, in words */
    const char *default_value; /* as it would be written in the environment */
    const char *value;         /* the value in force, likewise */
    const char *source;        /* "default", "environment" or "default (bad value in environment)" */
    const char *doc;           /* one sentence */
} shoal_option_info;
#define SHOAL_OPTION_INFO_INIT SHOAL_SIZED(shoal_option_info)

/* Fills `info` with the option of that index, counted from 0. False past the last, and for a wrong struct_size. */
SHOAL_API bool shoal_option_get(size_t index, shoal_option_info *info_out);

SHOAL_END_DECLS

#endif
