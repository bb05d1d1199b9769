/* SPDX-License-Identifier: MIT */
/* Purposes as ranks compare them, and as errors name them. */
#include "transport/purpose.h"

#include <inttypes.h>
#include <string.h>

#include "base/text.h"

_Static_assert(sizeof(struct purpose_key) == 16, "compared as bytes: no padding");

struct purpose_row {
    const char *text;
    const char *arguments;
    const char *hint;
};

static const struct purpose_row rows[PURPOSE_COUNT] = {
    [PURPOSE_NONE] = {.text = "", .arguments = "", .hint = ""},
#define PURPOSE(name, text_, arguments_, hint_) \
    [PURPOSE_##name] = {.text = text_, .arguments = arguments_, .hint = hint_},
#include "transport/purposes.def"
#undef PURPOSE
};

/* Taking ------------------------------------------------------------------------------------------------- */

static uint64_t rotate(uint64_t word, unsigned bits)
{
    return word << bits | word >> (64 - bits);
}

static uint64_t mix(uint64_t word)
{
    word = (word ^ word >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ word >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return word ^ word >> 32;
}

/* Two chains that take each number in different ways and feed each other: 128 bits that differ for lists that do. */
void purpose_hash(const void *data, size_t bytes, int64_t hash_out[2])
{
    uint64_t a = UINT64_C(0x243f6a8885a308d3);
    uint64_t b = UINT64_C(0x13198a2e03707344);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)data + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        a = rotate(a ^ mix(word), 27) * UINT64_C(0x9fb21c651e98df25) + b;
        b = rotate(b ^ mix(word + UINT64_C(0xa0761d6478bd642f)), 31) * UINT64_C(0xe7037ed1a0b428db) + a;
    }
    hash_out[0] = (int64_t)mix(a + bytes);
    hash_out[1] = (int64_t)mix(b ^ rotate(a, 32));
}

struct purpose_key purpose_take(const struct purpose *purpose, int64_t *details)
{
    if (!purpose) {
        return (struct purpose_key){.id = PURPOSE_NONE};
    }
    struct purpose_key key = {.id = (uint16_t)purpose->id,
                              .root = purpose->root,
                              .unit = purpose->unit,
                              .argument = purpose->argument};
    if (purpose->n_details <= PURPOSE_DETAILS) {
        key.n_details = (uint16_t)purpose->n_details;
        if (purpose->n_details > 0) {
            memcpy(details, purpose->details, purpose->n_details * sizeof *details);
        }
        return key;
    }
    key.n_details = PURPOSE_HASHED;
    purpose_hash(purpose->details, purpose->n_details * sizeof *details, details);
    details[2] = (int64_t)purpose->n_details;
    return key;
}

/* Words -------------------------------------------------------------------------------------------------- */

static void append_list(struct text *line, const int64_t *numbers, size_t n)
{
    text_add(line, "[");
    for (size_t i = 0; i < n; i++) {
        text_add(line, "%s%" PRId64, i > 0 ? "," : "", numbers[i]);
    }
    text_add(line, "]");
}

/* The numbers of the item that begins at `at`, header included; 0 if it does not fit into `n`. */
static size_t item_length(const int64_t *details, size_t n, size_t at)
{
    int64_t header = details[at];
    size_t left = n - at;
    if (header == DETAIL_NUMBER || header == DETAIL_REAL) {
        return left >= 2 ? 2 : 0;
    }
    if (header == DETAIL_SET) {
        bool fits = left >= 2 && details[at + 1] >= 0 && (uint64_t)details[at + 1] <= left - 2;
        return fits ? 2 + (size_t)details[at + 1] : 0;
    }
    return header >= 0 && (uint64_t)header < left ? 1 + (size_t)header : 0;
}

static void append_item(struct text *line, const int64_t *item)
{
    double real;
    if (item[0] == DETAIL_NUMBER) {
        text_add(line, "%" PRId64, item[1]);
    } else if (item[0] == DETAIL_REAL) {
        memcpy(&real, &item[1], sizeof real);
        text_add(line, "%.17g", real);
    } else {
        append_list(line, item + 1, (size_t)item[0]);
    }
}

/* The next of several names; returns what follows it. */
static const char *append_name(struct text *line, const char *names)
{
    size_t length = strcspn(names, " ");
    text_add(line, "%.*s%s", (int)length, names, length > 0 ? " " : "");
    return names + length + (names[length] == ' ');
}

/* In brackets that begin with `open`. */
static void append_details(struct text *line, const char *open, const char *names, const int64_t *details,
                           size_t n)
{
    const char *between = open;
    for (size_t at = 0; at < n;) {
        size_t length = item_length(details, n, at);
        if (length == 0) {
            break;
        }
        if (details[at] != DETAIL_SET) {
            text_add(line, "%s", between);
            names = append_name(line, names);
            append_item(line, details + at);
            between = ", ";
        }
        at += length;
    }
    text_add(line, "%s", between == open ? "" : ")");
}

/* What roots count: plans, models that shoal_ddp wrapped, or contexts and calls of shoal_fully_shard, of which a model
   may have many. A call that belongs to none of them has no root: nothing is said, also if the call of another rank
   has one. */
static void append_root(struct text *line, const struct purpose_key *key)
{
    if (key->root == 0) {
        return;
    }
    if (key->id == PURPOSE_PLAN || key->id == PURPOSE_PLAN_COMPARE) {
        text_add(line, " (plan %" PRIu32 " of this group)", key->root);
    } else if (key->id >= PURPOSE_DDP_WRAP && key->id <= PURPOSE_DDP_BUFFERS) {
        text_add(line, " (model %" PRIu32 " of this group)", key->root);
    } else {
        text_add(line, " (sharded as number %" PRIu32 " on this group)", key->root);
    }
}

void purpose_describe(const struct purpose_key *key, const int64_t *details, const char *words,
                      bool is_root_told, char *text, size_t text_bytes)
{
    struct text line = text_begin(text, text_bytes);
    if (key->id == PURPOSE_NONE) {
        return;
    }
    const char *begin = key->id < PURPOSE_COUNT ? rows[key->id].text : "an unknown call";
    text_add(&line, "%s%s%s", begin, begin[0] != '\0' && words[0] != '\0' ? " " : "", words);
    if (key->n_details == PURPOSE_HASHED) {
        text_add(&line, " (%" PRId64 " numbers)", details[2]);
    } else if (key->n_details <= PURPOSE_DETAILS) {
        const char *names = key->id < PURPOSE_COUNT ? rows[key->id].arguments : "";
        /* Behind a sentence, or as the arguments of a function. */
        append_details(&line, begin[0] != '\0' ? " (" : "(", names, details, key->n_details);
    }
    if (is_root_told) {
        append_root(&line, key);
    }
}

const char *purpose_text(unsigned id)
{
    return id < PURPOSE_COUNT ? rows[id].text : "";
}

const char *purpose_hint(unsigned id)
{
    return id < PURPOSE_COUNT ? rows[id].hint : "";
}
