/* SPDX-License-Identifier: MIT */
/*
 * Messages over MPI: a tag for each of the two sequences, on the world's duplicate of a communicator; between two ranks
 * each is in order. MPI is called by isend, irecv and progress; where only some threads may call it (enum mpi_mode),
 * the first two only note what progress then begins.
 *
 * After process_fail nothing here calls MPI: messages that are on their way have failed, and what MPI was given stays.
 */
#include <stdio.h>
#include <string.h>

#include "transport/mpi/mpi.h"

#define MESSAGE_TAG 1
#define APART_TAG 2
/*
 * MPI agrees with the peer on each long message before it moves, and Open MPI carries the first 192 KiB through buffers of
 * its own, so that few long messages are faster than many short ones; bench/mpi.sh shows it.
 */
#define MESSAGE_BYTES ((size_t)1024 * 1024 + 64)
#define TEXT_BYTES 200
/* How long closing waits for receives that cannot be taken back, because a message is on its way into them. */
#define CANCEL_SECONDS 2.0
#define CANCEL_NAP_NS 20000

/* In `native` of a message: the request, and the rank, tag and direction. */
enum {
    NATIVE_REQUEST,
    NATIVE_TARGET
};
#define TARGET_IS_SENT 1u
#define TARGET_IS_APART 2u
#define TARGET_BITS 2
_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request has room in a message");

struct endpoint {
    const struct transport_world *world;
    struct mpi *mpi;
    bool has_given_up;
    bool may_lend;
    /* What is on its way, and where it was found: the same index in all. Room for `capacity`. */
    MPI_Request *requests;
    struct endpoint_message **messages;
    MPI_Status *statuses;
    int *indices;
    int n_active;
    int capacity;
    /* What progress begins. */
    struct endpoint_message *first;
    struct endpoint_message *last;
    bool *has_failed;  /* by rank */
    int64_t cancel_ns; /* until when receives are taken back; 0 if none was yet */
    bool has_lock;     /* the application's, between enter and leave */
    char text[TEXT_BYTES];
};

/* Failing ------------------------------------------------------------------------------------------------ */

static bool is_over(const struct endpoint *endpoint)
{
    return endpoint->has_given_up || process_has_failed();
}

static int rank_of(const struct endpoint_message *message)
{
    return (int)(message->native[NATIVE_TARGET] >> TARGET_BITS);
}

static int tag_of(const struct endpoint_message *message)
{
    return message->native[NATIVE_TARGET] & TARGET_IS_APART ? APART_TAG : MESSAGE_TAG;
}

static bool is_sent(const struct endpoint_message *message)
{
    return message->native[NATIVE_TARGET] & TARGET_IS_SENT;
}

/* MPI says that a message did not arrive. */
static void fail_message(struct endpoint *endpoint, struct endpoint_message *message, int error)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    int rank = rank_of(message);
    message->state = ENDPOINT_FAILED;
    (void)MPI_Error_string(error, text, &length);
    if (!endpoint->has_failed[rank]) {
        (void)snprintf(endpoint->text, sizeof endpoint->text, "%s: %.150s",
                       is_sent(message) ? "MPI_Isend" : "MPI_Irecv", text);
    }
    endpoint->has_failed[rank] = true;
}

static const char *mpi_failure(struct endpoint *endpoint, int rank)
{
    if (process_is_finalised_early()) {
        return PROCESS_ORDER;
    }
    if (process_has_failed()) {
        return endpoint->has_given_up ? endpoint->text : "MPI is not called any more after a failure";
    }
    return endpoint->has_given_up || endpoint->has_failed[rank] ? endpoint->text : NULL;
}

static void mpi_give_up(struct endpoint *endpoint, const char *why)
{
    process_fail();
    if (!endpoint->has_given_up) {
        (void)snprintf(endpoint->text, sizeof endpoint->text, "MPI is not called any more: %.150s", why);
        endpoint->has_given_up = true;
    }
}

/* Beginning ---------------------------------------------------------------------------------------------- */

static MPI_Request request_of(const struct endpoint_message *message)
{
    MPI_Request request;
    memcpy(&request, &message->native[NATIVE_REQUEST], sizeof request);
    return request;
}

static void add_active(struct endpoint *endpoint, struct endpoint_message *message, MPI_Request request)
{
    memcpy(&message->native[NATIVE_REQUEST], &request, sizeof request);
    endpoint->requests[endpoint->n_active] = request;
    endpoint->messages[endpoint->n_active++] = message;
}

/* Inside of process_enter. */
static void begin(struct endpoint *endpoint, struct endpoint_message *message)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int rank = rank_of(message);
    int tag = tag_of(message);
    int bytes = (int)message->bytes; /* at most MESSAGE_BYTES */
    int is_done = 0;
    int error = is_sent(message)
                    ? MPI_Isend(message->data, bytes, MPI_BYTE, rank, tag, endpoint->mpi->comm, &request)
                    : MPI_Irecv(message->data, bytes, MPI_BYTE, rank, tag, endpoint->mpi->comm, &request);
    if (error == MPI_SUCCESS && is_sent(message)) {
        /* What is short has often been sent already. */
        error = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    }
    if (error != MPI_SUCCESS) {
        fail_message(endpoint, message, error);
    } else if (is_done) {
        message->state = ENDPOINT_DONE;
    } else {
        add_active(endpoint, message, request);
    }
}

static void begin_or_note(struct endpoint *endpoint, struct endpoint_message *message)
{
    bool is_free = endpoint->mpi->mode == MPI_MODE_FREE;
    if (is_over(endpoint) || endpoint->has_failed[rank_of(message)] || (is_free && !process_enter())) {
        message->state = ENDPOINT_FAILED;
    } else if (is_free) {
        begin(endpoint, message);
        process_leave();
    } else {
        if (endpoint->first) {
            endpoint->last->next = message;
        } else {
            endpoint->first = message;
        }
        endpoint->last = message;
    }
}

static void hand_over(struct endpoint *endpoint, int rank, uint64_t bits, struct endpoint_message *message,
                      void *data, size_t bytes)
{
    *message = (struct endpoint_message){
        .data = data, .bytes = bytes, .native = {[NATIVE_TARGET] = (uint64_t)rank << TARGET_BITS | bits}};
    begin_or_note(endpoint, message);
}

/* What is sent is never written to: one type serves both directions. */
static void mpi_isend(struct endpoint *endpoint, int rank, struct endpoint_message *message, const void *data,
                      size_t bytes)
{
    hand_over(endpoint, rank, TARGET_IS_SENT, message, (void *)data, bytes);
}

static void mpi_irecv(struct endpoint *endpoint, int rank, struct endpoint_message *message, void *data,
                      size_t room)
{
    hand_over(endpoint, rank, 0, message, data, room);
}

static void mpi_isend_apart(struct endpoint *endpoint, int rank, struct endpoint_message *message,
                            const void *data, size_t bytes)
{
    hand_over(endpoint, rank, TARGET_IS_SENT | TARGET_IS_APART, message, (void *)data, bytes);
}

static void mpi_irecv_apart(struct endpoint *endpoint, int rank, struct endpoint_message *message, void *data,
                            size_t room)
{
    hand_over(endpoint, rank, TARGET_IS_APART, message, data, room);
}

/*
 * Callers get their memory back when the peer has taken what was sent, which needs progress on both sides. Where only
 * some threads may make it, the application can keep it from being made for any time. SHOAL_TRANSPORT_MPI_COPY=1
 * forbids it.
 */
static bool mpi_may_lend(struct endpoint *endpoint)
{
    return endpoint->may_lend;
}

/* Moving ------------------------------------------------------------------------------------------------- */

static void end_message(struct endpoint *endpoint, struct endpoint_message *message, const MPI_Status *status,
                        int error)
{
    if (error != MPI_SUCCESS) {
        fail_message(endpoint, message, error);
        return;
    }
    if (!is_sent(message)) {
        int bytes = 0;
        (void)MPI_Get_count(status, MPI_BYTE, &bytes);
        message->bytes = bytes > 0 ? (size_t)bytes : 0;
    }
    message->state = ENDPOINT_DONE;
}

/* Those that have ended have no request any more. */
static void compact(struct endpoint *endpoint)
{
    int n_left = 0;
    for (int i = 0; i < endpoint->n_active; i++) {
        if (endpoint->messages[i]->state == ENDPOINT_PENDING) {
            endpoint->requests[n_left] = endpoint->requests[i];
            endpoint->messages[n_left++] = endpoint->messages[i];
        }
    }
    endpoint->n_active = n_left;
}

static int class_of(int error)
{
    int class = error;
    (void)MPI_Error_class(error, &class);
    return class;
}

/* Inside of process_enter. */
static void move(struct endpoint *endpoint)
{
    while (endpoint->first) {
        struct endpoint_message *message = endpoint->first;
        endpoint->first = message->next;
        begin(endpoint, message);
    }
    int n_done = 0;
    int error =
        MPI_Testsome(endpoint->n_active, endpoint->requests, &n_done, endpoint->indices, endpoint->statuses);
    bool is_in_status = error != MPI_SUCCESS && class_of(error) == MPI_ERR_IN_STATUS;
    if (error != MPI_SUCCESS && !is_in_status) {
        mpi_give_up(endpoint, "MPI_Testsome fails");
        return;
    }
    if (n_done == MPI_UNDEFINED || n_done == 0) {
        return;
    }
    for (int i = 0; i < n_done; i++) {
        struct endpoint_message *message = endpoint->messages[endpoint->indices[i]];
        const MPI_Status *status = &endpoint->statuses[i];
        end_message(endpoint, message, status, is_in_status ? status->MPI_ERROR : MPI_SUCCESS);
    }
    compact(endpoint);
}

static void mpi_progress(struct endpoint *endpoint)
{
    if (!endpoint->has_given_up && process_enter()) {
        move(endpoint);
        process_leave();
    }
}

static enum endpoint_state mpi_test(struct endpoint *endpoint, struct endpoint_message *message)
{
    if (message->state == ENDPOINT_PENDING && is_over(endpoint)) {
        return ENDPOINT_FAILED;
    }
    return message->state;
}

static bool is_noted(struct endpoint *endpoint, struct endpoint_message *message)
{
    struct endpoint_message *before = NULL;
    for (struct endpoint_message *at = endpoint->first; at; at = at->next) {
        if (at == message) {
            *(before ? &before->next : &endpoint->first) = at->next;
            endpoint->last = endpoint->last == at ? before : endpoint->last;
            return true;
        }
        before = at;
    }
    return false;
}

/* Until MPI has given a receive back. Not so if a message was on its way into it, and the rest does not come. */
static bool take_back(struct endpoint *endpoint, MPI_Request request)
{
    int is_done = 0;
    if (endpoint->cancel_ns == 0) {
        endpoint->cancel_ns = mpi_services->deadline_after(CANCEL_SECONDS);
    }
    int error = MPI_Cancel(&request);
    while (error == MPI_SUCCESS && !is_done) {
        error = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
        if (!is_done && mpi_services->now_ns() >= endpoint->cancel_ns) {
            return false;
        }
        if (!is_done) {
            mpi_services->sleep(CANCEL_NAP_NS);
        }
    }
    return error == MPI_SUCCESS;
}

/*
 * A receive is given back by MPI, soon. A message that is being sent is not: MPI cannot take it back, so that MPI is not called
 * any more, and its memory stays.
 */
static bool mpi_cancel(struct endpoint *endpoint, int rank, struct endpoint_message *message)
{
    (void)rank;
    if (is_noted(endpoint, message) || message->state != ENDPOINT_PENDING) {
        return true;
    }
    if (is_sent(message)) {
        mpi_give_up(endpoint, "a message was given up half way");
    }
    if (is_over(endpoint) || !process_enter()) {
        return process_is_finalised(); /* nobody uses its memory after that */
    }
    bool is_back = take_back(endpoint, request_of(message));
    process_leave();
    if (!is_back) {
        mpi_give_up(endpoint, "a message comes half way");
        return false;
    }
    message->state = ENDPOINT_FAILED;
    compact(endpoint);
    return true;
}

/* Who may call --------------------------------------------------------------------------------------------- */

static bool mpi_endpoint_enter(struct endpoint *endpoint, enum endpoint_caller caller)
{
    struct mpi *mpi = endpoint->mpi;
    if (mpi->mode == MPI_MODE_LOCKED) {
        if (caller != ENDPOINT_THREAD && caller != ENDPOINT_CLOSER) {
            return false;
        }
        /* Without a call of MPI there is nothing to lock, and the application may keep its lock after a failure. */
        endpoint->has_lock = !is_over(endpoint);
        if (endpoint->has_lock) {
            mpi_enter(mpi);
        }
        return true;
    }
    if (mpi->mode == MPI_MODE_DRIVEN) {
        bool is_driver = pthread_equal(pthread_self(), mpi->driver) != 0;
        return caller != ENDPOINT_THREAD && (is_driver || (caller == ENDPOINT_DRIVER && !mpi->is_funneled));
    }
    return true;
}

static bool mpi_has_noted(struct endpoint *endpoint)
{
    return endpoint->mpi->mode != MPI_MODE_FREE && endpoint->first && !is_over(endpoint);
}

static void mpi_endpoint_leave(struct endpoint *endpoint)
{
    if (endpoint->has_lock) {
        endpoint->has_lock = false;
        mpi_leave(endpoint->mpi);
    }
}

static enum endpoint_turns mpi_turns(struct endpoint *endpoint)
{
    static const enum endpoint_turns turns[] = {
        [MPI_MODE_FREE] = ENDPOINT_TURNS_FREE,
        [MPI_MODE_LOCKED] = ENDPOINT_TURNS_LOCKED,
        [MPI_MODE_DRIVEN] = ENDPOINT_TURNS_DRIVEN,
    };
    return turns[endpoint->mpi->mode];
}

/* Opening and closing ------------------------------------------------------------------------------------ */

static void mpi_close(struct endpoint *endpoint, int64_t deadline_ns)
{
    (void)deadline_ns;
    if (endpoint->mpi) {
        atomic_store(&endpoint->mpi->has_endpoint, false);
    }
    mpi_services->free(endpoint->requests);
    mpi_services->free(endpoint->messages);
    mpi_services->free(endpoint->statuses);
    mpi_services->free(endpoint->indices);
    mpi_services->free(endpoint->has_failed);
    mpi_services->free(endpoint);
}

static shoal_status allocate(struct endpoint *endpoint)
{
    size_t n_ranks = (size_t)endpoint->world->n_ranks;
    size_t capacity = n_ranks * 2 * ENDPOINT_IN_FLIGHT;
    endpoint->capacity = (int)capacity;
    endpoint->requests = mpi_services->alloc_zeroed(capacity, sizeof *endpoint->requests);
    endpoint->messages = mpi_services->alloc_zeroed(capacity, sizeof *endpoint->messages);
    endpoint->statuses = mpi_services->alloc_zeroed(capacity, sizeof *endpoint->statuses);
    endpoint->indices = mpi_services->alloc_zeroed(capacity, sizeof *endpoint->indices);
    endpoint->has_failed = mpi_services->alloc_zeroed(n_ranks, sizeof *endpoint->has_failed);
    bool is_good = endpoint->requests && endpoint->messages && endpoint->statuses && endpoint->indices &&
                   endpoint->has_failed;
    return is_good ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status mpi_open(const struct transport_world *world, int64_t deadline_ns,
                             struct endpoint **endpoint_out)
{
    (void)deadline_ns;
    if (!world->mpi) {
        return mpi_services->set_error(SHOAL_ERR_INTERNAL, "start-up did not begin MPI");
    }
    struct endpoint *endpoint = mpi_services->alloc_zeroed(1, sizeof *endpoint);
    if (!endpoint) {
        return SHOAL_ERR_NO_MEMORY;
    }
    endpoint->world = world;
    endpoint->mpi = world->mpi;
    if (world->n_hosts > 1) {
        process_note_hosts();
    }
    shoal_status status = allocate(endpoint);
    if (status != SHOAL_OK) {
        mpi_close(endpoint, 0);
        return status;
    }
    endpoint->may_lend =
        endpoint->mpi->mode == MPI_MODE_FREE && strcmp(mpi_services->variable("MPI_COPY"), "1") != 0;
    atomic_store(&endpoint->mpi->has_endpoint, true);
    *endpoint_out = endpoint;
    return SHOAL_OK;
}

const struct endpoint_kind mpi_kind = {
    .struct_size = sizeof(struct endpoint_kind),
    .name = "mpi",
    .doc = "messages of MPI between the ranks, on one host or several",
    .message_bytes = MESSAGE_BYTES,
    .any_thread = true,
    .open = mpi_open,
    .close = mpi_close,
    .isend = mpi_isend,
    .irecv = mpi_irecv,
    .isend_apart = mpi_isend_apart,
    .irecv_apart = mpi_irecv_apart,
    .may_lend = mpi_may_lend,
    .test = mpi_test,
    .cancel = mpi_cancel,
    .progress = mpi_progress,
    .failure = mpi_failure,
    .give_up = mpi_give_up,
    .enter = mpi_endpoint_enter,
    .leave = mpi_endpoint_leave,
    .turns = mpi_turns,
    .has_noted = mpi_has_noted,
};
