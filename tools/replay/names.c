/* SPDX-License-Identifier: MIT */
/* Reads names from their end, which says which tensor of a case it is, and then the case's own words. */
#include "names.h"

#include <string.h>

/* wN, grad, OP, the words of a variant and of a layout, DTYPE */
#define MAX_WORDS (5 + REPLAY_MAX_VARIANTS)

const char *const replay_kind_names[REPLAY_N_KINDS] = {
    [REPLAY_IN] = "in", [REPLAY_OUT] = "out", [REPLAY_GOUT] = "gout", [REPLAY_GIN] = "gin"};

/* Tensors -------------------------------------------------------------------------------------------- */

/* The number behind a prefix, from `begin` to `end`: "rank12". Without leading zeros, so that no two names mean one. */
static bool read_number(const char *begin, const char *end, const char *prefix, int *number_out)
{
    size_t length = strlen(prefix);
    size_t chars = (size_t)(end - begin);
    if (chars <= length || chars > length + 6 || strncmp(begin, prefix, length) != 0) {
        return false;
    }
    const char *digits = begin + length;
    if (digits[0] == '0' && end - digits > 1) {
        return false;
    }
    int number = 0;
    for (; digits < end; digits++) {
        if (*digits < '0' || *digits > '9') {
            return false;
        }
        number = number * 10 + (*digits - '0');
    }
    *number_out = number;
    return true;
}

/* The last '.' before `end`, or NULL. */
static const char *last_dot(const char *begin, const char *end)
{
    while (end > begin && end[-1] != '.') {
        end--;
    }
    return end > begin ? end - 1 : NULL;
}

struct replay_part replay_part_read(const char *name, int64_t tensor)
{
    struct replay_part part = {.name = name, .case_length = strlen(name), .tensor = tensor};
    const char *end = name + part.case_length;
    const char *place = last_dot(name, end);
    const char *rank = place ? last_dot(name, place) : NULL;
    if (!rank || !read_number(rank + 1, place, "rank", &part.rank)) {
        return part;
    }
    for (int kind = 0; kind < REPLAY_N_KINDS; kind++) {
        if (read_number(place + 1, end, replay_kind_names[kind], &part.place)) {
            part.kind = (enum replay_kind)kind;
            part.is_known = true;
            part.case_length = (size_t)(rank - name);
        }
    }
    return part;
}

int replay_part_compare_cases(const struct replay_part *a, const struct replay_part *b)
{
    size_t length = a->case_length < b->case_length ? a->case_length : b->case_length;
    int order = memcmp(a->name, b->name, length);
    order = order ? order : (a->case_length > b->case_length) - (a->case_length < b->case_length);
    return order ? order : (a->is_known > b->is_known) - (a->is_known < b->is_known);
}

int replay_part_compare(const void *a, const void *b)
{
    const struct replay_part *first = a;
    const struct replay_part *second = b;
    int order = replay_part_compare_cases(first, second);
    order = order ? order : (first->rank > second->rank) - (first->rank < second->rank);
    order = order ? order : (first->kind > second->kind) - (first->kind < second->kind);
    return order ? order : (first->place > second->place) - (first->place < second->place);
}

/* The words between OP and DTYPE; false with the reason. */
static bool read_variants(char *const *words, size_t n_words, struct replay_case *self)
{
    struct replay_call *call = &self->call;
    const struct replay_row *row = call->row;
    size_t n_variants = 0;
    while (n_variants < REPLAY_MAX_VARIANTS && row->words[n_variants]) {
        n_variants++;
    }
    if (n_words + row->n_optional < n_variants || n_words > n_variants + 1) {
        replay_case_set_reason(self, "unknown name: %s has %zu words of variant, not %zu", row->op,
                               n_variants - row->n_optional, n_words);
        return false;
    }
    for (size_t i = 0, word = 0; word < n_words; i++) {
        bool is_known = i < n_variants ? row->words[i](words[word], call)
                                       : i == n_variants && replay_read_layout(words[word], call);
        bool may_be_left_out = i < n_variants && i + row->n_optional >= n_variants;
        if (!is_known && !may_be_left_out) {
            replay_case_set_reason(self, "unknown name: %s does not know '%s'", row->op, words[word]);
            return false;
        }
        word += is_known ? 1 : 0;
    }
    return true;
}

static bool read_dtype(const char *word, struct replay_case *self)
{
    if (shoal_dtype_find(word, &self->dtype) != SHOAL_OK ||
        strcmp(shoal_dtype_name(self->dtype), word) != 0) {
        replay_case_set_reason(self, "unknown name: '%s' is not a dtype", word);
        return false;
    }
    return true;
}

static bool read_op(const char *word, bool has_gradient, struct replay_case *self)
{
    struct replay_call *call = &self->call;
    call->n_ranks = self->n_ranks;
    call->has_gradient = has_gradient;
    call->row = replay_row_find(word);
    if (!call->row) {
        replay_case_set_reason(self, "unknown name: there is no op '%s'", word);
        return false;
    }
    if (has_gradient && call->row->gradient == REPLAY_NO_GRADIENT) {
        replay_case_set_reason(self, "unknown name: %s has no gradient that could be compared", word);
        return false;
    }
    return true;
}

bool replay_case_read_name(char *text, struct replay_case *self)
{
    char *words[MAX_WORDS];
    size_t n_words = 0;
    for (char *rest = text, *word; (word = strsep(&rest, ".")) != NULL;) {
        if (n_words == MAX_WORDS) {
            replay_case_set_reason(self, "unknown name: more than %d words before .rank", MAX_WORDS);
            return false;
        }
        words[n_words++] = word;
    }
    bool has_gradient = n_words > 1 && strcmp(words[1], "grad") == 0;
    size_t op = has_gradient ? 2 : 1;
    if (n_words < op + 2 || !read_number(words[0], words[0] + strlen(words[0]), "w", &self->n_ranks) ||
        self->n_ranks < 1) {
        replay_case_set_reason(self, "unknown name: not of the form wN.[grad.]OP[.VARIANT].DTYPE");
        return false;
    }
    return read_dtype(words[n_words - 1], self) && read_op(words[op], has_gradient, self) &&
           read_variants(&words[op + 1], n_words - op - 2, self);
}
