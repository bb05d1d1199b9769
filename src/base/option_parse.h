/* SPDX-License-Identifier: MIT */
/*
 * Reading the values of options. The whole text must be the value, without spaces or a sign other than "-";
 * false, and nothing written, when it is not. The program's locale plays no part.
 */
#ifndef BASE_OPTION_PARSE_H
#define BASE_OPTION_PARSE_H

#include <stdbool.h>
#include <stdint.h>

/* "-12" */
bool option_parse_int(const char *text, int64_t *value_out);

/* "4096", "64K", "8M", "2G"; powers of 1024, upper or lower case. */
bool option_parse_bytes(const char *text, int64_t *bytes_out);

/* "600", "0.25"; no exponent, at most 18 digits. */
bool option_parse_seconds(const char *text, double *seconds_out);

/* The index of `text` among `choices`, which are separated by '|'. */
bool option_parse_choice(const char *text, const char *choices, int *index_out);

#endif
