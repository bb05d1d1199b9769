/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench nn`: layers, attention and functions of elements, compared with a reference on this machine: matrix
 * products of the same shapes on plain memory, or memcpy. Both are timed in turns, and the best round of each counts.
 */
#include "bench/nn.h"
#include "bench/launched.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "measure/measure.h"
#include "shoal_nn/nn.h"
#include "bench/benches.h"
#include "common/options.h"
#include "common/tool.h"

enum {
    MAX_LENGTHS = 8
};

struct request {
    bool is_json;
    const char *kind; /* NULL means all */
    const char *name; /* NULL means all */
    const char *dtype;
    int n_threads;
    int n_rounds;
    size_t n_tokens;
    size_t n_elements;
    size_t lengths[MAX_LENGTHS];
    size_t n_lengths;
};

/* Seconds of the best round. */
struct result {
    double pass[2]; /* forward, backward */
    double reference[2];
    double reference_work[2];
};

/* Measuring ---------------------------------------------------------------------------------------------- */

static double seconds_since(int64_t begin_ns)
{
    return (double)(clock_now_ns() - begin_ns) * 1e-9;
}

static bool clear_gradients(const struct nn_state *state)
{
    bool is_cleared = true;
    for (int i = 0; i < NN_MAX_INPUTS; i++) {
        if (state->inputs[i] && shoal_requires_grad(state->inputs[i])) {
            is_cleared = is_cleared && shoal_set_grad(state->inputs[i], NULL) == SHOAL_OK;
        }
    }
    return is_cleared;
}

/* One forward and one backward pass, and the same of the reference. */
static bool run_round(const struct nn_state *state, struct result *result)
{
    int64_t begin_ns = clock_now_ns();
    shoal_tensor *output = state->which->forward(state);
    result->pass[0] = fmin(result->pass[0], seconds_since(begin_ns));
    bool is_done = output != NULL;
    if (is_done && state->which->has_backward) {
        begin_ns = clock_now_ns();
        is_done = shoal_backward(output, state->gradient) == SHOAL_OK;
        result->pass[1] = fmin(result->pass[1], seconds_since(begin_ns));
        is_done = is_done && clear_gradients(state);
    }
    for (int i = 0; is_done && i < 1 + state->which->has_backward; i++) {
        begin_ns = clock_now_ns();
        is_done = bench_nn_reference(state, i == 1, &result->reference_work[i]);
        result->reference[i] = fmin(result->reference[i], seconds_since(begin_ns));
    }
    return is_done;
}

static bool measure(const struct nn_state *state, int n_rounds, struct result *result)
{
    const double infinite = (double)INFINITY;
    *result = (struct result){.pass = {infinite, infinite}, .reference = {infinite, infinite}};
    bool is_done = true;
    for (int i = 0; i < n_rounds && is_done; i++) {
        is_done = shoal_scope_begin() == SHOAL_OK && run_round(state, result);
        is_done = shoal_scope_end() == SHOAL_OK && is_done;
    }
    return is_done;
}

/* Printing ----------------------------------------------------------------------------------------------- */

static void print_header(const struct request *request, const shoal_nn_blas *blas)
{
    measure_print_cpu(stdout);
    printf("# compiler  %s\n", TOOL_COMPILER);
    printf("# blas      %s %s, %d threads\n", blas->library, blas->core, blas->n_threads);
    printf("# rate      GFLOP/s of layers and attention, else GB/s read and written; best of %d\n",
           request->n_rounds);
    printf(
        "# reference sgemm of the same shapes, sgemm of 1024x1024x1024 for attention, memcpy for others\n");
    printf("%-10s %-14s %-9s %-15s %-5s %12s %9s %15s %6s\n", "kind", "case", "pass", "shape", "dtype", "us",
           "rate", "reference_rate", "ratio");
}

static void print_row(const struct request *request, const struct nn_state *state, int pass, int n_threads,
                      const struct result *result)
{
    const struct nn_case *which = state->which;
    const char *pass_name = pass == 0 ? "forward" : "backward";
    char shape[64];
    bench_nn_shape_text(state, shape, sizeof(shape));
    double rate = bench_nn_work(state, pass == 1) / result->pass[pass] * 1e-9;
    double reference_rate = result->reference_work[pass] / result->reference[pass] * 1e-9;
    double ratio = rate / reference_rate;
    if (request->is_json) {
        printf("{\"bench\": \"nn\", \"kind\": \"%s\", \"case\": \"%s\", \"pass\": \"%s\", \"shape\": \"%s\", "
               "\"dtype\": \"%s\", \"threads\": %d, \"us\": %.1f, \"rate\": %.2f, \"reference_rate\": %.2f, "
               "\"ratio\": %.3f, \"bar\": %.1f}\n",
               which->kind, which->name, pass_name, shape, shoal_dtype_name(state->dtype), n_threads,
               result->pass[pass] * 1e6, rate, reference_rate, ratio, which->bar);
    } else {
        printf("%-10s %-14s %-9s %-15s %-5s %12.1f %9.1f %15.1f %6.2f%s\n", which->kind, which->name,
               pass_name, shape, shoal_dtype_name(state->dtype), result->pass[pass] * 1e6, rate,
               reference_rate, ratio, ratio < which->bar ? "  below the promised ratio" : "");
    }
    fflush(stdout);
}

/* Running ------------------------------------------------------------------------------------------------ */

static bool run_case(const struct request *request, const struct nn_case *which, size_t size, int n_threads)
{
    shoal_dtype dtype = strcmp(request->dtype, "bf16") == 0  ? SHOAL_BF16
                        : strcmp(request->dtype, "f16") == 0 ? SHOAL_F16
                                                             : SHOAL_F32;
    struct nn_state state = {.which = which};
    struct result result;
    bool is_done =
        shoal_scope_begin() == SHOAL_OK && bench_nn_state_init(&state, which, (int64_t)size, dtype);
    is_done = shoal_scope_end() == SHOAL_OK && is_done;
    is_done = is_done && measure(&state, request->n_rounds, &result);
    for (int pass = 0; is_done && pass < 1 + which->has_backward; pass++) {
        print_row(request, &state, pass, n_threads, &result);
    }
    bench_nn_state_fini(&state);
    return is_done;
}

static bool is_wanted(const struct request *request, const struct nn_case *which)
{
    return (!request->kind || strcmp(request->kind, which->kind) == 0) &&
           (!request->name || strcmp(request->name, which->name) == 0);
}

static bool run_cases(const struct request *request, int n_threads)
{
    bool is_done = true;
    for (size_t i = 0; i < bench_nn_n_cases && is_done; i++) {
        const struct nn_case *which = &bench_nn_cases[i];
        bool is_attention = strcmp(which->kind, "attention") == 0;
        size_t n_sizes = is_attention ? request->n_lengths : 1;
        for (size_t k = 0; k < n_sizes && is_done && is_wanted(request, which); k++) {
            size_t size = is_attention                        ? request->lengths[k]
                          : strcmp(which->kind, "layer") == 0 ? request->n_tokens
                                                              : request->n_elements;
            is_done = run_case(request, which, size, n_threads);
        }
    }
    return is_done;
}

static int run_request(const struct request *request)
{
    shoal_nn_blas blas = SHOAL_NN_BLAS_INIT;
    if (shoal_nn_set_threads(request->n_threads) != SHOAL_OK || shoal_nn_init() != SHOAL_OK ||
        shoal_nn_blas_info(&blas) != SHOAL_OK) {
        fprintf(stderr, "shoal bench nn: %s\n", shoal_error_text());
        return TOOL_FAILED;
    }
    if (!request->is_json) {
        print_header(request, &blas);
    }
    if (!run_cases(request, blas.n_threads)) {
        fprintf(stderr, "shoal bench nn: %s\n", shoal_error_text());
        return TOOL_FAILED;
    }
    return TOOL_DONE;
}

/* Arguments ---------------------------------------------------------------------------------------------- */

static const char *kind_at(size_t index)
{
    static const char *const kinds[] = {"layer", "attention", "element", "row"};
    return index < sizeof(kinds) / sizeof(kinds[0]) ? kinds[index] : NULL;
}

static const char *dtype_at(size_t index)
{
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    return index < sizeof(dtypes) / sizeof(dtypes[0]) ? dtypes[index] : NULL;
}

/* Rows of one case follow each other. */
static const char *name_at(size_t index)
{
    size_t n_before = 0;
    for (size_t i = 0; i < bench_nn_n_cases; i++) {
        bool is_new = i == 0 || strcmp(bench_nn_cases[i - 1].name, bench_nn_cases[i].name) != 0;
        if (is_new && n_before++ == index) {
            return bench_nn_cases[i].name;
        }
    }
    return NULL;
}

#define AT(field) offsetof(struct request, field)

static const struct tool_option option_rows[] = {
    {"--kind", "NAME", TOOL_OPTION_NAME, AT(kind), .name_at = kind_at, .help = "only these"},
    {"--case", "NAME", TOOL_OPTION_NAME, AT(name), .name_at = name_at, .help = "only this"},
    {"--dtype", "NAME", TOOL_OPTION_NAME, AT(dtype), .name_at = dtype_at,
     .help = "of the tensors; references are f32"},
    {"--threads", "N", TOOL_OPTION_INT, AT(n_threads), 1, 1024,
     .help = "of products and of everything else; default 1"},
    {"--tokens", "N", TOOL_OPTION_COUNT, AT(n_tokens), 1, 1 << 20, .help = "rows of a layer; default 1024"},
    {"--length", "T", TOOL_OPTION_COUNT, AT(lengths), 1, 1 << 20, .max_values = MAX_LENGTHS,
     .n_values_at = AT(n_lengths), .help = "of attention, again for more; default 1024, 2048 and 4096"},
    {"--elements", "N", TOOL_OPTION_COUNT, AT(n_elements), 1, 1 << 28,
     .help = "of functions of elements and rows; default 1048576"},
    {"--rounds", "N", TOOL_OPTION_INT, AT(n_rounds), 1, 1 << 20,
     .help = "of which the best counts; default 10"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(is_json), .help = "one object per line"},
};

const struct tool_options bench_nn_options = {
    .about =
        "Measures layers and attention, compared with sgemm, and other operations, compared with memcpy.\n",
    TOOL_OPTIONS_ROWS(option_rows),
    .notes = "A row is marked when its ratio is below 0.8 for layers or 0.5 for attention.\n",
};

int bench_nn(int argc, char **argv)
{
    struct request request = {
        .dtype = "f32", .n_threads = 1, .n_rounds = 10, .n_tokens = 1024, .n_elements = (size_t)1 << 20};
    int exit_status;
    if (!tool_options_read(&bench_nn_options, argc, argv, &request, NULL, &exit_status)) {
        return exit_status;
    }
    if (request.n_lengths == 0) {
        request.lengths[request.n_lengths++] = 1024;
        request.lengths[request.n_lengths++] = 2048;
        request.lengths[request.n_lengths++] = 4096;
    }
    return bench_is_checking() ? TOOL_DONE : run_request(&request);
}
