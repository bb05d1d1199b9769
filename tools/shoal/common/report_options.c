/* SPDX-License-Identifier: MIT */
/* Tells the user what is wrong with SHOAL_* variables. */
#include "common/tool.h"

#include "shoal/log.h"

#include <stdio.h>

static void tell(void *context, shoal_log_level level, const char *message)
{
    fprintf(stderr, "%s: %s\n", tool_name(), message);
}

void tool_report_options(void)
{
    /* What is wrong is told once, to the first who listens; afterwards SHOAL_LOG decides again. */
    shoal_log_set(tell, NULL, SHOAL_LOG_WARN);
    shoal_log_set(NULL, NULL, SHOAL_LOG_WARN);
}
