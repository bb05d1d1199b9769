/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench kernels`: the speed of kernels compared with a memcpy of as many bytes. Both are timed in turns in the
 * same loop, so that a disturbance affects both, and the best of 20 runs counts for each. Bytes are those read plus
 * those written, for memcpy too. Every result is compared with plain C.
 */
#include "bench/cases.h"
#include "measure/measure.h"
#include "bench/launched.h"
#include "bench/benches.h"
#include "common/options.h"
#include "common/tool.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tensor/dtype.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 20,
    MAX_SIZES = 8
};

/* A round runs at least this long, so that reading the clock does not count. */
static const double round_seconds = 200e-6;
static const double op_overhead_limit_ns = 300;

struct request {
    bool is_json;
    const char *variant; /* NULL means all */
    const char *kernel;  /* NULL means all */
    size_t sizes_bytes[MAX_SIZES];
    size_t n_sizes;
};

struct result {
    double gbps;
    double memcpy_gbps;
    size_t wrong;
};

/* Measuring ---------------------------------------------------------------------------------------------- */

static double seconds_since(int64_t begin_ns)
{
    return (double)(clock_now_ns() - begin_ns) * 1e-9;
}

static double time_case(struct bench_case *one, size_t repeats)
{
    int64_t begin_ns = clock_now_ns();
    for (size_t i = 0; i < repeats; i++) {
        one->row->run(one);
    }
    return seconds_since(begin_ns) / (double)repeats;
}

static double time_memcpy(unsigned char *dst, const unsigned char *src, size_t bytes, size_t repeats)
{
    int64_t begin_ns = clock_now_ns();
    for (size_t i = 0; i < repeats; i++) {
        memcpy(dst, src, bytes);
        /* Nobody reads the copy: without this the compiler may leave it out. */
        __asm__ volatile("" : : "r"(dst) : "memory");
    }
    return seconds_since(begin_ns) / (double)repeats;
}

static shoal_status measure(struct bench_case *one, struct result *result)
{
    size_t half_bytes = one->touched_bytes / 2;
    unsigned char *src = mem_alloc_aligned(half_bytes, MEM_DATA_ALIGNMENT);
    unsigned char *dst = mem_alloc_aligned(half_bytes, MEM_DATA_ALIGNMENT);
    if (!src || !dst) {
        mem_free(src);
        mem_free(dst);
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(src, 1, half_bytes);
    memset(dst, 2, half_bytes);
    double best = (double)INFINITY;
    double memcpy_best = (double)INFINITY;
    size_t repeats = 1 + (size_t)(round_seconds / (time_memcpy(dst, src, half_bytes, 1) + 1e-9));
    for (int round = 0; round < ROUNDS; round++) {
        memcpy_best = fmin(memcpy_best, time_memcpy(dst, src, half_bytes, repeats));
        best = fmin(best, time_case(one, repeats));
    }
    result->gbps = (double)one->touched_bytes / best * 1e-9;
    result->memcpy_gbps = (double)(2 * half_bytes) / memcpy_best * 1e-9;
    result->wrong = bench_case_count_wrong(one);
    mem_free(src);
    mem_free(dst);
    return SHOAL_OK;
}

/* Printing ----------------------------------------------------------------------------------------------- */

static void print_header(const struct simd_table *in_use)
{
    measure_print_cpu(stdout);
    printf("# compiler  %s\n", TOOL_COMPILER);
    printf("# variant   %s (*)\n", in_use->name);
    printf(
        "# gbps      bytes read and written / best of %d, 1e9 bytes per second; ratio = gbps / memcpy_gbps\n",
        ROUNDS);
    printf("%-7s %-10s %10s %-10s %8s %12s %6s %6s\n", "kernel", "dtype", "bytes", "variant", "gbps",
           "memcpy_gbps", "ratio", "wrong");
}

static void print_row(const struct request *request, const struct bench_case *one,
                      const struct simd_table *table, bool is_default, const struct result *result)
{
    const struct bench_row *row = one->row;
    char dtype[32];
    char variant[32];
    snprintf(dtype, sizeof(dtype), "%s%s%s", shoal_dtype_name(row->src_dtype),
             row->src_dtype == row->dst_dtype ? "" : "->",
             row->src_dtype == row->dst_dtype ? "" : shoal_dtype_name(row->dst_dtype));
    double ratio = result->gbps / result->memcpy_gbps;
    if (request->is_json) {
        printf(
            "{\"kernel\": \"%s\", \"dtype\": \"%s\", \"bytes\": %zu, \"variant\": \"%s\", "
            "\"is_default\": %s, \"gbps\": %.2f, \"memcpy_gbps\": %.2f, \"ratio\": %.3f, \"wrong\": %zu}\n",
            row->kernel, dtype, one->touched_bytes, table->name, is_default ? "true" : "false", result->gbps,
            result->memcpy_gbps, ratio, result->wrong);
    } else {
        snprintf(variant, sizeof(variant), "%s%s", table->name, is_default ? "*" : "");
        printf("%-7s %-10s %10zu %-10s %8.1f %12.1f %6.2f %6zu%s\n", row->kernel, dtype, one->touched_bytes,
               variant, result->gbps, result->memcpy_gbps, ratio, result->wrong,
               is_default && ratio < row->least_ratio ? "  below the promised ratio" : "");
    }
    fflush(stdout);
}

/* False when it could not be measured. */
static bool print_op_overhead(const struct request *request)
{
    double overhead_ns = bench_op_overhead_ns();
    if (isnan(overhead_ns)) {
        fprintf(stderr, "shoal bench kernels: op_overhead_ns: %s\n", shoal_error_text());
    } else if (request->is_json) {
        printf("{\"kernel\": \"op_overhead_ns\", \"ns\": %.1f}\n", overhead_ns);
    } else {
        printf("op_overhead_ns %.1f%s\n", overhead_ns,
               overhead_ns < op_overhead_limit_ns ? "" : "  above the promised 300");
    }
    return !isnan(overhead_ns);
}

/* Running ------------------------------------------------------------------------------------------------ */

/* All variants of one row at one size, on the same buffers. */
static shoal_status run_row(const struct request *request, const struct simd_table *in_use,
                            const struct bench_row *row, size_t touched_bytes, size_t *wrong)
{
    struct bench_case one;
    shoal_status status = bench_case_init(&one, row, touched_bytes);
    const struct simd_table *table;
    for (size_t v = 0; status == SHOAL_OK && (table = simd_variant(v)); v++) {
        if (request->variant && strcmp(request->variant, table->name) != 0) {
            continue;
        }
        struct result result;
        simd_table_set(table);
        memset(one.dst, 0, one.dst_bytes);
        status = measure(&one, &result);
        simd_table_set(in_use);
        if (status == SHOAL_OK) {
            print_row(request, &one, table, table == in_use, &result);
            *wrong += result.wrong;
        }
    }
    bench_case_fini(&one);
    return status;
}

static int run_request(const struct request *request)
{
    const struct simd_table *in_use = simd_table();
    size_t wrong = 0;
    bool is_complete = true;
    if (!request->is_json) {
        print_header(in_use);
    }
    for (size_t s = 0; s < request->n_sizes; s++) {
        for (size_t r = 0; r < bench_n_rows; r++) {
            if (request->kernel && strcmp(request->kernel, bench_rows[r].kernel) != 0) {
                continue;
            }
            if (run_row(request, in_use, &bench_rows[r], request->sizes_bytes[s], &wrong) != SHOAL_OK) {
                fprintf(stderr, "shoal bench kernels: %s\n", shoal_error_text());
                return TOOL_FAILED;
            }
        }
    }
    if (!request->kernel || strcmp(request->kernel, "op_overhead_ns") == 0) {
        is_complete = print_op_overhead(request);
    }
    return is_complete && wrong == 0 ? TOOL_DONE : TOOL_FAILED;
}

/* Arguments ---------------------------------------------------------------------------------------------- */

static const char *variant_at(size_t index)
{
    const struct simd_table *table = simd_variant(index);
    return table ? table->name : NULL;
}

/* Rows of one kernel follow each other. */
static const char *kernel_at(size_t index)
{
    size_t n_before = 0;
    for (size_t r = 0; r < bench_n_rows; r++) {
        bool is_new = r == 0 || strcmp(bench_rows[r - 1].kernel, bench_rows[r].kernel) != 0;
        if (is_new && n_before++ == index) {
            return bench_rows[r].kernel;
        }
    }
    return index == n_before ? "op_overhead_ns" : NULL;
}

#define AT(field) offsetof(struct request, field)

static const struct tool_option option_rows[] = {
    {"--variant", "NAME", TOOL_OPTION_NAME, AT(variant), .name_at = variant_at,
     .help = "only this set of vector instructions"},
    {"--kernel", "NAME", TOOL_OPTION_NAME, AT(kernel), .name_at = kernel_at, .help = "only this"},
    {"--bytes", "B", TOOL_OPTION_BYTES, AT(sizes_bytes), 1024, (double)((int64_t)1 << 38),
     .max_values = MAX_SIZES, .n_values_at = AT(n_sizes),
     .help = "read and written per run, at least 1K, again for more sizes; default 512K and 192M"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(is_json), .help = "one object per line"},
};

const struct tool_options bench_kernels_options = {
    .about = "Measures kernels, compared with memcpy of as many bytes.\n",
    TOOL_OPTIONS_ROWS(option_rows),
    .notes = "A row of the default variant is marked when its ratio to memcpy is below 0.8 for f32 or 0.6 "
             "for bf16.\n"
             "A run with the default sizes takes about half a minute.\n",
};

int bench_kernels(int argc, char **argv)
{
    struct request request = {.is_json = false};
    int exit_status;
    if (!tool_options_read(&bench_kernels_options, argc, argv, &request, NULL, &exit_status)) {
        return exit_status;
    }
    if (request.n_sizes == 0) {
        request.sizes_bytes[request.n_sizes++] = (size_t)512 << 10;
        request.sizes_bytes[request.n_sizes++] = (size_t)192 << 20;
    }
    return bench_is_checking() ? TOOL_DONE : run_request(&request);
}
