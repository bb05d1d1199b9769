/* SPDX-License-Identifier: MIT */
/*
 * Fences: who waits for whom, whose error is seen where, and how long memory lives. Completions are finished
 * by hand, or by a thread that first sees the waiter asleep, so that nothing here depends on timing.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/completion.h"
#include "base/error.h"
#include "harness/test.h"
#include "shoal/ops.h"
#include "shoal/tensor.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

/* A thread that waits until somebody sleeps on a completion, writes a number, and finishes it. */
struct finisher {
    struct completion *completion;
    int32_t *target; /* NULL: writes nothing */
    shoal_status status;
    pthread_t thread;
};

static void *finish_when_awaited(void *context)
{
    struct finisher *finisher = context;
    while (atomic_load(&finisher->completion->state) != COMPLETION_AWAITED) {
        (void)sched_yield();
    }
    if (finisher->target) {
        *finisher->target = 42;
    }
    shoal_status status = finisher->status;
    if (status != SHOAL_OK) {
        status = error_set(status, "the link caught fire");
    }
    completion_finish(finisher->completion, status);
    completion_unref(finisher->completion);
    return NULL;
}

static void finisher_start(struct finisher *finisher)
{
    (void)completion_ref(finisher->completion);
    CHECK_INT(pthread_create(&finisher->thread, NULL, finish_when_awaited, finisher), 0);
}

static void finisher_join(struct finisher *finisher)
{
    CHECK_INT(pthread_join(finisher->thread, NULL), 0);
}

static void fail_completion(struct completion *completion, const char *text)
{
    completion_finish(completion, error_set(SHOAL_ERR_PEER, "%s", text));
    error_clear();
}

/* A tensor over `n` zeroed numbers, with a write in flight. */
static shoal_tensor *tensor_in_flight(int64_t n, struct completion **completion_out)
{
    shoal_tensor *tensor = shoal_zeros(&n, 1, SHOAL_I32);
    *completion_out = completion_create();
    if (!tensor || !*completion_out) {
        test_failed(__FILE__, __LINE__, "no tensor or completion: %s", shoal_error_text());
        return NULL;
    }
    CHECK_OK(storage_add_write(tensor->storage, *completion_out));
    return tensor;
}

static void count_call(void *context, void *data)
{
    atomic_fetch_add((_Atomic int *)context, 1);
}

/* Waiting ---------------------------------------------------------------------------------------------- */

TEST(reader_waits_for_the_last_write)
{
    struct completion *write;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = tensor_in_flight(3, &write);
    REQUIRE(tensor);
    void *base;
    CHECK_OK(storage_host_base(tensor->storage, &base));
    struct finisher finisher = {.completion = write, .target = (int32_t *)base + 1};
    finisher_start(&finisher);
    const int32_t *data = shoal_data(tensor);
    REQUIRE(data);
    CHECK_INT(data[1], 42);
    CHECK_INT(shoal_tensor_version(tensor), 0);
    finisher_join(&finisher);
    CHECK_INT(atomic_load(&tensor->storage->n_fences), 0);
    completion_unref(write);
    CHECK_OK(shoal_scope_end());
}

TEST(a_storage_that_is_read_only)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *tensor = shoal_full((int64_t[]){4}, 1, 7, SHOAL_I32);
    CHECK_OK(shoal_tensor_set_name(tensor, "table"));
    storage_set_read_only(tensor->storage, "it is printed on paper");
    const int32_t *data = shoal_data(tensor);
    CHECK(data && data[3] == 7);
    CHECK(shoal_add(tensor, tensor) != NULL);
    CHECK(!shoal_mutable_data(shoal_narrow(tensor, 0, 1, 2)));
    CHECK_ERROR_TEXT("tensor table is read-only: it is printed on paper");
    CHECK_STATUS(storage_wait_writable(tensor->storage, true), SHOAL_ERR_STATE);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!shoal_copy_(tensor, shoal_full((int64_t[]){4}, 1, 1, SHOAL_I32)));
    CHECK_ERROR_TEXT("copy_: self: tensor table is read-only");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_INT(shoal_tensor_version(tensor), 0);
    storage_set_read_only(tensor->storage, NULL);
    CHECK(shoal_mutable_data(tensor) != NULL);
    CHECK_OK(shoal_scope_end());
}

TEST(views_and_ops_wait_for_the_write_of_the_storage)
{
    struct completion *write;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = tensor_in_flight(4, &write);
    REQUIRE(tensor);
    void *base;
    CHECK_OK(storage_host_base(tensor->storage, &base));
    /* Taking a view touches no data: it must not wait, or this test would hang here. */
    shoal_tensor *view = shoal_narrow(tensor, 0, 1, 2);
    CHECK(!completion_is_finished(write));
    struct finisher finisher = {.completion = write, .target = (int32_t *)base + 1};
    finisher_start(&finisher);
    shoal_tensor *sum = shoal_add(view, view);
    const int32_t *data = shoal_data(sum);
    REQUIRE(data);
    CHECK_INT(data[0], 84);
    CHECK_INT(data[1], 0);
    finisher_join(&finisher);
    completion_unref(write);
    CHECK_OK(shoal_scope_end());
}

TEST(wait_waits_and_reads_do_not_hold_up_readers)
{
    struct completion *write;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = tensor_in_flight(1, &write);
    struct completion *read = completion_create();
    REQUIRE(tensor && read);
    CHECK_OK(storage_add_read(tensor->storage, read));
    struct finisher finisher = {.completion = write};
    finisher_start(&finisher);
    CHECK_OK(shoal_wait(tensor));
    CHECK(completion_is_finished(write));
    finisher_join(&finisher);
    CHECK(shoal_data(tensor));
    CHECK(!completion_is_finished(read));
    completion_finish(read, SHOAL_OK);
    completion_unref(read);
    completion_unref(write);
    CHECK_OK(shoal_scope_end());
}

TEST(writer_waits_for_every_read)
{
    enum {
        N_READS = 3
    };
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_zeros((int64_t[]){2}, 1, SHOAL_I32);
    REQUIRE(tensor);
    struct completion *reads[N_READS];
    struct finisher finishers[N_READS];
    for (int i = 0; i < N_READS; i++) {
        reads[i] = completion_create();
        REQUIRE(reads[i]);
        CHECK_OK(storage_add_read(tensor->storage, reads[i]));
    }
    CHECK_INT(atomic_load(&tensor->storage->n_fences), N_READS);
    for (int i = 0; i < N_READS; i++) {
        /* How a read ends is its own business: a failed one must not fail the writer. */
        finishers[i] =
            (struct finisher){.completion = reads[i], .status = i == 1 ? SHOAL_ERR_PEER : SHOAL_OK};
        finisher_start(&finishers[i]);
    }
    CHECK(shoal_mutable_data(tensor));
    CHECK_STRING(shoal_error_text(), "");
    for (int i = 0; i < N_READS; i++) {
        CHECK(completion_is_finished(reads[i]));
        finisher_join(&finishers[i]);
        completion_unref(reads[i]);
    }
    CHECK_INT(shoal_tensor_version(tensor), 1);
    CHECK_INT(atomic_load(&tensor->storage->n_fences), 0);
    CHECK_OK(shoal_scope_end());
}

TEST(in_place_op_waits_for_reads)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_zeros((int64_t[]){2}, 1, SHOAL_I32);
    struct completion *read = completion_create();
    REQUIRE(tensor && read);
    CHECK_OK(storage_add_read(tensor->storage, read));
    struct finisher finisher = {.completion = read};
    finisher_start(&finisher);
    CHECK(shoal_add_scalar_(tensor, 1) == tensor);
    CHECK(completion_is_finished(read));
    finisher_join(&finisher);
    completion_unref(read);
    CHECK_OK(shoal_scope_end());
}

TEST(a_newer_write_replaces_the_older)
{
    struct completion *older;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = tensor_in_flight(1, &older);
    struct completion *newer = completion_create();
    REQUIRE(tensor && newer);
    CHECK_OK(storage_add_write(tensor->storage, newer));
    CHECK_INT(atomic_load(&tensor->storage->n_fences), 1);
    fail_completion(older, "older");
    completion_finish(newer, SHOAL_OK);
    CHECK(shoal_data(tensor));
    completion_unref(older);
    completion_unref(newer);
    CHECK_OK(shoal_scope_end());
}

TEST(finished_completions_can_be_added)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_zeros((int64_t[]){2}, 1, SHOAL_I32);
    struct completion *done = completion_create();
    REQUIRE(tensor && done);
    completion_finish(done, SHOAL_OK);
    CHECK_OK(storage_add_read(tensor->storage, done));
    CHECK_OK(storage_add_write(tensor->storage, done));
    CHECK(shoal_mutable_data(tensor));
    CHECK_INT(atomic_load(&tensor->storage->n_fences), 0);
    completion_unref(done);
    CHECK_OK(shoal_scope_end());
}

/* Reads that are over must not pile up while nobody writes. */
TEST(finished_reads_are_forgotten)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_zeros((int64_t[]){2}, 1, SHOAL_I32);
    REQUIRE(tensor);
    size_t blocks = test_live_blocks();
    for (int i = 0; i < 1000; i++) {
        struct completion *read = completion_create();
        REQUIRE(read);
        CHECK_OK(storage_add_read(tensor->storage, read));
        completion_finish(read, SHOAL_OK);
        completion_unref(read);
    }
    CHECK(test_live_blocks() <= blocks + 4);
    CHECK_OK(shoal_scope_end());
}

/* Failures --------------------------------------------------------------------------------------------- */

TEST(failed_write_is_seen_every_time_until_overwritten)
{
    struct completion *write;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = tensor_in_flight(4, &write);
    REQUIRE(tensor);
    fail_completion(write, "rank 3 died");
    shoal_tensor *view = shoal_narrow(tensor, 0, 0, 2);
    for (int i = 0; i < 3; i++) {
        CHECK(!shoal_data(tensor));
        CHECK_ERROR_TEXT("rank 3 died");
        CHECK(!shoal_data(view));
        CHECK_STATUS(shoal_wait(tensor), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 3 died");
        CHECK(!shoal_mutable_data(tensor));
        CHECK_ERROR_TEXT("rank 3 died");
    }
    CHECK_INT(shoal_tensor_version(tensor), 0);
    CHECK_STATUS(storage_wait_writable(tensor->storage, /*overwrites=*/false), SHOAL_ERR_PEER);
    CHECK_OK(storage_wait_writable(tensor->storage, /*overwrites=*/true));
    CHECK_STATUS(shoal_wait(tensor), SHOAL_ERR_PEER); /* forgiven for writing, not forgotten */
    storage_forget_fences(tensor->storage);
    CHECK(shoal_data(tensor));
    CHECK_OK(shoal_wait(tensor));
    completion_unref(write);
    CHECK_OK(shoal_scope_end());
}

TEST(copying_over_all_of_it_ends_a_failure)
{
    struct completion *write;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = tensor_in_flight(4, &write);
    REQUIRE(tensor);
    fail_completion(write, "rank 3 died");
    shoal_tensor *source = shoal_full((int64_t[]){4}, 1, 7, SHOAL_I32);
    CHECK(shoal_copy_(tensor, source) == tensor);
    const int32_t *data = shoal_data(tensor);
    REQUIRE(data);
    CHECK_INT(data[3], 7);
    completion_unref(write);
    CHECK_OK(shoal_scope_end());
}

/* One op in its own scope, on a tensor whose last write failed: it must fail, and the failure must stay. */
static void check_stays_failed(shoal_tensor *tensor, shoal_tensor *(*op)(shoal_tensor *a, shoal_tensor *b),
                               shoal_tensor *a, shoal_tensor *b)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK(!op(a, b));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_PEER);
    CHECK(!shoal_data(tensor));
    CHECK_ERROR_TEXT("rank 3 died");
}

TEST(a_failure_is_not_ended_by_less_than_an_overwrite)
{
    struct completion *write;
    struct completion *other_write;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *good = shoal_full((int64_t[]){4}, 1, 7, SHOAL_I32);
    shoal_tensor *tensor = tensor_in_flight(4, &write);
    shoal_tensor *other = tensor_in_flight(4, &other_write);
    REQUIRE(tensor && other && good);
    shoal_tensor *part = shoal_narrow(tensor, 0, 0, 3);
    shoal_tensor *good_part = shoal_narrow(good, 0, 0, 3);
    shoal_tensor *backwards = shoal_as_strided(tensor, (int64_t[]){2, 2}, (int64_t[]){1, 2}, 2, 0);
    shoal_tensor *forwards = shoal_view(tensor, (int64_t[]){2, 2}, 2);
    REQUIRE(part && good_part && backwards && forwards);
    fail_completion(write, "rank 3 died");
    fail_completion(other_write, "rank 4 died too");
    /* Reading and adding need what is there. */
    check_stays_failed(tensor, shoal_add, good, tensor);
    check_stays_failed(tensor, shoal_add_, tensor, good);
    /* Part of it is not all of it. */
    check_stays_failed(tensor, shoal_copy_, part, good_part);
    /* The source has failed, so nothing is overwritten. */
    check_stays_failed(tensor, shoal_copy_, tensor, other);
    /* A tensor cannot be mended with its own contents. */
    check_stays_failed(tensor, shoal_copy_, tensor, tensor);
    check_stays_failed(tensor, shoal_copy_, forwards, backwards);
    storage_forget_fences(tensor->storage);
    storage_forget_fences(other->storage);
    completion_unref(write);
    completion_unref(other_write);
    CHECK_OK(shoal_scope_end());
}

TEST(new_memory_has_nothing_to_do_with_old_work)
{
    struct completion *write;
    struct completion *pending;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *failed = tensor_in_flight(4, &write);
    shoal_tensor *waiting = tensor_in_flight(4, &pending);
    REQUIRE(failed && waiting);
    fail_completion(write, "rank 3 died");
    CHECK_OK(shoal_tensor_rebind_data(failed, NULL, NULL, NULL));
    CHECK(shoal_data(failed) != NULL);
    CHECK_OK(shoal_tensor_rebind_data(waiting, NULL, NULL, NULL));
    CHECK(shoal_mutable_data(waiting) != NULL);
    completion_finish(pending, SHOAL_OK);
    completion_unref(write);
    completion_unref(pending);
    CHECK_OK(shoal_scope_end());
}

TEST(scope_end_tells_of_a_failed_write_nobody_looked_at)
{
    struct completion *write;
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE(tensor_in_flight(4, &write));
    fail_completion(write, "rank 3 died");
    CHECK_STATUS(shoal_scope_error(), SHOAL_OK);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 3 died");
    completion_unref(write);
}

TEST(scope_end_does_not_wait)
{
    _Atomic int n_deleted = 0;
    struct completion *write = completion_create();
    int32_t memory[4] = {0};
    REQUIRE(write);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor =
        shoal_from_memory(memory, (int64_t[]){4}, 1, SHOAL_I32, NULL, count_call, &n_deleted);
    REQUIRE(tensor);
    CHECK_OK(storage_add_write(tensor->storage, write));
    CHECK_OK(shoal_scope_end());
    CHECK_INT(atomic_load(&n_deleted), 0);
    completion_finish(write, SHOAL_OK);
    CHECK_INT(atomic_load(&n_deleted), 1);
    completion_unref(write);
}

/* Lifetime of memory ----------------------------------------------------------------------------------- */

TEST(memory_lives_until_the_last_fence_is_over)
{
    _Atomic int n_deleted = 0;
    int32_t memory[4] = {0};
    struct completion *write = completion_create();
    struct completion *read = completion_create();
    REQUIRE(write && read);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor =
        shoal_from_memory(memory, (int64_t[]){4}, 1, SHOAL_I32, NULL, count_call, &n_deleted);
    REQUIRE(tensor);
    CHECK_OK(storage_add_read(tensor->storage, read));
    CHECK_OK(storage_add_write(tensor->storage, write));
    CHECK_OK(shoal_tensor_release_data(tensor));
    CHECK_INT(atomic_load(&n_deleted), 0);
    completion_finish(write, SHOAL_OK);
    CHECK_INT(atomic_load(&n_deleted), 0);
    completion_finish(read, SHOAL_OK);
    CHECK_INT(atomic_load(&n_deleted), 1);
    completion_unref(write);
    completion_unref(read);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(atomic_load(&n_deleted), 1);
}

TEST(memory_outlives_its_storage_in_flight_on_another_thread)
{
    _Atomic int n_deleted = 0;
    int32_t memory[4] = {0};
    struct completion *write = completion_create();
    REQUIRE(write);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor =
        shoal_from_memory(memory, (int64_t[]){4}, 1, SHOAL_I32, NULL, count_call, &n_deleted);
    REQUIRE(tensor);
    CHECK_OK(storage_add_write(tensor->storage, write));
    struct finisher finisher = {.completion = write, .target = &memory[2]};
    finisher_start(&finisher);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(atomic_load(&n_deleted), 0);
    CHECK_OK(completion_wait(write, INT64_MAX));
    finisher_join(&finisher);
    CHECK_INT(atomic_load(&n_deleted), 1);
    CHECK_INT(memory[2], 42);
    completion_unref(write);
}

TEST(replaced_write_still_holds_its_memory)
{
    _Atomic int n_deleted = 0;
    int32_t memory[1] = {0};
    struct completion *older = completion_create();
    struct completion *newer = completion_create();
    REQUIRE(older && newer);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_from_memory(memory, NULL, 0, SHOAL_I32, NULL, count_call, &n_deleted);
    REQUIRE(tensor);
    CHECK_OK(storage_add_write(tensor->storage, older));
    CHECK_OK(storage_add_write(tensor->storage, newer));
    CHECK_OK(shoal_scope_end());
    completion_finish(newer, SHOAL_OK);
    CHECK_INT(atomic_load(&n_deleted), 0);
    completion_finish(older, SHOAL_OK);
    CHECK_INT(atomic_load(&n_deleted), 1);
    completion_unref(older);
    completion_unref(newer);
}

/* Many threads ----------------------------------------------------------------------------------------- */

struct crowd {
    shoal_tensor *tensor;
    struct completion *write;
    _Atomic int n_bad;
};

static void *read_in_a_crowd(void *context)
{
    struct crowd *crowd = context;
    for (int i = 0; i < 100; i++) {
        const int32_t *data = shoal_data(crowd->tensor);
        if (!data || data[0] != 42) {
            atomic_fetch_add(&crowd->n_bad, 1);
        }
    }
    return NULL;
}

TEST(many_threads_wait_for_one_write)
{
    enum {
        N_THREADS = 4
    };
    struct crowd crowd = {.n_bad = 0};
    pthread_t threads[N_THREADS];
    REQUIRE_OK(shoal_scope_begin());
    crowd.tensor = tensor_in_flight(1, &crowd.write);
    REQUIRE(crowd.tensor);
    void *base;
    CHECK_OK(storage_host_base(crowd.tensor->storage, &base));
    struct finisher finisher = {.completion = crowd.write, .target = base};
    finisher_start(&finisher);
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, read_in_a_crowd, &crowd), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    finisher_join(&finisher);
    CHECK_INT(atomic_load(&crowd.n_bad), 0);
    completion_unref(crowd.write);
    CHECK_OK(shoal_scope_end());
}

static void *add_and_finish_reads(void *context)
{
    struct crowd *crowd = context;
    for (int i = 0; i < 200; i++) {
        struct completion *read = completion_create();
        if (!read || storage_add_read(crowd->tensor->storage, read) != SHOAL_OK) {
            atomic_fetch_add(&crowd->n_bad, 1);
            return NULL;
        }
        void *base;
        if (storage_host_base(crowd->tensor->storage, &base) != SHOAL_OK || *(const int32_t *)base != 0) {
            atomic_fetch_add(&crowd->n_bad, 1);
        }
        completion_finish(read, SHOAL_OK);
        completion_unref(read);
        shoal_tensor_unref(shoal_tensor_ref(crowd->tensor));
    }
    return NULL;
}

TEST(reads_of_many_threads_come_before_the_write)
{
    enum {
        N_THREADS = 4
    };
    struct crowd crowd = {.n_bad = 0};
    pthread_t threads[N_THREADS];
    REQUIRE_OK(shoal_scope_begin());
    crowd.tensor = shoal_zeros((int64_t[]){1}, 1, SHOAL_I32);
    REQUIRE(crowd.tensor);
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, add_and_finish_reads, &crowd), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    int32_t *data = shoal_mutable_data(crowd.tensor);
    REQUIRE(data);
    data[0] = 1;
    CHECK_INT(atomic_load(&crowd.n_bad), 0);
    CHECK_OK(shoal_scope_end());
}

/* Memory that runs out --------------------------------------------------------------------------------- */

static shoal_status make_and_fence(void *context)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *tensor = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
    struct completion *completion = completion_create();
    if (tensor && completion) {
        status = storage_add_write(tensor->storage, completion);
        status = status == SHOAL_OK ? storage_add_read(tensor->storage, completion) : status;
        status = status == SHOAL_OK ? shoal_tensor_set_name(tensor, "weights") : status;
        completion_finish(completion, SHOAL_OK);
    }
    status = completion ? status : SHOAL_ERR_NO_MEMORY;
    completion_unref(completion);
    shoal_status end = shoal_scope_end();
    return end != SHOAL_OK ? end : status;
}

TEST(fences_survive_failing_allocations)
{
    CHECK(test_sweep_allocations(make_and_fence, NULL) >= 4);
}
