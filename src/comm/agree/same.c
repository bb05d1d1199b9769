/* SPDX-License-Identifier: MIT */
/*
 * Values that must be the same on all ranks: see agree.h. Bytes are compared with the first rank's, not by hashes, which
 * may collide.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "comm/agree/agree.h"

/* The longest quote of a string in an error. */
#define STRING_BYTES 160

/* How many bytes are compared at a time. */
#define PORTION_BYTES ((size_t)8192)

/* Bytes --------------------------------------------------------------------------------------------------- */

/* Counts the bytes before the first difference. */
static size_t count_same(const char *own, const char *first, size_t n)
{
    size_t i = 0;
    while (i < n && own[i] == first[i]) {
        i++;
    }
    return i;
}

shoal_status agree_compare(const struct agreement *agreement, const void *data, size_t bytes, size_t *at_out)
{
    char portion[PORTION_BYTES] = "";
    const char *own = data;
    uint64_t first_bytes = bytes;
    size_t n_same = 0;
    TRY(agree_send(agreement, &first_bytes, sizeof first_bytes, 0));
    for (size_t at = 0; at < first_bytes; at += PORTION_BYTES) {
        size_t count = first_bytes - at < PORTION_BYTES ? (size_t)first_bytes - at : PORTION_BYTES;
        size_t own_count = at < bytes ? bytes - at : 0;
        own_count = own_count < count ? own_count : count;
        if (own_count > 0) { /* not only on the first rank: without peers, ranks compare with themselves */
            memcpy(portion, own + at, own_count);
        }
        TRY(agree_send(agreement, portion, count, 0));
        if (n_same == at) {
            n_same += own_count > 0 ? count_same(own + at, portion, own_count) : 0;
        }
    }
    *at_out = n_same == first_bytes && bytes == first_bytes ? AGREE_SAME : n_same;
    return SHOAL_OK;
}

/* Finds the first rank whose bytes differ from the first rank's; -1 if there is none. */
static shoal_status find_other(const struct agreement *agreement, const void *data, size_t bytes,
                               int *rank_out)
{
    size_t at;
    struct agree_first other;
    TRY(agree_compare(agreement, data, bytes, &at));
    TRY(agree_find_first(agreement, at == AGREE_SAME ? AGREE_NO_KEY : 0, &other));
    *rank_out = other.rank;
    return SHOAL_OK;
}

shoal_status agree_on(shoal_group *group, const char *what, const void *data, size_t bytes)
{
    const struct agreement agreement = agreement_on(group);
    int other;
    TRY(find_other(&agreement, data, bytes, &other));
    return other < 0 ? SHOAL_OK
                     : error_set(SHOAL_ERR_MISMATCH, "%s: rank %d has another one than rank 0", what, other);
}

/* Values -------------------------------------------------------------------------------------------------- */

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
    const struct agreement agreement = agreement_on(group);
    int64_t first[AGREE_MAX_NUMBERS] = {0};
    struct agree_first other;
    if (n_numbers > AGREE_MAX_NUMBERS) {
        return error_set(SHOAL_ERR_INTERNAL, "%zu numbers to compare", n_numbers);
    }
    for (size_t i = 0; i < n_numbers; i++) {
        first[i] = numbers[i].value;
    }
    TRY(agree_send(&agreement, first, n_numbers * sizeof first[0], 0));
    size_t number = find_difference(numbers, first, n_numbers);
    TRY(agree_find_first(&agreement, number < n_numbers ? 0 : AGREE_NO_KEY, &other));
    if (other.rank < 0) {
        return SHOAL_OK;
    }
    int64_t difference[2] = {(int64_t)number, number < n_numbers ? numbers[number].value : 0};
    TRY(agree_send(&agreement, difference, sizeof difference, other.rank));
    number = (size_t)difference[0];
    return error_set(SHOAL_ERR_MISMATCH, "%s is %" PRId64 " on rank 0, but %" PRId64 " on rank %d",
                     numbers[number].name, first[number], difference[1], other.rank);
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
    const struct agreement agreement = agreement_on(group);
    int other;
    char first_text[STRING_BYTES] = "";
    char other_text[STRING_BYTES] = "";
    TRY(find_other(&agreement, value, value ? strlen(value) + 1 : 0, &other));
    if (other < 0) {
        return SHOAL_OK;
    }
    quote(first_text, value);
    quote(other_text, value);
    TRY(agree_send(&agreement, first_text, sizeof first_text, 0));
    TRY(agree_send(&agreement, other_text, sizeof other_text, other));
    return error_set(SHOAL_ERR_MISMATCH, "%s is %s on rank 0, but %s on rank %d", name, first_text,
                     other_text, other);
}
