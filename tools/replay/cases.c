/* SPDX-License-Identifier: MIT */
/* Groups the tensors of a file into cases by their names, and looks at each case before anything is run. */
#include "cases.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* wN, OP, the words of a variant, DTYPE */
#define MAX_WORDS (3 + REPLAY_MAX_VARIANTS)

#define SHAPE_TEXT_BYTES 192

/* A tensor of the file, by the parts of its name. */
struct part {
    const char *name;
    size_t case_length; /* of the name up to .rankR; all of it when the name is none of ours */
    bool is_known;
    int rank;
    bool is_out;
    int place;
    int64_t tensor;
};

void replay_case_set_reason(struct replay_case *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(self->reason, sizeof self->reason, format, arguments);
    va_end(arguments);
}

/* Names ------------------------------------------------------------------------------------------------ */

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

static struct part read_name(const char *name, int64_t tensor)
{
    struct part part = {.name = name, .case_length = strlen(name), .tensor = tensor};
    const char *end = name + part.case_length;
    const char *place = last_dot(name, end);
    const char *rank = place ? last_dot(name, place) : NULL;
    if (!rank || !read_number(rank + 1, place, "rank", &part.rank)) {
        return part;
    }
    part.is_out = read_number(place + 1, end, "out", &part.place);
    if (part.is_out || read_number(place + 1, end, "in", &part.place)) {
        part.is_known = true;
        part.case_length = (size_t)(rank - name);
    }
    return part;
}

static int compare_cases(const struct part *a, const struct part *b)
{
    size_t length = a->case_length < b->case_length ? a->case_length : b->case_length;
    int order = memcmp(a->name, b->name, length);
    order = order ? order : (a->case_length > b->case_length) - (a->case_length < b->case_length);
    return order ? order : (a->is_known > b->is_known) - (a->is_known < b->is_known);
}

static int compare_parts(const void *a, const void *b)
{
    const struct part *first = a;
    const struct part *second = b;
    int order = compare_cases(first, second);
    order = order ? order : (first->rank > second->rank) - (first->rank < second->rank);
    order = order ? order : (first->is_out > second->is_out) - (first->is_out < second->is_out);
    return order ? order : (first->place > second->place) - (first->place < second->place);
}

/* wN.OP[.VARIANT].DTYPE; false with the reason. Changes `text`. */
static bool read_words(char *text, struct replay_case *self)
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
    if (n_words < 3 || !read_number(words[0], words[0] + strlen(words[0]), "w", &self->n_ranks) ||
        self->n_ranks < 1) {
        replay_case_set_reason(self, "unknown name: not of the form wN.OP[.VARIANT].DTYPE");
        return false;
    }
    const char *dtype = words[n_words - 1];
    if (shoal_dtype_find(dtype, &self->dtype) != SHOAL_OK ||
        strcmp(shoal_dtype_name(self->dtype), dtype) != 0) {
        replay_case_set_reason(self, "unknown name: '%s' is not a dtype", dtype);
        return false;
    }
    struct replay_call *call = &self->call;
    call->n_ranks = self->n_ranks;
    call->row = replay_row_find(words[1]);
    if (!call->row) {
        replay_case_set_reason(self, "unknown name: there is no op '%s'", words[1]);
        return false;
    }
    size_t n_variants = 0;
    while (n_variants < REPLAY_MAX_VARIANTS && call->row->words[n_variants]) {
        n_variants++;
    }
    if (n_words != 3 + n_variants) {
        replay_case_set_reason(self, "unknown name: %s has %zu words of variant, not %zu", words[1],
                               n_variants, n_words - 3);
        return false;
    }
    for (size_t i = 0; i < n_variants; i++) {
        if (!call->row->words[i](words[2 + i], call)) {
            replay_case_set_reason(self, "unknown name: %s does not know '%s'", words[1], words[2 + i]);
            return false;
        }
    }
    return true;
}

/* Tensors ---------------------------------------------------------------------------------------------- */

/* Rank r has the parts in 0..n-1, out 0..n-1, n as on rank 0, and there are as many ranks as the name says. */
static bool check_parts(const struct part *parts, size_t n_parts, struct replay_case *self)
{
    size_t n_ins = 0;
    while (n_ins < n_parts && parts[n_ins].rank == 0 && !parts[n_ins].is_out) {
        n_ins++;
    }
    if (n_ins == 0 || (n_ins > 1 && !self->call.row->is_list)) {
        replay_case_set_reason(self, "rank 0 has %zu inputs", n_ins);
        return false;
    }
    for (size_t i = 0; i < 2 * n_ins * (size_t)self->n_ranks || i < n_parts; i++) {
        size_t within = i % (2 * n_ins);
        struct part wanted = {
            .rank = (int)(i / (2 * n_ins)), .is_out = within >= n_ins, .place = (int)(within % n_ins)};
        const struct part *part = i < n_parts ? &parts[i] : NULL;
        if (i >= 2 * n_ins * (size_t)self->n_ranks) {
            replay_case_set_reason(self, "rank%d.%s%d should not be there", part->rank,
                                   part->is_out ? "out" : "in", part->place);
            return false;
        }
        if (!part || part->rank != wanted.rank || part->is_out != wanted.is_out ||
            part->place != wanted.place) {
            replay_case_set_reason(self, "rank%d.%s%d is missing, or another is there that should not be",
                                   wanted.rank, wanted.is_out ? "out" : "in", wanted.place);
            return false;
        }
    }
    self->n_tensors = n_ins;
    return true;
}

/* Returns false if memory runs out. */
static bool keep_parts(const struct part *parts, struct replay_case *self)
{
    size_t n = self->n_tensors * (size_t)self->n_ranks;
    self->ins = calloc(n, sizeof(self->ins[0]));
    self->outs = calloc(n, sizeof(self->outs[0]));
    if (!self->ins || !self->outs) {
        return false;
    }
    for (size_t i = 0; i < 2 * n; i++) {
        size_t at = (size_t)parts[i].rank * self->n_tensors + (size_t)parts[i].place;
        (parts[i].is_out ? self->outs : self->ins)[at] = parts[i].tensor;
    }
    return true;
}

static const char *format_shape(char text[SHAPE_TEXT_BYTES], const shoal_safetensors_info *info)
{
    size_t length = 0;
    for (int i = 0; i < info->n_dims; i++) {
        length += (size_t)snprintf(text + length, SHAPE_TEXT_BYTES - length, "%s%" PRId64, i ? ", " : "[",
                                   info->shape[i]);
    }
    (void)snprintf(text + length, SHAPE_TEXT_BYTES - length, "%s", info->n_dims ? "]" : "[]");
    return text;
}

static bool check_dtypes(const shoal_safetensors *file, const struct part *parts, size_t n_parts,
                         struct replay_case *self)
{
    for (size_t i = 0; i < n_parts; i++) {
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        if (shoal_safetensors_get(file, parts[i].tensor, &info) != SHOAL_OK || info.dtype != self->dtype) {
            replay_case_set_reason(self, "rank%d.%s%d is %s, the name says %s", parts[i].rank,
                                   parts[i].is_out ? "out" : "in", parts[i].place,
                                   shoal_dtype_name(info.dtype), shoal_dtype_name(self->dtype));
            return false;
        }
    }
    return true;
}

/* The rows that the rank sends to all, when that is not said by the others' inputs; -1 if it is. */
static int64_t count_uneven_rows(const struct replay_case *self, int rank)
{
    int64_t n_rows = 0;
    for (int to = 0; self->call.is_uneven && to < self->n_ranks; to++) {
        n_rows += replay_uneven_rows(rank, to);
    }
    return self->call.is_uneven ? n_rows : -1;
}

/* Input i of a rank against that of rank 0: a difference would fail the group and every case behind this one. */
static bool check_shape(const shoal_safetensors *file, struct replay_case *self, int rank, size_t i)
{
    shoal_safetensors_info first = SHOAL_SAFETENSORS_INFO_INIT;
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    if (shoal_safetensors_get(file, self->ins[i], &first) != SHOAL_OK ||
        shoal_safetensors_get(file, self->ins[(size_t)rank * self->n_tensors + i], &info) != SHOAL_OK) {
        replay_case_set_reason(self, "%s", shoal_error_text());
        return false;
    }
    int64_t n_rows = count_uneven_rows(self, rank);
    bool is_same = info.n_dims == first.n_dims && (n_rows < 0 || info.n_dims > 0);
    for (int dim = 0; is_same && dim < info.n_dims; dim++) {
        is_same = info.shape[dim] == (dim == 0 && n_rows >= 0 ? n_rows : first.shape[dim]);
    }
    if (!is_same) {
        char a[SHAPE_TEXT_BYTES];
        char b[SHAPE_TEXT_BYTES];
        replay_case_set_reason(self, "rank%d.in%zu is %s, which does not fit rank0.in%zu of %s%s", rank, i,
                               format_shape(a, &info), i, format_shape(b, &first),
                               n_rows >= 0 ? " and the rows of an uneven split" : "");
    }
    return is_same;
}

static void check_shapes(const shoal_safetensors *file, struct replay_case *self)
{
    for (int rank = 0; rank < self->n_ranks; rank++) {
        for (size_t i = 0; i < self->n_tensors; i++) {
            if (!check_shape(file, self, rank, i)) {
                return;
            }
        }
    }
}

/* Cases ------------------------------------------------------------------------------------------------ */

/* Returns false if memory runs out. Anything else that is wrong is the reason of the case. */
static bool read_case(const shoal_safetensors *file, const struct part *parts, size_t n_parts,
                      struct replay_case *self)
{
    self->name = strndup(parts[0].name, parts[0].case_length);
    char *text = self->name ? strdup(self->name) : NULL;
    bool has_memory = text != NULL;
    if (has_memory && !parts[0].is_known) {
        replay_case_set_reason(self, "unknown name: does not end in .rankR.inI or .rankR.outI");
    } else if (has_memory && read_words(text, self) && check_parts(parts, n_parts, self) &&
               check_dtypes(file, parts, n_parts, self)) {
        has_memory = keep_parts(parts, self);
        if (has_memory) {
            check_shapes(file, self);
        }
    }
    free(text);
    return has_memory;
}

static bool read_parts(const shoal_safetensors *file, struct part *parts, size_t n_parts,
                       struct replay_cases *cases)
{
    for (size_t i = 0; i < n_parts; i++) {
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        if (shoal_safetensors_get(file, (int64_t)i, &info) != SHOAL_OK) {
            return false;
        }
        parts[i] = read_name(info.name, (int64_t)i);
    }
    qsort(parts, n_parts, sizeof(parts[0]), compare_parts);
    size_t begin = 0;
    while (begin < n_parts) {
        size_t end = begin + 1;
        while (end < n_parts && compare_cases(&parts[begin], &parts[end]) == 0) {
            end++;
        }
        if (!read_case(file, &parts[begin], end - begin, &cases->cases[cases->n_cases++])) {
            return false;
        }
        begin = end;
    }
    return true;
}

bool replay_cases_collect(const shoal_safetensors *file, struct replay_cases *cases_out)
{
    size_t n_parts = (size_t)shoal_safetensors_count(file);
    struct part *parts = calloc(n_parts + 1, sizeof(*parts));
    struct replay_cases cases = {.cases = calloc(n_parts + 1, sizeof(*cases.cases))};
    bool has_memory = parts && cases.cases && read_parts(file, parts, n_parts, &cases);
    free(parts);
    if (!has_memory) {
        replay_cases_free(&cases);
        return false;
    }
    *cases_out = cases;
    return true;
}

void replay_cases_free(struct replay_cases *cases)
{
    for (size_t i = 0; i < cases->n_cases; i++) {
        free(cases->cases[i].name);
        free(cases->cases[i].ins);
        free(cases->cases[i].outs);
    }
    free(cases->cases);
    *cases = (struct replay_cases){0};
}
