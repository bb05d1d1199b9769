/* SPDX-License-Identifier: MIT */
/* The page: the template with its parts filled in. */
#ifndef REPORT_PAGE_H
#define REPORT_PAGE_H

#include "report/log.h"
#include "trace/trace.h"

#include <stdio.h>

struct page {
    FILE *out;
    const struct log *log;
    const char *log_path;
    const struct trace *trace; /* NULL if there is none */
    const char *trace_path;
    int64_t step; /* of the trace that is drawn */
};

/* Returns false if memory runs out. */
bool page_write(const struct page *page);

/* Parts of it, in files of their own. */
bool page_put_ranks(const struct page *page);
bool page_put_timeline(const struct page *page);

#endif
