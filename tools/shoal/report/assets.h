/* SPDX-License-Identifier: MIT */
/* The template of the page, its style and its script: the files beside this one, embedded by cmake/ShoalEmbed.cmake. */
#ifndef REPORT_ASSETS_H
#define REPORT_ASSETS_H

#include <stddef.h>

/* "{{name}}" stands for a part of the page (report/page.c). */
extern const char report_page[];
extern const size_t report_page_bytes;
extern const char report_page_sha256[];

extern const char report_style[];
extern const size_t report_style_bytes;
extern const char report_style_sha256[];

extern const char report_script[];
extern const size_t report_script_bytes;
extern const char report_script_sha256[];

#endif
