/* SPDX-License-Identifier: MIT */
/*
 * Raw collectives on memory of a device: what is refused, what ranks compare, their order with other work of the device,
 * and counts beyond 32 bits. That every form of them has the bits of the CPU is shown by collectives_sweep_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/free_memory.h"
#include "fixtures/rank_world.h"
#include "fixtures/test_device.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/scope.h"

static shoal_device apart(void)
{
    shoal_device device = SHOAL_CPU;
    CHECK_OK(shoal_device_find("apart", &device));
    return device;
}

/* Memory of the device, and where the processor reaches it. */
struct device_memory {
    shoal_tensor *tensor;
    void *address;
    void *reached;
};

static bool make_memory(struct device_memory *memory, size_t bytes)
{
    const int64_t shape = (int64_t)bytes;
    struct address address;
    if (!CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    memory->tensor = shoal_tensor_ref(shoal_empty_on(&shape, 1, SHOAL_U8, apart()));
    if (!CHECK_OK(shoal_scope_end()) || !CHECK_OK(tensor_address(memory->tensor, &address))) {
        return false;
    }
    memory->address = address_pointer(address);
    memory->reached = test_reach(apart(), address, bytes);
    return true;
}

static shoal_collective sum_on(shoal_device device, const void *send, void *recv, size_t count)
{
    shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(send, recv, count, SHOAL_F32, SHOAL_SUM);
    call.device = device;
    return call;
}

static shoal_group *make_group(const struct rank *self, shoal_world *world, const char *tag)
{
    int ranks[8];
    shoal_group *group = NULL;
    for (int i = 0; i < self->n_ranks; i++) {
        ranks[i] = i;
    }
    CHECK_OK(shoal_group_create(world, ranks, self->n_ranks, tag, &group));
    return group;
}

static void close_failed(shoal_world *world)
{
    if (shoal_world_close(world) != SHOAL_OK) {
        /* The world has failed, as it should. */
    }
}

/* With ranks as processes, before there are threads of the device ------------------------------------------ */

enum {
    FORM_BLOCKING,
    FORM_STARTED,
    FORM_PARTS,
    FORM_PLAIN, /* where the rank has host memory */
    FORM_COUNT
};

static shoal_status call_in_form(shoal_group *group, int form, shoal_device device, void *memory)
{
    shoal_work *work = NULL;
    shoal_collective call = sum_on(device, memory, memory, 4);
    const shoal_part part = {.send = memory, .recv = memory, .count = 4, .device = device};
    switch (form) {
    case FORM_STARTED: {
        shoal_status status = shoal_group_collective_start(group, &call, &work);
        status = status == SHOAL_OK ? shoal_work_wait(work, -1) : status;
        shoal_work_free(work);
        return status;
    }
    case FORM_PARTS:
        call.send = NULL;
        call.recv = NULL;
        call.count = 0;
        call.device = SHOAL_CPU;
        call.parts = &part;
        call.n_parts = 1;
        return shoal_group_collective(group, &call);
    case FORM_PLAIN:
        return device == SHOAL_CPU ? shoal_group_all_reduce(group, memory, memory, 4, SHOAL_F32, SHOAL_SUM)
                                   : shoal_group_collective(group, &call);
    default:
        return shoal_group_collective(group, &call);
    }
}

TEST_PROCESSES(another_device_is_a_mismatch, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    struct device_memory there = {0};
    float here[4] = {0};
    REQUIRE(world && make_memory(&there, sizeof here));
    for (int form = 0; form < FORM_COUNT; form++) {
        char tag[16];
        (void)snprintf(tag, sizeof tag, "form %d", form);
        shoal_group *group = make_group(self, world, tag);
        bool is_other = self->rank == 1;
        CHECK_STATUS(
            call_in_form(group, form, is_other ? SHOAL_CPU : apart(), is_other ? here : there.address),
            SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("rank 1 called all_reduce f32 sum count 4 #");
        CHECK_ERROR_TEXT("called all_reduce f32 sum count 4 on apart #");
    }
    shoal_tensor_unref(there.tensor);
    close_failed(world);
}

TEST_PROCESSES(memory_that_is_not_the_devices, 2)
{
    if (HARNESS_HAS_TSAN) {
        test_skip("nothing orders the work of a device that has failed");
        return;
    }
    shoal_world *world = rank_world_open(self, 0);
    struct device_memory there = {0};
    float here[100] = {0};
    REQUIRE(world && make_memory(&there, sizeof here));
    shoal_collective call = sum_on(apart(), there.address, there.address, 100);
    if (self->rank == 1) {
        call.send = here;
        call.recv = here;
    }
    shoal_status status = shoal_group_collective(shoal_world_group(world), &call);
    if (self->rank == 1) {
        CHECK_STATUS(status, SHOAL_ERR_SYSTEM);
        CHECK_ERROR_TEXT("which is no address of the device");
        CHECK_STATUS(device_row(apart())->failure(), SHOAL_ERR_SYSTEM);
        test_forget_failure();
    } else {
        CHECK(status == SHOAL_ERR_SYSTEM || status == SHOAL_ERR_PEER);
    }
    test_barrier(self);
    shoal_tensor_unref(there.tensor);
    close_failed(world);
}

TEST_PROCESSES(transports_that_send_host_memory, 2)
{
    if (!rank_hears_by_messages()) {
        test_skip("ranks share memory");
        return;
    }
    shoal_world *world = rank_world_open(self, 0);
    struct device_memory there = {0};
    REQUIRE(world && make_memory(&there, 64));
    shoal_collective call = sum_on(apart(), there.address, there.address, 4);
    CHECK_STATUS(shoal_group_collective(shoal_world_group(world), &call), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("all_reduce: buffers on device apart; transport ");
    CHECK_ERROR_TEXT(" carries those of the cpu");
    CHECK_STATUS(shoal_group_error(shoal_world_group(world)), SHOAL_ERR_UNSUPPORTED);
    shoal_tensor_unref(there.tensor);
    close_failed(world);
}

/* Their staging and their stream are those of one device. Another group is not concerned. */
TEST_PROCESSES(a_group_has_calls_on_one_device, 2)
{
    if (rank_hears_by_messages()) {
        test_skip("ranks send messages");
        return;
    }
    shoal_device beside = SHOAL_CPU;
    shoal_tensor *tensor = NULL;
    void *data = NULL;
    REQUIRE_OK(shoal_device_find("beside", &beside));
    shoal_world *world = rank_world_open(self, 0);
    struct device_memory there = {0};
    REQUIRE(world && make_memory(&there, 64));
    REQUIRE_OK(shoal_scope_begin());
    tensor = shoal_to_device(shoal_zeros((const int64_t[]){4}, 1, SHOAL_F32), beside);
    REQUIRE(tensor != NULL);
    CHECK_OK(shoal_device_mutable_data(tensor, &data));
    shoal_group *group = shoal_world_group(world);
    shoal_group *other = make_group(self, world, "other");
    shoal_collective call = sum_on(apart(), there.address, there.address, 4);
    CHECK_OK(shoal_group_collective(group, &call));
    call = sum_on(beside, data, data, 4);
    CHECK_OK(shoal_group_collective(other, &call));
    CHECK_STATUS(shoal_group_collective(group, &call), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT(
        "all_reduce: buffers on device beside, but earlier calls on the group had buffers on apart");
    CHECK_OK(shoal_group_error(other));
    CHECK_OK(shoal_scope_end());
    shoal_tensor_unref(there.tensor);
    close_failed(world);
}

/* In the test conformance/collectives_device/oneshot. */
TEST_PROCESSES(a_forced_oneshot_is_refused, 2)
{
    const char *asked = getenv("SHOAL_ALGO");
    if (!asked || strcmp(asked, "oneshot") != 0) {
        test_skip("SHOAL_ALGO is not oneshot");
        return;
    }
    float sum = 1;
    shoal_world *world = rank_world_open(self, 0);
    struct device_memory there = {0};
    REQUIRE(world && make_memory(&there, 64));
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_all_reduce(group, &sum, &sum, 1, SHOAL_F32, SHOAL_SUM));
    CHECK_DOUBLE((double)sum, 2);
    shoal_collective call = sum_on(apart(), there.address, there.address, 4);
    CHECK_STATUS(shoal_group_collective(group, &call), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("all_reduce: SHOAL_ALGO asks for oneshot, which carries no buffers on device apart");
    CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_UNSUPPORTED);
    shoal_tensor_unref(there.tensor);
    close_failed(world);
}

/* Beyond 4 GiB --------------------------------------------------------------------------------------------- */

#define LARGE ((size_t)(1ull << 32) + 5)

/* Bytes that tell places apart that are alike in 32 bits. */
static uint8_t mark_of(size_t at, int rank)
{
    return (uint8_t)(at % 251 + 7 * (size_t)rank + (at >> 32) * 100);
}

static const size_t marked[] = {0, 1, 4, 5, ((size_t)1 << 31), LARGE - 7, LARGE - 6, LARGE - 5, LARGE - 1};

static void set_marks(uint8_t *data, int rank)
{
    memset(data, 0, LARGE);
    for (size_t i = 0; i < sizeof marked / sizeof marked[0]; i++) {
        data[marked[i]] = mark_of(marked[i], rank);
    }
}

/* `rank` -1: the sum of both. */
static void check_marks(const uint8_t *data, int rank)
{
    size_t next = 0;
    size_t n_wrong = 0;
    for (size_t i = 0; i < LARGE; i++) {
        uint8_t wanted = 0;
        if (next < sizeof marked / sizeof marked[0] && marked[next] == i) {
            wanted = rank >= 0 ? mark_of(i, rank) : (uint8_t)(mark_of(i, 0) + mark_of(i, 1));
            next++;
        }
        n_wrong += data[i] != wanted;
    }
    CHECK_INT(n_wrong, 0);
}

TEST_PROCESSES(counts_beyond_32_bits, 2)
{
    if (!test_is_whole()) {
        test_skip("a part of `make sweep`: minutes of copies");
        return;
    }
    if (!free_memory_is_enough(self->n_ranks * (long long)(LARGE + LARGE / 8))) {
        return;
    }
    test_deadline(1800);
    shoal_world *world = rank_world_open(self, 0);
    struct device_memory there = {0};
    REQUIRE(world && make_memory(&there, LARGE));
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_set_timeout(group, 1000));

    set_marks(there.reached, self->rank);
    shoal_collective sum =
        SHOAL_COLLECTIVE_ALL_REDUCE(there.address, there.address, LARGE, SHOAL_U8, SHOAL_SUM);
    sum.device = apart();
    REQUIRE_OK(shoal_group_collective(group, &sum));
    check_marks(there.reached, -1);

    set_marks(there.reached, self->rank);
    shoal_collective broadcast = SHOAL_COLLECTIVE_BROADCAST(there.address, LARGE, SHOAL_U8, 1);
    broadcast.device = apart();
    REQUIRE_OK(shoal_group_collective(group, &broadcast));
    check_marks(there.reached, 1);

    /* Rank 0 has nearly all of it, rank 1 the last three bytes. */
    const size_t counts[] = {LARGE - 3, 3};
    set_marks(there.reached, self->rank);
    shoal_collective gather = SHOAL_COLLECTIVE_ALL_GATHER_V(
        (char *)there.address + (self->rank == 0 ? 0 : counts[0]), there.address, counts, SHOAL_U8);
    gather.device = apart();
    REQUIRE_OK(shoal_group_collective(group, &gather));
    CHECK_INT(((uint8_t *)there.reached)[LARGE - 1], mark_of(LARGE - 1, 1));
    ((uint8_t *)there.reached)[LARGE - 1] = mark_of(LARGE - 1, 0);
    check_marks(there.reached, 0);
    shoal_tensor_unref(there.tensor);
    CHECK_OK(shoal_world_close(world));
}

/* Refused at once ------------------------------------------------------------------------------------------ */

TEST_RANKS(parts_on_two_devices, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    struct device_memory there = {0};
    float here[4] = {0};
    REQUIRE(world && make_memory(&there, sizeof here));
    shoal_group *group = shoal_world_group(world);
    shoal_part parts[] = {{.send = there.address, .recv = there.address, .count = 4, .device = apart()},
                          {.send = here, .recv = here, .count = 4}};
    shoal_collective call = sum_on(SHOAL_CPU, NULL, NULL, 0);
    call.parts = parts;
    call.n_parts = 2;
    CHECK_STATUS(shoal_group_collective(group, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("all_reduce: part 0 is on device apart, part 1 on device cpu");
    shoal_work *work = NULL;
    CHECK_STATUS(shoal_group_collective_start(group, &call, &work), SHOAL_ERR_INVALID);
    CHECK(!work);
    call.parts = NULL;
    call.n_parts = 0;
    call.device = apart();
    call.count = 4;
    CHECK_STATUS(shoal_group_collective(group, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("all_reduce: send is NULL, but has 16 bytes");
    call.send = there.address;
    call.recv = (char *)there.address + 4;
    CHECK_STATUS(shoal_group_collective(group, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("overlap");
    /* Nothing has happened to the group. */
    CHECK_OK(shoal_group_all_reduce(group, here, here, 4, SHOAL_F32, SHOAL_SUM));
    shoal_tensor_unref(there.tensor);
    CHECK_OK(shoal_world_close(world));
}

/* Order ---------------------------------------------------------------------------------------------------- */

static void count_call(void *context)
{
    (void)atomic_fetch_add((_Atomic int *)context, 1);
}

static void count_done(void *context, shoal_status status)
{
    CHECK_INT(status, SHOAL_OK);
    count_call(context);
}

/* The call reads what ops have been asked to write, and what it has written can be read when it has ended. */
TEST_RANKS(a_call_comes_behind_the_work_of_ops, 3)
{
    enum {
        COUNT = 1001
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int round = 0; round < 20; round++) {
        static _Thread_local float found[COUNT];
        const int64_t shape = COUNT;
        struct address from;
        struct address to;
        _Atomic int n_calls = 0;
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *ones =
            shoal_to_device(shoal_full(&shape, 1, (double)(self->rank + 1), SHOAL_F32), apart());
        shoal_tensor *sums = shoal_empty_on(&shape, 1, SHOAL_F32, apart());
        shoal_tensor *doubled = shoal_add(ones, ones);
        for (int i = 0; i < 5; i++) {
            doubled = shoal_add(doubled, ones);
        }
        REQUIRE(doubled && sums);
        REQUIRE_OK(tensor_address(doubled, &from));
        REQUIRE_OK(tensor_address(sums, &to));
        shoal_collective call = sum_on(apart(), address_pointer(from), address_pointer(to), COUNT);
        call.on_done = count_done;
        call.release = count_call;
        call.context = &n_calls;
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_group_collective_start(shoal_world_group(world), &call, &work));
        CHECK_OK(shoal_work_wait(work, -1));
        shoal_work_free(work);
        CHECK_INT(atomic_load(&n_calls), 2);
        CHECK_OK(shoal_read(shoal_add(sums, sums), found, sizeof found));
        CHECK_DOUBLE((double)found[0], 2 * 7 * 6);
        CHECK_DOUBLE((double)found[COUNT - 1], 2 * 7 * 6);
        CHECK_OK(shoal_scope_end());
    }
    CHECK_OK(shoal_world_close(world));
}

/* Copies of the rank's own memory, which the process keeps: last. */
TEST(a_count_beyond_32_bits_alone)
{
    if (!test_is_whole()) {
        test_skip("a part of `make sweep`: minutes of copies");
        return;
    }
    if (!free_memory_is_enough((long long)(2 * LARGE + LARGE / 8))) {
        return;
    }
    test_deadline(1800);
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1};
    shoal_world *world = NULL;
    struct device_memory from = {0};
    struct device_memory to = {0};
    REQUIRE_OK(shoal_world_open(&options, &world));
    REQUIRE(make_memory(&from, LARGE) && make_memory(&to, LARGE));
    set_marks(from.reached, 0);
    shoal_collective gather = SHOAL_COLLECTIVE_ALL_GATHER(from.address, to.address, LARGE, SHOAL_U8);
    gather.device = apart();
    CHECK_OK(shoal_group_collective(shoal_world_group(world), &gather));
    check_marks(to.reached, 0);
    shoal_tensor_unref(from.tensor);
    shoal_tensor_unref(to.tensor);
    CHECK_OK(shoal_world_close(world));
}
