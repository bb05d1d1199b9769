/* SPDX-License-Identifier: MIT */
/*
 * The options of the library and their values in this process, for programs that print their configuration. Options are
 * environment variables SHOAL_*, which cannot be changed by a call. `shoal info` prints them all.
 *
 *     shoal_option_info option = SHOAL_OPTION_INFO_INIT;
 *     for (size_t i = 0; shoal_option_get(i, &option); i++) {
 *         printf("%s=%s  (%s)\n", option.name, option.value, option.source);
 *     }
 *
 * The environment is read once, when the library first needs an option. Only shoal_world_open reads SHOAL_ADDRESS,
 * SHOAL_INTERFACE, SHOAL_KEY, SHOAL_PORT, SHOAL_RANK, SHOAL_RANKS and SHOAL_TOKEN again each time it is called.
 *
 * Ownership: all strings belong to the library and live as long as the process.
 * Threads: any.
 * Errors: a bad value keeps the default (a bad SHOAL_LOG counts as "warn") and is reported through the log; so is a
 * variable SHOAL_* that is no option, with the nearest name that is one.
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
    const char *value;         /* what is used, as it would be written in the environment */
    const char *source;        /* "default", "environment", or a text with "bad value in environment" */
    const char *doc;           /* what the option does, in one sentence or a few */
} shoal_option_info;
#define SHOAL_OPTION_INFO_INIT SHOAL_SIZED(shoal_option_info)

/* Writes option number `index`, counted from 0, to *info_out. Returns false past the last option, and if info_out is
   NULL or its struct_size is not set. */
SHOAL_API bool shoal_option_get(size_t index, shoal_option_info *info_out);

SHOAL_END_DECLS

#endif
