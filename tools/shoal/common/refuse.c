/* SPDX-License-Identifier: MIT */
/* Saying what is wrong with a command line: under the name of the command, and once, also if a launcher gave the same one
   to many ranks. */
#include "common/tool.h"

#include "bootstrap/meet/environment.h"

#include <stdarg.h>
#include <stdio.h>

static const char *command_name;

void tool_set_command(const char *name)
{
    command_name = name;
}

const char *tool_name(void)
{
    static char name[64];
    (void)snprintf(name, sizeof name, "shoal%s%s", command_name ? " " : "", command_name ? command_name : "");
    return name;
}

bool tool_speaks(void)
{
    struct environment environment;
    return environment_read(&environment) != SHOAL_OK || environment.rank == 0;
}

int tool_refuse(const char *format, ...)
{
    /* Before anything else is called: the values may be the text of an error of the library. */
    char text[4096];
    va_list values;
    va_start(values, format);
    (void)vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (tool_speaks()) {
        fprintf(stderr, "%s: %s\n", tool_name(), text);
    }
    return TOOL_USAGE;
}
