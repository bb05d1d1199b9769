/* SPDX-License-Identifier: MIT */
/* Making and judging cards. */
#include "comm/card.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/try.h"
#include "shoal/version.h"

/* One number for the version, in which every field has room. */
#define VERSION_NUMBER \
    ((uint32_t)SHOAL_VERSION_MAJOR * 1000000 + (uint32_t)SHOAL_VERSION_MINOR * 1000 + SHOAL_VERSION_PATCH)

/* The kernel's number for this run of the machine; empty where it is not to be had. */
static void read_boot_id(char *text, size_t bytes)
{
    text[0] = '\0';
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t n_read = read(fd, text, bytes - 1);
    (void)close(fd);
    text[n_read > 0 ? n_read : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

shoal_status card_create(int rank, int n_ranks, struct card *card_out)
{
    struct card card;
    /* Bytes between the fields travel too. */
    memset(&card, 0, sizeof card);
    card.magic = CARD_MAGIC;
    card.version = VERSION_NUMBER;
    card.rank = rank;
    card.n_ranks = n_ranks;
    card.pid = (int32_t)getpid();
    read_boot_id(card.boot_id, sizeof card.boot_id);
    struct stat stat_of_namespace;
    if (stat("/proc/self/ns/net", &stat_of_namespace) == 0) {
        card.namespace_number = stat_of_namespace.st_ino;
    }
    if (getrandom(card.token, sizeof card.token, 0) != (ssize_t)sizeof card.token) {
        return error_set(SHOAL_ERR_SYSTEM, "no random numbers: %s", strerror(errno));
    }
    *card_out = card;
    return SHOAL_OK;
}

void card_server_name(const struct card *card, char name[SOCKET_NAME_BYTES])
{
    (void)snprintf(name, SOCKET_NAME_BYTES, "shoal-%016" PRIx64 "%016" PRIx64, card->token[0],
                   card->token[1]);
}

shoal_status card_fail_several_hosts(const char *how)
{
    return error_set(
        SHOAL_ERR_UNSUPPORTED,
        "the ranks are on several hosts (%s): that needs the MPI transport, which is not built yet", how);
}

/* Both may be of different versions, so the rest of the card can not be read. */
static shoal_status check_version(const struct card *card, const struct card *mine)
{
    if (card->magic != CARD_MAGIC) {
        return error_set(SHOAL_ERR_INVALID, "start-up: what came is not the card of a rank");
    }
    if (card->version != mine->version) {
        return error_set(SHOAL_ERR_MISMATCH, "start-up: a rank has version %u of the library, another has %u",
                         card->version, mine->version);
    }
    return SHOAL_OK;
}

static bool is_same_host(const struct card *card, const struct card *mine)
{
    return card->namespace_number == mine->namespace_number &&
           memcmp(card->boot_id, mine->boot_id, sizeof card->boot_id) == 0;
}

shoal_status card_check_kind(const struct card *card, const struct card *mine)
{
    TRY(check_version(card, mine));
    if (card->n_ranks != mine->n_ranks) {
        return error_set(SHOAL_ERR_MISMATCH, "start-up: rank %d (process %d) says %d ranks, rank %d says %d",
                         card->rank, card->pid, card->n_ranks, mine->rank, mine->n_ranks);
    }
    if (card->rank < 0 || card->rank >= card->n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "start-up: a card of rank %d of %d", card->rank, card->n_ranks);
    }
    if (!is_same_host(card, mine)) {
        char how[96];
        (void)snprintf(how, sizeof how, "rank %d is elsewhere than rank %d", card->rank, mine->rank);
        return card_fail_several_hosts(how);
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
        return error_set(
            SHOAL_ERR_MISMATCH,
            "start-up: the card at place %d says rank %d: two ranks with one number, or exchange mixed "
            "them up",
            rank, card->rank);
    }
    return card_check_kind(card, mine);
}
