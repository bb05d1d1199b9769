/* SPDX-License-Identifier: MIT */
/* Layouts of safetensors files: the header is one text for equal contents, and what no file can have is refused. */
#include "checkpoint/safetensors/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"

#define NUMBERS(...) ((const int64_t[]){__VA_ARGS__})

static shoal_safetensors_layout *make_layout(void)
{
    shoal_safetensors_layout *layout = NULL;
    CHECK_OK(shoal_safetensors_layout_create(&layout));
    return layout;
}

static void check_header(shoal_safetensors_layout *layout, const char *text)
{
    size_t bytes = strlen(text);
    REQUIRE_OK(safetensors_layout_arrange(layout));
    REQUIRE(layout->header_bytes % 8 == 0);
    REQUIRE(layout->header_bytes - SAFETENSORS_LENGTH_BYTES >= bytes);
    CHECK_BYTES(layout->header + SAFETENSORS_LENGTH_BYTES, text, bytes);
    for (size_t i = SAFETENSORS_LENGTH_BYTES + bytes; i < layout->header_bytes; i++) {
        CHECK_INT(layout->header[i], ' ');
    }
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | (unsigned char)layout->header[i];
    }
    CHECK_INT(length, layout->header_bytes - SAFETENSORS_LENGTH_BYTES);
}

/* What is in a file --------------------------------------------------------------------------------------- */

TEST(an_empty_file)
{
    shoal_safetensors_layout *layout = make_layout();
    check_header(layout, "{}");
    CHECK_OK(safetensors_layout_arrange(layout));
    CHECK_INT(layout->file_bytes, 16);
    shoal_safetensors_layout_free(layout);
}

/* Larger elements first, then by name; metadata in the order of the calls. */
TEST(one_text_for_equal_contents)
{
    static const struct {
        const char *name;
        int64_t shape[2];
        int n_dims;
        shoal_dtype dtype;
    } rows[] = {{"z", {3, 0}, 1, SHOAL_BOOL},
                {"b", {2, 3}, 2, SHOAL_F32},
                {"a", {0, 0}, 0, SHOAL_F32},
                {"half", {5, 0}, 2, SHOAL_F16},
                {"i", {1, 0}, 1, SHOAL_I64}};
    for (int order = 0; order < 5; order++) {
        shoal_safetensors_layout *layout = make_layout();
        CHECK_OK(shoal_safetensors_layout_add_metadata(layout, "z", "1"));
        for (int i = 0; i < 5; i++) {
            int row = (i * 2 + order) % 5;
            CHECK_OK(shoal_safetensors_layout_add(layout, rows[row].name, rows[row].shape, rows[row].n_dims,
                                                  rows[row].dtype));
            CHECK_INT(safetensors_layout_find(layout, rows[row].name), i);
            /* The header is made again after each. */
            CHECK_OK(safetensors_layout_arrange(layout));
        }
        CHECK_OK(shoal_safetensors_layout_add_metadata(layout, "a", ""));
        check_header(layout, "{\"__metadata__\":{\"z\":\"1\",\"a\":\"\"},"
                             "\"i\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
                             "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},"
                             "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[12,36]},"
                             "\"half\":{\"dtype\":\"F16\",\"shape\":[5,0],\"data_offsets\":[36,36]},"
                             "\"z\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[36,39]}}");
        CHECK_INT(layout->file_bytes, layout->header_bytes + 39);
        size_t b = (size_t)safetensors_layout_find(layout, "b");
        CHECK_INT(safetensors_layout_offset(layout, b), layout->header_bytes + 12);
        shoal_safetensors_layout_free(layout);
    }
}

/* Every dtype, one element each, an odd number of bytes before it if there were no order. */
TEST(every_tensor_is_aligned)
{
    static const shoal_dtype dtypes[] = {SHOAL_BOOL, SHOAL_U8,   SHOAL_I8,  SHOAL_U16, SHOAL_I16,
                                         SHOAL_F16,  SHOAL_BF16, SHOAL_U32, SHOAL_I32, SHOAL_F32,
                                         SHOAL_U64,  SHOAL_I64,  SHOAL_F64, SHOAL_C64};
    enum {
        N = sizeof dtypes / sizeof dtypes[0]
    };
    shoal_safetensors_layout *layout = make_layout();
    for (int64_t i = 0; i < N; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "t%d", (int)i);
        CHECK_OK(shoal_safetensors_layout_add(layout, name, NUMBERS(2 * i + 1), 1, dtypes[i]));
    }
    REQUIRE_OK(safetensors_layout_arrange(layout));
    for (size_t i = 0; i < N; i++) {
        CHECK_INT(safetensors_layout_offset(layout, i) % shoal_dtype_bytes(dtypes[i]), 0);
    }
    shoal_safetensors_layout_free(layout);
}

TEST(strings_are_escaped)
{
    shoal_safetensors_layout *layout = make_layout();
    CHECK_OK(shoal_safetensors_layout_add_metadata(layout, "\b\f\n\r\t\"\\/\x01\x1f\x7f",
                                                   "\xC3\xA9\xF0\x9F\x98\x80"));
    CHECK_OK(shoal_safetensors_layout_add(layout, "a \"b\"\n", NUMBERS(0), 1, SHOAL_U8));
    CHECK_OK(shoal_safetensors_layout_add(layout, "", NUMBERS(0), 1, SHOAL_U8));
    check_header(
        layout,
        "{\"__metadata__\":{\"\\b\\f\\n\\r\\t\\\"\\\\/\\u0001\\u001f\x7f\":\"\xC3\xA9\xF0\x9F\x98\x80\"},"
        "\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
        "\"a \\\"b\\\"\\n\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    shoal_safetensors_layout_free(layout);
}

TEST(many_names)
{
    enum {
        N = 20000
    };
    shoal_safetensors_layout *layout = make_layout();
    char name[32];
    for (int i = 0; i < N && !test_has_failed(); i++) {
        (void)snprintf(name, sizeof name, "layers.%d.weight", i);
        CHECK_OK(shoal_safetensors_layout_add(layout, name, NUMBERS(1), 1, SHOAL_F32));
    }
    CHECK_INT(layout->n_tensors, N);
    for (int i = 0; i < N && !test_has_failed(); i++) {
        (void)snprintf(name, sizeof name, "layers.%d.weight", i);
        CHECK_INT(safetensors_layout_find(layout, name), i);
        CHECK_STATUS(shoal_safetensors_layout_add(layout, name, NUMBERS(1), 1, SHOAL_F32), SHOAL_ERR_INVALID);
    }
    CHECK_INT(safetensors_layout_find(layout, "layers"), -1);
    shoal_safetensors_layout_free(layout);
}

/* What is refused ---------------------------------------------------------------------------------------- */

TEST(refuses_wrong_tensors)
{
    shoal_safetensors_layout *layout = make_layout();
    CHECK_OK(shoal_safetensors_layout_add(layout, "a", NUMBERS(2), 1, SHOAL_F32));
    CHECK_STATUS(shoal_safetensors_layout_add(NULL, "b", NUMBERS(2), 1, SHOAL_F32), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_layout_add: layout is NULL");
    CHECK_STATUS(shoal_safetensors_layout_add(layout, NULL, NUMBERS(2), 1, SHOAL_F32), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("name is NULL");
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "a", NUMBERS(3), 1, SHOAL_F16), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("name: there is a tensor 'a' already");
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "__metadata__", NUMBERS(3), 1, SHOAL_F16),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("'__metadata__' is reserved for the metadata");
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "b", NULL, 1, SHOAL_F32), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensor 'b': shape is NULL");
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "b", NUMBERS(2, -3), 2, SHOAL_F32), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("-3");
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "b", NUMBERS(1, 1, 1, 1, 1, 1, 1, 1, 1), 9, SHOAL_F32),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "b", NULL, -1, SHOAL_F32), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "b", NUMBERS(INT64_MAX, 2), 2, SHOAL_U8),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "b", NUMBERS(INT64_MAX / 4), 1, SHOAL_F64),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("shape: [2305843009213693951] of f64 has more bytes than 63 bits can count");
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "b", NUMBERS(1), 1, (shoal_dtype)99),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("dtype");
    CHECK_STATUS(shoal_safetensors_layout_add(layout, "b", NUMBERS(1), 1, SHOAL_C128), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("safetensors files do not support c128");
    CHECK_INT(layout->n_tensors, 1);
    check_header(layout, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}");
    shoal_safetensors_layout_free(layout);
}

TEST(refuses_what_is_not_utf8)
{
    static const char *const wrong[] = {"\xFF",         "a\x80",
                                        "\xC3",         "\xC3(",
                                        "\xC0\xAF",     "\xE0\x80\x80",
                                        "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                        "\xF0\x9F\x98", "\xF8\x88\x80\x80\x80"};
    static const char *const right[] = {"\x7F",         "\xC2\x80",     "\xE0\xA0\x80",
                                        "\xED\x9F\xBF", "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF"};
    shoal_safetensors_layout *layout = make_layout();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_STATUS(shoal_safetensors_layout_add(layout, wrong[i], NULL, 0, SHOAL_F32), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("is not UTF-8 at byte ");
        CHECK_STATUS(shoal_safetensors_layout_add_metadata(layout, wrong[i], ""), SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_safetensors_layout_add_metadata(layout, "k", wrong[i]), SHOAL_ERR_INVALID);
    }
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        CHECK_OK(shoal_safetensors_layout_add(layout, right[i], NULL, 0, SHOAL_F32));
    }
    shoal_safetensors_layout_free(layout);
}

TEST(refuses_wrong_metadata_and_calls)
{
    shoal_safetensors_layout *layout = make_layout();
    CHECK_STATUS(shoal_safetensors_layout_create(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_layout_add_metadata(NULL, "k", "v"), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_layout_add_metadata(layout, NULL, "v"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_layout_add_metadata: key is NULL");
    CHECK_STATUS(shoal_safetensors_layout_add_metadata(layout, "k", NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_safetensors_layout_add_metadata(layout, "k", "v"));
    CHECK_STATUS(shoal_safetensors_layout_add_metadata(layout, "k", "w"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("key: there is 'k' already");
    CHECK_OK(shoal_safetensors_layout_add(layout, "a", NULL, 0, SHOAL_F32));
    shoal_safetensors_layout_free(NULL);
    check_header(
        layout,
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}");
    shoal_safetensors_layout_free(layout);
}

TEST(sizes_that_are_too_large_together)
{
    shoal_safetensors_layout *layout = make_layout();
    CHECK_OK(shoal_safetensors_layout_add(layout, "a", NUMBERS(INT64_MAX / 2), 1, SHOAL_U8));
    CHECK_OK(safetensors_layout_arrange(layout));
    CHECK_OK(shoal_safetensors_layout_add(layout, "b", NUMBERS(INT64_MAX / 2), 1, SHOAL_U8));
    CHECK_STATUS(safetensors_layout_arrange(layout), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensor 'b': with it the file has more bytes than 63 bits can count");
    shoal_safetensors_layout_free(layout);
}

/* The last bytes that fit, and then five characters that need six bytes each. */
TEST(a_header_that_is_too_long)
{
    shoal_safetensors_layout *layout = make_layout();
    const size_t length = SAFETENSORS_MAX_HEADER_BYTES - 30;
    char *value = malloc(length + 1);
    REQUIRE(value);
    memset(value, 'x', length);
    value[length] = '\0';
    CHECK_OK(shoal_safetensors_layout_add_metadata(layout, "k", value));
    CHECK_OK(safetensors_layout_arrange(layout));
    CHECK(layout->file_bytes > SAFETENSORS_MAX_HEADER_BYTES - 30 && layout->file_bytes % 8 == 0);
    CHECK_OK(shoal_safetensors_layout_add_metadata(layout, "l", "\x01\x01\x01\x01\x01"));
    CHECK_STATUS(safetensors_layout_arrange(layout), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("more than the 100000000 that are allowed");
    free(value);
    shoal_safetensors_layout_free(layout);
}

/* Memory ----------------------------------------------------------------------------------------------- */

static shoal_status build(shoal_safetensors_layout *layout)
{
    for (int i = 0; i < 20; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "t%d", i);
        shoal_status status = shoal_safetensors_layout_add(layout, name, NUMBERS(i), 1, SHOAL_F32);
        status = status == SHOAL_OK ? shoal_safetensors_layout_add_metadata(layout, name, "value") : status;
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return safetensors_layout_arrange(layout);
}

static shoal_status make_and_build(void *context)
{
    shoal_safetensors_layout *layout;
    (void)context;
    shoal_status status = shoal_safetensors_layout_create(&layout);
    if (status == SHOAL_OK) {
        status = build(layout);
        shoal_safetensors_layout_free(layout);
    }
    return status;
}

TEST(survives_failing_allocations)
{
    CHECK(test_sweep_allocations(make_and_build, NULL) >= 60);
}
