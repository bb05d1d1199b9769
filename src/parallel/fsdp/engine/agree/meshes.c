/* SPDX-License-Identifier: MIT */
/*
 * Compares which unit is on which mesh. Ranks of one context may have different meshes for one unit: the ranks of an
 * expert are those of its own copy. So each rank tells all ranks whom it shares each unit with, and every rank checks
 * that these lists fit together: whoever is on the list of a rank has the same list. All see the same lists, and so
 * find the same difference.
 *
 * The common lane has all ranks of all meshes that this rank knows. A rank with other meshes may take others for these
 * ranks, or may have one mesh, and no common lane. It would not come to this one. So each rank also leaves a mark on
 * every lane of its meshes, which says who the ranks of the common lane are. Ranks that differ share one of these lanes,
 * where their marks, or a mark and another call, collide; and ranks look at them while they wait on the common lane.
 */
#include "parallel/fsdp/engine/agree/meshes.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/state/unit.h"

/* How long a rank waits on the common lane before it looks at the marks on other lanes, and how long it looks. */
#define WAIT_SECONDS 0.02
#define LOOK_SECONDS 0.001

enum {
    LANES_OF_MESH = 3,
    WORDS_BYTES = 160
};

/* Ranks of the common lane, in ascending order. */
struct common_ranks {
    int *ranks;
    int n_ranks;
};

static shoal_status find_ranks(const struct fsdp_context *context, struct common_ranks *common_out)
{
    int n_world = shoal_world_n_ranks(context->domains[0]->mesh.world);
    bool *is_in = mem_alloc_zeroed((size_t)n_world, sizeof *is_in);
    int *ranks = mem_alloc_zeroed((size_t)n_world, sizeof *ranks);
    shoal_status status = is_in && ranks ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    int n = 0;
    for (size_t i = 0; i < context->n_domains && status == SHOAL_OK; i++) {
        status = fsdp_mesh_mark_ranks(&context->domains[i]->mesh, is_in);
    }
    for (int i = 0; status == SHOAL_OK && context->all_ranks && i < shoal_group_n_ranks(context->all_ranks);
         i++) {
        is_in[shoal_group_world_rank(context->all_ranks, i)] = true;
    }
    for (int rank = 0; rank < n_world && status == SHOAL_OK; rank++) {
        if (is_in[rank]) {
            ranks[n++] = rank;
        }
    }
    mem_free(is_in);
    if (status != SHOAL_OK) {
        mem_free(ranks);
        return status;
    }
    *common_out = (struct common_ranks){.ranks = ranks, .n_ranks = n};
    return SHOAL_OK;
}

/* The lane is found by its ranks alone, so all ranks that take the same ranks for it have the same lane. */
static shoal_status make_lane(struct fsdp_context *context, const struct common_ranks *common)
{
    shoal_group *parent;
    TRY(shoal_group_create(context->domains[0]->mesh.world, common->ranks, common->n_ranks, "", &parent));
    TRY(group_create_lane(parent, 0, common->n_ranks, "fsdp common", &context->common));
    group_hold(parent);
    context->common_parent = parent;
    context->common_root = collectives_next_root(parent);
    context->common_n_ranks = common->n_ranks;
    context->common_n_local = group_n_local(parent);
    return SHOAL_OK;
}

/* Words -------------------------------------------------------------------------------------------------- */

static void add_ranks(struct text *text, const int *ranks, int n_ranks)
{
    text_add(text, "[");
    for (int i = 0; i < n_ranks; i++) {
        text_add(text, "%s%d", i > 0 ? "," : "", ranks[i]);
    }
    text_add(text, "]");
}

/* "2 shards on ranks [0,1]", "every rank keeps all, on ranks [0,1,2,3]", "2 shards on ranks [0,1] and 3 replicas of each".
   `ranks` are those of one shard, and then of the replicas. */
static void describe_mesh(int n_shards, int n_replicas, const int *ranks, struct text *text)
{
    if (n_shards == 1 && n_replicas > 1) {
        text_add(text, "every rank keeps all, on ranks ");
        add_ranks(text, ranks + 1, n_replicas);
        return;
    }
    text_add(text, "%d shard%s on ranks ", n_shards, n_shards == 1 ? "" : "s");
    add_ranks(text, ranks, n_shards);
    if (n_replicas > 1) {
        text_add(text, " with %d replicas, this shard on ranks ", n_replicas);
        add_ranks(text, ranks + n_shards, n_replicas);
    }
}

/* Lists -------------------------------------------------------------------------------------------------- */

static size_t count_listed(const struct fsdp_mesh *mesh)
{
    return (size_t)mesh->n_shards + (size_t)mesh->n_replicas;
}

/* Writes the world ranks that have the shards, in order, and those that have this rank's shard. */
static void list_mesh(const struct fsdp_mesh *mesh, int *ranks)
{
    int mine = shoal_world_rank(mesh->world);
    for (int i = 0; i < mesh->n_shards; i++) {
        ranks[i] = mesh->shards ? shoal_group_world_rank(mesh->shards, i) : mine;
    }
    for (int i = 0; i < mesh->n_replicas; i++) {
        ranks[mesh->n_shards + i] = mesh->replicas ? shoal_group_world_rank(mesh->replicas, i) : mine;
    }
}

static shoal_status create_lists(const struct fsdp_context *context, int **lists_out, size_t *n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < context->n_domains; i++) {
        n += count_listed(&context->domains[i]->mesh);
    }
    int *lists = mem_alloc_zeroed(n, sizeof *lists);
    if (!lists) {
        return SHOAL_ERR_NO_MEMORY;
    }
    size_t at = 0;
    for (size_t i = 0; i < context->n_domains; i++) {
        list_mesh(&context->domains[i]->mesh, lists + at);
        at += count_listed(&context->domains[i]->mesh);
    }
    *lists_out = lists;
    *n_out = n;
    return SHOAL_OK;
}

static const char *first_unit(const struct fsdp_context *context, size_t domain)
{
    for (size_t i = 0; i < context->n_units; i++) {
        if (context->units[i]->domain == context->domains[domain]) {
            return context->units[i]->name;
        }
    }
    return "the context";
}

static int place_of(const struct common_ranks *common, int rank)
{
    for (int i = 0; i < common->n_ranks; i++) {
        if (common->ranks[i] == rank) {
            return i;
        }
    }
    return -1;
}

/* Two ranks of the common lane, one of which has the other on its list for a domain, and that one has another list. */
static shoal_status fail_lists(const struct fsdp_context *context, size_t domain, const int *here,
                               const int *there, const int ranks[2])
{
    const struct fsdp_mesh *mesh = &context->domains[domain]->mesh;
    char words[2][WORDS_BYTES];
    const int *lists[] = {here, there};
    for (int i = 0; i < 2; i++) {
        struct text text = text_begin(words[i], sizeof words[i]);
        describe_mesh(mesh->n_shards, mesh->n_replicas, lists[i], &text);
    }
    return error_set(SHOAL_ERR_MISMATCH,
                     "%s is on other ranks for rank %d than for rank %d: %s; for rank %d: %s",
                     first_unit(context, domain), ranks[0], ranks[1], words[0], ranks[1], words[1]);
}

/* Checks one list of one rank, of shards or of replicas: `at` is its place in the lists. */
static shoal_status check_list(const struct fsdp_context *context, const struct common_ranks *common,
                               const struct agree_records *all, int place, size_t domain, size_t begin,
                               size_t at, size_t n)
{
    const int *here = agree_record(all, place);
    for (size_t i = 0; i < n; i++) {
        int other = place_of(common, here[at + i]);
        const int *there = other >= 0 ? agree_record(all, other) : NULL;
        if (!there || memcmp(here + at, there + at, n * sizeof here[0]) != 0) {
            const int ranks[] = {common->ranks[place], here[at + i]};
            return fail_lists(context, domain, here + begin, (there ? there : here) + begin, ranks);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_lists(const struct fsdp_context *context, const struct common_ranks *common,
                                const struct agree_records *all)
{
    size_t begin = 0;
    for (size_t domain = 0; domain < context->n_domains; domain++) {
        const struct fsdp_mesh *mesh = &context->domains[domain]->mesh;
        size_t n_shards = (size_t)mesh->n_shards;
        for (int place = 0; place < common->n_ranks; place++) {
            TRY(check_list(context, common, all, place, domain, begin, begin, n_shards));
            TRY(check_list(context, common, all, place, domain, begin, begin + n_shards,
                           (size_t)mesh->n_replicas));
        }
        begin += count_listed(mesh);
    }
    return SHOAL_OK;
}

static shoal_status compare_lists(const struct fsdp_context *context, const struct common_ranks *common)
{
    const struct agreement agreement = agreement_on(context->common);
    struct agree_records all = {.all = NULL};
    int *mine;
    size_t n;
    TRY(create_lists(context, &mine, &n));
    shoal_status status =
        agree_gather(&agreement, mine, n * sizeof mine[0], (struct agree_room){.data = NULL}, &all);
    if (status == SHOAL_OK) {
        status = check_lists(context, common, &all);
    }
    agree_free_records(&all);
    mem_free(mine);
    return status;
}

/* Units -------------------------------------------------------------------------------------------------- */

/* What ranks exchange about a unit: its mesh but for the ranks, which other units are on the same one, and a hash of its
   name. The names themselves are compared with everything else of the unit (step/same_units.c). */
enum {
    UNIT_DOMAIN,
    UNIT_SHARDS,
    UNIT_REPLICAS,
    UNIT_HAS_CALLS,
    UNIT_NAME,
    N_OF_UNIT
};

static void list_unit(const struct fsdp_context *context, const struct fsdp_unit *unit, uint64_t *numbers)
{
    uint64_t domain = 0;
    while (context->domains[domain] != unit->domain) {
        domain++;
    }
    numbers[UNIT_DOMAIN] = domain;
    numbers[UNIT_SHARDS] = (uint64_t)unit->mesh->n_shards;
    numbers[UNIT_REPLICAS] = (uint64_t)unit->mesh->n_replicas;
    numbers[UNIT_HAS_CALLS] = unit->mesh->calls != NULL;
    numbers[UNIT_NAME] = hash_bytes(0, unit->name, strlen(unit->name));
}

static shoal_status describe_unit(const struct fsdp_unit *unit, char words[WORDS_BYTES])
{
    struct text text = text_begin(words, WORDS_BYTES);
    int *ranks = mem_alloc_zeroed(count_listed(unit->mesh), sizeof *ranks);
    if (!ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    list_mesh(unit->mesh, ranks);
    text_add(&text, "%.40s, ", unit->name);
    describe_mesh(unit->mesh->n_shards, unit->mesh->n_replicas, ranks, &text);
    mem_free(ranks);
    return SHOAL_OK;
}

/* All ranks know that this unit differs on `rank` of the common lane, or is the first that does not. */
static shoal_status report_unit(const struct fsdp_context *context, const struct fsdp_unit *unit, int rank)
{
    const struct agreement agreement = agreement_on(context->common);
    struct agree_records all = {.all = NULL};
    char mine[WORDS_BYTES] = "";
    TRY(describe_unit(unit, mine));
    shoal_status status =
        agree_gather(&agreement, mine, sizeof mine, (struct agree_room){.data = NULL}, &all);
    if (status == SHOAL_OK) {
        status = error_set(SHOAL_ERR_MISMATCH, "unit %d is here: %s; on rank %d: %.*s", unit->number, mine,
                           shoal_group_world_rank(context->common, rank), WORDS_BYTES - 1,
                           (const char *)agree_record(&all, rank));
    }
    agree_free_records(&all);
    return status;
}

static shoal_status compare_units(const struct fsdp_context *context)
{
    const struct agreement agreement = agreement_on(context->common);
    struct agree_records all = {.all = NULL};
    struct agree_difference other = {.rank = -1};
    size_t n = context->n_units * N_OF_UNIT;
    uint64_t *mine = mem_alloc_zeroed(n, sizeof *mine);
    for (size_t i = 0; mine && i < context->n_units; i++) {
        list_unit(context, context->units[i], mine + i * N_OF_UNIT);
    }
    shoal_status status =
        agree_gather(&agreement, mine, n * sizeof mine[0], (struct agree_room){.data = NULL}, &all);
    if (status == SHOAL_OK) {
        other = agree_find_difference(&all, mine, AGREE_BY_NUMBER, 0, n);
    }
    agree_free_records(&all);
    mem_free(mine);
    TRY(status);
    return other.rank < 0 ? SHOAL_OK
                          : report_unit(context, context->units[other.number / N_OF_UNIT], other.rank);
}

/* What all ranks must have before lists of the same length can be exchanged. */
static shoal_status compare_counts(const struct fsdp_context *context)
{
    const uint64_t mine[] = {context->n_units, context->n_domains};
    const struct agreement agreement = agreement_on(context->common);
    struct agree_records all = {.all = NULL};
    shoal_status status =
        agree_gather(&agreement, mine, sizeof mine, (struct agree_room){.data = NULL}, &all);
    if (status == SHOAL_OK) {
        struct agree_difference other = agree_find_difference(&all, mine, AGREE_BY_NUMBER, 0, 2);
        const uint64_t *there = other.rank >= 0 ? agree_record(&all, other.rank) : mine;
        status = other.rank < 0 ? SHOAL_OK
                                : error_set(SHOAL_ERR_MISMATCH,
                                            "there are %d units on %d meshes here; on rank %d: %d units on "
                                            "%d meshes",
                                            (int)mine[0], (int)mine[1],
                                            shoal_group_world_rank(context->common, other.rank),
                                            (int)there[0], (int)there[1]);
    }
    agree_free_records(&all);
    return status;
}

/* Meeting ------------------------------------------------------------------------------------------------ */

/* The marks that this rank has left on the lanes of its meshes. */
struct marks {
    shoal_work **works;
    size_t n;
};

static void drop_marks(struct marks *marks)
{
    for (size_t i = 0; i < marks->n; i++) {
        work_forget(marks->works[i]); /* barriers, which use no memory of ours */
        shoal_work_free(marks->works[i]);
    }
    mem_free(marks->works);
}

static shoal_status leave_marks(const struct fsdp_context *context, const struct purpose *purpose,
                                struct marks *marks)
{
    marks->works = mem_alloc_zeroed(context->n_domains * LANES_OF_MESH, sizeof marks->works[0]);
    if (!marks->works) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < context->n_domains; i++) {
        const struct fsdp_mesh *mesh = &context->domains[i]->mesh;
        shoal_group *const lanes[LANES_OF_MESH] = {mesh->gather, mesh->replicate, mesh->calls};
        for (size_t k = 0; k < LANES_OF_MESH; k++) {
            if (lanes[k]) {
                TRY(collectives_barrier_start(lanes[k], purpose, &marks->works[marks->n]));
                marks->n++;
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status look_at_marks(const struct marks *marks)
{
    for (size_t i = 0; i < marks->n; i++) {
        shoal_status status;
        TRY(fsdp_common_has_ended(marks->works[i], LOOK_SECONDS, &status) ? status : SHOAL_OK);
    }
    return SHOAL_OK;
}

/* A rank that has found a difference may have ended before this one looks, which then finds it gone: the marks say why. */
static shoal_status find_reason(const struct marks *marks, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    if (status != SHOAL_ERR_PEER) {
        return status;
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    for (size_t i = 0; i < marks->n; i++) {
        shoal_status found;
        if (fsdp_common_has_ended(marks->works[i], LOOK_SECONDS, &found) && found == SHOAL_ERR_MISMATCH) {
            return found;
        }
    }
    return error_set(status, "%s", text);
}

/* Waits until all ranks of the common lane have come to it. */
static shoal_status meet(const struct fsdp_context *context, const struct purpose *purpose,
                         const struct marks *marks)
{
    shoal_work *met = NULL;
    const struct purpose common = fsdp_common_purpose(context, *purpose);
    TRY(collectives_barrier_start(context->common, &common, &met));
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK && !fsdp_common_has_ended(met, WAIT_SECONDS, &status)) {
        status = look_at_marks(marks);
    }
    work_forget(met);
    shoal_work_free(met);
    return find_reason(marks, status);
}

static shoal_status compare(const struct fsdp_context *context, const struct common_ranks *common)
{
    TRY(compare_counts(context));
    TRY(compare_units(context));
    return compare_lists(context, common);
}

/* "mlp over ranks [0,1,2,3]", and these ranks as details. */
static shoal_status meet_and_compare(const struct fsdp_context *context, const struct common_ranks *common)
{
    char words[PURPOSE_WORDS_BYTES];
    struct marks marks = {.works = NULL};
    size_t n_details = (size_t)common->n_ranks + 1;
    int64_t *details = mem_alloc_zeroed(n_details, sizeof *details);
    struct purpose purpose = fsdp_context_purpose(context, PURPOSE_FSDP_MESHES);
    struct text text = text_begin(words, sizeof words);
    if (!details) {
        return SHOAL_ERR_NO_MEMORY;
    }
    details[0] = common->n_ranks;
    for (int i = 0; i < common->n_ranks; i++) {
        details[i + 1] = common->ranks[i];
    }
    text_add(&text, "%.60s, which has several", purpose.words);
    purpose.root = 0; /* ranks may count models on each of these lanes */
    purpose.words = words;
    purpose.details = details;
    purpose.n_details = n_details;
    shoal_status status = leave_marks(context, &purpose, &marks);
    status = status == SHOAL_OK ? meet(context, &purpose, &marks) : status;
    status = status == SHOAL_OK ? compare(context, common) : status;
    drop_marks(&marks);
    mem_free(details);
    /* Ranks that wait on the common lane, and share no other with the one that has failed, are told. */
    bool is_told = status == SHOAL_ERR_MISMATCH || status == SHOAL_ERR_PEER;
    return is_told ? fsdp_tell_every_lane(context, status) : status;
}

shoal_status fsdp_agree_on_meshes(struct fsdp_context *context)
{
    struct common_ranks common;
    if (context->n_domains == 1 || context->common) {
        return SHOAL_OK;
    }
    TRY(find_ranks(context, &common));
    shoal_status status = make_lane(context, &common);
    if (status == SHOAL_OK) {
        status = meet_and_compare(context, &common);
    }
    mem_free(common.ranks);
    return status;
}
