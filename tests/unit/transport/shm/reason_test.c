/* SPDX-License-Identifier: MIT */
/* A rank that looks while another one writes why it has failed: it waits for the reason, but not for a dead rank. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/wait.h"
#include "harness/test.h"
#include "sharedmem/segment.h"
#include "transport/shm/channel.h"

/* A writer that the machine keeps from running for so long, as happens where ranks are more than cores. */
#define SLOW_SECONDS 0.3

static void *write_slowly(void *argument)
{
    struct shm_segment *shared = argument;
    test_pause(SLOW_SECONDS);
    shared->status = SHOAL_ERR_MISMATCH;
    (void)snprintf(shared->text, sizeof shared->text, "ranks differ");
    /* Release: pairs with the acquire in read_failure_state. */
    atomic_store_explicit(&shared->failure_state, SHM_FAILED, memory_order_release);
    wait_wake_all(&shared->failure_state, /*is_shared=*/true);
    return NULL;
}

TEST(a_slow_reason_is_waited_for)
{
    struct shm_segment shared;
    struct shm_channel channel;
    pthread_t writer;
    memset(&shared, 0, sizeof shared);
    memset(&channel, 0, sizeof channel);
    channel.shared = &shared;
    atomic_init(&shared.failure_state, SHM_FAILING);
    REQUIRE(pthread_create(&writer, NULL, write_slowly, &shared) == 0);
    CHECK_STATUS(shm_own_failure(&channel), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("ranks differ");
    (void)pthread_join(writer, NULL);
}

TEST(a_reason_that_never_comes)
{
    struct shm_segment shared;
    struct shm_channel channel;
    memset(&shared, 0, sizeof shared);
    memset(&channel, 0, sizeof channel);
    channel.shared = &shared;
    atomic_init(&shared.failure_state, SHM_FAILING);
    CHECK_STATUS(shm_own_failure(&channel), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("gave no reason");
}
