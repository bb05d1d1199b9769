/* SPDX-License-Identifier: MIT */
/* How options of a case are read from JSON: a row for each, with a function that understands its value. */
#ifndef REPLAY_FSDP_READING_H
#define REPLAY_FSDP_READING_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdp_case.h"
#include "fsdp_checks.h"

/* Sane numbers of ranks (threads here), layers, steps and micro-batches. */
#define FSDP_MAX_COUNT 4096
#define FSDP_MAX_SIZE (INT64_C(1) << 24)

/* What a reader of an option has. What is about units or parameters is kept, and read when these are known. */
struct fsdp_reading {
    struct fsdp_case *self;
    const json_t *value;
    const json_t *frozen;
    const json_t *cut_along_1;
    const json_t *cubes;
    const json_t *cuts;
    const json_t *divides;
    const json_t *meshes;
    const json_t *no_sync_units;
    char reason[FSDP_REASON_BYTES];
};

struct fsdp_option {
    const char *key;
    bool (*read)(struct fsdp_reading *reading); /* NULL if the option means nothing here */
    bool is_required;
};

/* Options of runs with more settings. */
const struct fsdp_option *fsdp_find_more(const char *key);

/* Shapes of weights, before names are listed. These return false with the reason in the checks. */
bool fsdp_apply_names(struct fsdp_reading *reading, struct fsdp_checks *checks);
/* What was kept about units. */
bool fsdp_apply_units(struct fsdp_reading *reading, struct fsdp_checks *checks);

/* Return false with the reason. */
bool fsdp_refuse(struct fsdp_reading *reading, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool fsdp_read_integer(struct fsdp_reading *reading, const json_t *value, int64_t low, int64_t high,
                       int64_t *number_out);
bool fsdp_read_ranks(struct fsdp_reading *reading, const json_t *value, struct fsdp_ranks *ranks_out);
bool fsdp_read_flag(struct fsdp_reading *reading, bool *flag_out);
/* One of the words; its number. */
bool fsdp_read_word(struct fsdp_reading *reading, const char *const *words, size_t n_words,
                    size_t *number_out);

/* The parameter of that name; NULL if there is none. */
struct fsdp_name *fsdp_find_name(const struct fsdp_case *self, const char *text);

/* A line about an option. */
void fsdp_add_wrong_option(struct fsdp_checks *checks, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
