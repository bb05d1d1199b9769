/* SPDX-License-Identifier: MIT */
/* Machines: built in, and read from files. */
#include "graph/analysis/machine.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/options.h"
#include "base/try.h"

#define FORMAT "shoal_machine"

enum {
    FORMAT_VERSION = 1,
    MAX_RANKS = 1 << 20
};

#if defined(__x86_64__)
#define ARCHITECTURE "x86_64"
#else
#define ARCHITECTURE "aarch64" /* also where there is no row: it must be the same machine everywhere */
#endif

/* Built in ---------------------------------------------------------------------------------------------- */

/* A row of machines.def: a machine if it has a name, otherwise a collective of the machine above it. */
struct row {
    const char *name;
    const char *architecture;
    double numbers[6];
    struct machine_collective collective;
};

static const struct row rows[] = {
#define MACHINE(name_, architecture_, ...) \
    {.name = #name_, .architecture = architecture_, .numbers = {__VA_ARGS__}},
#define COLLECTIVE(...) {.collective = {__VA_ARGS__}},
#include "graph/analysis/machines.def"
};

#define N_ROWS (sizeof rows / sizeof rows[0])

/* The numbers of a machine, with their names in files, in the order of machines.def. */
static const struct number {
    const char *name;
    size_t at;
    double most;
} numbers[] = {
    {"call_ns", offsetof(struct machine, call_ns), 1e12},
    {"touched_bytes_per_ns", offsetof(struct machine, touched_bytes_per_ns), 1e12},
    {"operations_per_ns", offsetof(struct machine, operations_per_ns), 1e12},
    {"functions_per_ns", offsetof(struct machine, functions_per_ns), 1e12},
    {"start_ns", offsetof(struct machine, start_ns), 1e12},
    {"hidden", offsetof(struct machine, hidden), 1},
};

#define N_NUMBERS (sizeof numbers / sizeof numbers[0])

static double *number_of(struct machine *machine, size_t index)
{
    return (double *)((char *)machine + numbers[index].at);
}

/* False if there is no such machine. `name` may be NULL: that of this architecture. */
static bool find_built_in(const char *name, struct machine *machine)
{
    size_t i = 0;
    while (i < N_ROWS && (!rows[i].name || strcmp(name ? rows[i].name : rows[i].architecture,
                                                  name ? name : ARCHITECTURE) != 0)) {
        i++;
    }
    if (i == N_ROWS) {
        return false;
    }
    (void)snprintf(machine->name, sizeof machine->name, "%s", rows[i].name);
    for (size_t k = 0; k < N_NUMBERS; k++) {
        *number_of(machine, k) = rows[i].numbers[k];
    }
    for (i++; i < N_ROWS && !rows[i].name && machine->n_collectives < MACHINE_MAX_COLLECTIVES; i++) {
        machine->collectives[machine->n_collectives++] = rows[i].collective;
    }
    return true;
}

/* Files ------------------------------------------------------------------------------------------------- */

/* Reads a number above `least`, or at least 0 if that is below 0. */
static shoal_status read_number(const json_t *object, const char *name, double most, double *number_out)
{
    const json_t *value = json_object_get(object, name);
    double number = json_number_value(value);
    bool is_share = most == 1;
    if (!json_is_number(value) || !isfinite(number) || number < 0 || (number == 0 && !is_share) ||
        number > most) {
        return error_set(SHOAL_ERR_INVALID, "\"%s\" must be a number %s, at most %g", name,
                         is_share ? "from 0" : "above 0", most);
    }
    *number_out = number;
    return SHOAL_OK;
}

/* A word may have characters that are printed as they are. */
static shoal_status read_word(const json_t *object, const char *name, char *word, size_t word_bytes)
{
    const char *text = json_string_value(json_object_get(object, name));
    size_t n_chars = text ? strlen(text) : 0;
    bool is_good = n_chars > 0 && n_chars < word_bytes;
    for (size_t i = 0; is_good && i < n_chars; i++) {
        is_good = text[i] >= ' ' && text[i] <= '~' && text[i] != '"' && text[i] != '\\';
    }
    if (!is_good) {
        return error_set(SHOAL_ERR_INVALID, "\"%s\" must be a word of 1 to %zu characters", name,
                         word_bytes - 1);
    }
    memcpy(word, text, n_chars + 1);
    return SHOAL_OK;
}

static shoal_status read_collective(const json_t *object, struct machine_collective *row)
{
    double n_ranks = 0;
    if (!json_is_object(object)) {
        return error_set(SHOAL_ERR_INVALID, "an object expected");
    }
    TRY(read_word(object, "transport", row->transport, sizeof row->transport));
    TRY(read_word(object, "op", row->op, sizeof row->op));
    TRY(read_number(object, "ranks", MAX_RANKS, &n_ranks));
    if (n_ranks != floor(n_ranks)) {
        return error_set(SHOAL_ERR_INVALID, "\"ranks\" %g is not a whole number", n_ranks);
    }
    row->n_ranks = (int)n_ranks;
    TRY(read_number(object, "latency_ns", 1e12, &row->latency_ns));
    return read_number(object, "bytes_per_ns", 1e12, &row->bytes_per_ns);
}

/* Every transport must have a row for all_reduce, which stands for ops without one. */
static shoal_status check_transports(const struct machine *machine)
{
    for (size_t i = 0; i < machine->n_collectives; i++) {
        const char *transport = machine->collectives[i].transport;
        bool is_there = false;
        for (size_t k = 0; k < machine->n_collectives; k++) {
            is_there = is_there || (strcmp(machine->collectives[k].transport, transport) == 0 &&
                                    strcmp(machine->collectives[k].op, "all_reduce") == 0);
        }
        if (!is_there) {
            return error_set(SHOAL_ERR_INVALID, "transport %s has no row for all_reduce", transport);
        }
    }
    return SHOAL_OK;
}

static shoal_status read_collectives(const json_t *root, struct machine *machine)
{
    const json_t *list = json_object_get(root, "collectives");
    size_t n_rows = json_array_size(list);
    if (n_rows == 0 || n_rows > MACHINE_MAX_COLLECTIVES) {
        return error_set(SHOAL_ERR_INVALID, "\"collectives\" must be a list of 1 to %d rows",
                         MACHINE_MAX_COLLECTIVES);
    }
    for (size_t i = 0; i < n_rows; i++) {
        shoal_status status = read_collective(json_array_get(list, i), &machine->collectives[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "row %zu of \"collectives\"", i + 1);
        }
    }
    machine->n_collectives = n_rows;
    return check_transports(machine);
}

static shoal_status read_root(const json_t *root, struct machine *machine)
{
    const json_t *format = json_object_get(root, FORMAT);
    if (!json_is_integer(format)) {
        return error_set(SHOAL_ERR_INVALID,
                         "this is no description of a machine, which `shoal bench probe` writes: there is no "
                         "number \"" FORMAT "\"");
    }
    if (json_integer_value(format) != FORMAT_VERSION) {
        return error_set(SHOAL_ERR_INVALID,
                         "its format is %" JSON_INTEGER_FORMAT ", but this library reads %d",
                         json_integer_value(format), FORMAT_VERSION);
    }
    TRY(read_word(root, "name", machine->name, sizeof machine->name));
    for (size_t i = 0; i < N_NUMBERS; i++) {
        TRY(read_number(root, numbers[i].name, numbers[i].most, number_of(machine, i)));
    }
    return read_collectives(root, machine);
}

static shoal_status read_file(const char *path, struct machine *machine)
{
    json_error_t error;
    FILE *file = fopen(path, "re");
    if (!file) {
        return error_set(SHOAL_ERR_SYSTEM, "%s: it is no machine that is built in, and no file: %s", path,
                         error_errno_text(errno));
    }
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    (void)fclose(file);
    if (!root) {
        return error_set(SHOAL_ERR_INVALID, "%s: this is not valid JSON: %s, in line %d", path, error.text,
                         error.line);
    }
    shoal_status status = read_root(root, machine);
    json_decref(root);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", path);
}

shoal_status machine_load(const char *name, struct machine *machine_out)
{
    const char *wanted = name && name[0] ? name : option_text(OPTION_MACHINE);
    *machine_out = (struct machine){.n_collectives = 0};
    if (find_built_in(wanted[0] ? wanted : NULL, machine_out)) {
        return SHOAL_OK;
    }
    shoal_status status = read_file(wanted, machine_out);
    return status == SHOAL_OK ? SHOAL_OK
                              : error_prefix(status, "%s", name && name[0] ? "machine" : "SHOAL_MACHINE");
}

shoal_status machine_of_graph(struct shoal_graph *graph, const char *name, const struct machine **machine_out)
{
    if (!graph->machine) {
        struct machine *machine = arena_alloc(&graph->arena, 1, sizeof *machine);
        if (!machine) {
            return SHOAL_ERR_NO_MEMORY;
        }
        TRY(machine_load(name, machine));
        graph->machine = machine;
    }
    *machine_out = graph->machine;
    return SHOAL_OK;
}

/* Asking ------------------------------------------------------------------------------------------------ */

void machine_describe(const struct machine *machine, char text[MACHINE_TEXT_BYTES])
{
    uint64_t hash = hash_bytes(0, machine->name, strlen(machine->name));
    for (size_t i = 0; i < N_NUMBERS; i++) {
        hash = hash_bytes(hash, number_of((struct machine *)machine, i), sizeof(double));
    }
    for (size_t i = 0; i < machine->n_collectives; i++) {
        const struct machine_collective *row = &machine->collectives[i];
        hash = hash_bytes(hash, row->transport, strlen(row->transport) + 1);
        hash = hash_bytes(hash, row->op, strlen(row->op) + 1);
        hash = hash_bytes(hash, &row->n_ranks, sizeof row->n_ranks);
        hash = hash_bytes(hash, &row->latency_ns, sizeof(double));
        hash = hash_bytes(hash, &row->bytes_per_ns, sizeof(double));
    }
    (void)snprintf(text, MACHINE_TEXT_BYTES, "%s %016llx", machine->name, (unsigned long long)hash);
}

/* Whether a row fits the wanted number of ranks better than the best one so far. */
static bool is_better(const struct machine_collective *row, const struct machine_collective *best,
                      size_t n_ranks)
{
    bool is_enough = (size_t)row->n_ranks >= n_ranks;
    if (!best || is_enough != ((size_t)best->n_ranks >= n_ranks)) {
        return !best || is_enough;
    }
    return is_enough ? row->n_ranks < best->n_ranks : row->n_ranks > best->n_ranks;
}

static const struct machine_collective *find(const struct machine *machine, const char *transport,
                                             const char *op, size_t n_ranks)
{
    const struct machine_collective *best = NULL;
    for (size_t i = 0; i < machine->n_collectives; i++) {
        const struct machine_collective *row = &machine->collectives[i];
        if (strcmp(row->transport, transport) == 0 && strcmp(row->op, op) == 0 &&
            is_better(row, best, n_ranks)) {
            best = row;
        }
    }
    return best;
}

const struct machine_collective *machine_find(const struct machine *machine, const char *op, size_t n_ranks)
{
    const char *transport = option_text(OPTION_TRANSPORT);
    if (!find(machine, transport, "all_reduce", n_ranks)) {
        transport = machine->collectives[0].transport;
    }
    const struct machine_collective *row = find(machine, transport, op, n_ranks);
    return row ? row : find(machine, transport, "all_reduce", n_ranks);
}
