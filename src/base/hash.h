/* SPDX-License-Identifier: MIT */
/*
 * Hashes bytes for tables and names. It spreads well, gives the same value on every machine, and is not cryptographic.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t hash_bytes(uint64_t seed, const void *bytes, size_t n_bytes)
{
    const unsigned char *byte = bytes;
    uint64_t hash = seed ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < n_bytes; i++) {
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    }
    /* Byte by byte the high half depends on everything, the low half on little: mix them. */
    hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u;
    return hash ^ (hash >> 32);
}

#endif
