/* SPDX-License-Identifier: MIT */
/* Reading parts of tensors: ranges of bytes, and boxes into memory with strides, from files and from memory. */
#include "fixtures/safetensors_image.h"
#include "fixtures/scratch.h"
#include "shoal/safetensors.h"
#include "shoal/scope.h"

#define NUMBERS(...) ((const int64_t[]){__VA_ARGS__})

/* "t": u16 [ROWS, COLUMNS, 3]; element i is i. As a file, and in memory. */
enum {
    ROWS = 40,
    COLUMNS = 9000,
    N = ROWS * COLUMNS * 3
};

struct both {
    struct scratch scratch;
    struct image image;
    shoal_safetensors *files[2];
};

static struct both open_both(void)
{
    struct both both = {.scratch = scratch_make()};
    char header[128];
    uint16_t *numbers = malloc(N * sizeof *numbers);
    for (int i = 0; numbers && i < N; i++) {
        numbers[i] = (uint16_t)(i * 7 + i / 65536);
    }
    (void)snprintf(header, sizeof header,
                   "{\"t\":{\"dtype\":\"U16\",\"shape\":[%d,%d,3],\"data_offsets\":[0,%d]}}", ROWS, COLUMNS,
                   2 * N);
    both.image = image_make(header, numbers, N * sizeof *numbers);
    free(numbers);
    const char *path = scratch_file(&both.scratch, "m");
    CHECK(scratch_write(path, both.image.bytes, both.image.n_bytes));
    CHECK_OK(shoal_safetensors_open(path, &both.files[0]));
    CHECK_OK(shoal_safetensors_open_memory(both.image.bytes, both.image.n_bytes, &both.files[1]));
    return both;
}

static void close_both(struct both *both)
{
    shoal_safetensors_close(both->files[0]);
    shoal_safetensors_close(both->files[1]);
    image_free(&both->image);
    scratch_remove(&both->scratch);
}

static uint16_t number_at(int64_t row, int64_t column, int64_t last)
{
    int64_t i = (row * COLUMNS + column) * 3 + last;
    return (uint16_t)(i * 7 + i / 65536);
}

TEST(ranges)
{
    struct both both = open_both();
    for (int k = 0; k < 2; k++) {
        uint16_t numbers[3] = {0};
        CHECK_OK(shoal_safetensors_read_range(both.files[k], 0, 2 * (N - 3), numbers, 6));
        CHECK(numbers[0] == number_at(ROWS - 1, COLUMNS - 1, 0) &&
              numbers[2] == number_at(ROWS - 1, COLUMNS - 1, 2));
        CHECK_OK(shoal_safetensors_read_range(both.files[k], 0, 2 * N, NULL, 0));
        CHECK_STATUS(shoal_safetensors_read_range(both.files[k], 0, 2 * N - 1, numbers, 2),
                     SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("safetensors_read_range: offset: 2 bytes from 2159999 on are not within the 2160000 "
                         "of tensor 't'");
        CHECK_STATUS(shoal_safetensors_read_range(both.files[k], 0, 2 * N + 1, numbers, 0),
                     SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_safetensors_read_range(both.files[k], 0, UINT64_MAX, numbers, 2),
                     SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_safetensors_read_range(both.files[k], 0, 1, numbers, SIZE_MAX), SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_safetensors_read_range(both.files[k], 0, 1, NULL, 2), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("data_out is NULL");
        CHECK_STATUS(shoal_safetensors_read_range(both.files[k], 1, 0, numbers, 2), SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_safetensors_read_range(NULL, 0, 0, numbers, 2), SHOAL_ERR_INVALID);
    }
    close_both(&both);
}

/* Random boxes into memory whose other elements must stay. */
static void check_random_box(const shoal_safetensors *file, struct test_random *random)
{
    static const int64_t shape[3] = {ROWS, COLUMNS, 3};
    static const int orders[6][3] = {{0, 1, 2}, {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {2, 1, 0}, {2, 0, 1}};
    int64_t begin[3];
    int64_t length[3];
    int64_t strides[3];
    for (int i = 0; i < 3; i++) {
        bool is_whole = test_random_below(random, 3) == 0;
        begin[i] = is_whole ? 0 : (int64_t)test_random_below(random, (uint64_t)shape[i]);
        length[i] =
            is_whole ? shape[i] : (int64_t)test_random_below(random, (uint64_t)(shape[i] - begin[i]) + 1);
    }
    const int *order = orders[test_random_below(random, 6)];
    int64_t padding = (int64_t)test_random_below(random, 3);
    int64_t count = 1;
    for (int i = 2; i >= 0; i--) {
        strides[order[i]] = count;
        count *= length[order[i]] + (order == orders[0] ? 0 : padding);
    }
    bool is_backwards = test_random_below(random, 4) == 0 && length[1] > 0;
    uint16_t *memory = malloc(((size_t)count + 1) * sizeof *memory);
    REQUIRE(memory);
    memset(memory, 0xAB, ((size_t)count + 1) * sizeof *memory);
    int64_t first = is_backwards ? strides[1] * (length[1] - 1) : 0;
    strides[1] = is_backwards ? -strides[1] : strides[1];
    CHECK_OK(shoal_safetensors_read_box(file, 0, begin, length, memory + first,
                                        order == orders[0] && !is_backwards ? NULL : strides));
    bool is_right = true;
    for (int64_t i = 0; i < length[0]; i++) {
        for (int64_t j = 0; j < length[1]; j++) {
            for (int64_t k = 0; k < length[2]; k++) {
                uint16_t *found = &memory[first + i * strides[0] + j * strides[1] + k * strides[2]];
                is_right = is_right && *found == number_at(begin[0] + i, begin[1] + j, begin[2] + k);
                *found = 0xABAB;
            }
        }
    }
    CHECK(is_right);
    for (int64_t i = 0; i <= count; i++) {
        is_right = is_right && memory[i] == 0xABAB;
    }
    CHECK(is_right);
    free(memory);
}

TEST(random_boxes)
{
    struct both both = open_both();
    struct test_random random = test_random_begin(3);
    int n_rounds = test_time_scale() > 1 ? 30 : 150;
    for (int i = 0; i < n_rounds && !test_has_failed(); i++) {
        check_random_box(both.files[i % 2], &random);
    }
    close_both(&both);
}

TEST(whole_tensors_and_strides)
{
    struct both both = open_both();
    uint16_t *memory = malloc(N * sizeof *memory);
    REQUIRE(memory);
    CHECK_OK(shoal_safetensors_read_box(both.files[0], 0, NULL, NULL, memory, NULL));
    CHECK_BYTES(memory, both.image.bytes + both.image.n_bytes - 2 * N, 2 * N);
    /* The last dimension first. */
    CHECK_OK(shoal_safetensors_read_box(both.files[0], 0, NULL, NULL, memory,
                                        NUMBERS(COLUMNS, 1, ROWS * COLUMNS)));
    CHECK_INT(memory[2 * ROWS * COLUMNS + 5 * COLUMNS + 17], number_at(5, 17, 2));
    free(memory);
    close_both(&both);
}

/* More runs than are announced at a time, too far apart to be read together; straight and turned. */
TEST(many_runs_far_apart)
{
    enum {
        N_ROWS = 200,
        N_COLUMNS = 6000
    };
    struct scratch scratch = scratch_make();
    static int32_t numbers[N_ROWS * N_COLUMNS];
    static int32_t found[2][N_ROWS * 3];
    for (int i = 0; i < N_ROWS * N_COLUMNS; i++) {
        numbers[i] = i;
    }
    char header[128];
    (void)snprintf(header, sizeof header,
                   "{\"t\":{\"dtype\":\"I32\",\"shape\":[%d,%d],\"data_offsets\":[0,%zu]}}", N_ROWS,
                   N_COLUMNS, sizeof numbers);
    struct image image = image_make(header, numbers, sizeof numbers);
    REQUIRE(scratch_write(scratch_file(&scratch, "m"), image.bytes, image.n_bytes));
    shoal_safetensors *file;
    REQUIRE_OK(shoal_safetensors_open(scratch_file(&scratch, "m"), &file));
    CHECK_OK(shoal_safetensors_read_box(file, 0, NUMBERS(0, 77), NUMBERS(N_ROWS, 3), found[0], NULL));
    CHECK_OK(shoal_safetensors_read_box(file, 0, NUMBERS(0, 77), NUMBERS(N_ROWS, 3), found[1],
                                        NUMBERS(1, N_ROWS)));
    for (int i = 0; i < N_ROWS; i++) {
        for (int k = 0; k < 3; k++) {
            CHECK_INT(found[0][3 * i + k], i * N_COLUMNS + 77 + k);
            CHECK_INT(found[1][k * N_ROWS + i], i * N_COLUMNS + 77 + k);
        }
    }
    CHECK_INT(truncate(scratch_file(&scratch, "m"), (off_t)image.n_bytes / 2), 0);
    CHECK_STATUS(shoal_safetensors_read_box(file, 0, NUMBERS(0, 77), NUMBERS(N_ROWS, 3), found[0], NULL),
                 SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("it has become shorter");
    shoal_safetensors_close(file);
    image_free(&image);
    scratch_remove(&scratch);
}

TEST(refuses_wrong_boxes)
{
    struct both both = open_both();
    uint16_t numbers[8];
    const shoal_safetensors *file = both.files[0];
    CHECK_STATUS(shoal_safetensors_read_box(NULL, 0, NULL, NULL, numbers, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_safetensors_read_box(file, 1, NULL, NULL, numbers, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("safetensors_read_box: index: 1 is not within the 1 tensors");
    CHECK_STATUS(shoal_safetensors_read_box(file, 0, NUMBERS(0, 0, 3), NUMBERS(1, 1, 1), numbers, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("length[2]: 1 is not within 0..0, what is left from 3");
    CHECK_STATUS(shoal_safetensors_read_box(file, 0, NULL, NUMBERS(1, 1, 2), NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("data_out is NULL");
    CHECK_OK(shoal_safetensors_read_box(file, 0, NULL, NUMBERS(1, 0, 2), NULL, NULL));
    CHECK_STATUS(shoal_safetensors_read_box(file, 0, NULL, NUMBERS(1, 2, 2), numbers, NUMBERS(0, 0, 1)),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("strides: [0, 0, 1] may give two elements the same place");
    CHECK_STATUS(
        shoal_safetensors_read_box(file, 0, NULL, NUMBERS(1, 2, 2), numbers, NUMBERS(1, INT64_MAX, 1)),
        SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("strides");
    close_both(&both);
}

TEST(a_file_that_becomes_shorter)
{
    struct both both = open_both();
    uint16_t numbers[2];
    CHECK_INT(truncate(scratch_file(&both.scratch, "m"), (off_t)both.image.n_bytes - 2), 0);
    CHECK_OK(shoal_safetensors_read_box(both.files[0], 0, NULL, NUMBERS(1, 1, 2), numbers, NULL));
    CHECK_STATUS(
        shoal_safetensors_read_box(both.files[0], 0, NUMBERS(ROWS - 1, COLUMNS - 1, 1), NULL, numbers, NULL),
        SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("safetensors_read_box: tensor 't': the file ends at byte");
    CHECK_STATUS(shoal_safetensors_read_range(both.files[0], 0, 2 * N - 4, numbers, 4), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("it has become shorter");
    close_both(&both);
}

static shoal_status read_strided(void *context)
{
    const struct both *both = context;
    uint16_t numbers[6];
    return shoal_safetensors_read_box(both->files[0], 0, NULL, NUMBERS(2, 3, 1), numbers, NUMBERS(1, 2, 1));
}

TEST(survives_failing_allocations)
{
    struct both both = open_both();
    CHECK_INT(test_sweep_allocations(read_strided, &both), 1);
    close_both(&both);
}
