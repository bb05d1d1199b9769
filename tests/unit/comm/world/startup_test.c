/* SPDX-License-Identifier: MIT */
/* Start-up that goes wrong: every rank that can say why does so, within its deadline. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"
#include "bootstrap/net/card.h"
#include "bootstrap/meet/rendezvous.h"
#include "bootstrap/alive/watch.h"
#include "comm/group/world.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"

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

static void use_and_close(shoal_world *world)
{
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* Where the ranks of this key meet. */
static void write_meeting_name(const char *key, char name[SOCKET_NAME_BYTES])
{
    char text[256];
    (void)snprintf(text, sizeof text, "options\n%s", key);
    rendezvous_name(text, name);
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
    use_and_close(world);
}

static void move_to_another_host(struct card *cards)
{
    cards[1].boot_id[0] ^= 1;
    cards[1].claim ^= 1;
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
        {swap_cards, 0, SHOAL_ERR_MISMATCH, "at index 0 what rank 1 gave"},
        {change_size, 0, SHOAL_ERR_MISMATCH, "ranks differ in the number of ranks"},
        {erase, 0, SHOAL_ERR_INVALID, "does not come from a rank"},
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
}

/* What cards say of hosts is only believed once it was tried: these ranks find that they share one. */
TEST_RANKS(a_host_that_lies_in_the_exchange_changes_nothing, 3)
{
    struct exchange exchange = {.rank = self, .spoil = move_to_another_host};
    shoal_world_options options = options_with(self, &exchange);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK(!watch_has(world->watch, (self->rank + 1) % 3));
    use_and_close(world);
}

/* Bad meetings ------------------------------------------------------------------------------------------ */

/* Rank 2 does not come; the others' times are over at different moments, and all name it. */
TEST_RANKS(a_rank_that_never_comes_is_named_by_all, 4)
{
    struct rank_key key = rank_key(self, next_round(self));
    shoal_world_options options = rank_world_options(self, &key);
    options.startup_timeout_s = 0.3 + 0.1 * self->rank;
    if (self->rank != 2) {
        int64_t start_ns = clock_now_ns();
        shoal_world *world = NULL;
        CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT(" s (startup_timeout_s) for all ranks; ");
        CHECK_ERROR_TEXT("rank 2 did not arrive");
        CHECK(clock_now_ns() - start_ns < 20000000000);
    }
    test_barrier(self);
}

TEST_RANKS(rank_zero_that_never_comes_is_named, 3)
{
    struct rank_key key = rank_key(self, next_round(self));
    shoal_world_options options = rank_world_options(self, &key);
    options.startup_timeout_s = 0.3;
    if (self->rank != 0) {
        shoal_world *world = NULL;
        CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT(" s (startup_timeout_s) for rank 0, which did not arrive");
    }
    test_barrier(self);
}

TEST_RANKS(two_ranks_with_one_number_are_told, 4)
{
    /* Ranks 1 and 3, then 0 and 3, then 2 and 3 are the same. */
    static const int doubles[] = {1, 0, 2};
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) {
        struct rank_key key = rank_key(self, next_round(self));
        shoal_world_options options = rank_world_options(self, &key);
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
    struct rank_key key = rank_key(self, next_round(self));
    shoal_world_options options = rank_world_options(self, &key);
    options.n_ranks = self->rank == 2 ? 5 : 3;
    shoal_world *world = NULL;
    CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 2 (process ");
    CHECK_ERROR_TEXT("has 5, rank 0 has 3");
    test_barrier(self);
    /* After a failure the key can be used again. */
    options.n_ranks = 3;
    REQUIRE_OK(shoal_world_open(&options, &world));
    use_and_close(world);
}

/* A rank that dies in the middle of start-up, by hand: it has arrived, and is not ready. */
TEST_RANKS(a_rank_that_ends_during_start_up_is_named, 3)
{
    struct rank_key key = rank_key(self, next_round(self));
    shoal_world_options options = rank_world_options(self, &key);
    if (self->rank == 1) {
        char name[SOCKET_NAME_BYTES];
        write_meeting_name(options.key, name);
        struct card card;
        REQUIRE_OK(card_create(1, 3, "", &card));
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
    CHECK_ERROR_TEXT("exited or closed its connection");
    test_barrier(self);
}

TEST_RANKS(a_rank_too_many_is_told, 3)
{
    struct rank_key key = rank_key(self, next_round(self));
    shoal_world_options options = rank_world_options(self, &key);
    options.n_ranks = 2;
    options.startup_timeout_s = self->rank == 2 ? 0.3 : 20;
    if (self->rank == 2) {
        /* All have arrived already, or this one makes three of two. */
        test_barrier(self);
        options.rank = 1;
        shoal_world *world = NULL;
        CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0, which did not arrive");
        test_barrier(self);
        return;
    }
    shoal_world *world = NULL;
    CHECK_OK(shoal_world_open(&options, &world));
    test_barrier(self);
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

/* Rank 0 has come, and is stopped before it can answer. */
static void stop_in_start_up(const char *key, int words)
{
    char name[SOCKET_NAME_BYTES];
    write_meeting_name(key, name);
    int fd = -1;
    if (socket_listen(name, &fd) == SHOAL_OK && write(words, "x", 1) == 1) {
        (void)raise(SIGSTOP);
    }
    _exit(0);
}

TEST(a_stopped_rank_zero_costs_the_deadline)
{
    char key[64];
    (void)snprintf(key, sizeof key, "stopped %" PRIx64, test_process_number((int)getpid()));
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        stop_in_start_up(key, ends[1]);
    }
    char byte;
    CHECK_INT(read(ends[0], &byte, 1), 1);
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 2, .rank = 1, .key = key, .startup_timeout_s = 0.3};
    shoal_world *world = NULL;
    CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("for rank 0 to let this rank in");
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
}
