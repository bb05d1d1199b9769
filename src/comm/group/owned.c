/* SPDX-License-Identifier: MIT */
/* A list of things to free with the world. */
#include "comm/group/owned.h"

#include <stddef.h>

void owned_list_init(struct owned_list *list)
{
    *list = (struct owned_list){.lock = PTHREAD_MUTEX_INITIALIZER};
}

void owned_list_add(struct owned_list *list, struct owned *owned)
{
    (void)pthread_mutex_lock(&list->lock);
    owned->previous = NULL;
    owned->next = list->first;
    if (list->first) {
        list->first->previous = owned;
    }
    list->first = owned;
    (void)pthread_mutex_unlock(&list->lock);
}

void owned_list_remove(struct owned_list *list, struct owned *owned)
{
    (void)pthread_mutex_lock(&list->lock);
    if (owned->previous) {
        owned->previous->next = owned->next;
    } else {
        list->first = owned->next;
    }
    if (owned->next) {
        owned->next->previous = owned->previous;
    }
    (void)pthread_mutex_unlock(&list->lock);
}

void owned_list_end(struct owned_list *list)
{
    while (list->first) {
        struct owned *owned = list->first;
        owned_list_remove(list, owned);
        owned->destroy(owned);
    }
    (void)pthread_mutex_destroy(&list->lock);
}
