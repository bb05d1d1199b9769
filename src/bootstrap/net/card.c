/* SPDX-License-Identifier: MIT */
/* Making and judging cards. */
#include "bootstrap/net/card.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/os/os.h"
#include "base/try.h"
#include "shoal/version.h"

/* One number for the version, in which every field has room. */
#define VERSION_NUMBER \
    ((uint32_t)SHOAL_VERSION_MAJOR * 1000000 + (uint32_t)SHOAL_VERSION_MINOR * 1000 + SHOAL_VERSION_PATCH)

/*
 * Reads the kernel's id of this boot of the machine; it is empty where the kernel does not say. A lack of descriptors
 * is an error: otherwise this rank would seem to be on another machine.
 */
static shoal_status read_boot_id(char *text, size_t bytes)
{
    text[0] = '\0';
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        return error_set(SHOAL_ERR_SYSTEM, "start-up: opening /proc/sys/kernel/random/boot_id: %s",
                         error_errno_text(errno));
    }
    if (fd < 0) {
        return SHOAL_OK;
    }
    ssize_t n_read = read(fd, text, bytes - 1);
    (void)close(fd);
    text[n_read > 0 ? n_read : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return SHOAL_OK;
}

bool card_is_tcp_test(void)
{
#ifdef SHOAL_FAIL_POINTS
    const char *value = getenv("SHOAL_TEST_TCP");
    return value && strcmp(value, "1") == 0;
#else
    return false;
#endif
}

/* Name number `rank` of the list, and its length, 0 if there is none. */
static const char *find_host(const char *list, int rank, size_t *length_out)
{
    for (int i = 0; list && i < rank; i++) {
        list = strchr(list, ',');
        list = list ? list + 1 : NULL;
    }
    *length_out = list ? strcspn(list, ",") : 0;
    return list;
}

/* Ranks that pretend to be on several hosts do so all, by one list: card_check compares it. */
static shoal_status pretend_host(struct card *card)
{
    const char *list = getenv("SHOAL_PRETEND_HOSTS");
    if (!list || list[0] == '\0') {
        return SHOAL_OK;
    }
    size_t length = 0;
    for (int rank = 0; rank < card->n_ranks; rank++) {
        (void)find_host(list, rank, &length);
        if (length == 0) {
            return error_set(SHOAL_ERR_INVALID,
                             "SHOAL_PRETEND_HOSTS is \"%.80s\", which has no name for rank %d of %d", list,
                             rank, card->n_ranks);
        }
    }
    const char *host = find_host(list, card->rank, &length);
    card->host = hash_bytes(card->claim, host, length);
    card->pretended = hash_bytes(1, list, strlen(list));
    return SHOAL_OK;
}

static shoal_status identify_host(struct card *card)
{
    card->claim = hash_bytes(card->namespace_number, card->boot_id, strlen(card->boot_id));
    card->host = card->claim;
    TRY(pretend_host(card));
    if (card_is_tcp_test()) {
        card->claim = card->host;
    }
    return SHOAL_OK;
}

shoal_status card_create(int rank, int n_ranks, const char *transport, struct card *card_out)
{
    struct card card;
    /* Bytes between the fields are sent too, so they are set. */
    memset(&card, 0, sizeof card);
    card.magic = CARD_MAGIC;
    card.version = VERSION_NUMBER;
    card.rank = rank;
    card.n_ranks = n_ranks;
    card.pid = (int32_t)getpid();
    TRY(read_boot_id(card.boot_id, sizeof card.boot_id));
    struct stat stat_of_namespace;
    if (stat("/proc/self/ns/net", &stat_of_namespace) == 0) {
        card.namespace_number = stat_of_namespace.st_ino;
    }
    TRY(identify_host(&card));
    (void)snprintf(card.transport, sizeof card.transport, "%s", transport);
    if (!os_random(card.token, sizeof card.token)) {
        return error_set(SHOAL_ERR_SYSTEM, "start-up: no random numbers for the token: %s", strerror(errno));
    }
    *card_out = card;
    return SHOAL_OK;
}

void card_server_name(const struct card *card, char name[SOCKET_NAME_BYTES])
{
    card_token_name(card->token, name);
}

void card_token_name(const uint64_t token[2], char name[SOCKET_NAME_BYTES])
{
    (void)snprintf(name, SOCKET_NAME_BYTES, "shoal-%016" PRIx64 "%016" PRIx64, token[0], token[1]);
}

bool card_has_several_hosts(const struct card *cards, int n_ranks)
{
    int rank = 0;
    while (rank < n_ranks && cards[rank].leader == cards[0].leader) {
        rank++;
    }
    return rank < n_ranks;
}

shoal_status card_fail_several_hosts(const char *how)
{
    return error_set(
        SHOAL_ERR_UNSUPPORTED,
        "the ranks are on several hosts (%s): set SHOAL_ADDRESS=host:port, where rank 0 listens, "
        "and SHOAL_TOKEN, a text that only this job knows, the same on all ranks",
        how);
}

/* Called first: if the versions differ, the rest of the card cannot be read. */
static shoal_status check_version(const struct card *card, const struct card *mine)
{
    if (card->magic != CARD_MAGIC) {
        return error_set(SHOAL_ERR_INVALID,
                         "start-up: received data that does not come from a rank of this library");
    }
    if (card->version != mine->version) {
        return error_set(SHOAL_ERR_MISMATCH,
                         "start-up: ranks have different versions of the library (start-up protocol %u and "
                         "%u): use the same libshoal on all ranks",
                         card->version, mine->version);
    }
    return SHOAL_OK;
}

shoal_status card_check_kind(const struct card *card, const struct card *mine)
{
    TRY(check_version(card, mine));
    if (card->n_ranks != mine->n_ranks) {
        return error_set(
            SHOAL_ERR_MISMATCH,
            "start-up: ranks differ in the number of ranks: rank %d (process %d) has %d, rank %d has %d",
            card->rank, card->pid, card->n_ranks, mine->rank, mine->n_ranks);
    }
    if (card->rank < 0 || card->rank >= card->n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "start-up: a process has rank %d, but there are %d ranks",
                         card->rank, card->n_ranks);
    }
    if (card->pretended != mine->pretended) {
        return error_set(SHOAL_ERR_MISMATCH,
                         "start-up: SHOAL_PRETEND_HOSTS is not the same on rank %d (process %d) and rank %d",
                         card->rank, card->pid, mine->rank);
    }
    if (card->heartbeat_ms != mine->heartbeat_ms && card->heartbeat_ms != 0 && mine->heartbeat_ms != 0) {
        return error_set(SHOAL_ERR_MISMATCH, "start-up: SHOAL_HEARTBEAT is %g on rank %d, and %g on rank %d",
                         card->heartbeat_ms * 1e-3, card->rank, mine->heartbeat_ms * 1e-3, mine->rank);
    }
    if (strncmp(card->transport, mine->transport, sizeof card->transport) != 0) {
        return error_set(
            SHOAL_ERR_MISMATCH,
            "start-up: rank %d asks for transport \"%.*s\", rank %d for \"%s\" (SHOAL_TRANSPORT, "
            "shoal_world_options)",
            card->rank, (int)strnlen(card->transport, sizeof card->transport), card->transport, mine->rank,
            mine->transport);
    }
    return SHOAL_OK;
}

shoal_status card_check(const struct card *card, int rank, const struct card *mine)
{
    TRY(check_version(card, mine));
    if (card->status != SHOAL_OK) {
        return error_set(SHOAL_ERR_PEER, "start-up: rank %d could not start: %.*s", rank,
                         (int)strnlen(card->text, sizeof card->text), card->text);
    }
    if (card->rank != rank) {
        return error_set(SHOAL_ERR_MISMATCH,
                         "start-up: exchange returned at index %d what rank %d gave: two ranks have the same "
                         "number, or exchange does not return the blocks in rank order",
                         rank, card->rank);
    }
    return card_check_kind(card, mine);
}
