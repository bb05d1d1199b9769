/* SPDX-License-Identifier: MIT */
/* What the files of `shoal info` share. */
#ifndef INFO_INFO_H
#define INFO_INFO_H

/* `shoal info --explain`. */
int info_explain(int argc, char **argv);

/* `shoal info --json`. */
int info_json(int argc, char **argv);

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
