/* SPDX-License-Identifier: MIT */
/*
 * The speed of the kernels of device "cuda", as the library calls them (kernel/table.h), beside what the memory of the GPU can
 * do: the ceiling is the better of the driver's copy and a flat copy, 4 GiB read and written.
 *
 *   gpu_kernels [--only WORDS] [--samples 60] [--divisor 1] [--large yes] [--json FILE]
 *
 *   --only     rows whose names have these words; those that the ceiling needs are always measured
 *   --divisor  divides the sizes, to try the program; what it then prints are no results
 *   --large    only compares bits, of tensors with more than 4 GiB
 *   --json     a line for each row, for bench/gpu/table.py
 *
 * A sample is the time between two events around several runs, by the number of runs. A copy stands before the first event, so
 * that all of them are queued when it ends: the host's time does not count. Regions are taken in turns, so that more than 180
 * MB are read before one comes again, except in rows that are called warm. Before the times, one run is compared with the
 * CPU's kernel, bit by bit. Exit status 3 if one differs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cases.h"
#include "driver.h"
#include "shoal/dtype.h"

enum {
    SETS_MOST = 64,
    SAMPLES_MOST = 1000,
    WARMUPS = 3,
    RUNS_SHORT = 24,
    RUNS_LONG = 4,
    PATTERN_BYTES = 16 << 20
};

#define ROTATED_BYTES ((size_t)190 * 1000 * 1000)
#define LONG_BYTES ((size_t)100 * 1000 * 1000)
#define DELAY_BYTES ((size_t)1 << 30)

static struct {
    const char *only;
    const char *json;
    int samples;
    int divisor;
    bool is_large;
} request = {.samples = 60, .divisor = 1};

static shoal_device device;
static struct gpu_timer timer;
static struct address delay[2];
static size_t delay_bytes;
static double ceiling; /* bytes in a microsecond */
static size_t n_wrong;
static FILE *json;

struct regions {
    size_t n_sets;
    size_t in_step;
    size_t out_step;
    struct address in;
    struct address out;
};

/* Values ------------------------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + CASE_ALIGNMENT - 1) / CASE_ALIGNMENT * CASE_ALIGNMENT;
}

/* Random numbers between 1/128 and 2, of either sign, as bf16 and, in pairs, as f32. */
static void fill_pattern(uint16_t *values, size_t count, uint16_t kept_bits)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint16_t random = (uint16_t)(state >> 24);
        values[i] = (uint16_t)((random & kept_bits) | (0x3c00 + (random & 0x0380)));
    }
}

static void fill(struct address region, size_t bytes, uint16_t kept_bits)
{
    static uint16_t *pattern;
    if (bytes == 0) {
        return;
    }
    pattern = pattern ? pattern : malloc(PATTERN_BYTES);
    if (!pattern) {
        gpu_end("no memory");
    }
    fill_pattern(pattern, PATTERN_BYTES / sizeof pattern[0], kept_bits);
    size_t done = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    gpu_upload(region, pattern, done);
    for (size_t n; done < bytes; done += n) {
        n = done < bytes - done ? done : bytes - done;
        GPU(cuMemcpyDtoDAsync(address_number(region) + done, address_number(region), n, gpu_stream()));
    }
    gpu_wait();
}

static void fill_regions(const struct case_work *work, const struct regions *regions)
{
    fill(regions->in, regions->n_sets * regions->in_step, 0x807f);
    if (work->row->kind == CASE_SQUARES) {
        struct kernel_squares squares;
        kernel_squares_init(&squares);
        gpu_upload(regions->out, &squares, sizeof squares);
    } else if (work->is_out_read) {
        fill(regions->out, work->out_bytes, 0x807f);
        fill(address_add(regions->out, (ptrdiff_t)work->positive_at), work->out_bytes - work->positive_at,
             0x007f);
    }
}

/* Bits --------------------------------------------------------------------------------------------------- */

/* In large pages, which are there sooner. */
static void *allocate(size_t bytes)
{
    const size_t page = (size_t)2 << 20;
    const size_t rounded = (bytes + page - 1) / page * page;
    void *memory = aligned_alloc(page, rounded);
    if (!memory) {
        gpu_end("no memory");
    }
    (void)madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
}

/* Sums of squares that are equal may be written in several ways. */
static bool are_equal(const struct case_work *work, const void *found, const void *wanted)
{
    if (work->row->kind == CASE_SQUARES) {
        double numbers[] = {kernel_squares_round(found), kernel_squares_round(wanted)};
        return memcmp(&numbers[0], &numbers[1], sizeof numbers[0]) == 0;
    }
    return memcmp(found, wanted, work->out_bytes) == 0;
}

/* One run on the first regions, and the CPU's kernel on copies of them. */
static bool compare(const struct case_work *work, const struct regions *regions)
{
    void *in = allocate(work->in_bytes);
    void *found = allocate(work->out_bytes);
    void *wanted = allocate(work->out_bytes);
    if (!work->is_out_read) {
        gpu_poison(regions->out, work->out_bytes);
    }
    gpu_download(in, regions->in, work->in_bytes);
    gpu_download(wanted, regions->out, work->out_bytes);
    case_run(work, kernel_of(device), regions->in, regions->out);
    gpu_download(found, regions->out, work->out_bytes);
    case_run(work, &kernel_host_table, address_of(in), address_of(wanted));
    bool is_equal = are_equal(work, found, wanted);
    free(in);
    free(found);
    free(wanted);
    return is_equal;
}

/* Times -------------------------------------------------------------------------------------------------- */

static void run(const struct case_work *work, const struct regions *regions, size_t *set)
{
    struct address in = address_add(regions->in, (ptrdiff_t)(*set * regions->in_step));
    struct address out = address_add(regions->out, (ptrdiff_t)(*set * regions->out_step));
    if (work->row->kind == CASE_MEMCPY) {
        GPU(cuMemcpyDtoDAsync(address_number(out), address_number(in), work->count, gpu_stream()));
    } else {
        case_run(work, kernel_of(device), in, out);
    }
    *set = (*set + 1) % regions->n_sets;
}

static int count_runs(const struct case_work *work)
{
    return work->moved_bytes > LONG_BYTES || work->row->kind == CASE_MEMCPY ? RUNS_LONG : RUNS_SHORT;
}

static double sample(const struct case_work *work, const struct regions *regions, size_t *set)
{
    const int n_runs = count_runs(work);
    GPU(cuMemcpyDtoDAsync(address_number(delay[1]), address_number(delay[0]), delay_bytes, gpu_stream()));
    gpu_timer_begin(&timer);
    for (int i = 0; i < n_runs; i++) {
        run(work, regions, set);
    }
    return gpu_timer_end_us(&timer) / n_runs;
}

/* Medians of both, in turns; `flat` may be NULL. */
static void measure(const struct case_work *work, const struct case_work *flat, const struct regions *regions,
                    double *us_out, double *flat_us_out)
{
    static double times[2][SAMPLES_MOST];
    size_t sets[2] = {0, 0};
    for (int i = -WARMUPS; i < request.samples; i++) {
        double us = sample(work, regions, &sets[0]);
        double flat_us = flat ? sample(flat, regions, &sets[1]) : 0;
        if (i >= 0) {
            times[0][i] = us;
            times[1][i] = flat_us;
        }
    }
    *us_out = gpu_median(times[0], (size_t)request.samples);
    *flat_us_out = gpu_median(times[1], (size_t)request.samples);
}

/* Rows --------------------------------------------------------------------------------------------------- */

struct result {
    double us;
    double flat_us; /* 0: not measured */
    double of_ceiling;
    double ratio;        /* that the bar is about */
    const char *verdict; /* NULL: no bar */
    bool is_wrong;
    uint64_t n_launches; /* of a run; 0: not counted */
};

static void judge(const struct case_row *row, struct result *result)
{
    bool is_met = false;
    result->ratio = result->of_ceiling;
    if (row->bar == BAR_FLAT) {
        result->ratio = result->us / result->flat_us;
    } else if (row->bar == BAR_BYTES) {
        result->ratio = 1 / result->of_ceiling;
    }
    is_met = row->bar == BAR_CEILING ? result->ratio >= row->bound : result->ratio <= row->bound;
    result->verdict = row->bar == BAR_NONE ? NULL : is_met ? "met" : "missed";
}

static const char *describe_bar(const struct case_row *row, char text[64])
{
    static const struct {
        const char *bound;
        const char *of;
    } words[] = {[BAR_NONE] = {"", ""},
                 [BAR_CEILING] = {"at least", "of the ceiling"},
                 [BAR_FLAT] = {"at most", "of a flat copy"},
                 [BAR_BYTES] = {"at most", "of bytes / ceiling"}};
    text[0] = '\0';
    if (row->bar != BAR_NONE) {
        (void)snprintf(text, 64, "%s %.2f %s", words[row->bar].bound, row->bound, words[row->bar].of);
    }
    return text;
}

static void print(const struct case_work *work, const struct regions *regions, const struct result *result)
{
    char bar[64];
    const struct case_row *row = work->row;
    const double tbps = (double)work->moved_bytes / result->us * 1e-6;
    printf("%-34s %9.1f %9.2f %7.3f %6.1f %9.2f  %-30s %.3f %s%s\n", row->name,
           (double)work->moved_bytes * 1e-6, result->us, tbps, 100 * result->of_ceiling, result->flat_us,
           describe_bar(row, bar), result->ratio, result->verdict ? result->verdict : "-",
           result->is_wrong ? " WRONG" : "");
    (void)fflush(stdout);
    if (json) {
        (void)fprintf(
            json,
            "{\"bench\": \"gpu_kernels\", \"case\": \"%s\", \"bytes\": %zu, \"us\": %.3f, \"tbps\": %.4f, "
            "\"of_ceiling\": %.4f, \"flat_us\": %.3f, \"bar\": \"%s\", \"ratio\": %.4f, \"verdict\": \"%s\", "
            "\"wrong\": %d, \"launches\": %d, \"sets\": %zu, \"samples\": %d, \"runs\": %d, \"divisor\": "
            "%d}\n",
            row->name, work->moved_bytes, result->us, tbps, result->of_ceiling, result->flat_us, bar,
            result->ratio, result->verdict ? result->verdict : "", result->is_wrong, (int)result->n_launches,
            regions->n_sets, request.samples, count_runs(work), request.divisor);
        (void)fflush(json);
    }
}

/* A flat copy that reads and writes as many bytes, in the same regions. */
static struct case_work size_flat(const struct case_work *work)
{
    static const struct case_row row = {.name = "flat", .kind = CASE_FLAT, .model = MODEL_NONE, .n_ranks = 1};
    struct case_work flat = {.row = &row, .count = work->moved_bytes / 2 / 16 * 16};
    flat.moved_bytes = 2 * flat.count;
    return flat;
}

static struct regions make_regions(const struct case_work *work, bool has_flat)
{
    const size_t half = work->moved_bytes / 2;
    struct regions regions = {.in_step = work->in_bytes, .out_step = work->out_bytes, .n_sets = 1};
    regions.in_step = round_up(has_flat && half > work->in_bytes ? half : work->in_bytes);
    regions.out_step = round_up(has_flat && half > work->out_bytes ? half : work->out_bytes);
    if (!work->row->is_warm && !work->is_out_read) {
        size_t n_sets = (ROTATED_BYTES / (size_t)request.divisor + work->in_bytes - 1) / work->in_bytes;
        regions.n_sets = n_sets < SETS_MOST ? n_sets : SETS_MOST;
    }
    regions.in = gpu_allocate(regions.n_sets * regions.in_step);
    regions.out = gpu_allocate(regions.n_sets * regions.out_step);
    return regions;
}

static uint64_t count_launches(const struct case_work *work, const struct regions *regions)
{
    struct counted *counted = gpu_counted();
    size_t set = 0;
    uint64_t before = counted ? atomic_load(&counted->n_launches) : 0;
    run(work, regions, &set);
    gpu_wait();
    return counted ? atomic_load(&counted->n_launches) - before : 0;
}

static void run_row(const struct case_row *row)
{
    static struct case_work work;
    struct result result = {.us = 0};
    case_size(&work, row, request.divisor);
    const bool has_flat = row->bar == BAR_FLAT;
    struct case_work flat = size_flat(&work);
    struct regions regions = make_regions(&work, has_flat);
    fill_regions(&work, &regions);
    result.is_wrong = row->kind != CASE_MEMCPY && !compare(&work, &regions);
    n_wrong += result.is_wrong;
    result.n_launches = count_launches(&work, &regions);
    measure(&work, has_flat ? &flat : NULL, &regions, &result.us, &result.flat_us);
    const double speed = (double)work.moved_bytes / result.us;
    if (row->kind == CASE_MEMCPY || row->kind == CASE_FLAT) {
        ceiling = fmax(ceiling, speed);
    }
    result.of_ceiling = speed / ceiling;
    judge(row, &result);
    print(&work, &regions, &result);
    gpu_free(regions.in);
    gpu_free(regions.out);
}

/* The program -------------------------------------------------------------------------------------------- */

static void read_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && strcmp(argv[i], "--only") == 0) {
            request.only = value;
        } else if (value && strcmp(argv[i], "--json") == 0) {
            request.json = value;
        } else if (value && strcmp(argv[i], "--large") == 0) {
            request.is_large = strcmp(value, "yes") == 0;
        } else if (value && strcmp(argv[i], "--samples") == 0) {
            request.samples = (int)strtol(value, NULL, 10);
        } else if (value && strcmp(argv[i], "--divisor") == 0) {
            request.divisor = (int)strtol(value, NULL, 10);
        } else {
            gpu_end(
                "usage: gpu_kernels [--only WORDS] [--samples 60] [--divisor 1] [--large yes] [--json FILE]");
        }
    }
    if (request.samples < 1 || request.samples > SAMPLES_MOST || request.divisor < 1) {
        gpu_end("gpu_kernels: --samples from 1 to %d, --divisor at least 1", SAMPLES_MOST);
    }
}

static void make_delay(void)
{
    delay_bytes = DELAY_BYTES / (size_t)request.divisor;
    delay[0] = gpu_allocate(delay_bytes);
    delay[1] = gpu_allocate(delay_bytes);
    fill(delay[0], delay_bytes, 0x807f);
}

static void run_rows(void)
{
    timer = gpu_timer_make();
    make_delay();
    printf("%-34s %9s %9s %7s %6s %9s  %s\n", request.divisor > 1 ? "(small: no results)" : "row", "MB", "us",
           "TB/s", "%", "flat us", "bar, what was measured of it, and whether it is met");
    for (size_t i = 0; i < case_n_rows; i++) {
        const struct case_row *row = &case_rows[i];
        bool is_ceiling = row->kind == CASE_MEMCPY || row->kind == CASE_FLAT;
        if (is_ceiling || !request.only || strstr(row->name, request.only)) {
            run_row(row);
        }
    }
}

static void run_large_rows(void)
{
    static struct case_work work;
    for (size_t i = 0; i < case_n_large_rows; i++) {
        case_size(&work, &case_large_rows[i], request.divisor);
        struct regions regions = make_regions(&work, /*has_flat=*/false);
        fill_regions(&work, &regions);
        bool is_wrong = !compare(&work, &regions);
        n_wrong += is_wrong;
        printf("%-24s %7.2f GB in, %7.2f GB out: %s\n", work.row->name, (double)work.in_bytes * 1e-9,
               (double)work.out_bytes * 1e-9, is_wrong ? "WRONG" : "the CPU's bits");
        (void)fflush(stdout);
        if (json) {
            (void)fprintf(
                json,
                "{\"bench\": \"gpu_large\", \"case\": \"%s\", \"in_bytes\": %zu, \"out_bytes\": %zu, "
                "\"wrong\": %d}\n",
                work.row->name, work.in_bytes, work.out_bytes, is_wrong);
        }
        gpu_free(regions.in);
        gpu_free(regions.out);
    }
}

int main(int argc, char **argv)
{
    read_arguments(argc, argv);
    json = request.json ? fopen(request.json, "w") : NULL;
    if (request.json && !json) {
        gpu_end("%s cannot be written", request.json);
    }
    device = gpu_open();
    if (request.is_large) {
        run_large_rows();
    } else {
        run_rows();
    }
    if (json) {
        (void)fclose(json);
    }
    return n_wrong == 0 ? 0 : 3;
}
