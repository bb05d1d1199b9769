/* SPDX-License-Identifier: MIT */
/* The arguments that all measuring programs understand. */
#include "measure/measure.h"

#include "base/option_parse.h"

#include <string.h>

const char measure_usage[] =
    "  --ranks N, -n N    default 2\n"
    "  --sizes A[:B[:F]]  bytes of the full buffer on one rank, from A to B by factor F; default 1K:64M:4;\n"
    "                     --bytes is another name of it\n"
    "  --dtype T          default f32; all: one after the other\n"
    "  --redop R          of reductions; default sum; one of sum avg product min max band bor bxor\n"
    "  --root R           the rank from which a broadcast goes out; default 0\n"
    "  --in-place         measures calls in place, too, where the collective has them\n"
    "  --rotate BYTES     buffers cycle through that much memory; default 0: one buffer for all iterations\n"
    "  --iterations K     default: by size, 2000 to 20\n"
    "  --warmup K         iterations before the clock counts; default: by size, 100 to 5\n"
    "  --back-to-back     ranks do not meet before a call\n"
    "  --late US          rank 0 calls so many microseconds after the others; default 0\n"
    "  --slow US          longer iterations are slow; default 4\n"
    "  --json             one object per line\n";

void measure_request_init(struct measure_request *request)
{
    *request = (struct measure_request){
        .n_ranks = 2,
        .from_bytes = 1024,
        .to_bytes = (size_t)64 << 20,
        .factor = 4,
        .dtype = measure_dtype_find("f32"),
        .warmups = -1,
        .slow_us = 4,
    };
}

static bool parse_int(const char *text, int64_t low, int64_t high, int64_t *value_out)
{
    int64_t value;
    if (!option_parse_int(text, &value) || value < low || value > high) {
        return false;
    }
    *value_out = value;
    return true;
}

/* No more than any machine has. */
static bool parse_bytes(const char *text, size_t *bytes_out)
{
    int64_t bytes;
    if (!option_parse_bytes(text, &bytes) || bytes < 0 || bytes > (int64_t)1 << 40) {
        return false;
    }
    *bytes_out = (size_t)bytes;
    return true;
}

/* "1K", "1K:64M" (by 2) or "1K:64M:4" */
bool measure_read_sizes(struct measure_request *request, const char *text)
{
    char words[3][32];
    size_t n_words = 0;
    for (const char *begin = text; begin; n_words++) {
        const char *end = strchr(begin, ':');
        size_t length = end ? (size_t)(end - begin) : strlen(begin);
        if (n_words == 3 || length >= sizeof(words[0])) {
            return false;
        }
        memcpy(words[n_words], begin, length);
        words[n_words][length] = '\0';
        begin = end ? end + 1 : NULL;
    }
    int64_t factor = 2;
    if (n_words == 3 && !parse_int(words[2], 2, 1 << 20, &factor)) {
        return false;
    }
    request->factor = (size_t)factor;
    return parse_bytes(words[0], &request->from_bytes) && request->from_bytes > 0 &&
           parse_bytes(words[n_words > 1 ? 1 : 0], &request->to_bytes) &&
           request->from_bytes <= request->to_bytes;
}

/* Values: false if it is not one ------------------------------------------------------------------------ */

static bool read_ranks(struct measure_request *request, const char *text)
{
    int64_t number = 0;
    bool is_good = parse_int(text, 1, MEASURE_MAX_RANKS, &number);
    request->n_ranks = (int)number;
    return is_good;
}

static bool read_dtype(struct measure_request *request, const char *text)
{
    request->dtype = measure_dtype_find(text);
    return request->dtype || strcmp(text, "all") == 0;
}

static bool read_redop(struct measure_request *request, const char *text)
{
    int redop = 0;
    while (redop < MEASURE_N_REDOPS && strcmp(measure_redops[redop].name, text) != 0) {
        redop++;
    }
    request->redop = (enum measure_redop)redop;
    return redop < MEASURE_N_REDOPS;
}

static bool read_root(struct measure_request *request, const char *text)
{
    int64_t number = 0;
    bool is_good = parse_int(text, 0, MEASURE_MAX_RANKS - 1, &number);
    request->root = (int)number;
    return is_good;
}

static bool read_rotate(struct measure_request *request, const char *text)
{
    return parse_bytes(text, &request->rotate_bytes);
}

static bool read_iterations(struct measure_request *request, const char *text)
{
    int64_t number = 0;
    bool is_good = parse_int(text, 1, MEASURE_MAX_ITERATIONS, &number);
    request->iterations = (int)number;
    return is_good;
}

static bool read_warmup(struct measure_request *request, const char *text)
{
    int64_t number = 0;
    bool is_good = parse_int(text, 0, MEASURE_MAX_ITERATIONS, &number);
    request->warmups = (int)number;
    return is_good;
}

static bool read_late(struct measure_request *request, const char *text)
{
    return parse_int(text, 0, 10 * 1000 * 1000, &request->late_us);
}

static bool read_slow(struct measure_request *request, const char *text)
{
    return parse_int(text, 1, 10 * 1000 * 1000, &request->slow_us);
}

/* Flags: no value follows. */
static bool set_in_place(struct measure_request *request, const char *text)
{
    (void)text;
    return request->has_in_place = true;
}

static bool set_back_to_back(struct measure_request *request, const char *text)
{
    (void)text;
    return request->is_back_to_back = true;
}

static bool set_json(struct measure_request *request, const char *text)
{
    (void)text;
    return request->is_json = true;
}

static const struct {
    const char *name;
    int n_words;
    bool (*read)(struct measure_request *request, const char *text);
} options[] = {
    {"--ranks", 2, read_ranks},
    {"-n", 2, read_ranks},
    {"--sizes", 2, measure_read_sizes},
    {"--bytes", 2, measure_read_sizes},
    {"--dtype", 2, read_dtype},
    {"--redop", 2, read_redop},
    {"--root", 2, read_root},
    {"--in-place", 1, set_in_place},
    {"--rotate", 2, read_rotate},
    {"--iterations", 2, read_iterations},
    {"--warmup", 2, read_warmup},
    {"--back-to-back", 1, set_back_to_back},
    {"--late", 2, read_late},
    {"--slow", 2, read_slow},
    {"--json", 1, set_json},
};

int measure_parse(struct measure_request *request, int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        if (strcmp(argv[0], options[i].name) == 0) {
            bool is_good =
                argc >= options[i].n_words && options[i].read(request, argv[options[i].n_words - 1]);
            return is_good ? options[i].n_words : -1;
        }
    }
    return 0;
}

const char *measure_misfit(const struct measure_request *request)
{
    bool is_bitwise = measure_redops[request->redop].is_bitwise;
    if (request->root >= request->n_ranks) {
        return "--root is not a rank";
    }
    if (measure_ops[request->op].reduces && is_bitwise && request->dtype && !request->dtype->is_integer) {
        return "--redop is bitwise, but --dtype is not an integer";
    }
    return NULL;
}
