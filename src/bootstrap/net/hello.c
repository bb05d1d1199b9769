/* SPDX-License-Identifier: MIT */
/* Both sides of the handshake over TCP. */
#include "bootstrap/net/hello.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/os/os.h"
#include "base/try.h"
#include "bootstrap/net/socket.h"

/* Returns false if the system gave no random numbers. */
static bool fill_head(struct hello_head *head)
{
    memset(head, 0, sizeof *head);
    memcpy(head->magic, HELLO_MAGIC, sizeof head->magic);
    head->order = HELLO_ORDER;
    head->version = HELLO_VERSION;
    return os_random(head->nonce, sizeof head->nonce);
}

static struct nonces take_nonces(const struct hello_head *server, const struct hello_head *client)
{
    struct nonces nonces;
    memcpy(nonces.server, server->nonce, NONCE_BYTES);
    memcpy(nonces.client, client->nonce, NONCE_BYTES);
    return nonces;
}

/* The server -------------------------------------------------------------------------------------------- */

bool hello_greet(struct hello_head *greeting_out)
{
    return fill_head(greeting_out);
}

struct welcome hello_judge(const struct hello_head *greeting, const struct hello *hello,
                           const struct proof_key *key)
{
    struct welcome welcome = {.verdict = HELLO_WRONG_KIND};
    memcpy(welcome.magic, HELLO_MAGIC, sizeof welcome.magic);
    if (hello->head.order != HELLO_ORDER || hello->head.version != HELLO_VERSION) {
        return welcome;
    }
    struct nonces nonces = take_nonces(greeting, &hello->head);
    unsigned char expected[PROOF_BYTES];
    proof_make(key, /*is_server=*/false, &nonces, expected);
    if (!proof_is_equal(expected, hello->proof)) {
        welcome.verdict = HELLO_WRONG_TOKEN;
        return welcome;
    }
    welcome.verdict = HELLO_WELCOME;
    proof_make(key, /*is_server=*/true, &nonces, welcome.proof);
    return welcome;
}

/* The client -------------------------------------------------------------------------------------------- */

static shoal_status check_greeting(const struct hello_head *greeting, const char *where)
{
    if (memcmp(greeting->magic, HELLO_MAGIC, sizeof greeting->magic) != 0) {
        return error_set(SHOAL_ERR_INVALID, "what listens at %s is not a rank of Shoal", where);
    }
    if (greeting->order != HELLO_ORDER) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the rank at %s is on a machine with another byte order",
                         where);
    }
    return SHOAL_OK;
}

static shoal_status check_welcome(const struct welcome *welcome, const unsigned char *expected,
                                  const char *where)
{
    if (memcmp(welcome->magic, HELLO_MAGIC, sizeof welcome->magic) != 0) {
        return error_set(SHOAL_ERR_INVALID, "what listens at %s is not a rank of Shoal", where);
    }
    if (welcome->verdict == HELLO_WRONG_KIND) {
        return error_set(
            SHOAL_ERR_MISMATCH,
            "the rank at %s has another version of the library, or its machine another byte order", where);
    }
    if (welcome->verdict != HELLO_WELCOME || !proof_is_equal(welcome->proof, expected)) {
        return error_set(SHOAL_ERR_INVALID,
                         "the rank at %s has another token than this rank: it belongs to another job, or "
                         "SHOAL_TOKEN differs",
                         where);
    }
    return SHOAL_OK;
}

shoal_status hello_perform(int fd, const struct proof_key *key, const char *where,
                           const struct socket_wait *wait)
{
    struct hello_head greeting;
    TRY(socket_receive_bytes(fd, &greeting, sizeof greeting, wait));
    TRY(check_greeting(&greeting, where));
    struct hello hello;
    if (!fill_head(&hello.head)) {
        return error_set(SHOAL_ERR_SYSTEM, "no random numbers for a connection: %s", strerror(errno));
    }
    struct nonces nonces = take_nonces(&greeting, &hello.head);
    unsigned char expected[PROOF_BYTES];
    proof_make(key, /*is_server=*/false, &nonces, hello.proof);
    proof_make(key, /*is_server=*/true, &nonces, expected);
    TRY(socket_send_bytes(fd, &hello, sizeof hello, wait));
    struct welcome welcome;
    TRY(socket_receive_bytes(fd, &welcome, sizeof welcome, wait));
    return check_welcome(&welcome, expected, where);
}
