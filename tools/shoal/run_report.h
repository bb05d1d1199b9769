/* SPDX-License-Identifier: MIT */
/*
 * How the launcher on one machine learns what became of ranks on others. A worker (run_worker.h) writes a line to its standard
 * error when one of its ranks has ended; mpirun or the agent carries it like any other output, and the launcher takes it out
 * again. The key of the run in it keeps programs from writing one by chance.
 */
#ifndef RUN_REPORT_H
#define RUN_REPORT_H

#include <stdbool.h>
#include <stddef.h>

enum {
    RUN_HOST_BYTES = 256
};

struct run_report {
    int rank;
    int exit_code;    /* 128 + signal for one that was killed */
    int death_signal; /* 0: none */
    char host[RUN_HOST_BYTES];
};

/* Writes the line, without its end, into `line`. */
void run_report_write(const struct run_report *report, const char *key, char *line, size_t line_bytes);

/*
 * False when there is none in the line. What a rank wrote last may have no end of its line, so that a report follows it there:
 * n_before_out says how many bytes are not the report's.
 */
bool run_report_read(const char *line, size_t n_bytes, const char *key, size_t *n_before_out,
                     struct run_report *report_out);

#endif
