/* SPDX-License-Identifier: MIT */
/* Memory of a device that the program lends: when its deleter is called. */
#include <pthread.h>
#include <unistd.h>

#include "fixtures/apart.h"
#include "fixtures/scoped.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "shoal/shoal.h"

/* Memory of the program's own: here it is a tensor's, which stays. */
struct lent {
    shoal_tensor *owner;
    void *data;
    _Atomic int n_deleted;
    int told; /* a descriptor to write to; 0: none */
};

static void delete_lent(void *context, void *data)
{
    struct lent *lent = context;
    CHECK(data == lent->data);
    (void)atomic_fetch_add(&lent->n_deleted, 1);
    if (lent->told) {
        CHECK(write(lent->told, "d", 1) == 1);
    }
}

/* [1, 2, 3, 4] */
static void lend(struct lent *lent)
{
    lent->owner = shoal_to_device(count_up(DIMS(4), 1), apart());
    REQUIRE(lent->owner);
    lent->data = address_in(lent->owner);
    atomic_store(&lent->n_deleted, 0);
    lent->told = 0;
}

static shoal_tensor *borrow(struct lent *lent)
{
    return shoal_from_device_memory(apart(), lent->data, DIMS(4), SHOAL_F32, NULL, delete_lent, lent);
}

/* Borrows, and has the device work on it, in a scope that ends. */
static void use(struct lent *lent)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *borrowed = borrow(lent);
    REQUIRE(borrowed);
    CHECK(shoal_add_scalar_(borrowed, 1));
    REQUIRE_OK(shoal_scope_end());
}

static void hold(bool is_held)
{
    atomic_store(&test_apart()->is_held, is_held);
}

/* The end of the process: first, because it forks ---------------------------------------------------------- */

static void *let_go(void *context)
{
    test_pause(0.2);
    hold(false);
    return NULL;
}

static void end_while_it_works(void *context)
{
    static struct lent lent; /* deleters are called when this function has returned */
    pthread_t thread;
    REQUIRE_OK(shoal_scope_begin());
    lend(&lent);
    (void)shoal_tensor_ref(lent.owner);
    lent.told = *(int *)context;
    test_finish(apart());
    hold(true);
    use(&lent);
    CHECK_INT(lent.n_deleted, 0);
    CHECK_OK(shoal_scope_end());
    REQUIRE(pthread_create(&thread, NULL, let_go, NULL) == 0 && pthread_detach(thread) == 0);
    test_keep_blocks(test_live_blocks());
}

TEST(the_end_of_the_process_waits_for_the_device)
{
    int ends[2];
    char told[4];
    if (HARNESS_HAS_ASAN || HARNESS_HAS_TSAN) {
        test_skip("children leave without the functions of atexit, or cannot start threads");
        return;
    }
    REQUIRE(pipe(ends) == 0);
    test_in_child(end_while_it_works, &ends[1]);
    (void)close(ends[1]);
    CHECK_INT(read(ends[0], told, sizeof told), 1);
    (void)close(ends[0]);
}

/* Lending -------------------------------------------------------------------------------------------------- */

SCOPED_TEST(a_tensor_over_memory_of_a_device)
{
    struct lent lent;
    lend(&lent);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *borrowed = borrow(&lent);
    CHECK(shoal_tensor_device(borrowed) == apart() && address_in(borrowed) == lent.data);
    check_values(borrowed, (const float[]){1, 2, 3, 4}, 4);
    CHECK(shoal_mul_scalar_(borrowed, 10));
    CHECK(!shoal_data(borrowed));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_device_synchronize(apart()));
    CHECK_INT(lent.n_deleted, 1);
    check_values(lent.owner, (const float[]){10, 20, 30, 40}, 4); /* nothing was copied */
    /* From the last element to the first. */
    shoal_tensor *turned = shoal_from_device_memory(apart(), (char *)lent.data + 12, DIMS(4), SHOAL_F32,
                                                    (const int64_t[]){-1}, NULL, NULL);
    check_values(turned, (const float[]){40, 30, 20, 10}, 4);
    struct lent no_bytes = {.data = NULL};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *none =
        shoal_from_device_memory(apart(), NULL, DIMS(0, 3), SHOAL_F32, NULL, delete_lent, &no_bytes);
    CHECK(none && shoal_to_device(shoal_add(none, none), SHOAL_CPU));
    CHECK(shoal_mul_scalar_(none, 2) && shoal_transpose(none, 0, 1) && shoal_sum(none, NULL, 0, false));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_device_synchronize(apart()));
    CHECK_INT(no_bytes.n_deleted, 1);
}

SCOPED_TEST(a_tensor_over_memory_of_the_cpu)
{
    float values[] = {1, 2, 3, 4};
    struct lent lent = {.data = values};
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *borrowed =
        shoal_from_device_memory(SHOAL_CPU, values, DIMS(4), SHOAL_F32, NULL, delete_lent, &lent);
    CHECK(shoal_data(borrowed) == values);
    CHECK_OK(shoal_scope_end());
    CHECK_INT(lent.n_deleted, 1);
    CHECK_OK(shoal_device_synchronize(SHOAL_CPU));
    CHECK_OK(shoal_device_synchronize(SHOAL_META));
    CHECK_STATUS(shoal_device_synchronize((shoal_device)9), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("device_synchronize: device: 9 is not a device");
}

TEST(what_cannot_be_lent)
{
    struct lent lent = {.data = &lent};
    CHECK_SCOPE_ERROR(
        shoal_from_device_memory(SHOAL_META, &lent, DIMS(1), SHOAL_F32, NULL, delete_lent, &lent),
        SHOAL_ERR_INVALID, "from_device_memory: device: tensors on meta have no data");
    CHECK_SCOPE_ERROR(
        shoal_from_device_memory((shoal_device)9, &lent, DIMS(1), SHOAL_F32, NULL, delete_lent, &lent),
        SHOAL_ERR_INVALID, "from_device_memory: device: 9 is not a device");
    CHECK_SCOPE_ERROR(shoal_from_device_memory(apart(), NULL, DIMS(1), SHOAL_F32, NULL, delete_lent, &lent),
                      SHOAL_ERR_INVALID, "from_device_memory: data is NULL for 1 elements");
    CHECK_INT(lent.n_deleted, 0);
}

/* Dropping ------------------------------------------------------------------------------------------------- */

SCOPED_TEST(a_deleter_waits_for_the_work)
{
    struct lent lent;
    lend(&lent);
    test_finish(apart());
    hold(true);
    use(&lent);
    use(&lent);
    CHECK(shoal_empty_on(DIMS(2), SHOAL_F32, apart())); /* asks, in vain */
    CHECK_STATUS(shoal_device_synchronize(apart()), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("device_synchronize: device apart: waited 0.5 s for the work of a device");
    CHECK_INT(lent.n_deleted, 0);
    hold(false);
    CHECK_OK(shoal_device_synchronize(apart()));
    CHECK_INT(lent.n_deleted, 2);
    check_values(lent.owner, (const float[]){3, 4, 5, 6}, 4);
    CHECK_INT(lent.n_deleted, 2);
}

SCOPED_TEST(a_later_call_calls_a_deleter)
{
    struct lent lent;
    lend(&lent);
    for (int i = 1; i <= 3; i++) {
        hold(true);
        use(&lent);
        CHECK_INT(lent.n_deleted, i - 1);
        hold(false);
        for (int k = 0; k < 5000 && lent.n_deleted < i; k++) {
            test_pause(0.001);
            CHECK(shoal_empty_on(DIMS(2), SHOAL_F32, apart()));
        }
        CHECK_INT(lent.n_deleted, i);
    }
}

SCOPED_TEST(memory_that_is_replaced_is_given_back)
{
    struct lent lent;
    lend(&lent);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *first = borrow(&lent);
    shoal_tensor *second = borrow(&lent);
    hold(true);
    CHECK(shoal_add_(first, second));
    CHECK_OK(shoal_tensor_release_data(first));
    CHECK_OK(shoal_tensor_rebind_data(second, NULL, NULL, NULL));
    CHECK_INT(lent.n_deleted, 0);
    hold(false);
    CHECK_OK(shoal_device_synchronize(apart()));
    CHECK_INT(lent.n_deleted, 2);
    CHECK_OK(shoal_scope_end());
    check_values(lent.owner, (const float[]){2, 4, 6, 8}, 4);
}

enum {
    N_ROUNDS = 50
};

static void *use_often(void *context)
{
    for (int i = 0; i < N_ROUNDS; i++) {
        use(context);
    }
    return NULL;
}

SCOPED_TEST(threads_drop_at_once)
{
    pthread_t threads[3];
    struct lent lent[3];
    atomic_store(&test_apart()->seed, 5);
    for (int i = 0; i < 3; i++) {
        lend(&lent[i]);
        REQUIRE(pthread_create(&threads[i], NULL, use_often, &lent[i]) == 0);
    }
    for (int i = 0; i < 3; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_OK(shoal_device_synchronize(apart()));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(lent[i].n_deleted, N_ROUNDS);
        check_values(lent[i].owner, (const float[]){51, 52, 53, 54}, 4);
    }
    atomic_store(&test_apart()->seed, 0);
}

/* Failures ------------------------------------------------------------------------------------------------- */

static void fail_device(void)
{
    atomic_store(&test_apart()->fail_at, 1);
    CHECK_STATUS(shoal_device_synchronize(apart()), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("device_synchronize: device apart: device apart has failed: call record failed");
}

/* Once each: what waited when the device failed, and what was dropped afterwards. */
SCOPED_TEST(a_device_that_has_failed_works_no_more)
{
    struct lent lent;
    lend(&lent);
    test_finish(apart());
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *kept = shoal_tensor_ref(borrow(&lent));
    REQUIRE_OK(shoal_scope_end());
    hold(true);
    use(&lent);
    CHECK_INT(lent.n_deleted, 0);
    fail_device();
    CHECK_INT(lent.n_deleted, 1);
    CHECK_STATUS(shoal_fail(SHOAL_ERR_STATE, "a text"), SHOAL_ERR_STATE);
    shoal_tensor_unref(kept);
    CHECK(strcmp(shoal_error_text(), "a text") == 0);
    hold(false);
    test_forget_failure();
    CHECK_OK(shoal_device_synchronize(apart()));
    CHECK_INT(lent.n_deleted, 2);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(borrow(&lent));
    atomic_store(&test_apart()->fail_at, 1);
    CHECK_OK(shoal_scope_end()); /* the event of this one cannot be recorded */
    CHECK_INT(lent.n_deleted, 3);
    test_forget_failure();
}
