/* SPDX-License-Identifier: MIT */
/* Updates of parameters: all in one launch, with a table of them. */
#include "cuda/kernels/update.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "cuda/failure.h"
#include "cuda/launch.h"
#include "cuda/parts.h"
#include "cuda/table.h"
#include "tensor/dtype.h"

_Static_assert(sizeof(struct update_arguments) <= CUDA_ARGUMENT_BYTES, "what a kernel takes");
_Static_assert(sizeof(struct update_rates) == sizeof(struct kernel_rates), "the same numbers");

/* How many different rates items can have. */
#define RATES_MOST 65536

struct table {
    struct update_item *items;
    size_t n_items;
    struct update_rates *rates;
    size_t n_rates;
    uint32_t n_tiles;
};

static shoal_dtype real_of(const struct kernel_update *update)
{
    return update->dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32;
}

/* The rates in the type that is computed in. */
static struct update_rates round_rates(const struct kernel_update *update)
{
    struct update_rates rounded;
    double numbers[sizeof rounded / sizeof(double)];
    memcpy(numbers, &update->rates, sizeof numbers);
    if (real_of(update) == SHOAL_F32) {
        float narrow[sizeof rounded / sizeof(double)];
        kernel_cast(SHOAL_F32, narrow, SHOAL_F64, numbers, sizeof numbers / sizeof numbers[0]);
        kernel_cast(SHOAL_F64, numbers, SHOAL_F32, narrow, sizeof numbers / sizeof numbers[0]);
    }
    memcpy(&rounded, numbers, sizeof rounded);
    return rounded;
}

static bool are_same(const struct update_rates *a, const struct update_rates *b)
{
    uint64_t a_bits[sizeof *a / sizeof(uint64_t)];
    uint64_t b_bits[sizeof *b / sizeof(uint64_t)];
    memcpy(a_bits, a, sizeof a_bits);
    memcpy(b_bits, b, sizeof b_bits);
    return memcmp(a_bits, b_bits, sizeof a_bits) == 0;
}

/* Rates that are known are not stored again; most calls have one. */
static uint16_t add_rates(struct table *table, const struct update_rates *rates)
{
    for (size_t i = table->n_rates; i > 0; i--) {
        if (are_same(&table->rates[i - 1], rates)) {
            return (uint16_t)(i - 1);
        }
    }
    table->rates[table->n_rates] = *rates;
    return (uint16_t)table->n_rates++;
}

/* Whether all addresses are multiples of n elements. */
static bool is_aligned(enum kernel_rule rule, const struct kernel_update *update, uint64_t n)
{
    const uint64_t moments[] = {address_number(update->moments[0]), address_number(update->moments[1])};
    return address_number(update->data) % (n * dtype_bytes(update->dtype)) == 0 &&
           address_number(update->gradient) % (n * dtype_bytes(update->gradient_dtype)) == 0 &&
           (rule != KERNEL_ADAMW || parts_are_aligned(moments, 2, n * dtype_bytes(real_of(update))));
}

static void add_item(struct table *table, enum kernel_rule rule, const struct kernel_update *update)
{
    const struct update_rates rates = round_rates(update);
    const bool is_short = update->dtype != SHOAL_F64 && update->gradient_dtype != SHOAL_F64;
    table->items[table->n_items++] = (struct update_item){
        .data = address_number(update->data),
        .gradient = address_number(update->gradient),
        .moments = {address_number(update->moments[0]), address_number(update->moments[1])},
        .count = update->count,
        .first_tile = table->n_tiles,
        .rates = add_rates(table, &rates),
        .dtype = (uint8_t)update->dtype,
        .gradient_dtype = (uint8_t)update->gradient_dtype,
        .is_in_vectors = is_short && is_aligned(rule, update, UPDATE_EACH),
        .is_aligned = is_aligned(rule, update, 1)};
    table->n_tiles += parts_divide_up(update->count, UPDATE_TILE);
}

/* The items, and behind them their rates: by value if they fit, and otherwise in memory of the device. */
static shoal_status launch(enum kernel_rule rule, const struct table *table, unsigned char *bytes)
{
    const size_t items_bytes = table->n_items * sizeof table->items[0];
    const size_t n_bytes = items_bytes + table->n_rates * sizeof table->rates[0];
    struct update_arguments arguments = {
        .rule = (uint32_t)rule, .n_items = (uint32_t)table->n_items, .rates_at = (uint32_t)items_bytes};
    memmove(bytes + items_bytes, table->rates, n_bytes - items_bytes);
    if (n_bytes > sizeof arguments.table) {
        arguments.staged = cuda_stage(bytes, n_bytes);
        if (arguments.staged == 0) {
            TRY(cuda_failure());
            return SHOAL_ERR_NO_MEMORY;
        }
    } else {
        memcpy(arguments.table, bytes, n_bytes);
    }
    cuda_launch(CUDA_KERNEL_update, &arguments,
                (struct cuda_grid){.n_blocks = table->n_tiles, .n_threads = UPDATE_THREADS});
    if (arguments.staged != 0) {
        cuda_unstage(arguments.staged);
    }
    return SHOAL_OK;
}

/* Without elements, the CPU's kernel only looks at dtypes. */
static shoal_status check_updates(enum kernel_rule rule, const struct kernel_update *updates,
                                  size_t n_updates)
{
    for (size_t i = 0; i < n_updates; i++) {
        struct kernel_update empty = updates[i];
        empty.count = 0;
        shoal_status status = kernel_update(rule, &empty, 1);
        if (status != SHOAL_OK) {
            return cuda_pass_on(status);
        }
    }
    return SHOAL_OK;
}

/* Updates that one launch can have. */
static shoal_status run(enum kernel_rule rule, const struct kernel_update *updates, size_t n_updates)
{
    const size_t items_bytes = n_updates * sizeof(struct update_item);
    unsigned char *bytes = mem_alloc(items_bytes + n_updates * sizeof(struct update_rates));
    if (!bytes) {
        return cuda_pass_on(SHOAL_ERR_NO_MEMORY);
    }
    struct table table = {.items = (struct update_item *)(void *)bytes,
                          .rates = (struct update_rates *)(void *)(bytes + items_bytes)};
    for (size_t i = 0; i < n_updates; i++) {
        if (updates[i].count > 0) {
            add_item(&table, rule, &updates[i]);
        }
    }
    shoal_status status = launch(rule, &table, bytes);
    mem_free(bytes);
    return status;
}

shoal_status cuda_update(enum kernel_rule rule, const struct kernel_update *updates, size_t n_updates)
{
    shoal_status status = check_updates(rule, updates, n_updates);
    for (size_t done = 0; status == SHOAL_OK && done < n_updates && !cuda_has_failed(); done += RATES_MOST) {
        size_t left = n_updates - done;
        status = run(rule, updates + done, left < RATES_MOST ? left : RATES_MOST);
    }
    return status;
}
