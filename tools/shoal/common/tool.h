/* SPDX-License-Identifier: MIT */
/* What the commands of the tool share. Exit status: 0 done, 1 failed, 2 called wrongly. */
#ifndef COMMON_TOOL_H
#define COMMON_TOOL_H

#include "transport/collective.h"

#include <stdbool.h>
#include <stddef.h>

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

/* A row of collectives.def by its name; false when there is none. */
bool tool_find_collective(const char *name, enum collective_kind *kind_out);

/* The library is silent unless SHOAL_LOG says otherwise. This tells, on standard error, what is wrong with the
   SHOAL_* variables of the environment. */
void tool_report_options(void);

struct tool_options;

/* A thing the user can name on the command line. */
struct tool_choice {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
    const struct tool_options *options; /* of a command; NULL if it has no table */
};

/* Names that --transport may have, for completion: of what is built in, and of modules that come with it. NULL past the last. */
const char *tool_transport_at(size_t index);
/* Whether there is a transport of that name, or a module for one; if not, false after a message. */
bool tool_is_transport(const char *name);
/* --transport: this process, if it is a rank, and ranks that are started from now on find this name as SHOAL_TRANSPORT.
   Call it before anything else of the library. False, after a message: there is no such transport. */
bool tool_set_transport(const char *name);

/* What error messages and the usage begin with: "shoal train" once the command is known, "shoal" before. */
void tool_set_command(const char *name);
const char *tool_name(void);

/* Whether this process says what is wrong with a command line, prints help, and runs commands that need one process. Of
   the ranks of a launcher, which all have the same command line, the first one does. True if the launcher's variables are
   wrong. */
bool tool_speaks(void);
/* Says what is wrong with the command line, behind the name of the command and before the end of the line. TOOL_USAGE. */
int tool_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The row of that name; NULL when there is none. */
const struct tool_choice *tool_choice_find(const struct tool_choice *choices, size_t n_choices,
                                           const char *name);

/* Says on standard error that `word` is no `kind` ("command"), and which one it is if other tools have that name for it
   (synonyms.def), which one is nearest, or else which there are. TOOL_USAGE. */
int tool_choice_unknown(const char *kind, const char *word, const struct tool_choice *choices,
                        size_t n_choices);

#endif
