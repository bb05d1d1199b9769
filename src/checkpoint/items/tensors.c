/* SPDX-License-Identifier: MIT */
/* A table of tensors by address: see items/tensors.h. */
#include "checkpoint/items/tensors.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"

/* Where the tensor is, or where it would be put. There is a free slot. */
static struct items_tensor *find_slot(const struct items_tensors *tensors, const shoal_tensor *tensor)
{
    size_t at = (size_t)hash_bytes(0, &tensor, sizeof(const shoal_tensor *)) & (tensors->n_slots - 1);
    while (tensors->slots[at].tensor && tensors->slots[at].tensor != tensor) {
        at = (at + 1) & (tensors->n_slots - 1);
    }
    return &tensors->slots[at];
}

int64_t items_tensors_find(const struct items_tensors *tensors, const shoal_tensor *tensor)
{
    const struct items_tensor *slot = tensors->n_slots > 0 ? find_slot(tensors, tensor) : NULL;
    return slot && slot->tensor ? (int64_t)slot->number : -1;
}

/* Room for one more, with half of the slots free. */
static shoal_status reserve_slot(struct items_tensors *tensors)
{
    if (2 * (tensors->n_tensors + 1) <= tensors->n_slots) {
        return SHOAL_OK;
    }
    struct items_tensors larger = {.n_slots = tensors->n_slots > 0 ? 2 * tensors->n_slots : 16,
                                   .n_tensors = tensors->n_tensors};
    larger.slots = mem_alloc_zeroed(larger.n_slots, sizeof(larger.slots[0]));
    if (!larger.slots) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < tensors->n_slots; i++) {
        if (tensors->slots[i].tensor) {
            *find_slot(&larger, tensors->slots[i].tensor) = tensors->slots[i];
        }
    }
    mem_free(tensors->slots);
    *tensors = larger;
    return SHOAL_OK;
}

shoal_status items_tensors_add(struct items_tensors *tensors, const shoal_tensor *tensor, size_t number)
{
    TRY(reserve_slot(tensors));
    struct items_tensor *slot = find_slot(tensors, tensor);
    if (!slot->tensor) {
        *slot = (struct items_tensor){.tensor = tensor, .number = number};
        tensors->n_tensors++;
    }
    return SHOAL_OK;
}

void items_tensors_clear(struct items_tensors *tensors)
{
    mem_free(tensors->slots);
    *tensors = (struct items_tensors){0};
}
