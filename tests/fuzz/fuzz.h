/* SPDX-License-Identifier: MIT */
/*
 * Fuzzing without a fuzzer: inputs are made from good ones by random changes, which come again with the same seed.
 * Each tests/fuzz/<name>_fuzz.c is a test program; `make test` runs FUZZ_DEFAULT_ROUNDS of each, `make fuzz` as many as
 * fit the seconds of SHOAL_FUZZ_SECONDS under the address sanitizer.
 */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include <stddef.h>

#include "harness/test.h"

#define FUZZ_MAX_BYTES 4096
#define FUZZ_DEFAULT_ROUNDS 20000

struct fuzz_input {
    unsigned char bytes[FUZZ_MAX_BYTES];
    size_t n_bytes;
};

/* Some changes: bits, bytes, pieces doubled, moved and cut out, and words of the format put in. */
void fuzz_mutate(struct fuzz_input *input, struct test_random *random, const char *const *words,
                 size_t n_words);

typedef void (*fuzz_make)(struct test_random *random, struct fuzz_input *input);
typedef void (*fuzz_try)(const unsigned char *bytes, size_t n_bytes);

/*
 * Makes inputs and tries them, each in memory of exactly its size, until rounds or seconds are over or a check fails.
 * An input that fails, or ends the process, is left as <name>.crash in the working directory.
 */
void fuzz_run(const char *name, fuzz_make make, fuzz_try try_input);

#endif
