/* SPDX-License-Identifier: MIT */
/*
 * What passes know of the machine on which a graph will run: how fast a rank computes and ranks communicate, in numbers
 * that `shoal bench probe` measures. Everything that weighs time asks estimate.h, which asks here.
 *
 * Times decide what a graph looks like, so all ranks must have the same machine: they compare its description before
 * they use a plan (graph/run/compare.h). Where nobody names a machine, it is the one of machines.def that was measured
 * on a processor of this architecture.
 */
#ifndef GRAPH_ANALYSIS_MACHINE_H
#define GRAPH_ANALYSIS_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "graph/ir/graph.h"

enum {
    MACHINE_NAME_BYTES = 64,
    MACHINE_WORD_BYTES = 24,
    MACHINE_MAX_COLLECTIVES = 192,
    MACHINE_TEXT_BYTES = MACHINE_NAME_BYTES + 32
};

/* How long a collective takes: latency_ns, and its bytes at bytes_per_ns. Its bytes are those that a rank gives to it or
   gets from it, whichever are more. */
struct machine_collective {
    char transport[MACHINE_WORD_BYTES];
    int n_ranks;
    char op[MACHINE_WORD_BYTES]; /* "all_reduce", "all_gather" or "reduce_scatter" */
    double latency_ns;
    double bytes_per_ns;
};

struct machine {
    char name[MACHINE_NAME_BYTES];
    double call_ns;              /* a call of an op, beside its work */
    double touched_bytes_per_ns; /* that kernels read and write, of one rank while all do so */
    double operations_per_ns;    /* of matrix products in f32 */
    double functions_per_ns;     /* values of a function such as gelu */
    double start_ns; /* what a collective costs the rank's own thread, however much time it has to hide */
    double hidden;   /* the share of a collective's time that compute can hide, from 0 to 1 */
    struct machine_collective collectives[MACHINE_MAX_COLLECTIVES];
    size_t n_collectives;
};

/* Gives the machine of that name: one of machines.def, or else the path of a file that `shoal bench probe` wrote. NULL
   and "" mean SHOAL_MACHINE, and if that is not set, the one of this architecture. SHOAL_ERR_INVALID: the file is none;
   SHOAL_ERR_SYSTEM: it cannot be read. */
shoal_status machine_load(const char *name, struct machine *machine_out);

/* Gives the machine of a graph: machine_load of `name`, once for a graph, so that all passes have the same. */
shoal_status machine_of_graph(struct shoal_graph *graph, const char *name,
                              const struct machine **machine_out);

/* Writes its name and a hash of all its numbers, by which ranks compare it. */
void machine_describe(const struct machine *machine, char text[MACHINE_TEXT_BYTES]);

/* Finds the row of a collective: of the transport that SHOAL_TRANSPORT names, if it has one, otherwise of the first
   row's; of that op or of all_reduce; and of the fewest ranks that are not below n_ranks, or of the most. */
const struct machine_collective *machine_find(const struct machine *machine, const char *op, size_t n_ranks);

#endif
