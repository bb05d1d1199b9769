/* SPDX-License-Identifier: MIT */
/*
 * Lanes over a scripted channel: order, posting, claiming, handing over, failing, freeing in flight. The channel
 * lets collective s end once the test has let s + 1 of them pass, and watches that the lane keeps its promises.
 */
#include "comm/lane/lane.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/os/fault.h"
#include "base/wait.h"
#include "fixtures/descriptor_calls.h"
#include "fixtures/small_world.h"
#include "harness/test.h"

/* The channel ------------------------------------------------------------------------------------------ */

struct script {
    _Atomic bool may_post;
    _Atomic int connect_status;
    _Atomic uint32_t n_passed; /* collectives that may end */
    _Atomic uint32_t n_ended;  /* that have */
    _Atomic uint32_t n_inside; /* threads in finish or run, ever: to wait for them */
    _Atomic int state;         /* poisoned: as in the fake transport */
    _Atomic int n_running;     /* in run now */
    _Atomic int n_finishing;
    _Atomic uint32_t n_broken; /* promises of the lane that were broken */
    uint32_t next_post;        /* checked for order; under the lane's lock, or by the runner */
    shoal_status status;
    char text[128];
};

struct scripted_channel {
    struct channel base;
};

/* One at a time: tests run one after the other, and connect has no other way to find it. */
static struct script script;

static void script_begin(bool may_post)
{
    memset(&script, 0, sizeof script);
    atomic_store(&script.may_post, may_post);
    atomic_store(&script.connect_status, SHOAL_OK);
}

static void let_pass(uint32_t n_passed)
{
    atomic_store(&script.n_passed, n_passed);
    wait_wake_all(&script.n_passed, false);
}

static void expect(bool condition)
{
    if (!condition) {
        atomic_fetch_add(&script.n_broken, 1);
    }
}

static shoal_status scripted_failure(struct channel *channel)
{
    if (atomic_load(&script.state) != 2) {
        return SHOAL_OK;
    }
    return error_set(script.status, "%s", script.text);
}

static void scripted_poison(struct channel *channel, shoal_status status, const char *text)
{
    int fine = 0;
    if (!atomic_compare_exchange_strong(&script.state, &fine, 1)) {
        return;
    }
    script.status = status;
    (void)snprintf(script.text, sizeof script.text, "%s", text);
    atomic_store(&script.state, 2);
    wait_wake_all(&script.n_passed, false);
}

extern const struct transport scripted;

static shoal_status scripted_connect(const struct transport_peers *peers, int64_t deadline_ns,
                                     struct channel **channel_out)
{
    shoal_status status = (shoal_status)atomic_load(&script.connect_status);
    if (status != SHOAL_OK) {
        return error_set(status, "no way through");
    }
    struct scripted_channel *channel = mem_alloc_zeroed(1, sizeof *channel);
    if (!channel) {
        return SHOAL_ERR_NO_MEMORY;
    }
    channel->base = (struct channel){.transport = &scripted, .peers = peers};
    *channel_out = &channel->base;
    return SHOAL_OK;
}

static void scripted_disconnect(struct channel *channel)
{
    expect(atomic_load(&script.n_running) == 0 && atomic_load(&script.n_finishing) == 0);
    mem_free(channel);
}

static bool scripted_post(struct channel *channel, struct collective *collective)
{
    expect(atomic_load(&script.n_running) == 0);
    if (!atomic_load(&script.may_post)) {
        return false;
    }
    expect(collective->sequence == script.next_post);
    script.next_post++;
    return true;
}

static bool has_passed(const struct collective *collective)
{
    return collective->sequence < atomic_load(&script.n_passed);
}

static bool scripted_is_ready(struct channel *channel, const struct collective *collective)
{
    return has_passed(collective) || atomic_load(&script.state) == 2;
}

static shoal_status check_poison(void *context)
{
    return scripted_failure(NULL);
}

/* Until the collective may end; SHOAL_ERR_TIMEOUT past until_ns. */
static shoal_status wait_to_pass(const struct collective *collective, int64_t until_ns)
{
    struct wait_options options = {.deadline_ns = until_ns, .liveness = check_poison, .what = "the peers"};
    shoal_status status = scripted_failure(NULL);
    while (status == SHOAL_OK) {
        uint32_t n_passed = atomic_load(&script.n_passed);
        if (collective->sequence < n_passed) {
            return SHOAL_OK;
        }
        status = wait_while_equal(&script.n_passed, n_passed, &options);
    }
    return status;
}

static void end_one(const struct collective *collective)
{
    expect(atomic_load(&script.state) == 2 || collective->sequence == atomic_load(&script.n_ended));
    atomic_fetch_add(&script.n_ended, 1);
    wait_wake_all(&script.n_ended, false);
}

static void note_inside(void)
{
    atomic_fetch_add(&script.n_inside, 1);
    wait_wake_all(&script.n_inside, false);
}

static shoal_status scripted_finish(struct channel *channel, struct collective *collective, int64_t until_ns,
                                    bool *is_pending_out)
{
    expect(atomic_fetch_add(&script.n_finishing, 1) == 0);
    expect(atomic_load(&script.n_running) == 0);
    note_inside();
    int64_t first_ns = until_ns < collective->deadline_ns ? until_ns : collective->deadline_ns;
    shoal_status status = wait_to_pass(collective, first_ns);
    *is_pending_out = status == SHOAL_ERR_TIMEOUT && until_ns < collective->deadline_ns;
    if (!*is_pending_out) {
        if (status != SHOAL_OK) {
            scripted_poison(channel, status, shoal_error_text());
        }
        end_one(collective);
    }
    atomic_fetch_sub(&script.n_finishing, 1);
    return status;
}

static shoal_status scripted_run(struct channel *channel, struct collective *collective)
{
    expect(atomic_fetch_add(&script.n_running, 1) == 0);
    expect(atomic_load(&script.n_finishing) == 0);
    expect(atomic_load(&script.state) == 2 || collective->sequence == script.next_post);
    script.next_post++;
    note_inside();
    shoal_status status = wait_to_pass(collective, collective->deadline_ns);
    if (status != SHOAL_OK) {
        scripted_poison(channel, status, shoal_error_text());
    }
    end_one(collective);
    atomic_fetch_sub(&script.n_running, 1);
    return status;
}

const struct transport scripted = {
    .name = "scripted",
    .doc = "ends what the test lets pass",
    .connect = scripted_connect,
    .disconnect = scripted_disconnect,
    .post = scripted_post,
    .is_ready = scripted_is_ready,
    .finish = scripted_finish,
    .run = scripted_run,
    .poison = scripted_poison,
    .failure = scripted_failure,
};

/* Helpers ---------------------------------------------------------------------------------------------- */

struct bench {
    struct shoal_world world;
    struct shoal_group *group;
    struct lane *lane;
};

static bool bench_open(struct bench *bench, bool may_post)
{
    script_begin(may_post);
    static const int ranks[] = {0, 1};
    if (!small_world_open(&bench->world, 0, 2, &scripted) ||
        shoal_group_create(&bench->world, ranks, 2, "", &bench->group) != SHOAL_OK) {
        small_world_close(&bench->world);
        return false;
    }
    bench->lane = bench->group->lane;
    return true;
}

static void bench_close(struct bench *bench)
{
    small_world_close(&bench->world);
    CHECK_INT(atomic_load(&script.n_broken), 0);
}

/* Waits, with a deadline, until a counter has reached a value. */
static bool wait_for(_Atomic uint32_t *word, uint32_t value)
{
    struct wait_options options = {.deadline_ns = clock_deadline_after(20.0),
                                   .what = "a counter of the test"};
    uint32_t seen;
    while ((seen = atomic_load(word)) < value) {
        if (wait_while_equal(word, seen, &options) != SHOAL_OK) {
            return false;
        }
    }
    return true;
}

static shoal_work *start(struct bench *bench)
{
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_barrier_start(bench->group, &work));
    return work;
}

static void wait_and_free(shoal_work *work, shoal_status expected)
{
    if (work) {
        CHECK_STATUS(shoal_work_wait(work, -1), expected);
        shoal_work_free(work);
    }
}

struct helper {
    pthread_t thread;
    struct bench *bench;
    shoal_work *work;
    shoal_status status;
    char text[128];
};

static void *help_waiting(void *context)
{
    struct helper *helper = context;
    helper->status = shoal_work_wait(helper->work, -1);
    (void)snprintf(helper->text, sizeof helper->text, "%s", shoal_error_text());
    return NULL;
}

static void *help_running(void *context)
{
    struct helper *helper = context;
    helper->status = shoal_group_barrier(helper->bench->group);
    (void)snprintf(helper->text, sizeof helper->text, "%s", shoal_error_text());
    return NULL;
}

static void helper_begin(struct helper *helper, void *(*function)(void *context))
{
    REQUIRE(pthread_create(&helper->thread, NULL, function, helper) == 0);
}

static void helper_end(struct helper *helper, shoal_status expected)
{
    (void)pthread_join(helper->thread, NULL);
    CHECK_STATUS(helper->status, expected);
}

/* Blocking calls --------------------------------------------------------------------------------------- */

TEST(blocking_calls_run_in_order)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, true));
    let_pass(100);
    for (int i = 0; i < 10; i++) {
        CHECK_INT(shoal_group_sequence(bench.group), i);
        CHECK_OK(shoal_group_barrier(bench.group));
    }
    CHECK_INT(atomic_load(&script.n_ended), 10);
    CHECK_INT(lane_n_unfinished(bench.lane), 0);
    bench_close(&bench);
}

TEST(blocking_call_ends_what_was_posted_before)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, true));
    shoal_work *works[16];
    for (int i = 0; i < 16; i++) {
        works[i] = start(&bench);
    }
    CHECK_INT(lane_n_unfinished(bench.lane), 16);
    let_pass(17);
    CHECK_OK(shoal_group_barrier(bench.group));
    CHECK_INT(lane_n_unfinished(bench.lane), 0);
    for (int i = 0; i < 16; i++) {
        CHECK(shoal_work_test(works[i]));
        wait_and_free(works[i], SHOAL_OK);
    }
    CHECK_INT(atomic_load(&bench.world.works->n_unawaited), 0);
    bench_close(&bench);
}

/* Two calls that block at once: the second comes while the first runs alone. */
TEST(blocking_calls_of_two_threads_take_turns)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, false));
    let_pass(1);
    CHECK_OK(shoal_group_barrier(bench.group));
    struct helper first = {.bench = &bench};
    struct helper second = {.bench = &bench};
    helper_begin(&first, help_running);
    CHECK(wait_for(&script.n_inside, 2));
    helper_begin(&second, help_running);
    shoal_work *work = start(&bench);
    let_pass(4);
    wait_and_free(work, SHOAL_OK);
    helper_end(&first, SHOAL_OK);
    helper_end(&second, SHOAL_OK);
    CHECK_INT(shoal_group_sequence(bench.group), 4);
    bench_close(&bench);
}

/* Works ------------------------------------------------------------------------------------------------ */

TEST(test_finishes_what_is_ready)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, true));
    shoal_work *works[3];
    for (int i = 0; i < 3; i++) {
        works[i] = start(&bench);
        CHECK(!shoal_work_test(works[i]));
    }
    let_pass(1);
    CHECK(!shoal_work_test(works[1]));
    CHECK_INT(atomic_load(&script.n_ended), 1);
    CHECK(shoal_work_test(works[0]));
    let_pass(3);
    CHECK(shoal_work_test(works[2]));
    CHECK_INT(atomic_load(&script.n_ended), 3);
    CHECK_INT(atomic_load(&bench.world.works->n_unawaited), 1);
    for (int i = 0; i < 3; i++) {
        wait_and_free(works[i], SHOAL_OK);
    }
    bench_close(&bench);
}

TEST(wait_ends_at_its_own_time)
{
    struct bench bench;
    for (int may_post = 0; may_post < 2; may_post++) {
        REQUIRE(bench_open(&bench, may_post));
        shoal_work *work = start(&bench);
        CHECK_STATUS(shoal_work_wait(work, 0), SHOAL_ERR_TIMEOUT);
        CHECK_STATUS(shoal_work_wait(work, 0.02), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("waited ");
        CHECK(!shoal_work_test(work));
        let_pass(1);
        CHECK_OK(shoal_work_wait(work, 20.0));
        CHECK_OK(shoal_work_wait(work, 0));
        wait_and_free(work, SHOAL_OK);
        bench_close(&bench);
    }
}

TEST(queued_work_goes_on_by_itself)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, false));
    shoal_work *works[3];
    for (int i = 0; i < 3; i++) {
        works[i] = start(&bench);
    }
    let_pass(3);
    CHECK(wait_for(&script.n_ended, 3));
    for (int i = 2; i >= 0; i--) {
        wait_and_free(works[i], SHOAL_OK);
    }
    bench_close(&bench);
}

/* The queued one needs the lane's thread to end the posted one before it. */
TEST(posted_work_before_queued_work_goes_on)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, true));
    shoal_work *posted = start(&bench);
    atomic_store(&script.may_post, false);
    shoal_work *queued = start(&bench);
    atomic_store(&script.may_post, true);
    shoal_work *behind = start(&bench);
    let_pass(3);
    CHECK(wait_for(&script.n_ended, 2));
    wait_and_free(behind, SHOAL_OK);
    wait_and_free(posted, SHOAL_OK);
    wait_and_free(queued, SHOAL_OK);
    bench_close(&bench);
}

/* A waiter stops driving when its own work has ended; the other waiter must go on. */
TEST(waiters_hand_over)
{
    struct bench bench;
    for (int round = 0; round < 50 && !test_has_failed(); round++) {
        REQUIRE(bench_open(&bench, true));
        struct helper helpers[3];
        for (int i = 0; i < 3; i++) {
            helpers[i] = (struct helper){.bench = &bench, .work = start(&bench)};
        }
        for (int i = 0; i < 3; i++) {
            helper_begin(&helpers[(i + round) % 3], help_waiting);
        }
        CHECK(wait_for(&script.n_inside, 1));
        for (uint32_t i = 0; i < 3; i++) {
            let_pass(i + 1);
            CHECK(wait_for(&script.n_ended, i + 1));
        }
        for (int i = 0; i < 3; i++) {
            helper_end(&helpers[i], SHOAL_OK);
            shoal_work_free(helpers[i].work);
        }
        bench_close(&bench);
    }
}

/* One that has little time drives, leaves, and the one that has all the time goes on. */
TEST(impatient_driver_hands_over)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, true));
    struct helper helper = {.bench = &bench, .work = start(&bench)};
    shoal_work *second = start(&bench);
    CHECK_STATUS(shoal_work_wait(second, 0.01), SHOAL_ERR_TIMEOUT);
    helper_begin(&helper, help_waiting);
    CHECK_STATUS(shoal_work_wait(second, 0.05), SHOAL_ERR_TIMEOUT);
    let_pass(2);
    helper_end(&helper, SHOAL_OK);
    wait_and_free(second, SHOAL_OK);
    shoal_work_free(helper.work);
    bench_close(&bench);
}

/* Failing ---------------------------------------------------------------------------------------------- */

TEST(deadline_of_the_group_fails_the_group)
{
    struct bench bench;
    for (int may_post = 0; may_post < 2; may_post++) {
        REQUIRE(bench_open(&bench, may_post));
        CHECK_OK(shoal_group_set_timeout(bench.group, 0.03));
        shoal_work *work = start(&bench);
        shoal_work *later = start(&bench);
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("for the peers");
        CHECK(shoal_work_test(work));
        uint64_t sequence = shoal_group_sequence(bench.group);
        CHECK_STATUS(shoal_group_barrier(bench.group), SHOAL_ERR_TIMEOUT);
        CHECK_STATUS(shoal_group_barrier_start(bench.group, &(shoal_work *){NULL}), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("for the peers");
        CHECK_INT(shoal_group_sequence(bench.group), sequence);
        CHECK_STATUS(shoal_group_error(bench.group), SHOAL_ERR_TIMEOUT);
        wait_and_free(later, SHOAL_ERR_TIMEOUT);
        wait_and_free(work, SHOAL_ERR_TIMEOUT);
        bench_close(&bench);
    }
}

TEST(abort_ends_everything)
{
    struct bench bench;
    for (int may_post = 0; may_post < 2; may_post++) {
        REQUIRE(bench_open(&bench, may_post));
        let_pass(1);
        CHECK_OK(shoal_group_barrier(bench.group));
        struct helper running = {.bench = &bench};
        helper_begin(&running, help_running);
        CHECK(wait_for(&script.n_inside, 2));
        struct helper waiting = {.bench = &bench, .work = start(&bench)};
        helper_begin(&waiting, help_waiting);
        shoal_work *alone = start(&bench);
        lane_poison(bench.lane, SHOAL_ERR_CANCELLED, "enough");
        lane_poison(bench.lane, SHOAL_ERR_PEER, "too late");
        helper_end(&running, SHOAL_ERR_CANCELLED);
        CHECK_STRING(running.text, "enough");
        helper_end(&waiting, SHOAL_ERR_CANCELLED);
        CHECK_STRING(waiting.text, "enough");
        wait_and_free(alone, SHOAL_ERR_CANCELLED);
        CHECK_STATUS(shoal_group_barrier(bench.group), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("enough");
        shoal_work_free(waiting.work);
        bench_close(&bench);
    }
}

/* Others may wait in the first call for this rank, whose next call must not meet them. */
TEST(failing_to_connect_fails_the_group)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, true));
    atomic_store(&script.connect_status, SHOAL_ERR_SYSTEM);
    CHECK_STATUS(shoal_group_barrier(bench.group), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("connecting group [0,1]: no way through");
    CHECK_INT(shoal_group_sequence(bench.group), 0);
    atomic_store(&script.connect_status, SHOAL_OK);
    CHECK_STATUS(shoal_group_error(bench.group), SHOAL_ERR_SYSTEM);
    CHECK_STATUS(shoal_group_barrier(bench.group), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("the group has failed before: connecting group [0,1]: no way through");
    bench_close(&bench);
}

TEST(connecting_without_memory_issues_nothing)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, true));
    atomic_store(&script.connect_status, SHOAL_ERR_NO_MEMORY);
    CHECK_STATUS(shoal_group_barrier(bench.group), SHOAL_ERR_NO_MEMORY);
    CHECK_INT(shoal_group_sequence(bench.group), 0);
    CHECK_OK(shoal_group_error(bench.group));
    atomic_store(&script.connect_status, SHOAL_OK);
    let_pass(1);
    CHECK_OK(shoal_group_barrier(bench.group));
    bench_close(&bench);
}

TEST(a_start_that_gets_no_thread_fails_the_group)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, false));
    let_pass(1);
    CHECK_OK(shoal_group_barrier(bench.group));
    os_fault_arm(1, EAGAIN);
    CHECK_STATUS(shoal_group_barrier_start(bench.group, &(shoal_work *){NULL}), SHOAL_ERR_SYSTEM);
    os_fault_arm(0, 0);
    CHECK_STATUS(shoal_group_barrier(bench.group), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("could not be created");
    bench_close(&bench);
}

TEST(poison_without_a_connection_is_kept)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, true));
    atomic_store(&script.connect_status, SHOAL_ERR_SYSTEM);
    lane_poison(bench.lane, SHOAL_ERR_CANCELLED, "first");
    lane_poison(bench.lane, SHOAL_ERR_PEER, "second");
    atomic_store(&script.connect_status, SHOAL_OK);
    CHECK_STATUS(shoal_group_barrier(bench.group), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("first");
    bench_close(&bench);
}

/* Lifetimes -------------------------------------------------------------------------------------------- */

TEST(handles_are_freed_in_flight)
{
    struct bench bench;
    for (int may_post = 0; may_post < 2; may_post++) {
        REQUIRE(bench_open(&bench, may_post));
        for (int i = 0; i < 5; i++) {
            shoal_work_free(start(&bench));
        }
        let_pass(6);
        CHECK_OK(shoal_group_barrier(bench.group));
        CHECK_INT(atomic_load(&script.n_ended), 6);
        CHECK_INT(atomic_load(&bench.world.works->n_unawaited), 5);
        bench_close(&bench);
    }
}

TEST(closing_ends_what_is_unfinished)
{
    struct bench bench;
    for (int may_post = 0; may_post < 2; may_post++) {
        REQUIRE(bench_open(&bench, may_post));
        shoal_work *works[4];
        for (int i = 0; i < 4; i++) {
            works[i] = start(&bench);
        }
        let_pass(2);
        /* Posted ones end with the closing; the others by themselves, which may take a moment. */
        CHECK(may_post || wait_for(&script.n_ended, 2));
        bench_close(&bench);
        CHECK_INT(atomic_load(&script.n_ended), 4);
        CHECK_INT(atomic_load(&works[0]->count->n_unawaited), 4);
        CHECK_OK(shoal_work_wait(works[0], 0));
        CHECK_STATUS(shoal_work_wait(works[3], 0), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("closed");
        for (int i = 0; i < 4; i++) {
            shoal_work_free(works[i]);
        }
    }
}

TEST(closing_lets_waiters_go)
{
    struct bench bench;
    for (int may_post = 0; may_post < 2; may_post++) {
        REQUIRE(bench_open(&bench, may_post));
        struct helper helper = {.bench = &bench, .work = start(&bench)};
        helper_begin(&helper, help_waiting);
        CHECK(wait_for(&script.n_inside, 1));
        bench_close(&bench);
        helper_end(&helper, SHOAL_ERR_CANCELLED);
        shoal_work_free(helper.work);
    }
}

/* What a list points to is gone when the call returns. */
TEST(start_copies_what_it_needs)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, false));
    float data[4] = {0};
    shoal_work *works[3] = {NULL};
    {
        shoal_part parts[2] = {{&data[0], &data[0], 1, SHOAL_CPU}, {&data[1], &data[1], 1, SHOAL_CPU}};
        size_t counts[2] = {1, 1};
        CHECK_OK(group_all_reduce_list_start(bench.group, parts, 2, SHOAL_F32, SHOAL_SUM, &works[0]));
        CHECK_OK(
            shoal_group_all_gather_v_start(bench.group, &data[0], &data[2], counts, SHOAL_F32, &works[1]));
        CHECK_OK(shoal_group_all_to_all_v_start(bench.group, &data[0], counts, &data[2], counts, SHOAL_F32,
                                                &works[2]));
        memset(parts, 0x55, sizeof parts);
        memset(counts, 0x55, sizeof counts);
    }
    let_pass(3);
    for (int i = 0; i < 3; i++) {
        wait_and_free(works[i], SHOAL_OK);
    }
    bench_close(&bench);
}

static shoal_status allocate_everything(void *context)
{
    struct bench bench;
    if (!bench_open(&bench, *(bool *)context)) {
        return SHOAL_ERR_NO_MEMORY;
    }
    let_pass(2);
    shoal_work *work = NULL;
    shoal_status status = shoal_group_barrier(bench.group);
    if (status == SHOAL_OK) {
        status = shoal_group_barrier_start(bench.group, &work);
    }
    if (status == SHOAL_OK) {
        status = shoal_work_wait(work, -1);
        shoal_work_free(work);
    }
    small_world_close(&bench.world);
    return status;
}

TEST(allocations_may_fail)
{
    for (int may_post = 0; may_post < 2; may_post++) {
        bool flag = may_post;
        CHECK(test_sweep_allocations(allocate_everything, &flag) > 0);
    }
}

/* Many threads ----------------------------------------------------------------------------------------- */

#define N_HAMMERS 4
#define N_BLOWS 1500

struct hammer {
    pthread_t thread;
    struct bench *bench;
    uint64_t salt;
    int n_failed;
};

static void strike(struct hammer *hammer, struct test_random *random)
{
    shoal_work *work = NULL;
    shoal_status status = SHOAL_OK;
    uint64_t way = test_random_below(random, 6);
    if (way == 0) {
        atomic_store(&script.may_post, test_random_below(random, 2) == 0);
    }
    if (way <= 1) {
        status = shoal_group_barrier(hammer->bench->group);
    } else {
        status = shoal_group_barrier_start(hammer->bench->group, &work);
        if (status == SHOAL_OK && way == 2) {
            status = shoal_work_wait(work, -1);
        } else if (status == SHOAL_OK && way == 3) {
            (void)shoal_work_test(work);
        } else if (status == SHOAL_OK && way == 4) {
            status = shoal_work_wait(work, 1e-5);
            status = status == SHOAL_ERR_TIMEOUT ? SHOAL_OK : status;
        }
        shoal_work_free(work);
    }
    hammer->n_failed += status != SHOAL_OK;
}

static void *run_hammer(void *context)
{
    struct hammer *hammer = context;
    struct test_random random = test_random_begin(hammer->salt);
    for (int i = 0; i < N_BLOWS; i++) {
        strike(hammer, &random);
    }
    return NULL;
}

static void *run_passer(void *context)
{
    /* Peers that are sometimes late: the line grows and shrinks. */
    struct test_random random = test_random_begin(99);
    for (uint32_t n_passed = 0; n_passed < N_HAMMERS * N_BLOWS + 1;) {
        if (!wait_for(&script.n_ended, n_passed)) {
            break;
        }
        n_passed += 1 + (uint32_t)test_random_below(&random, 40);
        let_pass(n_passed);
    }
    let_pass(UINT32_MAX);
    return NULL;
}

/* The peers wait for nobody here: whoever hammers needs no one but the lane. */
static void hammer_lane(bool has_late_peers)
{
    test_deadline(60);
    struct bench bench;
    REQUIRE(bench_open(&bench, true));
    pthread_t passer;
    if (has_late_peers) {
        REQUIRE(pthread_create(&passer, NULL, run_passer, NULL) == 0);
    } else {
        let_pass(UINT32_MAX);
    }
    struct hammer hammers[N_HAMMERS];
    for (uint64_t i = 0; i < N_HAMMERS; i++) {
        hammers[i] = (struct hammer){.bench = &bench, .salt = i};
        REQUIRE(pthread_create(&hammers[i].thread, NULL, run_hammer, &hammers[i]) == 0);
    }
    for (int i = 0; i < N_HAMMERS; i++) {
        (void)pthread_join(hammers[i].thread, NULL);
        CHECK_INT(hammers[i].n_failed, 0);
    }
    let_pass(UINT32_MAX);
    CHECK_OK(shoal_group_barrier(bench.group));
    if (has_late_peers) {
        (void)pthread_join(passer, NULL);
    }
    CHECK_INT(shoal_group_sequence(bench.group), N_HAMMERS * N_BLOWS + 1);
    CHECK_INT(atomic_load(&script.n_ended), N_HAMMERS * N_BLOWS + 1);
    CHECK_INT(lane_n_unfinished(bench.lane), 0);
    bench_close(&bench);
}

TEST(many_threads_take_turns)
{
    hammer_lane(false);
}

TEST(many_threads_with_late_peers)
{
    hammer_lane(true);
}
