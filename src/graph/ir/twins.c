/* SPDX-License-Identifier: MIT */
#include "graph/ir/twins.h"

#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "tensor/scope.h"

/* One reference to each. The address of `real` is a key, so it must not be used for another storage meanwhile. */
struct twin {
    struct storage *real;
    struct storage *meta;
};

struct graph_twins {
    struct map map; /* from storages with data to indices of `twins` */
    struct twin *twins;
    size_t n_twins;
    size_t capacity;
};

static struct twin *find(const struct shoal_graph *graph, const struct storage *storage)
{
    size_t index;
    bool is_there = graph->twins && map_get(&graph->twins->map, map_key(storage), &index);
    return is_there ? &graph->twins->twins[index] : NULL;
}

static shoal_status add(struct graph_twins *twins, struct storage *real, struct twin **twin_out)
{
    struct storage *meta;
    TRY(mem_grow((void **)&twins->twins, &twins->capacity, twins->n_twins + 1, sizeof *twins->twins));
    TRY(storage_create(SHOAL_META, real->bytes, &meta));
    shoal_status status = map_add(&twins->map, map_key(real), twins->n_twins);
    if (status != SHOAL_OK) {
        storage_unref(meta);
        return status;
    }
    *twin_out = &twins->twins[twins->n_twins++];
    **twin_out = (struct twin){.real = storage_ref(real), .meta = meta};
    return SHOAL_OK;
}

shoal_status twins_tensor(struct shoal_graph *graph, shoal_tensor *tensor, shoal_tensor **twin_out)
{
    if (tensor->storage->device == SHOAL_META) {
        *twin_out = tensor;
        return SHOAL_OK;
    }
    if (!graph->twins) {
        graph->twins = mem_alloc_zeroed(1, sizeof *graph->twins);
        if (!graph->twins) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    struct twin *twin = find(graph, tensor->storage);
    if (!twin) {
        TRY(add(graph->twins, tensor->storage, &twin));
    }
    shoal_tensor *made;
    TRY(tensor_create(storage_ref(twin->meta), tensor->dtype, &tensor->layout, &made));
    *twin_out = scope_adopt(made);
    return *twin_out ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

const struct storage *twins_find(const struct shoal_graph *graph, const struct storage *storage)
{
    const struct twin *twin = find(graph, storage);
    return twin ? twin->meta : storage;
}

void graph_free_twins(struct shoal_graph *graph)
{
    struct graph_twins *twins = graph->twins;
    if (!twins) {
        return;
    }
    for (size_t i = 0; i < twins->n_twins; i++) {
        storage_unref(twins->twins[i].real);
        storage_unref(twins->twins[i].meta);
    }
    map_free(&twins->map);
    mem_free(twins->twins);
    mem_free(twins);
    graph->twins = NULL;
}
