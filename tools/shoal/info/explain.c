/* SPDX-License-Identifier: MIT */
/* `shoal info --explain OP --ranks N --bytes B [--symmetric] [--transport T]`: which algorithm a call uses, and why. */
#include "info/info.h"
#include "common/tool.h"

#include "base/options.h"
#include "bootstrap/net/address.h"
#include "shoal/status.h"
#include "transport/algorithm.h"
#include "transport/registry.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

int info_explain(const struct info_question *question)
{
    const struct algorithm_table *table = question->transport->algorithms;
    struct algorithm_question call = {
        .n_ranks = (int)question->n_ranks,
        .bytes = question->bytes,
        .is_symmetric = question->is_symmetric,
    };
    if (!tool_find_collective(question->op, &call.kind)) {
        return TOOL_USAGE;
    }
    const char *why = "it has one way for each call";
    int picked = table ? table->pick(&call, &why) : 0;
    printf("%s, %" PRId64 " rank%s, %zu bytes: %s\n  %s\n", question->op, question->n_ranks,
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
    return TOOL_DONE;
}
