/* SPDX-License-Identifier: MIT */
/* The groups of a graph's table, on the rank that runs the graph. */
#ifndef GRAPH_IR_RUN_GROUPS_H
#define GRAPH_IR_RUN_GROUPS_H

#include "graph/ir/graph.h"
#include "shoal/group.h"

/* Finds the list of the group that contains rank `self`. SHOAL_ERR_INVALID, with the group's name: there is none, or
   the group has ranks that a world of n_ranks does not have. n_ranks is 0 if it is not known. */
shoal_status run_group_list(const struct graph_group *row, int self, int n_ranks, const int **list_out);

/* Creates the group of the world for a group of the table with that name and these ranks. The world keeps it. */
shoal_status run_group_create(shoal_world *world, const char *name, const int *list, size_t size,
                              shoal_group **group_out);

#endif
