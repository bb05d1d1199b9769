/* SPDX-License-Identifier: MIT */
/* Taking fingerprints of calls, and saying how two calls differ. */
#include "transport/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "device/device.h"
#include "transport/blocks.h"
#include "transport/transport.h"

/* Taking ----------------------------------------------------------------------------------------------- */

/* FNV-1a over words; detects differences, no more is asked of it. */
static uint64_t hash_word(uint64_t hash, uint64_t word)
{
    for (int i = 0; i < 8; i++) {
        hash = (hash ^ ((word >> (8 * i)) & 0xff)) * UINT64_C(0x100000001b3);
    }
    return hash;
}

uint64_t fingerprint_hash(const struct collective *collective, int n_ranks)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    if (collective->kind == COLLECTIVE_WINDOW_GATHER) {
        return hash_word(hash_word(hash, collective->window->id), collective->generation);
    }
    /* all_to_all_v differs between ranks; its counts are compared one by one where they meet. */
    if (collective->send_counts && collective->kind != COLLECTIVE_ALL_TO_ALL) {
        for (int i = 0; i < n_ranks; i++) {
            hash = hash_word(hash, collective->send_counts[i]);
        }
        return hash;
    }
    if (collective->n_pieces > 1) {
        for (size_t i = 0; i < collective->n_pieces; i++) {
            hash = hash_word(hash, collective->pieces[i].count);
        }
        return hash;
    }
    return 0;
}

uint64_t fingerprint_count(const struct collective *collective, int n_ranks)
{
    uint64_t count = 0;
    if (!collective->send_counts) {
        return block_elements(collective, BLOCK_SEND, 0);
    }
    for (int i = 0; i < n_ranks && collective->kind != COLLECTIVE_ALL_TO_ALL; i++) {
        count += collective->send_counts[i];
    }
    return count;
}

void fingerprint_take_words(const struct collective *collective, char words[PURPOSE_WORDS_BYTES])
{
    const char *text = collective->purpose ? collective->purpose->words : NULL;
    size_t length = text ? strnlen(text, PURPOSE_WORDS_BYTES - 1) : 0;
    if (length > 0) {
        memcpy(words, text, length);
    }
    words[length] = '\0';
}

void fingerprint_take_name(const struct collective *collective, struct fingerprint *fingerprint,
                           int64_t *details)
{
    char name[MODULE_NAME_CHARACTERS] = "";
    const char *text = device_name(collective->device);
    memcpy(name, text, strnlen(text, sizeof name));
    fingerprint->device_and_counts =
        (uint8_t)(DEVICE_FIRST_MODULE << 1 | (fingerprint->device_and_counts & 1));
    memcpy(details + fingerprint_n_purpose(fingerprint), name, sizeof name);
}

/* Describing ------------------------------------------------------------------------------------------- */

/* Labels are those of raw calls. */
static void describe_window(const struct fingerprint *fingerprint, char *text, size_t text_bytes)
{
    int number = fingerprint->root & 0xffff;
    if (fingerprint->purpose.id == PURPOSE_NONE) {
        (void)snprintf(text, text_bytes, " label %" PRIu64 " into window %d", fingerprint->count, number);
    } else {
        (void)snprintf(text, text_bytes, " into window %d", number);
    }
}

/* " on meta"; "" on the CPU, which needs no word. */
static void describe_device(const struct fingerprint *fingerprint, const int64_t *details, char *text,
                            size_t text_bytes)
{
    char name[MODULE_NAME_CHARACTERS + 1] = "";
    unsigned device = fingerprint->device_and_counts >> 1;
    text[0] = '\0';
    if (fingerprint_has_name(fingerprint)) {
        memcpy(name, details + fingerprint_n_purpose(fingerprint), MODULE_NAME_CHARACTERS);
    }
    if (device != SHOAL_CPU) {
        const char *known = name[0] != '\0' ? name : shoal_device_name((shoal_device)device);
        (void)snprintf(text, text_bytes, " on %s", known[0] != '\0' ? known : "?");
    }
}

/* What a fingerprint says, whatever is in it: a peer wrote it. */
void fingerprint_describe(const struct fingerprint *fingerprint, const int64_t *details, char *text,
                          size_t text_bytes)
{
    if (fingerprint->kind >= COLLECTIVE_COUNT) {
        (void)snprintf(text, text_bytes, "kind %d", fingerprint->kind);
        return;
    }
    const struct collective_row *row = &collective_rows[fingerprint->kind];
    char reduce[48] = "";
    char root[24] = "";
    char pieces[32] = "";
    char count[48] = "";
    char device[MODULE_NAME_CHARACTERS + 8];
    describe_device(fingerprint, details, device, sizeof device);
    if (row->reduces) {
        (void)snprintf(reduce, sizeof reduce, " %s",
                       shoal_reduce_op_name((shoal_reduce_op)fingerprint->reduce));
    }
    if (row->reduces && fingerprint->reduce == SHOAL_PREMUL_SUM) {
        double factor;
        memcpy(&factor, &fingerprint->factor, sizeof factor);
        (void)snprintf(reduce, sizeof reduce, " premul_sum factor %g", factor);
    }
    if (row->has_root) {
        (void)snprintf(root, sizeof root, " root %" PRId32, fingerprint->root);
    }
    if (fingerprint->n_pieces > 1) {
        (void)snprintf(pieces, sizeof pieces, " in %" PRIu32 " parts", fingerprint->n_pieces);
    }
    if (fingerprint->kind == COLLECTIVE_WINDOW_GATHER) {
        describe_window(fingerprint, count, sizeof count);
    } else if (fingerprint_has_counts(fingerprint) && fingerprint->kind != COLLECTIVE_ALL_TO_ALL) {
        (void)snprintf(count, sizeof count, " with %" PRIu64 " elements in all", fingerprint->count);
    } else if (fingerprint->kind == COLLECTIVE_ALL_TO_ALL && fingerprint_has_counts(fingerprint)) {
        count[0] = '\0'; /* counts differ between ranks, and are compared where they meet */
    } else if (fingerprint->kind != COLLECTIVE_BARRIER) {
        (void)snprintf(count, sizeof count, " count %" PRIu64, fingerprint->count);
    }
    bool has_dtype = fingerprint->kind != COLLECTIVE_BARRIER && fingerprint->kind != COLLECTIVE_WINDOW_GATHER;
    (void)snprintf(text, text_bytes, "%s%s%s%s%s%s%s%s%s #%" PRIu32, row->name,
                   fingerprint_has_counts(fingerprint) ? "_v" : "", has_dtype ? " " : "",
                   has_dtype ? shoal_dtype_name((shoal_dtype)fingerprint->dtype) : "", reduce, count, pieces,
                   root, device, fingerprint->sequence);
}

/* Differences ------------------------------------------------------------------------------------------ */

/* Of the texts for one call: two of them, and what is around them, fit into an error text. */
#define CALL_BYTES 200

/* What the call is for, in the rank's own words. What a peer wrote is not trusted to be a string. */
static void describe_purpose(const struct fingerprint_call *call, bool is_root_told, char *text)
{
    char words[PURPOSE_WORDS_BYTES];
    memcpy(words, call->words, sizeof words);
    words[sizeof words - 1] = '\0';
    purpose_describe(&call->fingerprint->purpose, call->details, words, is_root_told, text, CALL_BYTES);
}

/* Functional calls that differ as raw calls do are described like those. */
static bool is_told_by_purpose(const struct fingerprint *fingerprint, bool differ_raw)
{
    unsigned id = fingerprint->purpose.id;
    return id != PURPOSE_NONE && (id != PURPOSE_FUNCTIONAL || !differ_raw);
}

/* Parameters of one name: which they are. Returns false if purposes do not differ in that. */
static bool describe_places(const struct purpose_key *a, const struct purpose_key *b,
                            char calls[2][CALL_BYTES])
{
    const struct purpose_key *keys[] = {a, b};
    if (a->unit == b->unit && a->argument == b->argument) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(calls[i]);
        char unit[32] = "";
        if (keys[i]->unit > 0) {
            (void)snprintf(unit, sizeof unit, " of unit %" PRIu32, keys[i]->unit - 1);
        }
        (void)snprintf(calls[i] + length, CALL_BYTES - length, " (number %" PRIu32 "%s)", keys[i]->argument,
                       unit);
    }
    return true;
}

static bool has_same_device(const struct fingerprint_call *const both[2])
{
    char devices[2][MODULE_NAME_CHARACTERS + 8];
    for (int i = 0; i < 2; i++) {
        describe_device(both[i]->fingerprint, both[i]->details, devices[i], sizeof devices[i]);
    }
    return strcmp(devices[0], devices[1]) == 0;
}

/* A call is described by its purpose if it has one, and by the raw call too if both ranks' have the same. */
static void describe_calls(const struct fingerprint_call *const both[2], char calls[2][CALL_BYTES])
{
    const struct fingerprint *a = both[0]->fingerprint;
    const struct fingerprint *b = both[1]->fingerprint;
    bool differ_raw = memcmp(a, b, offsetof(struct fingerprint, purpose)) != 0 || !has_same_device(both);
    for (int i = 0; i < 2; i++) {
        calls[i][0] = '\0';
        if (is_told_by_purpose(both[i]->fingerprint, differ_raw)) {
            describe_purpose(both[i], a->purpose.root != b->purpose.root, calls[i]);
        }
    }
    bool are_alike = strcmp(calls[0], calls[1]) == 0;
    if (are_alike && calls[0][0] != '\0' && describe_places(&a->purpose, &b->purpose, calls)) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(calls[i]);
        if (length == 0 || are_alike) {
            length += length > 0 && length + 2 < CALL_BYTES
                          ? (size_t)snprintf(calls[i] + length, CALL_BYTES - length, ": ")
                          : 0;
            fingerprint_describe(both[i]->fingerprint, both[i]->details, calls[i] + length,
                                 CALL_BYTES - length);
        }
    }
}

shoal_status fingerprint_fail(const struct transport_peers *peers, const struct fingerprint_call *own,
                              int peer, const struct fingerprint_call *theirs)
{
    char calls[2][CALL_BYTES];
    /* The lower rank first, so that all ranks say the same. */
    bool is_peer_first = peer < peers->rank;
    const struct fingerprint_call *const both[2] = {is_peer_first ? theirs : own,
                                                    is_peer_first ? own : theirs};
    describe_calls(both, calls);
    bool is_window = own->fingerprint->kind == COLLECTIVE_WINDOW_GATHER;
    const char *difference =
        is_window ? " (into different windows, or generations of one)" : " (their parts or counts differ)";
    const char *hint = strcmp(calls[0], calls[1]) == 0 ? difference : "";
    const char *advice = purpose_hint(both[0]->fingerprint->purpose.id);
    advice = advice[0] != '\0' ? advice : purpose_hint(both[1]->fingerprint->purpose.id);
    return error_set(SHOAL_ERR_MISMATCH, "rank %d called %s, rank %d called %s%s, on group %s%s",
                     peers->world_ranks[is_peer_first ? peer : peers->rank], calls[0],
                     peers->world_ranks[is_peer_first ? peers->rank : peer], calls[1], hint,
                     transport_group_name(peers), advice);
}
