/* SPDX-License-Identifier: MIT */
/* Launching a collective: staging, fences, and copies that follow the data. launch.h has the order of steps. */
#include "collective/launch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "base/clock.h"
#include "base/completion.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "device/device.h"
#include "kernel/table.h"
#include "op/operand.h"
#include "tensor/dtype.h"

/* Flights ---------------------------------------------------------------------------------------------- */

/* A copy between two places that fences keep alive. It has addresses, not tensors, because a storage may get other
   memory meanwhile. */
struct flight_copy {
    struct layout to; /* its offset is in to_data already */
    int64_t from_strides[SHOAL_MAX_DIMS];
    struct address to_data;
    const void *from_data; /* of the same device */
    shoal_dtype dtype;
};

/*
 * A work, and the copies to be made after it, as one completion. Storages have this completion in their fences, not the
 * work's. The copies run on the thread that ends the work. The fences refer to it and, until the work has ended, its
 * listener.
 */
struct flight {
    struct completion completion; /* first */
    struct completion_listener listener;
    struct shoal_work *work; /* one reference; set before anybody can see the flight */
    struct flight_copy *copies;
    size_t n_copies;
    size_t capacity;
    shoal_device device; /* of the copies, which are put behind the work of its compute stream */
};

static struct flight *flight_of(struct completion_listener *listener)
{
    return (struct flight *)((char *)listener - offsetof(struct flight, listener));
}

static void destroy_flight(struct completion *completion)
{
    struct flight *flight = (struct flight *)completion;
    shoal_work_free(flight->work);
    mem_free(flight->copies);
    mem_free(flight);
}

static shoal_status push_flight(struct completion *completion, int64_t until_ns)
{
    struct completion *work = work_completion(((struct flight *)completion)->work);
    return work->kind->push(work, until_ns);
}

static void note_flight_awaited(struct completion *completion)
{
    work_forget(((struct flight *)completion)->work);
}

static const struct completion_kind flight_kind = {
    .destroy = destroy_flight, .push = push_flight, .awaited = note_flight_awaited};

static void run_copies(const struct flight *flight)
{
    for (size_t i = 0; i < flight->n_copies; i++) {
        const struct flight_copy *copy = &flight->copies[i];
        struct kernel_operand to = {.data = copy->to_data, .strides = copy->to.strides};
        /* Only read. */
        struct kernel_operand from = {.data = address_of(copy->from_data), .strides = copy->from_strides};
        kernel_of(flight->device)
            ->copy_nd(copy->dtype, to, copy->dtype, from, copy->to.n_dims, copy->to.shape);
    }
}

/* Called when the work has ended. */
static void land(struct completion_listener *listener, struct completion *work)
{
    struct flight *flight = flight_of(listener);
    shoal_status status = completion_result(work);
    if (status == SHOAL_OK) {
        run_copies(flight);
    }
    completion_finish(&flight->completion, status);
    completion_unref(&flight->completion);
}

static shoal_status need_flight(struct launch *launch)
{
    if (launch->flight) {
        return SHOAL_OK;
    }
    struct flight *flight = mem_alloc_zeroed(1, sizeof *flight);
    if (!flight) {
        return SHOAL_ERR_NO_MEMORY;
    }
    completion_init(&flight->completion, &flight_kind);
    flight->listener.notify = land;
    flight->device = launch->device;
    launch->flight = flight;
    return SHOAL_OK;
}

/* Adds a copy from contiguous memory to a view of `tensor`. */
static shoal_status add_copy(struct launch *launch, const shoal_tensor *tensor, const struct layout *to,
                             const void *from_data)
{
    struct address base;
    TRY(need_flight(launch));
    TRY(storage_base(tensor->storage, &base));
    struct flight *flight = launch->flight;
    TRY(mem_grow((void **)&flight->copies, &flight->capacity, flight->n_copies + 1,
                 sizeof flight->copies[0]));
    struct flight_copy *copy = &flight->copies[flight->n_copies++];
    *copy =
        (struct flight_copy){.to = *to,
                             .to_data = address_add(base, to->offset * (int64_t)dtype_bytes(tensor->dtype)),
                             .from_data = from_data,
                             .dtype = tensor->dtype};
    layout_fill_strides(to->n_dims, to->shape, copy->from_strides);
    return SHOAL_OK;
}

/* Fences ----------------------------------------------------------------------------------------------- */

static shoal_status add_fence(struct launch *launch, struct storage *storage, struct span span, bool is_write)
{
    if (launch->n_fences == launch->capacity) {
        size_t capacity = 4 * launch->capacity;
        struct launch_fence *fences = mem_alloc(capacity * sizeof *fences);
        if (!fences) {
            return SHOAL_ERR_NO_MEMORY;
        }
        for (size_t i = 0; i < launch->n_fences; i++) {
            fences[i] = launch->fences[i];
        }
        if (launch->fences != launch->inline_fences) {
            mem_free(launch->fences);
        }
        launch->fences = fences;
        launch->capacity = capacity;
    }
    struct fence *fence = storage_make_fence(storage, span);
    if (!fence) {
        return SHOAL_ERR_NO_MEMORY;
    }
    launch->fences[launch->n_fences++] =
        (struct launch_fence){.storage = storage, .fence = fence, .is_write = is_write};
    return SHOAL_OK;
}

/* Makes a contiguous buffer that lives until the work has ended. */
static shoal_status add_staging(struct launch *launch, size_t bytes, void **data_out)
{
    struct storage *storage;
    struct address base;
    TRY(storage_create(launch->device, bytes, &storage));
    shoal_status status = storage_base(storage, &base);
    if (status == SHOAL_OK) {
        *data_out = address_pointer(base);
        status = add_fence(launch, storage, storage_span(storage), /*is_write=*/false);
    }
    if (status != SHOAL_OK) {
        storage_unref(storage);
        return status;
    }
    launch->fences[launch->n_fences - 1].is_owned = true;
    return SHOAL_OK;
}

/* Beginning and ending --------------------------------------------------------------------------------- */

void launch_begin(struct launch *launch, shoal_group *group)
{
    launch->group = group;
    launch->n_ranks = shoal_group_n_ranks(group);
    launch->work = NULL;
    launch->fences = launch->inline_fences;
    launch->n_fences = 0;
    launch->capacity = LAUNCH_INLINE_FENCES;
    launch->flight = NULL;
    launch->is_transfer = false;
    launch->device = SHOAL_CPU;
    launch->scratch = NULL;
    launch->details = launch->inline_details;
    launch->n_details = 0;
    launch->details_capacity = LAUNCH_INLINE_DETAILS;
    launch->has_no_memory = false;
}

void *launch_alloc(struct launch *launch, size_t count, size_t size)
{
    launch->scratch = mem_alloc_zeroed(count, size);
    return launch->scratch;
}

static void set_fences(struct launch *launch, struct completion *completion)
{
    for (size_t i = 0; i < launch->n_fences; i++) {
        struct launch_fence *entry = &launch->fences[i];
        if (entry->is_write) {
            storage_set_write(entry->storage, entry->fence, completion);
        } else {
            storage_set_read(entry->storage, entry->fence, completion);
        }
    }
}

static void drop_fences(struct launch *launch)
{
    for (size_t i = 0; i < launch->n_fences; i++) {
        storage_drop_fence(launch->fences[i].fence);
    }
}

static void free_launch(struct launch *launch)
{
    for (size_t i = 0; i < launch->n_fences; i++) {
        if (launch->fences[i].is_owned) {
            storage_unref(launch->fences[i].storage);
        }
    }
    if (launch->fences != launch->inline_fences) {
        mem_free(launch->fences);
    }
    if (launch->details != launch->inline_details) {
        mem_free(launch->details);
    }
    mem_free(launch->scratch);
}

/* Called when a call fails after it has begun: what it writes may have changed in part. */
static void note_changes(struct launch *launch)
{
    for (size_t i = 0; i < launch->n_fences; i++) {
        if (launch->fences[i].is_write) {
            storage_bump_version(launch->fences[i].storage);
        }
    }
}

/* Sets the fences of the work. The launch's own reference keeps the work alive meanwhile. */
static shoal_status let_fly(struct launch *launch)
{
    struct flight *flight = launch->flight;
    struct completion *completion = work_completion(launch->work);
    if (flight) {
        flight->work = launch->work; /* takes the launch's reference; the launch has one to the flight */
        completion = completion_ref(&flight->completion);
    }
    set_fences(launch, completion);
    if (flight) {
        completion_listen(work_completion(launch->work), &flight->listener);
    }
    bool must_wait = option_choice(OPTION_SYNC) != 0 && !launch->is_transfer;
    shoal_status status = must_wait ? completion_wait(completion, DEADLINE_NEVER) : SHOAL_OK;
    completion_unref(completion);
    if (status != SHOAL_OK) {
        note_changes(launch);
    }
    return status;
}

shoal_status launch_end(struct launch *launch, shoal_status status)
{
    if (status == SHOAL_OK) {
        status = let_fly(launch);
    } else {
        drop_fences(launch);
        if (launch->flight) {
            completion_unref(&launch->flight->completion);
        }
    }
    free_launch(launch);
    return status;
}

/* What ranks compare ----------------------------------------------------------------------------------- */

/* Makes room for n more numbers. Returns NULL if memory runs out; launch_start then fails. */
static int64_t *say(struct launch *launch, size_t n)
{
    size_t needed = launch->n_details + n;
    if (needed > launch->details_capacity) {
        size_t capacity = 2 * needed;
        int64_t *details = mem_alloc(capacity * sizeof *details);
        if (!details) {
            launch->has_no_memory = true;
            return NULL;
        }
        memcpy(details, launch->details, launch->n_details * sizeof *details);
        if (launch->details != launch->inline_details) {
            mem_free(launch->details);
        }
        launch->details = details;
        launch->details_capacity = capacity;
    }
    launch->n_details = needed;
    return launch->details + needed - n;
}

void launch_say_numbers(struct launch *launch, const int64_t *numbers, size_t n)
{
    int64_t *item = say(launch, 1 + n);
    if (item) {
        item[0] = (int64_t)n;
        for (size_t i = 0; i < n; i++) {
            item[1 + i] = numbers[i];
        }
    }
}

void launch_say_shape(struct launch *launch, const shoal_tensor *tensor)
{
    launch_say_numbers(launch, tensor->layout.shape, (size_t)tensor->layout.n_dims);
}

void launch_say_number(struct launch *launch, int64_t number)
{
    int64_t *item = say(launch, 2);
    if (item) {
        item[0] = DETAIL_NUMBER;
        item[1] = number;
    }
}

/* The purpose of a collective that a gradient function makes also has the call on the group that it is the gradient
   of. So ranks that go back through two similar calls in different order get a mismatch. */
static struct purpose purpose_of(const struct launch *launch, enum launch_family family, char *words)
{
    static const char *const texts[LAUNCH_FAMILIES] = {
#define FAMILY(name, text) [LAUNCH_##name] = (text),
#include "collective/families.def"
#undef FAMILY
    };
    uint64_t noted = tape_noted(launch->group);
    if (noted > 0) {
        (void)snprintf(words, PURPOSE_WORDS_BYTES, "the gradient of call #%" PRIu64 ": %s", noted - 1,
                       texts[family]);
    }
    return (struct purpose){.id = PURPOSE_FUNCTIONAL,
                            .unit = (uint32_t)noted,
                            .argument = (uint32_t)family + 1,
                            .details = launch->details,
                            .n_details = launch->n_details,
                            .words = noted > 0 ? words : texts[family],
                            .has_lasting_words = noted == 0};
}

/* Notes the number of the call that was started, for its gradient. */
static shoal_status note_start(const struct launch *launch, shoal_status status)
{
    if (status == SHOAL_OK) {
        tape_note(launch->group, shoal_group_sequence(launch->group));
    }
    return status;
}

shoal_status launch_start(struct launch *launch, enum launch_family family, struct collective *call)
{
    char words[PURPOSE_WORDS_BYTES];
    if (launch->has_no_memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct purpose purpose = purpose_of(launch, family, words);
    call->purpose = &purpose;
    call->device = launch->device;
    return note_start(launch, collectives_start(launch->group, call, &launch->work));
}

shoal_status launch_start_list(struct launch *launch, enum launch_family family, struct collective *call,
                               const shoal_part *parts, size_t n_parts)
{
    char words[PURPOSE_WORDS_BYTES];
    if (launch->has_no_memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct purpose purpose = purpose_of(launch, family, words);
    call->purpose = &purpose;
    call->device = launch->device;
    return note_start(launch, collectives_start_list(launch->group, call, parts, n_parts, &launch->work));
}

/* Memory ----------------------------------------------------------------------------------------------- */

/* Block `rank` of n_ranks equal ones along a dimension. */
static struct layout narrow_to_block(const shoal_tensor *tensor, int dim, int n_ranks, int rank)
{
    struct layout layout = tensor->layout;
    layout.shape[dim] /= n_ranks;
    layout.offset += rank * layout.shape[dim] * layout.strides[dim];
    return layout;
}

/* Whether blocks along a dimension lie one after the other in a contiguous tensor. */
static bool is_outermost(const shoal_tensor *tensor, int dim)
{
    for (int i = 0; i < dim; i++) {
        if (tensor->layout.shape[i] != 1) {
            return false;
        }
    }
    return true;
}

static bool has_plain_blocks(const struct launch *launch, const shoal_tensor *tensor, int dim)
{
    return tensor->count == 0 ||
           (tensor->is_contiguous && (launch->n_ranks == 1 || is_outermost(tensor, dim)));
}

/* The address that a raw call takes: one of the tensor's device, which the call is told. */
static shoal_status find_data(const shoal_tensor *tensor, void **data_out)
{
    struct address address;
    TRY(tensor_address(tensor, &address));
    *data_out = address_pointer(address);
    return SHOAL_OK;
}

/* The tensors of a call are on one device, as the dispatcher has checked. Messages are of the host. */
static shoal_status take_device(struct launch *launch, const shoal_tensor *tensor)
{
    launch->device = (shoal_device)tensor->device;
    return launch->is_transfer && !device_is_host(launch->device)
               ? error_set(SHOAL_ERR_UNSUPPORTED,
                           "messages of tensors on device %s: only those of the cpu are sent",
                           device_name(launch->device))
               : SHOAL_OK;
}

/* Copies a view of the tensor into contiguous memory, at once. */
static shoal_status copy_out_of(const shoal_tensor *tensor, const struct layout *from, void *to_data)
{
    struct address base;
    int64_t strides[SHOAL_MAX_DIMS];
    TRY(storage_base(tensor->storage, &base));
    layout_fill_strides(from->n_dims, from->shape, strides);
    struct kernel_operand to = {.data = address_of(to_data), .strides = strides};
    struct kernel_operand source = {.data =
                                        address_add(base, from->offset * (int64_t)dtype_bytes(tensor->dtype)),
                                    .strides = from->strides};
    kernel_of((shoal_device)tensor->device)
        ->copy_nd(tensor->dtype, to, tensor->dtype, source, from->n_dims, from->shape);
    return SHOAL_OK;
}

shoal_status launch_input(struct launch *launch, shoal_tensor *tensor, const void **data_out)
{
    void *data;
    TRY(take_device(launch, tensor));
    if (tensor->is_contiguous) {
        TRY(find_data(tensor, &data));
        *data_out = data;
        return add_fence(launch, tensor->storage, tensor_span(tensor), /*is_write=*/false);
    }
    TRY(add_staging(launch, tensor_bytes(tensor), &data));
    *data_out = data;
    return copy_out_of(tensor, &tensor->layout, data);
}

shoal_status launch_input_blocks(struct launch *launch, shoal_tensor *tensor, int dim, const void **data_out)
{
    if (has_plain_blocks(launch, tensor, dim)) {
        return launch_input(launch, tensor, data_out);
    }
    void *data;
    size_t block_bytes = tensor_bytes(tensor) / (size_t)launch->n_ranks;
    TRY(take_device(launch, tensor));
    TRY(add_staging(launch, tensor_bytes(tensor), &data));
    for (int r = 0; r < launch->n_ranks; r++) {
        struct layout block = narrow_to_block(tensor, dim, launch->n_ranks, r);
        TRY(copy_out_of(tensor, &block, (char *)data + (size_t)r * block_bytes));
    }
    *data_out = data;
    return SHOAL_OK;
}

shoal_status launch_mark(struct launch *launch, shoal_tensor *tensor)
{
    TRY(storage_check_writable(tensor->storage));
    TRY(take_device(launch, tensor));
    return add_fence(launch, tensor->storage, tensor_span(tensor), /*is_write=*/true);
}

shoal_status launch_output(struct launch *launch, shoal_tensor *tensor, void **data_out)
{
    TRY(launch_mark(launch, tensor));
    if (tensor->is_contiguous) {
        return find_data(tensor, data_out);
    }
    TRY(add_staging(launch, tensor_bytes(tensor), data_out));
    return add_copy(launch, tensor, &tensor->layout, *data_out);
}

shoal_status launch_output_blocks(struct launch *launch, shoal_tensor *tensor, int dim, void **data_out)
{
    if (has_plain_blocks(launch, tensor, dim)) {
        return launch_output(launch, tensor, data_out);
    }
    size_t block_bytes = tensor_bytes(tensor) / (size_t)launch->n_ranks;
    TRY(launch_mark(launch, tensor));
    TRY(add_staging(launch, tensor_bytes(tensor), data_out));
    for (int r = 0; r < launch->n_ranks; r++) {
        struct layout block = narrow_to_block(tensor, dim, launch->n_ranks, r);
        TRY(add_copy(launch, tensor, &block, (char *)*data_out + (size_t)r * block_bytes));
    }
    return SHOAL_OK;
}

shoal_status launch_output_list(struct launch *launch, shoal_tensor *const *tensors, void **data_out)
{
    size_t block_bytes = tensor_bytes(tensors[0]);
    TRY(take_device(launch, tensors[0]));
    TRY(add_staging(launch, block_bytes * (size_t)launch->n_ranks, data_out));
    for (int r = 0; r < launch->n_ranks; r++) {
        TRY(launch_mark(launch, tensors[r]));
        TRY(add_copy(launch, tensors[r], &tensors[r]->layout, (char *)*data_out + (size_t)r * block_bytes));
    }
    return SHOAL_OK;
}

shoal_status launch_output_copy(struct launch *launch, shoal_tensor *tensor, const void *data)
{
    TRY(launch_mark(launch, tensor));
    return add_copy(launch, tensor, &tensor->layout, data);
}

shoal_status launch_in_place(struct launch *launch, shoal_tensor *tensor, void **data_out)
{
    TRY(launch_output(launch, tensor, data_out));
    return tensor->is_contiguous ? SHOAL_OK : copy_out_of(tensor, &tensor->layout, *data_out);
}
