/* SPDX-License-Identifier: MIT */
/*
 * How collectives are measured: results and guard bytes are checked. The library is a world of one rank, whose
 * all_reduce and all_gather are copies, with one error at a time planted into it.
 */
#include <stdio.h>
#include <string.h>

#include "harness/test.h"
#include "measure/measure.h"

enum plant {
    NOTHING,
    ELEMENT,     /* one is wrong */
    STALE,       /* only the first call does anything */
    AFTER_RECV,  /* a byte behind the output */
    BEFORE_RECV, /* a byte before it */
    AFTER_SEND,  /* a byte behind the input */
    LAST_GUARD,  /* the farthest byte that is looked at */
    N_PLANTS
};

struct copier {
    enum plant plant;
    int n_begun; /* how often it was told that measuring begins */
    int n_calls;
};

static void begin(void *context)
{
    struct copier *copier = context;
    CHECK(copier->n_calls == 0);
    copier->n_begun++;
}

static bool copy(void *context, const struct measure_call *call)
{
    struct copier *copier = context;
    size_t bytes = call->count * call->dtype->bytes;
    char *recv = call->recv;
    char *send = (char *)(void *)call->send;
    copier->n_calls++;
    if (copier->plant != STALE || copier->n_calls == 1) {
        memmove(recv, send, bytes);
    }
    switch (copier->plant) {
    case ELEMENT:
        recv[bytes - 1] ^= 1;
        break;
    case AFTER_RECV:
        recv[bytes] ^= 1;
        break;
    case BEFORE_RECV:
        recv[-1] ^= 1;
        break;
    case AFTER_SEND:
        send[bytes] ^= 1;
        break;
    case LAST_GUARD:
        recv[bytes + 63] ^= 1;
        break;
    case NOTHING:
    case STALE:
    case N_PLANTS:
        break;
    }
    return true;
}

static struct measure_request make_request(enum measure_op op)
{
    struct measure_request request;
    measure_request_init(&request);
    request.op = op;
    request.n_ranks = 1;
    request.from_bytes = 1000;
    request.to_bytes = 1000;
    request.iterations = 3;
    request.warmups = 0;
    request.is_json = true;
    return request;
}

/* Also leaves the number of calls in *n_calls_out. */
static bool measure_counted(struct measure_request *request, enum plant plant, bool can_be_in_place,
                            int *n_calls_out)
{
    struct copier copier = {.plant = plant};
    const struct measure_library library = {.transport = "copy",
                                            .buffers = "heap",
                                            .context = &copier,
                                            .run = copy,
                                            .begin = begin,
                                            .is_in_place_possible = can_be_in_place};
    struct measure_page *page = measure_page_map(request, NULL);
    if (!page) {
        test_failed(__FILE__, __LINE__, "no page");
        return false;
    }
    bool is_good = measure_run(request, page, 0, &library);
    CHECK(copier.n_calls >= 3);
    CHECK(copier.n_begun == 1 && measure_page_has_begun(page));
    measure_page_unmap(page);
    *n_calls_out = copier.n_calls;
    return is_good;
}

static bool measure(struct measure_request *request, enum plant plant, bool can_be_in_place)
{
    int n_calls;
    return measure_counted(request, plant, can_be_in_place, &n_calls);
}

TEST(planted_errors_are_found)
{
    for (int plant = 0; plant < N_PLANTS; plant++) {
        for (int rotates = 0; rotates < 2; rotates++) {
            struct measure_request request = make_request(MEASURE_all_reduce);
            request.rotate_bytes = rotates ? 1 << 14 : 0;
            bool is_good = measure(&request, (enum plant)plant, false);
            if (is_good != (plant == NOTHING)) {
                test_failed(__FILE__, __LINE__, "plant %d, rotating %d: %s", plant, rotates,
                            is_good ? "not found" : "found");
            }
        }
    }
}

TEST(planted_errors_are_found_in_place)
{
    for (enum measure_op op = MEASURE_all_reduce; op <= MEASURE_reduce_scatter; op++) {
        struct measure_request request = make_request(op);
        request.has_in_place = true;
        CHECK(measure(&request, NOTHING, true));
        CHECK(!measure(&request, AFTER_RECV, true));
        CHECK(!measure(&request, BEFORE_RECV, true));
    }
}

TEST(all_dtypes_and_reductions_of_one_rank)
{
    for (int redop = 0; redop < MEASURE_N_REDOPS; redop++) {
        struct measure_request request = make_request(MEASURE_all_reduce);
        request.dtype = NULL;
        request.redop = (enum measure_redop)redop;
        CHECK(measure(&request, NOTHING, false));
    }
}

/* Of any --warmup: the first size warms up what is started once. The others have the calls that were asked for, and one that
   touches their memory. */
TEST(the_first_size_is_warmed_up)
{
    struct measure_request request = make_request(MEASURE_all_reduce);
    int n_one = 0;
    int n_two = 0;
    int n_many = 0;
    CHECK(measure_counted(&request, NOTHING, false, &n_one));
    CHECK(n_one >= request.iterations + 20);
    request.to_bytes = request.from_bytes * request.factor;
    CHECK(measure_counted(&request, NOTHING, false, &n_two));
    CHECK(n_two == n_one + request.iterations + 1);
    request.to_bytes = 1000;
    request.warmups = 1000;
    CHECK(measure_counted(&request, NOTHING, false, &n_many));
    CHECK(n_many == request.iterations + 1000);
}

/* What ranks give, reduced here, is what the pattern expects of the reduction. */
static uint32_t combine(enum measure_redop redop, uint32_t left, uint32_t right)
{
    const uint32_t results[MEASURE_N_REDOPS] = {
        [MEASURE_REDOP_sum] = left + right,
        [MEASURE_REDOP_avg] = left + right,
        [MEASURE_REDOP_product] = left * right,
        [MEASURE_REDOP_min] = left < right ? left : right,
        [MEASURE_REDOP_max] = left > right ? left : right,
        [MEASURE_REDOP_band] = left & right,
        [MEASURE_REDOP_bor] = left | right,
        [MEASURE_REDOP_bxor] = left ^ right,
    };
    return results[redop];
}

static void check_pattern(enum measure_redop redop, int n_ranks)
{
    enum {
        COUNT = 999,
        FIRST = 77
    };
    static uint32_t sum[COUNT];
    static uint32_t given[COUNT];
    struct measure_pattern pattern;
    REQUIRE(measure_pattern_init(&pattern, measure_dtype_find("u32"), redop, n_ranks));
    for (int rank = 0; rank < n_ranks; rank++) {
        measure_pattern_write(&pattern, given, COUNT, FIRST, rank, 5);
        CHECK(measure_pattern_count_wrong(&pattern, given, COUNT, FIRST, rank, 5) == 0);
        bool is_sum = redop == MEASURE_REDOP_sum;
        CHECK(!is_sum || measure_pattern_count_wrong(&pattern, given, COUNT, FIRST, rank, 6) == COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            sum[i] = rank == 0 ? given[i] : combine(redop, sum[i], given[i]);
        }
    }
    for (size_t i = 0; redop == MEASURE_REDOP_avg && i < COUNT; i++) {
        CHECK(sum[i] % (uint32_t)n_ranks == 0);
        sum[i] /= (uint32_t)n_ranks;
    }
    CHECK(measure_pattern_count_unreduced(&pattern, sum, COUNT, FIRST, 5) == 0);
    CHECK(measure_pattern_count_unreduced(&pattern, sum, COUNT, FIRST, 6) == COUNT);
    sum[COUNT / 2] ^= 1;
    CHECK(measure_pattern_count_unreduced(&pattern, sum, COUNT, FIRST, 5) == 1);
    measure_pattern_fini(&pattern);
}

TEST(patterns_of_all_reductions)
{
    for (int redop = 0; redop < MEASURE_N_REDOPS; redop++) {
        for (int n_ranks = 1; n_ranks < 10; n_ranks++) {
            check_pattern((enum measure_redop)redop, n_ranks);
        }
    }
}
