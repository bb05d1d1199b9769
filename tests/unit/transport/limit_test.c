/* SPDX-License-Identifier: MIT */
/* How many transports a process may have: one more is refused, and what was loaded goes on. */
#include <stdio.h>
#include <stdlib.h>

#include "harness/test.h"
#include "transport/message/endpoint.h"
#include "transport/module.h"
#include "transport/registry.h"

__attribute__((constructor)) static void set_path(void)
{
    (void)setenv("SHOAL_MODULE_PATH", TEST_MANY_MODULES, 1);
}

static int count_rows(void)
{
    int n_rows = 0;
    while (transport_at((size_t)n_rows)) {
        n_rows++;
    }
    return n_rows;
}

static shoal_status find_one(int number, const struct transport **transport_out)
{
    char name[16];
    (void)snprintf(name, sizeof name, "many_%d", number);
    return transport_find(name, transport_out);
}

/* There are copies many_10 to many_29. */
TEST(one_module_too_many_is_refused)
{
    int most = TRANSPORTS_MOST - count_rows();
    const struct transport *transport = NULL;
    REQUIRE(most > 0 && most < 20);
    for (int i = 0; i < most; i++) {
        CHECK_OK(find_one(10 + i, &transport));
    }
    char words[128];
    (void)snprintf(
        words, sizeof words,
        "transport \"many_%d\" is one too many: a process can have %d, %d are built in and %d were "
        "loaded already",
        10 + most, TRANSPORTS_MOST, count_rows(), most);
    for (int round = 0; round < 2; round++) {
        transport = NULL;
        CHECK_STATUS(find_one(10 + most, &transport), SHOAL_ERR_UNSUPPORTED);
        CHECK_ERROR_TEXT(words);
        CHECK(transport == NULL);
    }
    CHECK_OK(find_one(10, &transport));
    CHECK_STRING(transport->name, "many_10");
    CHECK_OK(transport_find("shm", &transport));
    CHECK_STRING(transport->name, "shm");
}

/* Functions of a kind that is never opened. */
static shoal_status open_none(const struct transport_world *world, int64_t deadline_ns,
                              struct endpoint **endpoint_out)
{
    return SHOAL_ERR_UNSUPPORTED;
}

static void close_none(struct endpoint *endpoint, int64_t deadline_ns)
{
}

static void isend_none(struct endpoint *endpoint, int rank, struct endpoint_message *message,
                       const void *data, size_t bytes)
{
}

static void irecv_none(struct endpoint *endpoint, int rank, struct endpoint_message *message, void *data,
                       size_t room)
{
}

static enum endpoint_state test_none(struct endpoint *endpoint, struct endpoint_message *message)
{
    return ENDPOINT_FAILED;
}

static bool cancel_none(struct endpoint *endpoint, int rank, struct endpoint_message *message)
{
    return true;
}

static void progress_none(struct endpoint *endpoint)
{
}

static const char *failure_none(struct endpoint *endpoint, int rank)
{
    return "it is never opened";
}

static const struct endpoint_kind none = {.struct_size = sizeof none,
                                          .name = "none",
                                          .doc = "for tests",
                                          .open = open_none,
                                          .close = close_none,
                                          .isend = isend_none,
                                          .irecv = irecv_none,
                                          .test = test_none,
                                          .cancel = cancel_none,
                                          .progress = progress_none,
                                          .failure = failure_none};

TEST(one_kind_of_endpoints_too_many_is_refused)
{
    static struct endpoint_kind kinds[TRANSPORTS_MOST + 1];
    for (int i = 0; i <= TRANSPORTS_MOST; i++) {
        kinds[i] = none;
        const struct transport *transport = transport_services.message_transport(&kinds[i]);
        CHECK((transport != NULL) == (i < TRANSPORTS_MOST));
    }
    CHECK_ERROR_TEXT("a process can have 16 transports, and has as many kinds of endpoints already");
    CHECK(transport_services.message_transport(&kinds[0]) != NULL);
}
