/* SPDX-License-Identifier: MIT */
/* A rank at start-up whose rank 0 does not do what Shoal does: it must return, and say why. */
#include "bootstrap/meet/rendezvous.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "bootstrap/net/request.h"
#include "harness/test.h"

enum {
    N_RANKS = 4,
    N_FOR_EVER = 100000
};

/* A rank 0 that names a leader whose server does not exist, whatever it is asked. */
struct false_host {
    char name[SOCKET_NAME_BYTES];
    int listener;
    int64_t pause_ns; /* before each answer */
    int n_elsewhere;  /* how often it was asked for another leader */
    bool was_given_up;
    pthread_t thread;
};

static shoal_status answer(struct false_host *host, int fd, const struct frame *frame)
{
    const struct socket_wait wait = {.deadline_ns = clock_deadline_after(20), .what = "a test"};
    struct card_leader leader = {.rank = 2, .token = {1, (uint64_t)host->n_elsewhere}};
    struct iovec part = {.iov_base = &leader, .iov_len = sizeof leader};
    host->n_elsewhere += frame->header.op == REQUEST_ELSEWHERE;
    host->was_given_up = host->was_given_up || frame->header.op == REQUEST_GIVE_UP;
    wait_sleep(host->pause_ns);
    return socket_send_frame(fd, frame->header.op, &part, 1, &wait);
}

static void *serve(void *context)
{
    struct false_host *host = context;
    const struct socket_wait wait = {.deadline_ns = clock_deadline_after(20 * test_time_scale()),
                                     .what = "a test"};
    int fd = -1;
    struct frame frame;
    while (fd < 0 && clock_now_ns() < wait.deadline_ns) {
        (void)CHECK_OK(socket_accept(host->listener, &fd));
        wait_sleep(1000000);
    }
    while (host->n_elsewhere < N_FOR_EVER && socket_receive_frame(fd, &wait, &frame) == SHOAL_OK) {
        shoal_status status = answer(host, fd, &frame);
        frame_clear(&frame);
        if (status != SHOAL_OK) {
            break;
        }
    }
    (void)close(fd);
    return NULL;
}

static shoal_status enter(struct false_host *host, int number, double timeout_s)
{
    struct card card;
    int page_fd = -1;
    (void)snprintf(host->name, sizeof host->name, "shoal-test-%d-%d", (int)getpid(), number);
    (void)CHECK_OK(card_create(1, N_RANKS, "", &card));
    (void)CHECK_OK(socket_listen(host->name, &host->listener));
    CHECK(pthread_create(&host->thread, NULL, serve, host) == 0);
    struct rendezvous rendezvous = {
        .card = &card, .name = host->name, .deadline_ns = clock_deadline_after(timeout_s), .page_fd = -1};
    shoal_status status = rendezvous_enter(&rendezvous, &page_fd);
    CHECK(page_fd == -1);
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    (void)close(rendezvous.fd);
    (void)pthread_join(host->thread, NULL);
    (void)close(host->listener);
    CHECK(host->was_given_up);
    return error_set(status, "%s", text);
}

TEST(a_rank_zero_that_names_leaders_for_ever_is_left)
{
    struct false_host host = {.listener = -1};
    CHECK_STATUS(enter(&host, 0, 20 * test_time_scale()), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("start-up: rank 0 has named 4 ranks that should be on the host of rank 1; none is");
    CHECK_INT(host.n_elsewhere, N_RANKS);
}

TEST(a_rank_zero_that_names_leaders_slowly_is_left_at_the_deadline)
{
    struct false_host host = {.listener = -1, .pause_ns = 200000000};
    CHECK_STATUS(enter(&host, 1, 0.5), SHOAL_ERR_TIMEOUT);
    CHECK(host.n_elsewhere < N_RANKS);
}
