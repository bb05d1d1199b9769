/* SPDX-License-Identifier: MIT */
/* Starting ranks. They write into pipes, so the launcher tells them whether there is a terminal behind. */
#include "train/ranks.h"
#include "run/again.h"

#include <stdio.h>
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
    static char live[] = "--live";
    static char started[] = "--started";
    char *more[] = {started, live, columns};
    (void)snprintf(columns, sizeof columns, "%d", train_ranks_columns());
    const struct run_again how = {.command = "shoal train",
                                  .n_ranks = n_ranks,
                                  .grace_s = writes_trace ? TRACE_GRACE_S : GRACE_S,
                                  .unblocks = true,
                                  .argc = argc,
                                  .argv = argv,
                                  .n_more = train_ranks_columns() > 0 ? 3 : 1,
                                  .more = more};
    return run_again(&how);
}
