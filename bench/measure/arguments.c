/* SPDX-License-Identifier: MIT */
/* The arguments that all measuring programs understand. */
#include "measure/measure.h"

#include "base/option_parse.h"

#include <string.h>

const char measure_usage[] =
    "  --ranks N          default 2\n"
    "  --sizes A[:B[:F]]  bytes of the full buffer on one rank, from A to B by factor F; default 1K:64M:4\n"
    "  --dtype T          default f32\n"
    "  --rotate BYTES     buffers cycle through that much memory; default 0: one buffer for all iterations\n"
    "  --iterations K     default: by size, 2000 to 20\n"
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
static bool parse_sizes(struct measure_request *request, const char *text)
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

static bool parse_value(struct measure_request *request, const char *option, const char *value)
{
    int64_t number = 0;
    bool is_good = true;
    if (strcmp(option, "--ranks") == 0) {
        is_good = parse_int(value, 1, MEASURE_MAX_RANKS, &number);
        request->n_ranks = (int)number;
    } else if (strcmp(option, "--sizes") == 0) {
        is_good = parse_sizes(request, value);
    } else if (strcmp(option, "--dtype") == 0) {
        request->dtype = measure_dtype_find(value);
        is_good = request->dtype;
    } else if (strcmp(option, "--rotate") == 0) {
        is_good = parse_bytes(value, &request->rotate_bytes);
    } else if (strcmp(option, "--late") == 0) {
        is_good = parse_int(value, 0, 10 * 1000 * 1000, &request->late_us);
    } else if (strcmp(option, "--slow") == 0) {
        is_good = parse_int(value, 1, 10 * 1000 * 1000, &request->slow_us);
    } else {
        is_good = parse_int(value, 1, MEASURE_MAX_ITERATIONS, &number);
        request->iterations = (int)number;
    }
    return is_good;
}

int measure_parse(struct measure_request *request, int argc, char **argv)
{
    static const char *const with_value[] = {"--ranks",      "--sizes", "--dtype", "--rotate",
                                             "--iterations", "--late",  "--slow"};
    if (strcmp(argv[0], "--json") == 0 || strcmp(argv[0], "--back-to-back") == 0) {
        *(argv[0][2] == 'j' ? &request->is_json : &request->is_back_to_back) = true;
        return 1;
    }
    for (size_t i = 0; i < sizeof(with_value) / sizeof(with_value[0]); i++) {
        if (strcmp(argv[0], with_value[i]) == 0) {
            return argc > 1 && parse_value(request, argv[0], argv[1]) ? 2 : -1;
        }
    }
    return 0;
}
