/* SPDX-License-Identifier: MIT */
/*
 * Keeps callbacks from waiting. The library calls functions of the program on threads that others wait for: at the end
 * of an operation, and for a message of the log. If such a function waited for what its own thread has to carry, or two
 * of them for each other's threads, nobody would go on. So every call that waits for other ranks asks here first, and
 * is refused inside a callback.
 */
#ifndef BASE_CALLBACK_H
#define BASE_CALLBACK_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

/*
 * How many such functions this thread is in: one may start what ends at once, and calls another. initial-exec, because
 * every blocking call reads it: no call is needed to find its address. But then all thread variables of a library lie in
 * memory of which little is left when a process has begun; a module with a copy of this, which reads it for messages of
 * the log alone, is compiled with CALLBACK_IN_MODULE and does without.
 */
#ifdef CALLBACK_IN_MODULE
extern _Thread_local uint32_t callback_depth;
#else
extern _Thread_local uint32_t callback_depth __attribute__((tls_model("initial-exec")));
#endif

static inline void callback_enter(void)
{
    callback_depth++;
}

static inline void callback_leave(void)
{
    callback_depth--;
}

/*
 * A captured step (op/tracer.h) counts as a callback, too: nothing is computed in it, so the only way in which ranks
 * may communicate there is by ops. It is counted in the same word, so that one load answers both questions.
 */
#define CALLBACK_CAPTURE (1u << 16)

static inline void callback_enter_capture(void)
{
    callback_depth += CALLBACK_CAPTURE;
}

static inline void callback_leave_capture(void)
{
    callback_depth -= CALLBACK_CAPTURE;
}

/* Says once more, with some words behind it, the first refusal in the thread's capture of a call that the graph would
   lack (base/captured.def); SHOAL_OK if there was none. The capture fails with it, even if the step ignores it. */
shoal_status callback_repeat_refusal(const char *behind);
void callback_forget_refusal(void);

/* For calls that the library makes itself inside a captured step, and that are no part of it: what to resume with. */
static inline uint32_t callback_pause_capture(void)
{
    uint32_t depth = callback_depth;
    callback_depth = depth % CALLBACK_CAPTURE;
    return depth;
}

static inline void callback_resume_capture(uint32_t depth)
{
    callback_depth = depth;
}

static inline bool callback_is_capturing(void)
{
    return callback_depth >= CALLBACK_CAPTURE;
}

static inline bool callback_is_running(void)
{
    return callback_depth > 0;
}

/* SHOAL_ERR_STATE. `what` would wait: "barrier". In a capture the text says what to write instead (captured.def). */
shoal_status callback_refuse(const char *what) __attribute__((cold));

/* For calls that ranks make together and that do not wait. */
static inline shoal_status callback_check_capture(const char *what)
{
    return callback_is_capturing() ? callback_refuse(what) : SHOAL_OK;
}

static inline shoal_status callback_check(const char *what)
{
    return callback_is_running() ? callback_refuse(what) : SHOAL_OK;
}

#endif
