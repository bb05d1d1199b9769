/* SPDX-License-Identifier: MIT */
/* The log: who hears what, one call at a time, and silence unless somebody asked. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"

struct listener {
    int n_calls;
    _Atomic int n_inside;
    shoal_log_level last_level;
    char last[2048];
};

static void hear(void *context, shoal_log_level level, const char *message)
{
    struct listener *listener = context;
    CHECK_INT(atomic_fetch_add(&listener->n_inside, 1), 0);
    /* An invitation to the other threads to come in too. */
    (void)sched_yield();
    listener->n_calls++;
    listener->last_level = level;
    (void)snprintf(listener->last, sizeof listener->last, "%s", message);
    atomic_fetch_sub(&listener->n_inside, 1);
}

TEST(callback_hears_up_to_its_level)
{
    struct listener listener = {0};
    shoal_log_set(hear, &listener, SHOAL_LOG_INFO);
    int n_before = listener.n_calls;
    LOG(SHOAL_LOG_ERROR, "rank %d left", 3);
    CHECK_STRING(listener.last, "rank 3 left");
    CHECK_INT(listener.last_level, SHOAL_LOG_ERROR);
    LOG(SHOAL_LOG_INFO, "info");
    CHECK_INT(listener.last_level, SHOAL_LOG_INFO);
    LOG(SHOAL_LOG_DEBUG, "debug");
    CHECK_INT(listener.n_calls - n_before, 2);
    shoal_log_set(hear, &listener, (shoal_log_level)0);
    LOG(SHOAL_LOG_ERROR, "nobody wants this");
    CHECK_INT(listener.n_calls - n_before, 2);
    shoal_log_set(hear, &listener, (shoal_log_level)1000);
    LOG(SHOAL_LOG_DEBUG, "debug");
    CHECK_STRING(listener.last, "debug");
    shoal_log_set(NULL, NULL, SHOAL_LOG_DEBUG);
    LOG(SHOAL_LOG_ERROR, "not to the callback");
    CHECK_STRING(listener.last, "debug");
}

TEST(libraries_on_top_write_too)
{
    struct listener listener = {0};
    shoal_log_set(hear, &listener, SHOAL_LOG_WARN);
    shoal_log_write(SHOAL_LOG_WARN, "%d of %s", 3, "them");
    CHECK_STRING(listener.last, "3 of them");
    int n_before = listener.n_calls;
    shoal_log_write(SHOAL_LOG_INFO, "nobody wants this");
    CHECK_INT(listener.n_calls, n_before);
    shoal_log_set(NULL, NULL, SHOAL_LOG_WARN);
}

TEST(long_messages_are_cut)
{
    struct listener listener = {0};
    char letters[3000];
    memset(letters, 'a', sizeof letters);
    letters[sizeof letters - 1] = '\0';
    shoal_log_set(hear, &listener, SHOAL_LOG_INFO);
    LOG(SHOAL_LOG_INFO, "%s", letters);
    size_t chars = strlen(listener.last);
    CHECK(chars > 500 && chars < 2000);
    CHECK_STRING(listener.last + chars - 4, "a...");
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
}

TEST(errno_is_printed_and_kept)
{
    struct listener listener = {0};
    shoal_log_set(hear, &listener, SHOAL_LOG_INFO);
    errno = ENOENT;
    LOG(SHOAL_LOG_INFO, "open: %m, ignoring");
    CHECK_INT(errno, ENOENT);
    CHECK(strstr(listener.last, strerror(ENOENT)) != NULL);
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
}

static void log_from_inside(void *context, shoal_log_level level, const char *message)
{
    ++*(int *)context;
    /* Forbidden, but a mistake of the application must not become a deadlock of ours. */
    LOG(SHOAL_LOG_ERROR, "from inside");
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
}

TEST(callback_that_logs_does_not_hang)
{
    int n_calls = 0;
    test_deadline(10.0);
    shoal_log_set(log_from_inside, &n_calls, SHOAL_LOG_ERROR);
    n_calls = 0;
    LOG(SHOAL_LOG_ERROR, "from outside");
    CHECK_INT(n_calls, 1);
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
}

#define N_THREADS 4
#define N_MESSAGES 200

static void *log_many(void *unused)
{
    for (int i = 0; i < N_MESSAGES; i++) {
        LOG(SHOAL_LOG_INFO, "message %d", i);
    }
    return unused;
}

TEST(threads_take_turns)
{
    struct listener listener = {0};
    shoal_log_set(hear, &listener, SHOAL_LOG_INFO);
    listener.n_calls = 0;
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, log_many, NULL) == 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_INT(listener.n_calls, N_THREADS * N_MESSAGES);
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
}

/* Standard error ---------------------------------------------------------------------------------------- */

TEST(planted_log_to_stderr)
{
    LOG(SHOAL_LOG_WARN, "a warning");
    LOG(SHOAL_LOG_INFO, "a remark");
    struct listener listener = {0};
    shoal_log_set(hear, &listener, SHOAL_LOG_DEBUG);
    LOG(SHOAL_LOG_ERROR, "only to the callback");
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    LOG(SHOAL_LOG_WARN, "back again");
}

static char output[8192];

static void run_with_level(const char *setting)
{
    const char *const arguments[] = {test_program(), "planted_log_to_stderr", NULL};
    const char *const environment[] = {setting, NULL};
    CHECK_INT(test_run_program(arguments, environment, output, sizeof output), 0);
}

TEST(environment_sets_the_level)
{
    run_with_level("SHOAL_LOG=warn");
    CHECK(strstr(output, " warn: a warning\n") != NULL);
    CHECK(strstr(output, "a remark") == NULL);
    CHECK(strstr(output, "only to the callback") == NULL);
    CHECK(strstr(output, " warn: back again\n") != NULL);
    run_with_level("SHOAL_LOG=debug");
    CHECK(strstr(output, " info: a remark\n") != NULL);
}

TEST(silent_unless_asked)
{
    run_with_level("SHOAL_LOG=");
    CHECK(strstr(output, "shoal[") == NULL);
    run_with_level("SHOAL_LOG=off");
    CHECK(strstr(output, "shoal[") == NULL);
}

/* Who sets it wants to hear something, at least that it was set badly. */
TEST(a_bad_level_is_heard_of)
{
    run_with_level("SHOAL_LOG=loud");
    CHECK(strstr(output, " warn: a warning\n") != NULL);
    CHECK(strstr(output, "loud") != NULL);
    CHECK(strstr(output, "using warn") != NULL);
    CHECK(strstr(output, "a remark") == NULL);
}
