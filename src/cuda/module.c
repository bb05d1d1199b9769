/* SPDX-License-Identifier: MIT */
/* The row of device `cuda`. */
#include <stdio.h>

#include "cuda/driver.h"
#include "cuda/failure.h"
#include "cuda/gpu.h"
#include "cuda/image.h"
#include "cuda/memory.h"
#include "cuda/programs.h"
#include "cuda/services.h"
#include "cuda/share.h"
#include "cuda/stream.h"
#include "cuda/table.h"

#define DLPACK_CUDA 2

static struct device_row row = {
    DEVICE_ROW_INIT,
    .has_data = true,
    .name = "cuda",
    .doc = "a GPU of NVIDIA",
    .dlpack = DLPACK_CUDA,
    .kernels = &cuda_kernels,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .take_host = cuda_pinned_take,
    .give_host = cuda_pinned_give,
    .failure = cuda_failure,
    .share_create = cuda_share_create,
    .share_map = cuda_share_map,
    .share_drop = cuda_share_drop,
    .streams = &cuda_streams,
    .report = cuda_report,
    .programs = &cuda_programs,
};

/* "NVIDIA H200, compute capability 9.0, 139.8 GiB; driver of CUDA 13.0, libcuda.so.1; kernels from ptx" */
static void describe(void)
{
    static char doc[400];
    (void)snprintf(doc, sizeof doc,
                   "%.80s, compute capability %d.%d, %.1f GiB; driver of CUDA %d.%d, %.100s; kernels from %s",
                   cuda_gpu.name, cuda_gpu.capability / 10, cuda_gpu.capability % 10,
                   (double)cuda_gpu.memory_bytes / (1 << 30), cuda_gpu.driver_version / 1000,
                   cuda_gpu.driver_version % 1000 / 10, cuda_driver_path(),
                   cuda_images[0].cubin ? "cubin or ptx" : "ptx");
    row.doc = doc;
}

const struct device_row *shoal_device_module(const struct device_services *services)
{
    if (services->interface != DEVICE_INTERFACE || services->struct_size < sizeof *services) {
        return NULL;
    }
    cuda_services = services;
    cuda_row = &row;
    if (cuda_open() != SHOAL_OK || cuda_memory_open() != SHOAL_OK) {
        return NULL;
    }
    row.dlpack_id = cuda_gpu.ordinal;
    describe();
    return &row;
}
