/* SPDX-License-Identifier: MIT */
/* Groups of a graph's table on the rank that runs it. */
#ifndef GRAPH_RUN_GROUPS_H
#define GRAPH_RUN_GROUPS_H

#include "graph/graph.h"
#include "shoal/group.h"

/* Of the lists of the group, the one with the rank `self` of a world of n_ranks (0: not known): SHOAL_ERR_INVALID,
   naming the group, when there is none, or when the group has ranks that the world has not. */
shoal_status run_group_list(const struct graph_group *row, int self, int n_ranks, const int **list_out);

/* The group of the world that stands for the one of that name, which has these ranks on this rank. The world keeps
   it. */
shoal_status run_group_create(shoal_world *world, const char *name, const int *list, size_t size,
                              shoal_group **group_out);

#endif
