/* SPDX-License-Identifier: MIT */
/*
 * Files that were good, changed at random, into the reader of safetensors files: it must answer, never read where it
 * may not (the address sanitizer), lose no memory, and what it accepts must be consistent. Ranges and boxes of the
 * tensors of what it accepts are read, too.
 */
#include <stdlib.h>
#include <string.h>

#include "fixtures/safetensors_image.h"
#include "fuzz/fuzz.h"
#include "harness/test.h"
#include "shoal/safetensors.h"
#include "shoal/scope.h"

/* Pieces of JSON that mean something here. */
static const char *const words[] = {
    "\"__metadata__\":{\"k\":\"v\"},",
    "\"dtype\":\"F32\"",
    "\"shape\":[2,3]",
    "\"data_offsets\":[0,24]",
    "\"t\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},",
    "F64",
    "BF16",
    "BOOL",
    "F8_E4M3",
    "9223372036854775807",
    "18446744073709551616",
    "-1",
    "0",
    "1.5",
    "1e3",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\\u0000",
    "\\ud83d\\ude00",
    "null",
    " ",
};

static const char *const headers[] = {
    "{}",
    "{\"__metadata__\":{\"case\":\"{}\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}} "
    " ",
    "{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"b\":{\"dtype\":\"BOOL\",\"shape\":[3,1],\"data_offsets\":[8,11]},"
    "\"c\":{\"dtype\":\"C64\",\"shape\":[0,7],\"data_offsets\":[11,11]},"
    "\"d\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[11,12]}}",
};
static const size_t data_bytes[] = {0, 24, 12};
#define N_HEADERS (sizeof headers / sizeof headers[0])

/* A range and a box of it, with numbers that may be wrong: they give the bytes of the whole, or an error. */
static void check_parts(shoal_safetensors *file, int64_t index, const shoal_safetensors_info *info)
{
    unsigned char *whole = malloc(info->bytes + 1);
    unsigned char *part = malloc(info->bytes + 1);
    REQUIRE(whole && part);
    struct test_random random = test_random_begin(info->bytes);
    CHECK_OK(shoal_safetensors_read_range(file, index, 0, whole, info->bytes));
    uint64_t offset = test_random_below(&random, info->bytes + 2);
    size_t bytes = (size_t)test_random_below(&random, info->bytes + 2);
    bool is_right = offset <= info->bytes && bytes <= info->bytes - offset;
    CHECK_INT(shoal_safetensors_read_range(file, index, offset, part, bytes),
              is_right ? SHOAL_OK : SHOAL_ERR_INVALID);
    CHECK(!is_right || memcmp(part, whole + offset, bytes) == 0);

    int64_t begin[SHOAL_MAX_DIMS] = {0};
    int64_t length[SHOAL_MAX_DIMS] = {0};
    is_right = true;
    for (int i = 0; i < info->n_dims; i++) {
        uint64_t most = info->shape[i] < 100 ? (uint64_t)info->shape[i] + 1 : 100;
        begin[i] = (int64_t)test_random_below(&random, most + 1) - (test_random_below(&random, 20) == 0);
        length[i] = (int64_t)test_random_below(&random, most + 1) - (test_random_below(&random, 20) == 0);
        is_right = is_right && begin[i] >= 0 && begin[i] <= info->shape[i] && length[i] >= 0 &&
                   length[i] <= info->shape[i] - begin[i];
    }
    CHECK_INT(shoal_safetensors_read_box(file, index, begin, length, part, NULL),
              is_right ? SHOAL_OK : SHOAL_ERR_INVALID);
    CHECK_OK(shoal_safetensors_read_box(file, index, NULL, NULL, part, NULL));
    CHECK(memcmp(part, whole, info->bytes) == 0);
    free(whole);
    free(part);
}

static void check_tensor(shoal_safetensors *file, int64_t index, size_t *total_bytes)
{
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    REQUIRE_OK(shoal_safetensors_get(file, index, &info));
    CHECK_INT(shoal_safetensors_find(file, info.name), index);
    size_t bytes = shoal_dtype_bytes(info.dtype);
    for (int i = 0; i < info.n_dims; i++) {
        CHECK(info.shape[i] >= 0);
        bytes *= (size_t)info.shape[i];
    }
    CHECK_INT(info.bytes, bytes);
    CHECK(info.file_offset >= IMAGE_LENGTH_BYTES);
    *total_bytes += bytes;
    check_parts(file, index, &info);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_safetensors_tensor(file, index);
    CHECK(tensor || info.dtype == SHOAL_BOOL);
    CHECK_INT(shoal_scope_end(), tensor ? SHOAL_OK : SHOAL_ERR_INVALID);
}

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    shoal_safetensors *file = NULL;
    shoal_status status = shoal_safetensors_open_memory(bytes, n_bytes, &file);
    if (status != SHOAL_OK) {
        CHECK(status == SHOAL_ERR_INVALID || status == SHOAL_ERR_UNSUPPORTED);
        CHECK(!file && shoal_error_text()[0] != '\0');
        return;
    }
    size_t total_bytes = 0;
    for (int64_t i = 0; i < shoal_safetensors_count(file); i++) {
        check_tensor(file, i, &total_bytes);
    }
    CHECK(IMAGE_LENGTH_BYTES + total_bytes <= n_bytes);
    (void)shoal_safetensors_metadata(file, "case");
    shoal_safetensors_close(file);
}

/* Most changes leave the length of the header behind: set right again, they get further. */
static void repair_length(struct fuzz_input *input, struct test_random *random, size_t n_data)
{
    if (input->n_bytes < IMAGE_LENGTH_BYTES + n_data || test_random_below(random, 4) == 0) {
        return;
    }
    image_set_length(input->bytes, input->n_bytes - IMAGE_LENGTH_BYTES - n_data);
}

static void make_input(struct test_random *random, struct fuzz_input *input)
{
    static const unsigned char data[32] = {1, 0, 1, 1};
    size_t which = (size_t)test_random_below(random, N_HEADERS);
    size_t header_bytes = strlen(headers[which]);
    image_set_length(input->bytes, header_bytes);
    memcpy(input->bytes + IMAGE_LENGTH_BYTES, headers[which], header_bytes);
    memcpy(input->bytes + IMAGE_LENGTH_BYTES + header_bytes, data, data_bytes[which]);
    input->n_bytes = IMAGE_LENGTH_BYTES + header_bytes + data_bytes[which];
    fuzz_mutate(input, random, words, sizeof words / sizeof words[0]);
    repair_length(input, random, data_bytes[which]);
}

const struct fuzz_target fuzz_target = {.name = "safetensors", .make = make_input, .try_input = try_bytes};
