/* SPDX-License-Identifier: MIT */
/* The options of `shoal generate`. */
#ifndef GENERATE_OPTIONS_H
#define GENERATE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct generate_options {
    const char *directory;
    const char *prompt;
    const char *prompt_tokens; /* "15496,995" */
    const char *tokenizer;     /* NULL: the model's own, if there is one */
    int64_t length;            /* tokens to draw */
    double temperature;
    int64_t top_k;
    int64_t seed;
    const char *logits; /* the file for them; NULL if they are not wanted */
    int64_t n_heads;    /* 0 if it was not given */
    int64_t n_ranks;    /* 0 means those that the launcher started, or one */
    int64_t n_threads;
    const char *transport;
};

/* Reads the command line. Returns false if the command should end with *exit_status_out. */
bool generate_options_read(int argc, char **argv, struct generate_options *options, int *exit_status_out);

#endif
