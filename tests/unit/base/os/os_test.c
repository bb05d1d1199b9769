/* SPDX-License-Identifier: MIT */
/* Requests to the system: what they do when they succeed, and that each can be made to fail. */
#include "base/os/os.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/os/fault.h"
#include "harness/test.h"

TEST(memory_is_shared_sealed_and_mapped_twice)
{
    const size_t bytes = 65536;
    int fd = os_memory_file("os_test");
    REQUIRE(fd >= 0);
    CHECK(!os_memory_file_is_sealed(fd));
    REQUIRE(os_memory_file_reserve(fd, 0, bytes) == 0);
    REQUIRE(os_memory_file_seal(fd) == 0);
    CHECK(os_memory_file_is_sealed(fd));
    CHECK(os_memory_file_reserve(fd, 0, 2 * bytes) == -1);
    char *base = os_map(fd, bytes);
    REQUIRE(base != NULL);
    (void)os_populate(base, bytes);
    CHECK(base[0] == 0 && base[bytes - 1] == 0);
    const char *second = os_map_again(base, bytes);
    REQUIRE(second != NULL && second != base);
    base[100] = 7;
    CHECK(second[100] == 7);
    os_unmap((void *)(uintptr_t)second, bytes);
    os_unmap(base, bytes);
    (void)close(fd);
    CHECK(os_map(fd, bytes) == NULL && errno == EBADF);
}

TEST(memory_of_a_process_is_read_as_far_as_it_goes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    static char target[65536 * 2];
    REQUIRE(page * 2 <= sizeof target);
    int fd = os_memory_file("os_test");
    REQUIRE(fd >= 0 && os_memory_file_reserve(fd, 0, 2 * page) == 0);
    char *base = os_map(fd, 2 * page);
    REQUIRE(base != NULL);
    memset(base, 5, 2 * page);
    int64_t n_read = os_read_process(os_process(), (uint64_t)(uintptr_t)base, target, 2 * page);
    if (n_read >= 0 || (errno != EPERM && errno != ENOSYS)) { /* a system may forbid it */
        CHECK_INT(n_read, (long long)(2 * page));
        CHECK_BYTES(target, base, 2 * page);
        os_unmap(base + page, page);
        CHECK_INT(os_read_process(os_process(), (uint64_t)(uintptr_t)base, target, 2 * page),
                  (long long)page);
        CHECK(os_read_process(os_process(), (uint64_t)(uintptr_t)(base + page), target, page) == -1);
        CHECK_INT(errno, EFAULT);
        base = os_map(fd, 2 * page); /* both, so that nothing is left */
    }
    os_let_siblings_read();
    os_unmap(base, 2 * page);
    (void)close(fd);
}

TEST(a_kind_of_call_can_fail)
{
    char byte;
    os_fault_arm_kind("read process", EIO);
    for (int i = 0; i < 3; i++) {
        errno = 0;
        CHECK(os_read_process(os_process(), (uint64_t)(uintptr_t)&byte, &byte, 1) == -1);
        CHECK_INT(errno, EIO);
        CHECK(os_n_processors() > 0);
    }
    os_fault_arm_kind(NULL, 0);
}

TEST(own_locks_are_not_others)
{
    int fd = os_memory_file("os_test");
    REQUIRE(fd >= 0);
    CHECK(os_lock_byte(fd, 3) == 0);
    CHECK(!os_is_byte_locked(fd, 3));
    os_unlock_byte(fd, 3);
    (void)close(fd);
}

TEST(sleeping_ends)
{
    _Atomic uint32_t word = 1;
    CHECK(os_sleep_on_word(&word, 0, INT64_MAX, false) == 0);
    CHECK(os_sleep_on_word(&word, 1, clock_now_ns(), false) == 0);
    os_wake_all(&word, false);
    int fd = os_event();
    REQUIRE(fd >= 0);
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    CHECK(poll(&polled, 1, 0) == 0);
    os_event_set(fd);
    CHECK(poll(&polled, 1, 0) == 1);
    (void)close(fd);
}

TEST(a_name_is_taken_once)
{
    char name[64];
    struct os_peer peer;
    (void)snprintf(name, sizeof name, "shoal-os-test-%d", (int)getpid());
    int listener = os_socket();
    int second = os_socket();
    int client = os_socket();
    REQUIRE(listener >= 0 && second >= 0 && client >= 0);
    CHECK(os_socket_connect(client, name) == -1 && errno == ECONNREFUSED);
    REQUIRE(os_socket_listen(listener, name) == 0);
    CHECK(os_socket_listen(second, name) == -1 && errno == EADDRINUSE);
    CHECK(os_socket_accept(listener) == -1 && errno == EAGAIN);
    CHECK(os_socket_connect(client, name) == 0);
    int accepted = os_socket_accept(listener);
    REQUIRE(accepted >= 0);
    CHECK(os_socket_peer(accepted, &peer) == 0);
    CHECK(peer.user == (int64_t)geteuid() && peer.process == (int64_t)getpid());
    (void)close(accepted);
    (void)close(client);
    (void)close(second);
    (void)close(listener);
}

static void *count_up(void *context)
{
    atomic_fetch_add((_Atomic int *)context, 1);
    return NULL;
}

TEST(the_rest)
{
    uint64_t numbers[2] = {0, 0};
    pthread_t thread;
    _Atomic int n_runs = 0;
    CHECK(os_random(numbers, sizeof numbers));
    CHECK(numbers[0] != numbers[1]);
    CHECK(os_n_processors() >= 1);
    REQUIRE(os_start_thread(&thread, count_up, &n_runs) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(n_runs == 1);
    int copy = os_duplicate(0);
    REQUIRE(copy > 0);
    (void)close(copy);
}

TEST(the_armed_call_fails_and_no_other)
{
    pthread_t thread;
    os_fault_arm(2, EMFILE);
    int first = os_event();
    CHECK(first >= 0);
    CHECK(os_event() == -1 && errno == EMFILE);
    CHECK(strcmp(os_fault_name(), "event") == 0);
    int third = os_event();
    CHECK(third >= 0);
    CHECK_INT(os_fault_count(), 3);
    os_fault_arm(1, EAGAIN);
    CHECK(os_start_thread(&thread, count_up, NULL) == EAGAIN);
    os_fault_arm(1, ENOMEM);
    CHECK(os_map(first, 4096) == NULL && errno == ENOMEM);
    os_fault_arm(0, 0);
    CHECK(os_fault_name()[0] == '\0');
    (void)close(first);
    (void)close(third);
}
