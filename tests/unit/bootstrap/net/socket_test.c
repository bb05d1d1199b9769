/* SPDX-License-Identifier: MIT */
/* Connecting to sockets of this host: nobody there, somebody there, and too many in line. */
#include "bootstrap/net/socket.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness/test.h"

enum {
    MOST = 64 /* more than a line that was made short */
};

TEST(a_line_that_is_full_is_not_nobody)
{
    char name[SOCKET_NAME_BYTES];
    int listener;
    int fds[MOST];
    int n_fds = 0;
    int accepted;
    bool is_busy = true;
    (void)snprintf(name, sizeof name, "shoal-test-socket-%d", (int)getpid());
    REQUIRE_OK(socket_try_connect(name, &fds[0], &is_busy));
    CHECK(fds[0] < 0 && !is_busy);
    REQUIRE_OK(socket_listen(name, &listener));
    REQUIRE(listen(listener, 1) == 0);
    while (!is_busy && n_fds < MOST) {
        REQUIRE_OK(socket_try_connect(name, &fds[n_fds], &is_busy));
        CHECK((fds[n_fds] < 0) == is_busy);
        n_fds += !is_busy;
    }
    CHECK(is_busy && n_fds > 0);
    REQUIRE_OK(socket_accept(listener, &accepted));
    REQUIRE(accepted >= 0);
    int last;
    REQUIRE_OK(socket_try_connect(name, &last, &is_busy));
    CHECK(last >= 0 && !is_busy);
    (void)close(last);
    (void)close(accepted);
    for (int i = 0; i < n_fds; i++) {
        (void)close(fds[i]);
    }
    (void)close(listener);
    REQUIRE_OK(socket_try_connect(name, &last, &is_busy));
    CHECK(last < 0 && !is_busy);
}
