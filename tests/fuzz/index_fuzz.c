/* SPDX-License-Identifier: MIT */
/*
 * Indices of checkpoints that were good, changed at random, into their reader: it must answer, never read where it may
 * not (the address sanitizer), and lose no memory. What it accepts is written, read and written again as the same text.
 * Most inputs get the sum that they have, which otherwise ends the reading.
 */
#include <string.h>

#include "base/mem.h"
#include "fixtures/index_sample.h"
#include "fuzz/fuzz.h"
#include "harness/test.h"

static const char *const words[] = {
    "\"x-a\": {}, ",
    "\"id\": \"0123456789abcdef0123456789abcdef\", ",
    "\"version\": 2",
    "\"layout\": \"whole\"",
    "\"t\": {\"dtype\": \"U8\", \"shape\": [0], \"aliases\": [], \"pieces\": []}, ",
    "{\"file\": 0, \"at\": 3512, \"begin\": [0, 0], \"length\": [1, 1]}, ",
    "\"aliases\": [\"grid\"], ",
    "\"begin\": [0, 0], ",
    "\"length\": [6, 4]",
    "{\"at\": 0, \"bytes\": 512, \"sums\": [\"0000000000000001\"]}, ",
    "\"0x1.8p+1\"",
    "\"nan\"",
    "F64",
    "BOOL",
    "9223372036854775807",
    "9223372036854775808",
    "4611686018427387904",
    "-1",
    "0",
    "1",
    "1.5",
    "[",
    "]",
    "{",
    "}",
    ", ",
    ": ",
    "\"",
    "\\u0000",
    "\\ud83d\\ude00",
    "null",
    "..",
    "/",
};

static void check_again(const struct checkpoint_index *index)
{
    struct checkpoint_index second;
    char *text;
    char *again;
    size_t bytes;
    size_t again_bytes;
    REQUIRE_OK(index_write(index, &text, &bytes));
    if (CHECK_OK(index_read(text, bytes, &second))) {
        if (CHECK_OK(index_write(&second, &again, &again_bytes))) {
            CHECK(again_bytes == bytes && memcmp(again, text, bytes) == 0);
            mem_free(again);
        }
        index_free(&second);
    }
    mem_free(text);
}

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    struct checkpoint_index index;
    shoal_status status = index_read((const char *)bytes, n_bytes, &index);
    if (status != SHOAL_OK) {
        CHECK(status == SHOAL_ERR_INVALID || status == SHOAL_ERR_UNSUPPORTED);
        CHECK(shoal_error_text()[0] != '\0');
        return;
    }
    for (size_t i = 0; i < index.n_tensors; i++) {
        const struct index_tensor *tensor = &index.tensors[i];
        CHECK(index_find(&index, tensor->section, tensor->name) == tensor);
        for (size_t k = 0; k < tensor->n_pieces; k++) {
            CHECK(tensor->pieces[k].file < index.n_files);
        }
    }
    check_again(&index);
    index_free(&index);
}

static void make_input(struct test_random *random, struct fuzz_input *input)
{
    struct checkpoint_index sample = index_sample();
    char *text;
    REQUIRE_OK(index_write(&sample, &text, &input->n_bytes));
    REQUIRE(input->n_bytes <= FUZZ_MAX_BYTES);
    memcpy(input->bytes, text, input->n_bytes);
    mem_free(text);
    fuzz_mutate(input, random, words, sizeof words / sizeof words[0]);
    if (test_random_below(random, 8) > 0) {
        index_sample_repair((char *)input->bytes, input->n_bytes);
    }
}

static void repair(unsigned char *bytes, size_t n_bytes)
{
    index_sample_repair((char *)bytes, n_bytes);
}

const struct fuzz_target fuzz_target = {
    .name = "index", .make = make_input, .try_input = try_bytes, .repair = repair};
