/* SPDX-License-Identifier: MIT */
/*
 * Beyond 4 GiB: a count or an offset that is kept in 32 bits somewhere shows in the last elements. Needs two
 * such buffers of memory, and is left to builds without sanitizers, which would need several times that.
 */
#include "fixtures/free_memory.h"
#include "harness/test.h"
#include "kernel/kernel.h"
#include "shoal/shoal.h"

#define COUNT ((int64_t)(1ull << 32) + 5)

static bool can_run(void)
{
    return free_memory_is_enough(3 * COUNT);
}

/* The elements around 2^32 and at the end are told apart from each other and from all others. */
static void mark(uint8_t *data)
{
    data[0] = 1;
    data[COUNT - 6] = 2;
    data[COUNT - 5] = 3;
    data[COUNT - 1] = 4;
}

static void check_marks(const uint8_t *data, int factor)
{
    REQUIRE(data);
    CHECK_INT(data[0], 1 * factor);
    CHECK_INT(data[1], 0);
    CHECK_INT(data[COUNT - 7], 0);
    CHECK_INT(data[COUNT - 6], 2 * factor);
    CHECK_INT(data[COUNT - 5], 3 * factor);
    CHECK_INT(data[COUNT - 2], 0);
    CHECK_INT(data[COUNT - 1], 4 * factor);
}

static void check_packing(shoal_tensor *from, shoal_tensor *to)
{
    /* An odd number of rows in two chunks of 2^31 + 2: the last byte is padding. */
    const struct kernel_pack_item item = {
        .data = address_of(shoal_data(from)), .rows = COUNT - 2, .row_elems = 1};
    const int64_t chunk = COUNT / 2;
    const uint8_t *source = address_pointer(item.data);
    uint8_t *packed = shoal_mutable_data(to);
    REQUIRE(source && packed);
    CHECK_INT(kernel_pack_row_elems(&item, 1, 2), chunk);
    packed[2 * chunk - 1] = 77;
    kernel_pack(SHOAL_U8, address_of(packed), SHOAL_U8, &item, 1, 2, 0, 2);
    CHECK_INT(packed[0], source[0]);
    CHECK_INT(packed[COUNT - 6], source[COUNT - 6]);
    CHECK_INT(packed[COUNT - 5], source[COUNT - 5]);
    CHECK_INT(packed[2 * chunk - 1], 0);
}

TEST(tensors_beyond_4_gib)
{
    const int64_t shape[] = {COUNT};
    test_deadline(120);
    if (!can_run()) {
        return;
    }
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *a = shoal_zeros(shape, 1, SHOAL_U8);
    uint8_t *data = shoal_mutable_data(a);
    REQUIRE(data);
    mark(data);
    shoal_tensor *b = shoal_clone(a);
    check_marks(shoal_data(b), 1);
    check_marks(shoal_data(shoal_add_(a, b)), 2);
    const void *sources[] = {shoal_data(a), shoal_data(b)};
    CHECK_OK(kernel_reduce(SHOAL_SUM, SHOAL_U8, data, sources, 2, (size_t)COUNT, 0));
    check_marks(shoal_data(a), 3);
    shoal_tensor *tail = shoal_narrow(a, 0, -1, 1);
    CHECK_INT(shoal_tensor_offset(tail), COUNT - 1);
    const uint8_t *last = shoal_data(shoal_clone(tail));
    REQUIRE(last);
    CHECK_INT(*last, 12);
    const uint8_t *sum = shoal_data(shoal_sum(a, NULL, 0, false));
    REQUIRE(sum);
    CHECK_INT(*sum, 3 * (1 + 2 + 3 + 4));
    check_packing(a, b);
    CHECK_OK(shoal_scope_end());
}
