/* SPDX-License-Identifier: MIT */
/* Groups, numbers of calls, point to point, deadlines, disagreement and a world of one. README.md maps the cases. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/group/group.h"
#include "fixtures/descriptor_calls.h"
#include "conformance/collectives/basics.h"
#include "shoal/store.h"

/* Start-up ------------------------------------------------------------------------------------------------- */

struct heard {
    _Atomic int n_messages;
    _Atomic int n_warnings;
};

static void hear(void *context, shoal_log_level level, const char *message)
{
    struct heard *heard = context;
    atomic_fetch_add(&heard->n_messages, 1);
    atomic_fetch_add(&heard->n_warnings, level <= SHOAL_LOG_WARN);
}

/* A world that comes and goes neither takes the log away nor has anything to complain about. */
TEST(logging_init)
{
    struct heard heard = {0};
    shoal_log_set(hear, &heard, SHOAL_LOG_WARN);
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1, .key = "logging_init"};
    shoal_world *world;
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
    CHECK_INT(atomic_load(&heard.n_messages), 0);
    LOG(SHOAL_LOG_WARN, "still here");
    CHECK_INT(atomic_load(&heard.n_messages), 1);
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
}

TEST(default_store_timeout)
{
    char key[64];
    (void)snprintf(key, sizeof key, "default_store_timeout-%" PRIx64, test_process_number((int)getpid()));
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 3, .rank = 0, .key = key, .startup_timeout_s = 0.2};
    shoal_world *world = NULL;
    int64_t start_ns = clock_now_ns();
    CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT);
    double seconds = (double)(clock_now_ns() - start_ns) * 1e-9;
    CHECK(world == NULL);
    CHECK(seconds >= 0.19);
    CHECK(seconds < 10 * test_time_scale());
    /* It says who is missing. */
    CHECK_ERROR_TEXT("ranks 1 and 2 did not arrive");
    options.rank = 1;
    CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT);
}

TEST_WORLD(default_store_timeout_of_a_get, W)
{
    char value[8];
    size_t bytes;
    shoal_store *store = shoal_world_store(world);
    CHECK_STATUS(shoal_store_get(store, "nobody sets this", value, sizeof value, 0.1, &bytes),
                 SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("nobody sets this");
    CHECK_OK(shoal_group_barrier(all));
}

/* Groups --------------------------------------------------------------------------------------------------- */

/* Two lanes over the same ranks stand for two devices. */
TEST_WORLD(multi_device_constructor, W)
{
    static const int ranks[W] = {0, 1, 2, 3};
    shoal_group *lanes[2];
    REQUIRE_OK(shoal_group_create(world, ranks, W, "first", &lanes[0]));
    REQUIRE_OK(shoal_group_create(world, ranks, W, "second", &lanes[1]));
    for (int i = 0; i < 4; i++) {
        float value = 1;
        CHECK_OK(shoal_group_all_reduce(lanes[i % 2], &value, &value, 1, SHOAL_F32, SHOAL_SUM));
        CHECK_DOUBLE((double)value, W);
    }
    CHECK_INT(shoal_group_sequence(lanes[0]), 2);
    CHECK_INT(shoal_group_sequence(lanes[1]), 2);
    CHECK_INT(shoal_group_sequence(all), 0);
}

TEST_RANKS(set_gloo_pg_timeout, W)
{
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.timeout_s = 50;
    shoal_world *world;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *all = shoal_world_group(world);
    CHECK_DOUBLE(shoal_group_timeout(all), 50);
    CHECK_OK(shoal_group_set_timeout(all, 23));
    CHECK_DOUBLE(shoal_group_timeout(all), 23);
    CHECK_STATUS(shoal_group_set_timeout(all, -1), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_group_barrier(all));
    CHECK_OK(shoal_world_close(world));
}

TEST_WORLD(sequence_num_set_default_and_incremented, W)
{
    float value = 1;
    CHECK_INT(shoal_group_sequence(all), 0);
    for (int i = 1; i <= 5; i++) {
        CHECK_OK(shoal_group_all_reduce(all, &value, &value, 1, SHOAL_F32, SHOAL_MAX));
        CHECK_INT(shoal_group_sequence(all), i);
    }
    /* Point to point is not counted. */
    int peer = self->rank ^ 1;
    float in = 0;
    shoal_transfer transfers[2] = {{SHOAL_SEND, &value, 1, SHOAL_F32, peer, 0},
                                   {SHOAL_RECV, &in, 1, SHOAL_F32, peer, 0}};
    CHECK_OK(shoal_group_transfer(all, transfers, 2));
    CHECK_INT(shoal_group_sequence(all), 5);
}

TEST_WORLD(sequence_num_of_subgroups_is_their_own, W)
{
    shoal_group *half;
    REQUIRE_OK(shoal_group_create_blocks(world, 2, "half", &half));
    float value = 1;
    for (int i = 0; i <= self->rank / 2; i++) {
        CHECK_OK(shoal_group_all_reduce(half, &value, &value, 1, SHOAL_F32, SHOAL_SUM));
    }
    CHECK_INT(shoal_group_sequence(half), self->rank / 2 + 1);
    CHECK_INT(shoal_group_sequence(all), 0);
    CHECK_OK(shoal_group_barrier(all));
    CHECK_INT(shoal_group_sequence(all), 1);
}

TEST_WORLD(warn_not_in_group, W)
{
    static const int pair[2] = {1, 3};
    shoal_group *group = NULL;
    if (self->rank % 2 == 0) {
        CHECK_STATUS(shoal_group_create(world, pair, 2, NULL, &group), SHOAL_ERR_INVALID);
        CHECK(group == NULL);
        return;
    }
    REQUIRE_OK(shoal_group_create(world, pair, 2, NULL, &group));
    float value = (float)self->rank;
    CHECK_OK(shoal_group_all_reduce(group, &value, &value, 1, SHOAL_F32, SHOAL_SUM));
    CHECK_DOUBLE((double)value, 4);
}

TEST_WORLD(rank_membership, W)
{
    static const int turned[W] = {3, 2, 1, 0};
    shoal_group *group;
    REQUIRE_OK(shoal_group_create(world, turned, W, NULL, &group));
    CHECK_INT(shoal_group_rank(group), 3 - self->rank);
    CHECK_INT(shoal_group_n_ranks(group), W);
    CHECK_INT(shoal_group_world_rank(group, 0), 3);
    CHECK_INT(shoal_group_world_rank(group, W), -1);
    CHECK_INT(shoal_group_world_rank(group, -1), -1);
    CHECK_INT(shoal_group_rank_of(group, 3), 0);
    CHECK_INT(shoal_group_rank_of(group, 4), -1);
    CHECK_INT(shoal_group_rank_of(group, -1), -1);
    CHECK(shoal_group_world(group) == world);
    /* [3,2,1,0] is not [0,1,2,3]: the order of the gather follows the group's. */
    int32_t mine = self->rank;
    int32_t gathered[W];
    CHECK_OK(shoal_group_all_gather(group, &mine, gathered, 1, SHOAL_I32));
    CHECK_BYTES(gathered, turned, sizeof gathered);
    shoal_group *refused = NULL;
    CHECK_REFUSED(shoal_group_create(world, turned, 0, NULL, &refused), "rank");
    CHECK_REFUSED(shoal_group_create(world, (int[]){self->rank, self->rank}, 2, NULL, &refused), "twice");
    CHECK_REFUSED(shoal_group_create(world, (int[]){self->rank, W}, 2, NULL, &refused), "4");
    CHECK(refused == NULL);
}

/* Only the members call. */
TEST_WORLD(new_group_local_sync, W)
{
    static const int members[2] = {0, 2};
    if (self->rank == 0 || self->rank == 2) {
        shoal_group *group;
        REQUIRE_OK(shoal_group_create(world, members, 2, NULL, &group));
        CHECK_OK(shoal_group_barrier(group));
    }
}

/* Each pair of neighbours makes its group, in whatever order; all of them work. */
TEST_WORLD(new_group_local_sync_sanity, W)
{
    shoal_group *groups[2];
    for (int i = 0; i < 2; i++) {
        int low = ((self->rank + W - (i == self->rank % 2)) % W);
        int pair[2] = {low, (low + 1) % W};
        REQUIRE_OK(shoal_group_create(world, pair, 2, NULL, &groups[i]));
        CHECK_INT(shoal_group_n_ranks(groups[i]), 2);
    }
    /* Started on both before either is waited for: a ring of blocking calls could not end. */
    shoal_work *works[2];
    float values[2] = {(float)self->rank, (float)self->rank};
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_group_all_reduce_start(groups[i], &values[i], &values[i], 1, SHOAL_F32, SHOAL_SUM,
                                                &works[i]));
    }
    for (int i = 0; i < 2; i++) {
        int first = shoal_group_world_rank(groups[i], 0);
        int second = shoal_group_world_rank(groups[i], 1);
        CHECK_OK(finish(works[i]));
        CHECK_DOUBLE((double)values[i], first + second);
    }
}

/* The same ranks and tag are the same group, another tag is another one. */
TEST_WORLD(new_group_local_sync_duplicate_pg, W)
{
    static const int members[2] = {1, 2};
    if (self->rank != 1 && self->rank != 2) {
        return;
    }
    shoal_group *first;
    shoal_group *again;
    shoal_group *other;
    REQUIRE_OK(shoal_group_create(world, members, 2, NULL, &first));
    REQUIRE_OK(shoal_group_create(world, members, 2, "", &again));
    REQUIRE_OK(shoal_group_create(world, members, 2, "other", &other));
    CHECK(first == again);
    CHECK(first != other);
    CHECK_STRING(other->tag, "other");
    CHECK_OK(shoal_group_barrier(first));
    CHECK_OK(shoal_group_barrier(other));
    CHECK_OK(shoal_group_barrier(first));
    CHECK_INT(shoal_group_sequence(first), 2);
}

/* Point to point ------------------------------------------------------------------------------------------- */

TEST_WORLD(send_recv_all_to_all, W)
{
    float mine = (float)self->rank;
    float from[W] = {-1, -1, -1, -1};
    shoal_work *works[2 * W];
    int n_works = 0;
    for (int peer = 0; peer < W; peer++) {
        if (peer != self->rank) {
            REQUIRE_OK(shoal_group_send_start(all, &mine, 1, SHOAL_F32, peer, 7, &works[n_works++]));
            REQUIRE_OK(shoal_group_recv_start(all, &from[peer], 1, SHOAL_F32, peer, 7, &works[n_works++]));
        }
    }
    for (int i = 0; i < n_works; i++) {
        CHECK_OK(shoal_work_wait(works[i], -1));
        CHECK(shoal_work_test(works[i]));
        shoal_work_free(works[i]);
    }
    for (int peer = 0; peer < W; peer++) {
        CHECK_DOUBLE((double)from[peer], peer == self->rank ? -1 : peer);
    }
}

TEST_WORLD(all_to_all_single, W)
{
    float send[W];
    float recv[W];
    for (int r = 0; r < W; r++) {
        send[r] = (float)(10 * self->rank + r);
    }
    CHECK_OK(shoal_group_all_to_all(all, send, recv, 1, SHOAL_F32));
    for (int r = 0; r < W; r++) {
        CHECK_DOUBLE((double)recv[r], 10 * r + self->rank);
    }
}

/* Uneven, with rows of nothing: rank i sends i*j elements to rank j. */
TEST_WORLD(all_to_all_single_uneven, W)
{
    size_t send_counts[W];
    size_t recv_counts[W];
    float send[W * W * W];
    float recv[W * W * W];
    size_t at = 0;
    for (int r = 0; r < W; r++) {
        send_counts[r] = recv_counts[r] = (size_t)(self->rank * r);
        fill(send + at, send_counts[r], (float)(10 * self->rank + r));
        at += send_counts[r];
    }
    CHECK_OK(shoal_group_all_to_all_v(all, send, send_counts, recv, recv_counts, SHOAL_F32));
    at = 0;
    for (int r = 0; r < W; r++) {
        check_all(recv + at, recv_counts[r], (float)(10 * r + self->rank), "from one rank");
        at += recv_counts[r];
    }
}

/* Order and deadlines -------------------------------------------------------------------------------------- */

/* Operations of a group run in order: what a barrier followed is final, though nobody waited for it. */
TEST_WORLD(barrier_implies_wait, W)
{
    float values[16][64];
    shoal_work *works[16];
    for (int i = 0; i < 16; i++) {
        fill(values[i], 64, (float)(i + self->rank));
        REQUIRE_OK(
            shoal_group_all_reduce_start(all, values[i], values[i], 64, SHOAL_F32, SHOAL_SUM, &works[i]));
    }
    CHECK_OK(shoal_group_barrier(all));
    for (int i = 0; i < 16; i++) {
        check_all(values[i], 64, (float)(i * W + W * (W - 1) / 2), "after the barrier");
        CHECK(shoal_work_test(works[i]));
        shoal_work_free(works[i]);
    }
}

/* A barrier whose timeout names who was missing. */
TEST_WORLD(monitored_barrier, W)
{
    CHECK_OK(shoal_group_barrier(all));
    CHECK_OK(shoal_group_set_timeout(all, 0.3 * test_time_scale()));
    if (self->rank == 2) {
        /* Comes when the others have given up, and hears the same. */
        test_barrier(self);
        shoal_status status = shoal_group_barrier(all);
        if (status == SHOAL_OK && rank_hears_by_messages()) {
            /* Messages that came before the others gave up count first (docs/design/message.md). */
            status = shoal_group_barrier(all);
        }
        CHECK_STATUS(status, SHOAL_ERR_TIMEOUT);
        return;
    }
    CHECK_STATUS(shoal_group_barrier(all), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("rank 2");
    CHECK_ERROR_TEXT("barrier");
    CHECK_STATUS(shoal_group_error(all), SHOAL_ERR_TIMEOUT);
    /* Fails at once from now on, with the first reason. */
    CHECK_OK(shoal_group_set_timeout(all, 20 * test_time_scale()));
    int64_t start_ns = clock_now_ns();
    CHECK_STATUS(shoal_group_barrier(all), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("rank 2");
    CHECK((double)(clock_now_ns() - start_ns) * 1e-9 < 10 * test_time_scale());
    test_barrier(self);
}

/* The error comes out at the wait, every time, and not when it starts. */
TEST_WORLD(tensor_dtype_mismatch, W)
{
    unsigned char bytes[64] = {0};
    shoal_work *work;
    shoal_dtype dtype = self->rank == 1 ? SHOAL_F64 : SHOAL_F32;
    REQUIRE_OK(shoal_group_all_reduce_start(all, bytes, bytes, 4, dtype, SHOAL_SUM, &work));
    CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("f32");
    CHECK_ERROR_TEXT("f64");
    CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_MISMATCH);
    shoal_work_free(work);
    CHECK_STATUS(shoal_group_error(all), SHOAL_ERR_MISMATCH);
}

TEST_WORLD(tensor_count_mismatch, W)
{
    float values[8] = {0};
    size_t count = self->rank == 3 ? 7 : 8;
    CHECK_STATUS(shoal_group_all_gather(all, values, NULL, 0, SHOAL_F32), SHOAL_OK);
    CHECK_STATUS(shoal_group_all_reduce(all, values, values, count, SHOAL_F32, SHOAL_SUM),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("7");
    CHECK_ERROR_TEXT("8");
}

/* Threads -------------------------------------------------------------------------------------------------- */

struct thread_part {
    shoal_group *group;
    int rank;
    int n_rounds;
};

static void *broadcast_in_turns(void *argument)
{
    struct thread_part *part = argument;
    for (int i = 0; i < part->n_rounds && !test_has_failed(); i++) {
        int root = i % W;
        float value = part->rank == root ? (float)(i * W + root) : -1;
        CHECK_OK(shoal_group_broadcast(part->group, &value, 1, SHOAL_F32, root));
        CHECK_DOUBLE((double)value, i * W + root);
    }
    return NULL;
}

/* Eight threads of each rank, each on a lane of its own. */
TEST_WORLD(threads_on_their_own_groups, W)
{
    static const int ranks[W] = {0, 1, 2, 3};
    pthread_t threads[8];
    struct thread_part parts[8];
    for (int i = 0; i < 8; i++) {
        char tag[8];
        (void)snprintf(tag, sizeof tag, "lane%d", i);
        parts[i] = (struct thread_part){.rank = self->rank, .n_rounds = STRESS / 8};
        REQUIRE_OK(shoal_group_create(world, ranks, W, tag, &parts[i].group));
        REQUIRE(pthread_create(&threads[i], NULL, broadcast_in_turns, &parts[i]) == 0);
    }
    for (int i = 0; i < 8; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

/* A world of one ------------------------------------------------------------------------------------------- */

TEST_WORLD(dispatched_collectives_alone, 1)
{
    float value = 3;
    float out = 0;
    size_t one = 1;
    shoal_part part = {&value, &out, 1, SHOAL_CPU};
    CHECK_OK(shoal_group_barrier(all));
    CHECK_OK(shoal_group_broadcast(all, &value, 1, SHOAL_F32, 0));
    CHECK_OK(shoal_group_all_reduce(all, &value, &out, 1, SHOAL_F32, SHOAL_SUM));
    CHECK_DOUBLE((double)out, 3);
    out = 0;
    CHECK_OK(shoal_group_reduce(all, &value, &out, 1, SHOAL_F32, SHOAL_MAX, 0));
    CHECK_DOUBLE((double)out, 3);
    out = 0;
    CHECK_OK(shoal_group_all_gather(all, &value, &out, 1, SHOAL_F32));
    CHECK_DOUBLE((double)out, 3);
    out = 0;
    CHECK_OK(shoal_group_all_to_all_v(all, &value, &one, &out, &one, SHOAL_F32));
    CHECK_DOUBLE((double)out, 3);
    out = 0;
    CHECK_OK(shoal_group_reduce_scatter(all, &value, &out, 1, SHOAL_F32, SHOAL_AVG));
    CHECK_DOUBLE((double)out, 3);
    out = 0;
    CHECK_OK(shoal_group_gather(all, &value, &out, 1, SHOAL_F32, 0));
    CHECK_DOUBLE((double)out, 3);
    out = 0;
    CHECK_OK(shoal_group_scatter(all, &value, &out, 1, SHOAL_F32, 0));
    CHECK_DOUBLE((double)out, 3);
    out = 0;
    CHECK_OK(group_all_gather_list(all, &part, 1, SHOAL_F32));
    CHECK_DOUBLE((double)out, 3);
    CHECK_OK(group_all_reduce_premul(all, &value, &out, 1, SHOAL_F32, 0.5));
    CHECK_DOUBLE((double)out, 1.5);
    shoal_work *works[2];
    REQUIRE_OK(shoal_group_send_start(all, &value, 1, SHOAL_F32, 0, 1, &works[0]));
    REQUIRE_OK(shoal_group_recv_start(all, &out, 1, SHOAL_F32, 0, 1, &works[1]));
    CHECK_OK(finish(works[0]));
    CHECK_OK(finish(works[1]));
    CHECK_DOUBLE((double)out, 3);
}
