/* SPDX-License-Identifier: MIT */
/* `shoal report`: one self-contained page about a run, from its log and, if there is one, a trace. */
#ifndef REPORT_REPORT_H
#define REPORT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

struct report_sources {
    const char *command; /* what messages begin with: "shoal report" */
    const char *log;
    const char *trace; /* NULL if there is none */
    bool finds_trace;  /* otherwise the one that the log names, if it is there and of that run */
    bool has_step;     /* which step of the trace is drawn; otherwise one of median length */
    int64_t step;
};

/* Says on standard error what is wrong; false then. The file is replaced only by a whole page. */
bool report_write(const struct report_sources *sources, const char *path);

#endif
