/* SPDX-License-Identifier: MIT */
#include "ddp_fusion_say.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct fusion_chunk {
    struct fusion_chunk *next;
    max_align_t data[];
};

enum fusion_verdict fusion_say(struct fusion_case *self, enum fusion_verdict verdict, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(self->text, sizeof self->text, format, arguments);
    va_end(arguments);
    return verdict;
}

enum fusion_verdict fusion_no_memory(struct fusion_case *self)
{
    return fusion_say(self, FUSION_NO_MEMORY, "no memory");
}

void *fusion_alloc(struct fusion_case *self, size_t count, size_t bytes)
{
    if (bytes > 0 && count > (SIZE_MAX - sizeof(struct fusion_chunk)) / bytes) {
        return NULL;
    }
    struct fusion_chunk *chunk = calloc(1, sizeof *chunk + count * bytes);
    if (!chunk) {
        return NULL;
    }
    chunk->next = self->chunks;
    self->chunks = chunk;
    return chunk->data;
}

void fusion_case_free(struct fusion_case *self)
{
    while (self->chunks) {
        struct fusion_chunk *chunk = self->chunks;
        self->chunks = chunk->next;
        free(chunk);
    }
}
