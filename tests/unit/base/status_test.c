/* SPDX-License-Identifier: MIT */
/* The status table as callers see it. That rows and enum agree is checked by the compiler, in status.c. */
#include "shoal/status.h"

#include <stddef.h>
#include <string.h>

#include "harness/test.h"

/* Written out again, because names and scopes are a promise to callers that a table edit must not change. */
static const struct {
    const char *name;
    shoal_status status;
    shoal_reach reach;
} promised[] = {
    {"SHOAL_OK", SHOAL_OK, SHOAL_REACH_CALL},
    {"SHOAL_ERR_INVALID", SHOAL_ERR_INVALID, SHOAL_REACH_CALL},
    {"SHOAL_ERR_NO_MEMORY", SHOAL_ERR_NO_MEMORY, SHOAL_REACH_CALL},
    {"SHOAL_ERR_UNSUPPORTED", SHOAL_ERR_UNSUPPORTED, SHOAL_REACH_CALL},
    {"SHOAL_ERR_STATE", SHOAL_ERR_STATE, SHOAL_REACH_CALL},
    {"SHOAL_ERR_TIMEOUT", SHOAL_ERR_TIMEOUT, SHOAL_REACH_GROUP},
    {"SHOAL_ERR_SYSTEM", SHOAL_ERR_SYSTEM, SHOAL_REACH_OP},
    {"SHOAL_ERR_CANCELLED", SHOAL_ERR_CANCELLED, SHOAL_REACH_GROUP},
    {"SHOAL_ERR_PEER", SHOAL_ERR_PEER, SHOAL_REACH_GROUP},
    {"SHOAL_ERR_MISMATCH", SHOAL_ERR_MISMATCH, SHOAL_REACH_GROUP},
    {"SHOAL_ERR_INTERNAL", SHOAL_ERR_INTERNAL, SHOAL_REACH_PROCESS},
};
#define N_PROMISED (sizeof promised / sizeof promised[0])

TEST(names_and_scopes_are_as_promised)
{
    for (size_t i = 0; i < N_PROMISED; i++) {
        CHECK_INT(promised[i].status, -(int)i);
        CHECK_STRING(shoal_status_name(promised[i].status), promised[i].name);
        CHECK_INT(shoal_status_reach(promised[i].status), promised[i].reach);
    }
}

TEST(messages_are_sentences_of_their_own)
{
    for (size_t i = 0; i < N_PROMISED; i++) {
        const char *message = shoal_status_message(promised[i].status);
        CHECK(strlen(message) > 10 && message[strlen(message) - 1] == '.');
        for (size_t j = 0; j < i; j++) {
            CHECK(strcmp(message, shoal_status_message(promised[j].status)) != 0);
        }
    }
}

TEST(numbers_that_are_no_status_are_survived)
{
    static const int numbers[] = {1, 77, -(int)N_PROMISED, -1000, 2147483647};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        shoal_status status = (shoal_status)numbers[i];
        CHECK_STRING(shoal_status_name(status), "SHOAL_ERR_?");
        CHECK_INT(shoal_status_reach(status), SHOAL_REACH_PROCESS);
        CHECK(strstr(shoal_status_message(status), "not a status") != NULL);
    }
}
