/* SPDX-License-Identifier: MIT */
/*
 * Whole files of tensors that are larger than the slices in which ranks exchange them, cut by rows, by columns and
 * inside of rows; and how much memory that takes besides the parts. Saves without memory.
 */
#define STATE_LARGE_ROWS 4

#include <sys/resource.h>

#include "fixtures/rank_world.h"
#include "fixtures/saved_state.h"
#include "fixtures/shared_directory.h"
#include "shoal/checkpoint.h"

struct large {
    const char *name;
    int n_dims;
    int64_t shape[3];
    int dim;
};

static const struct large larges[] = {
    {"rows", 2, {2900, 2000}, 0},
    {"columns", 2, {2900, 2001}, 1},   /* several slices of whole rows */
    {"long.rows", 2, {3, 2500001}, 1}, /* a row is more than a slice */
    {"inner", 3, {2, 1300000, 3}, 2},
};
#define N_LARGES (sizeof larges / sizeof larges[0])

static uint32_t element(size_t tensor, int64_t place)
{
    return (uint32_t)((uint64_t)place * 2654435761u + tensor);
}

static int64_t begin_of(const struct large *large, int rank, int n_ranks)
{
    return large->shape[large->dim] * rank / n_ranks;
}

static void add_large(struct rank *self, shoal_items *items, size_t number, uint32_t **part_out)
{
    const struct large *large = &larges[number];
    int64_t begin = begin_of(large, self->rank, self->n_ranks);
    int64_t length = begin_of(large, self->rank + 1, self->n_ranks) - begin;
    int64_t outer = 1;
    int64_t inner = 1;
    for (int i = 0; i < large->n_dims; i++) {
        outer *= i < large->dim ? large->shape[i] : 1;
        inner *= i > large->dim ? large->shape[i] : 1;
    }
    uint32_t *part = malloc((size_t)(outer * length * inner + 1) * sizeof *part);
    REQUIRE(part);
    *part_out = part;
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < length * inner; i++) {
            *part++ = element(number, (o * large->shape[large->dim] + begin) * inner + i);
        }
    }
    shoal_item item = SHOAL_ITEM_INIT;
    item.name = large->name;
    item.dtype = SHOAL_U32;
    item.n_dims = large->n_dims;
    item.shape = large->shape;
    item.dim = large->dim;
    item.offset = begin;
    item.length = length;
    item.data = *part_out;
    CHECK_OK(shoal_items_add(items, &item));
}

/* One slice of the file after the other. */
static void check_large(shoal_safetensors *file, size_t number)
{
    enum {
        COUNT = 1 << 18
    };
    static uint32_t found[COUNT];
    int64_t index = shoal_safetensors_find(file, larges[number].name);
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    REQUIRE_OK(shoal_safetensors_get(file, index, &info));
    for (size_t at = 0; at < info.bytes && !test_has_failed(); at += sizeof found) {
        size_t bytes = info.bytes - at < sizeof found ? info.bytes - at : sizeof found;
        size_t n_wrong = 0;
        REQUIRE_OK(shoal_safetensors_read_range(file, index, at, found, bytes));
        for (size_t i = 0; i < bytes / 4; i++) {
            n_wrong += found[i] != element(number, (int64_t)(at / 4 + i));
        }
        CHECK_INT(n_wrong, 0);
    }
}

static long peak_kilobytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss : 0;
}

/* Processes: a peak is the process's. */
TEST_PROCESSES(slices_of_large_tensors, 3)
{
    const char *directory = share_directory(self);
    uint32_t *parts[N_LARGES] = {NULL};
    shoal_items *items;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    REQUIRE_OK(shoal_items_create(&items));
    for (size_t i = 0; i < N_LARGES; i++) {
        add_large(self, items, i, &parts[i]);
    }
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.format = SHOAL_CHECKPOINT_WHOLE;
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    long before = peak_kilobytes();
    CHECK_OK(shoal_checkpoint_save(shoal_world_group(world), directory, items, &options));
    long more = peak_kilobytes() - before;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (more > 64 << 10) {
        test_failed(__FILE__, __LINE__, "the save took %ld KiB more", more);
    }
#else
    (void)more;
#endif
    if (self->rank == 0) {
        shoal_safetensors *file;
        REQUIRE_OK(shoal_safetensors_open(inside(directory, "step-000000000/model.safetensors"), &file));
        for (size_t i = 0; i < N_LARGES; i++) {
            check_large(file, i);
        }
        shoal_safetensors_close(file);
    }
    shoal_items_free(items);
    for (size_t i = 0; i < N_LARGES; i++) {
        free(parts[i]);
    }
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

/* Without memory ----------------------------------------------------------------------------------------- */

struct sweep {
    shoal_group *group;
    const char *directory;
    struct state *state;
    shoal_checkpoint_options options;
};

static shoal_status save_once(void *context)
{
    const struct sweep *sweep = context;
    return shoal_checkpoint_save(sweep->group, sweep->directory, sweep->state->items, &sweep->options);
}

/* Collectives of one rank need no memory, or fail like everything else. */
TEST_RANKS(saves_without_memory, 1)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct state state;
    state_open(&state, 0, 1, 2);
    struct sweep sweep = {.group = shoal_world_group(world),
                          .directory = directory,
                          .state = &state,
                          .options = {.struct_size = sizeof(shoal_checkpoint_options), .replaces = true}};
    if (!self->is_process) { /* once is enough */
        CHECK_OK(save_once(&sweep));
        for (int format = 0; format < 2; format++) {
            sweep.options.format = (shoal_checkpoint_format)format;
            CHECK(test_sweep_allocations(save_once, &sweep) > 50);
            state_check(inside(directory, "step-000000000"), 0, 2);
        }
    }
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}
