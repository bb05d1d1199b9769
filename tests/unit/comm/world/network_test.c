/* SPDX-License-Identifier: MIT */
/*
 * Ranks on several hosts, as they believe: the control plane goes over TCP on the loopback. They meet, use the store, hear
 * of deaths and failures; who does not belong to the job is turned away and disturbs nobody.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"
#include "bootstrap/net/hello.h"
#include "bootstrap/alive/watch.h"
#include "comm/group/world.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

/* Before anything reads the environment. */
__attribute__((constructor)) static void set_environment(void)
{
    char heartbeat[32];
    (void)snprintf(heartbeat, sizeof heartbeat, "%g", 2 * test_time_scale());
    (void)setenv("SHOAL_MODULE_PATH", TEST_SOCKET_MODULE, 1);
    (void)setenv("SHOAL_PRETEND_HOSTS", "a,b,a,c", 1);
    (void)setenv("SHOAL_TEST_TCP", "1", 1);
    (void)setenv("SHOAL_HEARTBEAT", heartbeat, 1);
    (void)unsetenv("SHOAL_TRANSPORT");
}

/* Whether SHOAL_PRETEND_HOSTS puts two ranks on one host. */
static bool is_near(int a, int b)
{
    return a == b || (a % 2 == 0 && b % 2 == 0);
}

/* Meeting ------------------------------------------------------------------------------------------------ */

/*
 * Each rank looks for modules by itself. All hear of a difference before any of them waits for what will not come. The first
 * test: the ranks of later ones are forked from a process that has the module loaded.
 */
TEST_PROCESSES(a_module_that_one_rank_lacks_is_told_to_all, 4)
{
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *world = NULL;
    if (self->rank == 1) {
        (void)setenv("SHOAL_MODULE_PATH", "/nowhere", 1);
    }
    CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_MISMATCH);
    CHECK(world == NULL);
    CHECK_ERROR_TEXT("ranks would use different transports between hosts: ");
    CHECK_ERROR_TEXT("socket on rank ");
    CHECK_ERROR_TEXT("nothing on rank 1 (there is no transport \"socket\"");
}

TEST_RANKS(ranks_of_other_hosts_are_watched_and_asked, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int rank = 0; rank < self->n_ranks; rank++) {
        CHECK(watch_has(world->watch, rank) == !is_near(rank, self->rank));
        CHECK_INT(members_state(world->members, rank), MEMBER_ALIVE);
    }
    char key[16];
    char value[16] = "";
    size_t bytes = 0;
    (void)snprintf(key, sizeof key, "k%d", self->rank);
    CHECK_OK(shoal_store_set(shoal_world_store(world), key, key, strlen(key) + 1));
    (void)snprintf(key, sizeof key, "k%d", (self->rank + 1) % self->n_ranks);
    CHECK_OK(shoal_store_get(shoal_world_store(world), key, value, sizeof value, 20, &bytes));
    CHECK_STRING(value, key);
    float sum = 1.0f;
    CHECK_OK(shoal_group_all_reduce(shoal_world_group(world), &sum, &sum, 1, SHOAL_F32, SHOAL_SUM));
    CHECK_DOUBLE((double)sum, 4.0);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(large_values_cross_hosts, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    static char value[1024 * 1024];
    static char back[2][sizeof value];
    size_t bytes = 0;
    if (self->rank == 1) {
        memset(value, 7, sizeof value);
        CHECK_OK(shoal_store_set(shoal_world_store(world), "large", value, sizeof value));
    }
    CHECK_OK(shoal_store_get(shoal_world_store(world), "large", back[self->rank], sizeof value, 20, &bytes));
    CHECK_INT(bytes, sizeof value);
    CHECK_INT(back[self->rank][sizeof value - 1], 7);
    CHECK_OK(shoal_world_close(world));
}

/* Deaths ------------------------------------------------------------------------------------------------- */

/* What members_check says once the rank is not alive any more, within some seconds. */
static shoal_status await_end(shoal_world *world, int rank)
{
    int64_t deadline_ns = clock_deadline_after(20 * test_time_scale());
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK && clock_now_ns() < deadline_ns) {
        wait_sleep(1000000);
        status = world_check_rank(world, rank);
    }
    return status;
}

TEST_PROCESSES(a_killed_rank_is_named_on_all_hosts, 4)
{
    test_expect_death(1, SIGKILL);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    if (self->rank == 1) {
        (void)raise(SIGKILL);
    }
    CHECK_STATUS(await_end(world, 1), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 1 (process ");
    CHECK_OK(shoal_world_close(world));
}

/* As it is with a host that is cut off. */
TEST_PROCESSES(a_stopped_rank_is_dead_after_the_heartbeat, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    test_barrier(self);
    if (self->rank == 0) {
        test_signal(3, SIGSTOP);
    }
    if (self->rank != 3) {
        CHECK_STATUS(await_end(world, 3), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 3 (process ");
        CHECK(strstr(shoal_error_text(), "sent no heartbeat") || strstr(shoal_error_text(), "as rank"));
        float value = 1.0f;
        CHECK_STATUS(
            shoal_group_all_reduce(shoal_world_group(world), &value, &value, 1, SHOAL_F32, SHOAL_SUM),
            SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 3");
        CHECK_OK(shoal_world_close(world));
    }
    if (self->rank == 0) {
        test_signal(3, SIGCONT);
    }
    test_barrier(self);
    if (self->rank == 3) {
        /* The others have taken it for dead, and it hears that they have. */
        CHECK_STATUS(await_end(world, 1), SHOAL_ERR_PEER);
        CHECK_OK(shoal_world_close(world));
    }
}

TEST_RANKS(who_leaves_is_no_death, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    if (self->rank != 1) {
        CHECK_STATUS(await_end(world, 1), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("has closed its world");
        CHECK_INT(members_state(world->members, 1), MEMBER_LEFT);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Rank 0, which holds the store, waits for the others however long they stay: it hears from them although it has left. */
TEST_PROCESSES(who_has_left_waits_for_those_who_stay, 2)
{
    double heartbeat_s = 0.5 * test_time_scale();
    char text[32];
    (void)snprintf(text, sizeof text, "%g", heartbeat_s);
    (void)setenv("SHOAL_HEARTBEAT", text, 1);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    if (self->rank == 1) {
        CHECK_STATUS(await_end(world, 0), SHOAL_ERR_PEER);
        test_pause(3 * heartbeat_s);
        CHECK_OK(shoal_store_set(shoal_world_store(world), "late", "x", 1));
    }
    CHECK_OK(shoal_world_close(world));
}

/* The address ---------------------------------------------------------------------------------------------- */

/*
 * The port at which the ranks of a test meet. This program holds it until its end by a socket that does not listen, so
 * the kernel gives it to no other program. Whoever sets SO_REUSEADDR, as rank 0 does, can listen there nevertheless.
 */
static int port;

/* Before tests count descriptors, and before ranks are forked. */
__attribute__((constructor)) static void hold_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        perror("a port for the test");
        abort();
    }
    port = ntohs(address.sin_port);
}

/* What ranks of a test tell each other while one of them is in a call that waits. */
struct board {
    _Atomic int has_been_there;
};

static void await_word(_Atomic int *word)
{
    while (atomic_load(word) == 0) {
        wait_sleep(1000000);
    }
}

static void set_number(const char *name, int number)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%d", number);
    (void)setenv(name, text, 1);
}

static void set_place(int rank, int n_ranks, const char *token)
{
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", port);
    (void)setenv("SHOAL_ADDRESS", address, 1);
    (void)setenv("SHOAL_TOKEN", token, 1);
    set_number("SHOAL_RANK", rank);
    set_number("SHOAL_RANKS", n_ranks);
}

static shoal_status open_by_environment(double startup_timeout_s, shoal_world **world_out)
{
    shoal_world_options options = SHOAL_WORLD_OPTIONS_INIT;
    options.startup_timeout_s = startup_timeout_s * test_time_scale();
    options.close_timeout_s = 20 * test_time_scale();
    return shoal_world_open(&options, world_out);
}

TEST_PROCESSES(ranks_meet_at_the_address_twice, 4)
{
    set_place(self->rank, self->n_ranks, "a secret");
    for (int i = 0; i < 2; i++) {
        shoal_world *world = NULL;
        REQUIRE_OK(open_by_environment(20, &world));
        CHECK(watch_has(world->watch, 1) == !is_near(1, self->rank));
        CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
        CHECK_OK(shoal_world_close(world));
    }
}

/* On its own host a name may be a loopback: rank 0 listens everywhere, and nobody is reached at the loopback. */
TEST_PROCESSES(ranks_meet_at_a_name, 3)
{
    char address[64];
    set_place(self->rank, self->n_ranks, "a secret");
    (void)snprintf(address, sizeof address, "localhost:%d", port);
    (void)setenv("SHOAL_ADDRESS", address, 1);
    shoal_world *world = NULL;
    REQUIRE_OK(open_by_environment(20, &world));
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(one_host_at_an_address_needs_no_network, 3)
{
    (void)unsetenv("SHOAL_TEST_TCP");
    (void)unsetenv("SHOAL_PRETEND_HOSTS");
    set_place(self->rank, self->n_ranks, "a secret");
    shoal_world *world = NULL;
    REQUIRE_OK(open_by_environment(20, &world));
    CHECK(!watch_has(world->watch, (self->rank + 1) % 3));
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(a_wrong_token_is_told_to_who_has_it, 3)
{
    struct board *board = self->shared;
    shoal_world *world = NULL;
    if (self->rank == 2) {
        set_place(1, 2, "another secret");
        CHECK_STATUS(open_by_environment(20, &world), SHOAL_ERR_INVALID);
        char words[64];
        (void)snprintf(words, sizeof words, "the rank at 127.0.0.1:%d has another token", port);
        CHECK_ERROR_TEXT(words);
        atomic_store(&board->has_been_there, 1);
        return;
    }
    set_place(self->rank, 2, "a secret");
    if (self->rank == 1) {
        await_word(&board->has_been_there);
    }
    REQUIRE_OK(open_by_environment(20, &world));
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(what_is_missing_or_wrong_is_told, 1)
{
    shoal_world *world = NULL;
    set_place(1, 2, "");
    CHECK_STATUS(open_by_environment(1, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("but SHOAL_TOKEN is not: set it to a secret text");
    set_place(1, 2, "a secret");
    CHECK_STATUS(open_by_environment(0.2, &world), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT(" s (startup_timeout_s) for rank 0, which did not arrive (at 127.0.0.1:");
    (void)setenv("SHOAL_ADDRESS", "here", 1);
    CHECK_STATUS(open_by_environment(1, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("SHOAL_ADDRESS is \"here\", host:port expected");
    (void)setenv("SHOAL_ADDRESS", "127.0.0.1:1", 1);
    (void)setenv("SHOAL_INTERFACE", "nowhere0", 1);
    CHECK_STATUS(open_by_environment(1, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("SHOAL_INTERFACE is \"nowhere0\"");
}

/* Strangers ------------------------------------------------------------------------------------------------- */

static int connect_raw(void)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int64_t deadline_ns = clock_deadline_after(20 * test_time_scale());
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 && clock_now_ns() < deadline_ns) {
        wait_sleep(1000000);
    }
    return fd;
}

/* Whether the other end has closed it: it said its greeting, perhaps a verdict, and no more. */
static bool is_closed_by_peer(int fd)
{
    char bytes[256];
    ssize_t received;
    while ((received = recv(fd, bytes, sizeof bytes, 0)) > 0) {
    }
    return received == 0 || errno == ECONNRESET;
}

static void say(int fd, const void *bytes, size_t n_bytes)
{
    (void)send(fd, bytes, n_bytes, MSG_NOSIGNAL);
}

/* Rank 2 of the test is no rank: it fills all places with strangers who say nothing, and says wrong things. */
TEST_PROCESSES(strangers_are_turned_away_and_hold_up_nobody, 3)
{
    enum {
        N_SILENT = 100
    };
    struct board *board = self->shared;
    if (self->rank == 2) {
        int silent[N_SILENT];
        for (int i = 0; i < N_SILENT; i++) {
            silent[i] = connect_raw();
        }
        struct hello hello = {.head = {.magic = HELLO_MAGIC, .order = HELLO_ORDER, .version = HELLO_VERSION}};
        struct hello swapped = hello;
        swapped.head.order = 0x04030201u;
        static const char request[] =
            "GET / HTTP/1.1\r\nHost: here\r\n\r\n-----------------------------------";
        const struct {
            const void *bytes;
            size_t n_bytes;
        } words[] = {{request, sizeof request}, {&hello, sizeof hello}, {&swapped, sizeof swapped}};
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            int fd = connect_raw();
            say(fd, words[i].bytes, words[i].n_bytes);
            CHECK(is_closed_by_peer(fd));
            (void)close(fd);
        }
        atomic_store(&board->has_been_there, 1);
        test_barrier(self);
        for (int i = 0; i < N_SILENT; i++) {
            (void)close(silent[i]);
        }
        return;
    }
    set_place(self->rank, 2, "a secret");
    shoal_world *world = NULL;
    if (self->rank == 1) {
        await_word(&board->has_been_there);
    }
    shoal_status status = open_by_environment(20, &world);
    test_barrier(self);
    REQUIRE_OK(status);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* Rank 2 has another token. All are told why the job does not begin, and from where the rank came. */
TEST_PROCESSES(a_wrong_token_is_told_to_all, 3)
{
    struct board *board = self->shared;
    shoal_world *world = NULL;
    set_place(self->rank, self->n_ranks, self->rank == 2 ? "another secret" : "a secret");
    if (self->rank == 2) {
        CHECK_STATUS(open_by_environment(20, &world), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("has another token than this rank");
        atomic_store(&board->has_been_there, 1);
        return;
    }
    if (self->rank == 1) {
        await_word(&board->has_been_there);
    }
    CHECK_STATUS(open_by_environment(self->rank == 1 ? 0.5 : 20, &world), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT(
        "; rank 2 did not arrive; a connection from 127.0.0.1 was rejected: it does not have the token of "
        "this job");
}

/* Something else listens where rank 0 should: a client names it. */
static void serve_once(const void *bytes, size_t n_bytes)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    REQUIRE(listen(listener, 1) == 0);
    int fd = accept(listener, NULL, NULL);
    say(fd, bytes, n_bytes);
    (void)is_closed_by_peer(fd);
    (void)close(fd);
    (void)close(listener);
}

TEST_PROCESSES(what_is_no_rank_zero_is_told, 2)
{
    struct hello_head swapped = {.magic = HELLO_MAGIC, .order = 0x04030201u, .version = 1};
    if (self->rank == 0) {
        serve_once("220 mail.example.org ESMTP ready, whoever you are", 48);
        test_barrier(self);
        serve_once(&swapped, sizeof swapped);
        test_barrier(self);
        return;
    }
    shoal_world *world = NULL;
    set_place(1, 2, "a secret");
    CHECK_STATUS(open_by_environment(20, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("is not a rank of Shoal");
    test_barrier(self);
    CHECK_STATUS(open_by_environment(20, &world), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("another byte order");
    test_barrier(self);
}
