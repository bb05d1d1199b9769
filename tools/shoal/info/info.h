/* SPDX-License-Identifier: MIT */
/* What the files of `shoal info` share. */
#ifndef INFO_INFO_H
#define INFO_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    INFO_MAX_RANKS = 1000000
};

struct transport;

/* A call whose algorithm is asked about. */
struct info_question {
    const char *op; /* a row of collectives.def; NULL if nothing is asked */
    int64_t n_ranks;
    size_t bytes;
    bool is_symmetric;
    const struct transport *transport;
};

/* `shoal info --explain`. The exit status. */
int info_explain(const struct info_question *question);

/* `shoal info --json`. The exit status. */
int info_json(void);

/* A transport that is built in, or a module. */
struct info_transport {
    const char *name;
    const char *path;  /* the module's; NULL if it is built in */
    const char *error; /* why the module cannot be used; NULL if it can */
    const char *doc;   /* the last two only without an error */
    unsigned interface;
};

/* Visits those that are built in, then all modules that are found, which are loaded. The exit status. */
int info_visit_transports(void (*visit)(void *context, const struct info_transport *transport),
                          void *context);

#endif
