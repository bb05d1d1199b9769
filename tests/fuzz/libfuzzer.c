/* SPDX-License-Identifier: MIT */
/* A fuzz target as a libFuzzer program. What fails a check ends the process, so that libFuzzer keeps the input. */
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "fuzz/records.h"
#include "harness/harness.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size); /* libFuzzer's own */

static const struct test_case test_case = {.name = "libfuzzer"};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    if (!harness_seed_read()) {
        return 1;
    }
    harness_memory_install();
    harness_begin(fuzz_target.name, &test_case);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_try_one(data, size);
    if (test_has_failed()) {
        abort();
    }
    return 0;
}

/* By the target's own changes, which know words of its format. */
static size_t mutate_by_words(uint8_t *data, size_t size, size_t max_size, struct test_random *random)
{
    static struct fuzz_input input;
    if (fuzz_target.make) {
        fuzz_target.make(random, &input);
    } else {
        input.n_bytes = size < sizeof input.bytes ? size : sizeof input.bytes;
        memcpy(input.bytes, data, input.n_bytes);
        fuzz_mutate(&input, random, fuzz_target.words, fuzz_target.n_words);
    }
    size_t n_bytes = input.n_bytes < max_size ? input.n_bytes : max_size;
    memcpy(data, input.bytes, n_bytes);
    return n_bytes;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    struct test_random random = {.state = seed};
    bool has_words = fuzz_target.make || fuzz_target.n_words > 0;
    uint64_t choice = test_random_below(&random, 8);
    if (has_words && choice < 2) {
        size = mutate_by_words(data, size, max_size, &random);
    } else if (fuzz_target.has_records && choice < 6) {
        size = records_mutate(data, size, max_size, &random, LLVMFuzzerMutate);
    } else {
        size = LLVMFuzzerMutate(data, size, max_size);
    }
    if (fuzz_target.repair && test_random_below(&random, 8) > 0) {
        fuzz_target.repair(data, size);
    }
    return size;
}
