/* SPDX-License-Identifier: MIT */
/*
 * Signatures: "tensor self, int dim = 0, ints shape -> tensor" becomes the parameters of an op.
 *
 *   signature := [param {"," param}] "->" ("tensor" | "tensors")
 *   param     := type name ["=" default]
 */
#include "op/op.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/try.h"

static const struct {
    const char *word;
    shoal_value_kind kind;
} param_types[] = {
#define PARAM(NAME, word_, kind_) [OP_PARAM_##NAME] = {.word = word_, .kind = kind_},
    OP_PARAM_TYPES(PARAM)
#undef PARAM
};

enum {
    PARAM_TYPE_COUNT = sizeof(param_types) / sizeof(param_types[0]),
    TOKEN_BYTES = 48
};

/* Reads the next word, up to a space, a comma or the end, and returns where it stopped. A word that is too long is cut
   and ends in '?', so that it matches no name. */
static const char *read_token(const char *text, char token[TOKEN_BYTES])
{
    size_t length = 0;
    while (*text == ' ') {
        text++;
    }
    while (*text && *text != ' ' && *text != ',') {
        if (length + 1 < TOKEN_BYTES) {
            token[length++] = *text;
        } else {
            token[length - 1] = '?';
        }
        text++;
    }
    token[length] = '\0';
    while (*text == ' ') {
        text++;
    }
    return text;
}

static shoal_status fail_in(const char *signature, const char *what, const char *token)
{
    return error_set(SHOAL_ERR_INVALID, "signature \"%.160s\": %s \"%s\"", signature, what, token);
}

static bool parse_bool(const char *token, bool *value)
{
    *value = strcmp(token, "true") == 0;
    return *value || strcmp(token, "false") == 0;
}

/* The default of a parameter, by its type. */
static bool parse_default(struct op_param *param, const char *token)
{
    shoal_value *value = &param->default_value;
    char *end;
    errno = 0;
    value->kind = param_types[param->type].kind;
    switch (param->type) {
    case OP_PARAM_INT:
        value->as.integer = strtoll(token, &end, 10);
        return errno == 0 && end != token && *end == '\0';
    case OP_PARAM_FLOAT:
    case OP_PARAM_SCALAR:
        value->as.real = strtod(token, &end);
        return errno == 0 && end != token && *end == '\0';
    case OP_PARAM_BOOL:
        return parse_bool(token, &value->as.boolean);
    case OP_PARAM_INTS:
    case OP_PARAM_TENSORS:
        return strcmp(token, "[]") == 0;
    case OP_PARAM_OPTIONAL_TENSOR:
        value->kind = SHOAL_VALUE_NONE;
        return strcmp(token, "none") == 0;
    case OP_PARAM_DTYPE:
        return shoal_dtype_find(token, &value->as.dtype) == SHOAL_OK;
    case OP_PARAM_STRING:
        if (strlen(token) >= sizeof(param->default_text)) {
            return false;
        }
        memcpy(param->default_text, token, strlen(token) + 1);
        value->as.string = param->default_text;
        return true;
    case OP_PARAM_TENSOR:
    case OP_PARAM_GROUP:
        return false;
    }
    return false;
}

static bool find_type(const char *token, enum op_param_type *type)
{
    for (int i = 0; i < PARAM_TYPE_COUNT; i++) {
        if (strcmp(param_types[i].word, token) == 0) {
            *type = (enum op_param_type)i;
            return true;
        }
    }
    return false;
}

static bool is_identifier(const char *name)
{
    if (!isalpha((unsigned char)name[0])) {
        return false;
    }
    for (; *name; name++) {
        if (!isalnum((unsigned char)*name) && *name != '_') {
            return false;
        }
    }
    return true;
}

static const struct op_param *find_param(const shoal_op *op, const char *name)
{
    for (size_t i = 0; i < op->n_params; i++) {
        if (strcmp(op->params[i].name, name) == 0) {
            return &op->params[i];
        }
    }
    return NULL;
}

/* One parameter whose type word has been read. */
static shoal_status parse_param(shoal_op *op, const char *type_word, const char **text)
{
    char token[TOKEN_BYTES];
    if (op->n_params == OP_MAX_PARAMS) {
        return error_set(SHOAL_ERR_INVALID, "signature \"%.160s\": more than %d parameters", op->signature,
                         OP_MAX_PARAMS);
    }
    struct op_param *param = &op->params[op->n_params];
    *param = (struct op_param){.has_default = false};
    if (!find_type(type_word, &param->type)) {
        return fail_in(op->signature, "no parameter type", type_word);
    }
    *text = read_token(*text, token);
    if (!is_identifier(token) || strlen(token) >= sizeof(param->name) || find_param(op, token)) {
        return fail_in(op->signature, "bad or repeated parameter name", token);
    }
    memcpy(param->name, token, sizeof(param->name));
    if (**text == '=') {
        *text = read_token(*text + 1, token);
        param->has_default = true;
        if (!parse_default(param, token)) {
            return fail_in(op->signature, "bad default", token);
        }
    } else if (op->n_params > 0 && op->params[op->n_params - 1].has_default) {
        return fail_in(op->signature, "no default after a parameter with one:", param->name);
    } else if (param->type == OP_PARAM_OPTIONAL_TENSOR) {
        param->has_default = true;
        param->default_value.kind = SHOAL_VALUE_NONE;
    }
    op->n_params++;
    return SHOAL_OK;
}

static shoal_status parse_result(shoal_op *op, const char *text)
{
    char token[TOKEN_BYTES];
    text = read_token(text, token);
    op->returns_list = strcmp(token, "tensors") == 0;
    if ((!op->returns_list && strcmp(token, "tensor") != 0) || *text != '\0') {
        return fail_in(op->signature, "the result must be tensor or tensors, not", token);
    }
    return SHOAL_OK;
}

static int find_tensor_param(const shoal_op *op, const char *name)
{
    for (size_t i = 0; i < op->n_params; i++) {
        if (op->params[i].type <= OP_PARAM_TENSORS && strcmp(op->params[i].name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* Cuts the word at a character; returns what comes after it, or NULL. */
static char *cut_at(char *word, char mark)
{
    char *at = strchr(word, mark);
    if (at) {
        *at++ = '\0';
    }
    return at;
}

/* One word of `saves`: "name", "name:for" when only the gradient of parameter `for` needs it, "name?x|y" when only
   an op whose string argument is x or y does. */
static shoal_status mark_saved_word(shoal_op *op, char word[TOKEN_BYTES])
{
    struct op_saving saving = {.is_saved = true, .saved_for = OP_SAVED_FOR_ANY};
    const char *when = cut_at(word, '?');
    const char *wanted = cut_at(word, ':');
    if (when && strlen(when) >= sizeof(saving.saved_when)) {
        return error_set(SHOAL_ERR_INVALID, "saves: \"%s\" is too long", when);
    }
    if (when) {
        memcpy(saving.saved_when, when, strlen(when) + 1);
    }
    if (wanted) {
        saving.saved_for = find_tensor_param(op, wanted);
        if (saving.saved_for < 0) {
            return error_set(SHOAL_ERR_INVALID, "saves: \"%s\" is not a tensor parameter of \"%.160s\"",
                             wanted, op->signature);
        }
    }
    if (strcmp(word, "result") == 0) {
        op->result_saving = saving;
        return SHOAL_OK;
    }
    int param = find_tensor_param(op, word);
    if (param < 0) {
        return error_set(SHOAL_ERR_INVALID, "saves: \"%s\" is not a tensor parameter of \"%.160s\"", word,
                         op->signature);
    }
    op->params[param].saving = saving;
    return SHOAL_OK;
}

/* Upper and lower case are the same. */
static bool has_word(const char *words, const char *word)
{
    size_t length = strlen(word);
    while (*words) {
        size_t n = strcspn(words, "|");
        if (n == length && strncasecmp(words, word, n) == 0) {
            return true;
        }
        words += n + (words[n] == '|');
    }
    return false;
}

bool op_saves_when(const shoal_op *op, const struct op_saving *saving, const shoal_value *arguments)
{
    if (saving->saved_when[0] == '\0') {
        return true;
    }
    for (size_t i = 0; i < op->n_params; i++) {
        if (op->params[i].type == OP_PARAM_STRING) {
            return has_word(saving->saved_when, arguments[i].as.string);
        }
    }
    return true;
}

static shoal_status mark_saved(shoal_op *op, const char *saves)
{
    char word[TOKEN_BYTES];
    op->result_saving = (struct op_saving){.is_saved = false};
    while (saves && *saves) {
        saves = read_token(saves, word);
        if (*saves == ',') {
            return error_set(SHOAL_ERR_INVALID, "saves: names are separated by spaces, not by \",\"");
        }
        TRY(mark_saved_word(op, word));
    }
    return SHOAL_OK;
}

shoal_status op_parse_signature(shoal_op *op, const char *saves)
{
    const char *text = op->signature;
    char token[TOKEN_BYTES];
    op->n_params = 0;
    text = read_token(text, token);
    while (strcmp(token, "->") != 0) {
        TRY(parse_param(op, token, &text));
        if (*text == ',') {
            text = read_token(text + 1, token);
            if (strcmp(token, "->") == 0) {
                return fail_in(op->signature, "a parameter is missing before", token);
            }
        } else {
            text = read_token(text, token);
            if (strcmp(token, "->") != 0) {
                return fail_in(op->signature, "\",\" or \"->\" expected, not", token);
            }
        }
    }
    TRY(parse_result(op, text));
    return mark_saved(op, saves);
}
