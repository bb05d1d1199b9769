/* SPDX-License-Identifier: MIT */
/*
 * The test that runs: its name, whether it failed, and everything it prints. Each process has its own; a
 * rank that is a process tells its launcher by its exit code.
 */
#include "harness/harness.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "harness/test.h"

/* A loop of failing checks shall not bury the first of them. */
#define FAILURES_PRINTED_MAX 50

static char running_name[128];
static const struct test_case *running_test;
static _Atomic int n_failures;
static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int thread_rank = -1;

void harness_begin(const char *name, const struct test_case *test)
{
    (void)snprintf(running_name, sizeof running_name, "%s", name);
    running_test = test;
    atomic_store(&n_failures, 0);
    harness_control_begin();
    harness_memory_begin();
    if (harness_launched_size() == 0) {
        harness_descriptors_begin();
    }
}

enum outcome harness_end(void)
{
    harness_memory_end();
    if (harness_launched_size() == 0) {
        harness_descriptors_end();
    }
    bool is_skipped = atomic_load(&harness_control()->is_skipped) != 0;
    if (is_skipped) {
        harness_print("skip %s: %s\n", running_name, harness_control()->skip_reason);
    }
    harness_control_end();
    /* The test is over, but its name stays for whatever goes wrong until the next one. */
    running_test = NULL;
    if (atomic_load(&n_failures) > 0) {
        return OUTCOME_FAILED;
    }
    return is_skipped ? OUTCOME_SKIPPED : OUTCOME_PASSED;
}

const char *harness_name(void)
{
    return running_name;
}

void harness_mark_failed(void)
{
    atomic_fetch_add(&n_failures, 1);
}

bool test_has_failed(void)
{
    return atomic_load(&n_failures) > 0;
}

void harness_set_thread_rank(int rank)
{
    thread_rank = rank;
}

int harness_thread_rank(void)
{
    return thread_rank;
}

void harness_print(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)pthread_mutex_lock(&print_lock);
    (void)vprintf(format, arguments);
    (void)fflush(stdout);
    (void)pthread_mutex_unlock(&print_lock);
    va_end(arguments);
}

void harness_list_unfinished(char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 0; running_test && rank < running_test->n_ranks; rank++) {
        if (atomic_load(&harness_control()->has_returned[rank]) == 0 && used < text_bytes) {
            int more = snprintf(text + used, text_bytes - used, " %d", rank);
            used += more > 0 ? (size_t)more : 0;
        }
    }
}

void test_failed(const char *file, int line, const char *format, ...)
{
    int n_before = atomic_fetch_add(&n_failures, 1);
    if (n_before > FAILURES_PRINTED_MAX) {
        return;
    }
    if (n_before == FAILURES_PRINTED_MAX) {
        harness_print("%s: more than %d failures, the others are not printed\n", running_name, n_before);
        return;
    }
    char label[32] = "";
    if (thread_rank >= 0) {
        (void)snprintf(label, sizeof label, "[rank %d] ", thread_rank);
    }
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    harness_print("%s%s:%d: %s: %s\n", label, file, line, running_name, text);
}

void test_skip(const char *reason)
{
    struct control *control = harness_control();
    uint32_t expected = 0;
    if (atomic_compare_exchange_strong(&control->is_skipped, &expected, 1)) {
        (void)snprintf(control->skip_reason, sizeof control->skip_reason, "%s", reason);
    }
}
