/* SPDX-License-Identifier: MIT */
/* Names of tensors in a file with recorded collectives: wN.[grad.]OP[.VARIANT].DTYPE.rankR.KIND with a number behind. */
#ifndef REPLAY_NAMES_H
#define REPLAY_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cases.h"

/* A tensor of the file, by the parts of its name. */
struct replay_part {
    const char *name;
    size_t case_length; /* of the name up to .rankR; all of it when the name is none of ours */
    bool is_known;
    int rank;
    enum replay_kind kind;
    int place;
    int64_t tensor;
};

extern const char *const replay_kind_names[REPLAY_N_KINDS];

struct replay_part replay_part_read(const char *name, int64_t tensor);

/* By case; and by case, rank, kind and place, for qsort. */
int replay_part_compare_cases(const struct replay_part *a, const struct replay_part *b);
int replay_part_compare(const void *a, const void *b);

/* Reads wN.[grad.]OP[.VARIANT].DTYPE; false with the reason in the case. Changes `text`. */
bool replay_case_read_name(char *text, struct replay_case *self);

#endif
