/* SPDX-License-Identifier: MIT */
/*
 * What clang-tidy cannot see from one file: error_set and error_prefix return the status they are given. It
 * is included in front of every file that clang-tidy reads, and never by a build. Without it the analyzer
 * follows paths on which a function that failed returns SHOAL_OK.
 */
#include "../src/base/error.h"

#define error_set(status, ...) ((void)error_set((status), __VA_ARGS__), (status))
#define error_prefix(status, ...) ((void)error_prefix((status), __VA_ARGS__), (status))
