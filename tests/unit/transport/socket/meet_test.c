/* SPDX-License-Identifier: MIT */
/* How ranks of the socket transport find each other, and whom they turn away. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "fixtures/message_world.h"

/* A connection to where a rank listens; -1: none. */
static int connect_to_rank(struct message_world *m, int rank)
{
    char key[32];
    char text[256] = "";
    char host[64];
    int port = 0;
    size_t bytes = 0;
    (void)snprintf(key, sizeof key, "socket/%d", rank);
    (void)CHECK_OK(message_world_get(m, key, text, sizeof text - 1, DEADLINE_NEVER, &bytes));
    CHECK_INT(sscanf(text, "%63s %d", host, &port), 2);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    CHECK_INT(inet_pton(AF_INET, host, &address.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

TEST_RANKS(strangers_are_turned_away, 2)
{
    struct message_world m;
    int silent = -1;
    int wrong = -1;
    if (self->rank == 1) {
        message_world_prepare(&m, self, 0);
        silent = connect_to_rank(&m, 0);
        wrong = connect_to_rank(&m, 0);
        struct hello hello = {.rank = 1, .n_ranks = 2};
        memcpy(hello.magic, hello_magic, sizeof hello.magic);
        CHECK_INT(send(wrong, &hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
        char byte;
        CHECK(recv(wrong, &byte, 1, 0) <= 0); /* turned away: it has no token */
    }
    REQUIRE(message_world_open(&m, self, 0));
    struct collective barrier = {.kind = COLLECTIVE_BARRIER};
    CHECK_OK(message_world_run(&m, &barrier, 20));
    message_world_close(&m);
    if (self->rank == 1) {
        (void)close(silent);
        (void)close(wrong);
    }
}

/* More than a rank listens to at once. */
TEST_RANKS(many_silent_strangers_do_not_keep_ranks_out, 2)
{
    enum {
        N_STRANGERS = STRANGERS_MOST + 4
    };
    struct message_world m;
    int strangers[N_STRANGERS];
    if (self->rank == 1) {
        message_world_prepare(&m, self, 0);
        for (int i = 0; i < N_STRANGERS; i++) {
            strangers[i] = connect_to_rank(&m, 0);
        }
    }
    REQUIRE(message_world_open(&m, self, 0));
    struct collective barrier = {.kind = COLLECTIVE_BARRIER};
    CHECK_OK(message_world_run(&m, &barrier, 20));
    message_world_close(&m);
    for (int i = 0; self->rank == 1 && i < N_STRANGERS; i++) {
        (void)close(strangers[i]);
    }
}

static shoal_status open_alone(struct message_world *m, struct rank *self, double seconds)
{
    message_world_prepare(m, self, 0);
    m->transport = message_transport(&socket_kind);
    return m->transport->open(m->transport, &m->world, clock_deadline_after(seconds * test_time_scale()),
                              &m->state);
}

TEST_PROCESSES(what_is_no_address_is_told_to_all, 2)
{
    struct message_world m;
    if (self->rank == 1) {
        CHECK_INT(setenv("SHOAL_TRANSPORT_SOCKET_ADDRESS", "nowhere", 1), 0);
        CHECK_STATUS(open_alone(&m, self, 20), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("\"nowhere\" (SHOAL_TRANSPORT_SOCKET_ADDRESS) is not an address");
    } else {
        CHECK_STATUS(open_alone(&m, self, 20), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 1 could not start: \"nowhere\"");
    }
}

TEST_RANKS(a_rank_that_does_not_come_is_named, 2)
{
    struct message_world m;
    if (self->rank == 0) {
        CHECK_STATUS(open_alone(&m, self, 0.2), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 1 did not connect to rank 0 in time");
    }
}

TEST_RANKS(a_rank_that_died_is_named, 2)
{
    struct message_world m;
    struct message_shared *shared = self->shared;
    if (self->rank == 0) {
        atomic_store(&shared->is_gone[1], true);
        CHECK_STATUS(open_alone(&m, self, 20), SHOAL_ERR_PEER);
        CHECK_STRING(shoal_error_text(), "rank 1 is gone");
    }
}

/* It has connected to rank 0 and shown half of what it must. */
TEST_PROCESSES(a_rank_killed_while_it_connects, 3)
{
    struct message_world m;
    struct message_shared *shared = self->shared;
    test_expect_death(1, SIGKILL);
    if (self->rank == 1) {
        message_world_prepare(&m, self, 0);
        int fd = connect_to_rank(&m, 0);
        CHECK_INT(send(fd, hello_magic, sizeof hello_magic, MSG_NOSIGNAL), sizeof hello_magic);
        atomic_store(&shared->is_gone[1], true);
        (void)raise(SIGKILL);
    }
    CHECK_STATUS(open_alone(&m, self, 20), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 1 is gone");
}

/* Descriptors for its own sockets, but for no connection: both say so, and nobody waits. */
TEST_PROCESSES(a_rank_without_descriptors_says_so, 2)
{
    struct message_world m;
    if (self->rank == 1) {
        CHECK_STATUS(open_alone(&m, self, 20), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 0 could not start: accepting a connection: Too many open files");
        return;
    }
    enum {
        N_TAKEN = 24
    };
    int taken[N_TAKEN];
    struct rlimit before;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    for (int i = 0; i < N_TAKEN; i++) {
        taken[i] = dup(0);
        REQUIRE(taken[i] >= 0);
    }
    /* Something to wait with, a bell, and where it listens. */
    struct rlimit lowered = {.rlim_cur = (rlim_t)taken[N_TAKEN - 1] + 4, .rlim_max = before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
    CHECK_STATUS(open_alone(&m, self, 20), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("accepting a connection: Too many open files");
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    for (int i = 0; i < N_TAKEN; i++) {
        (void)close(taken[i]);
    }
}

/* Fewer descriptors than a rank could listen to strangers, and enough for its peer. */
TEST_PROCESSES(few_descriptors_suffice_for_few_ranks, 2)
{
    enum {
        LIMIT = STRANGERS_MOST
    };
    struct message_world m;
    struct rlimit before;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit lowered = {.rlim_cur = LIMIT, .rlim_max = before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
    REQUIRE(message_world_open(&m, self, 0));
    struct collective barrier = {.kind = COLLECTIVE_BARRIER};
    CHECK_OK(message_world_run(&m, &barrier, 20));
    message_world_close(&m);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}
