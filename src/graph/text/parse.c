/* SPDX-License-Identifier: MIT */
/*
 * Reads graph text (docs/graph.md) into a new graph, statement by statement, in one pass. It recurses only for nested
 * lists, whose depth is limited. Nodes are made by the public calls, which check their arguments; line and column are
 * put in front of their errors.
 */
#include "graph/text/parse.h"

#include <limits.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/try.h"
#include "graph/ir/args.h"
#include "graph/ir/graph.h"

/* Groups ----------------------------------------------------------------------------------------------- */

struct ranks {
    int *ranks;
    size_t capacity;
    size_t n_ranks;
    size_t n_lists;
    size_t size; /* of the first list */
};

static shoal_status parse_rank_list(struct parser *parser, struct ranks *ranks)
{
    struct lexer *lexer = &parser->lexer;
    struct token token = lexer->token;
    size_t size = 0;
    uint64_t rank;
    TRY(lexer_expect(lexer, '['));
    bool is_more = !lexer_is_mark(lexer, ']');
    while (is_more) {
        if (lexer->token.kind != TOKEN_NUMBER) {
            return lexer_fail_expected(lexer, "a rank");
        }
        TRY(lexer_integer(&lexer->token, INT_MAX, &rank));
        TRY(lexer_next(lexer));
        TRY(mem_grow((void **)&ranks->ranks, &ranks->capacity, ranks->n_ranks + 1, sizeof(*ranks->ranks)));
        ranks->ranks[ranks->n_ranks++] = (int)rank;
        size++;
        TRY(lexer_accept(lexer, ',', &is_more));
    }
    if (!lexer_is_mark(lexer, ']')) {
        return lexer_fail_expected(lexer, "',' or ']'");
    }
    ranks->size = ranks->n_lists == 0 ? size : ranks->size;
    if (size != ranks->size) {
        return lexer_fail(&token, "the list has %zu ranks, but the first one has %zu", size, ranks->size);
    }
    ranks->n_lists++;
    return lexer_next(lexer);
}

static shoal_status parse_rank_lists(struct parser *parser, struct ranks *ranks)
{
    struct lexer *lexer = &parser->lexer;
    TRY(lexer_expect(lexer, '='));
    TRY(lexer_expect(lexer, '['));
    bool is_more = true;
    while (is_more) {
        TRY(parse_rank_list(parser, ranks));
        TRY(lexer_accept(lexer, ',', &is_more));
    }
    return lexer_is_mark(lexer, ']') ? lexer_next(lexer) : lexer_fail_expected(lexer, "',' or ']'");
}

static shoal_status parse_group(struct parser *parser)
{
    struct ranks ranks = {.n_ranks = 0};
    const char *name;
    TRY(lexer_next(&parser->lexer));
    struct token token = parser->lexer.token;
    if (token.kind != TOKEN_GROUP) {
        return lexer_fail_expected(&parser->lexer, "a name such as @shard");
    }
    TRY(parse_string(parser, &token, &name));
    if (graph_find_group(parser->graph, name)) {
        return lexer_fail(&token, "the group @%.64s is defined twice", name);
    }
    TRY(lexer_next(&parser->lexer));
    shoal_status status = parse_rank_lists(parser, &ranks);
    if (status == SHOAL_OK) {
        status = shoal_graph_add_group(parser->graph, name, ranks.ranks, ranks.n_lists, ranks.size);
        status = status == SHOAL_OK ? SHOAL_OK : lexer_fail_at(&token, status);
    }
    mem_free(ranks.ranks);
    return status;
}

/* Nodes ------------------------------------------------------------------------------------------------ */

/* A statement that defines a node. */
struct definition {
    struct token place; /* the name */
    const char *name;
    struct token what; /* the first token after '=' */
};

static shoal_status parse_placeholder(struct parser *parser, const struct definition *definition,
                                      shoal_node **node_out)
{
    struct text_type type;
    TRY(lexer_expect(&parser->lexer, ':'));
    TRY(parse_type(parser, &type));
    if (type.has_strides) {
        return lexer_fail(&type.token, "a placeholder cannot have strides");
    }
    shoal_status status = shoal_graph_placeholder(parser->graph, definition->name, type.layout.shape,
                                                  type.layout.n_dims, type.dtype, node_out);
    return status == SHOAL_OK ? SHOAL_OK : lexer_fail_at(&type.token, status);
}

/* Finds the tensor of an earlier constant. */
static shoal_status find_constant(struct parser *parser, const struct token *token, shoal_tensor **tensor_out)
{
    const char *name;
    TRY(parse_string(parser, token, &name));
    const shoal_node *node = shoal_graph_find(parser->graph, name);
    if (!node || node->kind != SHOAL_NODE_CONSTANT) {
        return lexer_fail(token, "there is no constant %%%.64s before this one", name);
    }
    *tensor_out = node->values[0];
    return SHOAL_OK;
}

static shoal_status parse_constant(struct parser *parser, const struct definition *definition,
                                   shoal_node **node_out)
{
    struct constant_text text;
    struct text_type type;
    shoal_tensor *tensor;
    shoal_tensor *of = NULL;
    TRY(constant_text_skip(&parser->lexer, &text));
    TRY(lexer_expect(&parser->lexer, ':'));
    TRY(parse_type(parser, &type));
    if (text.data == CONSTANT_OF) {
        TRY(find_constant(parser, &text.start.token, &of));
    }
    TRY(constant_text_read(&text, of, &type, &tensor));
    shoal_status status = shoal_graph_constant(parser->graph, definition->name, tensor, node_out);
    shoal_tensor_unref(tensor);
    return status == SHOAL_OK ? SHOAL_OK : lexer_fail_at(&definition->what, status);
}

static void free_values(shoal_tensor **values, size_t n_values)
{
    for (size_t i = 0; i < n_values; i++) {
        shoal_tensor_unref(values[i]);
    }
    mem_free(values);
}

/* Makes a tensor for each of the types that were read. */
static shoal_status make_values(const struct parser *parser, shoal_tensor ***values_out)
{
    shoal_tensor **values = mem_alloc_zeroed(parser->n_types + 1, sizeof(*values));
    if (!values) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < parser->n_types; i++) {
        shoal_status status = text_type_make(&parser->types[i], SHOAL_META, &values[i]);
        if (status != SHOAL_OK) {
            free_values(values, i);
            return status;
        }
    }
    *values_out = values;
    return SHOAL_OK;
}

/* Reads `unit "layers.0"` after a call, and puts the name into the arena; NULL if there is none. */
static shoal_status parse_unit(struct parser *parser, const char **unit_out)
{
    struct lexer *lexer = &parser->lexer;
    const char *unit = NULL;
    *unit_out = NULL;
    if (!lexer_is_word(lexer, "unit")) {
        return SHOAL_OK;
    }
    TRY(lexer_next(lexer));
    if (lexer->token.kind != TOKEN_STRING) {
        return lexer_fail_expected(lexer, "a string that names the unit");
    }
    TRY(parse_string(parser, &lexer->token, &unit));
    TRY(lexer_next(lexer));
    /* The node before mostly has the same unit, and then shares its string. */
    const struct shoal_node *last = parser->graph->last;
    bool is_again = last && last->unit && strcmp(last->unit, unit) == 0;
    *unit_out = is_again ? last->unit : arena_string(&parser->graph->arena, unit);
    return *unit_out ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status parse_opaque(struct parser *parser, const struct definition *definition,
                                 shoal_node **node_out)
{
    struct lexer *lexer = &parser->lexer;
    const char *target;
    const char *unit = NULL;
    const shoal_arg *args;
    size_t n_args;
    bool is_list;
    shoal_tensor **values;
    if (lexer->token.kind != TOKEN_STRING) {
        return lexer_fail_expected(lexer, "a string that says what is called");
    }
    TRY(parse_string(parser, &lexer->token, &target));
    TRY(lexer_next(lexer));
    TRY(parse_args(parser, &args, &n_args));
    TRY(parse_unit(parser, &unit));
    TRY(lexer_expect(lexer, ':'));
    TRY(parse_types(parser, &is_list));
    TRY(make_values(parser, &values));
    size_t n_values = parser->n_types;
    shoal_status status = shoal_graph_opaque(parser->graph, target, args, n_args, values, n_values, is_list,
                                             definition->name, node_out);
    free_values(values, n_values);
    if (status != SHOAL_OK) {
        return lexer_fail_at(&definition->what, status);
    }
    (*node_out)->unit = unit;
    return SHOAL_OK;
}

static shoal_status fail_unknown_op(const struct token *place, const char *name)
{
    struct nearest nearest;
    char words[NEAREST_BYTES];
    const shoal_op *op;
    bool has_nn = false;
    nearest_begin(&nearest, name);
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        nearest_add(&nearest, shoal_op_name(op));
        has_nn = has_nn || strncmp(shoal_op_name(op), "nn.", strlen("nn.")) == 0;
    }
    nearest_describe(&nearest, "ops", words);
    bool is_nn = strncmp(name, "nn.", strlen("nn.")) == 0 && !has_nn;
    return lexer_fail(place, "there is no op %.64s; %s", name,
                      is_nn ? "the ops of libshoal_nn exist after shoal_nn_init()" : words);
}

/* Finds an op. shoal_op_find searches all ops, so recent ones are tried first. */
static shoal_status find_op(struct parser *parser, const struct token *place, const shoal_op **op_out)
{
    const char *name;
    TRY(parse_string(parser, place, &name));
    const shoal_op **recent = &parser->recent_ops[hash_bytes(0, name, strlen(name)) % PARSE_N_RECENT_OPS];
    if (!*recent || strcmp(shoal_op_name(*recent), name) != 0) {
        const shoal_op *op;
        if (shoal_op_find(name, &op) != SHOAL_OK) {
            return fail_unknown_op(place, name);
        }
        *recent = op;
    }
    *op_out = *recent;
    return SHOAL_OK;
}

static shoal_status parse_call(struct parser *parser, const struct definition *definition,
                               shoal_node **node_out)
{
    const shoal_op *op = NULL;
    const char *unit = NULL;
    const shoal_arg *args;
    size_t n_args;
    bool has_type;
    bool is_list;
    TRY(find_op(parser, &definition->what, &op));
    TRY(parse_args(parser, &args, &n_args));
    TRY(parse_unit(parser, &unit));
    shoal_status status = shoal_graph_call(parser->graph, op, args, n_args, definition->name, node_out);
    if (status != SHOAL_OK) {
        return lexer_fail_at(&definition->what, status);
    }
    (*node_out)->unit = unit;
    TRY(lexer_accept(&parser->lexer, ':', &has_type));
    if (!has_type) {
        return SHOAL_OK;
    }
    struct token place = parser->lexer.token;
    TRY(parse_types(parser, &is_list));
    return parse_check_types(parser, &place, *node_out, is_list);
}

static shoal_status parse_return(struct parser *parser, const char *name, const struct token *place,
                                 shoal_node **node_out)
{
    const shoal_arg *arg;
    TRY(parse_one_arg(parser, &arg));
    struct node_spec spec = {
        .kind = SHOAL_NODE_OUTPUT, .name = name, .target = PARSE_OUTPUT_NAME, .args = arg, .n_args = 1};
    shoal_status status = args_check_output(arg);
    if (status == SHOAL_OK) {
        status = graph_add(parser->graph, &spec, node_out);
    }
    return status == SHOAL_OK ? SHOAL_OK : lexer_fail_at(place, status);
}

/* Reads what follows '='. A word before '(' is always an op. */
static shoal_status parse_what(struct parser *parser, const struct definition *definition,
                               shoal_node **node_out)
{
    struct lexer before = parser->lexer;
    if (before.token.kind != TOKEN_WORD) {
        return lexer_fail_expected(&before, "an op, placeholder, constant, opaque or return");
    }
    TRY(lexer_next(&parser->lexer));
    if (lexer_is_mark(&parser->lexer, '(')) {
        return parse_call(parser, definition, node_out);
    }
    if (lexer_is_word(&before, "placeholder")) {
        return parse_placeholder(parser, definition, node_out);
    }
    if (lexer_is_word(&before, "constant")) {
        return parse_constant(parser, definition, node_out);
    }
    if (lexer_is_word(&before, "opaque")) {
        return parse_opaque(parser, definition, node_out);
    }
    if (lexer_is_word(&before, "return")) {
        return parse_return(parser, definition->name, &definition->what, node_out);
    }
    return lexer_fail_expected(&parser->lexer, "'(' after the name of an op");
}

/* A node gets another name than the text says if that contains characters that are not allowed. */
static shoal_status check_name(const struct definition *definition, const shoal_node *node)
{
    if (strcmp(node->name, definition->name) != 0) {
        return lexer_fail(&definition->place, "\"%.64s\" cannot be the name of a node; %%%.64s could",
                          definition->name, node->name);
    }
    return SHOAL_OK;
}

static shoal_status parse_definition(struct parser *parser, shoal_node **node_out)
{
    struct definition definition = {.place = parser->lexer.token};
    TRY(parse_string(parser, &definition.place, &definition.name));
    if (shoal_graph_find(parser->graph, definition.name)) {
        return lexer_fail(&definition.place, "%%%.64s is defined twice", definition.name);
    }
    TRY(lexer_next(&parser->lexer));
    TRY(lexer_expect(&parser->lexer, '='));
    definition.what = parser->lexer.token;
    TRY(parse_what(parser, &definition, node_out));
    return check_name(&definition, *node_out);
}

/* The text --------------------------------------------------------------------------------------------- */

static shoal_status parse_statement(struct parser *parser, shoal_node **node_out)
{
    struct lexer *lexer = &parser->lexer;
    parser->n_string_bytes = 0;
    if (lexer->token.kind == TOKEN_NODE) {
        return parse_definition(parser, node_out);
    }
    if (lexer_is_word(lexer, "return")) {
        struct token place = lexer->token;
        TRY(lexer_next(lexer));
        /* A number is added if another node has that name. */
        return parse_return(parser, PARSE_OUTPUT_NAME, &place, node_out);
    }
    if (lexer_is_word(lexer, "group")) {
        return parse_group(parser);
    }
    return lexer_fail_expected(lexer, "%name = ..., group, return or '}'");
}

static shoal_status parse_text(struct parser *parser, const char *text, size_t bytes)
{
    struct lexer *lexer = &parser->lexer;
    TRY(lexer_begin(lexer, text, bytes));
    if (!lexer_is_word(lexer, "graph")) {
        return lexer_fail_expected(lexer, "graph");
    }
    TRY(lexer_next(lexer));
    TRY(lexer_expect(lexer, '{'));
    shoal_node *node = NULL;
    while (!lexer_is_mark(lexer, '}') && !(node && node->kind == SHOAL_NODE_OUTPUT)) {
        TRY(parse_statement(parser, &node));
    }
    TRY(lexer_expect(lexer, '}'));
    return lexer->token.kind == TOKEN_END ? SHOAL_OK : lexer_fail_expected(lexer, "the end of the text");
}

static shoal_status parse_into(shoal_graph *graph, const char *text, size_t bytes)
{
    struct parser parser = {.graph = graph};
    size_t string_bytes;
    if (!mem_multiply(bytes, 2, &string_bytes)) {
        return error_set(SHOAL_ERR_INVALID, "graph_parse: a text of %zu bytes is too long", bytes);
    }
    /* A string, with its zero, has at most twice as many bytes as its token. */
    parser.strings = mem_alloc(string_bytes > 0 ? string_bytes : 1);
    if (!parser.strings) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = parse_text(&parser, text, bytes);
    mem_free(parser.strings);
    mem_free(parser.args);
    mem_free(parser.types);
    return status;
}

shoal_status shoal_graph_parse(const char *text, size_t bytes, shoal_graph **graph_out)
{
    shoal_graph *graph;
    error_clear();
    if (!graph_out || (!text && bytes > 0)) {
        return error_set(SHOAL_ERR_INVALID, "graph_parse: %s is NULL", graph_out ? "text" : "graph_out");
    }
    TRY(shoal_graph_create(&graph));
    shoal_status status = parse_into(graph, text ? text : "", bytes);
    if (status != SHOAL_OK) {
        shoal_graph_free(graph);
        return status;
    }
    *graph_out = graph;
    return SHOAL_OK;
}
