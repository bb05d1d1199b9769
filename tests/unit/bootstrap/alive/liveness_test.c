/* SPDX-License-Identifier: MIT */
/* Who lives: death of every kind is noticed and named, an ordinary end is told apart from it. */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"
#include "bootstrap/alive/liveness.h"
#include "comm/group/world.h"
#include "fixtures/rank_world.h"
#include "fixtures/world_segment.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/store.h"
#include "sharedmem/segment.h"

#define KEY_BYTES 128

/* A number that no earlier world of the running program had. */
static int next_round(struct rank *self)
{
    static _Atomic int n_rounds;
    int *round = (int *)((char *)self->shared + TEST_SHARED_BYTES - sizeof(int));
    test_barrier(self);
    if (self->rank == 0) {
        *round = ++n_rounds;
    }
    test_barrier(self);
    return *round;
}

#if defined(__SANITIZE_THREAD__)
#define HAS_THREAD_SANITIZER 1
#else
#define HAS_THREAD_SANITIZER 0
#endif

/* The thread sanitizer cannot follow threads of a forked process. */
static bool is_without_processes(void)
{
    if (HAS_THREAD_SANITIZER) {
        test_skip("no threads in forked processes under the thread sanitizer");
    }
    return HAS_THREAD_SANITIZER;
}

/* A process of a test's own as one rank of two. */
struct peer {
    pid_t pid;
    int words; /* read end: it writes one byte when its world is open */
    char key[KEY_BYTES];
};

static shoal_world *open_as(const char *key, int rank)
{
    shoal_world_options options = {.struct_size = sizeof options,
                                   .n_ranks = 2,
                                   .rank = rank,
                                   .key = key,
                                   .startup_timeout_s = 20,
                                   .close_timeout_s = 20};
    shoal_world *world = NULL;
    return shoal_world_open(&options, &world) == SHOAL_OK ? world : NULL;
}

/* `live` runs in it after the opening, and must not return. */
static struct peer start_peer(int rank, void (*live)(shoal_world *world, int words))
{
    static int n_peers;
    struct peer peer = {.pid = -1};
    (void)snprintf(peer.key, sizeof peer.key, "peer %" PRIx64 " %d", test_process_number((int)getpid()),
                   ++n_peers);
    int ends[2];
    CHECK(pipe(ends) == 0);
    (void)fflush(NULL);
    peer.pid = fork();
    if (peer.pid == 0) {
        (void)close(ends[0]);
        shoal_world *world = open_as(peer.key, rank);
        if (world) {
            live(world, ends[1]);
        }
        _exit(1);
    }
    (void)close(ends[1]);
    peer.words = ends[0];
    return peer;
}

static void end_peer(struct peer *peer)
{
    (void)kill(peer->pid, SIGKILL);
    (void)waitpid(peer->pid, NULL, 0);
    (void)close(peer->words);
}

static void stay(shoal_world *world, int words)
{
    if (write(words, "x", 1) == 1) {
        /* Until the test has closed its end, so that nothing outlives it. */
        struct pollfd polled = {.fd = words};
        (void)poll(&polled, 1, /*timeout=*/-1);
    }
    _exit(0);
}

/* Its child has copies of every descriptor and goes on living. */
static void leave_child_behind(shoal_world *world, int words)
{
    if (fork() == 0) {
        stay(world, words);
    }
    stay(world, words);
}

static bool dies_within_a_second(shoal_world *world, int rank)
{
    int64_t deadline_ns = clock_deadline_after(1);
    while (clock_now_ns() < deadline_ns) {
        if (world_check_rank(world, rank) == SHOAL_ERR_PEER) {
            return true;
        }
        wait_sleep(1000000);
    }
    return false;
}

/* Not waited for: it is a zombie while the others look. */
static void check_death(int peer_rank, void (*live)(shoal_world *world, int words), int n_words)
{
    struct peer peer = start_peer(peer_rank, live);
    shoal_world *world = open_as(peer.key, 1 - peer_rank);
    REQUIRE(world != NULL);
    char byte;
    for (int i = 0; i < n_words; i++) {
        CHECK_INT(read(peer.words, &byte, 1), 1);
    }
    CHECK_OK(world_check_rank(world, peer_rank));
    (void)kill(peer.pid, SIGKILL);
    CHECK(dies_within_a_second(world, peer_rank));
    char words[96];
    (void)snprintf(words, sizeof words, "rank %d (process %d) died or exited without closing its world",
                   peer_rank, (int)peer.pid);
    CHECK_ERROR_TEXT(words);
    CHECK_STATUS(shoal_group_barrier(shoal_world_group(world)), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT(words);
    shoal_status status = shoal_store_set(shoal_world_store(world), "k", "v", 1);
    CHECK_INT(status, peer_rank == 0 ? SHOAL_ERR_PEER : SHOAL_OK);
    if (peer_rank == 0) {
        CHECK_ERROR_TEXT(words);
    }
    /* Nobody is waited for who cannot come. */
    int64_t start_ns = clock_now_ns();
    CHECK_OK(shoal_world_close(world));
    CHECK(clock_now_ns() - start_ns < 10000000000);
    end_peer(&peer);
}

TEST(death_is_noticed)
{
    if (is_without_processes()) {
        return;
    }
    check_death(1, stay, 1);
    check_death(0, stay, 1);
}

TEST(children_of_the_dead_do_not_hide_it)
{
    if (is_without_processes()) {
        return;
    }
    check_death(1, leave_child_behind, 2);
    check_death(0, leave_child_behind, 2);
}

/* Exits with 0 when the locks of ranks 0 and 1 are held by another process. */
static void look_at_locks(int fd)
{
    int n_free = 0;
    for (int rank = 0; rank < 2; rank++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
        n_free += fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK;
    }
    _exit(n_free);
}

/* A thread rank that has no memory must not cost the others of its process their locks. */
TEST(joining_allocates_nothing)
{
    struct members *page = NULL;
    struct members *first = NULL;
    struct members *second = NULL;
    struct members *memory[2] = {members_allocate(), members_allocate()};
    REQUIRE(memory[0] && memory[1]);
    REQUIRE_OK(members_create(2, &page));
    CHECK_OK(members_join(memory[0], dup(members_fd(page)), 2, 0, &first));
    test_fail_allocation(1, /*is_lasting=*/true);
    CHECK_OK(members_join(memory[1], dup(members_fd(page)), 2, 1, &second));
    test_fail_allocation(0, false);
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        look_at_locks(members_fd(page));
    }
    int status = -1;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK_INT(status, 0);
    members_free(second);
    members_free(first);
    members_free(page);
    members_discard(NULL);
}

/* A maker that goes leaves no memory behind, and costs the ranks of its process no lock. */
TEST(a_maker_may_go_first)
{
    struct members *page = NULL;
    struct members *first = NULL;
    struct members *second = NULL;
    REQUIRE_OK(members_create(2, &page));
    size_t n_blocks = test_live_blocks();
    CHECK_OK(members_join(members_allocate(), dup(members_fd(page)), 2, 0, &first));
    CHECK_OK(members_join(members_allocate(), dup(members_fd(page)), 2, 1, &second));
    int fd = dup(members_fd(page)); /* closed in the child only: here that would drop the locks */
    members_free(page);
    CHECK(test_live_blocks() == n_blocks + 1);
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        look_at_locks(fd);
    }
    int status = -1;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK_INT(status, 0);
    members_free(second);
    members_free(first);
    (void)close(fd);
}

/* A call that waits for the store of a rank that dies. */
TEST(a_wait_ends_with_the_holder)
{
    if (is_without_processes()) {
        return;
    }
    struct peer peer = start_peer(0, leave_child_behind);
    shoal_world *world = open_as(peer.key, 1);
    REQUIRE(world != NULL);
    char byte;
    CHECK_INT(read(peer.words, &byte, 1), 1);
    CHECK_INT(read(peer.words, &byte, 1), 1);
    (void)kill(peer.pid, SIGKILL);
    size_t bytes = 0;
    int64_t start_ns = clock_now_ns();
    CHECK_STATUS(shoal_store_get(shoal_world_store(world), "never", &byte, 1, 20, &bytes), SHOAL_ERR_PEER);
    CHECK(clock_now_ns() - start_ns < 10000000000); /* the deadline is 20 s */
    CHECK_OK(shoal_world_close(world));
    end_peer(&peer);
}

/* An ordinary end is not a death, and is told apart. */
TEST_RANKS(who_has_left_is_named, 3)
{
    struct rank_key key = rank_key(self, next_round(self));
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    test_barrier(self);
    if (self->rank != 2) {
        int64_t deadline_ns = clock_deadline_after(20);
        while (world_check_rank(world, 2) == SHOAL_OK && clock_now_ns() < deadline_ns) {
            wait_sleep(1000000);
        }
        CHECK_STATUS(world_check_rank(world, 2), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 2 (process ");
        CHECK_ERROR_TEXT("has closed its world");
        /* Its server still answers: it waits for us. */
        struct segment *segment = NULL;
        CHECK_OK(world_open_segment(world, 2, "late", 64, clock_deadline_after(20), &segment));
        segment_unref(segment);
    }
    CHECK_OK(shoal_world_close(world));
}
