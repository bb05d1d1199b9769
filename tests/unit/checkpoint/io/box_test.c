/* SPDX-License-Identifier: MIT */
/*
 * Boxes: the pieces cover exactly the elements of the box, in the order of the file, and there are few of them where
 * runs are long or close to each other.
 */
#include "checkpoint/io/box.h"

#include <stdlib.h>
#include <string.h>

#include "harness/test.h"

struct seen {
    const struct box *box;
    size_t n_pieces;
    uint64_t file_bytes;
    uint64_t end; /* of the last piece */
    bool is_ordered;
};

static shoal_status look(void *context, const struct box_piece *piece)
{
    struct seen *seen = context;
    seen->n_pieces++;
    seen->file_bytes += piece->file_bytes;
    seen->is_ordered = seen->is_ordered && piece->file_offset >= seen->end;
    seen->end = piece->file_offset + piece->file_bytes;
    CHECK(seen->box->is_direct || piece->file_bytes <= seen->box->buffer_bytes);
    CHECK(seen->box->buffer_bytes <= BOX_BUFFER_BYTES);
    return SHOAL_OK;
}

static struct seen walk(const struct box_arguments *arguments, size_t gap_bytes)
{
    struct box box;
    struct seen seen = {.box = &box, .is_ordered = true};
    if (!CHECK_OK(box_make(arguments, &box))) {
        return seen;
    }
    box_plan(&box, gap_bytes, /*must_buffer=*/false);
    CHECK_OK(box_walk(&box, look, &seen));
    CHECK(seen.is_ordered);
    return seen;
}

#define NUMBERS(...) ((const int64_t[]){__VA_ARGS__})

TEST(rows_are_one_piece)
{
    struct box_arguments rows = {.n_dims = 3,
                                 .shape = NUMBERS(1000, 300, 70),
                                 .dtype = SHOAL_F32,
                                 .begin = NUMBERS(10, 0, 0),
                                 .length = NUMBERS(900, 300, 70)};
    struct seen seen = walk(&rows, 0);
    CHECK_INT(seen.n_pieces, 1);
    CHECK_INT(seen.file_bytes, (int64_t)900 * 300 * 70 * 4);
    CHECK_INT(seen.end, (int64_t)910 * 300 * 70 * 4);
    /* Strides of the memory that say the same. */
    rows.strides = NUMBERS(300 * 70, 70, 1);
    CHECK_INT(walk(&rows, BOX_READ_GAP_BYTES).n_pieces, 1);
}

TEST(columns_are_read_together)
{
    /* Half of rows of 16 KiB: 4096 runs of 8 KiB, gaps of 8 KiB. */
    struct box_arguments half = {.n_dims = 2,
                                 .shape = NUMBERS(4096, 4096),
                                 .dtype = SHOAL_F32,
                                 .begin = NUMBERS(0, 2048),
                                 .length = NUMBERS(4096, 2048)};
    CHECK_INT(walk(&half, 0).n_pieces, 4096);
    CHECK_INT(walk(&half, BOX_READ_GAP_BYTES).n_pieces, 64);
    /* Gaps that are too large stay unread. */
    half.shape = NUMBERS(4096, 8192);
    struct seen seen = walk(&half, BOX_READ_GAP_BYTES);
    CHECK_INT(seen.n_pieces, 4096);
    CHECK_INT(seen.file_bytes, 4096 * 2048 * 4);
    /* One column. */
    half.shape = NUMBERS(4096, 4096);
    half.length = NUMBERS(4096, 1);
    CHECK_INT(walk(&half, BOX_READ_GAP_BYTES).n_pieces, 64);
    CHECK_INT(walk(&half, 0).n_pieces, 4096);
}

TEST(long_runs_are_not_put_together)
{
    struct box_arguments box = {
        .n_dims = 2, .shape = NUMBERS(8, 100000), .dtype = SHOAL_F64, .length = NUMBERS(8, 99999)};
    struct seen seen = walk(&box, BOX_READ_GAP_BYTES);
    CHECK_INT(seen.n_pieces, 8);
    CHECK_INT(seen.file_bytes, 8 * 99999 * 8);
}

/* A transposed tensor goes through the buffer, in pieces that fill it. */
TEST(strides_use_the_buffer)
{
    struct box_arguments box = {
        .n_dims = 2, .shape = NUMBERS(3000, 1000), .dtype = SHOAL_F32, .strides = NUMBERS(1, 3000)};
    CHECK_INT(walk(&box, 0).n_pieces, 12); /* 262 rows fit */
    box.shape = NUMBERS(3, 1000000);
    CHECK_INT(walk(&box, 0).n_pieces, 3 * 4);
    box.shape = NUMBERS(2, 10);
    CHECK_INT(walk(&box, 0).n_pieces, 1);
}

TEST(corners)
{
    struct box_arguments box = {.n_dims = 0, .dtype = SHOAL_F64};
    struct seen scalar = walk(&box, 0);
    CHECK_INT(scalar.n_pieces, 1);
    CHECK_INT(scalar.file_bytes, 8);
    box = (struct box_arguments){.n_dims = 3, .shape = NUMBERS(2, 0, INT64_MAX), .dtype = SHOAL_F64};
    CHECK_INT(walk(&box, 0).n_pieces, 0);
    box = (struct box_arguments){.n_dims = 2,
                                 .shape = NUMBERS(2, 3),
                                 .dtype = SHOAL_U8,
                                 .begin = NUMBERS(2, 3),
                                 .length = NUMBERS(0, 0)};
    CHECK_INT(walk(&box, 0).n_pieces, 0);
    box = (struct box_arguments){.n_dims = 3,
                                 .shape = NUMBERS(1, 5, 1),
                                 .dtype = SHOAL_U8,
                                 .begin = NUMBERS(0, 4, 0),
                                 .length = NUMBERS(1, 1, 1)};
    CHECK_INT(walk(&box, 0).end, 5);
}

TEST(refuses_what_is_outside)
{
    struct box box;
    struct box_arguments wrong = {.n_dims = 2, .shape = NUMBERS(3, 10), .dtype = SHOAL_F32};
    wrong.begin = NUMBERS(0, -1);
    CHECK_STATUS(box_make(&wrong, &box), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("begin[1]: -1 is not within 0..10");
    wrong.begin = NUMBERS(4, 0);
    CHECK_STATUS(box_make(&wrong, &box), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("begin[0]: 4 is not within 0..3");
    wrong.begin = NUMBERS(1, 2);
    wrong.length = NUMBERS(2, 9);
    CHECK_STATUS(box_make(&wrong, &box), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("length[1]: 9 is not within 0..8, what is left from 2");
    wrong.length = NUMBERS(2, INT64_MAX);
    CHECK_STATUS(box_make(&wrong, &box), SHOAL_ERR_INVALID);
    wrong.length = NUMBERS(-1, 2);
    CHECK_STATUS(box_make(&wrong, &box), SHOAL_ERR_INVALID);
    wrong.length = NULL;
    wrong.strides = NUMBERS(INT64_MAX, 1);
    CHECK_STATUS(box_make(&wrong, &box), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("strides");
    wrong.strides = NUMBERS(1, INT64_MIN / 8);
    CHECK_STATUS(box_make(&wrong, &box), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("strides");
}

/* Where every element of the box comes from, and where it goes: by hand, and by pieces. */
struct trace {
    const struct box *box;
    unsigned char *marks; /* of the memory: how often each element was written */
    uint64_t *sources;
};

static shoal_status trace_piece(void *context, const struct box_piece *piece)
{
    struct trace *trace = context;
    int64_t indices[SHOAL_MAX_DIMS] = {0};
    for (;;) {
        int64_t file = (int64_t)(piece->file_offset / trace->box->element_bytes);
        int64_t memory = piece->memory_offset / (int64_t)trace->box->element_bytes;
        for (int i = 0; i < piece->n_dims; i++) {
            file += indices[i] * piece->file_strides[i];
            memory += indices[i] * piece->memory_strides[i];
        }
        trace->marks[memory]++;
        trace->sources[memory] = (uint64_t)file;
        int dim = piece->n_dims - 1;
        while (dim >= 0 && ++indices[dim] == piece->shape[dim]) {
            indices[dim--] = 0;
        }
        if (dim < 0) {
            return SHOAL_OK;
        }
    }
}

static void check_trace(const struct box_arguments *arguments, const struct trace *trace)
{
    int64_t indices[SHOAL_MAX_DIMS] = {0};
    int64_t strides[SHOAL_MAX_DIMS];
    int64_t stride = 1;
    for (int i = arguments->n_dims - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= arguments->shape[i];
    }
    for (int dim = 0; dim >= 0;) {
        int64_t file = 0;
        int64_t memory = 0;
        for (int i = 0; i < arguments->n_dims; i++) {
            file += (arguments->begin[i] + indices[i]) * strides[i];
            memory += indices[i] * arguments->strides[i];
        }
        CHECK_INT(trace->marks[memory], 1);
        CHECK_INT(trace->sources[memory], file);
        trace->marks[memory] = 0;
        dim = arguments->n_dims - 1;
        while (dim >= 0 && ++indices[dim] == arguments->length[dim]) {
            indices[dim--] = 0;
        }
    }
}

/* A random box of few or many elements; memory strides in a random order of dimensions, with padding. */
static void trace_random(struct test_random *random)
{
    enum {
        MOST = 1 << 20
    };
    int64_t shape[4];
    int64_t begin[4];
    int64_t length[4];
    int64_t strides[4];
    int order[4] = {0, 1, 2, 3};
    int n_dims = (int)test_random_below(random, 4) + 1;
    for (int i = 0; i < n_dims; i++) {
        shape[i] = (int64_t)test_random_below(random, n_dims == 1 ? 400000 : n_dims == 2 ? 900 : 28) + 1;
        bool is_whole = test_random_below(random, 3) == 0;
        begin[i] = is_whole ? 0 : (int64_t)test_random_below(random, (uint64_t)shape[i]);
        length[i] =
            is_whole ? shape[i] : (int64_t)test_random_below(random, (uint64_t)(shape[i] - begin[i])) + 1;
        int other = (int)test_random_below(random, (uint64_t)i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    bool is_plain = test_random_below(random, 2) == 0;
    int64_t stride = 1;
    for (int i = n_dims - 1; i >= 0; i--) {
        int dim = is_plain ? i : order[i];
        strides[dim] = stride;
        stride *= length[dim] + (is_plain || n_dims > 2 ? 0 : (int64_t)test_random_below(random, 2));
    }
    REQUIRE(stride <= MOST);
    struct box_arguments arguments = {.n_dims = n_dims,
                                      .shape = shape,
                                      .dtype = test_random_below(random, 2) == 0 ? SHOAL_F64 : SHOAL_U8,
                                      .begin = begin,
                                      .length = length,
                                      .strides = strides};
    struct box box;
    struct trace trace = {
        .box = &box, .marks = calloc((size_t)stride, 1), .sources = calloc((size_t)stride, sizeof(uint64_t))};
    REQUIRE_OK(box_make(&arguments, &box));
    size_t gap_bytes = test_random_below(random, 2) == 0 ? 0 : (size_t)test_random_below(random, 3000);
    box_plan(&box, gap_bytes, test_random_below(random, 3) == 0);
    CHECK_OK(box_walk(&box, trace_piece, &trace));
    check_trace(&arguments, &trace);
    free(trace.marks);
    free(trace.sources);
}

TEST(random_boxes)
{
    struct test_random random = test_random_begin(7);
    int n_rounds = test_time_scale() > 1 ? 40 : 200;
    for (int i = 0; i < n_rounds && !test_has_failed(); i++) {
        trace_random(&random);
    }
}
