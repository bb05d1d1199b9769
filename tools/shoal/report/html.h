/* SPDX-License-Identifier: MIT */
/* Putting texts and numbers into a page. Whatever comes from a file goes through these. */
#ifndef REPORT_HTML_H
#define REPORT_HTML_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* As text or as the value of an attribute in double quotes: <, >, & and quotes are escaped, control characters become
   '?', and so does what is not UTF-8. */
void html_text(FILE *out, const char *text);

/* As a string of JSON, with its quotes, for data within a page: nothing in it ends a script or begins a comment. */
void html_json(FILE *out, const char *text);

/* Without line ends. */
void html_base64(FILE *out, const void *bytes, size_t n_bytes);

/* The base64 of a hash that is given as hexadecimal digits, as a Content-Security-Policy wants it. */
void html_hash(FILE *out, const char *digits);

/* "12.3" of milliseconds or MB, with as many digits as people read; a dash if it is not finite. */
void html_amount(FILE *out, double value);

#endif
