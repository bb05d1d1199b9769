/* SPDX-License-Identifier: MIT */
/* Reading what a rank needs: any region from any pieces, and damage of every kind found before anything changes. */
#include "checkpoint/load/read.h"

#include "fixtures/made_checkpoint.h"
#include "kernel/kernel.h"

#define FILL 0xA5

/* The source of a load from a made checkpoint. */
static struct load_source source_of(const struct made *made)
{
    return (struct load_source){.directory = made->scratch.path, .index = &made->index};
}

static struct load_want whole_want(const struct made *made)
{
    struct load_want want = {.tensor = &made->tensor, .dtype = made->tensor.dtype};
    region_make(&want.region, made->tensor.n_dims, made->tensor.shape, -1, 0, 0);
    return want;
}

/* Memory of a part with these strides, filled. */
struct target {
    unsigned char *memory;
    size_t bytes;
    size_t first; /* byte of the first element */
};

/* Dimensions in a random order in memory, sometimes with room behind rows, sometimes backwards. */
static struct target make_target(struct load_want *want, struct test_random *random)
{
    int n_dims = want->tensor->n_dims;
    int order[SHOAL_MAX_DIMS];
    size_t size = dtype_bytes(want->dtype);
    struct target target = {0};
    bool is_plain = test_random_below(random, 2) == 0;
    for (int i = 0; i < n_dims; i++) {
        order[i] = n_dims - 1 - i;
    }
    for (int i = 0; i < n_dims && !is_plain; i++) {
        int j = (int)test_random_below(random, (uint64_t)n_dims);
        int kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    int64_t stride = 1;
    int64_t first = 0;
    for (int i = 0; i < n_dims; i++) {
        int64_t length = want->region.length[order[i]];
        bool is_backwards = !is_plain && test_random_below(random, 4) == 0;
        want->part.strides[order[i]] = is_backwards ? -stride : stride;
        first += is_backwards && length > 0 ? (length - 1) * stride : 0;
        stride = stride * (length > 0 ? length : 1) + (is_plain ? 0 : (int64_t)test_random_below(random, 3));
    }
    target.bytes = (size_t)stride * size;
    target.first = (size_t)first * size;
    target.memory = malloc(target.bytes + 1);
    memset(target.memory, FILL, target.bytes);
    want->part.data = target.memory + target.first;
    return target;
}

/* Each element is there, and what is between them is as it was. */
static void check_target(const struct made *made, const struct load_want *want, struct target *target)
{
    int64_t indices[SHOAL_MAX_DIMS] = {0};
    size_t size = dtype_bytes(want->dtype);
    int n_dims = want->tensor->n_dims;
    int64_t count = made_count(want->region.length, n_dims);
    for (int64_t i = 0; i < count && !test_has_failed(); i++) {
        int64_t offset = (int64_t)target->first;
        for (int d = 0; d < n_dims; d++) {
            offset += indices[d] * want->part.strides[d] * (int64_t)size;
        }
        int64_t number = made_number(want->tensor, want->region.begin, indices);
        CHECK_BYTES(target->memory + offset, made->elements + (size_t)number * size, size);
        memset(target->memory + offset, FILL, size);
        (void)made_next(indices, want->region.length, n_dims);
    }
    for (size_t i = 0; i < target->bytes && !test_has_failed(); i++) {
        CHECK_INT(target->memory[i], FILL);
    }
}

static void load_random_region(const struct made *made, struct test_random *random)
{
    struct load_want want = whole_want(made);
    for (int i = 0; i < made->tensor.n_dims; i++) {
        int64_t size = made->tensor.shape[i];
        want.region.begin[i] = (int64_t)test_random_below(random, (uint64_t)size + 1);
        want.region.length[i] =
            (int64_t)test_random_below(random, (uint64_t)(size - want.region.begin[i]) + 1);
    }
    struct target target = make_target(&want, random);
    struct load_source source = source_of(made);
    struct load_reader reader;
    source.skips_sums = test_random_below(random, 4) == 0;
    REQUIRE_OK(load_reader_make(&source, &want, 1, &reader));
    for (size_t i = 0; i < reader.n_files; i++) {
        reader.files[i].stays_open = test_random_below(random, 2) == 0;
    }
    CHECK_OK(load_reader_look(&reader));
    CHECK_OK(load_reader_read(&reader));
    load_reader_free(&reader);
    check_target(made, &want, &target);
    free(target.memory);
}

TEST(any_region_comes_from_any_pieces)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_U8, SHOAL_BF16, SHOAL_BOOL, SHOAL_I64};
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 60 && !test_has_failed(); round++) {
        int n_dims = (int)test_random_below(&random, 5);
        int64_t shape[SHOAL_MAX_DIMS] = {0};
        int cuts[SHOAL_MAX_DIMS] = {0};
        struct made made;
        for (int i = 0; i < n_dims; i++) {
            shape[i] = (int64_t)test_random_below(&random, 7);
            cuts[i] = (int)test_random_below(&random, 3);
        }
        made_create(&made, dtypes[test_random_below(&random, 6)], n_dims, shape, cuts,
                    1 + (size_t)test_random_below(&random, MADE_MAX_FILES), &random);
        for (int i = 0; i < 4; i++) {
            load_random_region(&made, &random);
        }
        made_free(&made);
    }
}

TEST(regions_of_several_blocks)
{
    struct test_random random = test_random_begin(2);
    const int64_t shape[] = {700, 1100};
    for (int round = 0; round < 4 && !test_has_failed(); round++) {
        const int cuts[] = {round & 1, round >> 1};
        struct made made;
        made_create(&made, SHOAL_F32, 2, shape, cuts, 1 + (size_t)(round & 1), &random);
        for (int i = 0; i < 3; i++) {
            load_random_region(&made, &random);
        }
        made_free(&made);
    }
}

/* Casts ------------------------------------------------------------------------------------------------ */

TEST(casts_round_once)
{
    static const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_BF16, SHOAL_F16};
    struct test_random random = test_random_begin(3);
    const int64_t shape[] = {30, 50};
    const int cuts[] = {1, 2};
    for (int from = 0; from < 2; from++) {
        struct made made;
        made_create(&made, dtypes[from], 2, shape, cuts, 2, &random);
        for (int to = 0; to < 4; to++) {
            struct load_want want = whole_want(&made);
            struct load_source source = source_of(&made);
            struct load_reader reader;
            char expected[1500 * 8];
            char found[1500 * 8];
            want.dtype = dtypes[to];
            want.part = (struct item_part){.data = found, .strides = {50, 1}};
            kernel_cast(dtypes[to], expected, dtypes[from], made.elements, 1500);
            REQUIRE_OK(load_reader_make(&source, &want, 1, &reader));
            CHECK_OK(load_reader_look(&reader));
            CHECK_OK(load_reader_read(&reader));
            CHECK_BYTES(found, expected, 1500 * dtype_bytes(dtypes[to]));
            load_reader_free(&reader);
        }
        made_free(&made);
    }
}

/* Damage ----------------------------------------------------------------------------------------------- */

/* A look at all of it. */
static shoal_status look_at(const struct made *made, bool skips_sums)
{
    struct load_want want = whole_want(made);
    struct load_source source = source_of(made);
    struct load_reader reader;
    source.skips_sums = skips_sums;
    shoal_status status = load_reader_make(&source, &want, 1, &reader);
    if (status == SHOAL_OK) {
        status = load_reader_look(&reader);
        load_reader_free(&reader);
    }
    return status;
}

static void make_two_files(struct made *made, struct test_random *random)
{
    const int64_t shape[] = {1024, 600};
    const int cuts[] = {1, 0};
    made_create(made, SHOAL_F32, 2, shape, cuts, 2, random);
}

static void flip(const char *path, size_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char byte = 0;
    CHECK_INT(pread(fd, &byte, 1, (off_t)at), 1);
    byte = (char)(byte ^ 0x10);
    CHECK_INT(pwrite(fd, &byte, 1, (off_t)at), 1);
    (void)close(fd);
}

TEST(a_bit_that_flipped_is_found_wherever_it_is)
{
    struct test_random random = test_random_begin(4);
    struct made made;
    make_two_files(&made, &random);
    REQUIRE_OK(look_at(&made, false));
    for (int i = 0; i < 40 && !test_has_failed(); i++) {
        size_t file = test_random_below(&random, 2);
        const char *path = scratch_file(&made.scratch, made.files[file].name);
        /* Headers are small: half of the bits are theirs. */
        size_t at = (size_t)test_random_below(&random, i % 2 ? 200 : made.files[file].bytes);
        flip(path, at);
        CHECK(look_at(&made, false) != SHOAL_OK);
        CHECK_ERROR_TEXT(made.files[file].name);
        flip(path, at);
    }
    CHECK_OK(look_at(&made, false));
    made_free(&made);
}

TEST(files_that_are_missing_cut_longer_or_of_another_save)
{
    struct test_random random = test_random_begin(5);
    struct made made;
    make_two_files(&made, &random);
    const char *path = scratch_file(&made.scratch, made.files[1].name);
    char kept[2 * SCRATCH_PATH_BYTES];
    (void)snprintf(kept, sizeof kept, "%s.kept", path);
    uint64_t bytes = made.files[1].bytes;

    CHECK_INT(truncate(path, (off_t)bytes - 1), 0);
    CHECK_STATUS(look_at(&made, true), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("was cut off");
    CHECK_INT(truncate(path, (off_t)bytes + 1), 0);
    CHECK_STATUS(look_at(&made, true), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("has become longer");
    CHECK_INT(truncate(path, (off_t)bytes), 0);
    CHECK_STATUS(look_at(&made, false), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("are damaged");
    CHECK_OK(look_at(&made, true));

    CHECK_INT(rename(path, kept), 0);
    CHECK_STATUS(look_at(&made, true), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("file-1.safetensors");
    CHECK_INT(mkdir(path, 0777), 0);
    CHECK_STATUS(look_at(&made, true), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is not a regular file");
    CHECK_INT(rmdir(path), 0);
    CHECK_INT(rename(kept, path), 0);

    memset(made.index.id, 'e', INDEX_ID_CHARS);
    CHECK_STATUS(look_at(&made, true), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("to another save, " MADE_ID);
    made_free(&made);
}

TEST(files_of_other_tools_have_no_id_and_no_sums)
{
    struct test_random random = test_random_begin(6);
    struct made made;
    make_two_files(&made, &random);
    struct load_want want = whole_want(&made);
    struct load_source source = source_of(&made);
    struct load_reader reader;
    source.is_foreign = true;
    memset(made.index.id, 0, INDEX_ID_CHARS);
    made.files[0].n_runs = made.files[1].n_runs = 0;
    struct target target = make_target(&want, &random);
    REQUIRE_OK(load_reader_make(&source, &want, 1, &reader));
    CHECK_OK(load_reader_look(&reader));
    CHECK_OK(load_reader_read(&reader));
    load_reader_free(&reader);
    check_target(&made, &want, &target);
    free(target.memory);
    /* Their sums are freed here: made_free goes by the number of runs. */
    for (size_t i = 0; i < 2; i++) {
        for (size_t j = 0; j < MADE_MAX_RUNS; j++) {
            free(made.runs[i][j].sums);
        }
    }
    made_free(&made);
}

/* A rank looks only at blocks that it needs, and at files that it needs. */
TEST(damage_elsewhere_is_none_of_this_rank)
{
    struct test_random random = test_random_begin(7);
    struct made made;
    make_two_files(&made, &random);
    struct load_want want = whole_want(&made);
    struct load_source source = source_of(&made);
    struct load_reader reader;
    want.region.length[0] = 1;
    flip(scratch_file(&made.scratch, made.files[0].name), (size_t)made.files[0].bytes - 1);
    CHECK_INT(unlink(scratch_file(&made.scratch, made.files[1].name)), 0);
    /* One run, so that the first row lies in another block than the last. */
    made.files[0].runs[0].bytes = made.files[0].bytes;
    for (size_t i = 1; i < made.files[0].n_runs; i++) {
        free(made.files[0].runs[i].sums);
    }
    made.files[0].n_runs = 1;
    made_sum(&made, 0);
    made.files[0].runs[0].sums[1]++;
    REQUIRE_OK(load_reader_make(&source, &want, 1, &reader));
    CHECK_OK(load_reader_look(&reader));
    load_reader_free(&reader);
    want.region.length[0] = 512;
    REQUIRE_OK(load_reader_make(&source, &want, 1, &reader));
    CHECK_STATUS(load_reader_look(&reader), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("bytes 1048576 to ");
    load_reader_free(&reader);
    made_free(&made);
}

TEST(what_changes_between_look_and_read_is_found)
{
    struct test_random random = test_random_begin(8);
    struct made made;
    make_two_files(&made, &random);
    struct load_want want = whole_want(&made);
    struct load_source source = source_of(&made);
    struct load_reader reader;
    want.part = (struct item_part){.data = malloc(1024 * 600 * 4), .strides = {600, 1}};
    for (int is_reopened = 0; is_reopened < 2; is_reopened++) {
        REQUIRE_OK(load_reader_make(&source, &want, 1, &reader));
        reader.files[0].stays_open = !is_reopened;
        CHECK_OK(load_reader_look(&reader));
        test_pause(0.02); /* times of files are not as fine as one might think */
        const char *path = scratch_file(&made.scratch, made.files[0].name);
        if (is_reopened) {
            CHECK_INT(unlink(path), 0);
            CHECK(scratch_write(path, "other", 5));
        } else {
            flip(path, (size_t)made.files[0].bytes / 2);
        }
        CHECK(load_reader_read(&reader) != SHOAL_OK);
        CHECK_ERROR_TEXT(is_reopened ? "was replaced or changed" : "are damaged");
        load_reader_free(&reader);
        if (!is_reopened) {
            flip(path, (size_t)made.files[0].bytes / 2);
        }
    }
    free(want.part.data);
    made_free(&made);
}

/* Memory ----------------------------------------------------------------------------------------------- */

struct sweep {
    const struct made *made;
    void *memory;
};

static shoal_status load_once(void *context)
{
    const struct sweep *sweep = context;
    struct load_want want = whole_want(sweep->made);
    struct load_source source = source_of(sweep->made);
    struct load_reader reader;
    want.part = (struct item_part){.data = sweep->memory, .strides = {5, 1}};
    shoal_status status = load_reader_make(&source, &want, 1, &reader);
    if (status != SHOAL_OK) {
        return status;
    }
    status = load_reader_look(&reader);
    if (status == SHOAL_OK) {
        status = load_reader_read(&reader);
    }
    load_reader_free(&reader);
    return status;
}

TEST(allocations_that_fail)
{
    struct test_random random = test_random_begin(9);
    const int64_t shape[] = {4, 5};
    const int cuts[] = {1, 1};
    float memory[20];
    struct made made;
    made_create(&made, SHOAL_F32, 2, shape, cuts, 2, &random);
    struct sweep sweep = {.made = &made, .memory = memory};
    CHECK(test_sweep_allocations(load_once, &sweep) > 0);
    made_free(&made);
}
