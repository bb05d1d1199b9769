/* SPDX-License-Identifier: MIT */
/* Indices of checkpoints: what is written is read, and nothing else is believed. */
#include "checkpoint/index/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fixtures/index_sample.h"
#include "harness/test.h"

/* Round trips ----------------------------------------------------------------------------------------------- */

static void check_tensor(const struct index_tensor *tensor, const struct index_tensor *expected)
{
    CHECK_STRING(tensor->section, expected->section);
    CHECK_STRING(tensor->name, expected->name);
    CHECK_INT(tensor->dtype, expected->dtype);
    REQUIRE(CHECK_INT(tensor->n_dims, expected->n_dims));
    for (int i = 0; i < tensor->n_dims; i++) {
        CHECK_INT(tensor->shape[i], expected->shape[i]);
    }
    REQUIRE(CHECK_INT(tensor->n_aliases, expected->n_aliases));
    for (size_t i = 0; i < tensor->n_aliases; i++) {
        CHECK_STRING(tensor->aliases[i], expected->aliases[i]);
    }
    REQUIRE(CHECK_INT(tensor->n_pieces, expected->n_pieces));
    for (size_t i = 0; i < tensor->n_pieces; i++) {
        CHECK_INT(tensor->pieces[i].file, expected->pieces[i].file);
        CHECK_INT(tensor->pieces[i].at, expected->pieces[i].at);
        CHECK(region_equals(&tensor->pieces[i].region, &expected->pieces[i].region, tensor->n_dims));
    }
}

static void check_value(const struct index_value *value, const struct index_value *expected)
{
    CHECK_STRING(value->name, expected->name);
    REQUIRE(CHECK_INT(value->kind, expected->kind));
    CHECK_INT(value->integer, expected->integer);
    CHECK_DOUBLE(value->real, expected->real);
    if (value->kind == ITEM_STRING) {
        CHECK_STRING(value->string, expected->string);
    }
}

static void check_file(const struct index_file *file, const struct index_file *expected)
{
    CHECK_STRING(file->name, expected->name);
    CHECK_INT(file->bytes, expected->bytes);
    REQUIRE(CHECK_INT(file->n_runs, expected->n_runs));
    for (size_t i = 0; i < file->n_runs; i++) {
        CHECK_INT(file->runs[i].at, expected->runs[i].at);
        REQUIRE(CHECK_INT(file->runs[i].bytes, expected->runs[i].bytes));
        CHECK_BYTES(file->runs[i].sums, expected->runs[i].sums,
                    (size_t)checksum_n_blocks(file->runs[i].bytes) * sizeof(uint64_t));
    }
}

/* Sections come by name, and values by kind. */
TEST(what_is_written_is_read)
{
    static const size_t tensor_order[] = {0, 2, 3, 1};
    static const size_t value_order[] = {0, 3, 1, 2, 4};
    struct checkpoint_index sample = index_sample();
    struct checkpoint_index index;
    char *text;
    size_t bytes;
    REQUIRE_OK(index_write(&sample, &text, &bytes));
    REQUIRE_OK(index_read(text, bytes, &index));
    CHECK_STRING(index.id, sample.id);
    CHECK_INT(index.step, 1000);
    CHECK_INT(index.format, SHOAL_CHECKPOINT_PIECES);
    CHECK_BYTES(&index.progress, &sample.progress, sizeof index.progress);
    if (CHECK_INT(index.n_tensors, 4)) {
        for (size_t i = 0; i < 4; i++) {
            check_tensor(&index.tensors[i], &sample.tensors[tensor_order[i]]);
        }
    }
    if (CHECK_INT(index.n_values, 5)) {
        for (size_t i = 0; i < 5; i++) {
            check_value(&index.values[i], &sample.values[value_order[i]]);
        }
    }
    if (CHECK_INT(index.n_files, 2)) {
        check_file(&index.files[0], &sample.files[0]);
        check_file(&index.files[1], &sample.files[1]);
    }
    /* What was read is written as the same text. */
    char *again;
    size_t again_bytes;
    if (CHECK_OK(index_write(&index, &again, &again_bytes))) {
        CHECK(CHECK_INT(again_bytes, bytes) && CHECK_BYTES(again, text, bytes));
        mem_free(again);
    }
    index_free(&index);
    index_free(&index);
    mem_free(text);
}

TEST(tensors_are_found_by_names_and_aliases)
{
    struct checkpoint_index sample = index_sample();
    struct checkpoint_index index;
    char *text;
    size_t bytes;
    REQUIRE_OK(index_write(&sample, &text, &bytes));
    REQUIRE_OK(index_read(text, bytes, &index));
    CHECK(index_find(&index, "model", "grid") == &index.tensors[0]);
    CHECK(index_find(&index, "model", "head.weight") == &index.tensors[0]);
    CHECK(index_find(&index, "model", index_sample_aliases[1]) == &index.tensors[0]);
    CHECK(index_find(&index, "optimizer", "grid") == &index.tensors[3]);
    CHECK(index_find(&index, "model", "") == &index.tensors[2]);
    CHECK(!index_find(&index, "optimizer", "head.weight"));
    CHECK(!index_find(&index, "other", "grid"));
    CHECK(!index_find(&index, "model", "gri"));
    index_free(&index);
    CHECK(!index_find(&index, "model", "grid"));
    mem_free(text);
}

TEST(an_index_of_nothing)
{
    struct checkpoint_index empty = {.id = "00000000000000000000000000000000",
                                     .format = SHOAL_CHECKPOINT_WHOLE};
    struct checkpoint_index index;
    char *text;
    size_t bytes;
    REQUIRE_OK(index_write(&empty, &text, &bytes));
    REQUIRE_OK(index_read(text, bytes, &index));
    CHECK_INT(index.format, SHOAL_CHECKPOINT_WHOLE);
    CHECK(index.n_tensors == 0 && index.n_values == 0 && index.n_files == 0);
    CHECK(!index_find(&index, "model", "grid"));
    index_free(&index);
    mem_free(text);
}

TEST(what_cannot_be_written)
{
    struct checkpoint_index sample = index_sample();
    struct index_tensor tensor = index_sample_tensors[2];
    struct index_file file = index_sample_files[0];
    char *text;
    size_t bytes;
    sample.tensors = &tensor;
    sample.n_tensors = 1;
    tensor.dtype = SHOAL_C128;
    CHECK_STATUS(index_write(&sample, &text, &bytes), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("'scalar'");
    tensor = index_sample_tensors[2];
    tensor.name = "a\xff";
    CHECK_STATUS(index_write(&sample, &text, &bytes), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("not UTF-8");
    tensor = index_sample_tensors[2];
    tensor.section = "a b";
    CHECK_STATUS(index_write(&sample, &text, &bytes), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("section 'a b'");
    tensor = index_sample_tensors[2];
    sample.files = &file;
    file.name = "../a";
    CHECK_STATUS(index_write(&sample, &text, &bytes), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("'../a'");
}

/* What is not believed -------------------------------------------------------------------------------------- */

struct change {
    const char *from;
    const char *to;
    const char *words; /* of the error; NULL: it is read */
};

static void check_changes(const struct checkpoint_index *sample, const struct change *changes,
                          size_t n_changes)
{
    char *text;
    size_t bytes;
    REQUIRE_OK(index_write(sample, &text, &bytes));
    for (size_t i = 0; i < n_changes; i++) {
        struct checkpoint_index index = {0};
        size_t changed_bytes;
        char *changed = index_sample_change(text, bytes, changes[i].from, changes[i].to, &changed_bytes);
        if (!changed) {
            test_failed(__FILE__, __LINE__, "'%s' is not in the text", changes[i].from);
            continue;
        }
        shoal_status status = index_read(changed, changed_bytes, &index);
        bool is_right = test_check_status(__FILE__, __LINE__, changes[i].to, status,
                                          changes[i].words ? SHOAL_ERR_INVALID : SHOAL_OK);
        if (is_right && changes[i].words) {
            CHECK_ERROR_TEXT(changes[i].words);
        }
        index_free(&index);
        free(changed);
    }
    mem_free(text);
}
#define CHECK_CHANGES(sample, changes) \
    check_changes((sample), (changes), sizeof(changes) / sizeof((changes)[0]))

TEST(keys_and_types)
{
    static const struct change changes[] = {
        {"\"id\"", "\"x-more\": [{}], \"id\"", NULL},
        {"\"dtype\"", "\"x-\": 1, \"dtype\"", NULL},
        {"\"id\"", "\"more\": 1, \"id\"", "version 1 has no key 'more'"},
        {"\"file\"", "\"more\": 1, \"file\"", "'grid': pieces: number 0: version 1 has no key 'more'"},
        {"\"sums\"", "\"more\": 1, \"sums\"", "files: number 0: runs: number 0: version 1 has no key 'more'"},
        {"\"id\"", "\"step\": 1000, \"id\"", "not valid JSON"},
        {"\"scalar\"", "\"grid\"", "not valid JSON"},
        {"\"seed\"", "\"epoch\"", "not valid JSON"},
        {"\"shoal\"", "\"shoa\"", "this is not the index of a checkpoint"},
        {"\"format\": \"shoal\"", "\"format\": 1", "this is not the index of a checkpoint"},
        {"\"version\": 1", "\"version\": 0", "version: 0 is not within"},
        {"\"version\": 1", "\"version\": 1.0", "version: is a number with a fraction"},
        {"\"version\": 1, ", "", "version: is missing"},
        {"\"step\": 1000", "\"step\": -1", "step: -1 is not within"},
        {"\"step\": 1000", "\"step\": 9223372036854775808", "too big"},
        {"\"step\": 1000", "\"step\": 1e3", "step: is a number with a fraction"},
        {"\"step\": 1000, ", "", "step: is missing"},
        {"\"pieces\"", "\"parts\"", "layout: there is no layout 'parts'"},
        {"\"batch\": 8", "\"batch\": -8", "progress: batch: -8"},
        {"\"batch\": 8, ", "", "progress: batch: is missing"},
        {"\"sections\": {", "\"sections\": {\"a/b\": {}, ", "section 'a/b'"},
        {"\"sections\": {", "\"sections\": {\"\": {}, ", "section ''"},
        {"\"sections\": {", "\"sections\": {\"a\": [], ", "sections: is an array, not an object of objects"},
        {"\"sections\": {", "\"sections\": {\"a-B_0.z\": {}, ", NULL},
        {"0123456789abcdef0", "0123456789abcdeF0", "id: '0123456789abcdeF0"},
        {"0123456789abcdef0", "0123456789abcdef", "id: '0123456789abcdef1234"},
        {"0123456789abcdef0", "0123456789abcdef00", "32 lower-case"},
        {"\"scalar\": {", "\"scalar\": [], \"y\": {", "section 'model': tensor 'scalar': is an array"},
    };
    struct checkpoint_index sample = index_sample();
    CHECK_CHANGES(&sample, changes);
}

TEST(tensors)
{
    static const struct change changes[] = {
        {"\"F32\"", "\"F8\"", "tensor 'grid': dtype: there is no dtype 'F8'"},
        {"\"F32\"", "7", "dtype: is a number, not a string"},
        {"[6, 4]", "[6, -4]", "shape: number 1: -4 is not within"},
        {"[6, 4]", "[6, 4, 1, 1, 1, 1, 1, 1, 1]", "shape: 9 dimensions are not within 0..8"},
        {"[6, 4]", "[3037000500, 3037000500]", "more elements than fit"},
        {"[6, 4]", "[2305843009213693952]", "the bytes of f32"},
        {"[6, 4]", "[6, 5]", "element [0, 4] of 30 is in 0 pieces instead of one"},
        {"[6, 4]", "[5, 4]", "4 indices from 2 on are not within the 5 of dimension 0"},
        {"[6, 4]", "[24]", "begin: 2 dimensions are not within 1..1"},
        {"\"begin\": [0, 0]", "\"begin\": [1, 0]", "element [0, 0] of 24 is in 0 pieces"},
        {"\"begin\": [0, 0]", "\"begin\": [9223372036854775807, 0]", "2 indices from 9223372036854775807 on"},
        {"\"length\": [2, 2]", "\"length\": [3, 2]", "element [2, 0] of 24 is in 2 pieces"},
        {"\"length\": [2, 2]", "\"length\": [0, 2]", "0 indices from 0 on"},
        {"\"length\": [2, 2]", "\"length\": [9223372036854775807, 2]", "not within the 6 of dimension 0"},
        {"\"file\": 0", "\"file\": 2", "file: 2 is not within 0..1"},
        {"\"file\": 0", "\"file\": -1", "file: -1 is not within 0..1"},
        {"\"at\": 512", "\"at\": 4090",
         "16 bytes from 4090 on are not within the 4096 of file 'pieces-00001"},
        {"\"at\": 512", "\"at\": 9223372036854775807", "are not within the 4096"},
        {"\"at\": 512", "\"at\": 527", "pieces of tensors 'grid' and 'grid' share byte 528 of file"},
        {"\"at\": 4088", "\"at\": 559", "pieces of tensors 'grid' and 'scalar' share byte 559"},
        {"\"at\": 4088", "\"at\": 560", NULL},
        {"\"pieces\": []",
         "\"pieces\": [{\"file\": 0, \"at\": 0, \"begin\": [0, 0, 0], \"length\": [4, 0, 5]}]",
         "0 indices from 0 on"},
        {"[4, 0, 5]", "[4, 1, 5]", "it has 20 elements and no pieces"},
        {"[4, 0, 5]", "[4611686018427387904, 0, 4611686018427387904]", NULL},
        {"\"head.weight\"", "\"scalar\"",
         "section 'model': 'scalar' is a name or alias of both 'scalar' and 'grid'"},
        {"\"head.weight\"", "\"grid\"", "'grid' is a name or alias of both 'grid' and 'grid'"},
        {"\"head.weight\"", "5", "aliases: number 0: is a number, not a string"},
        {"[\"head.weight\"", "[\"a\", \"a\"", "'a' is a name or alias of both"},
    };
    struct checkpoint_index sample = index_sample();
    CHECK_CHANGES(&sample, changes);
}

TEST(files_and_values)
{
    static const struct change changes[] = {
        {"pieces-00001-of-00002", "pieces-00002-of-00002", "two files have the name"},
        {"pieces-00001-of-00002", "a/b", "name: 'a/b.safetensors' is not the name of a file"},
        {"pieces-00001-of-00002.safetensors", "", "name: '' is not the name"},
        {"pieces-00001-of-00002.safetensors", "..", "name: '..' is not the name"},
        {"pieces-00001-of-00002.safetensors", ".", "name: '.' is not the name"},
        {"pieces-00001-of-00002.safetensors", "shoal.index.json", "the name of the index itself"},
        {"\"bytes\": 4096", "\"bytes\": 4097", "the runs end at byte 4096 of 4097"},
        {"\"bytes\": 4096", "\"bytes\": 4095", "584 bytes from 3512 on is empty or not within the 4095"},
        {"\"bytes\": 512", "\"bytes\": 513", "a run begins at byte 512, but those before it end at 513"},
        {"\"bytes\": 512", "\"bytes\": 9223372036854775807",
         "1 checksums are given for 8796093022208 blocks"},
        {"{\"at\": 0, \"bytes\": 512", "{\"at\": 1, \"bytes\": 512", "a run begins at byte 1"},
        {"\"runs\": [", "\"runs\": [{\"at\": 0, \"bytes\": 0, \"sums\": []}, ", "a run "},
        {"[\"0000000000000001\"]", "[]", "sums: 0 checksums are given for 1 blocks in 512 bytes"},
        {"[\"0000000000000001\"]", "[\"0000000000000001\", \"0000000000000001\"]",
         "sums: 2 checksums are given for 1 blocks"},
        {"\"fedcba9876543210\"", "\"Fedcba9876543210\"", "number 0: 'Fedcba9876543210' is not 16"},
        {"\"fedcba9876543210\"", "\"fedcba987654321\"", "'fedcba987654321' is not 16"},
        {"\"0x1.8p+1\"", "\"0x3p+0\"", "reals: 'loss': '0x3p+0' is not a number"},
        {"\"0x1.8p+1\"", "3", "reals: 'loss': is a number, not a string"},
        {"-9223372036854775808", "1.5", "integers: 'epoch': is a number with"},
        {"-9223372036854775808", "-9223372036854775809", "too big"},
        {"\"a \\\"b\\\"\"", "\"a\\u0000\"", "not valid JSON"},
        {"\"a \\\"b\\\"\"", "null", "strings: 'run': is null, not a string"},
        {"\"strings\": {", "\"strings\": {}, \"x-\": {", NULL},
        {"\"strings\": {", "\"strings\": [], \"x-\": {", "strings: is an array, not an object"},
    };
    struct checkpoint_index sample = index_sample();
    CHECK_CHANGES(&sample, changes);
}

TEST(pieces_of_whole_files_are_rows)
{
    static const struct change changes[] = {
        {"\"whole\"", "\"pieces\"", NULL},
        {"\"begin\": [2, 0], \"length\": [4, 4]",
         "\"begin\": [2, 0], \"length\": [4, 2]}, {\"file\": 0, \"at\": 1000, \"begin\": [2, 2], \"length\": "
         "[4, 2]",
         "it has 2 of 4 indices in dimension 1, but pieces of whole files are rows"},
    };
    struct index_piece pieces[] = {{0, 0, {{0, 0}, {2, 4}}}, {0, 32, {{2, 0}, {4, 4}}}};
    struct index_tensor tensor = index_sample_tensors[0];
    struct checkpoint_index sample = index_sample();
    tensor.pieces = pieces;
    tensor.n_pieces = 2;
    sample.tensors = &tensor;
    sample.n_tensors = 1;
    sample.format = SHOAL_CHECKPOINT_WHOLE;
    CHECK_CHANGES(&sample, changes);
}

/* The sum says so first; with a right sum the version is read before what it may mean. */
TEST(a_later_version)
{
    struct checkpoint_index sample = index_sample();
    struct checkpoint_index index;
    char *text;
    size_t bytes;
    REQUIRE_OK(index_write(&sample, &text, &bytes));
    const char *to = "\"version\": 3, \"new\": [], \"id\": 5, \"old\"";
    size_t changed_bytes;
    char *changed = index_sample_change(text, bytes, "\"version\": 1, \"id\"", to, &changed_bytes);
    REQUIRE(changed);
    CHECK_STATUS(index_read(changed, changed_bytes, &index), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("version 3, and this library reads versions up to 1");
    changed[changed_bytes - 4] ^= 1;
    CHECK_STATUS(index_read(changed, changed_bytes, &index), SHOAL_ERR_INVALID);
    free(changed);
    mem_free(text);
}

/* Damage ---------------------------------------------------------------------------------------------------- */

/* In memory of exactly its size, for the address sanitizer. */
static shoal_status read_copy(const char *text, size_t bytes, struct checkpoint_index *index)
{
    char *copy = malloc(bytes ? bytes : 1);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(copy, text, bytes);
    shoal_status status = index_read(copy, bytes, index);
    free(copy);
    return status;
}

TEST(no_byte_can_be_changed)
{
    struct checkpoint_index sample = index_sample();
    struct checkpoint_index index;
    char *text;
    size_t bytes;
    REQUIRE_OK(index_write(&sample, &text, &bytes));
    for (size_t i = 0; i < bytes && !test_has_failed(); i++) {
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ 1 << bit);
            CHECK_STATUS(read_copy(text, bytes, &index), SHOAL_ERR_INVALID);
            text[i] = (char)(text[i] ^ 1 << bit);
        }
    }
    for (size_t n = 0; n < bytes && !test_has_failed(); n++) {
        CHECK_STATUS(read_copy(text, n, &index), SHOAL_ERR_INVALID);
    }
    CHECK_OK(read_copy(text, bytes, &index));
    index_free(&index);
    mem_free(text);
}

/* What is accepted is written again, and read as the same. */
static void check_answer(const char *text, size_t bytes)
{
    struct checkpoint_index index;
    char *again;
    size_t again_bytes;
    shoal_status status = read_copy(text, bytes, &index);
    if (status != SHOAL_OK) {
        CHECK(status == SHOAL_ERR_INVALID || status == SHOAL_ERR_UNSUPPORTED);
        return;
    }
    if (CHECK_OK(index_write(&index, &again, &again_bytes))) {
        struct checkpoint_index second;
        if (CHECK_OK(index_read(again, again_bytes, &second))) {
            index_free(&second);
        }
        mem_free(again);
    }
    index_free(&index);
}

/* The same changes with a right sum: the reader answers. */
TEST(changes_with_a_right_sum)
{
    struct checkpoint_index sample = index_sample();
    char *text;
    size_t bytes;
    REQUIRE_OK(index_write(&sample, &text, &bytes));
    char *changed = malloc(bytes);
    REQUIRE(changed);
    double scale = test_time_scale();
    int step = scale > 8 ? 8 : scale > 1 ? (int)scale : 1; /* slow builds try some of the bits of each byte */
    for (size_t i = 0; i < bytes - INDEX_SAMPLE_END && !test_has_failed(); i++) {
        for (int bit = (int)(i % (size_t)step); bit < 8; bit += step) {
            memcpy(changed, text, bytes);
            changed[i] = (char)(changed[i] ^ 1 << bit);
            index_sample_repair(changed, bytes);
            check_answer(changed, bytes);
        }
        /* Cut off there, and one byte less there. */
        memcpy(changed, text, bytes);
        index_sample_repair(changed, i + INDEX_SAMPLE_END);
        check_answer(changed, i + INDEX_SAMPLE_END);
        memcpy(changed, text, bytes);
        memmove(changed + i, changed + i + 1, bytes - i - 1);
        index_sample_repair(changed, bytes - 1);
        check_answer(changed, bytes - 1);
    }
    free(changed);
    mem_free(text);
}

/* Memory and size ------------------------------------------------------------------------------------------- */

static shoal_status write_and_read(void *context)
{
    struct checkpoint_index index;
    char *text;
    size_t bytes;
    (void)context;
    struct checkpoint_index sample = index_sample();
    shoal_status status = index_write(&sample, &text, &bytes);
    if (status == SHOAL_OK) {
        status = index_read(text, bytes, &index);
        mem_free(text);
    }
    if (status == SHOAL_OK) {
        index_free(&index);
    }
    return status;
}

TEST(every_allocation_may_fail)
{
    CHECK(test_sweep_allocations(write_and_read, NULL) > 5);
}

/* Of n tensors of n_pieces rows each, one after the other in one file. */
static void check_many(size_t n_tensors, size_t n_pieces)
{
    size_t n = n_tensors * n_pieces;
    uint64_t *sums = calloc(checksum_n_blocks(4 * n), sizeof(uint64_t));
    struct index_piece *pieces = calloc(n, sizeof *pieces);
    struct index_tensor *tensors = calloc(n_tensors, sizeof *tensors);
    char(*names)[32] = calloc(n_tensors, sizeof *names);
    REQUIRE(sums && pieces && tensors && names);
    struct index_run run = {.bytes = 4 * n, .sums = sums};
    struct index_file file = {.name = "a", .bytes = 4 * n, .runs = &run, .n_runs = 1};
    struct checkpoint_index sample = index_sample();
    sample.files = &file;
    sample.n_files = 1;
    sample.tensors = tensors;
    sample.n_tensors = n_tensors;
    for (size_t i = 0; i < n_tensors; i++) {
        (void)snprintf(names[i], sizeof names[i], "layers.%zu", i);
        tensors[i] = (struct index_tensor){.section = "model",
                                           .name = names[i],
                                           .dtype = SHOAL_F32,
                                           .n_dims = 2,
                                           .shape = {1, (int64_t)n_pieces},
                                           .pieces = &pieces[i * n_pieces],
                                           .n_pieces = n_pieces};
        for (size_t k = 0; k < n_pieces; k++) {
            pieces[i * n_pieces + k] =
                (struct index_piece){.at = 4 * (i * n_pieces + k), .region = {{0, (int64_t)k}, {1, 1}}};
        }
    }
    struct checkpoint_index index;
    char *text;
    size_t bytes;
    if (CHECK_OK(index_write(&sample, &text, &bytes))) {
        if (CHECK_OK(index_read(text, bytes, &index))) {
            CHECK_INT(index.n_tensors, n_tensors);
            CHECK(index_find(&index, "model", names[n_tensors - 1]) == &index.tensors[n_tensors - 1]);
            index_free(&index);
        }
        mem_free(text);
    }
    free(sums);
    free(pieces);
    free(tensors);
    free(names);
}

TEST(many_tensors)
{
    check_many((size_t)(100000 / test_time_scale()), 1);
}

TEST(many_pieces)
{
    check_many(1, (size_t)(100000 / test_time_scale()));
}
