/* SPDX-License-Identifier: MIT */
/* Puts decisions into words, so that those of two compilers can be compared as text. */
#include "lowering.h"

void lowering_begin(struct lowering_decisions *self, const char *name, bool is_in_place)
{
    lowering_write(&self->collectives, "%s%s %s", self->n_started > 0 ? "; " : "", name,
                   is_in_place ? "in place" : "new");
    lowering_write(&self->order, "%sS%zu", self->order.length > 0 ? " " : "", self->n_started);
    self->n_started += self->n_started < LOWERING_MAX_COLLECTIVES - 1 ? 1 : 0;
}

void lowering_add_source(struct lowering_decisions *self, enum lowering_source source)
{
    static const char *const words[] = {
        [LOWERING_INPUT] = "an input", [LOWERING_COPY] = "a copy", [LOWERING_TEMPORARY] = "a temporary"};
    lowering_write(&self->collectives, ", of %s", words[source]);
}

void lowering_add_wait(struct lowering_decisions *self, size_t collective)
{
    lowering_write(&self->order, " W%zu", collective);
    self->is_waited[collective] = true;
}

void lowering_add_kernel(struct lowering_decisions *self)
{
    for (size_t i = 0; i < self->n_started; i++) {
        self->hides[i] = self->hides[i] || !self->is_waited[i];
    }
}

void lowering_finish(const struct lowering_decisions *self, struct lowering_text *line)
{
    lowering_write(line, "%s; %s", self->collectives.bytes, self->order.bytes);
    for (size_t i = 0; i < self->n_started; i++) {
        if (self->hides[i]) {
            lowering_write(line, "; a kernel runs during %zu", i);
        }
    }
}
