/* SPDX-License-Identifier: MIT */
/*
 * One-shot completions. completion.h has the states, the lifetimes, and the argument for the memory orders;
 * the comments here only name the pairs.
 */
#include "base/completion.h"

#include <assert.h>
#include <stddef.h>

#include "base/callback.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "base/wait.h"
#include "base/waited.h"

/* What the stack of a finished completion holds; never called. */
static struct completion_listener closed_stack;

static const struct completion_kind no_kind;

void completion_init(struct completion *completion, const struct completion_kind *kind)
{
    atomic_init(&completion->references, 1);
    atomic_init(&completion->state, COMPLETION_PENDING);
    atomic_init(&completion->listeners, NULL);
    completion->status = SHOAL_OK;
    completion->text = NULL;
    completion->kind = kind ? kind : &no_kind;
}

struct completion *completion_create(void)
{
    struct completion *completion = mem_alloc(sizeof *completion);
    if (completion) {
        completion_init(completion, NULL);
    }
    return completion;
}

struct completion *completion_ref(struct completion *completion)
{
    if (completion) {
        refcount_get(&completion->references);
    }
    return completion;
}

void completion_unref(struct completion *completion)
{
    if (!completion || !refcount_put(&completion->references)) {
        return;
    }
    mem_free(completion->text);
    completion->text = NULL;
    if (completion->kind->destroy) {
        completion->kind->destroy(completion);
    } else {
        mem_free(completion);
    }
}

void completion_finish(struct completion *completion, shoal_status status)
{
    assert(!completion_is_finished(completion));
    completion->status = status;
    if (status != SHOAL_OK && shoal_error_text()[0] != '\0') {
        completion->text = mem_copy_string(shoal_error_text());
    }
    uint32_t end = status == SHOAL_OK ? COMPLETION_DONE : COMPLETION_FAILED;
    /* Release: pairs with the acquire in completion_is_finished and in base/wait.c. Acquire is not needed:
       of the old value only the bit "somebody may sleep" is used. */
    uint32_t before = atomic_exchange_explicit(&completion->state, end, memory_order_release);
    if (before == COMPLETION_AWAITED) {
        wait_wake_all(&completion->state, /*is_shared=*/false);
    }
    /* Acquire: pairs with the push in completion_listen. Release: pairs with its read of the closed stack. */
    struct completion_listener *listener =
        atomic_exchange_explicit(&completion->listeners, &closed_stack, memory_order_acq_rel);
    while (listener) {
        /* Read first: the call may free the listener. */
        struct completion_listener *next = listener->next;
        listener->notify(listener, completion);
        listener = next;
    }
}

void completion_rearm(struct completion *completion)
{
    mem_free(completion->text);
    completion->text = NULL;
    completion->status = SHOAL_OK;
    /* Relaxed, all three: the caller is alone with it, and whatever shows it to others publishes these too. */
    assert(atomic_load_explicit(&completion->references, memory_order_relaxed) == 1);
    atomic_store_explicit(&completion->listeners, NULL, memory_order_relaxed);
    atomic_store_explicit(&completion->state, COMPLETION_PENDING, memory_order_relaxed);
}

shoal_status completion_result(const struct completion *completion)
{
    assert(completion_is_finished(completion));
    if (completion->status == SHOAL_OK) {
        return SHOAL_OK;
    }
    const char *text = completion->text ? completion->text : shoal_status_message(completion->status);
    return error_set(completion->status, "%s", text);
}

/* Announces a sleeper and sleeps. */
static shoal_status sleep_until_finished(struct completion *completion, int64_t deadline_ns)
{
    uint32_t state = COMPLETION_PENDING;
    /* Nothing is published but the wish to be woken; the word itself orders that against the exchange in
       completion_finish. Acquire: pairs with that exchange when it came first. */
    bool is_announced = atomic_compare_exchange_strong_explicit(
        &completion->state, &state, COMPLETION_AWAITED, memory_order_acquire, memory_order_acquire);
    if (!is_announced && completion_is_finished_state(state)) {
        return SHOAL_OK;
    }
    struct wait_options options = {.deadline_ns = deadline_ns, .what = "an operation to finish"};
    return wait_while_equal(&completion->state, COMPLETION_AWAITED, &options);
}

static shoal_status wait_unfinished(struct completion *completion, int64_t deadline_ns)
{
    if (completion->kind->push) {
        TRY(callback_check("a wait for an operation that has not finished"));
        TRY(completion->kind->push(completion, deadline_ns));
    }
    /* Acquire: pairs with the release exchange in completion_finish. */
    uint32_t state = atomic_load_explicit(&completion->state, memory_order_acquire);
    /* A waiter has nothing better to do, so it spins; not yet announced, so that finish need not wake it. */
    if (!completion_is_finished_state(state)) {
        (void)wait_spin_while_equal(&completion->state, state);
    }
    return completion_is_finished(completion) ? SHOAL_OK : sleep_until_finished(completion, deadline_ns);
}

static void note_awaited(struct completion *completion)
{
    if (completion->kind->awaited) {
        completion->kind->awaited(completion);
    }
}

shoal_status completion_wait(struct completion *completion, int64_t deadline_ns)
{
    if (!completion_is_finished(completion)) {
        uint64_t begin_ticks = clock_ticks();
        shoal_status status = wait_unfinished(completion, deadline_ns);
        waited_add(begin_ticks, clock_ticks());
        TRY(status);
    }
    note_awaited(completion);
    return completion_result(completion);
}

bool completion_test(struct completion *completion)
{
    if (!completion_is_finished(completion) && completion->kind->push &&
        completion->kind->push(completion, 0) != SHOAL_OK) {
        error_clear();
    }
    if (!completion_is_finished(completion)) {
        return false;
    }
    note_awaited(completion);
    return true;
}

void completion_listen(struct completion *completion, struct completion_listener *listener)
{
    /* Acquire, here and on failure below: pairs with the exchange in completion_finish that closes it. */
    struct completion_listener *head = atomic_load_explicit(&completion->listeners, memory_order_acquire);
    do {
        if (head == &closed_stack) {
            listener->notify(listener, completion);
            return;
        }
        listener->next = head;
        /* Release: pairs with the acquire exchange in completion_finish. */
    } while (!atomic_compare_exchange_weak_explicit(&completion->listeners, &head, listener,
                                                    memory_order_acq_rel, memory_order_acquire));
}
