/* SPDX-License-Identifier: MIT */
/* The calls of shoal/cuda.h: device "cuda" does them (src/cuda). */
#include "shoal/cuda.h"

#include "base/error.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "device/device.h"
#include "device/stream.h"
#include "shoal/dlpack.h"

#define DEVICE_NAME "cuda"
#define LEGACY_STREAM 1 /* its number in DLPack's protocol */

/* Loads the device if need be. */
static shoal_status find(const struct device_row **row_out)
{
    shoal_device device;
    TRY(device_find(DEVICE_NAME, &device));
    *row_out = device_row(device);
    TRY((*row_out)->failure());
    return (*row_out)->programs && (*row_out)->report
               ? SHOAL_OK
               : error_set(SHOAL_ERR_UNSUPPORTED, "device " DEVICE_NAME " has no such functions");
}

static shoal_status fail_null(const char *name)
{
    return error_set(SHOAL_ERR_INVALID, "%s is NULL", name);
}

static shoal_status end(const char *call, shoal_status status)
{
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

/* Streams and memory ------------------------------------------------------------------------------------- */

static shoal_status set_stream(void *stream)
{
    shoal_device device;
    TRY(device_find(DEVICE_NAME, &device));
    return shoal_device_use_stream(device, stream ? (int64_t)(uintptr_t)stream : LEGACY_STREAM);
}

shoal_status shoal_cuda_set_stream(void *stream)
{
    error_clear();
    return end("cuda_set_stream", set_stream(stream));
}

static shoal_cuda_usage usage_of(struct device_usage usage)
{
    return (shoal_cuda_usage){.now = usage.now, .most = usage.most};
}

static shoal_status get_memory(shoal_cuda_memory *memory, bool resets_most)
{
    const struct device_row *row;
    struct device_report report = {.total_bytes = 0};
    TRY(memory ? SHOAL_OK : fail_null("memory"));
    TRY(find(&row));
    TRY(row->report(&report, resets_most));
    const shoal_cuda_memory found = {.struct_size = sizeof found,
                                     .tensors = usage_of(report.causes[DEVICE_TENSORS]),
                                     .buffers = usage_of(report.causes[DEVICE_BUFFERS]),
                                     .reserved = usage_of(report.reserved),
                                     .pinned = usage_of(report.host),
                                     .free_bytes = report.free_bytes,
                                     .total_bytes = report.total_bytes};
    return struct_size_write("memory", memory, sizeof(size_t), &found, sizeof found);
}

shoal_status shoal_cuda_get_memory(shoal_cuda_memory *memory, bool resets_most)
{
    error_clear();
    return end("cuda_get_memory", get_memory(memory, resets_most));
}

/* Kernels of the program --------------------------------------------------------------------------------- */

/* A program is the module's: these two only change its type. */
static shoal_cuda_program *program_of(void *loaded)
{
    return (shoal_cuda_program *)loaded;
}

static shoal_status load(const void *image, shoal_cuda_program **program_out)
{
    const struct device_row *row;
    void *loaded = NULL;
    TRY(image && program_out ? SHOAL_OK : fail_null(image ? "program_out" : "image"));
    TRY(find(&row));
    TRY(row->programs->load(image, &loaded));
    *program_out = program_of(loaded);
    return SHOAL_OK;
}

shoal_status shoal_cuda_load(const void *image, shoal_cuda_program **program_out)
{
    error_clear();
    return end("cuda_load", load(image, program_out));
}

void shoal_cuda_unload(shoal_cuda_program *program)
{
    shoal_device device;
    if (program && device_find_known(DEVICE_NAME, &device) && !device_is_inherited(device)) {
        device_row(device)->programs->unload(program);
    }
}

static shoal_status launch(shoal_cuda_program *program, const char *kernel, const shoal_cuda_grid *grid,
                           void **arguments)
{
    const struct device_row *row;
    if (!program || !kernel || !grid) {
        return fail_null(!program ? "program" : kernel ? "grid" : "kernel");
    }
    TRY(find(&row));
    return row->programs->launch(program, kernel, grid->blocks, grid->threads, grid->shared_bytes, arguments);
}

shoal_status shoal_cuda_launch(shoal_cuda_program *program, const char *kernel, const shoal_cuda_grid *grid,
                               void **arguments)
{
    error_clear();
    return end("cuda_launch", launch(program, kernel, grid, arguments));
}
