/* SPDX-License-Identifier: MIT */
/*
 * What clang-tidy cannot see from one file: error_set and error_prefix return the status they are given, and path_fail an
 * error. It is included in front of every file that clang-tidy reads, and never by a build. Without it the analyzer follows
 * paths on which a function that failed returns SHOAL_OK. hash_bytes reads numbers byte by byte, of which the analyzer knows
 * the first only and takes the others for garbage.
 */
#include "../src/base/error.h"
#include "../src/base/hash.h"
#include "../src/checkpoint/io/path.h"

#define error_set(status, ...) ((void)error_set((status), __VA_ARGS__), (status))
#define error_prefix(status, ...) ((void)error_prefix((status), __VA_ARGS__), (status))
#define path_fail(path, operation, code) ((void)path_fail((path), (operation), (code)), SHOAL_ERR_SYSTEM)
#define hash_bytes(seed, bytes, n_bytes) ((uint64_t)(seed) ^ (uint64_t)(uintptr_t)(bytes) ^ (uint64_t)(n_bytes))
