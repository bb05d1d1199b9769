/* SPDX-License-Identifier: MIT */
/* Reads what launchers say in environment variables. An empty variable counts as missing. */
#include "bootstrap/meet/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/option_parse.h"
#include "base/os/os.h"
#include "base/try.h"

#define NAME_BYTES 64

struct launcher {
    const char *text;
    bool starts_mpi;
    const char *rank;
    const char *size;
    const char *key;
    const char *more_key;
    const char *local_size;
    const char *n_hosts;
    bool (*is_there)(const struct launcher *launcher);
    shoal_status (*write_key)(const struct launcher *launcher, struct environment *environment);
};

/* Variables --------------------------------------------------------------------------------------------- */

static const char *read_variable(const char *name)
{
    const char *value = name[0] ? getenv(name) : NULL;
    return value && value[0] ? value : NULL;
}

/* Copies the first name of a list, which ends at one of the separators. Returns what follows it. */
static const char *take_name(const char *list, const char *separators, char name[NAME_BYTES])
{
    size_t length = strcspn(list, separators);
    (void)snprintf(name, NAME_BYTES, "%.*s", (int)length, list);
    return list[length] ? list + length + 1 : list + length;
}

/* The value of the first variable of "A|B" that is set. */
static const char *read_alternatives(const char *names)
{
    const char *value = NULL;
    while (!value && *names) {
        char name[NAME_BYTES];
        names = take_name(names, "|", name);
        value = read_variable(name);
    }
    return value;
}

/* Copies the next of the names that are separated by blanks; it may be "A|B". Returns what follows it. */
static const char *take_alternatives(const char *names, char alternatives[4 * NAME_BYTES])
{
    size_t length = strcspn(names, " ");
    (void)snprintf(alternatives, 4 * NAME_BYTES, "%.*s", (int)length, names);
    return names + length + (names[length] ? 1 : 0);
}

static shoal_status read_number(const struct launcher *launcher, const char *name, int64_t low, int64_t high,
                                int *number_out)
{
    const char *value = read_variable(name);
    if (!value) {
        return error_set(SHOAL_ERR_INVALID, "some variables of %s are set in the environment, but %s is not",
                         launcher->text, name);
    }
    int64_t number;
    if (!option_parse_int(value, &number)) {
        return error_set(SHOAL_ERR_INVALID, "%s is \"%.60s\", a number expected", name, value);
    }
    if (number < low || number > high) {
        return error_set(SHOAL_ERR_INVALID, "%s is %" PRId64 ", %" PRId64 " to %" PRId64 " expected", name,
                         number, low, high);
    }
    *number_out = (int)number;
    return SHOAL_OK;
}

/* Whether a family is there ----------------------------------------------------------------------------- */

/* Variables that make keys (addresses, ports) do not count here, because they are set for other reasons too. */
static bool has_rank_or_size(const struct launcher *launcher)
{
    return read_variable(launcher->rank) || read_variable(launcher->size);
}

/* Of a key only the first alternative counts: it is the launcher's own. The others are set for other reasons too. */
static bool has_any(const struct launcher *launcher)
{
    char name[NAME_BYTES];
    (void)take_name(launcher->key, "|", name);
    return has_rank_or_size(launcher) || read_variable(name);
}

/*
 * Whether the process belongs to a Slurm step. The shell of a batch job also has a SLURM_PROCID of 0, but it has no
 * step, or one with a reserved number. A rank other than 0 without a step counts as one: the family is then incomplete,
 * which is an error, instead of a world of one rank.
 */
static bool is_slurm_step(const struct launcher *launcher)
{
    const char *rank = read_variable(launcher->rank);
    const char *step = read_variable("SLURM_STEP_ID");
    if (!rank || !step) {
        return rank && strcmp(rank, "0") != 0;
    }
    int64_t number;
    return !(option_parse_int(step, &number) && number >= 0xfffffff0);
}

/* Keys -------------------------------------------------------------------------------------------------- */

static shoal_status append_to_key(struct environment *environment, const char *text)
{
    size_t used = strlen(environment->key);
    int length = snprintf(environment->key + used, sizeof environment->key - used, "%s\n", text);
    if (length < 0 || (size_t)length >= sizeof environment->key - used) {
        return error_set(SHOAL_ERR_INVALID, "the key of the job is longer than %d characters",
                         ENVIRONMENT_KEY_BYTES);
    }
    return SHOAL_OK;
}

/* Appends the values of these variables to the key. Variables that are not set count as empty. */
static shoal_status append_variables(const char *names, struct environment *environment)
{
    while (*names) {
        char alternatives[4 * NAME_BYTES];
        names = take_alternatives(names, alternatives);
        const char *value = read_alternatives(alternatives);
        TRY(append_to_key(environment, value ? value : ""));
    }
    return SHOAL_OK;
}

static shoal_status write_key_of_variables(const struct launcher *launcher, struct environment *environment)
{
    TRY(append_variables(launcher->key, environment));
    return append_variables(launcher->more_key, environment);
}

/* When a process began, in ticks since the boot of the machine: field 22 of /proc/PID/stat. */
static shoal_status read_start_time(int pid, uint64_t *time_out)
{
    char path[64];
    char text[1024];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    *time_out = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        return error_set(SHOAL_ERR_SYSTEM, "start-up: %s: %s", path, error_errno_text(errno));
    }
    if (fd < 0) {
        return SHOAL_OK;
    }
    ssize_t bytes = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    *time_out = at ? strtoull(at, NULL, 10) : 0;
    return SHOAL_OK;
}

/* PMI gives the job no name. But all its ranks on a host have a socket to the same process, which can serve as one. */
static shoal_status write_key_of_pmi(const struct launcher *launcher, struct environment *environment)
{
    if (environment->n_ranks == 1) {
        return SHOAL_OK;
    }
    int fd = -1;
    TRY(read_number(launcher, launcher->key, 0, INT32_MAX, &fd));
    struct os_peer peer;
    if (os_socket_peer(fd, &peer) != 0 || peer.process <= 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "%s is %d, which is not a socket to a launcher on this machine%s%s", launcher->key,
                         fd, errno ? ": " : "", errno ? strerror(errno) : "");
    }
    char text[64];
    uint64_t start_time;
    TRY(read_start_time((int)peer.process, &start_time));
    (void)snprintf(text, sizeof text, "%d %" PRIu64, (int)peer.process, start_time);
    return append_to_key(environment, text);
}

/* Several hosts ----------------------------------------------------------------------------------------- */

static void note_hosts(const struct launcher *launcher, struct environment *environment)
{
    const char *local_size = read_variable(launcher->local_size);
    const char *n_hosts = read_alternatives(launcher->n_hosts);
    int64_t number;
    if (local_size && option_parse_int(local_size, &number) && number != environment->n_ranks) {
        (void)snprintf(environment->hosts_text, sizeof environment->hosts_text, "%s is %d, %s is %.40s",
                       launcher->size, environment->n_ranks, launcher->local_size, local_size);
    } else if (n_hosts && option_parse_int(n_hosts, &number) && number > 1) {
        (void)snprintf(environment->hosts_text, sizeof environment->hosts_text, "%s is %.40s",
                       launcher->n_hosts, n_hosts);
    }
}

/* All --------------------------------------------------------------------------------------------------- */

static const struct launcher launchers[] = {
#define LAUNCHER(row_text, row_starts_mpi, row_rank, row_size, row_key, row_more_key, row_local_size, \
                 row_n_hosts, row_is_there, row_write_key)                                            \
    {.text = row_text,                                                                                \
     .starts_mpi = row_starts_mpi,                                                                    \
     .rank = row_rank,                                                                                \
     .size = row_size,                                                                                \
     .key = row_key,                                                                                  \
     .more_key = row_more_key,                                                                        \
     .local_size = row_local_size,                                                                    \
     .n_hosts = row_n_hosts,                                                                          \
     .is_there = row_is_there,                                                                        \
     .write_key = row_write_key},
#include "bootstrap/meet/launchers.def"
#undef LAUNCHER
};

/* What is missing ---------------------------------------------------------------------------------------- */

/* The variables that are missing. The error names all of them, so that a person who sets them by hand does it once. */
struct missing {
    int n_names;
    char names[ERROR_TEXT_BYTES];
};

static void note_missing(struct missing *missing, const char *name, const char *value)
{
    if (!value) {
        size_t used = strlen(missing->names);
        (void)snprintf(missing->names + used, sizeof missing->names - used, "%s%.120s",
                       missing->n_names > 0 ? ", " : "", name);
        missing->n_names++;
    }
}

static shoal_status check_complete(const struct launcher *launcher)
{
    struct missing missing = {.n_names = 0};
    note_missing(&missing, launcher->rank, read_variable(launcher->rank));
    note_missing(&missing, launcher->size, read_variable(launcher->size));
    /* Other functions that make a key report themselves what is missing. */
    const char *names = launcher->write_key == write_key_of_variables ? launcher->key : "";
    while (*names) {
        char alternatives[4 * NAME_BYTES];
        names = take_alternatives(names, alternatives);
        note_missing(&missing, alternatives, read_alternatives(alternatives));
    }
    if (missing.n_names == 0) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID, "some variables of %s are set in the environment, but %s %s not",
                     launcher->text, missing.names, missing.n_names == 1 ? "is" : "are");
}

static shoal_status read_family(const struct launcher *launcher, struct environment *environment)
{
    environment->launcher = launcher->text;
    TRY(check_complete(launcher));
    TRY(read_number(launcher, launcher->size, 1, ENVIRONMENT_RANKS_MAX, &environment->n_ranks));
    TRY(read_number(launcher, launcher->rank, 0, environment->n_ranks - 1, &environment->rank));
    TRY(append_to_key(environment, launcher->text));
    note_hosts(launcher, environment);
    return launcher->write_key(launcher, environment);
}

/* Two launchers ------------------------------------------------------------------------------------------ */

/* What an MPI that has started the launcher of ranks says there: "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 ". */
#define OUTER "_SHOAL_OUTER"
#define PLACE_BYTES 160

static bool is_shoal(const struct launcher *launcher)
{
    return strcmp(launcher->text, "SHOAL") == 0;
}

/* False if the launcher is no MPI's, or has not said both numbers. */
static bool write_place(const struct launcher *launcher, char text[PLACE_BYTES])
{
    const char *rank = launcher->starts_mpi ? read_variable(launcher->rank) : NULL;
    const char *size = launcher->starts_mpi ? read_variable(launcher->size) : NULL;
    (void)snprintf(text, PLACE_BYTES, "%s=%.20s %s=%.20s ", launcher->rank, rank ? rank : "", launcher->size,
                   size ? size : "");
    return rank && size;
}

bool environment_note_outer(void)
{
    char all[4 * PLACE_BYTES] = "";
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        char place[PLACE_BYTES];
        size_t used = strlen(all);
        if (write_place(&launchers[i], place)) {
            (void)snprintf(all + used, sizeof all - used, "%s", place);
        }
    }
    return setenv(OUTER, all, /*overwrite=*/1) == 0;
}

/* Under an mpirun that was started by a rank of `shoal run`, or by hand with its variables, all have the same SHOAL_RANK. */
static shoal_status check_one_place(const struct environment *environment)
{
    const char *outer = read_variable(OUTER);
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *launcher = &launchers[i];
        char place[PLACE_BYTES];
        int64_t rank;
        int64_t size;
        if (!write_place(launcher, place) || (outer && strstr(outer, place)) ||
            !option_parse_int(getenv(launcher->rank), &rank) ||
            !option_parse_int(getenv(launcher->size), &size)) {
            continue;
        }
        if (rank != environment->rank || size != environment->n_ranks) {
            return error_set(SHOAL_ERR_INVALID,
                             "two launchers contradict each other: SHOAL_RANK is %d and SHOAL_RANKS %d, but "
                             "%s is %" PRId64 " and %s %" PRId64 "; unset the variables of one",
                             environment->rank, environment->n_ranks, launcher->rank, rank, launcher->size,
                             size);
        }
    }
    return SHOAL_OK;
}

/* The one that counts ------------------------------------------------------------------------------------ */

shoal_status environment_read(struct environment *environment_out)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        if (launchers[i].is_there(&launchers[i])) {
            struct environment environment = {.rank = 0};
            TRY(read_family(&launchers[i], &environment));
            TRY(is_shoal(&launchers[i]) ? check_one_place(&environment) : SHOAL_OK);
            *environment_out = environment;
            return SHOAL_OK;
        }
    }
    *environment_out = (struct environment){.launcher = "alone", .n_ranks = 1};
    return SHOAL_OK;
}

bool environment_starts_mpi(const char *launcher)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        if (strcmp(launchers[i].text, launcher) == 0) {
            return launchers[i].starts_mpi;
        }
    }
    return false;
}

/* Launchers whose number of ranks must be that of MPI_COMM_WORLD: those of MPI programs, and `shoal run`, under
   which each rank would be alone in its MPI. */
static bool counts_ranks_of_mpi(const struct launcher *launcher)
{
    return launcher->starts_mpi || is_shoal(launcher);
}

shoal_status environment_check_mpi(int n_ranks, const char *library)
{
    const char *name = NULL;
    int64_t said = 0;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *launcher = &launchers[i];
        const char *value = counts_ranks_of_mpi(launcher) ? read_variable(launcher->size) : NULL;
        int64_t number = 0;
        if (!value || !option_parse_int(value, &number)) {
            continue;
        }
        if (number == n_ranks) {
            return SHOAL_OK;
        }
        said = name ? said : number;
        name = name ? name : launcher->size;
    }
    if (!name) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID,
                     "%s is %" PRId64
                     ", but MPI_COMM_WORLD of %s has %d rank%s: was the program started by the "
                     "mpirun of another MPI, or by none?",
                     name, said, library, n_ranks, n_ranks == 1 ? "" : "s");
}

void environment_describe(char *text, size_t bytes)
{
    struct environment environment;
    if (environment_read(&environment) != SHOAL_OK) {
        (void)snprintf(text, bytes, "%s", shoal_error_text());
        return;
    }
    (void)snprintf(text, bytes, "%s: rank %d of %d", environment.launcher, environment.rank,
                   environment.n_ranks);
}
