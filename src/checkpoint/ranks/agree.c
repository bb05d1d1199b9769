/* SPDX-License-Identifier: MIT */
/*
 * How ranks end a phase together: see agree.h.
 *
 * One small all_reduce (minimum) finds the first rank that failed, and compares the names of the phases character by
 * character. Bytes that must be the same are compared with the first rank's, not by hashes, which may collide. Neither
 * allocates memory, which could be missing on one rank only. Texts are sent only if something is wrong.
 */
#include "checkpoint/ranks/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

#define WHAT_BYTES 64
#define WHAT_NUMBERS (WHAT_BYTES / sizeof(int64_t))

/* The longest quote of a string in an error. */
#define STRING_BYTES 160

/* How many bytes are compared at a time. */
#define PORTION_BYTES ((size_t)8192)

static shoal_status find_minimum(shoal_group *group, int64_t *numbers, size_t n_numbers)
{
    return shoal_group_all_reduce(group, numbers, numbers, n_numbers, SHOAL_I64, SHOAL_MIN);
}

/* Reverses the order of numbers: the minimum of these gives the maximum. */
static int64_t turned(int64_t number)
{
    return ~number;
}

/* Phases ----------------------------------------------------------------------------------------------- */

/* Ranks are in different phases: the error names the first rank that differs from rank 0, and both phases. */
static shoal_status name_difference(shoal_group *group, const char *phase)
{
    char first[WHAT_BYTES] = "";
    char other[WHAT_BYTES] = "";
    (void)snprintf(first, sizeof first, "%s", phase);
    TRY(shoal_group_broadcast(group, first, sizeof first, SHOAL_U8, 0));
    (void)snprintf(other, sizeof other, "%s", phase);
    int64_t differs = strcmp(first, other) != 0 ? shoal_group_rank(group) : INT64_MAX;
    TRY(find_minimum(group, &differs, 1));
    if (differs == INT64_MAX) {
        return error_set(SHOAL_ERR_INTERNAL, "ranks differ, but all of them do \"%s\"", first);
    }
    TRY(shoal_group_broadcast(group, other, sizeof other, SHOAL_U8, (int)differs));
    return error_set(SHOAL_ERR_MISMATCH,
                     "ranks made different calls: rank 0 does \"%s\", but rank %" PRId64 " does \"%s\"",
                     first, differs, other);
}

struct failure {
    int64_t status;
    char text[ERROR_TEXT_BYTES];
};

/* The first failed rank, or INT64_MAX, and whether all ranks are in this phase. */
static shoal_status meet(shoal_group *group, const char *phase, bool has_failed, int64_t *failed_out,
                         bool *is_same_out)
{
    int64_t name[WHAT_NUMBERS] = {0}; /* its characters */
    int64_t numbers[1 + 2 * WHAT_NUMBERS];
    (void)snprintf((char *)name, sizeof name, "%s", phase);
    numbers[0] = has_failed ? shoal_group_rank(group) : INT64_MAX;
    for (size_t i = 0; i < WHAT_NUMBERS; i++) {
        numbers[1 + i] = name[i];
        numbers[1 + WHAT_NUMBERS + i] = turned(name[i]);
    }
    TRY(find_minimum(group, numbers, sizeof numbers / sizeof numbers[0]));
    *failed_out = numbers[0];
    *is_same_out = true;
    for (size_t i = 0; i < WHAT_NUMBERS; i++) {
        *is_same_out = *is_same_out && numbers[1 + i] == turned(numbers[1 + WHAT_NUMBERS + i]);
    }
    return SHOAL_OK;
}

static shoal_status compare(shoal_group *group, const char *phase, struct failure *own)
{
    int64_t failed = INT64_MAX;
    bool is_same = false;
    shoal_status status = meet(group, phase, own->status != SHOAL_OK, &failed, &is_same);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", phase);
    }
    if (failed == INT64_MAX) {
        return is_same ? SHOAL_OK : name_difference(group, phase);
    }
    struct failure first = *own;
    TRY(shoal_group_broadcast(group, &first, sizeof first, SHOAL_U8, (int)failed));
    first.text[sizeof first.text - 1] = '\0';
    return error_set((shoal_status)first.status, "rank %" PRId64 ": %s", failed, first.text);
}

shoal_status agree(shoal_group *group, const char *phase, shoal_status status)
{
    struct failure own = {.status = status};
    if (status != SHOAL_OK) {
        (void)snprintf(own.text, sizeof own.text, "%s", shoal_error_text());
        if (own.text[0] == '\0') {
            (void)snprintf(own.text, sizeof own.text, "%s failed with %s", phase, shoal_status_name(status));
        }
    }
    shoal_status agreed = compare(group, phase, &own);
    return status == SHOAL_OK ? agreed : error_set(status, "%s", own.text);
}

/* Bytes ------------------------------------------------------------------------------------------------ */

/* Whether this rank's bytes are the first rank's, of which there are `first_bytes`. */
static shoal_status compare_bytes(shoal_group *group, const char *data, size_t bytes, size_t first_bytes,
                                  bool *is_same_out)
{
    char portion[PORTION_BYTES];
    *is_same_out = bytes == first_bytes;
    for (size_t at = 0; at < first_bytes; at += PORTION_BYTES) {
        size_t count = first_bytes - at < PORTION_BYTES ? first_bytes - at : PORTION_BYTES;
        if (shoal_group_rank(group) == 0) {
            memcpy(portion, data + at, count);
        }
        TRY(shoal_group_broadcast(group, portion, count, SHOAL_U8, 0));
        *is_same_out = *is_same_out && memcmp(portion, data + at, count) == 0;
    }
    return SHOAL_OK;
}

/* The first rank whose bytes differ from the first rank's; INT64_MAX: none. */
static shoal_status find_other(shoal_group *group, const void *data, size_t bytes, int64_t *rank_out)
{
    uint64_t first_bytes = bytes;
    bool is_same = false;
    TRY(shoal_group_broadcast(group, &first_bytes, 1, SHOAL_U64, 0));
    TRY(compare_bytes(group, data, bytes, (size_t)first_bytes, &is_same));
    *rank_out = is_same ? INT64_MAX : shoal_group_rank(group);
    return find_minimum(group, rank_out, 1);
}

shoal_status agree_on(shoal_group *group, const char *what, const void *data, size_t bytes)
{
    int64_t other;
    TRY(find_other(group, data, bytes, &other));
    return other == INT64_MAX ? SHOAL_OK
                              : error_set(SHOAL_ERR_MISMATCH,
                                          "%s: rank %" PRId64 " has another one than rank 0", what, other);
}

/* Values ----------------------------------------------------------------------------------------------- */

static size_t find_difference(const struct agree_number *numbers, const int64_t *first, size_t n_numbers)
{
    size_t i = 0;
    while (i < n_numbers && numbers[i].value == first[i]) {
        i++;
    }
    return i;
}

shoal_status agree_on_numbers(shoal_group *group, const struct agree_number *numbers, size_t n_numbers)
{
    int64_t first[AGREE_MAX_NUMBERS] = {0};
    if (n_numbers > AGREE_MAX_NUMBERS) {
        return error_set(SHOAL_ERR_INTERNAL, "%zu numbers to compare", n_numbers);
    }
    for (size_t i = 0; i < n_numbers; i++) {
        first[i] = numbers[i].value;
    }
    TRY(shoal_group_broadcast(group, first, n_numbers, SHOAL_I64, 0));
    size_t number = find_difference(numbers, first, n_numbers);
    int64_t other = number < n_numbers ? shoal_group_rank(group) : INT64_MAX;
    TRY(find_minimum(group, &other, 1));
    if (other == INT64_MAX) {
        return SHOAL_OK;
    }
    int64_t difference[2] = {(int64_t)number, number < n_numbers ? numbers[number].value : 0};
    TRY(shoal_group_broadcast(group, difference, 2, SHOAL_I64, (int)other));
    number = (size_t)difference[0];
    return error_set(SHOAL_ERR_MISMATCH, "%s is %" PRId64 " on rank 0, but %" PRId64 " on rank %" PRId64,
                     numbers[number].name, first[number], difference[1], other);
}

/* Of a long string the end is quoted, because paths often begin alike. */
static void quote(char text[STRING_BYTES], const char *value)
{
    const size_t most = STRING_BYTES - sizeof("\"...\"");
    size_t length = value ? strlen(value) : 0;
    bool is_cut = length > most;
    if (!value) {
        (void)snprintf(text, STRING_BYTES, "NULL");
        return;
    }
    (void)snprintf(text, STRING_BYTES, "\"%s%s\"", is_cut ? "..." : "",
                   is_cut ? value + (length - most) : value);
}

shoal_status agree_on_string(shoal_group *group, const char *name, const char *value)
{
    int64_t other;
    char first_text[STRING_BYTES] = "";
    char other_text[STRING_BYTES] = "";
    TRY(find_other(group, value, value ? strlen(value) + 1 : 0, &other));
    if (other == INT64_MAX) {
        return SHOAL_OK;
    }
    quote(first_text, value);
    quote(other_text, value);
    TRY(shoal_group_broadcast(group, first_text, sizeof first_text, SHOAL_U8, 0));
    TRY(shoal_group_broadcast(group, other_text, sizeof other_text, SHOAL_U8, (int)other));
    return error_set(SHOAL_ERR_MISMATCH, "%s is %s on rank 0, but %s on rank %" PRId64, name, first_text,
                     other_text, other);
}

/* Sending ---------------------------------------------------------------------------------------------- */

shoal_status agree_receive(shoal_group *group, const void *data, size_t bytes, void **data_out,
                           size_t *bytes_out)
{
    bool is_first = shoal_group_rank(group) == 0;
    uint64_t count = is_first ? bytes : 0;
    TRY(shoal_group_broadcast(group, &count, 1, SHOAL_U64, 0));
    char *received = mem_alloc(count > 0 ? (size_t)count : 1);
    shoal_status status =
        agree(group, "memory for what the first rank sends", received ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    if (status == SHOAL_OK && count > 0) {
        if (is_first) {
            memcpy(received, data, bytes);
        }
        status = shoal_group_broadcast(group, received, (size_t)count, SHOAL_U8, 0);
    }
    if (status != SHOAL_OK) {
        mem_free(received);
        return status;
    }
    *data_out = received;
    *bytes_out = (size_t)count;
    return SHOAL_OK;
}

/* Collecting ------------------------------------------------------------------------------------------- */

struct collection {
    uint64_t *offsets; /* n_ranks + 1; before they are summed: sizes from the second on */
    size_t *counts;
    char *data; /* NULL: this rank gets nothing */
};

static shoal_status exchange_sizes(shoal_group *group, size_t bytes, struct collection *collection)
{
    size_t n_ranks = (size_t)shoal_group_n_ranks(group);
    uint64_t size = bytes;
    collection->offsets = mem_alloc_zeroed(n_ranks + 1, sizeof(collection->offsets[0]));
    collection->counts = mem_alloc_zeroed(n_ranks, sizeof(collection->counts[0]));
    bool has_memory = collection->offsets && collection->counts;
    TRY(agree(group, "memory for sizes of all ranks", has_memory ? SHOAL_OK : SHOAL_ERR_NO_MEMORY));
    uint64_t *offsets = collection->offsets;
    TRY(shoal_group_all_gather(group, &size, offsets + 1, 1, SHOAL_U64));
    for (size_t rank = 0; rank < n_ranks; rank++) {
        collection->counts[rank] = (size_t)offsets[rank + 1];
        offsets[rank + 1] += offsets[rank];
    }
    return SHOAL_OK;
}

static shoal_status collect(shoal_group *group, const void *data, size_t bytes, bool only_first,
                            struct collection *collection)
{
    TRY(exchange_sizes(group, bytes, collection));
    size_t total = (size_t)collection->offsets[shoal_group_n_ranks(group)];
    bool is_receiver = !only_first || shoal_group_rank(group) == 0;
    if (is_receiver) {
        collection->data = mem_alloc(total > 0 ? total : 1);
    }
    bool has_memory = !is_receiver || collection->data;
    TRY(agree(group, "memory for what all ranks send", has_memory ? SHOAL_OK : SHOAL_ERR_NO_MEMORY));
    if (total == 0) {
        return SHOAL_OK;
    }
    return only_first ? shoal_group_gather_v(group, data, collection->data, collection->counts, SHOAL_U8, 0)
                      : shoal_group_all_gather_v(group, data, collection->data, collection->counts, SHOAL_U8);
}

shoal_status agree_collect(shoal_group *group, const void *data, size_t bytes, bool only_first,
                           char **data_out, uint64_t **offsets_out)
{
    struct collection collection = {0};
    shoal_status status = collect(group, data, bytes, only_first, &collection);
    mem_free(collection.counts);
    if (status != SHOAL_OK) {
        mem_free(collection.data);
        mem_free(collection.offsets);
        return status;
    }
    *data_out = collection.data;
    *offsets_out = collection.offsets;
    if (!collection.data) {
        mem_free(collection.offsets);
        *offsets_out = NULL;
    }
    return SHOAL_OK;
}
