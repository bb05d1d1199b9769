/* SPDX-License-Identifier: MIT */
/* measure.h for languages that call C through a foreign function interface: no structs, two callbacks. */
#ifndef MEASURE_SIMPLE_H
#define MEASURE_SIMPLE_H

#include <stdbool.h>
#include <stddef.h>

struct measure_simple;

typedef bool (*measure_simple_call)(const char *op, const void *send, size_t send_bytes, void *recv,
                                    size_t recv_bytes);

/* Arguments: the op, then options. The page is made here: ranks are forked later. NULL, with a message, when
   something is wrong. Lives as long as the program. */
struct measure_simple *measure_simple_open(int argc, char **argv);
int measure_simple_ranks(const struct measure_simple *simple);
const char *measure_simple_dtype(const struct measure_simple *simple);
void measure_simple_fail(struct measure_simple *simple);
/* `prepare` is not timed. */
bool measure_simple_run(struct measure_simple *simple, int rank, const char *transport,
                        measure_simple_call prepare, measure_simple_call call);

#endif
