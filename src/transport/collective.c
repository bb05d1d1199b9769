/* SPDX-License-Identifier: MIT */
/* What is known of a collective, whatever transport carries it. */
#include "transport/collective.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "device/device.h"

const struct collective_row collective_rows[COLLECTIVE_COUNT] = {
#define COLLECTIVE(name_, text, has_root_, reduces_, has_send_blocks_, has_recv_blocks_, doc_) \
    [COLLECTIVE_##name_] = {.name = text,                                                      \
                            .has_root = has_root_,                                             \
                            .reduces = reduces_,                                               \
                            .has_send_blocks = has_send_blocks_,                               \
                            .has_recv_blocks = has_recv_blocks_,                               \
                            .doc = doc_},
#include "transport/collectives.def"
#undef COLLECTIVE
};

static size_t sum_counts(const size_t *counts, int n_ranks)
{
    size_t sum = 0;
    for (int i = 0; i < n_ranks; i++) {
        sum += counts[i];
    }
    return sum;
}

size_t collective_bytes(const struct collective *collective, int n_ranks)
{
    if (collective->kind == COLLECTIVE_BARRIER) {
        return 0;
    }
    if (collective->kind == COLLECTIVE_WINDOW_GATHER) {
        bool is_told = collective->purpose && collective->purpose->bytes > 0;
        return is_told ? (size_t)collective->purpose->bytes : collective->window->bytes;
    }
    const struct collective_row *row = &collective_rows[collective->kind];
    bool has_blocks = row->has_send_blocks || row->has_recv_blocks;
    size_t element_bytes = shoal_dtype_bytes(collective->dtype);
    if (collective->send_counts) {
        size_t sent = sum_counts(collective->send_counts, n_ranks);
        size_t received = sum_counts(collective->recv_counts, n_ranks);
        return (sent > received ? sent : received) * element_bytes;
    }
    size_t count = 0;
    for (size_t i = 0; i < collective->n_pieces; i++) {
        count += collective->pieces[i].count;
    }
    return count * element_bytes * (has_blocks ? (size_t)n_ranks : 1);
}

/* Calls of sharding and the like are called by what they are for; functional ones are called like the raw ones. */
static bool describe_purpose(const struct collective *collective, char *text, size_t text_bytes)
{
    const struct purpose *purpose = collective->purpose;
    if (!purpose || purpose->id == PURPOSE_FUNCTIONAL) {
        return false;
    }
    struct purpose_key key = {.id = (uint16_t)purpose->id, .root = purpose->root, .unit = purpose->unit};
    purpose_describe(&key, NULL, purpose->words ? purpose->words : "", false, text, text_bytes);
    return true;
}

const char *collective_describe(const struct collective *collective, char *text, size_t text_bytes)
{
    const struct collective_row *row = &collective_rows[collective->kind];
    size_t count = 0;
    for (size_t i = 0; i < collective->n_pieces; i++) {
        count += collective->pieces[i].count;
    }
    int used = snprintf(text, text_bytes, "%s%s", row->name, collective->send_counts ? "_v" : "");
    size_t at = used < 0 ? 0 : (size_t)used;
    if (describe_purpose(collective, text, text_bytes)) {
        at = strlen(text);
        used = 0;
    } else if (at < text_bytes && collective->kind == COLLECTIVE_WINDOW_GATHER) {
        used = snprintf(text + at, text_bytes - at, " label %" PRIu64 " generation %" PRIu32,
                        collective->label, collective->generation);
    } else if (at < text_bytes && collective->kind != COLLECTIVE_BARRIER) {
        used = snprintf(text + at, text_bytes - at, " %s", shoal_dtype_name(collective->dtype));
        at += used < 0 ? 0 : (size_t)used;
        if (at < text_bytes && row->reduces) {
            used = snprintf(text + at, text_bytes - at, " %s", shoal_reduce_op_name(collective->reduce));
            at += used < 0 ? 0 : (size_t)used;
        }
        if (at < text_bytes && !collective->send_counts) {
            used = snprintf(text + at, text_bytes - at, " count %zu", count);
            at += used < 0 ? 0 : (size_t)used;
        }
        if (at < text_bytes && collective->n_pieces > 1) {
            used = snprintf(text + at, text_bytes - at, " in %zu parts", collective->n_pieces);
            at += used < 0 ? 0 : (size_t)used;
        }
        used = 0;
        if (at < text_bytes && row->has_root) {
            used = snprintf(text + at, text_bytes - at, " root %d", collective->root);
            at += used < 0 ? 0 : (size_t)used;
            used = 0;
        }
    } else {
        used = 0;
    }
    at += used < 0 ? 0 : (size_t)used;
    if (at < text_bytes && collective->device != SHOAL_CPU) {
        used = snprintf(text + at, text_bytes - at, " on %s", device_name(collective->device));
        at += used < 0 ? 0 : (size_t)used;
    }
    if (at < text_bytes) {
        (void)snprintf(text + at, text_bytes - at, " #%" PRIu32, collective->sequence);
    }
    return text;
}
