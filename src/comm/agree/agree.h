/* SPDX-License-Identifier: MIT */
/*
 * How ranks find out together whether all of them have succeeded, and whether they have the same. A failure of one rank
 * becomes an error on all ranks, and so does a difference between ranks. The group can be used afterwards.
 *
 *   outcome.c      An all_reduce finds the rank whose failure all ranks report; if there is one, it broadcasts its text.
 *   same.c         The first rank broadcasts its bytes, and each rank compares them with its own. An all_reduce finds
 *                  the first rank that differs.
 *   known.c        The same for texts, which a rank may not have.
 *   records.c      An all_gather gives all ranks the records of all, so that each finds any difference by itself.
 *   check_equal.c  The same for settings of a program: shoal_group_check_equal.
 *   send.c         Bytes of one rank for all, or of all ranks, for which each rank needs memory.
 *
 * The first three allocate no memory, which could be missing on one rank only. A dead peer or a missed deadline is an
 * error of the collectives.
 */
#ifndef COMM_AGREE_AGREE_H
#define COMM_AGREE_AGREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "shoal/group.h"
#include "shoal/status.h"

struct collective; /* transport/collective.h */
struct purpose;    /* transport/purpose.h */

/* Who agrees, and by which collectives. */
struct agreement {
    shoal_group *group;
    const struct purpose *purpose; /* of the collectives on the group; NULL if there is none */
    int rank;                      /* this rank's number among those that agree, from 0 */
    int n_ranks;
    int world_rank; /* this rank's number for texts */
    /* What ranks are doing: compared along with outcomes, and begins texts; NULL if there is none. */
    const char *phase;
    /* Runs a collective: an all_reduce of minima, a broadcast, or an all_gather of bytes. If it is NULL, `group`
       does. */
    shoal_status (*run)(const void *context, struct collective *call);
    const void *context;
};

/* Among the ranks of a group. */
struct agreement agreement_on(shoal_group *group);

/* Outcomes --------------------------------------------------------------------------------------------- */

/*
 * Collective. `status` is what this rank's part of the phase returned, with its error text if it is not SHOAL_OK.
 * Returns SHOAL_OK on all ranks or an error on all of them: a rank that failed keeps its own error, the others get
 * the first failed rank's with its number ("rank 2: ..."). `phase` is for texts and is compared.
 */
shoal_status agree(shoal_group *group, const char *phase, shoal_status status);

/* Which failure is reported if several ranks have failed. */
enum agree_report {
    AGREE_FIRST_RANK,   /* the first rank's */
    AGREE_LEAST_STATUS, /* the one whose status is the smallest number, and of these the first rank's */
    AGREE_STATUS_ONLY   /* as before, but world rank and text stay unknown: nothing is broadcast */
};

struct agree_failure {
    shoal_status status; /* SHOAL_OK: no rank has failed */
    int rank;
    int world_rank;
    char text[ERROR_TEXT_BYTES];
};

/*
 * Collective: agree for callers with texts of their own. Returns `mine` with its text if this rank has failed, and an
 * error if the ranks could not agree. Otherwise SHOAL_OK, and *failure_out says which other rank has failed, if any.
 */
shoal_status agree_outcome(const struct agreement *agreement, enum agree_report report, shoal_status mine,
                           struct agree_failure *failure_out);

/* Passed to agree_find_first by a rank that has no key. */
#define AGREE_NO_KEY INT64_MAX

struct agree_first {
    int64_t key;
    int rank; /* -1 if no rank has a key */
};

/* Collective. Finds the smallest key of all ranks, and the first rank that has it. Keys have 32 bits. */
shoal_status agree_find_first(const struct agreement *agreement, int64_t key, struct agree_first *first_out);

/* Same values ------------------------------------------------------------------------------------------ */

/* Numbers that must be the same on all ranks, with the names that errors give them: "options.keep". */
struct agree_number {
    const char *name;
    int64_t value;
};
#define AGREE_MAX_NUMBERS 16

/* Collective. A difference is SHOAL_ERR_MISMATCH on all ranks, with the name, the first rank whose number differs from
   the first rank's, and both values. All ranks have the same names. */
shoal_status agree_on_numbers(shoal_group *group, const struct agree_number *numbers, size_t n_numbers);

/* Collective. The same for a string, which may be NULL. */
shoal_status agree_on_string(shoal_group *group, const char *name, const char *value);

/* Collective. The same for bytes. The error names `what`, and the first rank whose bytes differ from the first
   rank's. */
shoal_status agree_on(shoal_group *group, const char *what, const void *data, size_t bytes);

/* A text has at most so many bytes, with the 0 at the end. */
#define AGREE_KNOWN_BYTES 8448

/*
 * Collective. A text that ranks may not have: "" is not compared. If two ranks have different ones, SHOAL_ERR_MISMATCH
 * on all ranks, with `what`, the first rank that has one, the first that has another one, and both texts.
 */
shoal_status agree_on_known(const struct agreement *agreement, const char *what, const char *text);

#define AGREE_SAME SIZE_MAX

/*
 * Collective: the first half of agree_on, for callers that say what differs. *at_out is the first byte in which this
 * rank's bytes differ from the first rank's, or AGREE_SAME. Others do not know it: agree_find_first tells them.
 */
shoal_status agree_compare(const struct agreement *agreement, const void *data, size_t bytes, size_t *at_out);

/* Records ---------------------------------------------------------------------------------------------- */

/* Memory of the caller, or none. */
struct agree_room {
    void *data;
    size_t bytes;
};

/* What all ranks have given, in their order. */
struct agree_records {
    void *all;
    int n_ranks;
    size_t bytes;    /* of each record */
    void *allocated; /* NULL if they lie in a room of the caller */
};

/*
 * Collective. Gathers a record of every rank, of the same number of bytes on all. Where the room is too small, memory
 * is allocated, and ranks first tell each other whether they have it: if one has none, or had none for its own record
 * (`mine` is NULL), it is SHOAL_ERR_NO_MEMORY on all of them. Call agree_free_records also after a failure.
 */
shoal_status agree_gather(const struct agreement *agreement, const void *mine, size_t bytes,
                          struct agree_room room, struct agree_records *records_out);
void agree_free_records(struct agree_records *records);
const void *agree_record(const struct agree_records *records, int rank);

enum agree_search {
    AGREE_BY_RANK,  /* the first rank that differs from this one, and its first number that does */
    AGREE_BY_NUMBER /* the first number that differs on any rank: the same on all ranks */
};

struct agree_difference {
    int rank; /* -1 if there is none */
    size_t number;
};

/* Local. Compares numbers of 64 bits of all ranks with this rank's: those from `begin` on, and before `end`. */
struct agree_difference agree_find_difference(const struct agree_records *records, const void *mine,
                                              enum agree_search search, size_t begin, size_t end);

/* Sending ---------------------------------------------------------------------------------------------- */

/* Collective. Gives all ranks the bytes of one; all know how many there are. */
shoal_status agree_send(const struct agreement *agreement, void *data, size_t bytes, int rank);

/* Collective. Gives all ranks the bytes of the group's first rank; `data` of other ranks is ignored. *data_out is freed
   with mem_free. */
shoal_status agree_receive(shoal_group *group, const void *data, size_t bytes, void **data_out,
                           size_t *bytes_out);

/*
 * Collective. Gathers bytes of every rank, each of any number. `only_first`: only the group's first rank gets them,
 * others get NULL. The bytes of rank r are those from offsets[r] to offsets[r + 1]. Both are freed with mem_free.
 */
shoal_status agree_collect(shoal_group *group, const void *data, size_t bytes, bool only_first,
                           char **data_out, uint64_t **offsets_out);

#endif
