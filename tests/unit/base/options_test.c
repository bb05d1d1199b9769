/* SPDX-License-Identifier: MIT */
/*
 * Options as the environment gives them. They are read once per process, so every case runs in a child that
 * sets its environment first; the program itself never asks for one.
 */
#include "base/options.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "harness/test.h"
#include "shoal/log.h"
#include "shoal/option.h"

/* What the log said in this child. */
static char heard[8192];
static int n_heard;

static void hear(void *context, shoal_log_level level, const char *message)
{
    CHECK_INT(level, SHOAL_LOG_WARN);
    n_heard++;
    size_t used = strlen(heard);
    (void)snprintf(heard + used, sizeof heard - used, "%s\n", message);
}

/* Leaves nothing of the developer's own settings. */
static void clear_environment(void)
{
    char **entry = environ;
    while (*entry) {
        if (strncmp(*entry, "SHOAL_", 6) != 0) {
            entry++;
            continue;
        }
        char name[256];
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        (void)unsetenv(name);
        entry = environ;
    }
}

static shoal_option_info find_option(const char *name)
{
    shoal_option_info info = SHOAL_OPTION_INFO_INIT;
    for (size_t i = 0; shoal_option_get(i, &info); i++) {
        if (strcmp(info.name, name) == 0) {
            return info;
        }
    }
    test_failed(__FILE__, __LINE__, "there is no option %s", name);
    return (shoal_option_info){.name = name};
}

static void expect_heard(const char *words)
{
    if (!strstr(heard, words)) {
        test_failed(__FILE__, __LINE__, "the log did not say \"%s\" but:\n%s", words, heard);
    }
}

static void run_with_defaults(void *context)
{
    clear_environment();
    /* Empty counts as absent, and the tests' own names are nobody's business. */
    (void)setenv("SHOAL_TIMEOUT", "", 1);
    (void)setenv("SHOAL_TEST_NONSENSE", "1", 1);
    (void)setenv("SHOAL_NN_THREADS", "1", 1);
    shoal_log_set(hear, NULL, SHOAL_LOG_DEBUG);
    CHECK_INT(option_choice(OPTION_LOG), 0);
    CHECK_INT(option_choice(OPTION_SIMD), 0);
    CHECK_INT(option_int(OPTION_STREAM_BYTES), 8388608);
    CHECK_DOUBLE(option_seconds(OPTION_TIMEOUT), 600.0);
    CHECK_STRING(find_option("SHOAL_TIMEOUT").source, "default");
    CHECK_STRING(find_option("SHOAL_STREAM_BYTES").value, "8M");
    CHECK_INT(n_heard, 0);
}

TEST(defaults_hold)
{
    test_in_child(run_with_defaults, NULL);
}

static void run_with_values(void *context)
{
    clear_environment();
    (void)setenv("SHOAL_SIMD", "plain", 1);
    (void)setenv("SHOAL_STREAM_BYTES", "3K", 1);
    (void)setenv("SHOAL_TIMEOUT", "0.25", 1);
    CHECK_INT(option_choice(OPTION_SIMD), 1);
    CHECK_INT(option_int(OPTION_STREAM_BYTES), 3072);
    CHECK_DOUBLE(option_seconds(OPTION_TIMEOUT), 0.25);
    CHECK_STRING(find_option("SHOAL_STREAM_BYTES").value, "3K");
    CHECK_STRING(find_option("SHOAL_STREAM_BYTES").default_value, "8M");
    CHECK_STRING(find_option("SHOAL_STREAM_BYTES").source, "environment");
    /* Later changes are not seen: the values are read once. */
    (void)setenv("SHOAL_TIMEOUT", "7", 1);
    CHECK_DOUBLE(option_seconds(OPTION_TIMEOUT), 0.25);
}

TEST(values_come_from_the_environment)
{
    test_in_child(run_with_values, NULL);
}

static void run_with_bad_values(void *context)
{
    clear_environment();
    (void)setenv("SHOAL_SIMD", "mmx", 1);
    (void)setenv("SHOAL_STREAM_BYTES", "-1", 1);
    (void)setenv("SHOAL_TIMEOUT", "0.0001", 1); /* below the range */
    shoal_log_set(hear, NULL, SHOAL_LOG_WARN);
    CHECK_INT(option_choice(OPTION_SIMD), 0);
    CHECK_INT(option_int(OPTION_STREAM_BYTES), 8388608);
    CHECK_DOUBLE(option_seconds(OPTION_TIMEOUT), 600.0);
    CHECK_STRING(find_option("SHOAL_SIMD").source, "default (bad value in environment)");
    CHECK_STRING(find_option("SHOAL_SIMD").value, "auto");
    CHECK_INT(n_heard, 3);
    expect_heard("SHOAL_SIMD: bad value \"mmx\"");
    expect_heard("auto|plain|");
    expect_heard("SHOAL_STREAM_BYTES: bad value \"-1\"");
    expect_heard(
        "SHOAL_TIMEOUT: bad value \"0.0001\" (wanted: seconds, 0.001 to 1e9), using the default 600");
}

TEST(bad_values_keep_the_default_and_are_told)
{
    test_in_child(run_with_bad_values, NULL);
}

static void run_with_long_value(void *context)
{
    clear_environment();
    char zeroes[5000];
    memset(zeroes, '0', sizeof zeroes);
    zeroes[sizeof zeroes - 1] = '\0';
    (void)setenv("SHOAL_STREAM_BYTES", zeroes, 1);
    zeroes[1000] = '\0';
    (void)setenv("SHOAL_MODULE_PATH", zeroes, 1);
    CHECK_INT(option_int(OPTION_STREAM_BYTES), 8388608);
    CHECK_STRING(find_option("SHOAL_STREAM_BYTES").source, "default (bad value in environment)");
    /* A list of folders may be long. */
    CHECK_INT(strlen(option_text(OPTION_MODULE_PATH)), 1000);
}

TEST(overlong_values_are_bad)
{
    test_in_child(run_with_long_value, NULL);
}

static void run_with_unknown_names(void *context)
{
    clear_environment();
    (void)setenv("SHOAL_TIMEOUTS", "1", 1);
    (void)setenv("SHOAL_LOOG", "1", 1);
    (void)setenv("SHOAL_LIBRARY", "of/the/Python/package", 1);
    (void)setenv("SHOAL_TOOL", "so is this", 1);
    (void)setenv("SHOAL_TOOLS", "1", 1);
    shoal_log_set(hear, NULL, SHOAL_LOG_WARN);
    CHECK_INT(n_heard, 3);
    expect_heard("unknown option SHOAL_TOOLS in the environment, ignored");
    expect_heard(
        "unknown option SHOAL_TIMEOUTS in the environment, ignored; the nearest name is SHOAL_TIMEOUT");
    expect_heard("unknown option SHOAL_LOOG in the environment, ignored; the nearest name is SHOAL_LOG");
    /* Once, whatever happens afterwards. */
    (void)option_choice(OPTION_SIMD);
    shoal_log_set(hear, NULL, SHOAL_LOG_DEBUG);
    (void)find_option("SHOAL_LOG");
    CHECK_INT(n_heard, 3);
}

TEST(unknown_names_are_told_with_the_nearest)
{
    test_in_child(run_with_unknown_names, NULL);
}

static void run_with_many_unknown_names(void *context)
{
    clear_environment();
    for (int i = 0; i < 20; i++) {
        char name[200];
        (void)snprintf(name, sizeof name, "SHOAL_%0*d", i < 10 ? 3 : 150, i);
        (void)setenv(name, "1", 1);
    }
    shoal_log_set(hear, NULL, SHOAL_LOG_WARN);
    CHECK_INT(n_heard, 9);
    expect_heard("12 more unknown options");
}

TEST(many_unknown_names_are_counted)
{
    test_in_child(run_with_many_unknown_names, NULL);
}

static void run_with_late_listener(void *context)
{
    clear_environment();
    (void)setenv("SHOAL_SIMD", "mmx", 1);
    /* Read by a silent program first, so that there is nobody to tell. */
    (void)option_choice(OPTION_SIMD);
    LOG(SHOAL_LOG_ERROR, "nobody hears this");
    shoal_log_set(hear, NULL, SHOAL_LOG_ERROR);
    CHECK_INT(n_heard, 0);
    shoal_log_set(hear, NULL, SHOAL_LOG_WARN);
    CHECK_INT(n_heard, 1);
    expect_heard("SHOAL_SIMD");
}

TEST(problems_wait_for_a_listener)
{
    test_in_child(run_with_late_listener, NULL);
}

static void *ask_for_timeout(void *unused)
{
    CHECK_DOUBLE(option_seconds(OPTION_TIMEOUT), 12.0);
    LOG(SHOAL_LOG_DEBUG, "asked");
    return unused;
}

/* A real program: under the thread sanitizer a forked child may not start threads. */
TEST(planted_first_use_by_threads)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, ask_for_timeout, NULL) == 0);
    }
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
}

static void run_program(const char *name, const char *setting, const char *words)
{
    static char output[16384];
    const char *const arguments[] = {test_program(), name, NULL};
    const char *const environment[] = {"SHOAL_TIMEOUT=12", "SHOAL_TYPO=1", setting, NULL};
    int code = test_run_program(arguments, environment, output, sizeof output);
    const char *found = strstr(output, words);
    bool is_once = found && !strstr(found + 1, words);
    if (code != 0 || !is_once) {
        test_failed(__FILE__, __LINE__, "%s ended with %d, expected once \"%s\":\n%s", name, code, words,
                    output);
    }
}

TEST(first_use_may_be_by_many_threads)
{
    run_program("planted_first_use_by_threads", "SHOAL_LOG=warn", "warn: unknown option SHOAL_TYPO");
}

TEST(rows_are_complete)
{
    shoal_option_info info = SHOAL_OPTION_INFO_INIT;
    size_t n_options = 0;
    for (; shoal_option_get(n_options, &info); n_options++) {
        CHECK(strncmp(info.name, "SHOAL_", 6) == 0);
        CHECK(info.range[0] != '\0');
        CHECK(info.doc[strlen(info.doc) - 1] == '.');
    }
    CHECK_INT(n_options, OPTION_COUNT);
    CHECK(!shoal_option_get(SIZE_MAX, &info));
    CHECK(!shoal_option_get(0, NULL));
    info.struct_size = 0;
    CHECK(!shoal_option_get(0, &info));
}

/* A program that was compiled when the struct ended after its type gets that much, and nothing behind it changes. */
TEST(older_info)
{
    shoal_option_info info;
    memset(&info, 0x5a, sizeof info);
    shoal_option_info untouched = info;
    info.struct_size = offsetof(shoal_option_info, range);
    CHECK(shoal_option_get(0, &info));
    CHECK_INT(info.struct_size, offsetof(shoal_option_info, range));
    CHECK(strncmp(info.name, "SHOAL_", 6) == 0 && info.type[0] != '\0');
    CHECK(info.range == untouched.range && info.value == untouched.value && info.doc == untouched.doc);
}
