/* SPDX-License-Identifier: MIT */
/* What the files of the tool share. Exit status: 0 done, 1 failed, 2 called wrongly. */
#ifndef TOOL_H
#define TOOL_H

#include "transport/collective.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum {
    TOOL_DONE = 0,
    TOOL_FAILED = 1,
    TOOL_USAGE = 2
};

/* What this program was compiled with. */
#if defined(__clang__)
#define TOOL_COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define TOOL_COMPILER "gcc " __VERSION__
#else
#define TOOL_COMPILER "unknown"
#endif

#define COMMAND(name, function, summary) int function(int argc, char **argv);
#include "commands.def"
#undef COMMAND

#define BENCH(name, function, summary) int function(int argc, char **argv);
#include "benches.def"
#undef BENCH

void tool_print_help(FILE *out);

/* `shoal info --explain`. */
int info_explain(int argc, char **argv);

/* `shoal info --json`. */
int info_json(int argc, char **argv);

/* A transport that is built in, or a module. */
struct info_transport {
    const char *name;
    const char *path;  /* the module's; NULL: built in */
    const char *error; /* why the module cannot be used; NULL: it can */
    const char *doc;   /* the last two only without an error */
    unsigned interface;
};

/* Visits those that are built in, then all modules that are found, which are loaded. The exit status. */
int info_visit_transports(void (*visit)(void *context, const struct info_transport *transport),
                          void *context);

/* A row of collectives.def by its name; false when there is none. */
bool tool_find_collective(const char *name, enum collective_kind *kind_out);

/* The library is silent unless SHOAL_LOG says otherwise. This tells, on standard error, what is wrong with the
   SHOAL_* variables of the environment. */
void tool_report_options(void);

/* A thing the user can name on the command line. */
struct tool_choice {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

/* --transport: ranks that are started from now on find this name as SHOAL_TRANSPORT. False, after a message: there is
   no such transport. */
bool tool_set_transport(const char *name);

/* The row of that name; NULL when there is none. */
const struct tool_choice *tool_choice_find(const struct tool_choice *choices, size_t n_choices,
                                           const char *name);

/* Says on standard error that `word` is no `kind` ("command"), and which one is nearest, or else which there
   are. TOOL_USAGE. */
int tool_choice_unknown(const char *kind, const char *word, const struct tool_choice *choices,
                        size_t n_choices);

#endif
