/* SPDX-License-Identifier: MIT */
/* Lines about ranks that have ended. See run/report.h. */
#include "run/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No text begins with it. */
#define PREFIX "\001shoal-run "

void run_report_write(const struct run_report *report, const char *key, char *line, size_t line_bytes)
{
    (void)snprintf(line, line_bytes, PREFIX "%s %d %d %d %s", key, report->rank, report->exit_code,
                   report->death_signal, report->host);
}

/* The next number and the blank behind it. */
static bool take_number(const char **at, int *number_out)
{
    char *end;
    long number = strtol(*at, &end, 10);
    if (end == *at || *end != ' ' || number < 0 || number > 1000000) {
        return false;
    }
    *at = end + 1;
    *number_out = (int)number;
    return true;
}

bool run_report_read(const char *line, size_t n_bytes, const char *key, size_t *n_before_out,
                     struct run_report *report_out)
{
    char text[512];
    char prefix[128];
    struct run_report report = {0};
    (void)snprintf(prefix, sizeof prefix, PREFIX "%s ", key);
    size_t prefix_bytes = strlen(prefix);
    const char *begin = memmem(line, n_bytes, prefix, prefix_bytes);
    size_t n_before = begin ? (size_t)(begin - line) : n_bytes;
    n_bytes -= n_before;
    if (n_bytes <= prefix_bytes || n_bytes >= sizeof text) {
        return false;
    }
    memcpy(text, begin, n_bytes);
    text[n_bytes] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    const char *at = text + prefix_bytes;
    if (!take_number(&at, &report.rank) || !take_number(&at, &report.exit_code) ||
        !take_number(&at, &report.death_signal)) {
        return false;
    }
    (void)snprintf(report.host, sizeof report.host, "%.255s", at);
    *n_before_out = n_before;
    *report_out = report;
    return true;
}
