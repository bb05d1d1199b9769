/* SPDX-License-Identifier: MIT */
/*
 * Fences of parts of a storage: who touches other bytes does not wait, and does not hear of failures; what has ended
 * does not pile up. Completions are finished by hand: what would have to wait for one that is pending hangs the test.
 */
#include <dlpack/dlpack.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/completion.h"
#include "base/error.h"
#include "harness/test.h"
#include "shoal/dlpack.h"
#include "shoal/ops.h"
#include "shoal/tensor.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

enum {
    N = 16
};

struct flights {
    shoal_tensor *base; /* N numbers */
    struct completion *completions[64];
    int n_completions;
};

static void begin(struct flights *flights)
{
    *flights = (struct flights){.base = NULL};
    REQUIRE_OK(shoal_scope_begin());
    flights->base = shoal_zeros((int64_t[]){N}, 1, SHOAL_I32);
    REQUIRE(flights->base);
}

static void end(struct flights *flights, shoal_status status)
{
    for (int i = 0; i < flights->n_completions; i++) {
        completion_unref(flights->completions[i]);
    }
    CHECK_STATUS(shoal_scope_end(), status);
}

static shoal_tensor *part(const struct flights *flights, int64_t start, int64_t length)
{
    return shoal_narrow(flights->base, 0, start, length);
}

/* Work on the bytes of a tensor, as a launch sets it. */
static struct completion *fly(struct flights *flights, shoal_tensor *tensor, bool is_write)
{
    struct span span = tensor_span(tensor);
    struct completion *completion = completion_create();
    struct fence *fence = storage_make_fence(tensor->storage, span);
    if (!completion || !fence) {
        test_failed(__FILE__, __LINE__, "no memory");
        return NULL;
    }
    flights->completions[flights->n_completions++] = completion;
    if (is_write) {
        storage_set_write(tensor->storage, fence, completion);
    } else {
        storage_set_read(tensor->storage, fence, completion);
    }
    return completion;
}

static struct completion *fly_write(struct flights *flights, shoal_tensor *tensor)
{
    return fly(flights, tensor, /*is_write=*/true);
}

static struct completion *fly_read(struct flights *flights, shoal_tensor *tensor)
{
    return fly(flights, tensor, /*is_write=*/false);
}

static void fail(struct completion *completion, const char *text)
{
    completion_finish(completion, error_set(SHOAL_ERR_PEER, "%s", text));
    error_clear();
}

static uint32_t n_fences(const struct flights *flights)
{
    return atomic_load(&flights->base->storage->n_fences);
}

/* What would block for ever gives up soon. Before main: the variables are read once. */
__attribute__((constructor)) static void set_timeout(void)
{
    (void)setenv("SHOAL_TIMEOUT", "0.02", 1);
}

static void check_blocks(shoal_status (*access)(const shoal_tensor *tensor), const shoal_tensor *tensor)
{
    CHECK_STATUS(access(tensor), SHOAL_ERR_TIMEOUT);
    error_clear();
}

static shoal_status write_to(const shoal_tensor *tensor)
{
    return tensor_wait_writable(tensor, /*overwrites=*/false);
}

static shoal_status overwrite(const shoal_tensor *tensor)
{
    return tensor_wait_writable(tensor, /*overwrites=*/true);
}

/* Waiting ---------------------------------------------------------------------------------------------- */

TEST(parts_that_are_apart_do_not_wait_for_each_other)
{
    struct flights flights;
    begin(&flights);
    shoal_tensor *left = part(&flights, 0, 4);
    shoal_tensor *right = part(&flights, 4, 4);
    struct completion *write = fly_write(&flights, left);
    struct completion *read = fly_read(&flights, part(&flights, 8, 4));
    /* Everything that can be done to the bytes beside them. */
    CHECK(shoal_data(right));
    CHECK(shoal_mutable_data(right));
    CHECK_OK(shoal_wait(right));
    CHECK(shoal_add_scalar_(right, 3) == right);
    CHECK(shoal_copy_(right, shoal_neg(right)) == right);
    CHECK_INT(*(const int32_t *)shoal_data(shoal_sum(right, NULL, 0, false)), -12);
    DLManagedTensor *managed = NULL;
    CHECK_OK(shoal_to_dlpack(right, &managed));
    managed->deleter(managed);
    CHECK(shoal_data(part(&flights, 8, 4))); /* reads do not hold up readers */
    CHECK(shoal_mutable_data(part(&flights, 12, 4)));
    CHECK_INT(n_fences(&flights), 2);
    /* And what touches them waits. */
    check_blocks(shoal_wait, left);
    check_blocks(shoal_wait, flights.base);
    check_blocks(shoal_wait, part(&flights, 3, 2));
    check_blocks(write_to, part(&flights, 7, 2));
    check_blocks(write_to, part(&flights, 3, 2));
    check_blocks(overwrite, flights.base);
    completion_finish(write, SHOAL_OK);
    CHECK(shoal_data(flights.base));
    CHECK_INT(n_fences(&flights), 1);
    completion_finish(read, SHOAL_OK);
    CHECK(shoal_mutable_data(flights.base));
    CHECK_INT(n_fences(&flights), 0);
    end(&flights, SHOAL_OK);
}

TEST(the_whole_waits_for_every_part)
{
    struct flights flights;
    struct completion *writes[4];
    begin(&flights);
    for (int i = 0; i < 4; i++) {
        writes[i] = fly_write(&flights, part(&flights, 4 * i, 4));
    }
    CHECK_INT(n_fences(&flights), 4);
    for (int i = 0; i < 4; i++) {
        check_blocks(shoal_wait, flights.base);
        completion_finish(writes[i ^ 1], SHOAL_OK); /* in another order than they were set */
        CHECK(shoal_data(part(&flights, 4 * (i ^ 1), 4)));
        CHECK_INT(n_fences(&flights), 3 - i);
    }
    CHECK(shoal_data(flights.base));
    end(&flights, SHOAL_OK);
}

TEST(a_strided_view_is_all_from_its_first_byte_to_its_last)
{
    struct flights flights;
    begin(&flights);
    /* Elements 1, 5, 9. */
    shoal_tensor *column = shoal_as_strided(flights.base, (int64_t[]){3}, (int64_t[]){4}, 1, 1);
    struct completion *write = fly_write(&flights, column);
    CHECK(shoal_data(part(&flights, 0, 1)));
    CHECK(shoal_data(part(&flights, 10, 6)));
    check_blocks(shoal_wait, part(&flights, 9, 1));
    check_blocks(shoal_wait, part(&flights, 6, 2)); /* a hole, but who knows */
    /* A newer write with holes does not take the place of an older one. */
    struct completion *other = fly_write(&flights, column);
    CHECK_INT(n_fences(&flights), 2);
    completion_finish(other, SHOAL_OK);
    check_blocks(shoal_wait, column);
    completion_finish(write, SHOAL_OK);
    CHECK_OK(shoal_wait(column));
    end(&flights, SHOAL_OK);
}

TEST(without_elements_only_work_without_elements_counts)
{
    struct flights flights;
    begin(&flights);
    shoal_tensor *none = part(&flights, 3, 0);
    struct completion *write = fly_write(&flights, flights.base);
    CHECK(shoal_data(none));
    struct completion *empty = fly_write(&flights, none);
    check_blocks(shoal_wait, part(&flights, 7, 0));
    completion_finish(write, SHOAL_OK);
    CHECK(shoal_data(flights.base));
    fail(empty, "the send failed");
    CHECK_STATUS(shoal_wait(none), SHOAL_ERR_PEER);
    CHECK(shoal_data(flights.base));
    end(&flights, SHOAL_ERR_PEER);
}

/* Failures --------------------------------------------------------------------------------------------- */

TEST(a_failure_is_that_of_its_bytes)
{
    struct flights flights;
    begin(&flights);
    shoal_tensor *left = part(&flights, 0, 4);
    shoal_tensor *right = part(&flights, 4, 4);
    struct completion *bad = fly_write(&flights, left);
    struct completion *good = fly_write(&flights, right);
    fail(bad, "rank 3 died");
    completion_finish(good, SHOAL_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(shoal_data(right));
        CHECK(shoal_mutable_data(right));
        CHECK(!shoal_data(left));
        CHECK_ERROR_TEXT("rank 3 died");
        CHECK(!shoal_data(flights.base));
        CHECK_ERROR_TEXT("rank 3 died");
        CHECK(!shoal_mutable_data(part(&flights, 3, 2)));
        CHECK_ERROR_TEXT("rank 3 died");
    }
    /* A scope with tensors beside it ends well; one that has its bytes does not. */
    REQUIRE_OK(shoal_scope_begin());
    CHECK(part(&flights, 4, 12));
    CHECK_OK(shoal_scope_end());
    REQUIRE_OK(shoal_scope_begin());
    CHECK(part(&flights, 3, 1));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_PEER);
    end(&flights, SHOAL_ERR_PEER);
}

static void check_copy(shoal_tensor *target, shoal_status status)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *source = shoal_full(shoal_tensor_shape(target), shoal_tensor_n_dims(target), 7, SHOAL_I32);
    CHECK_INT(shoal_copy_(target, source) == target, status == SHOAL_OK);
    CHECK_STATUS(shoal_scope_end(), status);
}

TEST(a_failure_ends_when_its_bytes_are_overwritten)
{
    struct flights flights;
    begin(&flights);
    shoal_tensor *left = part(&flights, 0, 4);
    shoal_tensor *right = part(&flights, 8, 4);
    fail(fly_write(&flights, left), "left");
    fail(fly_write(&flights, right), "right");
    check_copy(part(&flights, 0, 3), SHOAL_ERR_PEER);
    check_copy(part(&flights, 2, 8), SHOAL_ERR_PEER);
    CHECK(!shoal_data(left));
    CHECK_ERROR_TEXT("left");
    /* Holes do not cover. */
    check_copy(shoal_as_strided(flights.base, (int64_t[]){3}, (int64_t[]){5}, 1, 0), SHOAL_ERR_PEER);
    check_copy(part(&flights, 4, 4), SHOAL_OK);
    CHECK_INT(n_fences(&flights), 2);
    /* More than it covers it too, in any order of elements. */
    check_copy(shoal_transpose(shoal_view(part(&flights, 0, 6), (int64_t[]){2, 3}, 2), 0, 1), SHOAL_OK);
    CHECK(shoal_data(left));
    CHECK(!shoal_data(right));
    CHECK_ERROR_TEXT("right");
    check_copy(flights.base, SHOAL_OK);
    CHECK_INT(n_fences(&flights), 0);
    end(&flights, SHOAL_OK);
}

TEST(work_that_overwrites_takes_the_place_of_failures)
{
    struct flights flights;
    begin(&flights);
    for (int i = 0; i < 4; i++) {
        fail(fly_write(&flights, part(&flights, 4 * i, 4)), "old");
    }
    CHECK_OK(overwrite(part(&flights, 4, 8)));
    struct completion *write = fly_write(&flights, part(&flights, 4, 8));
    CHECK_INT(n_fences(&flights), 3);
    completion_finish(write, SHOAL_OK);
    CHECK(shoal_data(part(&flights, 4, 8)));
    CHECK(!shoal_data(part(&flights, 11, 2)));
    storage_forget_fences(flights.base->storage);
    CHECK(shoal_data(flights.base));
    end(&flights, SHOAL_OK);
}

/* Memory ------------------------------------------------------------------------------------------------ */

/* Each is on its way for a while, and nobody ever looks: what has ended must not pile up. */
static void pile_up(bool is_write)
{
    enum {
        N_PARTS = 1 << 12,
        N_AT_ONCE = 10
    };
    struct completion *in_flight[N_AT_ONCE] = {NULL};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *base = shoal_zeros((int64_t[]){N_PARTS}, 1, SHOAL_I32);
    REQUIRE(base);
    size_t blocks = test_live_blocks();
    for (int i = 0; i < 3 * N_PARTS; i++) {
        size_t at = (size_t)(i % N_PARTS);
        struct span span = span_of(4 * at, 4 * at + 4, /*is_dense=*/true);
        struct fence *fence = storage_make_fence(base->storage, span);
        struct completion *completion = completion_create();
        REQUIRE(fence && completion);
        if (is_write) {
            storage_set_write(base->storage, fence, completion);
        } else {
            storage_set_read(base->storage, fence, completion);
        }
        if (in_flight[i % N_AT_ONCE]) {
            completion_finish(in_flight[i % N_AT_ONCE], SHOAL_OK);
            completion_unref(in_flight[i % N_AT_ONCE]);
        }
        in_flight[i % N_AT_ONCE] = completion;
        CHECK(atomic_load(&base->storage->n_fences) <= 2 * (N_AT_ONCE + 1));
    }
    CHECK(test_live_blocks() <= blocks + (size_t)6 * (N_AT_ONCE + 1));
    for (int i = 0; i < N_AT_ONCE; i++) {
        completion_finish(in_flight[i], SHOAL_OK);
        completion_unref(in_flight[i]);
    }
    CHECK(shoal_mutable_data(base));
    CHECK_INT(atomic_load(&base->storage->n_fences), 0);
    CHECK_OK(shoal_scope_end());
}

TEST(finished_writes_do_not_pile_up)
{
    pile_up(/*is_write=*/true);
}

TEST(finished_reads_do_not_pile_up)
{
    pile_up(/*is_write=*/false);
}

/* Failed ones stay, as many as there are, until one write covers them all. */
TEST(many_failures_stay_and_go_together)
{
    struct flights flights;
    begin(&flights);
    for (int i = 0; i < N; i++) {
        fail(fly_write(&flights, part(&flights, i, 1)), "old");
        completion_finish(fly_read(&flights, part(&flights, i, 1)), SHOAL_OK);
    }
    for (int i = 0; i < N; i++) {
        CHECK(!shoal_data(part(&flights, i, 1)));
    }
    check_copy(flights.base, SHOAL_OK);
    CHECK_INT(n_fences(&flights), 0);
    end(&flights, SHOAL_OK);
}

/* Threads ------------------------------------------------------------------------------------------------ */

enum {
    N_THREADS = 4,
    N_ROUNDS = 2000
};

struct worker {
    shoal_tensor *base;
    int index;
    pthread_t thread;
    int n_wrong;
};

/* Writes its own part, as work in flight and by hand, and now and then reads those of others that are at rest. */
static void *work(void *context)
{
    struct worker *worker = context;
    if (shoal_scope_begin() != SHOAL_OK) {
        return NULL;
    }
    shoal_tensor *mine = shoal_narrow(worker->base, 0, worker->index, 1);
    struct span span = tensor_span(mine);
    for (int i = 0; i < N_ROUNDS; i++) {
        struct fence *fence = storage_make_fence(mine->storage, span);
        struct completion *completion = completion_create();
        void *place;
        if (!fence || !completion || tensor_host_address(mine, &place) != SHOAL_OK) {
            worker->n_wrong++;
            break;
        }
        bool is_bad = i % 7 == 3;
        storage_set_write(mine->storage, fence, completion);
        *(int32_t *)place = i;
        completion_finish(completion, is_bad ? error_set(SHOAL_ERR_PEER, "round %d", i) : SHOAL_OK);
        completion_unref(completion);
        const int32_t *data = shoal_data(mine);
        worker->n_wrong += is_bad ? data != NULL : !data || *data != i;
        if (is_bad) {
            tensor_forget_fences(mine);
        }
        int32_t *own = shoal_mutable_data(mine);
        worker->n_wrong += !own;
    }
    worker->n_wrong += shoal_scope_end() != SHOAL_OK;
    return NULL;
}

TEST(threads_on_parts_of_one_storage)
{
    struct worker workers[N_THREADS];
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *base = shoal_zeros((int64_t[]){N_THREADS}, 1, SHOAL_I32);
    REQUIRE(base);
    for (int i = 0; i < N_THREADS; i++) {
        workers[i] = (struct worker){.base = base, .index = i};
        CHECK_INT(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_join(workers[i].thread, NULL), 0);
        CHECK_INT(workers[i].n_wrong, 0);
    }
    CHECK(shoal_data(base));
    CHECK_OK(shoal_scope_end());
}
