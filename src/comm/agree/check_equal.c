/* SPDX-License-Identifier: MIT */
/*
 * shoal_group_check_equal: ranks compare a setting of the program.
 *
 * Every member sends a record of one size, whatever its arguments are, so that members with other names or sizes, and
 * those whose arguments are wrong, meet in the same all_gather. All members then see the same records, and come to the
 * same result without another meeting. The all_gather has a purpose, so it mismatches every other call.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/callback.h"
#include "base/error.h"
#include "base/rank_list.h"
#include "base/text.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "comm/call/collectives.h"
#include "comm/group/group.h"
#include "comm/group/world.h"
#include "shoal/group.h"

enum {
    NAME_MAX_BYTES = 64,
    VALUE_MAX_BYTES = 1024,
    SHOWN_BYTES = 16, /* of a value in an error text */
    SHOWN_TEXT = 120, /* characters of a value that is a text */
    TEXT_BYTES = 160, /* of one value, and the ranks that have it */
    FEW_RECORDS = 16, /* are kept on the stack */
    MAX_VALUES = 8    /* different ones that an error text names */
};

enum kind {
    KIND_WRONG = 1, /* the rank's arguments are wrong: the value is the reason, as a string */
    KIND_BYTES = 2,
    KIND_INTEGER = 3,
    KIND_REAL = 4
};

/* What each member sends. What a value does not use is zero. */
struct record {
    uint32_t kind;
    uint32_t bytes;
    char name[NAME_MAX_BYTES + 8]; /* ends with a 0 */
    unsigned char value[VALUE_MAX_BYTES];
};

/* This rank's record ----------------------------------------------------------------------------------- */

static shoal_status check_arguments(const char *name, const void *value, size_t bytes)
{
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "name is NULL");
    }
    size_t length = strnlen(name, NAME_MAX_BYTES + 1);
    if (length == 0 || length > NAME_MAX_BYTES) {
        return error_set(SHOAL_ERR_INVALID, "name \"%.*s\" has %s bytes, 1 to %d expected", NAME_MAX_BYTES,
                         name, length == 0 ? "0" : "more", NAME_MAX_BYTES);
    }
    if (bytes == 0 || bytes > VALUE_MAX_BYTES) {
        return error_set(SHOAL_ERR_INVALID, "%s: bytes is %zu, 1 to %d expected", name, bytes,
                         VALUE_MAX_BYTES);
    }
    return value ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "%s: value is NULL", name);
}

static void fill(struct record *record, enum kind kind, const char *name, const void *value, size_t bytes)
{
    memset(record, 0, sizeof *record);
    if (check_arguments(name, value, bytes) != SHOAL_OK) {
        record->kind = KIND_WRONG;
        (void)snprintf((char *)record->value, sizeof record->value, "%s", shoal_error_text());
        error_clear();
        return;
    }
    record->kind = (uint32_t)kind;
    record->bytes = (uint32_t)bytes;
    (void)snprintf(record->name, sizeof record->name, "%s", name);
    memcpy(record->value, value, bytes);
}

/* Texts ------------------------------------------------------------------------------------------------ */

/* With as many digits as the number needs to be read back. */
static void write_real(struct text *text, const unsigned char *bytes)
{
    char digits[32];
    double value;
    uint64_t bits;
    memcpy(&value, bytes, sizeof value);
    memcpy(&bits, bytes, sizeof bits);
    for (int precision = 6; precision <= 17; precision++) {
        (void)snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    text_add(text, "%s", digits);
    if (value != value) {
        text_add(text, " (0x%016" PRIx64 ")", bits); /* there are many, which look alike */
    }
}

/* Whether the bytes are printable characters, and zeros behind them. */
static bool is_text(const struct record *record)
{
    size_t length = strnlen((const char *)record->value, record->bytes);
    bool is_printable = record->kind == KIND_BYTES && length > 0;
    for (size_t i = 0; i < record->bytes; i++) {
        is_printable = is_printable && (i < length ? record->value[i] >= 0x20 && record->value[i] < 0x7f
                                                   : record->value[i] == 0);
    }
    return is_printable;
}

static void write_bytes(struct text *text, const struct record *record, size_t first)
{
    if (is_text(record)) {
        text_add(text, "\"%.*s\"", (int)(record->bytes < SHOWN_TEXT ? record->bytes : SHOWN_TEXT),
                 (const char *)record->value);
        return;
    }
    size_t end = first + SHOWN_BYTES < record->bytes ? first + SHOWN_BYTES : record->bytes;
    text_add(text, "0x");
    for (size_t i = first; i < end; i++) {
        text_add(text, "%02x", record->value[i]);
    }
    text_add(text, end < record->bytes ? "..." : "");
}

/* `first`: of bytes, the first one to show. */
static void write_value(struct text *text, const struct record *record, size_t first)
{
    int64_t integer;
    switch (record->kind) {
    case KIND_INTEGER:
        memcpy(&integer, record->value, sizeof integer);
        text_add(text, "%" PRId64, integer);
        break;
    case KIND_REAL:
        write_real(text, record->value);
        break;
    default:
        write_bytes(text, record, first);
        break;
    }
}

static void write_subject(struct text *text, const struct record *record, size_t first)
{
    (void)first;
    text_add(text, "%s ", record->name);
    switch (record->kind) {
    case KIND_INTEGER:
        text_add(text, "(an integer)");
        break;
    case KIND_REAL:
        text_add(text, "(a real number)");
        break;
    default:
        text_add(text, "(%" PRIu32 " bytes)", record->bytes);
        break;
    }
}

/* Comparing -------------------------------------------------------------------------------------------- */

static bool has_same_subject(const struct record *a, const struct record *b)
{
    return a->kind == b->kind && a->bytes == b->bytes && strcmp(a->name, b->name) == 0;
}

static bool has_same_value(const struct record *a, const struct record *b)
{
    return memcmp(a->value, b->value, sizeof a->value) == 0;
}

/* One of the two things that records are compared by. */
struct aspect {
    bool (*is_same)(const struct record *a, const struct record *b);
    void (*write)(struct text *text, const struct record *record, size_t first);
};

static const struct aspect of_subject = {has_same_subject, write_subject};
static const struct aspect of_value = {has_same_value, write_value};

struct like {
    const struct shoal_group *group;
    const struct record *records;
    const struct aspect *aspect;
    int model;
};

static bool is_like(void *context, int world_rank)
{
    const struct like *like = context;
    int rank = shoal_group_rank_of(like->group, world_rank);
    return rank >= 0 && like->aspect->is_same(&like->records[rank], &like->records[like->model]);
}

/* Whether no earlier rank has the same. */
static bool is_new(const struct like *like)
{
    for (int i = 0; i < like->model; i++) {
        if (like->aspect->is_same(&like->records[i], &like->records[like->model])) {
            return false;
        }
    }
    return true;
}

/* "0.1 on rank 0, 0.2 on ranks 1 and 2" */
static void write_differences(struct text *text, const struct shoal_group *group,
                              const struct record *records, const struct aspect *aspect, size_t first)
{
    struct like like = {.group = group, .records = records, .aspect = aspect};
    int n_values = 0;
    for (int i = 0; i < group->peers.n_ranks && n_values < MAX_VALUES; i++) {
        char ranks[RANK_LIST_BYTES];
        char string[TEXT_BYTES + RANK_LIST_BYTES];
        struct text item = text_begin(string, sizeof string);
        like.model = i;
        if (!is_new(&like)) {
            continue;
        }
        (void)rank_list_write(ranks, group->world->n_ranks, is_like, &like);
        aspect->write(&item, &records[i], first);
        text_add(&item, " on %s", ranks);
        text_add_name(text, n_values == 0 ? "" : ", ", string);
        n_values++;
    }
}

static bool all_same(const struct record *records, int n_ranks, const struct aspect *aspect)
{
    for (int i = 1; i < n_ranks; i++) {
        if (!aspect->is_same(&records[0], &records[i])) {
            return false;
        }
    }
    return true;
}

/* The first byte that is not the same on all ranks, or 0 if it would be shown anyway. */
static size_t find_difference(const struct record *records, int n_ranks)
{
    size_t first = VALUE_MAX_BYTES;
    for (int i = 1; i < n_ranks; i++) {
        size_t k = 0;
        while (k < first && records[0].value[k] == records[i].value[k]) {
            k++;
        }
        first = k;
    }
    return first < SHOWN_BYTES ? 0 : first;
}

static shoal_status fail_different(const struct shoal_group *group, const struct record *records,
                                   const struct aspect *aspect)
{
    char string[ERROR_TEXT_BYTES - 64]; /* the group has room behind it */
    struct text text = text_begin(string, sizeof string);
    size_t first = 0;
    if (aspect == &of_subject) {
        text_add(&text, "check_equal: ranks compare different settings: ");
    } else {
        first = is_text(&records[0]) ? 0 : find_difference(records, group->peers.n_ranks);
        text_add(&text, "%s is not the same on all ranks", records[0].name);
        if (first > 0) {
            text_add(&text, ", from byte %zu on", first);
        }
        text_add(&text, ": ");
    }
    write_differences(&text, group, records, aspect, first);
    if (group->part.is_world) {
        return error_set(SHOAL_ERR_INVALID, "%s", string);
    }
    return error_set(SHOAL_ERR_INVALID, "%s, on group %s", string, group->name);
}

static shoal_status compare(const struct shoal_group *group, struct record *records)
{
    int n_ranks = group->peers.n_ranks;
    for (int i = 0; i < n_ranks; i++) {
        if (records[i].kind == KIND_WRONG) {
            return error_set(SHOAL_ERR_INVALID, "check_equal: rank %d: %.*s", group->ranks[i],
                             VALUE_MAX_BYTES, (const char *)records[i].value);
        }
        /* Peers have sent them: what is used below must hold. */
        records[i].name[NAME_MAX_BYTES] = '\0';
        records[i].bytes = records[i].bytes <= VALUE_MAX_BYTES ? records[i].bytes : VALUE_MAX_BYTES;
    }
    if (!all_same(records, n_ranks, &of_subject)) {
        return fail_different(group, records, &of_subject);
    }
    return all_same(records, n_ranks, &of_value) ? SHOAL_OK : fail_different(group, records, &of_value);
}

/* Meeting ---------------------------------------------------------------------------------------------- */

static shoal_status meet(struct shoal_group *group, const struct purpose *purpose, const struct record *mine)
{
    struct record few[FEW_RECORDS];
    struct agreement agreement = agreement_on(group);
    struct agree_records records;
    if (!group_has_peers(group)) {
        TRY(collectives_barrier(group, purpose));
        return mine->kind == KIND_WRONG
                   ? error_set(SHOAL_ERR_INVALID, "check_equal: %s", (const char *)mine->value)
                   : SHOAL_OK;
    }
    agreement.purpose = purpose;
    shoal_status status =
        agree_gather(&agreement, mine, sizeof *mine, (struct agree_room){few, sizeof few}, &records);
    if (status == SHOAL_OK) {
        status = compare(group, records.all);
    }
    agree_free_records(&records);
    return status;
}

static shoal_status check_equal(struct shoal_group *group, enum kind kind, const char *name,
                                const void *given, size_t bytes)
{
    struct record mine;
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "check_equal: group is NULL");
    }
    TRY(group_check_open(group));
    TRY(callback_check("check_equal"));
    fill(&mine, kind, name, given, bytes);
    const struct purpose purpose = {.id = PURPOSE_CHECK_EQUAL, .words = mine.name};
    return meet(group, &purpose, &mine);
}

shoal_status shoal_group_check_equal(shoal_group *group, const char *name, const void *value, size_t bytes)
{
    return check_equal(group, KIND_BYTES, name, value, bytes);
}

shoal_status shoal_group_check_equal_integer(shoal_group *group, const char *name, int64_t value)
{
    return check_equal(group, KIND_INTEGER, name, &value, sizeof value);
}

shoal_status shoal_group_check_equal_real(shoal_group *group, const char *name, double value)
{
    return check_equal(group, KIND_REAL, name, &value, sizeof value);
}
