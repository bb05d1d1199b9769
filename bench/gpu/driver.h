/* SPDX-License-Identifier: MIT */
/* The CUDA driver as the benchmarks of this folder call it beside the library: events with times, copies, and the stream of the
   library's work. Whatever fails ends the program with a text. */
#ifndef GPU_DRIVER_H
#define GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "counted.h"
#include "cuda/driver_types.h"
#include "device/address.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

struct gpu_driver {
#define CUDA_CALL(name, parameters) cuda_result(*name) parameters;
#include "cuda/driver.def"
    CUDA_CALL(cuEventElapsedTime, (float *ms_out, struct CUevent_st *begin, struct CUevent_st *end))
#undef CUDA_CALL
};
extern struct gpu_driver cu;

/* Finds device "cuda", whose number it returns, and makes its context the thread's. */
shoal_device gpu_open(void);
/* What the driver that counts has counted (counted.h); NULL if SHOAL_CUDA names another one. */
struct counted *gpu_counted(void);
/* Of the library's work. */
struct CUstream_st *gpu_stream(void);
void gpu_wait(void);

void gpu_check(cuda_result result, const char *call);
#define GPU(call) gpu_check(cu.call, #call)
/* Ends the program if a call of the library has failed. */
void gpu_need(shoal_status status, const char *what);
void gpu_end(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Memory of the device, of the library's pool. */
struct address gpu_allocate(size_t bytes);
void gpu_free(struct address memory);
/* Behind the library's work, and done when the call returns. */
void gpu_upload(struct address target, const void *source, size_t bytes);
void gpu_download(void *target, struct address source, size_t bytes);
void gpu_poison(struct address target, size_t bytes);

/* Microseconds between two places in the stream. */
struct gpu_timer {
    struct CUevent_st *begin;
    struct CUevent_st *end;
};
struct gpu_timer gpu_timer_make(void);
void gpu_timer_begin(const struct gpu_timer *timer);
double gpu_timer_end_us(const struct gpu_timer *timer);

double gpu_median(double *values, size_t n_values);

#endif
