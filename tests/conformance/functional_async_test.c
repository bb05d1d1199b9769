/* SPDX-License-Identifier: MIT */
/*
 * A functional collective returns before its peers arrive, and its result is waited for where it is used and
 * nowhere else; what is in flight may be dropped, viewed, waited for twice, from anywhere, or never.
 *
 * It is checked by order, not by the clock: rank 1 comes only when rank 0 has said that it went on.
 */
#include <dlpack/dlpack.h>
#include <pthread.h>
#include <stdatomic.h>

#include "comm/lane/work.h"
#include "comm/group/world.h"
#include "fixtures/groups.h"
#include "fixtures/functional_calls.h"
#include "harness/harness.h"
#include "shoal_compat/torch.h"
#include "shoal/dlpack.h"
#include "shoal/log.h"

enum {
    SMALL_ROWS = 64, /* 1 KiB */
    /* 4 MiB; a quarter under a sanitizer, which takes its time */
    LARGE_ROWS = HARNESS_HAS_ASAN || HARNESS_HAS_TSAN ? 1 << 16 : 1 << 18
};

/* Rank 1's coming, in memory that both see. */
struct meeting {
    _Atomic int n_come;
};

static struct meeting *meeting_of(const struct functional *self)
{
    return self->harness->shared;
}

/* Rank 0 goes on; rank 1 stays until rank 0 has called let_come, and a little longer. Each round of a test is one coming. */
static void come_late(const struct functional *self)
{
    test_barrier(self->harness);
    if (self->rank == 1) {
        test_barrier(self->harness);
        test_pause(0.001);
        atomic_fetch_add(&meeting_of(self)->n_come, 1);
    }
}

static void let_come(const struct functional *self)
{
    if (self->rank == 0) {
        test_barrier(self->harness);
    }
}

static int n_come(const struct functional *self)
{
    return atomic_load(&meeting_of(self)->n_come);
}

static uint64_t n_unawaited(const struct functional *self)
{
    return atomic_load(&self->world->works->n_unawaited);
}

/* Every op --------------------------------------------------------------------------------------------- */

TEST(every_op_has_a_call)
{
    check_every_op_has_a_call();
}

/* Everything that can be asked, and every view that can be taken, of a tensor that has not come. */
static void look_without_waiting(shoal_tensor *tensor)
{
    int n_dims = shoal_tensor_n_dims(tensor);
    CHECK_INT(shoal_tensor_dtype(tensor), SHOAL_F32);
    CHECK_INT(shoal_tensor_device(tensor), SHOAL_CPU);
    CHECK(shoal_tensor_shape(tensor) && shoal_tensor_strides(tensor));
    CHECK(shoal_tensor_is_contiguous(tensor));
    CHECK_INT(shoal_tensor_offset(tensor), 0);
    CHECK_OK(shoal_tensor_set_name(tensor, "in flight"));
    CHECK_STRING(shoal_tensor_name(tensor), "in flight");
    (void)shoal_tensor_version(tensor);
    if (n_dims < 2) {
        return;
    }
    shoal_tensor *flat = shoal_flatten(tensor, 0, -1);
    CHECK(shoal_tensor_shares_storage(flat, tensor));
    CHECK(shoal_view(flat, INTS64(-1, 2), 2) && shoal_reshape(tensor, INTS64(2, -1), 2));
    CHECK(shoal_narrow(tensor, 0, 1, 1) && shoal_slice(flat, 0, 0, 3, 2) && shoal_select(tensor, 0, -1));
    CHECK(shoal_transpose(tensor, 0, 1) && shoal_permute(tensor, INTS64(1, 0), 2));
    CHECK(shoal_squeeze_all(shoal_unsqueeze(tensor, 1)));
    CHECK(shoal_view_dtype(tensor, SHOAL_I32) && shoal_view_dtype(flat, SHOAL_U8));
    CHECK(shoal_as_strided(tensor, INTS64(2, 2), INTS64(1, 1), 2, 1));
    CHECK(shoal_split(flat, 7, 0, &(size_t){0}) && shoal_chunk(flat, 3, 0, &(size_t){0}));
    CHECK(shoal_contiguous(tensor) == tensor && shoal_to_dtype(tensor, SHOAL_F32) == tensor);
}

static void try_call(struct functional *self, shoal_symmetric *memory, const struct call_row *row,
                     int64_t n_rows)
{
    CASE_BEGIN();
    struct call call = call_prepare(self, memory, 0, n_rows);
    int before = n_come(self);
    come_late(self);
    shoal_tensor *result = row->start(&call);
    if (!result) {
        test_failed(__FILE__, __LINE__, "%s: %s", row->name, shoal_error_text());
    }
    if (self->rank == 0) {
        look_without_waiting(result);
        CHECK_INT(n_come(self), before);
    }
    let_come(self);
    if (self->rank == 0) {
        check_call_result(row, result);
        if (n_come(self) == before && !(row->is_sent && n_rows == SMALL_ROWS)) {
            test_failed(__FILE__, __LINE__, "%s: the result is there before rank 1 has come", row->name);
        }
    } else {
        CHECK_OK(shoal_wait(result));
    }
    test_barrier(self->harness);
    CASE_END();
}

static void try_calls(struct functional *self, int64_t n_rows)
{
    shoal_symmetric *memory = NULL;
    REQUIRE_OK(shoal_symmetric_create(self->group, CALL_SYMMETRIC_BYTES, &memory));
    for (size_t i = 0; i < N_CALL_ROWS; i++) {
        try_call(self, memory, &call_rows[i], n_rows);
    }
    test_barrier(self->harness);
    shoal_symmetric_free(memory);
}

FUNCTIONAL(no_call_waits, 2)
{
    try_calls(self, SMALL_ROWS);
}

FUNCTIONAL(no_large_call_waits, 2)
{
    try_calls(self, LARGE_ROWS);
}

/* On lanes that were never used. */
static void call_before_a_late_rank(struct functional *self, int64_t n_rows)
{
    static const struct {
        const char *tag;
        shoal_tensor *(*start)(struct call *call);
    } calls[] = {{"a", call_all_reduce}, {"b", call_all_gather_tensor}, {"c", call_irecv}};
    struct call call = {.rank = self->rank, .other = 1 - self->rank};
    call.input = full_of(SHAPE(n_rows, 4), self->rank + 1, SHOAL_F32);
    call.target = full_of(SHAPE(n_rows, 4), -1, SHOAL_F32);
    shoal_tensor *results[3];
    int before = n_come(self);
    come_late(self);
    for (int i = 0; i < 3; i++) {
        call.group = group_of_ranks(self->world, (const int[]){0, 1}, 2, calls[i].tag);
        results[i] = calls[i].start(&call);
        REQUIRE(results[i]);
    }
    if (self->rank == 0) {
        CHECK_INT(n_come(self), before);
    }
    let_come(self);
    if (self->rank == 0) {
        CHECK_DOUBLE((double)*(const float *)shoal_data(results[0]), 3);
        CHECK_DOUBLE((double)*(const float *)shoal_data(results[1]), 1);
        CHECK_DOUBLE((double)*(const float *)shoal_data(results[2]), 2);
    }
    CHECK(shoal_wait_tensors(results, 3));
}

FUNCTIONAL(calls_return_before_a_late_rank, 2)
{
    call_before_a_late_rank(self, SMALL_ROWS);
}

FUNCTIONAL(large_calls_return_before_a_late_rank, 2)
{
    call_before_a_late_rank(self, LARGE_ROWS);
}

/* First use -------------------------------------------------------------------------------------------- */

static bool use_data(shoal_tensor *tensor)
{
    return shoal_data(tensor) != NULL;
}

static bool use_mutable_data(shoal_tensor *tensor)
{
    return shoal_mutable_data(tensor) != NULL;
}

static bool use_wait(shoal_tensor *tensor)
{
    return CHECK_OK(shoal_wait(tensor));
}

static bool use_wait_tensor(shoal_tensor *tensor)
{
    return shoal_wait_tensor(tensor) == tensor;
}

static bool use_wait_tensors(shoal_tensor *tensor)
{
    shoal_tensor *const *waited = shoal_wait_tensors(LIST(tensor, tensor), 2);
    return waited && waited[0] == tensor && waited[1] == tensor;
}

static bool use_clone(shoal_tensor *tensor)
{
    return shoal_clone(tensor) != NULL;
}

static bool use_to_dtype(shoal_tensor *tensor)
{
    return shoal_to_dtype(tensor, SHOAL_BF16) != NULL;
}

static bool use_contiguous(shoal_tensor *tensor)
{
    return shoal_contiguous(shoal_transpose(tensor, 0, 1)) != NULL;
}

static bool use_reshape_that_copies(shoal_tensor *tensor)
{
    return shoal_reshape(shoal_transpose(tensor, 0, 1), INTS64(-1), 1) != NULL;
}

static bool use_add(shoal_tensor *tensor)
{
    return shoal_add(full_of(SHAPE(1), 1, SHOAL_F32), tensor) != NULL;
}

static bool use_in_place(shoal_tensor *tensor)
{
    return shoal_mul_scalar_(tensor, 1) == tensor;
}

static bool use_as_source(shoal_tensor *tensor)
{
    return shoal_copy_(full_of(SHAPE(4), 0, SHOAL_F32), shoal_select(shoal_narrow(tensor, 1, 0, 4), 0, 0)) !=
           NULL;
}

static bool use_in_a_list(shoal_tensor *tensor)
{
    return shoal_cat(LIST(tensor, tensor), 2, 0) != NULL;
}

static bool use_dlpack(shoal_tensor *tensor)
{
    struct DLManagedTensor *managed = NULL;
    bool is_good = CHECK_OK(shoal_to_dlpack(tensor, &managed));
    if (is_good) {
        managed->deleter(managed);
    }
    return is_good;
}

/* Not the tensor itself but a view of it, and of that. */
static bool use_view(shoal_tensor *tensor)
{
    return shoal_data(shoal_select(shoal_narrow(tensor, 0, 3, 2), 1, 2)) != NULL;
}

FUNCTIONAL(every_first_use_waits, 2)
{
    static bool (*const uses[])(shoal_tensor *
                                tensor) = {use_data,        use_mutable_data, use_wait,
                                           use_wait_tensor, use_wait_tensors, use_clone,
                                           use_to_dtype,    use_contiguous,   use_reshape_that_copies,
                                           use_add,         use_in_place,     use_as_source,
                                           use_in_a_list,   use_dlpack,       use_view};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        CASE_BEGIN();
        shoal_tensor *input = full_of(SHAPE(8, 4), self->rank + 1, SHOAL_F32);
        int before = n_come(self);
        come_late(self);
        shoal_tensor *direct = shoal_all_reduce(input, SHOAL_SUM, self->group);
        shoal_tensor *staged = shoal_all_gather_tensor(input, 1, self->group);
        CHECK(direct && staged);
        let_come(self);
        if (!uses[i](i % 2 ? staged : direct) || n_come(self) == before) {
            test_failed(__FILE__, __LINE__, "use %zu did not wait: %s", i, shoal_error_text());
        }
        CHECK(uses[i](i % 2 ? direct : staged));
        CHECK_FULL(direct, SHAPE(8, 4), 3);
        CHECK_FULL(shoal_narrow(staged, 1, 4, 4), SHAPE(8, 4), 2);
        CASE_END();
    }
}

/* Nothing is left to be waited for, whoever waited: the tensor, a view of it, or what it is a view of. */
FUNCTIONAL(waiting_is_done_once_for_all_views, 2)
{
    CHECK_INT(n_unawaited(self), 0);
    for (int i = 0; i < 3; i++) {
        CASE_BEGIN();
        shoal_tensor *tensor =
            shoal_all_gather_tensor(full_of(SHAPE(2, 3), self->rank, SHOAL_F32), i % 2, self->group);
        shoal_tensor *view = shoal_narrow(tensor, 0, 1, 1);
        CHECK_INT(n_unawaited(self), 1);
        CHECK(i == 0 ? shoal_wait_tensor(view) == view : shoal_wait_tensor(tensor) == tensor);
        CHECK_INT(n_unawaited(self), 0);
        for (int k = 0; k < 3; k++) {
            CHECK(shoal_wait_tensor(tensor) == tensor && shoal_wait_tensor(view) == view);
            CHECK_OK(shoal_wait(view));
        }
        CHECK(shoal_data(tensor) && shoal_data(view));
        CASE_END();
    }
    /* One work of many outputs: one of them is enough. */
    shoal_tensor *const tensors[3] = {full_of(SHAPE(1), 1, SHOAL_F32), full_of(SHAPE(0), 1, SHOAL_F32),
                                      full_of(SHAPE(3), 1, SHOAL_F32)};
    shoal_tensor *const *sums = shoal_all_reduce_coalesced(tensors, 3, SHOAL_SUM, self->group);
    REQUIRE(sums);
    CHECK_INT(n_unawaited(self), 1);
    CHECK(shoal_wait_tensor(sums[1]) == sums[1]);
    CHECK_INT(n_unawaited(self), 0);
    CHECK_FULL(sums[2], SHAPE(3), 2);
    /* What is sent: either the placeholder or the tensor that may be written again. */
    for (int i = 0; i < 2; i++) {
        shoal_tensor *message = full_of(SHAPE(3), 5, SHOAL_F32);
        shoal_tensor *placeholder = shoal_isend(message, 1 - self->rank, 0, self->group);
        CHECK(i == 0 ? shoal_wait_tensor(placeholder) != NULL : shoal_mutable_data(message) != NULL);
        CHECK_INT(n_unawaited(self), 0);
        CHECK_FULL(shoal_irecv(full_of(SHAPE(3), 0, SHOAL_F32), 1 - self->rank, 0, self->group), SHAPE(3), 5);
    }
}

struct waiter {
    shoal_tensor *tensor;
    shoal_status status;
    float first;
};

static void *wait_elsewhere(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = shoal_wait(waiter->tensor);
    const float *data = shoal_data(waiter->tensor);
    waiter->first = data ? data[0] : -1;
    return NULL;
}

/* CrossThreadWait, and both threads at once. */
FUNCTIONAL(waiting_on_another_thread, 2)
{
    for (int i = 0; i < 20; i++) {
        CASE_BEGIN();
        pthread_t threads[2];
        struct waiter waiters[2];
        int64_t n_rows = i % 4 == 3 ? 20000 : 2;
        shoal_tensor *input = full_of(SHAPE(n_rows, 4), self->rank + 1, SHOAL_F32);
        int before = n_come(self);
        come_late(self);
        shoal_tensor *sum = shoal_all_reduce(input, SHOAL_SUM, self->group);
        shoal_tensor *all = shoal_all_gather_tensor(input, 1, self->group);
        waiters[0] = (struct waiter){.tensor = i % 2 ? all : sum};
        waiters[1] = (struct waiter){.tensor = shoal_narrow(i % 2 ? sum : all, 0, 1, 1)};
        for (int k = 0; k < 2; k++) {
            REQUIRE(pthread_create(&threads[k], NULL, wait_elsewhere, &waiters[k]) == 0);
        }
        let_come(self);
        if (i % 5 == 0) {
            CHECK_OK(shoal_wait(sum));
        }
        for (int k = 0; k < 2; k++) {
            (void)pthread_join(threads[k], NULL);
            CHECK_STATUS(waiters[k].status, SHOAL_OK);
        }
        CHECK(n_come(self) > before);
        CHECK_DOUBLE((double)waiters[i % 2].first, 3);
        CHECK_DOUBLE((double)waiters[1 - i % 2].first, 1);
        CHECK_INT(n_unawaited(self), 0);
        CASE_END();
    }
}

/* Dropped ---------------------------------------------------------------------------------------------- */

/* Nobody looks, and all tensors are gone before rank 1 comes: that neither waits, nor breaks, nor leaks. */
static void drop_calls(struct functional *self, int64_t n_rows)
{
    shoal_symmetric *memory = NULL;
    REQUIRE_OK(shoal_symmetric_create(self->group, CALL_SYMMETRIC_BYTES, &memory));
    for (size_t i = 0; i < N_CALL_ROWS; i++) {
        const struct call_row *row = &call_rows[i];
        int before = n_come(self);
        come_late(self);
        CASE_BEGIN();
        struct call call = call_prepare(self, memory, 0, n_rows);
        if (!row->start(&call)) {
            test_failed(__FILE__, __LINE__, "%s: %s", row->name, shoal_error_text());
        }
        CASE_END();
        if (self->rank == 0) {
            CHECK_INT(n_come(self), before);
        }
        let_come(self);
        /* Symmetric memory is written by the next call: it stays with the caller, who must know. */
        CHECK_OK(shoal_group_barrier(self->group));
    }
    test_barrier(self->harness);
    shoal_symmetric_free(memory);
}

FUNCTIONAL(dropped_in_flight, 2)
{
    drop_calls(self, SMALL_ROWS);
}

FUNCTIONAL(dropped_in_flight_large, 2)
{
    drop_calls(self, LARGE_ROWS);
}

/* Inputs that are gone, or given back, right after the call; their memory is soon somebody else's. */
FUNCTIONAL(inputs_that_are_gone, 2)
{
    for (int i = 0; i < 8; i++) {
        int64_t count = i % 2 ? 100000 : 10;
        bool is_released = i / 2 % 2;
        CASE_BEGIN();
        come_late(self);
        CASE_BEGIN();
        shoal_tensor *input = full_of(SHAPE(count, 2), self->rank + 1, SHOAL_F32);
        shoal_tensor *direct = shoal_scope_keep(shoal_all_reduce(input, SHOAL_SUM, self->group));
        shoal_tensor *staged =
            shoal_scope_keep(shoal_reduce_scatter_tensor(input, SHOAL_SUM, 1, self->group));
        if (is_released) {
            CHECK_OK(shoal_tensor_release_data(input));
        }
        CASE_END();
        shoal_tensor *garbage = full_of(SHAPE(count, 2), -77, SHOAL_F32);
        CHECK(garbage);
        let_come(self);
        CHECK_FULL(direct, SHAPE(count, 2), 3);
        CHECK_FULL(staged, SHAPE(count, 1), 3);
        CASE_END();
        functional_free_all();
    }
}

/* Outputs too: the work writes memory that nobody looks at any more, and the next tensor there is not touched. */
FUNCTIONAL(outputs_that_are_gone, 2)
{
    for (int i = 0; i < 4; i++) {
        int64_t count = i % 2 ? 100000 : 10;
        CASE_BEGIN();
        come_late(self);
        shoal_tensor *result =
            shoal_all_gather_tensor(full_of(SHAPE(count, 2), self->rank, SHOAL_F32), i / 2, self->group);
        CHECK_OK(shoal_tensor_release_data(result));
        CHECK_OK(shoal_tensor_rebind_data(result, NULL, NULL, NULL));
        float *data = shoal_mutable_data(result);
        REQUIRE(data);
        for (int64_t k = 0; k < 4 * count; k++) {
            data[k] = 8;
        }
        let_come(self);
        CHECK_OK(shoal_group_barrier(self->group));
        CHECK_FULL(shoal_flatten(result, 0, -1), SHAPE(4 * count), 8);
        CASE_END();
        functional_free_all();
    }
}

/* Writing an input ------------------------------------------------------------------------------------- */

/* Whoever wants to write what is being read waits for that; reading it does not. */
FUNCTIONAL(writing_an_input_waits_until_it_was_read, 2)
{
    for (int i = 0; i < 8; i++) {
        int64_t count = i % 2 ? 100000 : 10;
        CASE_BEGIN();
        shoal_tensor *input = full_of(SHAPE(count), self->rank + 1, SHOAL_F32);
        int before = n_come(self);
        come_late(self);
        shoal_tensor *sum = shoal_all_reduce(input, SHOAL_SUM, self->group);
        if (self->rank == 0) {
            CHECK_DOUBLE((double)*(const float *)shoal_data(input), 1);
            CHECK(shoal_clone(input));
            CHECK_INT(n_come(self), before);
        }
        let_come(self);
        switch (i / 2) {
        case 0:
            *(float *)shoal_mutable_data(input) = 99;
            break;
        case 1:
            CHECK(shoal_mul_scalar_(input, -1));
            break;
        case 2:
            CHECK(shoal_copy_(shoal_narrow(input, 0, 0, 2), full_of(SHAPE(2), 5, SHOAL_F32)));
            break;
        default:
            CHECK(shoal_broadcast_(input, 0, self->group));
            break;
        }
        CHECK(n_come(self) > before);
        CHECK_FULL(sum, SHAPE(count), 3);
        CASE_END();
        functional_free_all();
    }
}

/* Two works on one storage, neither waited for. */
FUNCTIONAL(two_works_on_one_storage, 2)
{
    shoal_tensor *whole = full_of(SHAPE(4, 6), self->rank + 1, SHOAL_F32);
    shoal_tensor *left = shoal_narrow(whole, 1, 0, 3);
    shoal_tensor *right = shoal_narrow(whole, 1, 3, 3);
    CHECK(shoal_all_reduce_(left, SHOAL_SUM, self->group) == left);
    CHECK(shoal_broadcast_(right, 0, self->group) == right);
    CHECK_FULL(right, SHAPE(4, 3), 1);
    CHECK_FULL(left, SHAPE(4, 3), 3);
    CHECK_INT(n_unawaited(self), 0);
    /* Two that read it. */
    shoal_tensor *a = shoal_all_reduce(whole, SHOAL_SUM, self->group);
    shoal_tensor *b = shoal_all_gather_tensor(left, 1, self->group);
    CHECK(shoal_mutable_data(whole));
    CHECK_INT(n_unawaited(self), 1); /* the second has a copy of what it reads */
    CHECK_FULL(shoal_narrow(a, 1, 0, 3), SHAPE(4, 3), 6);
    CHECK_FULL(b, SHAPE(4, 6), 3);
}

/* Whoever writes an input again has waited for what read it, also when that had ended long before. */
FUNCTIONAL(writing_an_input_again_is_waiting, 2)
{
    for (int i = 0; i < 6; i++) {
        CASE_BEGIN();
        shoal_tensor *tensor = full_of(SHAPE(i % 2 ? 100000 : 3), self->rank, SHOAL_F32);
        CHECK(self->rank == 0 ? shoal_isend(tensor, 1, 0, self->group)
                              : shoal_irecv(tensor, 0, 0, self->group));
        if (self->rank == 1) {
            CHECK_OK(shoal_wait(tensor));
        }
        test_barrier(self->harness);
        if (i > 3) {
            test_pause(0.01);
        }
        CHECK(shoal_mutable_data(tensor));
        CHECK_INT(n_unawaited(self), 0);
        CASE_END();
    }
}

/* Never waited for ------------------------------------------------------------------------------------- */

static _Atomic int n_warnings;
static _Atomic int n_named;

static void count_warnings(void *context, shoal_log_level level, const char *message)
{
    /* A rank that closed first may be worth another word. */
    if (level <= SHOAL_LOG_WARN && strstr(message, "never waited for")) {
        atomic_fetch_add(&n_warnings, 1);
        atomic_fetch_add(&n_named, strstr(message, context) != NULL);
    }
}

/* Closes the world in the middle of a test: each rank hears one warning with these words, or none if they are NULL. */
static void close_world(struct functional *self, const char *words)
{
    struct rank *harness = self->harness;
    bool is_listener = harness->is_process || self->rank == 0;
    if (is_listener) {
        atomic_store(&n_warnings, 0);
        atomic_store(&n_named, 0);
        shoal_log_set(count_warnings, (void *)(uintptr_t)(words ? words : "?"), SHOAL_LOG_WARN);
    }
    test_barrier(harness);
    CHECK_OK(shoal_world_close(self->world));
    self->world = NULL;
    test_barrier(harness);
    int expected = !words ? 0 : harness->is_process ? 1 : 2;
    CHECK_INT(atomic_load(&n_warnings), expected);
    CHECK_INT(atomic_load(&n_named), expected);
    test_barrier(harness);
    if (is_listener) {
        shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    }
}

/* What was not waited for is finished by closing, if the peers did their part; it is data then. */
FUNCTIONAL(unwaited_at_close, 2)
{
    shoal_tensor *small = full_of(SHAPE(3), self->rank + 1, SHOAL_F32);
    shoal_tensor *large = full_of(SHAPE(300000), self->rank + 1, SHOAL_F32);
    shoal_tensor *own = full_of(SHAPE(2), self->rank + 1, SHOAL_F32);
    shoal_tensor *awaited = shoal_all_reduce(small, SHOAL_SUM, self->group);
    CHECK_FULL(awaited, SHAPE(3), 3);
    shoal_tensor *a = shoal_all_reduce(small, SHOAL_SUM, self->group);
    shoal_tensor *b = shoal_all_gather_tensor(shoal_view(large, INTS64(3, -1), 2), 1, self->group);
    CHECK(a && b && shoal_all_reduce_(own, SHOAL_MAX, self->group) == own);
    CHECK_INT(n_unawaited(self), 3);
    close_world(self, "never waited for 3 operations");
    CHECK_FULL(a, SHAPE(3), 3);
    CHECK_FULL(own, SHAPE(2), 2);
    CHECK_FULL(shoal_narrow(b, 1, 100000, 100000), SHAPE(3, 100000), 2);
    CHECK_OK(shoal_wait(b));
}

FUNCTIONAL(no_warning_where_all_was_waited_for, 2)
{
    shoal_tensor *small = full_of(SHAPE(3), self->rank + 1, SHOAL_F32);
    CHECK_NUMBERS(shoal_all_gather_tensor(shoal_unsqueeze(small, 1), 1, self->group), SHAPE(3, 2), 1, 2, 1, 2,
                  1, 2);
    close_world(self, NULL);
    CHECK_FULL(small, SHAPE(3), self->rank + 1);
}

/* By its own world, or because the other one was closed first. */
static void check_given_up(shoal_status status)
{
    CHECK(status == SHOAL_ERR_CANCELLED || status == SHOAL_ERR_PEER);
}

/* A receive that nobody answers is given up: its tensor says so, also after its world has gone. */
FUNCTIONAL(unanswered_at_close, 2)
{
    shoal_tensor *lonely = full_of(SHAPE(3), self->rank + 1, SHOAL_F32);
    shoal_tensor *strided = shoal_slice(full_of(SHAPE(6), 0, SHOAL_F32), 0, 0, 6, 2);
    CHECK(shoal_irecv(lonely, 1 - self->rank, 1, self->group));
    CHECK(shoal_irecv(strided, 1 - self->rank, 2, self->group));
    close_world(self, "never waited for 2 operations");
    for (int i = 0; i < 2; i++) {
        CHECK(!shoal_data(lonely) && !shoal_data(strided));
        check_given_up(shoal_wait(lonely));
        check_given_up(shoal_wait(strided));
    }
    CHECK(shoal_copy_(lonely, full_of(SHAPE(3), 4, SHOAL_F32)) == lonely);
    CHECK_FULL(lonely, SHAPE(3), 4);
    /* The other one is still broken, which this scope must not hide from its caller. */
    CHECK_OK(shoal_tensor_rebind_data(strided, NULL, NULL, NULL));
}

FUNCTIONAL(ten_thousand_nobody_waits_for, 2)
{
    enum {
        N = 10000
    };
    shoal_tensor **results = functional_alloc(N * sizeof(shoal_tensor *));
    for (int i = 0; i < N; i++) {
        CASE_BEGIN();
        shoal_tensor *input = full_of(SHAPE(1, 2), i, SHOAL_F32);
        shoal_tensor *result = i % 2 ? shoal_all_gather_tensor(input, 1, self->group)
                                     : shoal_all_reduce(input, SHOAL_SUM, self->group);
        CHECK(result);
        /* Half of them are kept. */
        results[i] = i % 4 < 2 ? shoal_tensor_ref(result) : NULL;
        CASE_END();
    }
    close_world(self, "never waited for 10000 operations");
    for (int i = 0; i < N; i++) {
        if (results[i] && !test_has_failed()) {
            CHECK_DOUBLE((double)*(const float *)shoal_data(results[i]), i % 2 ? i : 2 * i);
        }
        shoal_tensor_unref(results[i]);
    }
}

/* SHOAL_SYNC ------------------------------------------------------------------------------------------- */

static void call_synchronously(struct functional *self)
{
    shoal_tensor *input = full_of(SHAPE(2, 3), self->rank + 1, SHOAL_F32);
    for (int i = 0; i < 3; i++) {
        int before = n_come(self);
        test_barrier(self->harness);
        if (self->rank == 1) {
            test_pause(0.01);
            atomic_fetch_add(&meeting_of(self)->n_come, 1);
        }
        shoal_tensor *result = i == 0   ? shoal_all_reduce(input, SHOAL_SUM, self->group)
                               : i == 1 ? shoal_all_gather_tensor(input, 1, self->group)
                                        : shoal_all_reduce_(input, SHOAL_SUM, self->group);
        CHECK(n_come(self) > before);
        CHECK_INT(n_unawaited(self), 0);
        CHECK(result && shoal_data(result));
        test_barrier(self->harness);
    }
    /* Messages that neither rank has come to receive yet are not waited for. */
    shoal_tensor *message = full_of(SHAPE(1 << 20), self->rank, SHOAL_F32);
    shoal_tensor *place = full_of(SHAPE(1 << 20), -1, SHOAL_F32);
    CHECK(shoal_isend(message, 1 - self->rank, 0, self->group));
    CHECK(shoal_irecv(place, 1 - self->rank, 0, self->group));
    CHECK_FULL(place, SHAPE(1 << 20), 1 - self->rank);
    /* What fails later elsewhere is the error of the call here. */
    shoal_group *group = group_of_ranks(self->world, (const int[]){0, 1}, 2, "differ");
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_all_reduce(full_of(SHAPE(3 + self->rank), 1, SHOAL_F32), SHOAL_SUM, group));
    CHECK_ERROR_TEXT("all_reduce");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_all_reduce_(input, SHOAL_SUM, group));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
}

/* The environment is read once, so this is a program of its own. */
TEST_RANKS(planted_synchronous, 2)
{
    functional_run(self, call_synchronously);
}

TEST(synchronous_on_request)
{
    char output[4096];
    const char *const arguments[] = {test_program(), "planted_synchronous", NULL};
    const char *const environment[] = {"SHOAL_SYNC=1", NULL};
    if (!CHECK_INT(test_run_program(arguments, environment, output, sizeof output), 0)) {
        harness_print("%s", output);
    }
}

/* Forked children -------------------------------------------------------------------------------------- */

struct inherited {
    shoal_tensor *tensors[4];
    size_t n_tensors;
};

/* The threads that bring the data are not in the child: an error, and no waiting for ever. */
static void use_what_is_in_flight(void *context)
{
    static const char words[] = "is a fork of";
    const struct inherited *inherited = context;
    for (size_t i = 0; i < inherited->n_tensors; i++) {
        shoal_tensor *tensor = inherited->tensors[i];
        CHECK_STATUS(shoal_wait(tensor), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT(words);
        CHECK(!shoal_data(tensor));
        CHECK_ERROR_TEXT(words);
        CHECK(!shoal_mutable_data(tensor));
        CHECK_ERROR_TEXT(words);
        REQUIRE_OK(shoal_scope_begin());
        CHECK(!shoal_wait_tensor(tensor));
        CHECK_ERROR_TEXT(words);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
        REQUIRE_OK(shoal_scope_begin());
        CHECK(!shoal_add(tensor, tensor));
        CHECK_ERROR_TEXT(words);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    }
}

static void fork_in_flight(struct functional *self)
{
    shoal_tensor *input = full_of(SHAPE(2, 3), self->rank + 1, SHOAL_F32);
    shoal_tensor *lonely = full_of(SHAPE(2, 3), -1, SHOAL_F32);
    come_late(self);
    struct inherited inherited = {
        .tensors = {shoal_all_reduce(input, SHOAL_SUM, self->group),
                    shoal_all_gather_tensor(input, 1, self->group),
                    shoal_broadcast(shoal_full(INTS64(1 << 19), 1, self->rank, SHOAL_F32), 1, self->group),
                    shoal_irecv(lonely, 1 - self->rank, 0, self->group)},
        .n_tensors = 4};
    /* What scopes keep in store for the next small tensor is not for the child to fetch first. */
    CASE_BEGIN();
    CHECK(shoal_add(input, shoal_add(input, input)));
    CASE_END();
    if (self->rank == 0) {
        test_in_child(use_what_is_in_flight, &inherited);
    }
    let_come(self);
    CHECK(shoal_wait_tensor(shoal_isend(input, 1 - self->rank, 0, self->group)));
    CHECK_FULL(inherited.tensors[0], SHAPE(2, 3), 3);
    CHECK_FULL(shoal_narrow(inherited.tensors[1], 1, 3, 3), SHAPE(2, 3), 2);
    CHECK_FULL(inherited.tensors[2], SHAPE(1 << 19), 1);
    CHECK_FULL(inherited.tensors[3], SHAPE(2, 3), 2 - self->rank);
}

TEST_PROCESSES(a_forked_child_can_not_wait, 2)
{
    functional_run(self, fork_in_flight);
}
