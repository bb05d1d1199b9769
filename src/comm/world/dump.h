/* SPDX-License-Identifier: MIT */
/* The flight record of a world as a file: shoal/world.h has the call that programs make themselves. */
#ifndef COMM_WORLD_DUMP_H
#define COMM_WORLD_DUMP_H

struct shoal_world;

/* Something has failed in the world: writes the file that SHOAL_DUMP asks for, once. May change the error text. */
void dump_after_failure(struct shoal_world *world);

#endif
