/* SPDX-License-Identifier: MIT */
/*
 * How the server answers each request of requests.def. A malformed request ends its connection. A request for something
 * impossible is answered with a status and a text.
 */
#include "bootstrap/server/answers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/option_parse.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/net/connection.h"
#include "bootstrap/server/meeting.h"
#include "bootstrap/net/requests.h"
#include "bootstrap/net/strangers.h"
#include "bootstrap/alive/watch.h"
#include "sharedmem/segment.h"

#define FIELDS_MAX 3

struct field {
    int64_t number;
    const char *bytes;
    size_t n_bytes;
};

struct reader {
    const char *at;
    size_t left;
};

/* Fields ------------------------------------------------------------------------------------------------ */

static bool take(struct reader *reader, void *to, size_t bytes)
{
    if (reader->left < bytes) {
        return false;
    }
    memcpy(to, reader->at, bytes);
    reader->at += bytes;
    reader->left -= bytes;
    return true;
}

static bool take_field(struct reader *reader, char kind, struct field *field)
{
    if (kind == 'n') {
        return take(reader, &field->number, sizeof field->number);
    }
    uint32_t bytes;
    if (!take(reader, &bytes, sizeof bytes) || bytes > reader->left) {
        return false;
    }
    field->bytes = reader->at;
    field->n_bytes = bytes;
    reader->at += bytes;
    reader->left -= bytes;
    return true;
}

/* Takes apart a payload by its row's fields; with '*' the last one stands for itself and all that follow. */
static bool parse_fields(const char *kinds, const struct connection *connection, struct field *fields)
{
    struct reader reader = {.at = connection->payload, .left = connection->header.bytes};
    char kind = 0;
    for (size_t i = 0; kinds[i] != '\0'; i++) {
        if (kinds[i] == '*') {
            struct field rest;
            while (reader.left > 0) {
                if (!take_field(&reader, kind, &rest)) {
                    return false;
                }
            }
            return true;
        }
        kind = kinds[i];
        if (!take_field(&reader, kind, &fields[i])) {
            return false;
        }
    }
    return reader.left == 0;
}

/* Keys and values --------------------------------------------------------------------------------------- */

static bool is_key(const struct field *field)
{
    return field->n_bytes > 0 && field->n_bytes <= STORE_KEY_BYTES_MAX;
}

static bool is_value(const struct field *field)
{
    return field->n_bytes <= STORE_VALUE_BYTES_MAX;
}

/* Ends a connection that sent something wrong. Clients of this library check their arguments, so it is none of them. */
static void drop(struct connection *connection)
{
    connection->is_broken = true;
}

/* Counts the keys of a GET, WAIT or CHECK that do not exist, and finds the first of them. */
static size_t count_missing(const struct server *server, const struct connection *connection,
                            struct field *first_out, size_t *n_keys_out)
{
    struct reader reader = {.at = connection->payload, .left = connection->header.bytes};
    struct field field = {.bytes = ""};
    (void)take_field(&reader, 'n', &field);
    size_t n_missing = 0;
    *n_keys_out = 0;
    while (reader.left > 0 && take_field(&reader, 's', &field)) {
        (*n_keys_out)++;
        if (!entries_find(&server->values, field.bytes, field.n_bytes)) {
            if (n_missing == 0) {
                *first_out = field;
            }
            n_missing++;
        }
    }
    return n_missing;
}

/* Answers a GET or WAIT whose keys are all there. */
static void finish_wait(const struct server *server, struct connection *connection)
{
    if (connection->header.op == REQUEST_WAIT) {
        connection_answer(connection, SHOAL_OK, NULL, 0, /*fd=*/-1);
        return;
    }
    struct reader reader = {.at = connection->payload, .left = connection->header.bytes};
    struct field field = {.bytes = ""};
    (void)take_field(&reader, 'n', &field);
    (void)take_field(&reader, 's', &field);
    const struct entry *entry = entries_find(&server->values, field.bytes, field.n_bytes);
    connection_answer(connection, SHOAL_OK, entry->value, entry->value_bytes, /*fd=*/-1);
}

/* Called when a key was set: answers the requests for which it was the last key missing. */
static void serve_waiting(struct server *server)
{
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        struct field first;
        size_t n_keys;
        if (connection->is_waiting && count_missing(server, connection, &first, &n_keys) == 0) {
            finish_wait(server, connection);
        }
    }
}

static void begin_wait(struct server *server, struct connection *connection, int64_t wait_ns)
{
    struct field first;
    size_t n_keys;
    if (count_missing(server, connection, &first, &n_keys) == 0) {
        finish_wait(server, connection);
        return;
    }
    connection->is_waiting = true;
    connection->wait_since_ns = clock_now_ns();
    connection->wait_until_ns = wait_ns >= INT64_MAX - connection->wait_since_ns
                                    ? DEADLINE_NEVER
                                    : connection->wait_since_ns + wait_ns;
    if (wait_ns <= 0) {
        answer_too_late(server, connection);
    }
}

void answer_too_late(struct server *server, struct connection *connection)
{
    struct field first = {.bytes = ""};
    size_t n_keys;
    size_t n_missing = count_missing(server, connection, &first, &n_keys);
    double waited_s = (double)(clock_now_ns() - connection->wait_since_ns) * 1e-9;
    char more[64] = "";
    if (n_missing > 1) {
        (void)snprintf(more, sizeof more, " and %zu more of %zu", n_missing - 1, n_keys);
    }
    connection_fail(connection,
                    error_set(SHOAL_ERR_TIMEOUT, "waited %.1f s (timeout_s) for the key \"%.*s\"%s", waited_s,
                              (int)first.n_bytes, first.bytes, more));
}

static void answer_byte(struct connection *connection, bool is_true)
{
    char byte = is_true ? 1 : 0;
    connection_answer(connection, SHOAL_OK, &byte, 1, /*fd=*/-1);
}

/* Creates the key or replaces its value. */
static shoal_status set_value(struct server *server, const struct field *key, const char *value, size_t bytes)
{
    bool is_new = !entries_find(&server->values, key->bytes, key->n_bytes);
    struct entry *entry;
    TRY(entries_obtain(&server->values, key->bytes, key->n_bytes, &entry));
    shoal_status status = entry_set_value(entry, value, bytes);
    if (status != SHOAL_OK && is_new) {
        entries_remove(&server->values, entry);
    }
    return status;
}

static void answer_set(struct server *server, struct connection *connection, const struct field *fields)
{
    if (!is_key(&fields[0]) || !is_value(&fields[1])) {
        drop(connection);
        return;
    }
    shoal_status status = set_value(server, &fields[0], fields[1].bytes, fields[1].n_bytes);
    if (status != SHOAL_OK) {
        connection_fail(connection, status);
        return;
    }
    connection_answer(connection, SHOAL_OK, NULL, 0, /*fd=*/-1);
    serve_waiting(server);
}

static void answer_get(struct server *server, struct connection *connection, const struct field *fields)
{
    if (!is_key(&fields[1])) {
        drop(connection);
        return;
    }
    begin_wait(server, connection, fields[0].number);
}

static void answer_wait(struct server *server, struct connection *connection, const struct field *fields)
{
    begin_wait(server, connection, fields[0].number);
}

static void answer_check(struct server *server, struct connection *connection, const struct field *fields)
{
    struct field first;
    size_t n_keys;
    answer_byte(connection, count_missing(server, connection, &first, &n_keys) == 0);
}

static shoal_status add_to_value(struct server *server, const struct field *key, int64_t amount,
                                 int64_t *sum_out)
{
    const struct entry *entry = entries_find(&server->values, key->bytes, key->n_bytes);
    int64_t number = 0;
    if (entry && (strlen(entry->value) != entry->value_bytes || !option_parse_int(entry->value, &number))) {
        return error_set(SHOAL_ERR_INVALID, "the value of the key \"%.*s\" is \"%.40s\", a number expected",
                         (int)key->n_bytes, key->bytes, entry->value);
    }
    int64_t sum;
    if (__builtin_add_overflow(number, amount, &sum)) {
        return error_set(SHOAL_ERR_INVALID,
                         "the key \"%.*s\": the sum of %" PRId64 " and %" PRId64 " does not fit 64 bits",
                         (int)key->n_bytes, key->bytes, number, amount);
    }
    char text[32];
    int length = snprintf(text, sizeof text, "%" PRId64, sum);
    TRY(set_value(server, key, text, (size_t)length));
    *sum_out = sum;
    return SHOAL_OK;
}

static void answer_add(struct server *server, struct connection *connection, const struct field *fields)
{
    if (!is_key(&fields[0])) {
        drop(connection);
        return;
    }
    int64_t sum;
    shoal_status status = add_to_value(server, &fields[0], fields[1].number, &sum);
    if (status != SHOAL_OK) {
        connection_fail(connection, status);
        return;
    }
    connection_answer(connection, SHOAL_OK, &sum, sizeof sum, /*fd=*/-1);
    serve_waiting(server);
}

static void answer_compare_set(struct server *server, struct connection *connection,
                               const struct field *fields)
{
    if (!is_key(&fields[0]) || !is_value(&fields[1]) || !is_value(&fields[2])) {
        drop(connection);
        return;
    }
    const struct entry *entry = entries_find(&server->values, fields[0].bytes, fields[0].n_bytes);
    size_t value_bytes = entry ? entry->value_bytes : 0;
    bool is_equal = value_bytes == fields[1].n_bytes &&
                    (value_bytes == 0 || memcmp(entry->value, fields[1].bytes, value_bytes) == 0);
    if (!is_equal) {
        answer_byte(connection, false);
        return;
    }
    shoal_status status = set_value(server, &fields[0], fields[2].bytes, fields[2].n_bytes);
    if (status != SHOAL_OK) {
        connection_fail(connection, status);
        return;
    }
    answer_byte(connection, true);
    serve_waiting(server);
}

static void answer_agree(struct server *server, struct connection *connection, const struct field *fields)
{
    if (!is_key(&fields[0]) || !is_value(&fields[1])) {
        drop(connection);
        return;
    }
    const struct entry *entry = entries_find(&server->values, fields[0].bytes, fields[0].n_bytes);
    if (entry) {
        connection_answer(connection, SHOAL_OK, entry->value, entry->value_bytes, /*fd=*/-1);
        return;
    }
    shoal_status status = set_value(server, &fields[0], fields[1].bytes, fields[1].n_bytes);
    if (status != SHOAL_OK) {
        connection_fail(connection, status);
        return;
    }
    connection_answer(connection, SHOAL_OK, fields[1].bytes, fields[1].n_bytes, /*fd=*/-1);
    serve_waiting(server);
}

static void answer_delete(struct server *server, struct connection *connection, const struct field *fields)
{
    struct entry *entry = entries_find(&server->values, fields[0].bytes, fields[0].n_bytes);
    if (entry) {
        entries_remove(&server->values, entry);
    }
    answer_byte(connection, entry != NULL);
}

/* Segments ---------------------------------------------------------------------------------------------- */

typedef shoal_status (*segment_maker)(const char *name, size_t bytes, int *fd_out);

static shoal_status obtain_segment(struct server *server, const struct field *name, size_t bytes,
                                   segment_maker make, const struct entry **entry_out)
{
    struct entry *entry;
    TRY(entries_obtain(&server->segments, name->bytes, name->n_bytes, &entry));
    if (entry->fd < 0) {
        shoal_status status = make(entry->name, bytes, &entry->fd);
        if (status != SHOAL_OK) {
            entries_remove(&server->segments, entry);
            return status;
        }
        entry->segment_bytes = bytes;
    }
    if (entry->segment_bytes != bytes) {
        return error_set(
            SHOAL_ERR_MISMATCH,
            "shared memory \"%.100s\" exists with another size: %zu bytes are requested, it has %" PRIu64,
            entry->name, bytes, entry->segment_bytes);
    }
    *entry_out = entry;
    return SHOAL_OK;
}

static void hand_out(struct server *server, struct connection *connection, const struct field *fields,
                     segment_maker make)
{
    if (connection->is_remote || fields[0].n_bytes == 0 || fields[0].n_bytes > SEGMENT_NAME_BYTES_MAX ||
        fields[1].number <= 0) {
        drop(connection);
        return;
    }
    const struct entry *entry = NULL;
    shoal_status status = obtain_segment(server, &fields[0], (size_t)fields[1].number, make, &entry);
    if (status != SHOAL_OK) {
        connection_fail(connection, status);
        return;
    }
    connection_answer(connection, SHOAL_OK, NULL, 0, entry->fd);
}

static void answer_segment(struct server *server, struct connection *connection, const struct field *fields)
{
    hand_out(server, connection, fields, segment_create_fd);
}

static void answer_sparse(struct server *server, struct connection *connection, const struct field *fields)
{
    hand_out(server, connection, fields, segment_create_sparse_fd);
}

static void answer_drop(struct server *server, struct connection *connection, const struct field *fields)
{
    struct entry *entry = entries_find(&server->segments, fields[0].bytes, fields[0].n_bytes);
    if (entry) {
        entries_remove(&server->segments, entry);
    }
    answer_byte(connection, entry != NULL);
}

static void answer_drop_all(struct server *server, struct connection *connection, const struct field *fields)
{
    entries_remove_all(&server->segments, fields[0].bytes, fields[0].n_bytes);
    answer_byte(connection, fields[0].n_bytes > 0);
}

/* What has failed elsewhere ----------------------------------------------------------------------------- */

/* Takes a failure that another rank reports. That rank does not wait for an answer. */
static void answer_failed(struct server *server, struct connection *connection, const struct field *fields)
{
    shoal_status status = (shoal_status)fields[0].number;
    if (fields[0].number < SHOAL_ERR_INTERNAL || fields[0].number >= SHOAL_OK || fields[1].n_bytes == 0 ||
        fields[1].n_bytes >= CONNECTION_SMALL_BYTES || fields[2].n_bytes >= ERROR_TEXT_BYTES ||
        memchr(fields[1].bytes, '\0', fields[1].n_bytes)) {
        drop(connection);
        return;
    }
    char name[CONNECTION_SMALL_BYTES];
    char text[ERROR_TEXT_BYTES];
    memcpy(name, fields[1].bytes, fields[1].n_bytes);
    name[fields[1].n_bytes] = '\0';
    memcpy(text, fields[2].bytes, fields[2].n_bytes);
    text[fields[2].n_bytes] = '\0';
    if (server->hear) {
        server->hear(server->hear_context, name, status, text[0] ? text : "no reason was given");
    }
    connection->is_over = true;
}

/* Ranks of other hosts ---------------------------------------------------------------------------------- */

static void answer_page(struct server *server, struct connection *connection, const struct field *fields)
{
    if (connection->is_remote || server->page_fd < 0) {
        drop(connection);
        return;
    }
    connection_answer(connection, SHOAL_OK, NULL, 0, server->page_fd);
}

static void answer_watch(struct server *server, struct connection *connection, const struct field *fields)
{
    if (!connection->is_remote || !server->watch || fields[0].number <= server->card.rank ||
        fields[0].number >= server->card.n_ranks) {
        drop(connection);
        return;
    }
    connection_answer(connection, SHOAL_OK, NULL, 0, /*fd=*/-1);
    /* The connection is handed to the watch, which reads and writes there from now on. If the answer has not gone out
       completely, the rest would mix with what the watch writes: then the connection is closed. */
    if (!connection->is_broken && !connection->output &&
        watch_take(server->watch, (int)fields[0].number, connection->fd)) {
        connection->fd = -1;
    }
    connection->is_broken = true;
}

/* The meeting ------------------------------------------------------------------------------------------- */

static void close_meeting_doors(struct server *server)
{
    strangers_close_door(server->strangers, DOOR_MEETING);
    if (server->meeting_listener >= 0) {
        (void)close(server->meeting_listener);
        server->meeting_listener = -1;
    }
}

/* Tells all ranks that have joined the outcome of the meeting, or of the first of its two rounds. */
static void end_meeting(struct server *server)
{
    struct meeting *meeting = server->meeting;
    bool had_cards = meeting->is_second_round;
    bool goes_on = meeting->failure == SHOAL_OK && meeting_begin_second_round(meeting);
    if (meeting->failure == SHOAL_OK && !goes_on) {
        /* Before any rank is told: it may then open the next world under the same name. */
        close_meeting_doors(server);
    }
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        if (connection->joined_rank < 0 || connection->is_broken) {
            continue;
        }
        if (meeting->failure == SHOAL_OK) {
            connection->header.op = REQUEST_READY;
            connection_answer(connection, SHOAL_OK, meeting->cards,
                              had_cards ? 0 : (size_t)meeting->n_ranks * sizeof(struct card_short),
                              /*fd=*/-1);
        } else {
            connection_answer(connection, meeting->failure, meeting->text, strlen(meeting->text), /*fd=*/-1);
        }
        connection->joined_rank = goes_on ? connection->joined_rank : -1;
    }
}

static void fail_by_meeting(struct connection *connection, const struct meeting *meeting)
{
    connection_answer(connection, meeting->failure, meeting->text, strlen(meeting->text), /*fd=*/-1);
}

/* Tells a rank where the page of its host is. */
static void answer_leader(struct server *server, struct connection *connection)
{
    const struct card_short *cards = server->meeting->cards;
    int leader = cards[connection->joined_rank].leader;
    struct card_leader answer = {.token = {cards[leader].token[0], cards[leader].token[1]}, .rank = leader};
    bool is_here = leader == server->card.rank && !connection->is_remote;
    connection_answer(connection, SHOAL_OK, &answer, sizeof answer, is_here ? server->page_fd : -1);
}

static void answer_join(struct server *server, struct connection *connection, const struct field *fields)
{
    struct meeting *meeting = server->meeting;
    struct card card;
    memset(&card, 0, sizeof card);
    /* The beginning of a card is the same in all versions. If the versions differ, nothing else is read. */
    size_t bytes = fields[0].n_bytes < sizeof card ? fields[0].n_bytes : sizeof card;
    memcpy(&card, fields[0].bytes, bytes);
    if (!meeting || connection->joined_rank >= 0 || card.magic != CARD_MAGIC) {
        drop(connection);
        return;
    }
    /* Relaxed: server_linger needs nothing but the number. */
    atomic_fetch_add_explicit(&server->n_joins, 1, memory_order_relaxed);
    wait_wake_all(&server->n_joins, /*is_shared=*/false);
    if (meeting_is_complete(meeting)) {
        connection_fail(
            connection,
            error_set(SHOAL_ERR_STATE,
                      "start-up: all %d ranks of this job have arrived already, and this process is one more",
                      meeting->n_ranks));
        return;
    }
    if (!meeting_come(meeting, &card)) {
        fail_by_meeting(connection, meeting);
        end_meeting(server);
        return;
    }
    connection->joined_rank = card.rank;
    answer_leader(server, connection);
}

static void answer_elsewhere(struct server *server, struct connection *connection, const struct field *fields)
{
    if (connection->joined_rank < 0 || server->meeting->is_second_round ||
        !meeting_may_be_elsewhere(server->meeting, connection->joined_rank, (int)fields[0].number)) {
        drop(connection);
        return;
    }
    if (meeting_is_elsewhere(server->meeting, connection->joined_rank, (int)fields[0].number)) {
        answer_leader(server, connection);
    } else {
        end_meeting(server);
    }
}

/* Copies a text of a peer, cut to `bytes`. */
static void copy_text(const struct field *field, char *text, size_t bytes)
{
    size_t length = field->n_bytes < bytes ? field->n_bytes : bytes - 1;
    (void)snprintf(text, bytes, "%.*s", (int)length, field->bytes);
}

static void answer_ready(struct server *server, struct connection *connection, const struct field *fields)
{
    if (connection->joined_rank < 0) {
        drop(connection);
        return;
    }
    char crossing[CARD_TRANSPORT_BYTES];
    char why[MEETING_WHY_BYTES];
    copy_text(&fields[0], crossing, sizeof crossing);
    copy_text(&fields[1], why, sizeof why);
    bool is_good = meeting_is_ready(server->meeting, connection->joined_rank, crossing, why);
    /* The next request may be read: the rank may still give up. */
    connection_forget_request(connection);
    if (!is_good || meeting_is_complete(server->meeting)) {
        end_meeting(server);
    }
}

static void answer_give_up(struct server *server, struct connection *connection, const struct field *fields)
{
    if (connection->joined_rank < 0 || fields[0].number >= SHOAL_OK || fields[0].number < -1000) {
        drop(connection);
        return;
    }
    char why[ERROR_TEXT_BYTES];
    (void)snprintf(why, sizeof why, "%.*s", (int)(fields[1].n_bytes < sizeof why ? fields[1].n_bytes : 0),
                   fields[1].bytes);
    struct strangers_rejected rejected = strangers_get_rejected(server->strangers);
    char from[ADDRESS_TEXT_BYTES];
    bool is_known = address_is_known(&rejected.from);
    meeting_note_rejected(server->meeting, rejected.count,
                          is_known ? address_host(&rejected.from, from) : "the network", rejected.why);
    meeting_lose(server->meeting, connection->joined_rank, (shoal_status)fields[0].number, why);
    end_meeting(server);
}

void answer_loss(struct server *server, struct connection *connection)
{
    if (connection->joined_rank >= 0) {
        meeting_lose(server->meeting, connection->joined_rank, SHOAL_ERR_PEER,
                     "exited or closed its connection");
        end_meeting(server);
    }
}

/* All of them ------------------------------------------------------------------------------------------- */

static const struct {
    const char *fields;
    void (*answer)(struct server *server, struct connection *connection, const struct field *fields);
} rows[] = {
#define REQUEST(name, function, row_fields, doc) {.fields = row_fields, .answer = answer_##function},
#include "bootstrap/net/requests.def"
#undef REQUEST
};

void answer_request(struct server *server, struct connection *connection)
{
    struct field fields[FIELDS_MAX];
    uint32_t op = connection->header.op;
    if (op >= REQUEST_COUNT || !parse_fields(rows[op].fields, connection, fields)) {
        drop(connection);
        return;
    }
    rows[op].answer(server, connection, fields);
}
