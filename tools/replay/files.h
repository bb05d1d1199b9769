/* SPDX-License-Identifier: MIT */
/* What the replays of trainings (replay_fsdp, replay_gpt2) have in common: their arguments, and the JSON of a case. */
#ifndef REPLAY_FILES_H
#define REPLAY_FILES_H

#include <jansson.h>
#include <stdbool.h>

#include "fsdp_checks.h"

/*
 * The main function of a replay program: replays each file and prints the total. replay_file returns false, after
 * printing why, when a file cannot be read. Exit status: 0 nothing wrong, 1 something wrong, 2 wrong arguments or a
 * file that cannot be read.
 */
int replay_files(const char *program, int argc, char **argv,
                 bool (*replay_file)(const char *path, struct fsdp_totals *totals));

void replay_add_totals(struct fsdp_totals *to, const struct fsdp_totals *from);

/* Returns the object in the text, which is the caller's. Returns NULL if it cannot be read, with the reason in the
   checks. The text may be NULL. */
json_t *replay_read_case(const char *text, struct fsdp_checks *checks);

#endif
