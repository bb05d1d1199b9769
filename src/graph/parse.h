/* SPDX-License-Identifier: MIT */
/* What the reader of graph text is made of: statements (parse.c), arguments (parse_arg.c), types (parse_type.c). */
#ifndef GRAPH_PARSE_H
#define GRAPH_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#include "graph/constant_text.h"
#include "graph/lexer.h"
#include "shoal/graph.h"

/* "return" makes a node of that name, unless another is written. */
#define PARSE_OUTPUT_NAME "output"

#define PARSE_N_RECENT_OPS 32

struct parser {
    struct lexer lexer;
    shoal_graph *graph;
    /* Of the statement that is read: strings, arguments and types. They do not move while it is read: there is room
       for all the strings of the text, and arguments are counted before they are read. */
    char *strings;
    size_t n_string_bytes;
    shoal_arg *args; /* lists from the front, what is being read from the middle */
    size_t args_capacity;
    size_t n_list_args;
    size_t n_open_args; /* counted from the middle */
    size_t middle;
    struct text_type *types;
    size_t types_capacity;
    size_t n_types;
    const shoal_op *recent_ops[PARSE_N_RECENT_OPS];
};

/* The string, name or word of a token, until the next statement. */
shoal_status parse_string(struct parser *parser, const struct token *token, const char **string_out);

/* The lexer stands on '('; goes behind ')'. The arguments hold until the next statement. */
shoal_status parse_args(struct parser *parser, const shoal_arg **args_out, size_t *n_args_out);
/* One argument, not in parentheses. */
shoal_status parse_one_arg(struct parser *parser, const shoal_arg **arg_out);

/* "f32[2]", "[f32[2], f32[3]]" or "none", into parser->types. */
shoal_status parse_types(struct parser *parser, bool *is_list_out);
/* "f32[2]" alone. */
shoal_status parse_type(struct parser *parser, struct text_type *type_out);
/* An integer with or without '-', of the range of int64_t. */
shoal_status parse_integer(struct parser *parser, int64_t *number_out);
/* SHOAL_ERR_INVALID, naming both, when a node does not give what the text says. */
shoal_status parse_check_types(const struct parser *parser, const struct token *place, const shoal_node *node,
                               bool is_list);

#endif
