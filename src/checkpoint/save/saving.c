/* SPDX-License-Identifier: MIT */
/*
 * Saves in the background. The call that starts one does everything that needs the list or the program's group: it
 * compares, plans, makes the temporary directory and copies what this rank writes. A thread then writes the copies, and
 * agrees with the threads of the other ranks over a lane of its own, independent of what the program does on the group.
 *
 * Threads wait until all ranks are known to have one. If a rank cannot start its thread, the call fails on all ranks
 * before anything is written.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/trace.h"
#include "base/try.h"
#include "base/wait.h"
#include "comm/agree/agree.h"
#include "checkpoint/save/save.h"
#include "comm/lane/handles.h"
#include "comm/group/owned.h"

/* How long to sleep while waiting for a save that must end first: short, compared with a save. */
#define NAP_NS ((int64_t)1000000)

/* How many lanes may fail. Each failed lane takes memory until the group is closed. */
#define MAX_LANES 8

enum saving_state {
    SAVING_PREPARES, /* the thread waits for the call that starts the save */
    SAVING_RUNS,
    SAVING_CANCELLED, /* the thread ends without having done anything */
    SAVING_DONE
};

struct shoal_checkpoint_saving {
    struct owned owned; /* first: the world's list, until the thread has ended and was joined */
    int world_rank;     /* of the caller */
    shoal_group *group;
    shoal_group *lane;
    int64_t step;
    struct save save; /* used by the thread only, once it runs */
    pthread_t thread;
    bool has_thread;
    bool is_listed;
    uint32_t n_forks;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum saving_state state;
    shoal_status status; /* this and the text are set when the save is done */
    char text[ERROR_TEXT_BYTES];
};

/* The thread --------------------------------------------------------------------------------------------- */

static enum saving_state wait_while(shoal_checkpoint_saving *saving, enum saving_state state)
{
    (void)pthread_mutex_lock(&saving->lock);
    while (saving->state == state) {
        (void)pthread_cond_wait(&saving->changed, &saving->lock);
    }
    enum saving_state now = saving->state;
    (void)pthread_mutex_unlock(&saving->lock);
    return now;
}

static void set_state(shoal_checkpoint_saving *saving, enum saving_state state)
{
    (void)pthread_mutex_lock(&saving->lock);
    saving->state = state;
    (void)pthread_cond_broadcast(&saving->changed);
    (void)pthread_mutex_unlock(&saving->lock);
}

static void *run(void *context)
{
    shoal_checkpoint_saving *saving = context;
    trace_set_rank(saving->world_rank);
    if (wait_while(saving, SAVING_PREPARES) == SAVING_CANCELLED) {
        return NULL;
    }
    shoal_status status = agree(saving->lane, "save: write all", save_write(&saving->save));
    if (status == SHOAL_OK) {
        status = save_finish(&saving->save, saving->lane);
    }
    saving->status = status;
    if (status != SHOAL_OK) { /* the program may never ask */
        (void)error_prefix(status, "the save of step %" PRId64 " in the background failed", saving->step);
        (void)snprintf(saving->text, sizeof saving->text, "%s", shoal_error_text());
        LOG(SHOAL_LOG_ERROR, "checkpoint: %s", saving->text);
    }
    save_end(&saving->save);
    group_let_go(saving->group);
    set_state(saving, SAVING_DONE);
    return NULL;
}

/* Waits for the end of the thread. */
static void join_thread(shoal_checkpoint_saving *saving)
{
    if (saving->has_thread) {
        (void)pthread_join(saving->thread, NULL);
        saving->has_thread = false;
    }
}

/* Called when the world is about to be closed, while groups still work. If the program has not waited for the save,
   closing the world reports its failure. */
static void world_ends(struct owned *owned)
{
    shoal_checkpoint_saving *saving = (shoal_checkpoint_saving *)owned;
    saving->is_listed = false;
    join_thread(saving);
    if (saving->status != SHOAL_OK) {
        world_note_failure(shoal_group_world(saving->group), saving->status, saving->text);
    }
}

/* One at a time ------------------------------------------------------------------------------------------ */

/* Whether a save of this group has a thread that has not ended. A save may be freed as soon as the list's lock is
   released, so the step is copied. */
static bool find_busy(shoal_group *group, int64_t *step_out)
{
    struct owned_list *list = world_ending(shoal_group_world(group));
    bool is_busy = false;
    (void)pthread_mutex_lock(&list->lock);
    for (struct owned *owned = list->first; owned && !is_busy; owned = owned->next) {
        shoal_checkpoint_saving *saving = (shoal_checkpoint_saving *)owned;
        if (owned->destroy == world_ends && saving->group == group) {
            (void)pthread_mutex_lock(&saving->lock);
            is_busy = saving->state == SAVING_RUNS;
            (void)pthread_mutex_unlock(&saving->lock);
            *step_out = saving->step;
        }
    }
    (void)pthread_mutex_unlock(&list->lock);
    return is_busy;
}

static void wait_while_busy(shoal_group *group)
{
    int64_t step;
    while (find_busy(group, &step)) {
        wait_sleep(NAP_NS);
    }
}

static shoal_status check_busy(shoal_group *group, const shoal_checkpoint_options *options)
{
    int64_t step = 0;
    if (options->fails_if_busy && find_busy(group, &step)) {
        return error_set(SHOAL_ERR_STATE, "a save of step %" PRId64 " is under way on this group", step);
    }
    return SHOAL_OK;
}

/* Starting ----------------------------------------------------------------------------------------------- */

static shoal_checkpoint_saving *make_saving(shoal_group *group)
{
    shoal_checkpoint_saving *saving = mem_alloc_zeroed(1, sizeof(*saving));
    if (saving) {
        saving->owned.destroy = world_ends;
        saving->group = group;
        saving->world_rank = shoal_world_rank(shoal_group_world(group));
        saving->n_forks = fork_count();
        saving->save.target = (struct directory_save)DIRECTORY_SAVE_INIT;
        (void)pthread_mutex_init(&saving->lock, NULL);
        (void)pthread_cond_init(&saving->changed, NULL);
    }
    return saving;
}

static void free_saving(shoal_checkpoint_saving *saving)
{
    if (!saving) {
        return;
    }
    if (saving->is_listed) {
        owned_list_remove(world_ending(shoal_group_world(saving->group)), &saving->owned);
    }
    save_end(&saving->save);
    (void)pthread_cond_destroy(&saving->changed);
    (void)pthread_mutex_destroy(&saving->lock);
    mem_free(saving);
}

static shoal_status start_thread(shoal_checkpoint_saving *saving)
{
    int code = os_start_thread(&saving->thread, run, saving);
    if (code != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "the thread of the save could not be created: %s",
                         error_thread_text(code));
    }
    saving->has_thread = true;
    return SHOAL_OK;
}

static shoal_status prepare(shoal_group *group, shoal_checkpoint_saving **saving_out)
{
    *saving_out = make_saving(group); /* to be freed also after an error */
    return *saving_out ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status make_lane(shoal_group *group, int number, shoal_group **lane_out)
{
    char word[32] = "checkpoint";
    if (number > 0) {
        (void)snprintf(word, sizeof word, "checkpoint %d", number);
    }
    return group_create_lane(group, 0, shoal_group_n_ranks(group), word, lane_out);
}

/*
 * Collective. Finds a lane that works: the first one that has not failed on any rank. A lane on which ranks have missed
 * a deadline stays failed, although the group has not.
 */
static shoal_status choose_lane(shoal_checkpoint_saving *saving)
{
    shoal_group *group = saving->group;
    for (int number = 0; number < MAX_LANES; number++) {
        TRY(agree(group, "save: make a lane", make_lane(group, number, &saving->lane)));
        int64_t has_failed = group_failure(saving->lane) != SHOAL_OK;
        TRY(shoal_group_all_reduce(group, &has_failed, &has_failed, 1, SHOAL_I64, SHOAL_MAX));
        if (!has_failed) {
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_STATE,
                     "%d saves in the background have failed on this group, and no more can be started on it",
                     MAX_LANES);
}

static shoal_status begin(shoal_checkpoint_saving *saving, const char *directory, const shoal_items *items,
                          const shoal_checkpoint_options *options)
{
    saving->step = options->step;
    TRY(choose_lane(saving));
    TRY(save_begin(saving->group, directory, items, options, &saving->save));
    TRY(save_take(&saving->save));
    shoal_status status = agree(saving->group, "save: start a thread", start_thread(saving));
    if (status != SHOAL_OK) {
        set_state(saving, SAVING_CANCELLED);
        join_thread(saving);
        return status;
    }
    group_hold(saving->group);
    owned_list_add(world_ending(shoal_group_world(saving->group)), &saving->owned);
    saving->is_listed = true;
    set_state(saving, SAVING_RUNS);
    return SHOAL_OK;
}

static shoal_status start(shoal_group *group, const char *directory, const shoal_items *items,
                          const shoal_checkpoint_options *options, shoal_checkpoint_saving **saving_out)
{
    shoal_checkpoint_saving *saving = NULL;
    wait_while_busy(group);
    shoal_status status = agree(group, "save: prepare", prepare(group, &saving));
    if (status == SHOAL_OK && saving) { /* agree cannot succeed if this rank has failed */
        status = begin(saving, directory, items, options);
    }
    if (status != SHOAL_OK) {
        free_saving(saving);
        return status;
    }
    *saving_out = saving;
    return SHOAL_OK;
}

/* The calls ---------------------------------------------------------------------------------------------- */

static shoal_status check_start(shoal_group *group, const char *directory, const shoal_items *items,
                                const shoal_checkpoint_options *given,
                                shoal_checkpoint_saving *const *saving_out,
                                shoal_checkpoint_options *options_out)
{
    if (!saving_out) {
        return error_set(SHOAL_ERR_INVALID, "saving_out is NULL");
    }
    TRY(save_check_arguments(directory, items, given, options_out));
    return check_busy(group, options_out);
}

shoal_status shoal_checkpoint_save_start(shoal_group *group, const char *directory, const shoal_items *items,
                                         const shoal_checkpoint_options *options,
                                         shoal_checkpoint_saving **saving_out)
{
    shoal_checkpoint_options own = SHOAL_CHECKPOINT_OPTIONS_INIT;
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "checkpoint_save_start: group is NULL");
    }
    shoal_status status = agree(group, "save_start: arguments",
                                check_start(group, directory, items, options, saving_out, &own));
    if (status == SHOAL_OK) {
        uint64_t begin_ticks = trace_begin();
        status = start(group, directory, items, &own, saving_out);
        trace_end(begin_ticks, TRACE_CHECKPOINT, "checkpoint save start");
    }
    return status == SHOAL_OK ? status : error_prefix(status, "checkpoint_save_start");
}

bool shoal_checkpoint_save_test(const shoal_checkpoint_saving *saving)
{
    if (!saving) {
        return true;
    }
    shoal_checkpoint_saving *own =
        (shoal_checkpoint_saving *)(uintptr_t)saving; /* only its lock is changed */
    (void)pthread_mutex_lock(&own->lock);
    bool is_done = own->state == SAVING_DONE;
    (void)pthread_mutex_unlock(&own->lock);
    return is_done;
}

shoal_status shoal_checkpoint_save_wait(shoal_checkpoint_saving *saving)
{
    error_clear();
    if (!saving) {
        return SHOAL_OK;
    }
    TRY(fork_check(saving->n_forks));
    uint64_t begin_ticks = trace_begin();
    join_thread(saving);
    trace_end(begin_ticks, TRACE_CHECKPOINT, "checkpoint save wait");
    shoal_status status = saving->status;
    if (status != SHOAL_OK) {
        (void)error_set(status, "checkpoint_save_wait: %s", saving->text);
    }
    free_saving(saving);
    return status;
}
