/* SPDX-License-Identifier: MIT */
/* Addresses: texts to bytes and back, what is no address, and which one of this machine is taken. */
#include "bootstrap/net/address.h"

#include <string.h>

#include "base/clock.h"
#include "bootstrap/net/lookup.h"
#include "harness/test.h"

static int64_t deadline(void)
{
    return clock_deadline_after(60);
}

static void check_text(const char *text, const char *host)
{
    struct address address;
    char back[ADDRESS_TEXT_BYTES];
    REQUIRE_OK(lookup_address("NAME", text, deadline(), &address));
    CHECK_STRING(address_text(&address, back), text);
    CHECK_STRING(address_host(&address, back), host);
    struct sockaddr_storage system;
    (void)address_to_system(&address, &system);
    struct address again = address_from_system(&system);
    CHECK_BYTES(&again, &address, sizeof address);
}

TEST(texts_become_addresses_and_texts_again)
{
    check_text("127.0.0.1:1", "127.0.0.1");
    check_text("10.20.30.40:65535", "10.20.30.40");
    check_text("[::1]:29500", "::1");
    check_text("[fe80::1:2]:80", "fe80::1:2");
}

TEST(a_name_is_looked_up)
{
    struct address address;
    REQUIRE_OK(lookup_address("NAME", "localhost:7", deadline(), &address));
    CHECK_INT(address.port, 7);
    CHECK(address_is_known(&address));
}

TEST(what_is_no_address_is_told)
{
    static const char *const texts[] = {
        "",     "host",   ":1",    "host:",   "host:0",     "host:65536",
        "a:1x", "::1:80", "[::1]", "[]:80",   "host:-1",    "host:99999999999999999999",
        "a b:", ":",      "]:1:",  "1.2.3.4", "1.2.3.4:+1", "[::1:80"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct address address;
        if (CHECK_STATUS(lookup_address("SHOAL_ADDRESS", texts[i], deadline(), &address),
                         SHOAL_ERR_INVALID)) {
            CHECK_ERROR_TEXT("SHOAL_ADDRESS");
        }
    }
}

TEST(the_interface_is_what_was_wanted_or_leads_there)
{
    struct address unknown = {.family = 0};
    struct address peer;
    struct address own;
    char text[ADDRESS_TEXT_BYTES];
    REQUIRE_OK(lookup_address("NAME", "127.0.0.1:5", deadline(), &peer));
    REQUIRE_OK(address_choose("", &peer, &own));
    CHECK_STRING(address_host(&own, text), "127.0.0.1");
    CHECK_INT(own.port, 0);
    REQUIRE_OK(address_choose("127.0.0.2", &peer, &own));
    CHECK_STRING(address_host(&own, text), "127.0.0.2");
    REQUIRE_OK(address_choose("lo", &unknown, &own));
    CHECK_STRING(address_host(&own, text), "127.0.0.1");
    CHECK_STATUS(address_choose("no_such_if0", &unknown, &own), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("SHOAL_INTERFACE is \"no_such_if0\"");
    REQUIRE_OK(address_choose("", &unknown, &own));
    CHECK(address_is_known(&own));
    char name[ADDRESS_INTERFACE_BYTES];
    REQUIRE_OK(address_choose("lo", &unknown, &own));
    CHECK_STRING(address_interface(&own, name), "lo");
    REQUIRE_OK(address_choose("127.0.0.2", &unknown, &own));
    CHECK_STRING(address_interface(&own, name), "unknown");
}

/* Where there is a default route, its interface is taken: the first one may be a bridge of containers. */
TEST(without_a_peer_the_default_route_is_taken)
{
    struct address far_away;
    struct address route;
    struct address own;
    const struct address unknown = {.family = 0};
    REQUIRE_OK(lookup_address("NAME", "203.0.113.7:1", deadline(), &far_away));
    REQUIRE_OK(address_choose("", &far_away, &route));
    REQUIRE_OK(address_choose("", &unknown, &own));
    CHECK_BYTES(&own, &route, sizeof own);
}
