/* SPDX-License-Identifier: MIT */
/* Worlds: opening in every way, what start-up refuses and says, liveness, closing. */
#include "shoal/world.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "comm/card.h"
#include "comm/members.h"
#include "comm/rendezvous.h"
#include "comm/world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/log.h"
#include "shoal/store.h"
#include "transport/segment.h"

#define KEY_BYTES 128

/* A key that no other test, mode or run has: by rank 0, before the others may read it. */
static const char *agree_on_key(struct rank *self)
{
    static _Atomic int n_keys;
    char *key = (char *)self->shared + TEST_SHARED_BYTES - KEY_BYTES;
    test_barrier(self);
    if (self->rank == 0) {
        (void)snprintf(key, KEY_BYTES, "world_test %d %d", (int)getpid(), (int)++n_keys);
    }
    test_barrier(self);
    return key;
}

static shoal_world_options options_of(struct rank *self)
{
    return (shoal_world_options){.struct_size = sizeof(shoal_world_options),
                                 .n_ranks = self->n_ranks,
                                 .rank = self->rank,
                                 .key = agree_on_key(self),
                                 .startup_timeout_s = 30};
}

static int count_fds(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) {
        count++;
    }
    (void)closedir(folder);
    return count;
}

static void use_and_close(shoal_world *world, struct rank *self)
{
    CHECK_INT(shoal_world_rank(world), self->rank);
    CHECK_INT(shoal_world_n_ranks(world), self->n_ranks);
    CHECK_INT(shoal_group_n_ranks(shoal_world_group(world)), self->n_ranks);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    for (int i = 0; i < self->n_ranks; i++) {
        CHECK_OK(world_check_rank(world, i));
    }
    /* Nobody leaves before all have looked. */
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

/* Opening ----------------------------------------------------------------------------------------------- */

TEST_RANKS(opens_and_closes, 4)
{
    int n_fds = count_fds();
    for (int i = 0; i < 5; i++) {
        shoal_world_options options = options_of(self);
        shoal_world *world = NULL;
        REQUIRE_OK(shoal_world_open(&options, &world));
        CHECK_STRING(shoal_world_launcher(world), "options");
        use_and_close(world, self);
    }
    test_barrier(self);
    if (self->is_process) {
        CHECK_INT(count_fds(), n_fds);
        CHECK_INT(segment_mapped_bytes(), 0);
    }
}

/* The name is free again once all have come, whatever the worlds do after that. */
TEST_RANKS(one_key_serves_worlds_one_after_the_other, 3)
{
    shoal_world_options options = options_of(self);
    shoal_world *worlds[3] = {NULL};
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(shoal_world_open(&options, &worlds[i]));
    }
    for (int i = 0; i < 3; i++) {
        use_and_close(worlds[i], self);
    }
}

TEST_RANKS(ranks_may_come_in_any_order, 4)
{
    for (int first = 0; first < self->n_ranks; first++) {
        shoal_world_options options = options_of(self);
        if (self->rank == first) {
            wait_sleep(30000000);
        }
        shoal_world *world = NULL;
        REQUIRE_OK(shoal_world_open(&options, &world));
        use_and_close(world, self);
    }
}

TEST(a_world_of_one)
{
    shoal_world *world = NULL;
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1};
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK_INT(shoal_world_rank(world), 0);
    CHECK_INT(shoal_world_n_ranks(world), 1);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
    CHECK_OK(shoal_world_close(NULL));
    CHECK_INT(shoal_world_rank(NULL), -1);
    CHECK_INT(shoal_world_n_ranks(NULL), 0);
    CHECK(shoal_world_group(NULL) == NULL);
    CHECK(shoal_world_store(NULL) == NULL);
    CHECK_STRING(shoal_world_launcher(NULL), "");
}

TEST(the_environment_is_read_at_each_opening)
{
    static const char *const others[] = {"RANK",         "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                         "SLURM_PROCID", "PMI_SIZE",   "OMPI_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        (void)unsetenv(others[i]);
    }
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(NULL, &world));
    CHECK_STRING(shoal_world_launcher(world), "alone");
    CHECK_OK(shoal_world_close(world));
    (void)setenv("SHOAL_RANK", "0", 1);
    (void)setenv("SHOAL_RANKS", "1", 1);
    CHECK_STATUS(shoal_world_open(NULL, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("SHOAL_KEY is not set");
    (void)setenv("SHOAL_KEY", "some", 1);
    REQUIRE_OK(shoal_world_open(NULL, &world));
    CHECK_STRING(shoal_world_launcher(world), "SHOAL");
    CHECK_OK(shoal_world_close(world));
    (void)unsetenv("SHOAL_RANK");
    (void)unsetenv("SHOAL_RANKS");
    (void)unsetenv("SHOAL_KEY");
}

TEST(a_fake_world_has_any_size)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 100000, .rank = 77777, .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK_INT(shoal_world_rank(world), 77777);
    CHECK_INT(shoal_world_n_ranks(world), 100000);
    CHECK_OK(world_check_rank(world, 5));
    CHECK_STATUS(shoal_store_set(shoal_world_store(world), "k", "v", 1), SHOAL_ERR_UNSUPPORTED);
    struct segment *segment = NULL;
    REQUIRE_OK(world_open_segment(world, 3, "any", 100, clock_deadline_after(1), &segment));
    segment_unref(segment);
    CHECK_OK(shoal_world_close(world));
}

TEST(options_are_checked)
{
    shoal_world *world = NULL;
    shoal_world_options good = {.struct_size = sizeof good, .n_ranks = 2, .rank = 1, .key = "k"};
    CHECK_STATUS(shoal_world_open(&good, NULL), SHOAL_ERR_INVALID);
    shoal_world_options bad = good;
    bad.n_ranks = -1;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_ranks is -1");
    bad.n_ranks = 5000;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    bad.n_ranks = 1;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rank is 1, 0 to 0 expected");
    bad = good;
    bad.rank = -3;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    bad = good;
    bad.key = NULL;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("neither a key nor an exchange");
    bad.n_ranks = 0;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("but n_ranks is 0");
    bad = good;
    bad.transport = "smoke";
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("smoke");
    bad = good;
    bad.startup_timeout_s = -1;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    bad = good;
    bad.timeout_s = 0.0 / 0.0;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    bad = good;
    bad.struct_size = 3;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    static char key[2000];
    memset(key, 'k', sizeof key - 1);
    bad = good;
    bad.key = key;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK(world == NULL);
}

/* Exchange ---------------------------------------------------------------------------------------------- */

/* What an application would do with MPI_Allgather. */
struct exchange {
    struct rank *rank;
    int result;
    /* Planted: changes what comes back. */
    void (*spoil)(struct card *cards);
};

static int exchange_cards(void *context, const void *in, void *out_all, size_t bytes)
{
    struct exchange *exchange = context;
    struct rank *self = exchange->rank;
    char *board = self->shared;
    memcpy(board + (size_t)self->rank * bytes, in, bytes);
    test_barrier(self);
    memcpy(out_all, board, (size_t)self->n_ranks * bytes);
    test_barrier(self);
    if (exchange->spoil) {
        exchange->spoil(out_all);
    }
    return exchange->result;
}

static shoal_world_options options_with(struct rank *self, struct exchange *exchange)
{
    return (shoal_world_options){.struct_size = sizeof(shoal_world_options),
                                 .n_ranks = self->n_ranks,
                                 .rank = self->rank,
                                 .exchange = exchange_cards,
                                 .exchange_context = exchange,
                                 .startup_timeout_s = 20};
}

TEST_RANKS(the_application_may_exchange, 3)
{
    struct exchange exchange = {.rank = self};
    shoal_world_options options = options_with(self, &exchange);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    use_and_close(world, self);
}

static void move_to_another_host(struct card *cards)
{
    cards[1].boot_id[0] ^= 1;
}

static void change_version(struct card *cards)
{
    cards[2].version += 1;
}

static void swap_cards(struct card *cards)
{
    struct card first = cards[0];
    cards[0] = cards[1];
    cards[1] = first;
}

static void change_size(struct card *cards)
{
    cards[0].n_ranks = cards[1].n_ranks = cards[2].n_ranks = 7;
}

static void erase(struct card *cards)
{
    memset(cards, 0, sizeof *cards);
}

static void fail_rank(struct card *cards)
{
    cards[2].status = SHOAL_ERR_NO_MEMORY;
    (void)snprintf(cards[2].text, sizeof cards[2].text, "nothing left");
}

TEST_RANKS(what_was_exchanged_is_checked, 3)
{
    static const struct {
        void (*spoil)(struct card *cards);
        int result;
        shoal_status status;
        const char *words;
    } cases[] = {
        {NULL, 13, SHOAL_ERR_SYSTEM, "exchange returned 13"},
        {change_version, 0, SHOAL_ERR_MISMATCH, "version"},
        {swap_cards, 0, SHOAL_ERR_MISMATCH, "the card at place 0 says rank 1"},
        {change_size, 0, SHOAL_ERR_MISMATCH, "says 7 ranks"},
        {erase, 0, SHOAL_ERR_INVALID, "not the card of a rank"},
        {fail_rank, 0, SHOAL_ERR_PEER, "rank 2 could not start: nothing left"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct exchange exchange = {.rank = self, .result = cases[i].result, .spoil = cases[i].spoil};
        shoal_world_options options = options_with(self, &exchange);
        shoal_world *world = NULL;
        CHECK_STATUS(shoal_world_open(&options, &world), cases[i].status);
        CHECK_ERROR_TEXT(cases[i].words);
        test_barrier(self);
    }
    /* Rank 1 is elsewhere: all others see it, and it sees that they are. */
    struct exchange exchange = {.rank = self, .spoil = self->rank == 1 ? NULL : move_to_another_host};
    shoal_world_options options = options_with(self, &exchange);
    options.startup_timeout_s = 0.5;
    shoal_world *world = NULL;
    shoal_status status = shoal_world_open(&options, &world);
    CHECK(status == (self->rank == 1 ? SHOAL_ERR_PEER : SHOAL_ERR_UNSUPPORTED) ||
          (self->rank == 1 && status == SHOAL_ERR_TIMEOUT));
    if (self->rank != 1) {
        CHECK_ERROR_TEXT("several hosts");
        CHECK_ERROR_TEXT("MPI transport");
    }
    test_barrier(self);
}

/* Bad meetings ------------------------------------------------------------------------------------------ */

/* Rank 2 does not come; the others' times are over at different moments, and all name it. */
TEST_RANKS(a_rank_that_never_comes_is_named_by_all, 4)
{
    shoal_world_options options = options_of(self);
    options.startup_timeout_s = 0.3 + 0.1 * self->rank;
    if (self->rank != 2) {
        int64_t start_ns = clock_now_ns();
        shoal_world *world = NULL;
        CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT(" s for all to come; ");
        CHECK_ERROR_TEXT("rank 2 did not come");
        CHECK(clock_now_ns() - start_ns < 20000000000);
    }
    test_barrier(self);
}

TEST_RANKS(rank_zero_that_never_comes_is_named, 3)
{
    shoal_world_options options = options_of(self);
    options.startup_timeout_s = 0.3;
    if (self->rank != 0) {
        shoal_world *world = NULL;
        CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT(" s for rank 0, which did not come");
    }
    test_barrier(self);
}

TEST_RANKS(two_ranks_with_one_number_are_told, 4)
{
    /* Ranks 1 and 3, then 0 and 3, then 2 and 3 are the same. */
    static const int doubles[] = {1, 0, 2};
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) {
        shoal_world_options options = options_of(self);
        options.rank = self->rank == 3 ? doubles[i] : self->rank;
        shoal_world *world = NULL;
        CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_MISMATCH);
        char words[64];
        (void)snprintf(words, sizeof words, "two ranks say they are rank %d of 4: processes ", doubles[i]);
        CHECK_ERROR_TEXT(words);
        test_barrier(self);
    }
}

TEST_RANKS(different_sizes_are_told, 3)
{
    shoal_world_options options = options_of(self);
    options.n_ranks = self->rank == 2 ? 5 : 3;
    shoal_world *world = NULL;
    CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 2 (process ");
    CHECK_ERROR_TEXT("says 5 ranks, rank 0 says 3");
    test_barrier(self);
    /* After a failure the key can be used again. */
    options.n_ranks = 3;
    REQUIRE_OK(shoal_world_open(&options, &world));
    use_and_close(world, self);
}

/* A rank that dies in the middle of start-up, by hand: it has come, and is not ready. */
TEST_RANKS(a_rank_that_ends_during_start_up_is_named, 3)
{
    shoal_world_options options = options_of(self);
    if (self->rank == 1) {
        char key[256];
        char name[SOCKET_NAME_BYTES];
        (void)snprintf(key, sizeof key, "options\n%s", options.key);
        rendezvous_name(key, name);
        struct card card;
        REQUIRE_OK(card_create(1, 3, &card));
        struct rendezvous rendezvous = {
            .card = &card, .name = name, .deadline_ns = clock_deadline_after(20), .fd = -1};
        int page_fd = -1;
        REQUIRE_OK(rendezvous_enter(&rendezvous, &page_fd));
        wait_sleep(50000000);
        (void)close(rendezvous.fd);
        if (self->is_process) {
            (void)close(page_fd);
        }
        test_barrier(self);
        if (!self->is_process) {
            (void)close(page_fd);
        }
        return;
    }
    shoal_world *world = NULL;
    CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("start-up: rank 1 (process ");
    CHECK_ERROR_TEXT("has ended");
    test_barrier(self);
}

TEST_RANKS(a_rank_too_many_is_told, 3)
{
    shoal_world_options options = options_of(self);
    options.n_ranks = 2;
    options.startup_timeout_s = self->rank == 2 ? 0.3 : 20;
    if (self->rank == 2) {
        /* All have come already, or this one makes three of two. */
        test_barrier(self);
        options.rank = 1;
        shoal_world *world = NULL;
        CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0, which did not come");
        test_barrier(self);
        return;
    }
    shoal_world *world = NULL;
    CHECK_OK(shoal_world_open(&options, &world));
    test_barrier(self);
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

/* Liveness ---------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_THREAD__)
#define HAS_THREAD_SANITIZER 1
#else
#define HAS_THREAD_SANITIZER 0
#endif

/* The thread sanitizer can not follow threads of a forked process. */
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
    (void)snprintf(peer.key, sizeof peer.key, "peer %d %d", (int)getpid(), ++n_peers);
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
    char words[64];
    (void)snprintf(words, sizeof words, "rank %d (process %d) died", peer_rank, (int)peer.pid);
    CHECK_ERROR_TEXT(words);
    CHECK_STATUS(shoal_group_barrier(shoal_world_group(world)), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT(words);
    shoal_status status = shoal_store_set(shoal_world_store(world), "k", "v", 1);
    CHECK_INT(status, peer_rank == 0 ? SHOAL_ERR_PEER : SHOAL_OK);
    if (peer_rank == 0) {
        CHECK_ERROR_TEXT(words);
    }
    /* Nobody is waited for who can not come. */
    int64_t start_ns = clock_now_ns();
    CHECK_OK(shoal_world_close(world));
    CHECK(clock_now_ns() - start_ns < 5000000000);
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
    CHECK(clock_now_ns() - start_ns < 2000000000);
    CHECK_OK(shoal_world_close(world));
    end_peer(&peer);
}

/* An ordinary end is not a death, and is told apart. */
TEST_RANKS(who_has_left_is_named, 3)
{
    shoal_world_options options = options_of(self);
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

/* Closing ----------------------------------------------------------------------------------------------- */

TEST_RANKS(who_does_not_close_is_named, 3)
{
    shoal_world_options options = options_of(self);
    options.close_timeout_s = 0.2;
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    test_barrier(self);
    if (self->rank == 0) {
        CHECK_STATUS(shoal_world_close(world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("closing the world: not closed by ranks 1 and 2");
        world = NULL;
    }
    test_barrier(self);
    /* Rank 0's store has gone with it. */
    if (self->rank != 0) {
        CHECK_STATUS(shoal_store_set(shoal_world_store(world), "k", "v", 1), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 0 (process ");
    }
    test_barrier(self);
    if (self->rank == 1) {
        CHECK_STATUS(shoal_world_close(world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("not closed by rank 2");
    }
    test_barrier(self);
    /* Thread ranks share the descriptors of the page: rank 2 must still be there for everybody. */
    if (self->rank == 2) {
        CHECK_OK(world_check_rank(world, 2));
        CHECK_OK(shoal_world_close(world));
    }
    test_barrier(self);
}

struct heard {
    int n_warnings;
    char text[256];
};

static void listen_to_log(void *context, shoal_log_level level, const char *message)
{
    struct heard *heard = context;
    if (strstr(message, "nobody waited")) {
        heard->n_warnings++;
        (void)snprintf(heard->text, sizeof heard->text, "%s", message);
    }
}

TEST(work_that_nobody_waited_for_is_told_once)
{
    struct heard heard = {.n_warnings = 0};
    shoal_log_set(listen_to_log, &heard, SHOAL_LOG_WARN);
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    float value = 1;
    for (int i = 0; i < 3; i++) {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_all_reduce_start(shoal_world_group(world), &value, &value, 1, SHOAL_F32,
                                              SHOAL_SUM, &work));
        if (i == 0) {
            CHECK_OK(shoal_work_wait(work, -1));
        }
        shoal_work_free(work);
    }
    CHECK_OK(shoal_world_close(world));
    shoal_log_set(NULL, NULL, SHOAL_LOG_WARN);
    CHECK_INT(heard.n_warnings, 1);
    CHECK(strstr(heard.text, "nobody waited for 2 operations") != NULL);
}

/* A large all_reduce that one rank starts and leaves alone still ends well for the other. */
TEST_RANKS(closing_finishes_what_was_started, 2)
{
    enum {
        COUNT = 1 << 20
    };
    shoal_world_options options = options_of(self);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    float *values = calloc(COUNT, sizeof *values);
    REQUIRE(values != NULL);
    values[COUNT - 1] = 1;
    shoal_group *group = shoal_world_group(world);
    if (self->rank == 0) {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_all_reduce_start(group, values, values, COUNT, SHOAL_F32, SHOAL_SUM, &work));
        shoal_work_free(work);
    } else {
        wait_sleep(300000000);
        CHECK_OK(shoal_group_all_reduce(group, values, values, COUNT, SHOAL_F32, SHOAL_SUM));
        CHECK_DOUBLE(values[COUNT - 1], 2);
    }
    CHECK_OK(shoal_world_close(world));
    CHECK_DOUBLE(values[COUNT - 1], 2);
    free(values);
}

/* Ranks as threads -------------------------------------------------------------------------------------- */

static shoal_status add_ranks(shoal_world *world, void *context)
{
    _Atomic int *sum = context;
    *sum += 1 + shoal_world_rank(world);
    int value = shoal_world_rank(world);
    shoal_status status =
        shoal_group_all_reduce(shoal_world_group(world), &value, &value, 1, SHOAL_I32, SHOAL_SUM);
    CHECK_INT(value, 0 + 1 + 2 + 3 + 4);
    return status;
}

static shoal_status fail_on_three(shoal_world *world, void *context)
{
    if (shoal_world_rank(world) >= 3) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "rank %d does not want to", shoal_world_rank(world));
    }
    return SHOAL_OK;
}

TEST(ranks_run_as_threads)
{
    _Atomic int sum = 0;
    CHECK_OK(shoal_world_run_threads(5, add_ranks, (void *)&sum));
    CHECK_INT(sum, 15);
    CHECK_STATUS(shoal_world_run_threads(5, fail_on_three, NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("rank 3 does not want to");
    CHECK_STATUS(shoal_world_run_threads(0, add_ranks, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_world_run_threads(2, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_INT(segment_mapped_bytes(), 0);
}

static shoal_status count_ranks(shoal_world *world, void *context)
{
    int64_t sum = 0;
    return shoal_store_add(shoal_world_store(world), "n", 1, &sum);
}

TEST(many_ranks)
{
    CHECK_OK(shoal_world_run_threads(32, count_ranks, NULL));
}

/* No memory --------------------------------------------------------------------------------------------- */

static shoal_status open_and_close(void *context)
{
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1, .startup_timeout_s = 10};
    shoal_world *world = NULL;
    shoal_status status = shoal_world_open(&options, &world);
    return status == SHOAL_OK ? shoal_world_close(world) : status;
}

TEST(allocations_may_fail)
{
    int n_fds = count_fds();
    CHECK(test_sweep_allocations(open_and_close, NULL) > 10);
    CHECK_INT(count_fds(), n_fds);
    CHECK_INT(segment_mapped_bytes(), 0);
}

static int exchange_alone(void *context, const void *in, void *out_all, size_t bytes)
{
    memcpy(out_all, in, bytes);
    return 0;
}

static shoal_status open_with_exchange(void *context)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 1, .exchange = exchange_alone, .startup_timeout_s = 10};
    shoal_world *world = NULL;
    shoal_status status = shoal_world_open(&options, &world);
    return status == SHOAL_OK ? shoal_world_close(world) : status;
}

TEST(allocations_may_fail_with_exchange)
{
    CHECK(test_sweep_allocations(open_with_exchange, NULL) > 10);
}
