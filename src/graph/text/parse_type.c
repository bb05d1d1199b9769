/* SPDX-License-Identifier: MIT */
/* Types in graph text: "f32[2, 3]", with strides "f32[2, 3]{1, 2}", lists of them. */
#include "graph/text/parse.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "graph/ir/graph.h"
#include "tensor/tensor.h"

enum {
    TYPES_BYTES = 160
};

/* Reads numbers up to the closing mark; the opening one has been read. */
static shoal_status parse_numbers(struct parser *parser, char closing, const char *expected, int64_t *numbers,
                                  int *count_out)
{
    struct lexer *lexer = &parser->lexer;
    int count = 0;
    bool is_more = !lexer_is_mark(lexer, closing);
    while (is_more) {
        if (count == SHOAL_MAX_DIMS) {
            return lexer_fail(&lexer->token, "more than %d dimensions", SHOAL_MAX_DIMS);
        }
        if (closing == ']' && lexer_is_mark(lexer, '-')) {
            return lexer_fail(&lexer->token, "a dimension cannot be negative");
        }
        TRY(parse_integer(parser, &numbers[count++]));
        TRY(lexer_accept(lexer, ',', &is_more));
    }
    *count_out = count;
    return lexer_is_mark(lexer, closing) ? lexer_next(lexer) : lexer_fail_expected(lexer, expected);
}

static shoal_status parse_strides(struct parser *parser, struct text_type *type)
{
    struct token token = parser->lexer.token;
    int count;
    TRY(lexer_accept(&parser->lexer, '{', &type->has_strides));
    if (!type->has_strides) {
        layout_fill_strides(type->layout.n_dims, type->layout.shape, type->layout.strides);
        return SHOAL_OK;
    }
    TRY(parse_numbers(parser, '}', "',' or '}'", type->layout.strides, &count));
    if (count != type->layout.n_dims) {
        return lexer_fail(&token, "%d strides for %d dimensions", count, type->layout.n_dims);
    }
    return SHOAL_OK;
}

shoal_status parse_type(struct parser *parser, struct text_type *type_out)
{
    struct lexer *lexer = &parser->lexer;
    struct text_type type = {.token = lexer->token};
    const char *word;
    int64_t count;
    if (lexer->token.kind != TOKEN_WORD) {
        return lexer_fail_expected(lexer, "a type");
    }
    TRY(parse_string(parser, &lexer->token, &word));
    shoal_status status = shoal_dtype_find(word, &type.dtype);
    if (status != SHOAL_OK) {
        return lexer_fail_at(&type.token, status);
    }
    TRY(lexer_next(lexer));
    TRY(lexer_expect(lexer, '['));
    TRY(parse_numbers(parser, ']', "',' or ']'", type.layout.shape, &type.layout.n_dims));
    status = layout_count(type.layout.n_dims, type.layout.shape, &count);
    if (status != SHOAL_OK) {
        return lexer_fail_at(&type.token, status);
    }
    TRY(parse_strides(parser, &type));
    *type_out = type;
    return SHOAL_OK;
}

static shoal_status add_type(struct parser *parser)
{
    struct text_type type;
    TRY(parse_type(parser, &type));
    TRY(mem_grow((void **)&parser->types, &parser->types_capacity, parser->n_types + 1, sizeof(type)));
    parser->types[parser->n_types++] = type;
    return SHOAL_OK;
}

shoal_status parse_types(struct parser *parser, bool *is_list_out)
{
    struct lexer *lexer = &parser->lexer;
    parser->n_types = 0;
    if (lexer_is_word(lexer, "none")) {
        *is_list_out = false;
        return lexer_next(lexer);
    }
    TRY(lexer_accept(lexer, '[', is_list_out));
    if (!*is_list_out) {
        return add_type(parser);
    }
    bool is_more = !lexer_is_mark(lexer, ']');
    while (is_more) {
        TRY(add_type(parser));
        TRY(lexer_accept(lexer, ',', &is_more));
    }
    return lexer_is_mark(lexer, ']') ? lexer_next(lexer) : lexer_fail_expected(lexer, "',' or ']'");
}

/* Comparing -------------------------------------------------------------------------------------------- */

static void add_numbers(struct text *text, const char *opening, int count, const int64_t *numbers,
                        const char *closing)
{
    text_add(text, "%s", opening);
    for (int i = 0; i < count; i++) {
        text_add(text, "%s%" PRId64, i > 0 ? ", " : "", numbers[i]);
    }
    text_add(text, "%s", closing);
}

static void add_type_text(struct text *text, shoal_dtype dtype, const struct layout *layout, bool has_strides)
{
    text_add(text, "%s", shoal_dtype_name(dtype));
    add_numbers(text, "[", layout->n_dims, layout->shape, "]");
    if (has_strides) {
        add_numbers(text, "{", layout->n_dims, layout->strides, "}");
    }
}

static bool is_same(const struct text_type *type, const shoal_tensor *tensor)
{
    const struct layout *layout = &type->layout;
    return type->dtype == tensor->dtype && layout->n_dims == tensor->layout.n_dims &&
           memcmp(layout->shape, tensor->layout.shape, (size_t)layout->n_dims * sizeof(int64_t)) == 0 &&
           (!type->has_strides ||
            memcmp(layout->strides, tensor->layout.strides, (size_t)layout->n_dims * sizeof(int64_t)) == 0);
}

/* "a list of 3 tensors", or "a tensor". */
static const char *describe_count(char text[TYPES_BYTES], bool is_list, size_t count)
{
    struct text words = text_begin(text, TYPES_BYTES);
    if (is_list) {
        text_add(&words, "a list of %zu tensors", count);
    } else {
        text_add(&words, "%s", count > 0 ? "a tensor" : "nothing");
    }
    return text;
}

shoal_status parse_check_types(const struct parser *parser, const struct token *place, const shoal_node *node,
                               bool is_list)
{
    char said[TYPES_BYTES];
    char given[TYPES_BYTES];
    if (is_list != node->is_list || parser->n_types != node->n_values) {
        return lexer_fail(place, "the text says %s, but %s gives %s",
                          describe_count(said, is_list, parser->n_types), node->target,
                          describe_count(given, node->is_list, node->n_values));
    }
    for (size_t i = 0; i < node->n_values; i++) {
        const struct text_type *type = &parser->types[i];
        if (!is_same(type, node->values[i])) {
            struct text said_text = text_begin(said, sizeof said);
            struct text given_text = text_begin(given, sizeof given);
            add_type_text(&said_text, type->dtype, &type->layout, type->has_strides);
            add_type_text(&given_text, node->values[i]->dtype, &node->values[i]->layout, type->has_strides);
            return lexer_fail(&type->token, "the text says %s, but %s gives %s", said, node->target, given);
        }
    }
    return SHOAL_OK;
}
