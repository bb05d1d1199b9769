/* SPDX-License-Identifier: MIT */
/*
 * Frames of the message transport (transport/message/wire.h), changed at random, into a rank that makes calls: the wire,
 * ports and credit, the calls that are compared, data and streams. The rank must return from every call, read nothing that
 * it may not, and lose no memory.
 *
 * The endpoint is this file's: a record is one message of a peer, of the sequence apart if WHO_APART is set. The connection
 * of a peer ends behind its last message. Seeds are what real peers send (SHOAL_FUZZ_CAPTURE=FOLDER).
 */
#include <pthread.h>

#include "fixtures/memory_endpoint.h"
#include "fuzz/lanes.h"
#include "harness/harness.h"

#define WHO_APART 0x80u
#define WHO_MASK 3u
/* Of the byte that chooses the program: the endpoint has to be polled, as MPI. */
#define PROGRAM_POLLED 0x80

struct queue {
    struct records records;         /* that were not delivered */
    struct endpoint_message *first; /* to be received */
    struct endpoint_message *last;
};

struct script_endpoint {
    bool has_given_up;
    struct queue queues[LANES_RANKS][2]; /* by sequence */
};

/* Of the one world that there is at a time. */
static struct records script;
static _Atomic uint32_t n_wakes;

static shoal_status script_open(const struct transport_world *world, int64_t deadline_ns,
                                struct endpoint **endpoint_out)
{
    (void)world;
    (void)deadline_ns;
    struct script_endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < 2 * LANES_RANKS; i++) {
        endpoint->queues[i / 2][i % 2].records = script;
    }
    *endpoint_out = (struct endpoint *)endpoint;
    return SHOAL_OK;
}

static void script_close(struct endpoint *endpoint, int64_t deadline_ns)
{
    (void)deadline_ns;
    free(endpoint);
}

/* What is sent goes nowhere. */
static void script_isend(struct endpoint *endpoint, int rank, struct endpoint_message *message,
                         const void *data, size_t bytes)
{
    (void)endpoint;
    (void)rank;
    *message =
        (struct endpoint_message){.data = (char *)(uintptr_t)data, .bytes = bytes, .state = ENDPOINT_DONE};
}

static void add_receive(struct endpoint *base, int rank, int sequence, struct endpoint_message *message,
                        void *data, size_t room)
{
    struct script_endpoint *endpoint = (struct script_endpoint *)base;
    struct queue *queue = &endpoint->queues[rank][sequence];
    *message = (struct endpoint_message){.data = data, .bytes = room};
    if (endpoint->has_given_up) {
        message->state = ENDPOINT_FAILED;
        return;
    }
    *(queue->first ? &queue->last->next : &queue->first) = message;
    queue->last = message;
}

static void script_irecv(struct endpoint *endpoint, int rank, struct endpoint_message *message, void *data,
                         size_t room)
{
    add_receive(endpoint, rank, 0, message, data, room);
}

static void script_irecv_apart(struct endpoint *endpoint, int rank, struct endpoint_message *message,
                               void *data, size_t room)
{
    add_receive(endpoint, rank, 1, message, data, room);
}

static bool script_may_lend(struct endpoint *endpoint)
{
    (void)endpoint;
    return true;
}

static enum endpoint_state script_test(struct endpoint *endpoint, struct endpoint_message *message)
{
    (void)endpoint;
    return message->state;
}

static bool script_cancel(struct endpoint *base, int rank, struct endpoint_message *message)
{
    struct script_endpoint *endpoint = (struct script_endpoint *)base;
    for (int sequence = 0; sequence < 2; sequence++) {
        struct queue *queue = &endpoint->queues[rank][sequence];
        struct memory_queue list = {queue->first, queue->last};
        memory_take_out(&list, message);
        queue->first = list.first;
        queue->last = list.last;
    }
    return true;
}

/* The next message of a rank and sequence. False: there is none. */
static bool next_of(struct queue *queue, int rank, int sequence, struct record *record)
{
    while (records_next(&queue->records, record)) {
        bool is_apart = (record->who & WHO_APART) != 0;
        if ((int)(record->who & WHO_MASK) == rank && is_apart == (sequence == 1)) {
            return true;
        }
    }
    return false;
}

static void deliver(struct queue *queue, int rank, int sequence)
{
    while (queue->first) {
        struct endpoint_message *message = queue->first;
        struct record record;
        queue->first = message->next;
        if (!next_of(queue, rank, sequence, &record) || record.n_bytes > message->bytes) {
            message->state = ENDPOINT_FAILED;
            continue;
        }
        memcpy(message->data, record.bytes, record.n_bytes);
        message->bytes = record.n_bytes;
        message->state = ENDPOINT_DONE;
    }
}

static void script_progress(struct endpoint *base)
{
    struct script_endpoint *endpoint = (struct script_endpoint *)base;
    for (int rank = 1; rank < LANES_RANKS && !endpoint->has_given_up; rank++) {
        for (int sequence = 0; sequence < 2; sequence++) {
            deliver(&endpoint->queues[rank][sequence], rank, sequence);
        }
    }
}

static void script_wait(struct endpoint *endpoint, int64_t until_ns)
{
    (void)endpoint;
    struct wait_options options = {.deadline_ns = until_ns, .what = "messages"};
    if (wait_while_equal(&n_wakes, 0, &options) != SHOAL_OK) {
        error_clear();
    }
}

static void script_wake(struct endpoint *endpoint)
{
    (void)endpoint;
    atomic_fetch_add(&n_wakes, 1);
    wait_wake_all(&n_wakes, /*is_shared=*/false);
}

static const char *script_failure(struct endpoint *endpoint, int rank)
{
    (void)endpoint;
    (void)rank;
    return "it closed the connection";
}

static void script_give_up(struct endpoint *base, const char *why)
{
    struct script_endpoint *endpoint = (struct script_endpoint *)base;
    (void)why;
    endpoint->has_given_up = true;
    for (int i = 0; i < 2 * LANES_RANKS; i++) {
        struct queue *queue = &endpoint->queues[i / 2][i % 2];
        for (; queue->first; queue->first = queue->first->next) {
            queue->first->state = ENDPOINT_FAILED;
        }
    }
}

#define SCRIPT_KIND(its_name, its_wait, its_wake)                                                     \
    {                                                                                                 \
        .struct_size = sizeof(struct endpoint_kind), .name = (its_name), .doc = "recorded messages",  \
        .any_thread = true, .patience_s = 0.01, .open = script_open, .close = script_close,           \
        .isend = script_isend, .irecv = script_irecv, .isend_apart = script_isend,                    \
        .irecv_apart = script_irecv_apart, .may_lend = script_may_lend, .test = script_test,          \
        .cancel = script_cancel, .progress = script_progress, .wait = (its_wait), .wake = (its_wake), \
        .failure = script_failure, .give_up = script_give_up,                                         \
    }

static const struct endpoint_kind waiting_kind = SCRIPT_KIND("script", script_wait, script_wake);
static const struct endpoint_kind polled_kind = SCRIPT_KIND("script_polled", NULL, NULL);

static void play(const unsigned char *bytes, size_t n_bytes, bool must_succeed)
{
    int program;
    struct lanes lanes;
    script = records_begin(bytes, n_bytes, &program);
    atomic_store(&n_wakes, 0);
    if (lanes_open(&lanes, program & PROGRAM_POLLED ? &polled_kind : &waiting_kind, 0, /*is_alone=*/true)) {
        lanes_take_all(&lanes);
        lanes_run(&lanes, program & ~PROGRAM_POLLED, must_succeed);
        lanes_close(&lanes);
    }
    error_clear();
}

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    play(bytes, n_bytes, /*must_succeed=*/false);
}

/* Otherwise the seeds have to be made again. */
TEST(calls_succeed_with_what_was_recorded)
{
    static struct fuzz_input input;
    for (int program = 0; program < LANES_PROGRAMS; program++) {
        char name[32];
        (void)snprintf(name, sizeof name, "program-%d", program);
        REQUIRE(fuzz_read_seed("frames", name, &input));
        play(input.bytes, input.n_bytes, /*must_succeed=*/true);
        input.bytes[0] |= PROGRAM_POLLED;
        play(input.bytes, input.n_bytes, /*must_succeed=*/true);
    }
}

/* Seeds ------------------------------------------------------------------------------------------------- */

/* What ranks 1 and 2 send to rank 0, in the order in which they hand it over. */
static struct {
    pthread_mutex_t lock;
    struct fuzz_input input;
} captured = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note(struct endpoint *base, int to, int sequence, const void *data, size_t bytes)
{
    int from = ((struct memory_endpoint *)base)->rank;
    if (to != 0) {
        return;
    }
    (void)pthread_mutex_lock(&captured.lock);
    records_add(&captured.input, (unsigned)from | (sequence == 1 ? WHO_APART : 0), data, bytes);
    (void)pthread_mutex_unlock(&captured.lock);
}

static void capture_isend(struct endpoint *endpoint, int rank, struct endpoint_message *message,
                          const void *data, size_t bytes)
{
    note(endpoint, rank, 0, data, bytes);
    memory_isend(endpoint, rank, message, data, bytes);
}

static void capture_isend_apart(struct endpoint *endpoint, int rank, struct endpoint_message *message,
                                const void *data, size_t bytes)
{
    note(endpoint, rank, 1, data, bytes);
    memory_isend_apart(endpoint, rank, message, data, bytes);
}

TEST_RANKS(capture, LANES_RANKS)
{
    static struct endpoint_kind kind = MEMORY_KIND(0);
    if (!fuzz_capture_folder() || self->is_process) {
        return;
    }
    kind.isend = capture_isend;
    kind.isend_apart = capture_isend_apart;
    for (int program = 0; program < LANES_PROGRAMS; program++) {
        struct lanes lanes;
        if (self->rank == 0) {
            memory_begin(&(struct memory_plan){MEMORY_PLAN_QUIET});
            captured.input = (struct fuzz_input){.bytes = {(unsigned char)program}, .n_bytes = 1};
        }
        test_barrier(self);
        if (lanes_open(&lanes, &kind, self->rank, /*is_alone=*/false)) {
            lanes_run(&lanes, program, /*must_succeed=*/true);
            lanes.transport->disconnect(lanes.channel);
            test_barrier(self);
            lanes.transport->close(lanes.state);
            free(lanes.send);
            free(lanes.recv);
        }
        test_barrier(self);
        if (self->rank == 0) {
            char name[32];
            (void)snprintf(name, sizeof name, "program-%d", program);
            fuzz_write_seed(name, &captured.input);
        }
    }
}

const struct fuzz_target fuzz_target = {
    .name = "frames", .try_input = try_bytes, .has_records = true, .n_rounds = 1500};
