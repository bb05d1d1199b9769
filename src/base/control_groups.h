/* SPDX-License-Identifier: MIT */
/*
 * The control groups of this process, which may limit its memory and its processors. Each group lies in another one, up
 * to the root, and any of them may have a limit. Both versions are read: version 2 has one tree of groups, version 1
 * one for each controller ("memory", "cpu"), or for several together ("cpu,cpuacct").
 */
#ifndef BASE_CONTROL_GROUPS_H
#define BASE_CONTROL_GROUPS_H

#include <stdbool.h>
#include <stddef.h>

/* Called with the directory of a group. It need not exist: in a container the root is often the group itself. */
typedef void (*control_groups_visitor)(void *context, const char *directory);

/* Visits the groups of this process that a controller may limit, and those that they lie in. Some may be visited
   twice. */
void control_groups_walk(const char *controller, control_groups_visitor visit, void *context);

/* Visits the groups in a text like that of /proc/self/cgroup: lines such as "4:cpu,cpuacct:/a/b" or, for version 2,
   "0::/a/b". */
void control_groups_walk_text(const char *text, const char *controller, control_groups_visitor visit,
                              void *context);

/* Reads as much of a file of a group as fits, and puts a zero byte behind it. Returns false if there is none, or it is
   empty. */
bool control_groups_read(const char *directory, const char *name, char *text, size_t bytes);

#endif
