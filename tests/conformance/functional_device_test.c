/* SPDX-License-Identifier: MIT */
/*
 * Collectives of tensors on a device: many rounds through the shared staging with the bits of the CPU, and what ends them:
 * another device on one rank, calls of the device that fail, work that hangs, a rank that dies, and what has no way.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fixtures/functional.h"
#include "harness/harness.h"
#include "shoal/autograd.h"
#include "shoal/update.h"
#include "transport/shm/device.h"

static shoal_device apart(void)
{
    shoal_device device = SHOAL_CPU;
    CHECK_OK(shoal_device_find("apart", &device));
    return device;
}

/* Numbers of this rank, on the CPU. */
static shoal_tensor *make_numbers(const struct functional *self, int64_t count, uint64_t seed)
{
    struct test_random random = test_random_begin(seed + (uint64_t)self->rank * 77);
    shoal_tensor *tensor = shoal_empty_on(&count, 1, SHOAL_F32, SHOAL_CPU);
    float *values = (shoal_mutable_data)(tensor);
    for (int64_t i = 0; values && i < count; i++) {
        values[i] = (float)(test_random_unit(&random) - 0.5);
    }
    return tensor;
}

typedef shoal_tensor *collective_function(shoal_tensor *input, const struct functional *self);

static shoal_tensor *reduce_all(shoal_tensor *input, const struct functional *self)
{
    return shoal_all_reduce(input, SHOAL_SUM, self->group);
}

static shoal_tensor *gather_all(shoal_tensor *input, const struct functional *self)
{
    return shoal_all_gather_tensor(input, 0, self->group);
}

static shoal_tensor *reduce_and_scatter(shoal_tensor *input, const struct functional *self)
{
    return shoal_reduce_scatter_tensor(input, SHOAL_AVG, 0, self->group);
}

static shoal_tensor *exchange(shoal_tensor *input, const struct functional *self)
{
    return shoal_all_to_all_single(input, NULL, NULL, 0, self->group);
}

static shoal_tensor *broadcast_last(shoal_tensor *input, const struct functional *self)
{
    return shoal_broadcast(input, self->n_ranks - 1, self->group);
}

static void check_same(const struct functional *self, collective_function *collective, int64_t count)
{
    CASE_BEGIN();
    shoal_tensor *input = make_numbers(self, count, (uint64_t)count);
    shoal_tensor *here = collective(input, self);
    shoal_tensor *there = collective(shoal_to_device(input, apart()), self);
    REQUIRE(here && there);
    CHECK(shoal_tensor_device(there) == apart());
    const void *wanted = (shoal_data)(here);
    const void *found = (shoal_data)(shoal_to_device(there, SHOAL_CPU));
    size_t bytes = (size_t)shoal_tensor_count(here) * sizeof(float);
    CHECK(wanted && found && memcmp(wanted, found, bytes) == 0);
    CASE_END();
}

/* What ends a call: with ranks as processes, because threads would share the device and its failures --------- */

static void begin_failing(struct functional *self, struct rank *harness)
{
    *self = (struct functional){.harness = harness, .world = rank_world_open(harness, 0)};
    REQUIRE(self->world);
    functional_use_group(self, shoal_world_group(self->world));
    (void)apart();
}

static void end_failing(const struct functional *self)
{
    if (shoal_world_close(self->world) != SHOAL_OK) {
        /* The world has failed, as it should. */
    }
}

/* One all_reduce of tensors on the device; `text` gets the error's. */
static shoal_status reduce_on(const struct functional *self, shoal_device device, char text[400])
{
    shoal_status status = shoal_scope_begin();
    (void)snprintf(text, 400, "%s", shoal_error_text());
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *sum = reduce_all(shoal_to_device(make_numbers(self, 100, 3), device), self);
    status = sum ? shoal_wait(sum) : shoal_scope_error();
    (void)snprintf(text, 400, "%s", shoal_error_text());
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

static void check_text(const char *text, const char *words)
{
    if (!strstr(text, words)) {
        test_failed(__FILE__, __LINE__, "the text is \"%s\", expected to find \"%s\" in it", text, words);
    }
}

TEST_PROCESSES(another_device_is_a_mismatch, 3)
{
    char text[400];
    struct functional ranks;
    begin_failing(&ranks, self);
    CHECK_STATUS(reduce_on(&ranks, self->rank == 1 ? SHOAL_CPU : apart(), text), SHOAL_ERR_MISMATCH);
    check_text(text, "rank 1 called all_reduce f32 sum count 100");
    check_text(text, "on apart");
    end_failing(&ranks);
}

/* Their numbers are in the order in which a process loads modules. */
TEST_PROCESSES(devices_are_compared_by_name, 3)
{
    char text[400];
    struct functional ranks;
    shoal_device beside = SHOAL_CPU;
    if (self->rank == 1) {
        REQUIRE_OK(shoal_device_find("beside", &beside));
    }
    begin_failing(&ranks, self);
    CHECK_INT(apart(), self->rank == 1 ? 17 : 16);
    CHECK_OK(reduce_on(&ranks, apart(), text)); /* another number */
    CHECK_OK(shoal_world_close(ranks.world));
    begin_failing(&ranks, self);
    /* And the same number, but another device. */
    CHECK_STATUS(reduce_on(&ranks, self->rank == 1 ? beside : apart(), text), SHOAL_ERR_MISMATCH);
    check_text(text, "called all_reduce f32 sum count 100 on apart");
    check_text(text, "rank 1 called all_reduce f32 sum count 100 on beside");
    end_failing(&ranks);
}

static shoal_status reduce_raw(const struct functional *ranks, shoal_device device)
{
    struct address memory;
    if (device_memory_allocate(device, 100 * sizeof(float), &memory) != SHOAL_OK) {
        return SHOAL_ERR_NO_MEMORY;
    }
    void *data = address_pointer(memory);
    shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(data, data, 100, SHOAL_F32, SHOAL_SUM);
    call.device = device;
    shoal_status status = shoal_group_collective(ranks->group, &call);
    device_memory_free(device, memory);
    return status;
}

/* Raw calls have no purpose that is compared; the device is. */
TEST_PROCESSES(devices_of_raw_calls_are_compared_by_name, 3)
{
    struct functional ranks;
    shoal_device beside = SHOAL_CPU;
    REQUIRE_OK(shoal_device_find("beside", &beside));
    begin_failing(&ranks, self);
    CHECK_STATUS(reduce_raw(&ranks, self->rank == 1 ? beside : apart()), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("called all_reduce f32 sum count 100 on apart");
    CHECK_ERROR_TEXT("rank 1 called all_reduce f32 sum count 100 on beside");
    end_failing(&ranks);
}

/* Memory runs out on one rank: on the device, then on the host. */
TEST_PROCESSES(memory_runs_out_on_one_rank, 2)
{
    for (int is_host = 0; is_host < 2; is_host++) {
        for (int64_t n = 1; n <= (is_host ? 24 : 6); n++) {
            char text[400];
            struct functional ranks;
            begin_failing(&ranks, self);
            CHECK_OK(reduce_on(&ranks, apart(), text));
            uint64_t n_bytes = atomic_load(&test_apart()->n_bytes);
            if (self->rank == 1) {
                atomic_store(&test_apart()->no_memory_at, is_host ? 0 : n);
                test_fail_allocation(is_host ? (size_t)n : 0, /*is_lasting=*/false);
            }
            shoal_status status = reduce_on(&ranks, apart(), text);
            atomic_store(&test_apart()->no_memory_at, 0);
            test_fail_allocation(0, false);
            if (self->rank == 1 && status != SHOAL_OK && status != SHOAL_ERR_NO_MEMORY) {
                test_failed(__FILE__, __LINE__, "allocation %d gave %s: %s", (int)n,
                            shoal_status_name(status), text);
            }
            CHECK_INT(atomic_load(&test_apart()->n_bytes), n_bytes);
            end_failing(&ranks);
            test_barrier(self);
        }
    }
}

TEST_PROCESSES(a_call_of_the_device_fails_on_one_rank, 3)
{
    if (HARNESS_HAS_TSAN) {
        test_skip("nothing orders the work of a device that has failed");
        return;
    }
    for (int64_t n = 1; n <= 30; n++) {
        char text[400];
        struct functional ranks;
        begin_failing(&ranks, self);
        if (self->rank == 1) {
            atomic_store(&test_apart()->fail_at, n);
        }
        shoal_status status = reduce_on(&ranks, apart(), text);
        CHECK(status == SHOAL_ERR_SYSTEM || status == SHOAL_OK || status == SHOAL_ERR_PEER);
        if (status == SHOAL_ERR_SYSTEM || (self->rank == 1 && status != SHOAL_OK)) {
            check_text(text, "device apart has failed: call ");
        }
        if (status == SHOAL_ERR_SYSTEM && self->rank != 1) { /* it is not the device of this rank */
            check_text(text, "rank 1: ");
            CHECK(!strstr(text, "rank 0: rank ") && !strstr(text, "rank 2: rank "));
        }
        atomic_store(&test_apart()->fail_at, 0);
        test_forget_failure();
        end_failing(&ranks);
        test_barrier(self);
    }
}

/* The rank that fails does not leave: the others hear of it all the same. */
TEST_PROCESSES(a_call_that_is_not_issued_fails_on_every_rank, 3)
{
    struct functional ranks;
    begin_failing(&ranks, self);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *there = shoal_to_device(make_numbers(&ranks, 100, 3), apart());
    test_finish(apart());
    if (self->rank == 1) {
        atomic_store(&test_apart()->fail_at, 1);
    }
    shoal_tensor *sum = shoal_all_reduce_(there, SHOAL_SUM, ranks.group);
    CHECK_STATUS(sum ? shoal_wait(sum) : shoal_scope_error(), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("rank 1: device apart has failed: call record failed, as asked for");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_SYSTEM);
    test_barrier(self);
    test_forget_failure();
    end_failing(&ranks);
}

TEST_PROCESSES(a_device_that_does_not_end_its_work, 2)
{
    char text[400];
    struct functional ranks;
    begin_failing(&ranks, self);
    CHECK_OK(reduce_on(&ranks, apart(), text));
    CHECK_OK(shoal_group_set_timeout(ranks.group, 0.5));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *there = shoal_to_device(make_numbers(&ranks, 100, 3), apart());
    if (self->rank == 1) {
        atomic_store(&test_apart()->is_held, 1);
    }
    shoal_tensor *sum = reduce_all(there, &ranks);
    CHECK_STATUS(shoal_wait(sum), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT(self->rank == 1 ? "all_reduce: the work of device apart"
                                     : "all_reduce f32 sum count 100 on apart");
    atomic_store(&test_apart()->is_held, 0);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_TIMEOUT);
    end_failing(&ranks);
}

TEST_PROCESSES(a_rank_dies_before_a_call, 3)
{
    char text[400];
    struct functional ranks;
    begin_failing(&ranks, self);
    CHECK_OK(reduce_on(&ranks, apart(), text));
    test_expect_death(2, SIGKILL);
    if (self->rank == 2) {
        (void)kill(getpid(), SIGKILL);
    }
    CHECK_STATUS(reduce_on(&ranks, apart(), text), SHOAL_ERR_PEER);
    check_text(text, "rank 2");
    end_failing(&ranks);
}

TEST_PROCESSES(what_has_no_way_says_so, 2)
{
    struct functional ranks;
    begin_failing(&ranks, self);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *there = shoal_to_device(make_numbers(&ranks, 8, 3), apart());
    CHECK(!shoal_isend(there, 1 - self->rank, 0, ranks.group));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("isend: messages of tensors on device apart: only those of the cpu are sent");
    CHECK_OK(shoal_world_close(ranks.world));
}

/* Bits: last, because the threads of a device that is there make the thread sanitizer end forked children ----- */

/* Gradients that a collective still writes: clipping and the update wait for them. */
FUNCTIONAL_ON_1_TO_5(gradients_in_flight_are_waited_for)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        CASE_BEGIN();
        double norms[2] = {0};
        shoal_tensor *parameters[2];
        for (int k = 0; k < 2; k++) {
            const shoal_device device = k == 0 ? SHOAL_CPU : apart();
            parameters[k] = shoal_to_device(shoal_clone(make_numbers(self, 1000, seed)), device);
            shoal_tensor *gradient =
                reduce_all(shoal_to_device(make_numbers(self, 1000, seed + 100), device), self);
            REQUIRE(parameters[k] && gradient);
            CHECK_OK(shoal_set_requires_grad(parameters[k], true));
            CHECK_OK(shoal_set_grad(parameters[k], gradient));
            if (seed % 2 == 0) {
                CHECK_OK(shoal_clip_grad_norm(&parameters[k], 1, 0.5, 2, true, &norms[k]));
            }
            const shoal_update update = {.parameter = parameters[k], .gradient = gradient, .lr = 0.25};
            CHECK_OK(shoal_update_parameters(SHOAL_UPDATE_SGD, &update, 1));
        }
        CHECK_DOUBLE(norms[1], norms[0]);
        float wanted[1000];
        float found[1000];
        CHECK_OK(shoal_read(parameters[0], wanted, sizeof wanted));
        CHECK_OK(shoal_read(parameters[1], found, sizeof found));
        CHECK_BYTES(found, wanted, sizeof wanted);
        CASE_END();
    }
}

FUNCTIONAL_ON_1_TO_5(many_rounds_have_the_bits_of_the_cpu)
{
    const int64_t half = (int64_t)(SHM_DEVICE_HALF_BYTES / sizeof(float));
    const int64_t n = self->n_ranks;
    const int64_t counts[] = {0, n, half - half % n, 2 * half + n - 2 * half % n,
                              5 * half + n - 5 * half % n};
    const size_t n_counts =
        sizeof counts / sizeof counts[0] - HARNESS_HAS_TSAN; /* the last takes it a minute */
    collective_function *const functions[] = {reduce_all, gather_all, reduce_and_scatter, exchange,
                                              broadcast_last};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        for (size_t k = 0; k < n_counts; k++) {
            check_same(self, functions[i], counts[k]);
        }
    }
}
