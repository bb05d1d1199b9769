/* SPDX-License-Identifier: MIT */
/*
 * The reader of safetensors files: what good files give, and that every way to be wrong is refused with words that
 * say what was wrong.
 */
#include "shoal/safetensors.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixtures/safetensors_image.h"
#include "harness/test.h"
#include "shoal/scope.h"

#define TENSOR(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

/* Two tensors and a line about them; what most tests start from. The F32 is at an odd place. */
static const char small_header[] = "{\"__metadata__\":{\"case\":\"{\\\"n\\\":1}\",\"empty\":\"\"}," TENSOR(
    "flags", "BOOL", "[3]", 0, 3) "," TENSOR("w", "F32", "[2,2]", 3, 19) "}  ";
static const unsigned char small_data[19] = {1, 0, 1, 0, 0,    0x80, 0x3F, 0, 0,   0,
                                             0, 0, 0, 0, 0xBF, 0,    0,    0, 0x40};
static const float small_w[4] = {1.0F, 0.0F, -0.5F, 2.0F};

static struct image small_image(void)
{
    return image_make(small_header, small_data, sizeof small_data);
}

/* A file of the test's own; `path` has room for PATH_BYTES. */
#define PATH_BYTES 64
static bool write_file(const struct image *image, char *path)
{
    (void)snprintf(path, PATH_BYTES, "/tmp/shoal_safetensors_XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0) {
        return false;
    }
    bool is_written = write(fd, image->bytes, image->n_bytes) == (ssize_t)image->n_bytes;
    return close(fd) == 0 && is_written;
}

/* Good files ------------------------------------------------------------------------------------------- */

/* NULL for a number that is no tensor's. */
static const char *name_at(const shoal_safetensors *file, int64_t index)
{
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    return shoal_safetensors_get(file, index, &info) == SHOAL_OK ? info.name : NULL;
}

static void check_small(shoal_safetensors *file)
{
    CHECK_INT(shoal_safetensors_count(file), 2);
    CHECK_STRING(name_at(file, 0), "flags");
    CHECK_STRING(name_at(file, 1), "w");
    CHECK_INT(shoal_safetensors_find(file, "w"), 1);
    CHECK_INT(shoal_safetensors_find(file, "flags"), 0);
    CHECK_INT(shoal_safetensors_find(file, "__metadata__"), -1);
    CHECK_INT(shoal_safetensors_find(file, ""), -1);
    CHECK_STRING(shoal_safetensors_metadata(file, "case"), "{\"n\":1}");
    CHECK_STRING(shoal_safetensors_metadata(file, "empty"), "");
    CHECK(!shoal_safetensors_metadata(file, "other"));

    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    REQUIRE_OK(shoal_safetensors_get(file, 1, &info));
    CHECK_STRING(info.name, "w");
    CHECK_INT(info.dtype, SHOAL_F32);
    CHECK_INT(info.bytes, 16);
    CHECK_INT(info.n_dims, 2);
    CHECK(info.shape[0] == 2 && info.shape[1] == 2);
    float values[4];
    REQUIRE_OK(shoal_safetensors_read_range(file, 1, 0, values, sizeof values));
    CHECK_BYTES(values, small_w, sizeof small_w);
}

/* The tensors are copies: they outlive the file. */
static void check_small_tensors(shoal_safetensors *file)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *flags = shoal_safetensors_tensor(file, 0);
    shoal_tensor *w = shoal_safetensors_tensor(file, 1);
    shoal_safetensors_close(file);
    REQUIRE_OK(shoal_scope_error());
    CHECK_INT(shoal_tensor_dtype(flags), SHOAL_BOOL);
    CHECK_BYTES(shoal_data(flags), "\1\0\1", 3);
    CHECK_INT(shoal_tensor_dtype(w), SHOAL_F32);
    CHECK_INT(shoal_tensor_n_dims(w), 2);
    CHECK_STRING(shoal_tensor_name(w), "w");
    CHECK_BYTES(shoal_data(w), small_w, sizeof small_w);
    CHECK_INT((uintptr_t)shoal_data(w) % sizeof(float), 0);
    CHECK_OK(shoal_scope_end());
}

TEST(reads_a_file_in_memory)
{
    struct image image = small_image();
    shoal_safetensors *file;
    REQUIRE_OK(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file));
    check_small(file);
    check_small_tensors(file);
    image_free(&image);
}

TEST(reads_a_file)
{
    struct image image = small_image();
    char path[PATH_BYTES];
    shoal_safetensors *file;
    REQUIRE(write_file(&image, path));
    REQUIRE_OK(shoal_safetensors_open(path, &file));
    CHECK_INT(unlink(path), 0);
    check_small(file);
    check_small_tensors(file);
    image_free(&image);
}

TEST(knows_every_dtype_of_ours_that_the_format_has)
{
    static const struct {
        const char *name;
        shoal_dtype dtype;
    } rows[] = {{"F64", SHOAL_F64}, {"F32", SHOAL_F32},  {"F16", SHOAL_F16}, {"BF16", SHOAL_BF16},
                {"I64", SHOAL_I64}, {"I32", SHOAL_I32},  {"I16", SHOAL_I16}, {"I8", SHOAL_I8},
                {"U64", SHOAL_U64}, {"U32", SHOAL_U32},  {"U16", SHOAL_U16}, {"U8", SHOAL_U8},
                {"C64", SHOAL_C64}, {"BOOL", SHOAL_BOOL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char header[128];
        unsigned char data[16] = {0};
        size_t bytes = 2 * shoal_dtype_bytes(rows[i].dtype);
        (void)snprintf(header, sizeof header,
                       "{\"a\":{\"data_offsets\":[0,%zu],\"shape\":[1,2],\"dtype\":\"%s\"}}", bytes,
                       rows[i].name);
        struct image image = image_make(header, data, bytes);
        shoal_safetensors *file;
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        REQUIRE_OK(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file));
        CHECK_OK(shoal_safetensors_get(file, 0, &info));
        CHECK_INT(info.dtype, rows[i].dtype);
        CHECK_INT(info.bytes, bytes);
        shoal_safetensors_close(file);
        image_free(&image);
    }
}

TEST(tensors_are_in_the_order_of_their_data)
{
    const char header[] = "{" TENSOR("z", "U8", "[2]", 1, 3) "," TENSOR("y", "U8", "[0,7]", 3, 3) "," TENSOR(
        "b", "U8", "[0]", 1, 1) "," TENSOR("a", "U8", "[3,0]", 1, 1) "," TENSOR("q", "U8", "[]", 0, 1) "}";
    const char *const order[] = {"q", "a", "b", "z", "y"};
    struct image image = image_make(header, "\1\2\3", 3);
    shoal_safetensors *file;
    REQUIRE_OK(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file));
    REQUIRE(shoal_safetensors_count(file) == 5);
    for (int i = 0; i < 5; i++) {
        CHECK_STRING(name_at(file, i), order[i]);
        CHECK_INT(shoal_safetensors_find(file, order[i]), i);
    }
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *scalar = shoal_safetensors_tensor(file, 0);
    CHECK_INT(shoal_tensor_n_dims(scalar), 0);
    CHECK_INT(shoal_tensor_count(scalar), 1);
    shoal_tensor *empty = shoal_safetensors_tensor(file, 4);
    CHECK_INT(shoal_tensor_count(empty), 0);
    CHECK_INT(shoal_tensor_n_dims(empty), 2);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_safetensors_read_range(file, 4, 0, NULL, 0));
    shoal_safetensors_close(file);
    image_free(&image);
}

TEST(odd_but_allowed)
{
    static const char *const headers[] = {
        "{}",
        "{}      ",
        "{ \n\t}",
        "{\"__metadata__\":{}}",
        "{\"__metadata__\":{\"__metadata__\":\"x\"}}",
        "{" TENSOR("", "F32", "[0]", 0, 0) "}",
        "{" TENSOR("a.b/c \\u00e9\\n\\\"", "F32", "[0]", 0, 0) "}",
        "{" TENSOR("\xC3\xA9", "F32", "[9223372036854775807,0]", 0, 0) "}",
        "{" TENSOR("eight", "F32", "[1,1,1,1,1,1,1,0]", 0, 0) "}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        struct image image = image_make(headers[i], NULL, 0);
        shoal_safetensors *file;
        if (!CHECK_OK(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file))) {
            test_failed(__FILE__, __LINE__, "%s", headers[i]);
        } else {
            shoal_safetensors_close(file);
        }
        image_free(&image);
    }
}

TEST(finds_each_of_many)
{
    enum {
        N = 3000,
        ROW_BYTES = 64
    };
    char *header = malloc(N * ROW_BYTES);
    unsigned char *data = malloc(N);
    REQUIRE(header && data);
    size_t length = 0;
    for (int i = 0; i < N; i++) {
        int place = (i * 7) % N;
        length += (size_t)snprintf(header + length, ROW_BYTES,
                                   "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                                   i ? "," : "{", i, place, place + 1);
        data[place] = (unsigned char)i;
    }
    length += (size_t)snprintf(header + length, ROW_BYTES, "}");
    struct image image = image_make_sized(header, length, data, N);
    shoal_safetensors *file;
    REQUIRE_OK(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file));
    for (int i = 0; i < N && !test_has_failed(); i++) {
        char name[16];
        unsigned char byte;
        (void)snprintf(name, sizeof name, "t%d", i);
        CHECK_OK(shoal_safetensors_read_range(file, shoal_safetensors_find(file, name), 0, &byte, 1));
        CHECK_INT(byte, (unsigned char)i);
    }
    shoal_safetensors_close(file);
    image_free(&image);
    free(header);
    free(data);
}

/* Bad files -------------------------------------------------------------------------------------------- */

struct bad {
    const char *header;
    size_t data_bytes;
    shoal_status status;
    const char *words;
};

#define OTHER(members) "{\"a\":{" members "}}"
#define DTYPE_F32 "\"dtype\":\"F32\""
#define SHAPE_1 "\"shape\":[1]"
#define OFFSETS_4 "\"data_offsets\":[0,4]"
#define INVALID SHOAL_ERR_INVALID
#define UNSUPPORTED SHOAL_ERR_UNSUPPORTED

static const struct bad bad_headers[] = {
    /* What is around the object. */
    {"", 0, INVALID, "header of 0 bytes does not begin with '{'"},
    {" {}", 0, INVALID, "does not begin with '{'"},
    {"[]", 0, INVALID, "does not begin with '{'"},
    {"\xEF\xBB\xBF{}", 0, INVALID, "does not begin with '{'"},
    {"{}\n", 0, INVALID, "does not end in '}' and spaces"},
    {"{}x", 0, INVALID, "does not end in '}' and spaces"},
    {"{", 0, INVALID, "does not end in '}'"},
    {"{} {}", 0, INVALID, "end of file expected"},
    {"{}}", 0, INVALID, "end of file expected"},
    /* JSON. */
    {"{\"a\":}", 0, INVALID, "at byte 6 of 6"},
    {"{'a':{}}", 0, INVALID, "string or '}' expected"},
    {"{" TENSOR("a", "F32", "[1]", 0, 4) ",}", 4, INVALID, "expected"},
    {"{\"a\xFF\":{}}", 0, INVALID, "unable to decode byte 0xff"},
    {"{\"\xC0\xAF\":{}}", 0, INVALID, "unable to decode byte 0xc0"},
    {"{\"\\ud800\":{}}", 0, INVALID, "invalid Unicode"},
    {"{\"\\u0000\":{}}", 0, INVALID, "NUL byte"},
    {"{\"a\nb\":{}}", 0, INVALID, "unexpected newline"},
    {"{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("a", "F32", "[1]", 0, 4) "}", 4, INVALID, "duplicate"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, INVALID, "duplicate"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, INVALID, "duplicate"},
    {OTHER(DTYPE_F32 "," DTYPE_F32 "," SHAPE_1 "," OFFSETS_4), 4, INVALID, "duplicate"},
    /* Metadata. */
    {"{\"__metadata__\":[]}", 0, INVALID, "__metadata__ is an array, not an object"},
    {"{\"__metadata__\":null}", 0, INVALID, "__metadata__ is null, not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, INVALID, "__metadata__: 'k' is a number, not a string"},
    {"{\"__metadata__\":{\"k\":{}}}", 0, INVALID, "__metadata__: 'k' is an object, not a string"},
    /* Members. */
    {"{\"a\":1}", 0, INVALID, "tensor 'a': is a number, not an object"},
    {OTHER(""), 0, INVALID, "tensor 'a': has no dtype"},
    {OTHER(SHAPE_1 "," OFFSETS_4), 4, INVALID, "tensor 'a': has no dtype"},
    {OTHER(DTYPE_F32 "," OFFSETS_4), 4, INVALID, "tensor 'a': has no shape"},
    {OTHER(DTYPE_F32 "," SHAPE_1), 4, INVALID, "tensor 'a': has no data_offsets"},
    {OTHER(DTYPE_F32 "," SHAPE_1 "," OFFSETS_4 ",\"strides\":[1]"), 4, INVALID,
     "tensor 'a': the key 'strides' is none of dtype, shape, data_offsets"},
    {OTHER("\"DTYPE\":\"F32\"," SHAPE_1 "," OFFSETS_4), 4, INVALID, "the key 'DTYPE'"},
    /* Dtype. */
    {OTHER("\"dtype\":1," SHAPE_1 "," OFFSETS_4), 4, INVALID, "tensor 'a': dtype is a number, not a string"},
    {"{" TENSOR("a", "F8_E8M0", "[4]", 0, 4) "}", 4, UNSUPPORTED,
     "tensor 'a': dtype 'F8_E8M0' is not supported"},
    {"{" TENSOR("a", "C128", "[1]", 0, 16) "}", 16, UNSUPPORTED, "'C128'"},
    {"{" TENSOR("a", "f32", "[1]", 0, 4) "}", 4, UNSUPPORTED, "'f32'"},
    {"{" TENSOR("a", "", "[1]", 0, 4) "}", 4, UNSUPPORTED, "''"},
    /* Shape. */
    {"{" TENSOR("a", "F32", "1", 0, 4) "}", 4, INVALID, "tensor 'a': shape is a number, not an array"},
    {"{" TENSOR("a", "F32", "[-1]", 0, 4) "}", 4, INVALID, "tensor 'a': shape[0] is -1, which is negative"},
    {"{" TENSOR("a", "F32", "[1,1.0]", 0, 4) "}", 4, INVALID, "shape[1] is a number with a fraction"},
    {"{" TENSOR("a", "F32", "[1e0]", 0, 4) "}", 4, INVALID,
     "shape[0] is a number with a fraction or exponent"},
    {"{" TENSOR("a", "F32", "[\"1\"]", 0, 4) "}", 4, INVALID, "shape[0] is a string, not an integer"},
    {"{" TENSOR("a", "F32", "[true]", 0, 4) "}", 4, INVALID, "shape[0] is true, not an integer"},
    {"{" TENSOR("a", "F32", "[9223372036854775808]", 0, 4) "}", 4, INVALID, "too big"},
    {"{" TENSOR("a", "F32", "[01]", 0, 4) "}", 4, INVALID, "JSON"},
    {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, UNSUPPORTED,
     "tensor 'a': shape: 9 dimensions are not within 0..8"},
    {"{" TENSOR("a", "U8", "[4294967296,4294967296]", 0, 0) "}", 0, INVALID, "tensor 'a'"},
    {"{" TENSOR("a", "F64", "[4611686018427387904]", 0, 0) "}", 0, INVALID, "more than 64 bits can count"},
    /* Offsets. */
    {OTHER(DTYPE_F32 "," SHAPE_1 ",\"data_offsets\":4"), 4, INVALID,
     "data_offsets is a number, not an array of 2"},
    {OTHER(DTYPE_F32 "," SHAPE_1 ",\"data_offsets\":[0]"), 4, INVALID,
     "of another length, not an array of 2"},
    {OTHER(DTYPE_F32 "," SHAPE_1 ",\"data_offsets\":[0,4,8]"), 4, INVALID, "not an array of 2"},
    {OTHER(DTYPE_F32 "," SHAPE_1 ",\"data_offsets\":[0,null]"), 4, INVALID, "data_offsets[1] is null"},
    {"{" TENSOR("a", "F32", "[1]", -4, 0) "}", 4, INVALID, "data_offsets[0] is -4, which is negative"},
    {"{" TENSOR("a", "F32", "[1]", 4, 0) "}", 4, INVALID,
     "tensor 'a': data_offsets [4, 0] end before they begin"},
    {"{" TENSOR("a", "F32", "[2,3]", 0, 20) "}", 20, INVALID,
     "tensor 'a': f32 [2, 3] has 24 bytes, data_offsets [0, 20] have 20"},
    {"{" TENSOR("a", "F32", "[0]", 0, 4) "}", 4, INVALID, "f32 [0] has 0 bytes, data_offsets [0, 4] have 4"},
    {"{" TENSOR("a", "F32", "[2]", 0, 8) "}", 4, INVALID,
     "tensor 'a': data_offsets [0, 8] are not within the 4 bytes of data"},
    {"{" TENSOR("a", "F32", "[0]", 9, 9) "}", 4, INVALID, "[9, 9] are not within the 4 bytes"},
    {"{" TENSOR("a", "F32", "[1]", 9223372036854775803, 9223372036854775807) "}", 4, INVALID, "not within"},
    /* All bytes, each once. */
    {"{}", 1, INVALID, "the tensors end at byte 0 of the data, which has 1"},
    {"{" TENSOR("a", "F32", "[1]", 0, 4) "}", 5, INVALID,
     "the tensors end at byte 4 of the data, which has 5"},
    {"{" TENSOR("a", "F32", "[1]", 1, 5) "}", 5, INVALID,
     "bytes 0 to 1 of the data, before tensor 'a', belong to no tensor"},
    {"{" TENSOR("b", "F32", "[1]", 8, 12) "," TENSOR("a", "F32", "[1]", 0, 4) "}", 12, INVALID,
     "bytes 4 to 8 of the data, before tensor 'b', belong to no tensor"},
    {"{" TENSOR("b", "F32", "[1]", 2, 6) "," TENSOR("a", "F32", "[1]", 0, 4) "}", 6, INVALID,
     "tensor 'b' begins at byte 2 of the data, inside tensor 'a', which ends at 4"},
    {"{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("b", "F32", "[1]", 0, 4) "}", 4, INVALID,
     "tensor 'b' begins at byte 0 of the data, inside tensor 'a'"},
    {"{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("b", "F32", "[0]", 2, 2) "}", 4, INVALID,
     "tensor 'b' begins at byte 2 of the data, inside tensor 'a'"},
    /* Names that would spoil the text. */
    {"{\"a\\nb\\u007f\":1}", 0, INVALID, "tensor 'a?b?': is a number"},
};

TEST(refuses_bad_headers)
{
    unsigned char data[32] = {0};
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        const struct bad *bad = &bad_headers[i];
        struct image image = image_make(bad->header, data, bad->data_bytes);
        shoal_safetensors *file = NULL;
        bool is_right =
            CHECK_STATUS(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file), bad->status);
        is_right = CHECK_ERROR_TEXT(bad->words) && is_right;
        is_right = CHECK_ERROR_TEXT("safetensors_open_memory: ") && is_right;
        if (!is_right || file) {
            test_failed(__FILE__, __LINE__, "row %zu: %s", i, bad->header);
        }
        image_free(&image);
    }
}

TEST(long_names_do_not_push_the_values_out_of_the_text)
{
    char header[2048] = "{\"";
    for (size_t i = 2; i < 1000; i += 2) {
        memcpy(header + i, "\xC3\xA9", 2);
    }
    (void)snprintf(header + 1000, sizeof header - 1000, "%s",
                   "\":{\"dtype\":\"F9\",\"shape\":[],\"data_offsets\":[0,0]}}");
    struct image image = image_make(header, NULL, 0);
    shoal_safetensors *file;
    CHECK_STATUS(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file), UNSUPPORTED);
    CHECK_ERROR_TEXT("\xC3\xA9...': dtype 'F9' is not supported");
    image_free(&image);
}

/* The length of the header against the limit and the file. */
TEST(refuses_bad_lengths)
{
    static const struct {
        uint64_t length;
        const char *words;
    } rows[] = {
        {3, "a header of 3 bytes does not fit the file of 10"},
        {100000000,
         "not a safetensors file, or damaged: a header of 100000000 bytes does not fit the file of 10"},
        {100000001, "not a safetensors file, or damaged: a header of 100000001 bytes is longer than the "
                    "100000000 allowed"},
        {UINT64_MAX, "a header of 18446744073709551615 bytes is longer"},
        {UINT64_MAX - 7, "is longer"},
        {0, "header of 0 bytes does not begin"},
        {1, "does not end in '}'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct image image = image_make("{}", NULL, 0);
        shoal_safetensors *file;
        image_set_length(image.bytes, rows[i].length);
        CHECK_STATUS(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(rows[i].words);
        image_free(&image);
    }
}

/* JSON nested so deep that a parser without a limit would run out of stack. */
TEST(refuses_deep_nesting)
{
    enum {
        DEPTH = 100000
    };
    char *header = malloc(5 + 2 * DEPTH + 1);
    REQUIRE(header);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    memset(header + 5 + DEPTH, ']', DEPTH);
    header[5 + 2 * DEPTH] = '}';
    struct image image = image_make_sized(header, 5 + 2 * DEPTH + 1, NULL, 0);
    shoal_safetensors *file;
    CHECK_STATUS(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("depth");
    image_free(&image);
    free(header);
}

TEST(refuses_every_shorter_and_longer_file)
{
    struct image whole = small_image();
    for (size_t n_bytes = 0; n_bytes <= whole.n_bytes + 1; n_bytes++) {
        if (n_bytes == whole.n_bytes) {
            continue;
        }
        struct image cut = {.bytes = malloc(n_bytes ? n_bytes : 1), .n_bytes = n_bytes};
        char path[PATH_BYTES];
        shoal_safetensors *file;
        REQUIRE(cut.bytes);
        memset(cut.bytes, 0, n_bytes);
        memcpy(cut.bytes, whole.bytes, n_bytes < whole.n_bytes ? n_bytes : whole.n_bytes);
        CHECK_STATUS(shoal_safetensors_open_memory(cut.bytes, n_bytes, &file), SHOAL_ERR_INVALID);
        REQUIRE(write_file(&cut, path));
        CHECK_STATUS(shoal_safetensors_open(path, &file), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(path);
        CHECK_INT(unlink(path), 0);
        image_free(&cut);
    }
    image_free(&whole);
}

TEST(a_file_that_becomes_shorter_is_an_error)
{
    struct image image = small_image();
    char path[PATH_BYTES];
    shoal_safetensors *file;
    float values[4];
    REQUIRE(write_file(&image, path));
    REQUIRE_OK(shoal_safetensors_open(path, &file));
    REQUIRE(truncate(path, (off_t)image.n_bytes - 1) == 0);
    CHECK_STATUS(shoal_safetensors_read_range(file, 1, 0, values, sizeof values), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("tensor 'w': the file ends at byte");
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_safetensors_tensor(file, 0) != NULL);
    CHECK(!shoal_safetensors_tensor(file, 1));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("it has become shorter");
    shoal_safetensors_close(file);
    CHECK_INT(unlink(path), 0);
    image_free(&image);
}

TEST(refuses_what_is_no_file)
{
    char path[PATH_BYTES] = "/tmp/shoal_safetensors_XXXXXX";
    shoal_safetensors *file;
    CHECK_STATUS(shoal_safetensors_open("/tmp", &file), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("/tmp: is not a regular file");
    REQUIRE(mkdtemp(path));
    char pipe_path[PATH_BYTES + 8];
    (void)snprintf(pipe_path, sizeof pipe_path, "%s/pipe", path);
    CHECK_STATUS(shoal_safetensors_open(pipe_path, &file), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("No such file");
    REQUIRE(mkfifo(pipe_path, 0600) == 0);
    CHECK_STATUS(shoal_safetensors_open(pipe_path, &file), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is not a regular file");
    CHECK_INT(unlink(pipe_path), 0);
    CHECK_INT(rmdir(path), 0);
}

/* Wrong calls ------------------------------------------------------------------------------------------ */

TEST(refuses_wrong_arguments)
{
    struct image image = small_image();
    shoal_safetensors *file;
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    CHECK_STATUS(shoal_safetensors_open(NULL, &file), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("path is NULL");
    CHECK_STATUS(shoal_safetensors_open("x", NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("file_out is NULL");
    CHECK_STATUS(shoal_safetensors_open_memory(NULL, 1, &file), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("data is NULL");
    CHECK_STATUS(shoal_safetensors_open_memory(NULL, 0, &file), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("0 bytes are less than the 8");
    CHECK_STATUS(shoal_safetensors_open_memory(image.bytes, image.n_bytes, NULL), SHOAL_ERR_INVALID);
    shoal_safetensors_close(NULL);
    CHECK_INT(shoal_safetensors_count(NULL), 0);
    CHECK_INT(shoal_safetensors_find(NULL, "w"), -1);
    CHECK(!name_at(NULL, 0));
    CHECK(!shoal_safetensors_metadata(NULL, "case"));
    CHECK_STATUS(shoal_safetensors_get(NULL, 0, &info), SHOAL_ERR_INVALID);

    REQUIRE_OK(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file));
    CHECK_INT(shoal_safetensors_find(file, NULL), -1);
    CHECK(!shoal_safetensors_metadata(file, NULL));
    CHECK(!name_at(file, 2));
    CHECK(!name_at(file, -1));
    CHECK_STATUS(shoal_safetensors_get(file, 2, &info), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_get: index: 2 is not within the 2 tensors");
    CHECK_STATUS(shoal_safetensors_get(file, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("info_out is NULL");
    info.struct_size = 0;
    CHECK_STATUS(shoal_safetensors_get(file, 0, &info), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_get: info_out: struct_size is 0");
    CHECK_STATUS(shoal_safetensors_read_range(file, 0, 0, NULL, 3), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("data_out is NULL");
    CHECK(!shoal_safetensors_tensor(file, 0));
    CHECK_ERROR_TEXT("scope");
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_safetensors_tensor(file, shoal_safetensors_find(file, "no")));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_tensor: index: -1");
    REQUIRE_OK(shoal_scope_begin());
    CHECK_STRING(shoal_tensor_name(shoal_safetensors_tensor_by_name(file, "flags")), "flags");
    CHECK(!shoal_safetensors_tensor_by_name(file, "flag"));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(
        "safetensors_tensor_by_name: there is no tensor 'flag' in the file; the nearest is \"flags\"");
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_safetensors_tensor_by_name(file, NULL));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_tensor_by_name: name is NULL");
    shoal_safetensors_close(file);
    image_free(&image);
}

TEST(a_boolean_is_0_or_1)
{
    struct image image = image_make("{" TENSOR("flags", "BOOL", "[2,2]", 0, 4) "}", "\1\0\2\0", 4);
    shoal_safetensors *file;
    unsigned char bytes[4];
    REQUIRE_OK(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file));
    CHECK_OK(shoal_safetensors_read_range(file, 0, 0, bytes, 4));
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_safetensors_tensor(file, 0));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("tensor 'flags': element 2 of bool is 2, neither 0 nor 1");
    shoal_safetensors_close(file);
    image_free(&image);
}

/* Memory ----------------------------------------------------------------------------------------------- */

static shoal_status read_everything(void *context)
{
    const char *path = context;
    shoal_safetensors *file;
    shoal_status status = shoal_safetensors_open(path, &file);
    if (status != SHOAL_OK) {
        return status;
    }
    status = shoal_scope_begin();
    if (status == SHOAL_OK) {
        (void)shoal_safetensors_tensor(file, 0);
        (void)shoal_safetensors_tensor(file, 1);
        status = shoal_scope_end();
    }
    shoal_safetensors_close(file);
    return status;
}

TEST(survives_failing_allocations)
{
    struct image image = small_image();
    char path[PATH_BYTES];
    REQUIRE(write_file(&image, path));
    CHECK(test_sweep_allocations(read_everything, path) >= 8);
    CHECK_INT(unlink(path), 0);
    image_free(&image);
}

/* A program that was compiled when the struct ended after its dtype gets that much, and nothing behind it changes. */
TEST(older_info)
{
    struct image image = small_image();
    shoal_safetensors *file;
    shoal_safetensors_info info;
    memset(&info, 0x5a, sizeof info);
    shoal_safetensors_info untouched = info;
    info.struct_size = offsetof(shoal_safetensors_info, n_dims);
    REQUIRE_OK(shoal_safetensors_open_memory(image.bytes, image.n_bytes, &file));
    CHECK_OK(shoal_safetensors_get(file, 1, &info));
    CHECK_INT(info.struct_size, offsetof(shoal_safetensors_info, n_dims));
    CHECK_STRING(info.name, "w");
    CHECK_INT(info.dtype, SHOAL_F32);
    CHECK(info.n_dims == untouched.n_dims && info.shape == untouched.shape && info.bytes == untouched.bytes);
    shoal_safetensors_close(file);
    image_free(&image);
}
