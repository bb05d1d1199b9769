/* SPDX-License-Identifier: MIT */
/* Peers that send what makes no sense, and connections that end in odd ways: the wire's thread does not spin. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fixtures/message_world.h"
#include "transport/message/wire.h"

/* A descriptor of our own for this rank's connection to rank 0; -1: there is none. The endpoint's descriptor belongs to the
   wire's thread, which may close it at any time. Used while the wire has nothing to send. */
static int own_fd;

static shoal_status open_and_keep(const struct transport_world *world, int64_t deadline_ns,
                                  struct endpoint **endpoint_out)
{
    shoal_status status = socket_kind.open(world, deadline_ns, endpoint_out);
    int fd = status == SHOAL_OK ? (*endpoint_out)->connections[0].fd : -1;
    own_fd = fd >= 0 ? dup(fd) : -1;
    return status;
}

static bool open_world_of_round(struct message_world *m, struct rank *self, int round)
{
    static struct endpoint_kind kind;
    kind = socket_kind;
    kind.open = open_and_keep;
    message_world_kind = &kind;
    return message_world_open(m, self, round);
}

static bool open_world(struct message_world *m, struct rank *self)
{
    return open_world_of_round(m, self, 0);
}

static void close_world(struct message_world *m)
{
    if (own_fd >= 0) {
        CHECK_INT(close(own_fd), 0);
    }
    message_world_close(m);
}

/* Closing resets the connection. */
static void reset_when_closed(int fd)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    CHECK_INT(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
}

static double cpu_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A thread that spins would use as much processor time as it gets: far more of half a second than this. */
static void check_idle(void)
{
    double before = cpu_seconds();
    test_pause(0.5);
    double used = cpu_seconds() - before;
    if (used > 0.1) {
        test_failed(__FILE__, __LINE__, "%.3f s of processor time in half a second of waiting", used);
    }
}

static void expect_cut(struct message_world *m, const char *text)
{
    struct collective barrier = {.kind = COLLECTIVE_BARRIER};
    CHECK_STATUS(message_world_run(m, &barrier, 20), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 1 cannot be reached");
    CHECK_ERROR_TEXT(text);
}

/* A frame of a type that there is not; then the connection is reset while nobody reads it any more. */
TEST_PROCESSES(nonsense_and_then_a_reset, 2)
{
    struct {
        struct wire_head wire;
        struct frame_head frame;
    } nonsense = {.wire = {MAGIC, FRAME_HEAD_BYTES}, .frame = {.type = 99}};
    struct message_world m;
    REQUIRE(open_world(&m, self));
    if (self->rank == 1) {
        CHECK_INT(send(own_fd, &nonsense, sizeof nonsense, MSG_NOSIGNAL), sizeof nonsense);
        reset_when_closed(own_fd);
        test_barrier(self);
        close_world(&m);
        test_barrier(self);
    } else {
        expect_cut(&m, "a frame came that makes no sense");
        test_barrier(self);
        test_barrier(self);
        check_idle();
        close_world(&m);
    }
}

static void check_reset_in_a_frame(struct rank *self, bool has_child)
{
    struct {
        struct wire_head wire;
        char bytes[100];
    } half = {.wire = {MAGIC, 100000}};
    struct message_world m;
    REQUIRE(open_world(&m, self));
    if (self->rank == 1) {
        test_barrier(self);
        CHECK_INT(send(own_fd, &half, sizeof half, MSG_NOSIGNAL), sizeof half);
        CHECK_INT(shutdown(own_fd, SHUT_RDWR), 0);
        test_barrier(self);
        close_world(&m);
        return;
    }
    pid_t child = has_child ? fork() : 0;
    if (has_child && child == 0) {
        for (;;) { /* it has all descriptors of its parent */
            (void)pause();
        }
    }
    test_barrier(self);
    expect_cut(&m, "in the middle of a message");
    check_idle();
    test_barrier(self);
    close_world(&m);
    if (has_child) {
        CHECK_INT(kill(child, SIGKILL), 0);
        CHECK_INT(waitpid(child, NULL, 0), child);
    }
}

TEST_PROCESSES(a_connection_cut_in_a_frame, 2)
{
    check_reset_in_a_frame(self, /*has_child=*/false);
}

/* Who was forked keeps the connection open. */
TEST_PROCESSES(a_connection_cut_in_a_frame_that_a_child_has_too, 2)
{
    check_reset_in_a_frame(self, /*has_child=*/true);
}

/* What one end has closed is of no use: the other end closes it too, so that both hear of it. */
TEST_PROCESSES(a_connection_that_is_half_closed, 2)
{
    struct message_world m;
    REQUIRE(open_world(&m, self));
    if (self->rank == 1) {
        CHECK_INT(shutdown(own_fd, SHUT_WR), 0);
        struct collective barrier = {.kind = COLLECTIVE_BARRIER};
        shoal_status status = message_world_run(&m, &barrier, 20);
        if (status == SHOAL_OK) { /* the call of rank 0 came before it noticed */
            status = message_world_run(&m, &barrier, 20);
        }
        CHECK_STATUS(status, SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 0 cannot be reached");
    } else {
        expect_cut(&m, "it closed the connection");
    }
    test_barrier(self);
    close_world(&m);
}

static void check_bad_head(struct rank *self, int round, struct wire_head head, const char *text)
{
    struct message_world m;
    REQUIRE(open_world_of_round(&m, self, round));
    if (self->rank == 1) {
        CHECK_INT(send(own_fd, &head, sizeof head, MSG_NOSIGNAL), sizeof head);
    } else {
        expect_cut(&m, text);
    }
    test_barrier(self);
    close_world(&m);
}

TEST_PROCESSES(heads_that_make_no_sense, 2)
{
    check_bad_head(self, 0, (struct wire_head){0x12345678, 10}, "not a message: magic 12345678, 10 bytes");
    check_bad_head(self, 1, (struct wire_head){MAGIC, UINT32_MAX}, "4294967295 bytes");
    check_bad_head(self, 2, (struct wire_head){MAGIC, 0}, "a message came that is no frame");
}
