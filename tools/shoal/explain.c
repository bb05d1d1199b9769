/* SPDX-License-Identifier: MIT */
/* `shoal info --explain OP --ranks N --bytes B [--symmetric]`: which algorithm carries the call, and why. */
#include "tool.h"

#include "base/option_parse.h"
#include "transport/algorithm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char usage[] = "usage: shoal info --explain OP --ranks N --bytes B [--symmetric]\n"
                            "  OP     all_reduce, all_gather, ...\n"
                            "  B      the whole buffer on one rank, for instance 64K or 4M\n";

struct question {
    enum collective_kind kind;
    int64_t n_ranks;
    int64_t bytes;
    bool is_symmetric;
};

static bool find_kind(const char *name, enum collective_kind *kind_out)
{
    for (int i = 0; i < COLLECTIVE_COUNT; i++) {
        if (strcmp(collective_rows[i].name, name) == 0) {
            *kind_out = (enum collective_kind)i;
            return true;
        }
    }
    return false;
}

static bool parse(int argc, char **argv, struct question *question)
{
    bool has_ranks = false;
    bool has_bytes = false;
    for (int i = 2; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--symmetric") == 0) {
            question->is_symmetric = true;
        } else if (strcmp(argv[i], "--ranks") == 0 && has_value) {
            has_ranks = option_parse_int(argv[++i], &question->n_ranks) && question->n_ranks >= 1 &&
                        question->n_ranks <= 1000000;
        } else if (strcmp(argv[i], "--bytes") == 0 && has_value) {
            has_bytes = option_parse_bytes(argv[++i], &question->bytes) && question->bytes >= 0;
        } else {
            return false;
        }
    }
    return has_ranks && has_bytes;
}

/* What a rank puts into a slot: its share of a gather, otherwise the whole buffer. */
static size_t slot_bytes(const struct question *question)
{
    size_t bytes = (size_t)question->bytes;
    bool is_gather = question->kind == COLLECTIVE_ALL_GATHER || question->kind == COLLECTIVE_GATHER;
    return is_gather ? bytes / (size_t)question->n_ranks : bytes;
}

int info_explain(int argc, char **argv)
{
    struct question question = {0};
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        fputs(usage, argc < 2 ? stderr : stdout);
        return argc < 2 ? TOOL_USAGE : TOOL_DONE;
    }
    if (!find_kind(argv[1], &question.kind)) {
        fprintf(stderr, "shoal: '%s' is no collective; there are:", argv[1]);
        for (int i = 0; i < COLLECTIVE_COUNT; i++) {
            fprintf(stderr, " %s", collective_rows[i].name);
        }
        fputc('\n', stderr);
        return TOOL_USAGE;
    }
    if (!parse(argc, argv, &question)) {
        fputs(usage, stderr);
        return TOOL_USAGE;
    }
    struct algorithm_query query = {
        .kind = question.kind,
        .n_ranks = (int)question.n_ranks,
        .bytes = (size_t)question.bytes,
        .slot_bytes = slot_bytes(&question),
        .is_symmetric = question.is_symmetric,
    };
    const char *why;
    enum algorithm_id picked = algorithm_pick(&query, &why);
    printf("%s, %" PRId64 " ranks, %" PRId64 " bytes: %s\n  %s\n", argv[1], question.n_ranks, question.bytes,
           picked < ALGORITHM_COUNT ? algorithm_rows[picked].name : "none", why);
    for (int i = 0; i < ALGORITHM_COUNT; i++) {
        const char *verdict = !algorithm_can((enum algorithm_id)i, &query) ? "can not carry it"
                              : i == (int)picked                           ? "taken"
                                                                           : "could carry it";
        printf("  %-8s %-16s %s\n", algorithm_rows[i].name, verdict, algorithm_rows[i].doc);
    }
    return TOOL_DONE;
}
