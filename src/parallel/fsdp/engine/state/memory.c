/* SPDX-License-Identifier: MIT */
/* Counts the memory of a context, and describes it. */
#include "parallel/fsdp/engine/state/memory.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

#define MB 1e6

void fsdp_memory_add(struct fsdp_memory *memory, enum fsdp_memory_kind kind, size_t bytes)
{
    memory->now[kind] += bytes;
    memory->total += bytes;
    memory->peak[kind] = memory->now[kind] > memory->peak[kind] ? memory->now[kind] : memory->peak[kind];
    memory->total_peak = memory->total > memory->total_peak ? memory->total : memory->total_peak;
}

void fsdp_memory_remove(struct fsdp_memory *memory, enum fsdp_memory_kind kind, size_t bytes)
{
    memory->now[kind] -= bytes;
    memory->total -= bytes;
}

static size_t count_shards(const struct fsdp_context *context)
{
    size_t bytes = 0;
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        for (size_t k = 0; k < unit->n_params; k++) {
            bytes += unit->params[k].padded_count * dtype_bytes(unit->params[k].dtype);
        }
    }
    return bytes;
}

static shoal_fsdp_memory_amounts amounts_of(size_t shards, const size_t *kinds, size_t total)
{
    return (shoal_fsdp_memory_amounts){.shards = shards,
                                       .gradients = kinds[FSDP_MEMORY_GRADIENTS],
                                       .windows = kinds[FSDP_MEMORY_WINDOWS],
                                       .buffers = kinds[FSDP_MEMORY_BUFFERS],
                                       .other = kinds[FSDP_MEMORY_OTHER],
                                       .total = shards + total};
}

static shoal_fsdp_memory_amounts multiply(const shoal_fsdp_memory_amounts *rank, size_t n)
{
    return (shoal_fsdp_memory_amounts){.shards = rank->shards * n,
                                       .gradients = rank->gradients * n,
                                       .windows = rank->windows * n,
                                       .buffers = rank->buffers * n,
                                       .other = rank->other * n,
                                       .total = rank->total * n};
}

shoal_status fsdp_memory_report(const char *call, const struct fsdp_context *context,
                                shoal_fsdp_memory_report *report_out)
{
    const struct fsdp_memory *memory = &context->memory;
    const struct fsdp_mesh *mesh = &context->domains[0]->mesh;
    bool has_common = context->common_n_ranks > 0;
    size_t n_ranks = (size_t)(has_common ? context->common_n_ranks : fsdp_mesh_n_ranks(mesh));
    size_t shards = count_shards(context);
    shoal_fsdp_memory_report report = {.struct_size = sizeof report, .n_ranks = (int)n_ranks};
    report.rank = amounts_of(shards, memory->now, memory->total);
    report.rank_peak = amounts_of(shards, memory->peak, memory->total_peak);
    size_t n_local = (size_t)(has_common ? context->common_n_local : mesh->n_local);
    report.host = multiply(&report.rank, n_local);
    report.host_peak = multiply(&report.rank_peak, n_local);
    shoal_status status = struct_size_write("report_out", report_out, sizeof(size_t), &report, sizeof report);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

/* Words -------------------------------------------------------------------------------------------------- */

static size_t append(char *text, size_t bytes, size_t at, const char *words)
{
    size_t length = strlen(words);
    if (at + 1 < bytes) {
        size_t room = bytes - at - 1;
        size_t n = length < room ? length : room;
        memcpy(text + at, words, n);
        text[at + n] = '\0';
    }
    return at + length;
}

static size_t append_row(char *text, size_t bytes, size_t at, const char *name,
                         const shoal_fsdp_memory_amounts *row)
{
    char words[160];
    (void)snprintf(words, sizeof words, "%-10s %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", name,
                   (double)row->shards / MB, (double)row->gradients / MB, (double)row->windows / MB,
                   (double)row->buffers / MB, (double)row->other / MB, (double)row->total / MB);
    return append(text, bytes, at, words);
}

size_t shoal_fsdp_memory_text(const shoal_fsdp_memory_report *report, char *text, size_t bytes)
{
    char words[160];
    size_t at = 0;
    shoal_fsdp_memory_report known = {.n_ranks = 0};
    if (bytes > 0 && text) {
        text[0] = '\0';
    }
    if (!report || report->struct_size < sizeof(size_t)) {
        return 0;
    }
    memcpy(&known, report, report->struct_size < sizeof known ? report->struct_size : sizeof known);
    bytes = text ? bytes : 0;
    (void)snprintf(words, sizeof words, "%-10s %10s %10s %10s %10s %10s %10s\n", "MB", "shards", "gradients",
                   "windows", "buffers", "other", "total");
    at = append(text, bytes, at, words);
    at = append_row(text, bytes, at, "rank", &known.rank);
    at = append_row(text, bytes, at, "rank peak", &known.rank_peak);
    at = append_row(text, bytes, at, "host", &known.host);
    return append_row(text, bytes, at, "host peak", &known.host_peak);
}
