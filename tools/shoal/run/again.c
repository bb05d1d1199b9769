/* SPDX-License-Identifier: MIT */
/* Starts this program again, N times, with the words that it was called with. */
#include "run/again.h"
#include "run/job.h"
#include "common/tool.h"

#include <stdio.h>
#include <stdlib.h>

int run_again(const struct run_again *how)
{
    static char self[] = "shoal"; /* each rank gets a name of its own */
    int n_words = 0;
    /* The program, both lists of words, and the end. */
    char **program = calloc((size_t)how->argc + (size_t)how->n_more + 2, sizeof(program[0]));
    if (!program) {
        perror(how->command);
        return TOOL_FAILED;
    }
    program[n_words++] = self;
    for (int i = 0; i < how->argc; i++) {
        program[n_words++] = how->argv[i];
    }
    for (int i = 0; i < how->n_more; i++) {
        program[n_words++] = how->more[i];
    }
    struct run_plan plan = {.n_ranks = how->n_ranks,
                            .command = how->command,
                            .grace_s = how->grace_s,
                            .has_masked_ranks = how->unblocks,
                            .program = program,
                            .path = "/proc/self/exe"};
    int exit_code = run_job(&plan);
    free(program);
    return exit_code;
}
