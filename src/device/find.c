/* SPDX-License-Identifier: MIT */
/* Finding devices by their names, and loading those of modules. */
#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/try.h"
#include "device/device.h"
#include "device/ending.h"
#include "device/module.h"
#include "device/stream.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while a module is loaded */

/* A child of fork() has none of its parent's threads, which may have held locks. */
static void begin_child(void)
{
    (void)pthread_mutex_init(&lock, NULL);
    stream_begin_child();
    ending_begin_child();
}

static int prepare_error;

static void prepare(void)
{
    prepare_error = pthread_atfork(NULL, NULL, begin_child);
}

/*
 * For forks and for the end of the process. What is to be called then comes before what the module has registered, and
 * what it loads, because it is registered later.
 */
static shoal_status prepare_ends(void)
{
    static pthread_once_t is_prepared = PTHREAD_ONCE_INIT;
    (void)pthread_once(&is_prepared, prepare);
    return prepare_error == 0 && atexit(ending_at_exit) == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_NO_MEMORY, "pthread_atfork or atexit failed");
}

/* Under the lock. */
static shoal_status load(const char *name, shoal_device *device_out)
{
    struct device_slot slot = {0};
    if (device_find_known(name, device_out)) {
        return SHOAL_OK;
    }
    if (device_count_loaded() == DEVICE_MODULES_MOST) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "device \"%s\" is one too many: a process can have %d of modules", name,
                         DEVICE_MODULES_MOST);
    }
    TRY(fork_watch());
    slot.n_forks = fork_count();
    TRY(device_module_load(name, &slot.row));
    TRY(prepare_ends());
    TRY(stream_create_compute(&slot));
    *device_out = device_add(slot);
    return SHOAL_OK;
}

shoal_status device_find(const char *name, shoal_device *device_out)
{
    shoal_device known;
    if (device_find_known(name, &known)) {
        TRY(device_check_process(known));
        *device_out = known;
        return SHOAL_OK;
    }
    TRY(device_module_check_name(name));
    (void)pthread_mutex_lock(&lock);
    shoal_status status = load(name, device_out);
    (void)pthread_mutex_unlock(&lock);
    return status;
}

shoal_status shoal_device_find(const char *name, shoal_device *device_out)
{
    error_clear();
    if (!name || !device_out) {
        return error_set(SHOAL_ERR_INVALID, "device_find: %s is NULL", name ? "device_out" : "name");
    }
    shoal_status status = device_find(name, device_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "device_find");
}
