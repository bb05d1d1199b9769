/* SPDX-License-Identifier: MIT */
/*
 * Compares plans. Each rank writes a text with one line for each thing that must be equal on all members of the group.
 * Each rank finds the first of its lines that differs from the first rank's (comm/agree). All ranks report the lowest
 * such line of all: what the first rank has there, and what the rank that differs has.
 */
#include "graph/run/compare.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "graph/analysis/machine.h"
#include "graph/ir/captured.h"
#include "graph/text/excerpt.h"
#include "op/basis.h"
#include "op/op.h"
#include "shoal/group.h"

/* The text ---------------------------------------------------------------------------------------------- */

struct lines {
    char *text;
    size_t bytes;
    size_t capacity;
    shoal_status status;
};

static void __attribute__((format(printf, 2, 3))) write_line(struct lines *lines, const char *format, ...)
{
    if (lines->status != SHOAL_OK) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    lines->status = mem_grow((void **)&lines->text, &lines->capacity, lines->bytes + (size_t)length + 1, 1);
    if (lines->status == SHOAL_OK) {
        va_start(arguments, format);
        (void)vsnprintf(lines->text + lines->bytes, (size_t)length + 1, format, arguments);
        va_end(arguments);
        lines->bytes += (size_t)length;
    }
}

/* Writes the counts of pieces, which must be the same on all ranks, except for windows and all-to-all. */
static void write_counts(struct lines *lines, const struct plan_collective *collective, size_t n_ranks)
{
    const struct collective *call = &collective->call;
    if (collective->window != PLAN_NONE) {
        return;
    }
    for (size_t i = 0; i < collective->n_pieces && !call->send_counts; i++) {
        write_line(lines, "%s%zu", i == 0 ? ", count " : " ", call->pieces[i].count);
    }
    for (size_t i = 0; i < n_ranks && call->send_counts && call->kind != COLLECTIVE_ALL_TO_ALL; i++) {
        write_line(lines, "%s%zu", i == 0 ? ", counts " : " ", call->send_counts[i]);
    }
}

static void write_collective(struct lines *lines, const struct plan_collective *collective, size_t n_ranks)
{
    const struct collective *call = &collective->call;
    const struct collective_row *row = &collective_rows[call->kind];
    write_line(lines, "%%%s: %s as %s %s", collective->node, collective->op->name, row->name,
               shoal_dtype_name(call->dtype));
    if (row->reduces) {
        write_line(lines, " %s", shoal_reduce_op_name(call->reduce));
    }
    if (row->reduces && call->factor != 0) {
        write_line(lines, " factor %a", call->factor);
    }
    if (row->has_root) {
        write_line(lines, " root %d", call->root);
    }
    write_counts(lines, collective, n_ranks);
    for (size_t i = 0; i < collective->purpose.n_details; i++) {
        write_line(lines, "%s%" PRId64, i == 0 ? ", of " : " ", collective->purpose.details[i]);
    }
    write_line(lines, "\n");
}

/* The collectives of two parameters of equal shape look alike. If ranks have them in another order, each would get the
   other's. Passes are the same on all ranks, so what is equal before them is equal afterwards. */
static void write_labels(struct lines *lines, const struct compared_group *compared)
{
    const struct captured *captured = compared->captured;
    for (size_t i = 0; captured && i < captured->n_labels; i++) {
        if (captured->labels[i].group == compared->group) {
            write_line(lines, "the step: %s\n", captured->labels[i].text);
        }
    }
}

/* Before the collectives, which may differ because the machines do. */
static void write_machine(struct lines *lines, const struct machine *machine)
{
    char text[MACHINE_TEXT_BYTES];
    if (machine) {
        machine_describe(machine, text);
        write_line(lines, "machine %s (SHOAL_MACHINE)\n", text);
    }
}

/* Which variant of a compiled step gives way to this one is decided by each rank alone (graph/compile/variants.h). */
static void write_variants(struct lines *lines, const struct captured *captured)
{
    if (captured && captured->max_variants > 0) {
        write_line(lines, "a compiled step of at most %zu variants (max_variants)\n", captured->max_variants);
    }
    if (captured && captured->freed_run > 0) {
        write_line(lines, "the variant of run %" PRIu64 " of the step gives way\n", captured->freed_run);
    }
}

static struct lines write_plan(const struct compared_group *compared, const struct shoal_plan *plan,
                               uint32_t group, const shoal_compile_options *options)
{
    struct lines lines = {.status = SHOAL_OK};
    const struct plan_group *of = &plan->groups[group];
    write_line(&lines, "options one_shot %d, one_shot_max_bytes %zu, no_comm_buffers %d\n", options->one_shot,
               options->one_shot_max_bytes, options->no_comm_buffers);
    write_machine(&lines, compared->machine);
    write_variants(&lines, compared->captured);
    write_labels(&lines,
                 compared); /* before the collectives: they say what the step did, and with which settings */
    for (size_t i = 0; i < plan->n_collectives; i++) {
        if (plan->collectives[i].group == group) {
            write_collective(&lines, &plan->collectives[i], of->size);
        }
    }
    return lines;
}

/* Exchanging --------------------------------------------------------------------------------------------- */

/* Runs a collective of the comparison. If it fails on this rank, the group is poisoned, so that the other members do
   not wait for it. Except for SHOAL_ERR_STATE and SHOAL_ERR_INVALID: then the call is not allowed here (in a callback,
   for example), and fails on all ranks alike. */
static shoal_status exchange(const void *context, struct collective *call)
{
    const struct compared_group *compared = context;
    const struct purpose purpose = {
        .id = PURPOSE_PLAN_COMPARE, .root = compared->number, .words = compared->name};
    call->purpose = &purpose;
    shoal_status status = collectives_run(compared->group, call);
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "rank %d could not compare its plan: %s",
                   shoal_group_world_rank(compared->group, shoal_group_rank(compared->group)),
                   shoal_error_text());
    status = error_prefix(status, "group @%.64s", compared->name);
    if (status != SHOAL_ERR_STATE && status != SHOAL_ERR_INVALID) {
        group_poison(compared->group, status, text);
    }
    return status;
}

static struct agreement agreement_of(const struct compared_group *compared)
{
    struct agreement agreement = agreement_on(compared->group);
    agreement.run = exchange;
    agreement.context = compared;
    return agreement;
}

shoal_status compare_outcomes(const struct compared_group *compared, shoal_status mine)
{
    const struct agreement agreement = agreement_of(compared);
    struct agree_failure failure;
    TRY(agree_outcome(&agreement, AGREE_FIRST_RANK, mine, &failure));
    return failure.status == SHOAL_OK
               ? SHOAL_OK
               : error_set(failure.status, "rank %d of group @%.64s could not make its plan: %s: %s",
                           failure.world_rank, compared->name, shoal_status_name(failure.status),
                           failure.text);
}

static shoal_status find_most(const struct compared_group *compared, int64_t *numbers, size_t count)
{
    struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = SHOAL_I64,
                              .reduce = SHOAL_MAX,
                              .single = {numbers, numbers, count}};
    return exchange(compared, &call);
}

shoal_status compare_rounds(struct compared_group *compared)
{
    return find_most(compared, &compared->n_rounds, 1);
}

shoal_status compare_needs(const struct compared_group *compared, struct plan_group *group)
{
    return find_most(compared, group->needs, group->n_needs);
}

/* Comparing ---------------------------------------------------------------------------------------------- */

/* A place in a text. */
struct place {
    int64_t line;  /* from 0 */
    size_t column; /* in that line, in bytes */
};

static struct place find_place(const struct lines *lines, size_t at)
{
    struct place place = {0};
    for (size_t i = 0; lines->text && i < at; i++) {
        bool is_end = lines->text[i] == '\n';
        place.line += is_end;
        place.column = is_end ? 0 : place.column + 1;
    }
    return place;
}

/* Writes an excerpt of a line of this rank's text; "" if there is no such line. */
static void copy_line(const struct lines *lines, int64_t line, size_t column, char text_out[EXCERPT_BYTES])
{
    const char *at = lines->text;
    const char *end = lines->text + lines->bytes;
    for (; line > 0 && at < end; line--) {
        at = (const char *)memchr(at, '\n', (size_t)(end - at)) + 1; /* each line has one */
    }
    size_t bytes = at < end ? (size_t)((const char *)memchr(at, '\n', (size_t)(end - at)) - at) : 0;
    excerpt_write(text_out, at, bytes, column);
}

/* The first rank and the one that differs send an excerpt of their lines around the difference; all ranks fail. */
static shoal_status fail_different(const struct compared_group *compared, const struct lines *lines,
                                   size_t own_column, const struct agree_first *other)
{
    const struct agreement agreement = agreement_of(compared);
    uint64_t column = own_column;
    char texts[2][EXCERPT_BYTES] = {"", ""};
    TRY(agree_send(&agreement, &column, sizeof column, other->rank));
    copy_line(lines, other->key, (size_t)column, texts[agreement.rank == other->rank ? 1 : 0]);
    TRY(agree_send(&agreement, texts[0], EXCERPT_BYTES, 0));
    TRY(agree_send(&agreement, texts[1], EXCERPT_BYTES, other->rank));
    for (int i = 0; i < 2; i++) {
        texts[i][EXCERPT_BYTES - 1] = '\0';
        if (texts[i][0] == '\0') {
            (void)snprintf(texts[i], EXCERPT_BYTES, "nothing more");
        }
    }
    return error_set(SHOAL_ERR_MISMATCH,
                     "plans differ on group @%.64s: rank %d has \"%s\", rank %d has \"%s\"", compared->name,
                     shoal_group_world_rank(compared->group, 0), texts[0],
                     shoal_group_world_rank(compared->group, other->rank), texts[1]);
}

static shoal_status compare_lines(const struct compared_group *compared, const struct lines *lines)
{
    const struct agreement agreement = agreement_of(compared);
    size_t at;
    struct agree_first other;
    TRY(agree_compare(&agreement, lines->text, lines->bytes, &at));
    struct place place = find_place(lines, at == AGREE_SAME ? 0 : at);
    TRY(agree_find_first(&agreement, at == AGREE_SAME ? AGREE_NO_KEY : place.line, &other));
    return other.rank < 0 ? SHOAL_OK : fail_different(compared, lines, place.column, &other);
}

static shoal_status compare_basis(const struct compared_group *compared)
{
    char basis[OP_BASIS_BYTES];
    const struct agreement agreement = agreement_of(compared);
    op_basis_write(basis);
    shoal_status status = agree_on_known(&agreement, OP_BASIS_WORDS, basis);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "group @%.64s", compared->name);
}

shoal_status compare_plans(const struct compared_group *compared, const struct shoal_plan *plan,
                           uint32_t group_index, const shoal_compile_options *options, shoal_status mine)
{
    struct lines lines = {.status = mine};
    if (mine == SHOAL_OK) {
        lines = write_plan(compared, plan, group_index, options);
    }
    /* From here on all ranks have a text: if one has failed, none goes on. */
    shoal_status status = compare_outcomes(compared, lines.status);
    if (status == SHOAL_OK) {
        status = compare_lines(compared, &lines);
    }
    if (status == SHOAL_OK) {
        status = compare_basis(compared);
    }
    mem_free(lines.text);
    return status;
}
