/* SPDX-License-Identifier: MIT */
/* The text of a captured step, by which SHOAL_COMPILE_CHECK tells whether it is still the same. */
#ifndef GRAPH_COMPILE_TEXT_H
#define GRAPH_COMPILE_TEXT_H

#include "shoal/graph.h"

/* Prints the graph to a string, which the caller frees. */
shoal_status compile_text(const shoal_graph *graph, char **text_out);

/* Compares two texts. SHOAL_ERR_STATE, with the first line that differs: they are not equal. */
shoal_status compile_compare(const char *was, const char *is);

#endif
