/* SPDX-License-Identifier: MIT */
/*
 * Fuzz targets. Each tests/fuzz/<name>_fuzz.c defines one fuzz_target and is built in two ways:
 *
 *   make test   a test program (fuzz.c): tries every file of tests/fuzz/seeds/<name>, then inputs that are made from good
 *               ones by random changes, which come again with the same seed.
 *   make fuzz   a libFuzzer program (libfuzzer.c, preset fuzz), which begins with the same files and is led by coverage.
 *
 * An input that ever failed stays in the seeds, as regression-<what>.
 */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harness/test.h"

#define FUZZ_MAX_BYTES 32768
#define FUZZ_DEFAULT_ROUNDS 20000

struct fuzz_input {
    unsigned char bytes[FUZZ_MAX_BYTES];
    size_t n_bytes;
};

struct fuzz_target {
    const char *name;
    /* Makes an input from a good one by random changes. NULL: from a seed, by fuzz_mutate with `words`. */
    void (*make)(struct test_random *random, struct fuzz_input *input);
    /* Fails a check, or ends the process, if the input is handled wrongly. Neither memory nor descriptors stay. */
    void (*try_input)(const unsigned char *bytes, size_t n_bytes);
    /* Optional: sets right what no change would hit, such as a sum. */
    void (*repair)(unsigned char *bytes, size_t n_bytes);
    const char *const *words;
    size_t n_words;
    bool has_records;  /* inputs are records (fuzz/records.h) */
    uint64_t n_rounds; /* of make test; 0: FUZZ_DEFAULT_ROUNDS */
};

/* Defined by the program's <name>_fuzz.c. */
extern const struct fuzz_target fuzz_target;

/* Some changes: bits, bytes, pieces doubled, moved and cut out, and words of the format put in. */
void fuzz_mutate(struct fuzz_input *input, struct test_random *random, const char *const *words,
                 size_t n_words);

/*
 * For tests named `capture`, which make the seeds that cannot be written by hand: the folder in which they are wanted
 * (SHOAL_FUZZ_CAPTURE). NULL: none; then the test is skipped.
 */
const char *fuzz_capture_folder(void);
void fuzz_write_seed(const char *name, const struct fuzz_input *input);
/* Reads tests/fuzz/seeds/<target>/<name>. False: a check has failed. */
bool fuzz_read_seed(const char *target, const char *name, struct fuzz_input *input);

/* Tries one input in memory of exactly its size, and checks that neither blocks of memory nor descriptors are lost. */
void fuzz_try_one(const unsigned char *bytes, size_t n_bytes);

#endif
