/* SPDX-License-Identifier: MIT */
/* The parser of graph text: statements (parse.c), arguments (parse_arg.c), types (parse_type.c). */
#ifndef GRAPH_TEXT_PARSE_H
#define GRAPH_TEXT_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#include "graph/text/constant_text.h"
#include "graph/text/lexer.h"
#include "shoal/graph.h"

/* The name of the output node, unless the text gives another. */
#define PARSE_OUTPUT_NAME "output"

#define PARSE_N_RECENT_OPS 32

struct parser {
    struct lexer lexer;
    shoal_graph *graph;
    /* Strings, arguments and types of the current statement. The arrays do not move while it is read: there is room for
       all strings of the text, and arguments are counted before they are read. */
    char *strings;
    size_t n_string_bytes;
    shoal_arg *args; /* complete lists from the front, lists that are being read from `middle` on */
    size_t args_capacity;
    size_t n_list_args;
    size_t n_open_args; /* from `middle` on */
    size_t middle;
    struct text_type *types;
    size_t types_capacity;
    size_t n_types;
    const shoal_op *recent_ops[PARSE_N_RECENT_OPS];
};

/* Gives the string, name or word of a token. It is valid until the next statement. */
shoal_status parse_string(struct parser *parser, const struct token *token, const char **string_out);

/* Reads arguments from '(' to ')'. They are valid until the next statement. */
shoal_status parse_args(struct parser *parser, const shoal_arg **args_out, size_t *n_args_out);
/* Reads one argument without parentheses. */
shoal_status parse_one_arg(struct parser *parser, const shoal_arg **arg_out);

/* Reads "f32[2]", "[f32[2], f32[3]]" or "none" into parser->types. */
shoal_status parse_types(struct parser *parser, bool *is_list_out);
/* Reads one type, "f32[2]". */
shoal_status parse_type(struct parser *parser, struct text_type *type_out);
/* Reads an integer with or without '-', in the range of int64_t. */
shoal_status parse_integer(struct parser *parser, int64_t *number_out);
/* SHOAL_ERR_INVALID, with both types: the value of a node is not of the type that the text gives. */
shoal_status parse_check_types(const struct parser *parser, const struct token *place, const shoal_node *node,
                               bool is_list);

#endif
