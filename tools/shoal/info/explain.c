/* SPDX-License-Identifier: MIT */
/* `shoal info --explain OP --ranks N --bytes B [--symmetric] [--transport T]`: which algorithm a call uses, and why. */
#include "info/info.h"
#include "common/tool.h"

#include "base/option_parse.h"
#include "base/options.h"
#include "bootstrap/net/address.h"
#include "shoal/status.h"
#include "transport/algorithm.h"
#include "transport/registry.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_RANKS 1000000

static const char usage[] =
    "usage: shoal info --explain OP --ranks N --bytes B [--symmetric] [--transport T]\n"
    "  OP     the collective: all_reduce, all_gather, ...; a barrier needs no --bytes\n"
    "  B      bytes of the whole buffer on one rank, 64K or 4M for example\n"
    "  T      the transport; default shm\n";

struct question {
    enum collective_kind kind;
    int64_t n_ranks;
    int64_t bytes;
    bool is_symmetric;
    const struct transport *transport;
};

static int refuse_kind(const char *word)
{
    fprintf(stderr, "shoal info --explain: '%s' is not a collective; there are:", word);
    for (int i = 0; i < COLLECTIVE_COUNT; i++) {
        fprintf(stderr, " %s", collective_rows[i].name);
    }
    fputc('\n', stderr);
    return TOOL_USAGE;
}

static bool parse_ranks(struct question *question, const char *value)
{
    return option_parse_int(value, &question->n_ranks) && question->n_ranks >= 1 &&
           question->n_ranks <= MAX_RANKS;
}

static bool parse_bytes(struct question *question, const char *value)
{
    return option_parse_bytes(value, &question->bytes) && question->bytes >= 0;
}

static bool parse_transport(struct question *question, const char *value)
{
    return transport_find(value, &question->transport) == SHOAL_OK;
}

static const struct {
    const char *name;
    bool (*parse)(struct question *question, const char *value);
    const char *wanted;
} options[] = {
    {"--ranks", parse_ranks, "a number from 1 to 1000000"},
    {"--bytes", parse_bytes, "a size, for instance 64K"},
    {"--transport", parse_transport, "a transport; shoal info lists them"},
};

#define N_OPTIONS (sizeof options / sizeof options[0])

/* Reads the option at argv[0]; how many words it took, 0 after an error, which was told. */
static int parse_option(struct question *question, int argc, char **argv)
{
    if (strcmp(argv[0], "--symmetric") == 0) {
        question->is_symmetric = true;
        return 1;
    }
    for (size_t k = 0; k < N_OPTIONS; k++) {
        if (strcmp(argv[0], options[k].name) != 0) {
            continue;
        }
        if (argc < 2 || !options[k].parse(question, argv[1])) {
            fprintf(stderr, "shoal info --explain: %s: '%s' is not %s\n", argv[0], argc < 2 ? "" : argv[1],
                    options[k].wanted);
            return 0;
        }
        return 2;
    }
    fprintf(stderr, "shoal info --explain: unknown option '%s'\n%s", argv[0], usage);
    return 0;
}

static bool parse(struct question *question, int argc, char **argv)
{
    /* None is given by default, except the bytes of a barrier. */
    question->n_ranks = 0;
    question->bytes = question->kind == COLLECTIVE_BARRIER ? 0 : -1;
    for (int i = 2; i < argc;) {
        int n_words = parse_option(question, argc - i, argv + i);
        if (n_words == 0) {
            return false;
        }
        i += n_words;
    }
    if (question->n_ranks == 0 || question->bytes < 0) {
        fprintf(stderr, "shoal info --explain: %s is missing\n%s",
                question->n_ranks == 0 ? "--ranks" : "--bytes", usage);
        return false;
    }
    return true;
}

/* Why an algorithm cannot carry the call: the ranks, or what else its row needs. */
static const char *reason_against(const struct algorithm_row *row, const struct algorithm_question *call)
{
    bool is_too_many = row->max_ranks > 0 && call->n_ranks > row->max_ranks;
    return is_too_many                      ? "only for a world of one"
           : call->n_ranks < row->min_ranks ? "needs more ranks than one"
                                            : row->needs_text;
}

static void print_rows(const struct algorithm_table *table, const struct algorithm_question *call, int picked)
{
    for (int i = 0; i < table->n_rows; i++) {
        const struct algorithm_row *row = &table->rows[i];
        bool can = table->can(i, call);
        printf("  %-8s %-13s %s\n", row->name,
               i == picked ? "is taken:"
               : can       ? "could:"
                           : "cannot:",
               can ? row->doc : reason_against(row, call));
    }
}

/* The library tells this to its log; here it is what was asked about. */
static void print_asked(const struct algorithm_table *table, const struct algorithm_question *call,
                        int picked)
{
    const char *text = option_text(OPTION_ALGO);
    int asked = algorithm_asked(table, call->kind);
    if (*text != '\0' && algorithm_override_parse(table, text) != SHOAL_OK) {
        printf("  SHOAL_ALGO=%s is ignored: %s\n", text, shoal_error_text());
    } else if (asked != table->n_rows && asked != picked) {
        printf("  SHOAL_ALGO asks for %s, which cannot carry it: %s\n", table->rows[asked].name,
               reason_against(&table->rows[asked], call));
    }
}

/* Start-up decides when it knows rank 0's address: this is what it does without. */
static void print_interface(void)
{
    const char *wanted = option_text(OPTION_INTERFACE);
    const struct address nobody = {.family = 0};
    struct address own;
    char host[ADDRESS_TEXT_BYTES];
    char name[ADDRESS_INTERFACE_BYTES];
    if (address_choose(wanted, &nobody, &own) != SHOAL_OK) {
        printf("  %s\n", shoal_error_text());
        return;
    }
    printf("  between hosts: reached at %s (interface %s)%s\n", address_host(&own, host),
           address_interface(&own, name), *wanted ? "" : ", or at the one that leads to rank 0");
}

static void explain(const char *op, const struct question *question)
{
    const struct algorithm_table *table = question->transport->algorithms;
    struct algorithm_question call = {
        .kind = question->kind,
        .n_ranks = (int)question->n_ranks,
        .bytes = (size_t)question->bytes,
        .is_symmetric = question->is_symmetric,
    };
    const char *why = "it has one way for each call";
    int picked = table ? table->pick(&call, &why) : 0;
    printf("%s, %" PRId64 " rank%s, %" PRId64 " bytes: %s\n  %s\n", op, question->n_ranks,
           question->n_ranks == 1 ? "" : "s", question->bytes,
           !table                   ? question->transport->name
           : picked < table->n_rows ? table->rows[picked].name
                                    : "none",
           why);
    if (table) {
        print_asked(table, &call, picked);
        print_rows(table, &call, picked);
    } else if (question->transport->has_peers) {
        print_interface();
    }
}

int info_explain(int argc, char **argv)
{
    struct question question = {.transport = transport_at(0)};
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        fputs(usage, argc < 2 ? stderr : stdout);
        return argc < 2 ? TOOL_USAGE : TOOL_DONE;
    }
    if (!tool_find_collective(argv[1], &question.kind)) {
        return refuse_kind(argv[1]);
    }
    if (!parse(&question, argc, argv)) {
        return TOOL_USAGE;
    }
    explain(argv[1], &question);
    return TOOL_DONE;
}
