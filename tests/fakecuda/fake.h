/* SPDX-License-Identifier: MIT */
/*
 * A CUDA driver for tests: libcuda.so.1 with the functions of src/cuda/driver.def, for machines without a GPU. It is as
 * unkind as a driver may be. The host cannot touch memory of the device; work is done late; streams run in any order
 * that events allow; memory is filled with NaN when it is allocated and when it is freed.
 *
 *   context.c  start, devices, contexts; what each call checks first
 *   error.c    failures, names of errors, and the functions by their names
 *   slot.c     handles, of which wrong ones are told without reading them
 *   memory.c   the address space and what is allocated of it
 *   pool.c     pools
 *   shared.c   memory that processes share
 *   range.c    the addresses that it is mapped at
 *   pinned.c   host memory that copies read and write late
 *   copy.c     copies and fills
 *   queue.c    the jobs of streams: worker threads, or the calls that look at results
 *   stream.c   streams and events
 *   module.c   PTX text and the functions in it
 *   launch.c   kernels: the host half of src/cuda/kernels, block after block
 *   table.c    the kernels by their names
 *   example.c  the kernel of an example
 *
 * Tests use fakecuda_settings, which is the struct of device `apart` (tests/modules/apart/settings.h). Calls that
 * start work, allocate or create are counted, and can be made to fail. These are not counted: calls that free, because
 * they are often a program's last ones, and nothing later would show the failure; queries, because how many there are
 * depends on time; cuCtxPushCurrent and cuCtxPopCurrent, because they surround both. Once the device has failed, every
 * call that needs a context gives the code of the failure. Calls that free do their work even so, so that tests can
 * check that nothing was lost. `no_memory_at` counts allocations of the device and of pinned memory.
 *
 *   TEST_APART_SEED   the seed at first
 *   FAKECUDA_MODE     "threads": a worker thread for each stream. "lazy": calls that look at results do work of any
 *                     stream, as much as they need, in an order by the seed
 *   FAKECUDA_DEVICES  how many GPUs there are, 1 by default. They share one address space and one failure
 *   FAKECUDA_SHARING  "off": memory is not exported
 *
 * The thread sanitizer reports a wait that is missing as a race. Workers take no lock that a call of the driver takes,
 * and only who asks learns what they have done, so work is not ordered by happening to be done early.
 */
#ifndef FAKECUDA_FAKE_H
#define FAKECUDA_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/driver_types.h"
#include "cuda/kernels/target.h"
#include "modules/apart/settings.h"

#define FAKE_EXPORT __attribute__((visibility("default")))

/* What each thread has of its own lies beside its stack. The loader would allocate it otherwise, and free it in
   whichever thread ends later, where the thread sanitizer takes that for a race. */
#define FAKE_OF_THREAD _Thread_local __attribute__((tls_model("initial-exec")))

#define CUDA_CALL(name, parameters) FAKE_EXPORT cuda_result name parameters;
#include "cuda/driver.def"
#undef CUDA_CALL
/* For benchmarks only. */
FAKE_EXPORT cuda_result cuEventElapsedTime(float *ms_out, struct CUevent_st *begin, struct CUevent_st *end);
FAKE_EXPORT cuda_result cuGetProcAddress_v2(const char *symbol, void **function_out, int version,
                                            uint64_t flags, int *status_out);

extern FAKE_EXPORT struct apart_settings fakecuda_settings;
/* That tests can use all of them: tests/realcuda has the settings, too. */
extern FAKE_EXPORT const int fakecuda_has_controls;

/* Results of the driver that the module has no names for. */
enum {
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_NO_BINARY_FOR_GPU = 209,
    FAKE_INVALID_PTX = 218,
    FAKE_INVALID_HANDLE = 400,
    FAKE_CONTEXT_IS_DESTROYED = 709
};

/* Calls -------------------------------------------------------------------------------------------------- */

/* What a call does first. Its result is the call's if it is not CUDA_OK. */
cuda_result fake_begin(void);        /* counts, and needs a context */
cuda_result fake_begin_device(void); /* counts, and needs cuInit only */
cuda_result fake_begin_query(void);  /* does not count */
/* For what frees, after fake_begin_query: whether it has to do its work. */
bool fake_may_free(cuda_result begun);

bool fake_is_device(cuda_device device);

/* The device has failed; only the first failure counts. The text goes to standard error; NULL: tests know of it. */
void fake_fail(cuda_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What has made the device fail, or CUDA_OK. */
cuda_result fake_failure(void);
/* False if tests have asked for this allocation to fail. */
bool fake_has_memory(void);

/* Random numbers by the seed of the settings. Each user has a state of its own, which is any number at first. */
uint64_t fake_random(uint64_t *state);

/* Handles ------------------------------------------------------------------------------------------------ */

/* Handles are elements of arrays, and each begins with `_Atomic uint32_t state`. Elements are taken in turn, so that
   a handle is not soon another one's. */
struct fake_slots {
    void *first;
    size_t slot_bytes;
    size_t n_slots;
    _Atomic size_t next;
};
#define FAKE_SLOTS(array)                                                                             \
    {                                                                                                 \
        .first = (array), .slot_bytes = sizeof(array)[0], .n_slots = sizeof(array) / sizeof(array)[0] \
    }

/* An element that nobody else has, and that is no handle yet; NULL if all are taken. */
void *fake_slot_take(struct fake_slots *slots);
void fake_slot_open(void *slot);
/* Whether this is a handle. */
bool fake_slot_is_open(const struct fake_slots *slots, const void *handle);
/* The handle is none any more; false if it was none. */
bool fake_slot_close(const struct fake_slots *slots, void *handle);
/* A closed one can be taken again. */
void fake_slot_give(void *slot);

/* Memory ------------------------------------------------------------------------------------------------- */

#define FAKE_SPACE_BYTES ((size_t)1 << 36)
#define FAKE_POISON 0xff /* NaN in every floating-point dtype */

bool fake_memory_open(void);
/* Where the processor reaches memory of the device. NULL, and the device has failed, if that is not all its own. */
void *fake_reach(cuda_address address, size_t bytes);
/* The host has waited for work: pools give back what they are not to keep. */
void fake_pools_trim(void);

struct fake_pinned;
/* The block that the bytes lie in, which is in use from now on; NULL if they are ordinary memory. */
cuda_result fake_pinned_use(const void *data, size_t bytes, struct fake_pinned **pinned_out);
void fake_pinned_unuse(struct fake_pinned *pinned);

struct fake_range;
/* The range that an address lies in, which is in use from now on; NULL if it is not one of shared memory. */
struct fake_range *fake_range_use(cuda_address address);
void fake_range_unuse(struct fake_range *range);

/* Jobs --------------------------------------------------------------------------------------------------- */

/* A number that only grows, written by one stream. Counters are never freed. */
struct fake_counter {
    _Atomic uint64_t n;
    _Atomic uint64_t
        recorded_ns; /* when it became 1, if an event with a time was recorded; on no clock in particular */
};

/* A counter that is 0, and is to become 1; NULL, and the device has failed, if there are no more. */
struct fake_counter *fake_counter_make(void);

/* Work of a stream. It is freed after it has run. */
struct fake_job {
    _Atomic(struct fake_job *) next;
    struct fake_counter *awaited;      /* it runs when this is 1; NULL: it need not wait */
    struct fake_counter *done;         /* becomes 1 behind it; NULL: nobody asks */
    void (*run)(struct fake_job *job); /* may be NULL */
};

struct CUstream_st {
    _Atomic uint32_t state;
    _Atomic uint32_t is_ready; /* it is made, and its work is not over */
    uint64_t number;           /* no two streams have the same */
    void *handle;              /* what the program calls it */
    bool is_blocking;          /* it is kept in order with the legacy stream */
    uint64_t n_seen;           /* jobs of the legacy stream that its own ones wait for */
    uint64_t n_seen_by_legacy; /* and the other way round */

    bool has_lock;        /* it stays when the stream is another one */
    pthread_mutex_t lock; /* of those that push */
    struct fake_job *last;
    _Atomic uint64_t n_pushed;

    /* Of whoever runs the jobs. */
    struct fake_job *first; /* has run; the next one is the next to run */
    uint64_t random;
    bool has_ended;
    struct fake_counter n_done;
};

extern bool fake_is_lazy;

/* Memory for a job: a struct that begins with struct fake_job. NULL if there is none. */
void *fake_job(size_t bytes, void (*run)(struct fake_job *job));
/* Puts a job behind the work of a stream, which may be any that is ready. */
void fake_queue_push(struct CUstream_st *stream, struct fake_job *job);
/* Begins and ends the work of a stream. */
bool fake_queue_open(struct CUstream_st *stream);
void fake_queue_end(struct CUstream_st *stream);

/* Whether a counter has come to `n`. A query may do work first; the other one returns when it has come to it. */
bool fake_query(const struct fake_counter *counter, uint64_t n);
void fake_wait(const struct fake_counter *counter, uint64_t n);

/* Streams ------------------------------------------------------------------------------------------------ */

#define FAKE_STREAMS_MOST 1024
extern struct CUstream_st fake_streams[FAKE_STREAMS_MOST];

/* The stream of a handle, which may be one of those that always exist; NULL if it is no handle. */
struct CUstream_st *fake_stream(struct CUstream_st *handle);
/* Puts a job behind the work of a stream, and that of the streams that it is kept in order with. */
void fake_push(struct CUstream_st *stream, struct fake_job *job);

/* Kernels ------------------------------------------------------------------------------------------------ */

struct fake_kernel {
    const char *name;
    size_t argument_bytes;
    int n_phases;
    void (*run)(const void *arguments, const struct cuda_thread *self, int phase);
};

/* NULL if the sources have none of that name. */
const struct fake_kernel *fake_kernel_find(const char *name, size_t length);

struct fake_function {
    const struct fake_kernel *kernel; /* NULL if it is no handle */
    unsigned threads_most;            /* in a block */
    unsigned shared_most;             /* bytes */
};
struct fake_function fake_function_of(const struct CUfunc_st *function);

#endif
