/* SPDX-License-Identifier: MIT */
/* Arguments in graph text. */
#include "graph/text/parse.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/try.h"
#include "graph/ir/args.h"
#include "graph/ir/graph.h"

shoal_status parse_string(struct parser *parser, const struct token *token, const char **string_out)
{
    char *to = parser->strings + parser->n_string_bytes;
    size_t bytes;
    TRY(lexer_copy(token, to, &bytes));
    parser->n_string_bytes += bytes;
    *string_out = to;
    return SHOAL_OK;
}

/* Names ------------------------------------------------------------------------------------------------ */

/* Returns the line after the current token in which the node is defined; 0 if there is none. Used only for an error
   text. */
static size_t find_definition(const struct parser *parser, const struct token *name)
{
    struct lexer lexer = parser->lexer;
    while (lexer.token.kind != TOKEN_END) {
        struct token token = lexer.token;
        if (lexer_next(&lexer) != SHOAL_OK) {
            return 0;
        }
        if (token.kind == TOKEN_NODE && token.length == name->length &&
            memcmp(token.start, name->start, name->length) == 0 && lexer_is_mark(&lexer, '=')) {
            return token.line;
        }
    }
    return 0;
}

static shoal_status parse_node(struct parser *parser, shoal_arg *arg)
{
    struct token token = parser->lexer.token;
    const char *name;
    TRY(parse_string(parser, &token, &name));
    arg->kind = SHOAL_ARG_NODE;
    arg->as.node = shoal_graph_find(parser->graph, name);
    if (!arg->as.node) {
        size_t line = find_definition(parser, &token);
        if (line > 0) {
            return lexer_fail(&token, "%%%.64s is used before it is defined, in line %zu", name, line);
        }
        return lexer_fail(&token, "there is no node %%%.64s", name);
    }
    return lexer_next(&parser->lexer);
}

static shoal_status parse_group_name(struct parser *parser, const char **name_out)
{
    struct token token = parser->lexer.token;
    if (token.kind != TOKEN_GROUP) {
        return lexer_fail_expected(&parser->lexer, "a group");
    }
    const char *name;
    TRY(parse_string(parser, &token, &name));
    const struct graph_group *known = graph_find_group(parser->graph, name);
    if (!known) {
        struct nearest nearest;
        char words[NEAREST_BYTES];
        nearest_begin(&nearest, name);
        for (const struct graph_group *group = parser->graph->groups; group; group = group->next) {
            nearest_add(&nearest, group->name);
        }
        nearest_describe(&nearest, "groups", words);
        return lexer_fail(&token, "there is no group @%.64s; %s", name, words);
    }
    *name_out = known->name;
    return lexer_next(&parser->lexer);
}

/* Numbers ---------------------------------------------------------------------------------------------- */

static bool is_plain_integer(const struct token *token)
{
    for (size_t i = 0; i < token->length; i++) {
        if (token->start[i] < '0' || token->start[i] > '9') {
            return false;
        }
    }
    return true;
}

/* Reads the current number, with the given sign. */
static shoal_status read_integer(struct parser *parser, bool is_negative, int64_t *number_out)
{
    uint64_t magnitude;
    if (parser->lexer.token.kind != TOKEN_NUMBER) {
        return lexer_fail_expected(&parser->lexer, "an integer");
    }
    TRY(lexer_integer(&parser->lexer.token, (uint64_t)INT64_MAX + is_negative, &magnitude));
    *number_out = is_negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return lexer_next(&parser->lexer);
}

shoal_status parse_integer(struct parser *parser, int64_t *number_out)
{
    bool is_negative;
    TRY(lexer_accept(&parser->lexer, '-', &is_negative));
    return read_integer(parser, is_negative, number_out);
}

static shoal_status parse_number(struct parser *parser, shoal_arg *arg)
{
    struct lexer *lexer = &parser->lexer;
    bool is_negative;
    TRY(lexer_accept(lexer, '-', &is_negative));
    if (lexer->token.kind == TOKEN_NUMBER && is_plain_integer(&lexer->token)) {
        arg->kind = SHOAL_ARG_INT;
        return read_integer(parser, is_negative, &arg->as.integer);
    }
    double value = (double)INFINITY;
    if (lexer->token.kind == TOKEN_NUMBER) {
        TRY(lexer_float(&lexer->token, SHOAL_F64, &value));
    } else if (!lexer_is_word(lexer, "inf")) {
        return lexer_fail_expected(lexer, "a number or inf");
    }
    arg->kind = SHOAL_ARG_FLOAT;
    arg->as.real = is_negative ? -value : value;
    return lexer_next(lexer);
}

/* "nan", or "nan(0x7ff8000000000001)" where its bits matter. */
static shoal_status parse_nan(struct parser *parser, shoal_arg *arg)
{
    struct lexer *lexer = &parser->lexer;
    uint64_t bits = 0x7ff8000000000000u;
    bool has_bits;
    TRY(lexer_next(lexer));
    TRY(lexer_accept(lexer, '(', &has_bits));
    if (has_bits) {
        TRY(lexer_nan_bits(&lexer->token, &bits));
        TRY(lexer_next(lexer));
        TRY(lexer_expect(lexer, ')'));
    }
    arg->kind = SHOAL_ARG_FLOAT;
    memcpy(&arg->as.real, &bits, sizeof bits);
    return SHOAL_OK;
}

/* "rank(@shard) * 2 + 1"; factor and offset may be left out. */
static shoal_status parse_rank(struct parser *parser, shoal_arg *arg)
{
    struct lexer *lexer = &parser->lexer;
    bool is_there;
    arg->kind = SHOAL_ARG_RANK;
    arg->as.rank.factor = 1;
    arg->as.rank.offset = 0;
    TRY(lexer_next(lexer));
    TRY(lexer_expect(lexer, '('));
    TRY(parse_group_name(parser, &arg->as.rank.group));
    TRY(lexer_expect(lexer, ')'));
    TRY(lexer_accept(lexer, '*', &is_there));
    if (is_there) {
        TRY(parse_integer(parser, &arg->as.rank.factor));
    }
    bool is_negative = lexer_is_mark(lexer, '-');
    if (is_negative || lexer_is_mark(lexer, '+')) {
        TRY(lexer_next(lexer));
        TRY(read_integer(parser, is_negative, &arg->as.rank.offset));
    }
    return SHOAL_OK;
}

/* All ------------------------------------------------------------------------------------------------- */

static shoal_status parse_arg_word(struct parser *parser, shoal_arg *arg)
{
    struct lexer *lexer = &parser->lexer;
    const char *word;
    if (lexer_is_word(lexer, "rank")) {
        return parse_rank(parser, arg);
    }
    if (lexer_is_word(lexer, "nan")) {
        return parse_nan(parser, arg);
    }
    if (lexer_is_word(lexer, "inf")) {
        return parse_number(parser, arg);
    }
    if (lexer_is_word(lexer, "none")) {
        arg->kind = SHOAL_ARG_NONE;
    } else if (lexer_is_word(lexer, "true") || lexer_is_word(lexer, "false")) {
        arg->kind = SHOAL_ARG_BOOL;
        arg->as.boolean = lexer_is_word(lexer, "true");
    } else {
        arg->kind = SHOAL_ARG_DTYPE;
        TRY(parse_string(parser, &lexer->token, &word));
        if (shoal_dtype_find(word, &arg->as.dtype) != SHOAL_OK) {
            return lexer_fail_expected(lexer, "an argument");
        }
    }
    return lexer_next(lexer);
}

static shoal_status parse_arg(struct parser *parser, int depth, shoal_arg *arg);

/* Reads arguments up to the closing mark, and stores them as a list. `depth` counts the lists around them. */
static shoal_status parse_items(struct parser *parser, char closing, int depth, const shoal_arg **items_out,
                                size_t *count_out)
{
    struct lexer *lexer = &parser->lexer;
    shoal_arg *open = parser->args + parser->middle + parser->n_open_args;
    size_t count = 0;
    bool is_more = !lexer_is_mark(lexer, closing);
    while (is_more) {
        shoal_arg arg = {.kind = SHOAL_ARG_NONE};
        TRY(parse_arg(parser, depth, &arg));
        open[count++] = arg;
        parser->n_open_args++;
        TRY(lexer_accept(lexer, ',', &is_more));
    }
    if (!lexer_is_mark(lexer, closing)) {
        return lexer_fail_expected(lexer, closing == ')' ? "',' or ')'" : "',' or ']'");
    }
    shoal_arg *items = parser->args + parser->n_list_args;
    memcpy(items, open, count * sizeof(*items));
    parser->n_list_args += count;
    parser->n_open_args -= count;
    *items_out = items;
    *count_out = count;
    return lexer_next(lexer);
}

static shoal_status parse_list(struct parser *parser, int depth, shoal_arg *arg)
{
    if (depth == ARGS_MAX_DEPTH) {
        return lexer_fail(&parser->lexer.token, "lists are nested more than %d deep", ARGS_MAX_DEPTH);
    }
    TRY(lexer_next(&parser->lexer));
    arg->kind = SHOAL_ARG_LIST;
    return parse_items(parser, ']', depth + 1, &arg->as.list.items, &arg->as.list.count);
}

static shoal_status parse_arg(struct parser *parser, int depth, shoal_arg *arg)
{
    struct lexer *lexer = &parser->lexer;
    switch (lexer->token.kind) {
    case TOKEN_NODE:
        return parse_node(parser, arg);
    case TOKEN_GROUP:
        arg->kind = SHOAL_ARG_GROUP;
        return parse_group_name(parser, &arg->as.string);
    case TOKEN_STRING:
        arg->kind = SHOAL_ARG_STRING;
        TRY(parse_string(parser, &lexer->token, &arg->as.string));
        return lexer_next(lexer);
    case TOKEN_NUMBER:
        return parse_number(parser, arg);
    case TOKEN_WORD:
        return parse_arg_word(parser, arg);
    case TOKEN_MARK:
        if (lexer_is_mark(lexer, '[')) {
            return parse_list(parser, depth, arg);
        }
        if (lexer_is_mark(lexer, '-')) {
            return parse_number(parser, arg);
        }
        break;
    case TOKEN_END:
        break;
    }
    return lexer_fail_expected(lexer, "an argument");
}

/* Makes room for all arguments up to the closing bracket: there are no more of them than tokens. */
static shoal_status reserve_args(struct parser *parser)
{
    struct lexer lexer = parser->lexer;
    size_t n_tokens = 0;
    size_t depth = 0;
    do {
        if (lexer.token.kind == TOKEN_END) {
            break;
        }
        if (lexer_is_mark(&lexer, '(') || lexer_is_mark(&lexer, '[')) {
            depth++;
        } else if (depth > 0 && (lexer_is_mark(&lexer, ')') || lexer_is_mark(&lexer, ']'))) {
            depth--;
        }
        n_tokens++;
        /* Errors are reported when the arguments are read. */
    } while (depth > 0 && lexer_next(&lexer) == SHOAL_OK);
    parser->n_list_args = 0;
    parser->n_open_args = 0;
    parser->middle = n_tokens + 1;
    return mem_grow((void **)&parser->args, &parser->args_capacity, 2 * parser->middle,
                    sizeof(*parser->args));
}

shoal_status parse_args(struct parser *parser, const shoal_arg **args_out, size_t *n_args_out)
{
    TRY(reserve_args(parser));
    TRY(lexer_expect(&parser->lexer, '('));
    return parse_items(parser, ')', 0, args_out, n_args_out);
}

shoal_status parse_one_arg(struct parser *parser, const shoal_arg **arg_out)
{
    TRY(reserve_args(parser));
    shoal_arg *arg = parser->args + parser->middle;
    parser->n_open_args = 1;
    *arg = (shoal_arg){.kind = SHOAL_ARG_NONE};
    TRY(parse_arg(parser, 0, arg));
    *arg_out = arg;
    return SHOAL_OK;
}
