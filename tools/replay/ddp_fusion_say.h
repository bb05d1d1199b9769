/* SPDX-License-Identifier: MIT */
/* What a part of replay_ddp_fusion found, in words, and memory that lives as long as a case. */
#ifndef REPLAY_DDP_FUSION_SAY_H
#define REPLAY_DDP_FUSION_SAY_H

#include <stdbool.h>
#include <stddef.h>

enum fusion_verdict {
    FUSION_RIGHT,
    FUSION_WRONG,      /* the graphs differ */
    FUSION_UNREADABLE, /* the file is not of the format */
    FUSION_NO_MEMORY
};

#define FUSION_TEXT_BYTES 512

struct fusion_chunk;

struct fusion_case {
    char text[FUSION_TEXT_BYTES]; /* why it is not right */
    struct fusion_chunk *chunks;
};

/* Keeps the words; returns the verdict. */
enum fusion_verdict fusion_say(struct fusion_case *self, enum fusion_verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
enum fusion_verdict fusion_no_memory(struct fusion_case *self);

/* Zeroed, and freed with the case; NULL if memory runs out. */
void *fusion_alloc(struct fusion_case *self, size_t count, size_t bytes);
void fusion_case_free(struct fusion_case *self);

#endif
