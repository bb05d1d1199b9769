/* SPDX-License-Identifier: MIT */
/* Numbers by name, stored at a server under keys that programs cannot use. */
#include "bootstrap/server/numbers.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "bootstrap/server/client.h"
#include "bootstrap/net/request.h"

#define KEY_PREFIX "shoal/number/"
#define KEY_BYTES 768

static shoal_status make_key(const char *name, char key[KEY_BYTES])
{
    int length = snprintf(key, KEY_BYTES, KEY_PREFIX "%s", name);
    return length > 0 && length < KEY_BYTES
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INTERNAL, "the name of a number is too long: %.40s...", name);
}

shoal_status numbers_agree(struct client *client, int holder, const char *name, uint64_t proposed,
                           const struct client_wait *wait, uint64_t *number_out)
{
    if (!client) {
        *number_out = proposed;
        return SHOAL_OK;
    }
    char key[KEY_BYTES];
    TRY(make_key(name, key));
    /* One request proposes and asks. Between two, a rank that closes the group could make the server forget the
       number. */
    struct request request = {.op = REQUEST_AGREE};
    request_add_bytes(&request, key, strlen(key));
    request_add_bytes(&request, &proposed, sizeof proposed);
    struct frame frame;
    TRY(client_perform(client, holder, &request, wait, "a number to be agreed on", &frame));
    shoal_status status = SHOAL_OK;
    if (frame.header.bytes == sizeof *number_out) {
        memcpy(number_out, frame.payload, sizeof *number_out);
    } else {
        status = error_set(SHOAL_ERR_SYSTEM, "a server answered %u bytes for a number", frame.header.bytes);
    }
    frame_clear(&frame);
    return status;
}

shoal_status numbers_forget(struct client *client, int holder, const char *name, int64_t deadline_ns)
{
    if (!client) {
        return SHOAL_OK;
    }
    char key[KEY_BYTES];
    TRY(make_key(name, key));
    struct request request = {.op = REQUEST_DELETE};
    request_add_bytes(&request, key, strlen(key));
    const struct client_wait wait = {.deadline_ns = deadline_ns};
    struct frame frame;
    TRY(client_perform(client, holder, &request, &wait, "a number to be forgotten", &frame));
    frame_clear(&frame);
    return SHOAL_OK;
}
