/* SPDX-License-Identifier: MIT */
/* Starting ranks. They write into pipes, so the launcher tells them whether there is a terminal behind. */
#include "train/ranks.h"
#include "run/job.h"
#include "common/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define GRACE_S 2.0
#define TRACE_GRACE_S 10.0

enum {
    USUAL_COLUMNS = 80
};

int train_ranks_columns(void)
{
    struct winsize size = {0};
    if (!isatty(STDOUT_FILENO)) {
        return 0;
    }
    bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return is_known ? size.ws_col : USUAL_COLUMNS;
}

int train_ranks_start(int n_ranks, bool writes_trace, int argc, char **argv)
{
    char columns[16];
    static char self[] = "shoal"; /* each rank gets a name of its own */
    static char live[] = "--live";
    int n_words = 0;
    /* The program, its arguments, two words more, and the end. */
    char **program = calloc((size_t)argc + 4, sizeof(program[0]));
    if (!program) {
        perror("shoal train");
        return TOOL_FAILED;
    }
    program[n_words++] = self;
    for (int i = 0; i < argc; i++) {
        program[n_words++] = argv[i];
    }
    if (train_ranks_columns() > 0) {
        (void)snprintf(columns, sizeof columns, "%d", train_ranks_columns());
        program[n_words++] = live;
        program[n_words++] = columns;
    }
    struct run_plan plan = {.n_ranks = n_ranks,
                            .command = "shoal train",
                            .grace_s = writes_trace ? TRACE_GRACE_S : GRACE_S,
                            .program = program,
                            .path = "/proc/self/exe"};
    int exit_code = run_job(&plan);
    free(program);
    return exit_code;
}
