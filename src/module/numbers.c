/* SPDX-License-Identifier: MIT */
/* Numbered addresses: open addressing, at most half full. */
#include "module/numbers.h"

#include <stdint.h>

#include "base/mem.h"
#include "base/try.h"

#define FIRST_CELLS 16

/* The cell of an object, or the free cell where it belongs. There always is a free one. */
static struct number_cell *find_cell(struct number_cell *cells, size_t n_cells, const void *object)
{
    /* The low bits of addresses are alike. The product mixes the others into its upper half (Knuth's golden ratio). */
    uint64_t hash = (uint64_t)(uintptr_t)object * UINT64_C(0x9E3779B97F4A7C15);
    size_t at = (size_t)(hash >> 32) & (n_cells - 1);
    while (cells[at].object && cells[at].object != object) {
        at = (at + 1) & (n_cells - 1);
    }
    return &cells[at];
}

static shoal_status grow(struct numbers *numbers)
{
    size_t n_cells = numbers->n_cells ? numbers->n_cells * 2 : FIRST_CELLS;
    struct number_cell *cells = mem_alloc_zeroed(n_cells, sizeof(cells[0]));
    if (!cells) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < numbers->n_cells; i++) {
        if (numbers->cells[i].object) {
            *find_cell(cells, n_cells, numbers->cells[i].object) = numbers->cells[i];
        }
    }
    mem_free(numbers->cells);
    numbers->cells = cells;
    numbers->n_cells = n_cells;
    return SHOAL_OK;
}

shoal_status numbers_get(struct numbers *numbers, const void *object, size_t *number_out, bool *is_new_out)
{
    if (numbers->n_objects * 2 >= numbers->n_cells) {
        TRY(grow(numbers));
    }
    struct number_cell *cell = find_cell(numbers->cells, numbers->n_cells, object);
    *is_new_out = !cell->object;
    if (!cell->object) {
        *cell = (struct number_cell){.object = object, .number = numbers->n_objects++};
    }
    *number_out = cell->number;
    return SHOAL_OK;
}

void numbers_clear(struct numbers *numbers)
{
    mem_free(numbers->cells);
    *numbers = (struct numbers){.cells = NULL};
}
