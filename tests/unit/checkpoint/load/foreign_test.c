/* SPDX-License-Identifier: MIT */
/* Checkpoints of other tools: weight_map and files, and what is wrong with them. */
#include "checkpoint/load/foreign.h"

#include <string.h>

#include "fixtures/safetensors_image.h"
#include "fixtures/scratch.h"
#include "harness/test.h"

#define ONE "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"

/* A file with one tensor, of two elements. */
static void write_one(const struct scratch *scratch, const char *file, const char *name)
{
    const float values[] = {1, 2};
    char header[160];
    (void)snprintf(header, sizeof header, ONE, name);
    struct image image = image_make(header, values, sizeof values);
    CHECK(scratch_write(scratch_file(scratch, file), image.bytes, image.n_bytes));
    image_free(&image);
}

TEST(one_file_alone)
{
    struct scratch scratch = scratch_make();
    struct checkpoint_index index;
    write_one(&scratch, "model.safetensors", "a");
    REQUIRE_OK(load_foreign_read(scratch.path, NULL, 0, &index));
    CHECK_INT(index.n_tensors, 1);
    CHECK_INT(index.n_files, 1);
    CHECK_STRING(index.tensors[0].name, "a");
    CHECK_STRING(index.tensors[0].section, "model");
    CHECK_INT(index.tensors[0].pieces[0].region.length[0], 2);
    CHECK_INT(index.tensors[0].pieces[0].at + 8, index.files[0].bytes);
    load_foreign_free(&index);
    scratch_remove(&scratch);
}

TEST(several_files_with_a_map)
{
    struct scratch scratch = scratch_make();
    struct checkpoint_index index;
    const char *text =
        "{\"metadata\":{\"total_size\":24},\"weight_map\":{\"c\":\"2\",\"a\":\"1\",\"b\":\"3\"}}";
    write_one(&scratch, "1", "a");
    write_one(&scratch, "2", "c");
    write_one(&scratch, "3", "b");
    REQUIRE_OK(load_foreign_read(scratch.path, text, strlen(text), &index));
    REQUIRE(index.n_tensors == 3);
    CHECK_INT(index.n_files, 3);
    for (size_t i = 0; i < 3; i++) {
        CHECK_INT(index.tensors[i].pieces[0].file, i);
    }
    CHECK_STRING(index.tensors[1].name, "c");
    load_foreign_free(&index);
    scratch_remove(&scratch);
}

TEST(maps_that_are_wrong)
{
    static const struct {
        const char *text;
        const char *words;
    } rows[] = {
        {"", "is not valid JSON"},
        {"{\"weight_map\":{\"a\":\"1\"}", "is not valid JSON"},
        {"[]", "has no object \"weight_map\""},
        {"{\"weight_map\":[]}", "has no object \"weight_map\""},
        {"{\"weight_map\":{\"a\":1}}", "the file of tensor 'a' is not a string"},
        {"{\"weight_map\":{\"a\":\"1\",\"a\":\"1\"}}", "duplicate"},
        {"{\"weight_map\":{\"a\":\"../1\"}}", "tensor 'a' is in '../1', which is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"\"}}", "is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "is not the name of a file"},
        {"{\"weight_map\":{\"a\":\"2\"}}", "No such file"},
        {"{\"weight_map\":{\"b\":\"1\"}}", "1: has no tensor 'b'"},
        {"{\"weight_map\":{\"a\":\"short\"}}", "short: not a safetensors file"},
    };
    struct scratch scratch = scratch_make();
    struct checkpoint_index index;
    write_one(&scratch, "1", "a");
    CHECK(scratch_write(scratch_file(&scratch, "short"), "abc", 3));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK(load_foreign_read(scratch.path, rows[i].text, strlen(rows[i].text), &index) != SHOAL_OK);
        CHECK_ERROR_TEXT(rows[i].words);
    }
    CHECK(load_foreign_read(scratch.path, NULL, 0, &index) != SHOAL_OK);
    CHECK_ERROR_TEXT("model.safetensors");
    scratch_remove(&scratch);
}

static shoal_status read_once(void *context)
{
    struct checkpoint_index index;
    const char *text = "{\"weight_map\":{\"c\":\"2\",\"a\":\"1\"}}";
    shoal_status status = load_foreign_read(context, text, strlen(text), &index);
    if (status == SHOAL_OK) {
        load_foreign_free(&index);
    }
    return status;
}

TEST(allocations_that_fail)
{
    struct scratch scratch = scratch_make();
    write_one(&scratch, "1", "a");
    write_one(&scratch, "2", "c");
    CHECK(test_sweep_allocations(read_once, scratch.path) > 0);
    scratch_remove(&scratch);
}
