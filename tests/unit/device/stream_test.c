/* SPDX-License-Identifier: MIT */
/* The compute stream is one of the program: what the program puts there lies between two calls of the library. */
#include "fixtures/apart.h"
#include "fixtures/apart_streams.h"
#include "fixtures/scoped.h"
#include "harness/test.h"
#include "shoal/shoal.h"

/* A kernel of the program: the elements become `values`, on a stream. */
static void write_on(void *stream, void *data, const float *values, size_t count)
{
    stream_enter(apart(), stream);
    CHECK_OK(device_row(apart())->copy_in(data, values, count * sizeof values[0]));
    stream_leave();
}

SCOPED_TEST(kernels_of_the_program_lie_between_two_calls)
{
    const float written[] = {5, 6, 7};
    void *data = NULL;
    const void *seen = NULL;
    int64_t number = 0;
    void *ours = make_stream();
    shoal_tensor *there = shoal_to_device(count_up(DIMS(3), 1), apart());
    uint64_t version = shoal_tensor_version(there);
    REQUIRE_OK(shoal_device_use_stream(apart(), number_of(ours)));
    CHECK_OK(shoal_device_stream(apart(), &number));
    CHECK(number == number_of(ours));
    hold_stream(ours);
    CHECK(shoal_add_scalar_(there, 100));
    REQUIRE_OK(shoal_device_mutable_data(there, &data));
    CHECK(data == address_in(there) && shoal_tensor_version(there) > version);
    write_on(ours, data, written, 3);
    shoal_tensor *sum = shoal_add_scalar(there, 1);
    CHECK(!ends_within(ours, 0.05));
    hold_stream(NULL);
    check_values(sum, (const float[]){6, 7, 8}, 3);
    CHECK_OK(shoal_device_data(there, &seen));
    CHECK(seen == data);
    CHECK_OK(shoal_device_use_stream(apart(), 0));
    end_stream(ours);
}

/* In the middle of a step: each stream goes on where the other one was. */
SCOPED_TEST(the_stream_is_switched_in_mid_step)
{
    void *streams[] = {make_stream(), make_stream()};
    shoal_tensor *there = shoal_to_device(count_up(DIMS(3), 0), apart());
    for (int i = 0; i < 40; i++) {
        void *before = stream_compute(apart());
        hold_stream(i % 4 == 1 ? before : NULL);
        CHECK(shoal_add_scalar_(there, 1));
        shoal_tensor *copy = shoal_mul_scalar(there, 2);
        REQUIRE_OK(shoal_device_use_stream(apart(), i % 3 == 2 ? 0 : number_of(streams[i % 2])));
        CHECK(shoal_add_(there, copy)); /* 3 x */
        CHECK(shoal_sub_(there, copy));
        CHECK(stream_compute(apart()) == before || i % 4 != 1 || !ends_within(stream_compute(apart()), 0.01));
    }
    hold_stream(NULL);
    check_values(there, (const float[]){40, 41, 42}, 3);
    CHECK_OK(shoal_device_use_stream(apart(), 0));
    CHECK(ends_within(stream_compute(apart()), 5));
    end_stream(streams[0]);
    end_stream(streams[1]);
}

SCOPED_TEST(memory_is_freed_on_the_stream_that_is_used)
{
    void *ours = make_stream();
    uint64_t n_bytes = (apart(), atomic_load(&test_apart()->n_bytes));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *there = shoal_to_device(count_up(DIMS(3), 0), apart());
    hold_stream(stream_compute(apart()));
    CHECK(shoal_add_scalar_(there, 1));
    REQUIRE_OK(shoal_device_use_stream(apart(), number_of(ours)));
    CHECK_OK(shoal_scope_end());
    shoal_tensor *next = shoal_to_device(count_up(DIMS(3), 7), apart()); /* perhaps in the same memory */
    CHECK(!ends_within(ours, 0.05));
    hold_stream(NULL);
    check_values(next, (const float[]){7, 8, 9}, 3);
    CHECK(atomic_load(&test_apart()->n_bytes) >= n_bytes);
    CHECK_OK(shoal_device_use_stream(apart(), 0));
    end_stream(ours);
}

SCOPED_TEST(what_is_refused)
{
    void *data = NULL;
    const void *seen = NULL;
    shoal_tensor *here = count_up(DIMS(2), 0);
    CHECK_STATUS(shoal_device_use_stream(SHOAL_CPU, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("device_use_stream: device cpu has no streams");
    CHECK_STATUS(shoal_device_use_stream(SHOAL_CPU, 0), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_device_use_stream(apart(), -1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("device_use_stream: stream: -1 is no stream of device apart");
    CHECK_STATUS(shoal_device_use_stream((shoal_device)9, 1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_device_use_stream(apart(), 2), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("device_use_stream: stream: 2 is another stream in each thread");
    CHECK_STATUS(shoal_device_data(NULL, &seen), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_device_data(here, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("device_data: data_out is NULL");
    CHECK_STATUS(shoal_device_mutable_data(here, NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_device_mutable_data(here, &data));
    CHECK(data == shoal_mutable_data(here));
    CHECK_STATUS(shoal_device_data(shoal_empty_on(DIMS(1), SHOAL_F32, SHOAL_META), &seen), SHOAL_ERR_STATE);
    CHECK(!seen);
}
