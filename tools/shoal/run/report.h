/* SPDX-License-Identifier: MIT */
/*
 * How the launcher learns what became of ranks on other machines. When a rank has ended, or when the worker waits for
 * ranks that save, the worker (run/worker.h) writes a line to its standard error. mpirun or the agent carries that line like any other output, and the launcher
 * filters it out. The line contains the key of the run, so that a program cannot write such a line by chance.
 */
#ifndef RUN_REPORT_H
#define RUN_REPORT_H

#include <stdbool.h>
#include <stddef.h>

enum {
    RUN_HOST_BYTES = 256,
    RUN_REPORT_HOLDS = 1000
};

struct run_report {
    int rank;
    int exit_code; /* 128 + signal for one that was killed; RUN_REPORT_HOLDS: it has not ended, but holds (run/hold.h) */
    int death_signal; /* 0 if there is none */
    char host[RUN_HOST_BYTES];
};

/* Writes the line, without its end, into `line`. */
void run_report_write(const struct run_report *report, const char *key, char *line, size_t line_bytes);

/*
 * Reads a report from a line; returns false if there is none. The last output of a rank may lack a newline, so a report
 * can follow it on the same line: *n_before_out is the number of bytes before the report.
 */
bool run_report_read(const char *line, size_t n_bytes, const char *key, size_t *n_before_out,
                     struct run_report *report_out);

#endif
