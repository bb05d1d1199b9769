/* SPDX-License-Identifier: MIT */
/*
 * Inputs of targets that talk with several peers: after a byte that chooses among the target's programs, records of who
 * speaks, a length and so many bytes.
 */
#ifndef FUZZ_RECORDS_H
#define FUZZ_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "harness/test.h"

#define RECORD_HEAD_BYTES 3

struct record {
    unsigned char who;
    const unsigned char *bytes;
    size_t n_bytes;
};

struct records {
    const unsigned char *at;
    size_t left;
};

/* *program_out is 0 for an input without bytes. */
static inline struct records records_begin(const unsigned char *bytes, size_t n_bytes, int *program_out)
{
    *program_out = n_bytes > 0 ? bytes[0] : 0;
    return n_bytes > 0 ? (struct records){.at = bytes + 1, .left = n_bytes - 1}
                       : (struct records){.at = bytes};
}

/* A record that is longer than the input ends with it. False: there is none. */
static inline bool records_next(struct records *records, struct record *record)
{
    if (records->left < RECORD_HEAD_BYTES) {
        return false;
    }
    size_t n_bytes = (size_t)records->at[1] | (size_t)records->at[2] << 8;
    records->left -= RECORD_HEAD_BYTES;
    n_bytes = n_bytes < records->left ? n_bytes : records->left;
    *record =
        (struct record){.who = records->at[0], .bytes = records->at + RECORD_HEAD_BYTES, .n_bytes = n_bytes};
    records->at += RECORD_HEAD_BYTES + n_bytes;
    records->left -= n_bytes;
    return true;
}

/* Writes a record, without more than 65535 bytes. Returns how many bytes it takes; 0: there is no room. */
static inline size_t records_write(unsigned char *to, size_t room, unsigned char who, const void *bytes,
                                   size_t n_bytes)
{
    if (n_bytes > UINT16_MAX || RECORD_HEAD_BYTES + n_bytes > room) {
        return 0;
    }
    to[0] = who;
    to[1] = (unsigned char)n_bytes;
    to[2] = (unsigned char)(n_bytes >> 8);
    if (n_bytes > 0) {
        memcpy(to + RECORD_HEAD_BYTES, bytes, n_bytes);
    }
    return RECORD_HEAD_BYTES + n_bytes;
}

/* Adds a record to a seed. */
static inline void records_add(struct fuzz_input *seed, unsigned who, const void *bytes, size_t n_bytes)
{
    size_t n_written = records_write(seed->bytes + seed->n_bytes, sizeof seed->bytes - seed->n_bytes,
                                     (unsigned char)who, bytes, n_bytes);
    CHECK(n_written > 0);
    seed->n_bytes += n_written;
}

/* Changes the bytes of one record, and its length accordingly, so that those behind it stay what they are. */
size_t records_mutate(unsigned char *data, size_t size, size_t max_size, struct test_random *random,
                      size_t (*mutate)(unsigned char *data, size_t size, size_t max_size));

#endif
