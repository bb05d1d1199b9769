/* SPDX-License-Identifier: MIT */
/* Writing and reading the configuration of a run as JSON:
 *
 *     {"version": 1, "run": "0123456789abcdef", "model": {"layers": 2, "width": 192, "heads": 6, "context": 128, "vocabulary": 256, "eps": 1e-05},
 *      "split": {"ranks": 2, "started": true, "replicas": 1, "parts": 2, "passes": 1, "rows": 8},
 *      "data": {"kind": "text", "path": "/home/me/text", "val": "0.1", "bytes": 1000000, "first_hash": "...", "hash": "...",
 *               "vocabulary": 256},
 *      "products": "openblas 0.3.21 neoversev1", "options": {"mode": "fsdp", "lr": 0.001, ...}}
 *
 * An option that the text does not have keeps its default; one that this version does not know is an error. */
#include "config/config.h"
#include "common/commands.h"
#include "run/rank.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/option_parse.h"
#include "base/try.h"
#include "checkpoint/index/directory.h"
#include "checkpoint/index/index.h"
#include "checkpoint/io/file.h"
#include "checkpoint/items/items.h"
#include "checkpoint/load/foreign.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    VERSION = 1,
    HASH_DIGITS = 16,
    RUN_DIGITS = 16,
    MAX_SIZE = 1 << 20, /* of the model, as of its options */
    MAX_PARTS = 4096    /* of a step, in each way of dividing it */
};

static const char *const kind_names[] = {"text", "tokens", "source"};

#define N_KINDS (sizeof kind_names / sizeof kind_names[0])

/* Writing ------------------------------------------------------------------------------------------------ */

static json_t *make_hash(uint64_t hash)
{
    char digits[HASH_DIGITS + 1];
    (void)snprintf(digits, sizeof digits, "%016" PRIx64, hash);
    return json_string(digits);
}

/* NULL if there is no memory. */
static json_t *make_option(const struct tool_option *row, const struct train_options *options)
{
    char text[64];
    const void *from = (const char *)options + row->at;
    if (row->kind == TOOL_OPTION_FLAG) {
        return json_boolean(*(const bool *)from);
    }
    if (row->kind == TOOL_OPTION_INT64) {
        return json_integer(*(const int64_t *)from);
    }
    if (row->kind == TOOL_OPTION_REAL) {
        return json_real(*(const double *)from);
    }
    tool_option_print(row, options, text, sizeof text); /* choices and parts */
    return json_string(text);
}

static json_t *make_options(const struct train_options *options)
{
    json_t *object = json_object();
    for (size_t i = 0; object && i < command_train_options.n_rows; i++) {
        const struct tool_option *row = &command_train_options.rows[i];
        if (train_options_is_kept(row) &&
            json_object_set_new(object, row->name + 2, make_option(row, options)) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

void train_config_val(const struct train_options *options, char *text)
{
    char *end = NULL;
    const char *val = options->val ? options->val : "";
    (void)strtod(val, &end);
    bool is_file = *end != '\0';
    if (!is_file || !realpath(val, text)) {
        (void)snprintf(text, PATH_MAX, "%s", val);
    }
}

void train_config_take_data(const struct train_options *options, const struct train_data *data,
                            struct train_config *config)
{
    const char *path = options->tokens ? options->tokens : options->data;
    config->data_kind = options->tokens ? TRAIN_DATA_TOKENS : path ? TRAIN_DATA_TEXT : TRAIN_DATA_SOURCE;
    config->data_path[0] = '\0';
    if (path && !realpath(path, config->data_path)) {
        (void)snprintf(config->data_path, sizeof config->data_path, "%s", path);
    }
    config->data_bytes = (int64_t)(data->n_tokens * data->token_bytes);
    config->data_first_hash = data->first_hash;
    config->data_hash = data->hash;
    config->data_vocabulary = data->vocabulary;
    train_config_val(options, config->val);
}

/* A text, "" if it is not UTF-8. */
static json_t *make_path(const char *path)
{
    json_t *text = json_string(path);
    return text ? text : json_string("");
}

/* null, if it is not UTF-8: "" means that there is none. */
static json_t *make_val(const char *val)
{
    json_t *text = json_string(val);
    return text ? text : json_null();
}

static json_t *make_data(const struct train_config *config)
{
    return json_pack("{s:s, s:o, s:o, s:I, s:o, s:o, s:I}", "kind", kind_names[config->data_kind], "path",
                     make_path(config->data_path), "val", make_val(config->val), "bytes",
                     (json_int_t)config->data_bytes, "first_hash", make_hash(config->data_first_hash), "hash",
                     make_hash(config->data_hash), "vocabulary", (json_int_t)config->data_vocabulary);
}

static json_t *make_document(const struct train_config *config)
{
    json_t *model = json_pack("{s:I, s:I, s:I, s:I, s:I, s:f}", "layers", (json_int_t)config->n_layers,
                              "width", (json_int_t)config->width, "heads", (json_int_t)config->n_heads,
                              "context", (json_int_t)config->context, "vocabulary",
                              (json_int_t)config->vocabulary, "eps", config->eps);
    json_t *split = json_pack("{s:I, s:b, s:I, s:I, s:I, s:I}", "ranks", (json_int_t)config->n_ranks,
                              "started", config->has_started_ranks, "replicas",
                              (json_int_t)config->n_replicas, "parts", (json_int_t)config->n_parts, "passes",
                              (json_int_t)config->n_micro, "rows", (json_int_t)config->n_rows);
    return json_pack("{s:i, s:s, s:o, s:o, s:o, s:s, s:o}", "version", VERSION, "run", config->run, "model",
                     model, "split", split, "data", make_data(config), "products", config->products,
                     "options", make_options(&config->options));
}

shoal_status train_config_write(const struct train_config *config, char *text)
{
    json_t *document = make_document(config);
    char *written = document ? json_dumps(document, JSON_COMPACT) : NULL;
    json_decref(document);
    if (!written) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the configuration of the run");
    }
    bool has_room = snprintf(text, TRAIN_CONFIG_BYTES, "%s", written) < TRAIN_CONFIG_BYTES;
    free(written);
    return has_room ? SHOAL_OK
                    : error_set(SHOAL_ERR_INVALID,
                                "the configuration of the run does not fit into %d bytes: a long path",
                                TRAIN_CONFIG_BYTES);
}

/* Reading ------------------------------------------------------------------------------------------------ */

static shoal_status fail_entry(const char *object, const char *name)
{
    return error_set(SHOAL_ERR_INVALID, "its configuration has no usable \"%s\" in \"%s\"", name, object);
}

static shoal_status read_integer(const json_t *object, const char *of, const char *name, int64_t most,
                                 int64_t *value_out)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > most) {
        return fail_entry(of, name);
    }
    *value_out = json_integer_value(value);
    return SHOAL_OK;
}

static shoal_status read_hash(const json_t *object, const char *name, uint64_t *hash_out)
{
    const char *digits = json_string_value(json_object_get(object, name));
    bool is_hash =
        digits && strlen(digits) == HASH_DIGITS && strspn(digits, "0123456789abcdef") == HASH_DIGITS;
    *hash_out = is_hash ? strtoull(digits, NULL, 16) : 0;
    return is_hash ? SHOAL_OK : fail_entry("data", name);
}

/* Older versions have none. */
static void read_run(const json_t *document, struct train_config *config)
{
    const char *digits = json_string_value(json_object_get(document, "run"));
    bool is_run = digits && strlen(digits) == RUN_DIGITS;
    (void)snprintf(config->run, sizeof config->run, "%s", is_run ? digits : "");
}

/* Older versions have none. */
static void read_products(const json_t *document, struct train_config *config)
{
    const char *text = json_string_value(json_object_get(document, "products"));
    (void)snprintf(config->products, sizeof config->products, "%s", text ? text : "");
}

static shoal_status read_model(const json_t *model, struct train_config *config)
{
    TRY(read_integer(model, "model", "layers", MAX_SIZE, &config->n_layers));
    TRY(read_integer(model, "model", "width", MAX_SIZE, &config->width));
    TRY(read_integer(model, "model", "heads", MAX_SIZE, &config->n_heads));
    TRY(read_integer(model, "model", "context", MAX_SIZE, &config->context));
    config->eps = json_number_value(json_object_get(model, "eps"));
    if (!(config->eps > 0.0 && config->eps < 1.0)) {
        return fail_entry("model", "eps");
    }
    return read_integer(model, "model", "vocabulary", TRAIN_MAX_VOCABULARY, &config->vocabulary);
}

static shoal_status read_split(const json_t *split, struct train_config *config)
{
    TRY(read_integer(split, "split", "ranks", RUN_MAX_RANKS, &config->n_ranks));
    TRY(read_integer(split, "split", "replicas", MAX_PARTS, &config->n_replicas));
    TRY(read_integer(split, "split", "parts", MAX_PARTS, &config->n_parts));
    TRY(read_integer(split, "split", "passes", MAX_PARTS, &config->n_micro));
    config->has_started_ranks = json_is_true(json_object_get(split, "started"));
    return read_integer(split, "split", "rows", INT64_MAX, &config->n_rows);
}

static shoal_status read_data(const json_t *data, struct train_config *config)
{
    const char *kind = json_string_value(json_object_get(data, "kind"));
    const char *path = json_string_value(json_object_get(data, "path"));
    const char *val = json_string_value(json_object_get(data, "val"));
    size_t number = 0;
    while (number < N_KINDS && (!kind || strcmp(kind, kind_names[number]) != 0)) {
        number++;
    }
    if (number == N_KINDS || !path || strlen(path) >= sizeof config->data_path) {
        return fail_entry("data", number == N_KINDS ? "kind" : "path");
    }
    config->data_kind = (enum train_data_kind)number;
    (void)snprintf(config->data_path, sizeof config->data_path, "%s", path);
    (void)snprintf(config->val, sizeof config->val, "%s", val ? val : "");
    config->has_lost_val = json_is_null(json_object_get(data, "val"));
    TRY(read_integer(data, "data", "bytes", INT64_MAX, &config->data_bytes));
    TRY(read_integer(data, "data", "vocabulary", TRAIN_MAX_VOCABULARY, &config->data_vocabulary));
    TRY(read_hash(data, "first_hash", &config->data_first_hash));
    return read_hash(data, "hash", &config->data_hash);
}

/* As on a command line. An option without a default is 0 if it was not given. */
static bool is_in_range(const struct tool_option *row, double value)
{
    return (value >= row->least && value <= row->most) || (value == 0.0 && !row->standard);
}

static shoal_status read_option(const struct tool_option *row, const json_t *value,
                                struct train_options *options)
{
    void *to = (char *)options + row->at;
    const char *text = json_string_value(value);
    int choice = 0;
    bool is_good = false;
    if (row->kind == TOOL_OPTION_FLAG && json_is_boolean(value)) {
        *(bool *)to = json_is_true(value);
        is_good = true;
    } else if (row->kind == TOOL_OPTION_INT64 && json_is_integer(value)) {
        *(int64_t *)to = json_integer_value(value);
        is_good = is_in_range(row, (double)json_integer_value(value));
    } else if (row->kind == TOOL_OPTION_REAL && json_is_number(value)) {
        *(double *)to = json_number_value(value);
        is_good = is_in_range(row, json_number_value(value));
    } else if (row->kind == TOOL_OPTION_PARTS && text) {
        is_good = tool_parts_read(text, to);
    } else if (row->kind == TOOL_OPTION_CHOICE && text && option_parse_choice(text, row->choices, &choice)) {
        *(int64_t *)to = choice;
        is_good = true;
    }
    return is_good ? SHOAL_OK : fail_entry("options", row->name + 2);
}

static shoal_status read_options(const json_t *object, struct train_options *options)
{
    const char *key;
    const json_t *value;
    if (!json_is_object(object)) {
        return fail_entry("", "options");
    }
    train_options_default(options);
    json_object_foreach((json_t *)object, key, value)
    {
        char name[64];
        (void)snprintf(name, sizeof name, "--%s", key);
        const struct tool_option *row = tool_option_find(&command_train_options, name);
        if (!row || !train_options_is_kept(row)) {
            return error_set(SHOAL_ERR_UNSUPPORTED,
                             "its configuration has \"%s\", which this version does not know", key);
        }
        TRY(read_option(row, value, options));
    }
    return SHOAL_OK;
}

/* What parts of the configuration say of each other. All numbers are in their ranges, so no product overflows. */
static shoal_status check_document(const struct train_config *config)
{
    const struct train_options *options = &config->options;
    bool is_single = options->mode == TRAIN_SINGLE;
    int64_t n_parts = config->n_replicas * config->n_parts;
    const struct {
        bool is_wrong;
        const char *text;
    } rules[] = {
        {options->n_layers != config->n_layers, "\"layers\" differ in \"model\" and \"options\""},
        {options->width != config->width, "\"width\" differs in \"model\" and \"options\""},
        {options->n_heads != config->n_heads, "\"heads\" differ in \"model\" and \"options\""},
        {config->width % config->n_heads != 0, "\"heads\" do not divide \"width\""},
        {options->context > config->context, "\"context\" in \"options\" is more than that of the model"},
        {config->data_vocabulary > config->vocabulary,
         "\"vocabulary\" in \"data\" is more than that of the model"},
        {config->n_rows != n_parts * config->n_micro * options->batch,
         "\"rows\" in \"split\" is not replicas x parts x passes x batch"},
        {config->n_ranks != (is_single ? 1 : n_parts), "\"ranks\" in \"split\" is not replicas x parts"},
        {options->mode == TRAIN_HSDP && options->n_replicas != config->n_replicas,
         "\"replicas\" differ in \"split\" and \"options\""},
        {options->lr <= 0.0, "\"lr\" in \"options\" is not more than 0"},
        {config->step < 0 || config->step > options->n_steps,
         "\"steps\" in \"options\" are fewer than are done"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].is_wrong) {
            return error_set(SHOAL_ERR_INVALID, "its configuration contradicts itself: %s", rules[i].text);
        }
    }
    return SHOAL_OK;
}

static shoal_status read_document(const json_t *document, struct train_config *config)
{
    int64_t version = 0;
    TRY(read_integer(document, "train.config", "version", INT64_MAX, &version));
    if (version > VERSION) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "its configuration has version %lld, and this program knows versions up to %d",
                         (long long)version, VERSION);
    }
    TRY(read_model(json_object_get(document, "model"), config));
    TRY(read_split(json_object_get(document, "split"), config));
    TRY(read_data(json_object_get(document, "data"), config));
    read_run(document, config);
    read_products(document, config);
    TRY(read_options(json_object_get(document, "options"), &config->options));
    return check_document(config);
}

static shoal_status read_text(const char *text, struct train_config *config)
{
    json_error_t error;
    json_t *document = json_loads(text, 0, &error);
    if (!document) {
        return error_set(SHOAL_ERR_INVALID, "its configuration is not JSON: %s", error.text);
    }
    shoal_status status = read_document(document, config);
    json_decref(document);
    return status;
}

/* The checkpoint ----------------------------------------------------------------------------------------- */

static shoal_status fail_file(const char *path)
{
    return error_set(SHOAL_ERR_SYSTEM, "%s: %s", path, error_errno_text(errno));
}

/* All of a file; *text_out is freed with mem_free. */
static shoal_status read_open_file(int fd, const char *path, char **text_out, size_t *bytes_out)
{
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return fail_file(path);
    }
    char *text = mem_alloc_zeroed((size_t)about.st_size + 1, 1);
    if (!text) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for %s", path);
    }
    shoal_status status = file_read_at(fd, 0, text, (size_t)about.st_size);
    if (status != SHOAL_OK) {
        mem_free(text);
        return error_prefix(status, "%s", path);
    }
    *text_out = text;
    *bytes_out = (size_t)about.st_size;
    return SHOAL_OK;
}

static shoal_status read_index(const char *checkpoint, struct checkpoint_index *index)
{
    char path[PATH_MAX];
    char *text = NULL;
    size_t n_bytes = 0;
    (void)snprintf(path, sizeof path, "%s/" INDEX_NAME, checkpoint);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return fail_file(path);
    }
    shoal_status status = read_open_file(fd, path, &text, &n_bytes);
    (void)close(fd);
    TRY(status);
    status = index_read(text, n_bytes, index);
    mem_free(text);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", path);
}

/* NULL if the index has none. */
static const char *find_config(const struct checkpoint_index *index)
{
    for (size_t i = 0; i < index->n_values; i++) {
        if (index->values[i].kind == ITEM_STRING && strcmp(index->values[i].name, TRAIN_CONFIG_ITEM) == 0) {
            return index->values[i].string;
        }
    }
    return NULL;
}

static shoal_status take_index(const struct checkpoint_index *index, const char *checkpoint,
                               struct train_config *config)
{
    const char *text = find_config(index);
    int64_t named = directory_step(checkpoint); /* less than 0 if it has a name of its own */
    if (named >= 0 && named != index->step) {
        return error_set(SHOAL_ERR_STATE, "%s: is of step %" PRId64 ", not %" PRId64, checkpoint, index->step,
                         named);
    }
    if (!text) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s has no configuration: it was not written by shoal train, or by an older version",
                         checkpoint);
    }
    config->step = index->step;
    (void)snprintf(config->directory, sizeof config->directory, "%s", checkpoint);
    shoal_status status = read_text(text, config);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", checkpoint);
}

/* *is_damaged_out: the index cannot be read, and an older checkpoint may do. */
static shoal_status read_checkpoint(const char *checkpoint, struct train_config *config, bool *is_damaged_out)
{
    struct checkpoint_index index = {.step = 0};
    shoal_status status = read_index(checkpoint, &index);
    *is_damaged_out = status == SHOAL_ERR_INVALID || status == SHOAL_ERR_SYSTEM;
    TRY(status);
    status = take_index(&index, checkpoint, config);
    index_free(&index);
    return status;
}

shoal_status train_config_check(const char *directory)
{
    static const char *const names[] = {FOREIGN_FILE_NAME, FOREIGN_INDEX_NAME};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int length = snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        if (length < (int)sizeof path && access(path, F_OK) == 0) {
            return error_set(SHOAL_ERR_INVALID,
                             "%s is a model of Hugging Face, with %s, and no directory of checkpoints: "
                             "--load %s begins with its weights, and --checkpoint names another directory",
                             directory, names[i], directory);
        }
    }
    return SHOAL_OK;
}

shoal_status train_config_read(const char *directory, struct train_config *config, bool *is_found_out)
{
    char text[ERROR_TEXT_BYTES] = "";
    shoal_status first = SHOAL_OK; /* the newest one's failure */
    int64_t most = INT64_MAX;
    bool is_damaged = true;
    *config = (struct train_config){.step = -1};
    *is_found_out = false;
    while (is_damaged) {
        char *checkpoint = NULL;
        int64_t step = -1;
        TRY(directory_find(directory, 0, most, &checkpoint, &step));
        if (!checkpoint) {
            break;
        }
        *is_found_out = true;
        shoal_status status = read_checkpoint(checkpoint, config, &is_damaged);
        mem_free(checkpoint);
        if (!is_damaged) {
            return status;
        }
        if (first == SHOAL_OK) {
            first = status;
            (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        }
        is_damaged = step > 0;
        most = step - 1;
    }
    return first == SHOAL_OK ? SHOAL_OK : error_set(first, "%s", text);
}
