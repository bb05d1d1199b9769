/* SPDX-License-Identifier: MIT */
/*
 * What a program makes from a world besides groups and works: meshes, symmetric memory, windows. The program frees it,
 * or shoal_world_close does.
 */
#ifndef COMM_GROUP_OWNED_H
#define COMM_GROUP_OWNED_H

#include <pthread.h>

/* Embedded in each such object. */
struct owned {
    void (*destroy)(struct owned *owned);
    struct owned *previous;
    struct owned *next;
};

struct owned_list {
    pthread_mutex_t lock;
    struct owned *first; /* the newest */
};

void owned_list_init(struct owned_list *list);
void owned_list_add(struct owned_list *list, struct owned *owned);
void owned_list_remove(struct owned_list *list, struct owned *owned);

/* Calls destroy for the objects that are left, newest first, after taking each off the list. No other thread may use
   the list any more. */
void owned_list_end(struct owned_list *list);

#endif
