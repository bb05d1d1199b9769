/* SPDX-License-Identifier: MIT */
/*
 * Collectives that read the memory of peers (src/transport/shm/single.c): all ranks read or none does, whoever is
 * refused and whenever; and nobody takes for a result what it read from a rank that had left the call.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail_point.h"
#include "base/os/fault.h"
#include "base/os/os.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"
#include "transport/shm/algorithm.h"

enum {
    N = 3,
    BLOCK = 100000, /* u32 elements: an all_to_all of 1.2 MB */
    VICTIM = 2,
    READER = 0
};

/* One rank's side. */
struct side {
    struct rank *self;
    shoal_world *world;
    shoal_group *group;
    uint32_t *send;
    uint32_t *recv;
};

static uint32_t value_of(int from, int to, uint32_t i)
{
    return (uint32_t)from << 28 | (uint32_t)to << 24 | i;
}

static void fill(const struct side *side)
{
    for (uint32_t i = 0; i < N * BLOCK; i++) {
        side->send[i] = value_of(side->self->rank, (int)(i / BLOCK), i % BLOCK);
        side->recv[i] = 0;
    }
}

static void check_result(const struct side *side)
{
    for (uint32_t i = 0; i < N * BLOCK; i++) {
        uint32_t expected = value_of((int)(i / BLOCK), side->self->rank, i % BLOCK);
        if (side->recv[i] != expected) {
            test_failed(__FILE__, __LINE__, "element %u is %x, expected %x", (unsigned)i,
                        (unsigned)side->recv[i], (unsigned)expected);
            return;
        }
    }
}

static struct side begin(struct rank *self)
{
    struct side side = {.self = self, .world = rank_world_open(self, 0)};
    /* Whatever the tables prefer for so few ranks. */
    algorithm_override_all(&shm_algorithms, SHM_ALGORITHM_SINGLE);
    side.group = side.world ? shoal_world_group(side.world) : NULL;
    side.send = malloc(sizeof(uint32_t) * N * BLOCK);
    side.recv = malloc(sizeof(uint32_t) * N * BLOCK);
    if (side.group && side.send && side.recv) {
        fill(&side);
        CHECK_OK(shoal_group_barrier(side.group));
    } else {
        side.group = NULL;
    }
    return side;
}

static void end(struct side *side)
{
    test_barrier(side->self);
    algorithm_override_all(&shm_algorithms, SHM_ALGORITHM_COUNT);
    CHECK_OK(shoal_world_close(side->world));
    free(side->send);
    free(side->recv);
}

static shoal_status exchange(const struct side *side)
{
    return shoal_group_all_to_all(side->group, side->send, side->recv, BLOCK, SHOAL_U32);
}

/* The algorithm of the last all_to_all ------------------------------------------------------------------------ */

struct text {
    char bytes[32768];
    size_t used;
};

static int append(void *context, const char *bytes, size_t n_bytes)
{
    struct text *text = context;
    if (n_bytes < sizeof text->bytes - text->used) {
        memcpy(text->bytes + text->used, bytes, n_bytes);
        text->used += n_bytes;
        text->bytes[text->used] = '\0';
    }
    return 0;
}

static void check_algorithm(const struct side *side, const char *name)
{
    static const char op[] = "\"op\": \"all_to_all";
    static const char member[] = "\"algorithm\": \"";
    struct text *text = calloc(1, sizeof *text);
    REQUIRE(text);
    CHECK_OK(shoal_world_dump(side->world, append, text));
    const char *last = NULL;
    for (const char *at = text->bytes; (at = strstr(at, op)); at++) {
        last = at;
    }
    const char *found = last ? strstr(last, member) : NULL;
    if (!found || strncmp(found + strlen(member), name, strlen(name)) != 0) {
        test_failed(__FILE__, __LINE__, "not carried by %s: %.60s", name, found ? found : "");
    }
    free(text);
}

/* Whether this machine lets processes read each other's memory: elsewhere there is nothing to test. */
static bool can_read_processes(void)
{
    uint32_t source = 7;
    uint32_t target = 0;
    bool can =
        os_read_process(getppid(), 0, &target, sizeof target) < 0 && errno != EPERM && errno != ENOSYS &&
        os_read_process(os_process(), (uint64_t)(uintptr_t)&source, &target, sizeof target) == sizeof target;
    if (!can) {
        test_skip("this machine does not let processes read each other's memory");
    }
    return can;
}

/* Refusals -------------------------------------------------------------------------------------------------- */

TEST_RANKS(ranks_read_each_other, N)
{
    struct side side = begin(self);
    REQUIRE(side.group);
    for (int i = 0; i < 3; i++) {
        fill(&side);
        CHECK_OK(exchange(&side));
        check_result(&side);
    }
    if (can_read_processes()) {
        check_algorithm(&side, "single");
    }
    end(&side);
}

/* The reads of one rank fail from the beginning, or from the second collective on: all go the other way, at once. */
static void refuse_one(struct rank *self, int n_before, int code)
{
    if (!can_read_processes()) {
        return;
    }
    struct side side = begin(self);
    REQUIRE(side.group);
    for (int i = 0; i < n_before; i++) {
        CHECK_OK(exchange(&side));
        check_algorithm(&side, "single");
    }
    if (self->rank == VICTIM) {
        os_fault_arm_kind("read process", code);
    }
    for (int i = 0; i < 3; i++) {
        fill(&side);
        CHECK_OK(exchange(&side));
        check_result(&side);
        check_algorithm(&side, "staged");
    }
    os_fault_arm_kind(NULL, 0);
    /* What was decided together stays. */
    fill(&side);
    CHECK_OK(exchange(&side));
    check_result(&side);
    check_algorithm(&side, "staged");
    end(&side);
}

TEST_PROCESSES(a_rank_that_is_refused_at_first_is_followed_by_all, N)
{
    refuse_one(self, 0, EPERM);
}

TEST_PROCESSES(a_rank_that_is_refused_later_is_followed_by_all, N)
{
    refuse_one(self, 1, EFAULT);
}

/* In place on one rank only: that rank's blocks are overwritten while others would read them. */
TEST_RANKS(one_rank_in_place_is_enough, N)
{
    struct side side = begin(self);
    REQUIRE(side.group);
    uint32_t *recv = side.recv;
    side.recv = self->rank == VICTIM ? side.send : recv;
    CHECK_OK(exchange(&side));
    check_result(&side);
    check_algorithm(&side, "staged");
    side.recv = recv;
    end(&side);
}

TEST_RANKS(mismatches_are_found_before_anybody_reads, N)
{
    struct side side = begin(self);
    REQUIRE(side.group);
    memset(side.recv, 0, sizeof(uint32_t) * N * BLOCK);
    CHECK_STATUS(shoal_group_all_to_all(side.group, side.send, side.recv,
                                        self->rank == VICTIM ? BLOCK - 1 : BLOCK, SHOAL_U32),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("all_to_all");
    for (size_t i = 0; i < (size_t)N * BLOCK; i++) {
        if (side.recv[i] != 0) {
            test_failed(__FILE__, __LINE__, "element %zu was written", i);
            break;
        }
    }
    end(&side);
}

TEST_RANKS(counts_that_differ_are_a_mismatch, N)
{
    struct side side = begin(self);
    REQUIRE(side.group);
    size_t send_counts[N] = {BLOCK, BLOCK, BLOCK};
    size_t recv_counts[N] = {BLOCK, BLOCK, BLOCK};
    CHECK_OK(shoal_group_all_to_all_v(side.group, side.send, send_counts, side.recv, recv_counts, SHOAL_U32));
    check_result(&side);
    send_counts[READER] -= self->rank == VICTIM;
    CHECK_STATUS(
        shoal_group_all_to_all_v(side.group, side.send, send_counts, side.recv, recv_counts, SHOAL_U32),
        SHOAL_ERR_MISMATCH);
    end(&side);
}

/* A rank that leaves while another reads ------------------------------------------------------------------------ */

/* In memory that all see. */
struct board {
    _Atomic bool has_left; /* the victim: it has returned and spoilt its buffer, or is about to die */
};

/* What happens at a fail point. An action runs at one passage only, so it arms the next one. */
struct plan {
    const char *point;
    int n_skipped; /* passages of it before that one */
    struct board *board;
    bool dies;
};

static shoal_status pass(void *context, const char *name)
{
    struct plan *plan = context;
    if (strcmp(name, plan->point) != 0 || plan->n_skipped-- > 0) {
        fail_point_arm(1, pass, context);
    } else if (plan->dies) {
        atomic_store(&plan->board->has_left, true);
        (void)raise(SIGKILL);
    } else {
        while (!atomic_load(&plan->board->has_left)) {
            test_pause(0.001);
        }
        test_pause(0.05); /* one that dies is gone by then, or soon */
    }
    return SHOAL_OK;
}

/* The last thing that rank 0 reads is what rank 2 gives: after it there is no look at the group that could fail. */
_Static_assert(READER == 0 && VICTIM == N - 1, "that read is held up");

static void hold_reader(struct plan *plan, const struct rank *self)
{
    if (self->rank == READER) {
        *plan = (struct plan){.point = "shm single read", .n_skipped = N - 2, .board = self->shared};
        fail_point_arm(1, pass, plan);
    }
}

/* The reader is about to read from the victim, which has read all it needs, and leaves at its own deadline. What it had
   to give is overwritten then: the reader must not take it for a result. */
TEST_PROCESSES(what_was_read_from_a_rank_that_gave_up_is_no_result, N)
{
    if (!can_read_processes()) {
        return;
    }
    struct board *board = self->shared;
    struct plan plan;
    struct side side = begin(self);
    REQUIRE(side.group);
    CHECK_OK(exchange(&side));
    if (self->rank == VICTIM) {
        CHECK_OK(shoal_group_set_timeout(side.group, 0.3 * test_time_scale()));
    }
    hold_reader(&plan, self);
    fill(&side);
    test_barrier(self);
    shoal_status status = exchange(&side);
    CHECK_STATUS(status, SHOAL_ERR_TIMEOUT);
    if (self->rank == VICTIM) {
        memset(side.send, 0x77, sizeof(uint32_t) * N * BLOCK);
        atomic_store(&board->has_left, true);
    }
    fail_point_arm(0, NULL, NULL);
    end(&side);
}

TEST_PROCESSES(what_was_read_from_a_rank_that_died_is_no_result, N)
{
    if (!can_read_processes()) {
        return;
    }
    struct plan plan;
    test_expect_death(VICTIM, SIGKILL);
    struct side side = begin(self);
    REQUIRE(side.group);
    CHECK_OK(exchange(&side));
    hold_reader(&plan, self);
    if (self->rank == VICTIM) {
        plan = (struct plan){.point = "shm single read all", .board = self->shared, .dies = true};
        fail_point_arm(1, pass, &plan);
    }
    CHECK_STATUS(exchange(&side), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 2");
    fail_point_arm(0, NULL, NULL);
    end(&side);
}
