/* SPDX-License-Identifier: MIT */
/* Groups the tensors of a file into cases by their names, and looks at each case before anything is run. */
#include "cases.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "names.h"
#include "shoal/ops.h"

#define SHAPE_TEXT_BYTES 192

void replay_case_set_reason(struct replay_case *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(self->reason, sizeof self->reason, format, arguments);
    va_end(arguments);
}

/* Tensors ---------------------------------------------------------------------------------------------- */

/* How many of each kind rank 0 has, which the others must have too. */
static void count_parts(const struct replay_part *parts, size_t n_parts, struct replay_case *self)
{
    for (size_t i = 0; i < n_parts && parts[i].rank == 0; i++) {
        self->n_tensors[parts[i].kind]++;
    }
}

static bool check_count(struct replay_case *self, enum replay_kind kind, enum replay_count count,
                        size_t n_list)
{
    size_t n_tensors = self->n_tensors[kind];
    size_t n_wanted = count == REPLAY_ONE ? 1 : count == REPLAY_RANKS ? (size_t)self->n_ranks : n_list;
    if (n_tensors != n_wanted) {
        replay_case_set_reason(self, "rank 0 has %zu %s, not %zu", n_tensors,
                               kind == REPLAY_IN ? "inputs" : "outputs", n_wanted);
    }
    return n_tensors == n_wanted;
}

/* As many inputs and outputs as the op has. PyTorch gave no gradient where there are no tensors of gradients. */
static bool check_counts(struct replay_case *self)
{
    const struct replay_row *row = self->call.row;
    size_t n_ins = self->n_tensors[REPLAY_IN];
    size_t n_outs = self->n_tensors[REPLAY_OUT];
    size_t n_gins = self->n_tensors[REPLAY_GIN];
    size_t n_gouts = self->n_tensors[REPLAY_GOUT];
    if (n_ins == 0) {
        replay_case_set_reason(self, "rank 0 has no inputs");
        return false;
    }
    if (n_ins > REPLAY_MAX_LIST || n_outs > REPLAY_MAX_LIST) {
        replay_case_set_reason(self, "rank 0 has %zu inputs and %zu outputs; at most %d of each are read",
                               n_ins, n_outs, REPLAY_MAX_LIST);
        return false;
    }
    if (row->ins == REPLAY_LIST && self->call.n_dims > 1 && self->call.n_dims != n_ins) {
        replay_case_set_reason(self, "rank 0 has %zu inputs, and the name has %zu dimensions", n_ins,
                               self->call.n_dims);
        return false;
    }
    if (!check_count(self, REPLAY_IN, row->ins, n_ins) || !check_count(self, REPLAY_OUT, row->outs, n_ins)) {
        return false;
    }
    bool is_plain = n_gins == 0 && n_gouts == 0;
    bool is_whole = self->call.has_gradient && n_gins == n_ins && n_gouts == n_outs;
    if (!is_plain && !is_whole) {
        replay_case_set_reason(self, "rank 0 has %zu gradients of inputs and %zu of outputs", n_gins,
                               n_gouts);
    }
    return is_plain || is_whole;
}

/* What is at place i of all parts, in order. */
static struct replay_part expect_part(const struct replay_case *self, size_t i)
{
    size_t n_each = 0;
    for (int kind = 0; kind < REPLAY_N_KINDS; kind++) {
        n_each += self->n_tensors[kind];
    }
    struct replay_part wanted = {.rank = (int)(i / n_each)};
    size_t within = i % n_each;
    while (within >= self->n_tensors[wanted.kind]) {
        within -= self->n_tensors[wanted.kind++];
    }
    wanted.place = (int)within;
    return wanted;
}

/* Every rank has the parts 0..n-1 of each kind, n as on rank 0, and there are as many ranks as the name says. */
static bool check_parts(const struct replay_part *parts, size_t n_parts, struct replay_case *self)
{
    count_parts(parts, n_parts, self);
    if (!check_counts(self)) {
        return false;
    }
    for (size_t i = 0;; i++) {
        struct replay_part wanted = expect_part(self, i);
        const struct replay_part *part = i < n_parts ? &parts[i] : NULL;
        bool is_past = wanted.rank >= self->n_ranks;
        if (is_past && part) {
            replay_case_set_reason(self, "rank%d.%s%d should not be there", part->rank,
                                   replay_kind_names[part->kind], part->place);
        }
        if (is_past) {
            return !part;
        }
        if (!part || part->rank != wanted.rank || part->kind != wanted.kind || part->place != wanted.place) {
            replay_case_set_reason(self, "rank%d.%s%d is missing, or another is there that should not be",
                                   wanted.rank, replay_kind_names[wanted.kind], wanted.place);
            return false;
        }
    }
}

/* Returns false if memory runs out. */
static bool keep_parts(const struct replay_part *parts, size_t n_parts, struct replay_case *self)
{
    for (int kind = 0; kind < REPLAY_N_KINDS; kind++) {
        self->tensors[kind] = calloc(self->n_tensors[kind] * (size_t)self->n_ranks + 1, sizeof(int64_t));
        if (!self->tensors[kind]) {
            return false;
        }
    }
    for (size_t i = 0; i < n_parts; i++) {
        enum replay_kind kind = parts[i].kind;
        size_t at = (size_t)parts[i].rank * self->n_tensors[kind] + (size_t)parts[i].place;
        self->tensors[kind][at] = parts[i].tensor;
    }
    return true;
}

/* What a complex dtype may be stored as, with a last dimension of two; the dtype itself if it is not complex. */
static shoal_dtype stored_dtype(shoal_dtype dtype)
{
    return dtype == SHOAL_C64 ? SHOAL_F32 : dtype == SHOAL_C128 ? SHOAL_F64 : dtype;
}

static bool is_pairs(const struct replay_case *self, const shoal_safetensors_info *info)
{
    return info->dtype != self->dtype && info->dtype == stored_dtype(self->dtype) && info->n_dims > 0 &&
           info->shape[info->n_dims - 1] == 2;
}

shoal_tensor *replay_case_load(const struct replay_case *self, const shoal_safetensors *file, int64_t number)
{
    shoal_tensor *tensor = shoal_safetensors_tensor(file, number);
    if (!tensor || shoal_tensor_dtype(tensor) == self->dtype) {
        return tensor;
    }
    shoal_tensor *complex = shoal_view_dtype(tensor, self->dtype);
    return complex ? shoal_reshape(complex, shoal_tensor_shape(tensor), shoal_tensor_n_dims(tensor) - 1)
                   : NULL;
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

static bool check_dtypes(const shoal_safetensors *file, const struct replay_part *parts, size_t n_parts,
                         struct replay_case *self)
{
    for (size_t i = 0; i < n_parts; i++) {
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        if (shoal_safetensors_get(file, parts[i].tensor, &info) != SHOAL_OK ||
            (info.dtype != self->dtype && !is_pairs(self, &info))) {
            replay_case_set_reason(self, "rank%d.%s%d is %s, the name says %s", parts[i].rank,
                                   replay_kind_names[parts[i].kind], parts[i].place,
                                   shoal_dtype_name(info.dtype), shoal_dtype_name(self->dtype));
            return false;
        }
    }
    return true;
}

/* The rows that the rank sends to all, when that is not said by the others' inputs; -1 if it is. */
static int64_t count_split_rows(const struct replay_case *self, int rank)
{
    int64_t n_rows = 0;
    bool is_even = self->call.splits == REPLAY_EVEN;
    for (int to = 0; !is_even && to < self->n_ranks; to++) {
        n_rows += replay_split_rows(&self->call, rank, to);
    }
    return is_even ? -1 : n_rows;
}

/* What the name says of the layout. */
static bool check_layout(struct replay_case *self, int rank, size_t i, const shoal_safetensors_info *info)
{
    static const char *const words[] = {[REPLAY_ANY] = "",
                                        [REPLAY_ZERO_D] = "without dimensions",
                                        [REPLAY_EMPTY] = "empty",
                                        [REPLAY_TRANSPOSED] = "of two dimensions",
                                        [REPLAY_ROWS] = "of two dimensions"};
    int n_dims = info->n_dims - (is_pairs(self, info) ? 1 : 0);
    bool is_empty = false;
    for (int dim = 0; dim < n_dims; dim++) {
        is_empty = is_empty || info->shape[dim] == 0;
    }
    bool is_right[] = {[REPLAY_ANY] = true,
                       [REPLAY_ZERO_D] = n_dims == 0,
                       [REPLAY_EMPTY] = is_empty,
                       [REPLAY_TRANSPOSED] = n_dims == 2,
                       [REPLAY_ROWS] = n_dims == 2};
    enum replay_layout layout = self->call.layout;
    if (!is_right[layout]) {
        char text[SHAPE_TEXT_BYTES];
        replay_case_set_reason(self, "rank%d.in%zu is %s, which is not %s", rank, i, format_shape(text, info),
                               words[layout]);
    }
    return is_right[layout];
}

/* Input i of a rank against that of rank 0: a difference would fail the group and every case behind this one. */
static bool check_shape(const shoal_safetensors *file, struct replay_case *self, int rank, size_t i)
{
    const int64_t *ins = self->tensors[REPLAY_IN];
    shoal_safetensors_info first = SHOAL_SAFETENSORS_INFO_INIT;
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    if (shoal_safetensors_get(file, ins[i], &first) != SHOAL_OK ||
        shoal_safetensors_get(file, ins[(size_t)rank * self->n_tensors[REPLAY_IN] + i], &info) != SHOAL_OK) {
        replay_case_set_reason(self, "%s", shoal_error_text());
        return false;
    }
    int64_t n_rows = count_split_rows(self, rank);
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
    return is_same && check_layout(self, rank, i, &info);
}

static void check_shapes(const shoal_safetensors *file, struct replay_case *self)
{
    for (int rank = 0; rank < self->n_ranks; rank++) {
        for (size_t i = 0; i < self->n_tensors[REPLAY_IN]; i++) {
            if (!check_shape(file, self, rank, i)) {
                return;
            }
        }
    }
}

/* Cases ------------------------------------------------------------------------------------------------ */

/* Returns false if memory runs out. Anything else that is wrong is the reason of the case. */
static bool read_case(const shoal_safetensors *file, const struct replay_part *parts, size_t n_parts,
                      struct replay_case *self)
{
    self->name = strndup(parts[0].name, parts[0].case_length);
    char *text = self->name ? strdup(self->name) : NULL;
    bool has_memory = text != NULL;
    if (has_memory && !parts[0].is_known) {
        replay_case_set_reason(self, "unknown name: does not end in .rankR.inI, .outI, .goutI or .ginI");
    } else if (has_memory && replay_case_read_name(text, self) && check_parts(parts, n_parts, self) &&
               check_dtypes(file, parts, n_parts, self)) {
        has_memory = keep_parts(parts, n_parts, self);
        if (has_memory) {
            check_shapes(file, self);
        }
    }
    free(text);
    return has_memory;
}

static bool read_parts(const shoal_safetensors *file, struct replay_part *parts, size_t n_parts,
                       struct replay_cases *cases)
{
    for (size_t i = 0; i < n_parts; i++) {
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        if (shoal_safetensors_get(file, (int64_t)i, &info) != SHOAL_OK) {
            return false;
        }
        parts[i] = replay_part_read(info.name, (int64_t)i);
    }
    qsort(parts, n_parts, sizeof(parts[0]), replay_part_compare);
    size_t begin = 0;
    while (begin < n_parts) {
        size_t end = begin + 1;
        while (end < n_parts && replay_part_compare_cases(&parts[begin], &parts[end]) == 0) {
            end++;
        }
        if (!read_case(file, &parts[begin], end - begin, &cases->cases[cases->n_cases++])) {
            return false;
        }
        begin = end;
    }
    return true;
}

/* Refusals --------------------------------------------------------------------------------------------- */

static bool has_case(const struct replay_cases *cases, const char *name)
{
    for (size_t i = 0; i < cases->n_cases; i++) {
        if (strcmp(cases->cases[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* A call that PyTorch refused: its name is understood, and it has no tensors. */
static bool read_refusal(const char *name, const json_t *message, struct replay_cases *cases)
{
    struct replay_case self = {.name = strdup(name)};
    char *text = strdup(name);
    bool has_memory = self.name && text;
    if (has_memory && replay_case_read_name(text, &self)) {
        if (!json_is_string(message)) {
            replay_case_set_reason(&self, "errors: the message is not a string");
        } else if (has_case(cases, name)) {
            replay_case_set_reason(&self, "errors: it was refused, and has tensors");
        }
    }
    free(text);
    if (has_memory && self.reason[0] != '\0') {
        cases->cases[cases->n_cases++] = self;
        return true;
    }
    cases->n_refused++;
    free(self.name);
    return has_memory;
}

static bool add_wrong(struct replay_cases *cases, const char *name, const char *reason)
{
    struct replay_case *self = &cases->cases[cases->n_cases];
    self->name = strdup(name);
    replay_case_set_reason(self, "%s", reason);
    cases->n_cases += self->name ? 1 : 0;
    return self->name != NULL;
}

static bool read_refusals(const json_t *errors, struct replay_cases *cases)
{
    const char *name;
    json_t *message;
    json_object_foreach((json_t *)(uintptr_t)errors, name, message)
    {
        if (!read_refusal(name, message, cases)) {
            return false;
        }
    }
    return true;
}

/* Keys that mean nothing here are known by name. */
static bool read_metadata(const shoal_safetensors *file, const json_t *errors, struct replay_cases *cases)
{
    const char *key;
    for (int64_t i = 0; (key = shoal_safetensors_metadata_key(file, i)) != NULL; i++) {
        bool is_errors = strcmp(key, "errors") == 0;
        bool is_known = is_errors || strcmp(key, "torch") == 0 || strcmp(key, "format") == 0;
        if (!is_known && !add_wrong(cases, key, "unknown key of the metadata")) {
            return false;
        }
        if (is_errors && !json_is_object(errors) && !add_wrong(cases, key, "is no JSON object")) {
            return false;
        }
    }
    return read_refusals(errors, cases);
}

static size_t count_keys(const shoal_safetensors *file)
{
    size_t count = 0;
    while (shoal_safetensors_metadata_key(file, (int64_t)count)) {
        count++;
    }
    return count;
}

bool replay_cases_collect(const shoal_safetensors *file, struct replay_cases *cases_out)
{
    const char *text = shoal_safetensors_metadata(file, "errors");
    json_t *errors = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    size_t n_parts = (size_t)shoal_safetensors_count(file);
    size_t n_cases = n_parts + json_object_size(errors) + 2 * count_keys(file) + 1;
    struct replay_part *parts = calloc(n_parts + 1, sizeof(*parts));
    struct replay_cases cases = {.cases = calloc(n_cases, sizeof(*cases.cases))};
    bool has_memory = parts && cases.cases && read_parts(file, parts, n_parts, &cases) &&
                      read_metadata(file, errors, &cases);
    free(parts);
    json_decref(errors);
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
        for (int kind = 0; kind < REPLAY_N_KINDS; kind++) {
            free(cases->cases[i].tensors[kind]);
        }
    }
    free(cases->cases);
    *cases = (struct replay_cases){0};
}
