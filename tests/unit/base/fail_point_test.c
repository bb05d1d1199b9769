/* SPDX-License-Identifier: MIT */
/* Fail points: passages are counted, the armed one fires once, and its status leaves the function. */
#include "base/fail_point.h"

#include <errno.h>
#include <stddef.h>

#include "base/error.h"
#include "harness/test.h"

#ifdef SHOAL_FAIL_POINTS

static int n_steps;

static shoal_status take_three_steps(void)
{
    n_steps = 0;
    FAIL_POINT("one");
    n_steps++;
    FAIL_POINT("two");
    n_steps++;
    FAIL_POINT("three");
    n_steps++;
    return SHOAL_OK;
}

static shoal_status fail_here(void *context, const char *name)
{
    const char **fired = context;
    *fired = name;
    return error_set(SHOAL_ERR_PEER, "planted at %s", name);
}

static shoal_status only_look(void *context, const char *name)
{
    const char **fired = context;
    *fired = name;
    return SHOAL_OK;
}

TEST(passages_are_counted)
{
    fail_point_arm(0, NULL, NULL);
    CHECK_OK(take_three_steps());
    CHECK_INT(fail_point_passages(), 3);
    CHECK_OK(take_three_steps());
    CHECK_INT(fail_point_passages(), 6);
    fail_point_arm(0, NULL, NULL);
    CHECK_INT(fail_point_passages(), 0);
}

TEST(armed_passage_fires_once)
{
    static const char *const names[] = {"one", "two", "three"};
    for (int number = 1; number <= 3; number++) {
        const char *fired = NULL;
        fail_point_arm((uint64_t)number, fail_here, &fired);
        CHECK_STATUS(take_three_steps(), SHOAL_ERR_PEER);
        CHECK_STRING(fired, names[number - 1]);
        CHECK_ERROR_TEXT(names[number - 1]);
        CHECK_INT(n_steps, number - 1);
        CHECK_OK(take_three_steps());
    }
    fail_point_arm(0, NULL, NULL);
}

TEST(action_may_let_the_passage_go_on)
{
    const char *fired = NULL;
    fail_point_arm(2, only_look, &fired);
    CHECK_OK(take_three_steps());
    CHECK_STRING(fired, "two");
    CHECK_INT(n_steps, 3);
    fail_point_arm(4, fail_here, &fired);
    CHECK_OK(take_three_steps());
    fail_point_arm(0, NULL, NULL);
}

static shoal_status fill_disk(void *context, const char *name)
{
    (void)context;
    (void)name;
    errno = ENOSPC;
    return SHOAL_ERR_SYSTEM;
}

TEST(a_request_gets_the_code_of_the_action)
{
    errno = EPERM;
    fail_point_arm(2, fill_disk, NULL);
    CHECK_INT(FAIL_POINT_CODE("write"), 0);
    CHECK_INT(FAIL_POINT_CODE("write"), ENOSPC);
    CHECK_INT(FAIL_POINT_CODE("write"), 0);
    CHECK_INT(fail_point_passages(), 3);
    fail_point_arm(0, NULL, NULL);
}

#else

static shoal_status pass_nothing(void)
{
    FAIL_POINT("nothing");
    CHECK_INT(FAIL_POINT_CODE("nothing"), 0);
    return SHOAL_OK;
}

TEST(fail_points_are_absent)
{
    CHECK_OK(pass_nothing());
    test_skip("this build has no fail points");
}

#endif
