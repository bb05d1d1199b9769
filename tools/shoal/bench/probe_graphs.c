/* SPDX-License-Identifier: MIT */
/*
 * The graphs of `shoal bench probe`. They are run as plans, so that what is measured is what passes estimate: collectives
 * on comm memory and windows, started by one step and waited for by another.
 */
#include "bench/probe.h"

#include "base/text.h"

int probe_n_runs(enum probe_case which)
{
    switch (which) {
    case PROBE_CALLS:
    case PROBE_REDUCE_SMALL:
    case PROBE_GATHER_SMALL:
    case PROBE_SCATTER_SMALL:
        return 101;
    case PROBE_TOUCH:
    case PROBE_PRODUCT:
    case PROBE_FUNCTION:
    case PROBE_COMPUTE:
    case PROBE_STARTS:
    case PROBE_BOTH:
    case PROBE_REDUCE_LARGE:
    case PROBE_GATHER_LARGE:
    case PROBE_SCATTER_LARGE:
    case PROBE_N_CASES:
        break;
    }
    return 31;
}

static void add_group(struct text *text, int n_ranks)
{
    text_add(text, "group @w = [[");
    for (int i = 0; i < n_ranks; i++) {
        text_add(text, "%s%d", i > 0 ? ", " : "", i);
    }
    text_add(text, "]]\n");
}

/* Only a few elements of the result are read, so that it need not be copied out of a window. */
static void add_collective(struct text *text, int n_ranks, const char *call, size_t n_elements)
{
    add_group(text, n_ranks);
    text_add(text,
             "%%x = placeholder : f32[%zu]\n"
             "%%s = %s\n"
             "%%d = wait_tensor(%%s)\n"
             "%%v = narrow(%%d, 0, 0, 4)\n"
             "%%n = neg(%%v)\n"
             "return [%%n]\n",
             n_elements, call);
}

static void add_reduce(struct text *text, int n_ranks, size_t n_bytes)
{
    add_collective(text, n_ranks, "all_reduce(%x, \"sum\", @w)", n_bytes / sizeof(float));
}

static void add_gather(struct text *text, int n_ranks, size_t n_bytes)
{
    add_collective(text, n_ranks, "all_gather_into_tensor(%x, @w)",
                   n_bytes / sizeof(float) / (size_t)n_ranks + 4);
}

static void add_scatter(struct text *text, int n_ranks, size_t n_bytes)
{
    size_t n_share = n_bytes / sizeof(float) / (size_t)n_ranks + 4;
    add_collective(text, n_ranks, "reduce_scatter_tensor(%x, \"sum\", 0, @w)", n_share * (size_t)n_ranks);
}

static void add_calls(struct text *text)
{
    text_add(text, "%%c0 = placeholder : f32[4]\n");
    for (int i = 0; i < PROBE_N_CALLS; i++) {
        text_add(text, "%%c%d = neg(%%c%d)\n", i + 1, i);
    }
    text_add(text, "return [%%c%d]\n", PROBE_N_CALLS);
}

/* small_bytes: of an all_reduce beside each product, 0 for none; large_bytes: of one beside the whole chain. */
static void add_chain(struct text *text, int n_ranks, size_t small_bytes, size_t large_bytes)
{
    size_t bytes = small_bytes > 0 ? small_bytes : large_bytes;
    int n_starts = small_bytes > 0 ? PROBE_N_PRODUCTS : large_bytes > 0;
    if (bytes > 0) {
        add_group(text, n_ranks);
        text_add(text, "%%x = placeholder : f32[%zu]\n", bytes / sizeof(float));
    }
    text_add(text, "%%y0 = placeholder : f32[256, 256]\n%%w = placeholder : f32[256, 256]\n");
    for (int i = 0; i < PROBE_N_PRODUCTS; i++) {
        if (i < n_starts) {
            text_add(text, "%%s%d = all_reduce(%%x, \"sum\", @w)\n", i);
        }
        text_add(text, "%%y%d = nn.matmul(%%y%d, %%w)\n", i + 1, i);
    }
    for (int i = 0; i < n_starts; i++) {
        text_add(text, "%%d%d = wait_tensor(%%s%d)\n", i, i);
    }
    text_add(text, "return [%%y%d]\n", PROBE_N_PRODUCTS);
}

void probe_write_graph(enum probe_case which, int n_ranks, char chars[PROBE_TEXT_BYTES])
{
    struct text text = text_begin(chars, PROBE_TEXT_BYTES);
    text_add(&text, "graph {\n");
    switch (which) {
    case PROBE_CALLS:
        add_calls(&text);
        break;
    case PROBE_TOUCH:
        text_add(
            &text,
            "%%a = placeholder : f32[%d]\n%%b = placeholder : f32[%d]\n%%c = add(%%a, %%b)\nreturn [%%c]\n",
            PROBE_TOUCHED_BYTES / 12, PROBE_TOUCHED_BYTES / 12);
        break;
    case PROBE_PRODUCT:
        text_add(&text, "%%a = placeholder : f32[256, 256]\n%%b = placeholder : f32[256, 1024]\n"
                        "%%c = nn.matmul(%%a, %%b)\nreturn [%%c]\n");
        break;
    case PROBE_FUNCTION:
        text_add(&text, "%%a = placeholder : f32[%d]\n%%c = nn.gelu_tanh(%%a)\nreturn [%%c]\n",
                 PROBE_N_VALUES);
        break;
    case PROBE_COMPUTE:
        add_chain(&text, n_ranks, 0, 0);
        break;
    case PROBE_STARTS:
        add_chain(&text, n_ranks, 1 << 16, 0);
        break;
    case PROBE_BOTH:
        add_chain(&text, n_ranks, 0, PROBE_LARGE_BYTES);
        break;
    case PROBE_REDUCE_SMALL:
    case PROBE_REDUCE_LARGE:
        add_reduce(&text, n_ranks, which == PROBE_REDUCE_SMALL ? PROBE_SMALL_BYTES : PROBE_LARGE_BYTES);
        break;
    case PROBE_GATHER_SMALL:
    case PROBE_GATHER_LARGE:
        add_gather(&text, n_ranks, which == PROBE_GATHER_SMALL ? PROBE_SMALL_BYTES : PROBE_LARGE_BYTES);
        break;
    case PROBE_SCATTER_SMALL:
    case PROBE_SCATTER_LARGE:
        add_scatter(&text, n_ranks, which == PROBE_SCATTER_SMALL ? PROBE_SMALL_BYTES : PROBE_LARGE_BYTES);
        break;
    case PROBE_N_CASES:
        break;
    }
    text_add(&text, "}\n");
}
