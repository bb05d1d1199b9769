/* SPDX-License-Identifier: MIT */
/* All values of a run for the script of the page, as JSON: numbers of steps in base64, and the timeline of a step. */
#ifndef REPORT_DATA_H
#define REPORT_DATA_H

#include "report/log.h"
#include "trace/trace.h"

#include <stdio.h>

/* trace: NULL if there is none. Returns false if memory runs out. */
bool data_write(FILE *out, const struct log *log, const struct trace *trace, int64_t step);

#endif
