/* SPDX-License-Identifier: MIT */
/* Addresses: texts, names, and the interfaces of this machine. */
#include "bootstrap/net/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/try.h"

/* A port for connect on a UDP socket. Any will do, because nothing is sent. */
#define ROUTE_PORT 9

bool address_is_known(const struct address *address)
{
    return address->family != 0;
}

bool address_is_loopback(const struct address *address)
{
    static const unsigned char six[16] = {[15] = 1};
    return address->family == 4 ? address->bytes[0] == 127 : memcmp(address->bytes, six, sizeof six) == 0;
}

struct address address_any(int family, uint16_t port)
{
    return (struct address){.family = (uint16_t)family, .port = port};
}

/* Texts ------------------------------------------------------------------------------------------------- */

const char *address_host(const struct address *address, char text[ADDRESS_TEXT_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "nowhere";
    (void)inet_ntop(address->family == 6 ? AF_INET6 : AF_INET, address->bytes, host, sizeof host);
    if (address->family == 6 && address->scope != 0) {
        (void)snprintf(text, ADDRESS_TEXT_BYTES, "%s%%%u", host, address->scope);
    } else {
        (void)snprintf(text, ADDRESS_TEXT_BYTES, "%s", host);
    }
    return text;
}

const char *address_text(const struct address *address, char text[ADDRESS_TEXT_BYTES])
{
    char host[ADDRESS_TEXT_BYTES];
    (void)address_host(address, host);
    (void)snprintf(text, ADDRESS_TEXT_BYTES, address->family == 6 ? "[%.64s]:%u" : "%.64s:%u", host,
                   address->port);
    return text;
}

/* The system's form ------------------------------------------------------------------------------------- */

socklen_t address_to_system(const struct address *address, struct sockaddr_storage *system)
{
    memset(system, 0, sizeof *system);
    if (address->family == 6) {
        struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(address->port)};
        six.sin6_scope_id = address->scope;
        memcpy(&six.sin6_addr, address->bytes, sizeof six.sin6_addr);
        memcpy(system, &six, sizeof six);
        return sizeof six;
    }
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(address->port)};
    memcpy(&four.sin_addr, address->bytes, sizeof four.sin_addr);
    memcpy(system, &four, sizeof four);
    return sizeof four;
}

struct address address_from_system(const struct sockaddr_storage *system)
{
    struct address address = {.family = 0};
    if (system->ss_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, system, sizeof six);
        address = (struct address){.family = 6, .scope = six.sin6_scope_id, .port = ntohs(six.sin6_port)};
        memcpy(address.bytes, &six.sin6_addr, sizeof six.sin6_addr);
    } else if (system->ss_family == AF_INET) {
        struct sockaddr_in four;
        memcpy(&four, system, sizeof four);
        address = (struct address){.family = 4, .port = ntohs(four.sin_port)};
        memcpy(address.bytes, &four.sin_addr, sizeof four.sin_addr);
    }
    return address;
}

/* From an address of the system. */
static struct address copy_address(const struct sockaddr *from)
{
    struct sockaddr_storage system = {.ss_family = AF_UNSPEC};
    size_t bytes = from->sa_family == AF_INET    ? sizeof(struct sockaddr_in)
                   : from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                 : 0;
    memcpy(&system, from, bytes);
    return address_from_system(&system);
}

/* This machine's ---------------------------------------------------------------------------------------- */

struct choice {
    const char *name; /* NULL means any but the loopback */
    int worth;        /* of the best address so far */
    struct address address;
};

/* Whether an address is valid on its link only: 169.254.0.0/16, fe80::/10. */
static bool is_link_local(const struct address *address)
{
    const unsigned char *bytes = address->bytes;
    return address->family == 4 ? bytes[0] == 169 && bytes[1] == 254
                                : bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

/*
 * Ranks an address. Interfaces with a carrier come before those without (a bridge to which nothing is connected),
 * routable addresses before link-local ones, IPv4 before IPv6, and otherwise the first one found wins.
 */
static int worth_of(const struct address *address, unsigned flags)
{
    return 1 + (address->family == 4) + 2 * !is_link_local(address) + 4 * ((flags & IFF_RUNNING) != 0);
}

static void consider(struct choice *choice, const struct ifaddrs *interface)
{
    bool is_loopback = (interface->ifa_flags & IFF_LOOPBACK) != 0;
    bool is_good = interface->ifa_addr && (interface->ifa_flags & IFF_UP) != 0 &&
                   (choice->name ? strcmp(choice->name, interface->ifa_name) == 0 : !is_loopback);
    struct address address = {.family = 0};
    if (is_good) {
        address = copy_address(interface->ifa_addr);
    }
    int worth = address_is_known(&address) ? worth_of(&address, interface->ifa_flags) : 0;
    if (worth > choice->worth) {
        choice->address = address;
        choice->worth = worth;
    }
}

static shoal_status walk_interfaces(struct choice *choice)
{
    struct ifaddrs *interfaces = NULL;
    if (getifaddrs(&interfaces) != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "the network interfaces of this machine could not be listed: %s",
                         error_errno_text(errno));
    }
    for (const struct ifaddrs *each = interfaces; each; each = each->ifa_next) {
        consider(choice, each);
    }
    freeifaddrs(interfaces);
    choice->address.port = 0;
    return SHOAL_OK;
}

/* The address from which packets to the peer would be sent; unknown if there is no route to it. */
static struct address find_route(const struct address *peer)
{
    struct address address = {.family = 0};
    struct address to = *peer;
    struct sockaddr_storage system;
    to.port = ROUTE_PORT;
    socklen_t bytes = address_to_system(&to, &system);
    int fd = socket(system.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return address;
    }
    if (connect(fd, (const struct sockaddr *)&system, bytes) == 0) {
        bytes = sizeof system;
        if (getsockname(fd, (struct sockaddr *)&system, &bytes) == 0) {
            address = address_from_system(&system);
        }
    }
    (void)close(fd);
    address.port = 0;
    return address;
}

/* The address from which packets to far networks would be sent; unknown if there is no default route. */
static struct address find_default_route(void)
{
    /* Addresses of networks for documentation (RFC 5737 and RFC 3849), which nobody has. */
    const struct address far_away[] = {
        {.family = 4, .bytes = {198, 51, 100, 1}},
        {.family = 6, .bytes = {0x20, 0x01, 0x0d, 0xb8, [15] = 1}},
    };
    struct address address = {.family = 0};
    for (size_t i = 0; i < sizeof far_away / sizeof far_away[0] && !address_is_known(&address); i++) {
        address = find_route(&far_away[i]);
        if (address_is_known(&address) && address_is_loopback(&address)) {
            address.family = 0;
        }
    }
    return address;
}

const char *address_interface(const struct address *address, char name[ADDRESS_INTERFACE_BYTES])
{
    struct ifaddrs *interfaces = NULL;
    (void)snprintf(name, ADDRESS_INTERFACE_BYTES, "unknown");
    if (getifaddrs(&interfaces) != 0) {
        return name;
    }
    for (const struct ifaddrs *each = interfaces; each; each = each->ifa_next) {
        struct address own = {.family = 0};
        if (each->ifa_addr) {
            own = copy_address(each->ifa_addr);
        }
        if (address_is_known(&own) && own.family == address->family &&
            memcmp(own.bytes, address->bytes, sizeof own.bytes) == 0) {
            (void)snprintf(name, ADDRESS_INTERFACE_BYTES, "%s", each->ifa_name);
            break;
        }
    }
    freeifaddrs(interfaces);
    return name;
}

static shoal_status find_wanted(const char *wanted, struct address *address_out)
{
    struct address address = {.family = 4};
    if (inet_pton(AF_INET, wanted, address.bytes) == 1) {
        *address_out = address;
        return SHOAL_OK;
    }
    address.family = 6;
    if (inet_pton(AF_INET6, wanted, address.bytes) == 1) {
        *address_out = address;
        return SHOAL_OK;
    }
    struct choice choice = {.name = wanted};
    TRY(walk_interfaces(&choice));
    if (!address_is_known(&choice.address)) {
        return error_set(SHOAL_ERR_INVALID,
                         "SHOAL_INTERFACE is \"%.60s\", which is neither an address nor an interface of this "
                         "machine that is up",
                         wanted);
    }
    *address_out = choice.address;
    return SHOAL_OK;
}

shoal_status address_choose(const char *wanted, const struct address *peer, struct address *address_out)
{
    if (wanted[0] != '\0') {
        return find_wanted(wanted, address_out);
    }
    struct choice choice = {.name = NULL};
    if (address_is_known(peer)) {
        choice.address = find_route(peer);
    }
    if (!address_is_known(&choice.address)) {
        choice.address = find_default_route();
    }
    if (!address_is_known(&choice.address) && walk_interfaces(&choice) != SHOAL_OK) {
        LOG(SHOAL_LOG_WARN, "%s", shoal_error_text());
        error_clear();
    }
    if (!address_is_known(&choice.address)) {
        choice.address = (struct address){.family = 4, .bytes = {127, 0, 0, 1}};
    }
    *address_out = choice.address;
    return SHOAL_OK;
}
