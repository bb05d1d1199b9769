/* SPDX-License-Identifier: MIT */
/* The thread's error text: exact lengths around the cut, and arguments that point into the text itself. */
#include "base/error.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "harness/test.h"

TEST(set_gives_status_and_text)
{
    CHECK_STATUS(error_set(SHOAL_ERR_STATE, "dim %d of %s", 3, "x"), SHOAL_ERR_STATE);
    CHECK_STRING(shoal_error_text(), "dim 3 of x");
    CHECK_STATUS(error_set(SHOAL_ERR_PEER, "short"), SHOAL_ERR_PEER);
    CHECK_STRING(shoal_error_text(), "short");
    error_clear();
    CHECK_STRING(shoal_error_text(), "");
}

TEST(texts_are_cut_where_they_no_longer_fit)
{
    char letters[ERROR_TEXT_BYTES + 10];
    for (size_t chars = ERROR_TEXT_BYTES - 6; chars < ERROR_TEXT_BYTES + 6; chars++) {
        memset(letters, 'a', chars);
        letters[chars] = '\0';
        (void)error_set(SHOAL_ERR_INVALID, "%s", letters);
        const char *text = shoal_error_text();
        bool is_cut = chars >= ERROR_TEXT_BYTES;
        CHECK_INT(strlen(text), is_cut ? ERROR_TEXT_BYTES - 1 : chars);
        CHECK_INT(strcmp(text + strlen(text) - 3, "...") == 0, is_cut);
        CHECK_INT(strspn(text, "a"), is_cut ? ERROR_TEXT_BYTES - 4 : chars);
    }
}

TEST(cut_does_not_split_a_character)
{
    /* Characters of two bytes, at both parities, so that one of the texts would be cut inside of one. */
    for (size_t shift = 0; shift < 2; shift++) {
        char letters[ERROR_TEXT_BYTES + 100];
        memset(letters, 'a', sizeof letters);
        for (size_t i = shift; i + 2 < sizeof letters; i += 2) {
            memcpy(letters + i, "\xC3\xA9", 2);
        }
        letters[sizeof letters - 1] = '\0';
        (void)error_set(SHOAL_ERR_INVALID, "%s", letters);
        const char *dots = strstr(shoal_error_text(), "...");
        REQUIRE(dots != NULL);
        CHECK_INT((unsigned char)dots[-1], 0xA9);
        CHECK_INT(dots[3], 0);
    }
}

TEST(prefix_goes_in_front)
{
    (void)error_set(SHOAL_ERR_INVALID, "the cause");
    CHECK_STATUS(error_prefix(SHOAL_ERR_SYSTEM, "step %d", 4), SHOAL_ERR_SYSTEM);
    CHECK_STRING(shoal_error_text(), "step 4: the cause");
    (void)error_prefix(SHOAL_ERR_SYSTEM, "outer");
    CHECK_STRING(shoal_error_text(), "outer: step 4: the cause");
    error_clear();
    (void)error_prefix(SHOAL_ERR_SYSTEM, "alone");
    CHECK_STRING(shoal_error_text(), "alone failed with SHOAL_ERR_SYSTEM");
}

TEST(prefix_that_makes_the_text_too_long_keeps_its_beginning)
{
    char letters[ERROR_TEXT_BYTES];
    memset(letters, 'x', sizeof letters);
    letters[sizeof letters - 1] = '\0';
    (void)error_set(SHOAL_ERR_INVALID, "%s", letters);
    CHECK_INT(strlen(shoal_error_text()), ERROR_TEXT_BYTES - 1);
    (void)error_prefix(SHOAL_ERR_INVALID, "op");
    CHECK(strncmp(shoal_error_text(), "op: xxx", 7) == 0);
    CHECK_INT(strlen(shoal_error_text()), ERROR_TEXT_BYTES - 1);
    CHECK_STRING(shoal_error_text() + ERROR_TEXT_BYTES - 5, "x...");
    /* A prefix that fills the text by itself. */
    (void)error_prefix(SHOAL_ERR_INVALID, "%s%s", letters, letters);
    CHECK_STRING(shoal_error_text() + ERROR_TEXT_BYTES - 5, "x...");
}

TEST(arguments_may_be_the_text_itself)
{
    (void)error_set(SHOAL_ERR_INVALID, "first");
    (void)error_set(SHOAL_ERR_INVALID, "again %s and %s", shoal_error_text(), shoal_error_text() + 2);
    CHECK_STRING(shoal_error_text(), "again first and rst");
    (void)error_prefix(SHOAL_ERR_INVALID, "<%s>", shoal_error_text() + 6);
    CHECK_STRING(shoal_error_text(), "<first and rst>: again first and rst");
}

TEST(each_text_has_a_number)
{
    error_clear();
    CHECK(error_number() == 0);
    (void)error_set(SHOAL_ERR_INVALID, "same");
    uint64_t first = error_number();
    CHECK(first != 0 && error_number() == first);
    (void)error_set(SHOAL_ERR_INVALID, "same");
    uint64_t second = error_number();
    CHECK(second != 0 && second != first);
    (void)error_prefix(SHOAL_ERR_INVALID, "outer");
    CHECK(error_number() != 0 && error_number() != first && error_number() != second);
    error_clear();
    CHECK(error_number() == 0);
}

TEST(null_has_the_reason_of_the_call_that_gave_it)
{
    error_clear();
    CHECK_STATUS(error_null("unit"), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "unit is NULL");

    (void)error_set(SHOAL_ERR_STATE, "there is no unit 3");
    error_mark_reason();
    (void)error_prefix(SHOAL_ERR_STATE, "unit_of");
    (void)error_prefix(SHOAL_ERR_STATE, "outer");
    CHECK_STRING(shoal_error_text(), "outer: unit_of: there is no unit 3");
    CHECK_STATUS(error_null("unit"), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "there is no unit 3");
    (void)error_null("unit"); /* that was reported already */
    CHECK_STRING(shoal_error_text(), "unit is NULL");
}

TEST(a_reason_ends_with_its_text)
{
    char letters[ERROR_TEXT_BYTES];
    (void)error_set(SHOAL_ERR_INVALID, "the reason");
    error_mark_reason();
    error_clear(); /* another call, which succeeded */
    (void)error_null("unit");
    CHECK_STRING(shoal_error_text(), "unit is NULL");

    (void)error_set(SHOAL_ERR_INVALID, "the reason");
    error_mark_reason();
    (void)error_set(SHOAL_ERR_INVALID, "another failure");
    (void)error_prefix(SHOAL_ERR_INVALID, "call");
    (void)error_null("unit");
    CHECK_STRING(shoal_error_text(), "unit is NULL");

    memset(letters, 'a', sizeof letters - 1);
    letters[sizeof letters - 1] = '\0';
    (void)error_set(SHOAL_ERR_INVALID, "the reason");
    error_mark_reason();
    (void)error_prefix(SHOAL_ERR_INVALID, "%s", letters); /* leaves no room for it */
    (void)error_null("unit");
    CHECK_STRING(shoal_error_text(), "unit is NULL");
    error_clear();
    error_mark_reason(); /* of nothing */
    (void)error_null("unit");
    CHECK_STRING(shoal_error_text(), "unit is NULL");
}

TEST(system_errors_can_be_printed)
{
    errno = ENOENT;
    (void)error_set(SHOAL_ERR_SYSTEM, "open: %m");
    CHECK_ERROR_TEXT(strerror(ENOENT));
}

/* Limits that the kernel does not name in its code. */
static void name_limits(void *context)
{
    char expected[128];
    struct rlimit lowered = {.rlim_cur = 17, .rlim_max = 40};
    CHECK_STRING(error_errno_text(ENOENT), "No such file or directory");
    REQUIRE(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
    (void)snprintf(expected, sizeof expected, "Too many open files (RLIMIT_NOFILE of process %d is 17 files)",
                   (int)getpid());
    CHECK_STRING(error_errno_text(EMFILE), expected);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &lowered) == 0);
    (void)snprintf(expected, sizeof expected, "File too large (RLIMIT_FSIZE of process %d is 17 bytes)",
                   (int)getpid());
    CHECK_STRING(error_errno_text(EFBIG), expected);
    lowered.rlim_cur = lowered.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
}

TEST(codes_of_limits_name_the_limit)
{
    test_in_child(name_limits, NULL);
}

static void *write_other_text(void *unused)
{
    CHECK_STRING(shoal_error_text(), "");
    (void)error_set(SHOAL_ERR_INVALID, "of the other thread");
    return unused;
}

TEST(each_thread_has_its_text)
{
    (void)error_set(SHOAL_ERR_INVALID, "of this thread");
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, write_other_text, NULL) == 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK_STRING(shoal_error_text(), "of this thread");
}

TEST(a_text_is_put_back_with_its_reason)
{
    struct error_kept kept;
    error_clear();
    error_keep(&kept);
    (void)error_set(SHOAL_ERR_INVALID, "nobody is told");
    error_put_back(&kept);
    CHECK_STRING(shoal_error_text(), "");
    (void)error_set(SHOAL_ERR_STATE, "the reason");
    error_mark_reason();
    uint64_t number = error_number();
    error_keep(&kept);
    (void)error_set(SHOAL_ERR_INVALID, "nobody is told");
    error_put_back(&kept);
    CHECK_STRING(shoal_error_text(), "the reason");
    CHECK(error_number() == number);
    CHECK_STATUS(error_null("tensor"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("the reason");
}
