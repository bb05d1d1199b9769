/* SPDX-License-Identifier: MIT */
/* Tensors: making them, their properties, and access to their data. */
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "device/device.h"
#include "tensor/block.h"
#include "tensor/dtype.h"
#include "tensor/handle.h"
#include "tensor/scope.h"
#include "tensor/slab.h"

/* Making ----------------------------------------------------------------------------------------------- */

/* Fills in everything but the layout and what follows from it. Takes over the reference on the storage. */
static void init_plain(shoal_tensor *tensor, struct block *block, struct storage *storage, shoal_dtype dtype,
                       int64_t count)
{
    atomic_init(&tensor->references, 1);
    tensor->dtype = dtype;
    tensor->device = (uint8_t)storage->device;
    tensor->is_view = false;
    tensor->is_detached = false;
    tensor->is_dead = false;
    tensor->has_landed = false;
    tensor->is_cut = false;
    tensor->is_replaced = false;
    tensor->is_averaged = false;
    tensor->count = count;
    tensor->storage = storage;
    tensor->history = NULL;
    tensor->block = block;
    atomic_init(&tensor->owner, NULL);
    tensor->owner_index = 0;
}

/* Makes a tensor in the caller's memory. Takes over the reference on the storage. */
static void init_tensor(shoal_tensor *tensor, struct block *block, struct storage *storage, shoal_dtype dtype,
                        const struct layout *layout, int64_t count)
{
    init_plain(tensor, block, storage, dtype, count);
    tensor->is_contiguous = layout_is_contiguous(layout->n_dims, layout->shape, layout->strides);
    layout_copy(&tensor->layout, layout);
}

/* A tensor over an existing storage, such as a view, in a reusable block: such tensors are as short-lived as
   results. */
struct view {
    struct block block;
    shoal_tensor tensor;
};

static struct view *allocate_view(shoal_device device)
{
    struct view *view = (struct view *)(device_has_data(device) ? block_create(sizeof *view)
                                                                : block_create_lasting(sizeof *view));
    if (view) {
        atomic_init(&view->block.objects, 1);
    }
    return view;
}

shoal_status tensor_create(struct storage *storage, shoal_dtype dtype, const struct layout *layout,
                           shoal_tensor **tensor_out)
{
    int64_t count = 0;
    shoal_status status = layout_count(layout->n_dims, layout->shape, &count);
    struct view *view = status == SHOAL_OK ? allocate_view(storage->device) : NULL;
    if (!view) {
        storage_unref(storage);
        return status == SHOAL_OK ? SHOAL_ERR_NO_MEMORY : status;
    }
    init_tensor(&view->tensor, &view->block, storage, dtype, layout, count);
    *tensor_out = &view->tensor;
    return SHOAL_OK;
}

static shoal_status count_bytes(shoal_dtype dtype, int64_t count, size_t *bytes_out)
{
    size_t bytes = 0;
    if (!mem_multiply((size_t)count, dtype_bytes(dtype), &bytes) || bytes > PTRDIFF_MAX) {
        return error_set(SHOAL_ERR_INVALID,
                         "shape: %" PRId64 " elements of %s are more bytes than can be addressed", count,
                         shoal_dtype_name(dtype));
    }
    *bytes_out = bytes;
    return SHOAL_OK;
}

/* A tensor with a storage of its own, and its data if that is small. */
struct fresh {
    struct block block; /* first: the block's address is the allocation's */
    shoal_tensor tensor;
    struct storage storage;
    struct memory memory;
    alignas(max_align_t) char data[];
};

/* Data up to this size lies in the block. It is freed only with the block, so it must be small. */
#define FRESH_DATA_BYTES 1024

/* The memory of a fresh tensor: inside the block, apart, or none on devices without data. */
static shoal_status fill_memory(struct fresh *fresh, shoal_device device, size_t bytes,
                                struct memory **memory_out)
{
    *memory_out = NULL;
    if (!device_has_data(device)) {
        return SHOAL_OK;
    }
    if (bytes > FRESH_DATA_BYTES || !device_is_host(device)) {
        return memory_create(device, bytes, memory_out);
    }
    uintptr_t alignment = bytes < MEM_DATA_ALIGNMENT ? alignof(max_align_t) : MEM_DATA_ALIGNMENT;
    uintptr_t data = ((uintptr_t)fresh->data + alignment - 1) & ~(alignment - 1);
    memory_init(&fresh->memory, &fresh->block, address_of((void *)data));
    *memory_out = &fresh->memory;
    return SHOAL_OK;
}

/* Gives the contiguous layout of a shape, its number of elements, and its bytes. */
static shoal_status lay_out(shoal_dtype dtype, int n_dims, const int64_t *shape, struct layout *layout,
                            int64_t *count_out, size_t *bytes_out)
{
    TRY(dtype_check(dtype, "dtype"));
    TRY(layout_count(n_dims, shape, count_out));
    TRY(count_bytes(dtype, *count_out, bytes_out));
    layout->n_dims = n_dims;
    layout->offset = 0;
    for (int i = 0; i < n_dims; i++) {
        layout->shape[i] = shape[i];
    }
    layout_fill_strides(n_dims, layout->shape, layout->strides);
    return SHOAL_OK;
}

shoal_status tensor_create_traced(shoal_device device, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                  const char *traced_op, shoal_tensor **tensor_out)
{
    int64_t count = 0;
    size_t bytes = 0;
    struct layout layout;
    TRY(lay_out(dtype, n_dims, shape, &layout, &count, &bytes));
    struct fresh *fresh = (struct fresh *)block_create(sizeof(*fresh));
    if (!fresh) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&fresh->block.objects, 2);
    storage_init(&fresh->storage, &fresh->block, device, bytes, NULL);
    fresh->storage.traced_op = traced_op;
    init_tensor(&fresh->tensor, &fresh->block, &fresh->storage, dtype, &layout, count);
    *tensor_out = &fresh->tensor;
    return SHOAL_OK;
}

shoal_status tensor_create_empty(shoal_device device, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                 shoal_tensor **tensor_out)
{
    int64_t count = 0;
    size_t bytes = 0;
    struct layout layout;
    TRY(lay_out(dtype, n_dims, shape, &layout, &count, &bytes));
    bool has_data = device_has_data(device);
    size_t inside = device_is_host(device) && bytes <= FRESH_DATA_BYTES ? bytes + MEM_DATA_ALIGNMENT : 0;
    struct fresh *fresh = (struct fresh *)(has_data ? block_create(sizeof(*fresh) + inside)
                                                    : block_create_lasting(offsetof(struct fresh, memory)));
    if (!fresh) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct memory *memory;
    shoal_status status = fill_memory(fresh, device, bytes, &memory);
    if (status != SHOAL_OK) {
        atomic_init(&fresh->block.objects, 1);
        block_free(&fresh->block, fresh);
        return status;
    }
    atomic_init(&fresh->block.objects, memory == &fresh->memory ? 3 : 2);
    storage_init(&fresh->storage, &fresh->block, device, bytes, memory);
    init_tensor(&fresh->tensor, &fresh->block, &fresh->storage, dtype, &layout, count);
    *tensor_out = &fresh->tensor;
    return SHOAL_OK;
}

/* A tensor of the meta device and its storage, in a block of a slab. */
struct shape {
    shoal_tensor tensor;
    struct storage storage;
};

shoal_status tensor_create_shape(struct slab *slab, shoal_dtype dtype, int n_dims, const int64_t *shape,
                                 shoal_tensor **tensor_out)
{
    int64_t count = 0;
    size_t bytes = 0;
    struct layout layout;
    struct block *block;
    TRY(lay_out(dtype, n_dims, shape, &layout, &count, &bytes));
    struct shape *made = slab_alloc(slab, sizeof(*made), 2, &block);
    if (!made) {
        return SHOAL_ERR_NO_MEMORY;
    }
    storage_init(&made->storage, block, SHOAL_META, bytes, NULL);
    init_tensor(&made->tensor, block, &made->storage, dtype, &layout, count);
    *tensor_out = &made->tensor;
    return SHOAL_OK;
}

shoal_status tensor_check_bounds(size_t storage_bytes, shoal_dtype dtype, const struct layout *layout)
{
    int64_t first;
    int64_t end;
    TRY(layout_extent(layout->n_dims, layout->shape, layout->strides, layout->offset, &first, &end));
    int64_t capacity = (int64_t)(storage_bytes / dtype_bytes(dtype));
    if (first != end && (first < 0 || end > capacity)) {
        char shape[LAYOUT_TEXT_BYTES];
        char strides[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID,
                         "shape %s with strides %s at offset %" PRId64 " touches elements %" PRId64
                         "..%" PRId64 " of a storage of %" PRId64,
                         layout_format(shape, layout->n_dims, layout->shape),
                         layout_format(strides, layout->n_dims, layout->strides), layout->offset, first,
                         end - 1, capacity);
    }
    return SHOAL_OK;
}

/* The memory is aligned for the dtype. */
static shoal_status create_view(shoal_tensor *base, shoal_dtype dtype, const struct layout *layout,
                                shoal_tensor **tensor_out)
{
    TRY(tensor_check_bounds(base->storage->bytes, dtype, layout));
    TRY(tensor_create(storage_ref(base->storage), dtype, layout, tensor_out));
    (*tensor_out)->is_view = true;
    return SHOAL_OK;
}

shoal_status tensor_create_view(shoal_tensor *base, const struct layout *layout, shoal_tensor **tensor_out)
{
    return create_view(base, base->dtype, layout, tensor_out);
}

shoal_status tensor_create_alias(shoal_tensor *base, shoal_tensor **tensor_out)
{
    struct view *view = allocate_view(base->storage->device);
    if (!view) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_tensor *tensor = &view->tensor;
    init_plain(tensor, &view->block, storage_ref(base->storage), base->dtype, base->count);
    tensor->is_contiguous = base->is_contiguous;
    tensor->is_view = true;
    layout_copy(&tensor->layout, &base->layout);
    *tensor_out = tensor;
    return SHOAL_OK;
}

shoal_status tensor_create_shape_view(struct slab *slab, shoal_tensor *base, const struct layout *layout,
                                      int64_t count, shoal_tensor **tensor_out)
{
    struct block *block;
    TRY(tensor_check_bounds(base->storage->bytes, base->dtype, layout));
    shoal_tensor *tensor = slab_alloc(slab, sizeof(*tensor), 1, &block);
    if (!tensor) {
        return SHOAL_ERR_NO_MEMORY;
    }
    init_tensor(tensor, block, storage_ref(base->storage), base->dtype, layout, count);
    tensor->is_view = true;
    *tensor_out = tensor;
    return SHOAL_OK;
}

shoal_status tensor_create_shape_dense(struct slab *slab, shoal_tensor *base, int n_dims,
                                       const int64_t *shape, shoal_tensor **tensor_out)
{
    struct block *block;
    shoal_tensor *tensor = slab_alloc(slab, sizeof(*tensor), 1, &block);
    if (!tensor) {
        return SHOAL_ERR_NO_MEMORY;
    }
    init_plain(tensor, block, storage_ref(base->storage), base->dtype, base->count);
    tensor->is_contiguous = true;
    tensor->is_view = true;
    tensor->is_detached = true;
    tensor->layout.n_dims = n_dims;
    tensor->layout.offset = base->layout.offset;
    for (int i = 0; i < n_dims; i++) {
        tensor->layout.shape[i] = shape[i];
    }
    layout_fill_strides(n_dims, shape, tensor->layout.strides);
    *tensor_out = tensor;
    return SHOAL_OK;
}

shoal_status tensor_create_view_as(shoal_tensor *base, shoal_dtype dtype, const struct layout *layout,
                                   shoal_tensor **tensor_out)
{
    TRY(storage_need_alignment(base->storage, dtype_rows[dtype].alignment));
    return create_view(base, dtype, layout, tensor_out);
}

static shoal_status create_from_memory(shoal_device device, void *data, shoal_dtype dtype, int n_dims,
                                       const int64_t *shape, const int64_t *strides,
                                       shoal_tensor **tensor_out)
{
    int64_t count;
    size_t bytes = 0;
    TRY(device_check(device, "device"));
    TRY(device_check_process(device));
    if (!device_has_data(device)) {
        return error_set(SHOAL_ERR_INVALID, "device: tensors on %s have no data", device_name(device));
    }
    TRY(dtype_check(dtype, "dtype"));
    TRY(layout_count(n_dims, shape, &count));
    TRY(count_bytes(dtype, count, &bytes));
    if (!data && count > 0) {
        return error_set(SHOAL_ERR_INVALID, "data is NULL for %" PRId64 " elements", count);
    }
    if ((uintptr_t)data % dtype_rows[dtype].alignment != 0) {
        return error_set(SHOAL_ERR_INVALID, "data: address %p is not aligned for %s", data,
                         shoal_dtype_name(dtype));
    }
    struct layout layout = {.n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) {
        layout.shape[i] = shape[i];
        layout.strides[i] = strides ? strides[i] : 0;
    }
    /* Strides of a tensor without elements are never used, but must not overflow when they are multiplied. */
    if (!strides || count == 0) {
        layout_fill_strides(n_dims, layout.shape, layout.strides);
    }
    /* Negative strides reach below `data`: the storage starts at the lowest element. */
    int64_t first;
    int64_t end;
    TRY(layout_extent(n_dims, layout.shape, layout.strides, 0, &first, &end));
    int64_t span;
    if (__builtin_sub_overflow(end, first, &span)) {
        return error_set(SHOAL_ERR_INVALID, "strides: elements %" PRId64 "..%" PRId64 " are too far apart",
                         first, end - 1);
    }
    TRY(count_bytes(dtype, span, &bytes));
    layout.offset = -first;
    char *lowest = (char *)data + (first < 0 ? first * (int64_t)dtype_bytes(dtype) : 0);
    struct storage *storage;
    TRY(storage_create_borrowed(device, bytes, address_of(lowest), NULL, NULL, &storage));
    return tensor_create(storage, dtype, &layout, tensor_out);
}

/* As tensor_from_memory; nobody else uses memory that has a deleter. */
static shoal_tensor *make_from_memory(const char *call, shoal_device device, void *data, const int64_t *shape,
                                      int n_dims, shoal_dtype dtype, const int64_t *strides,
                                      shoal_deleter deleter, void *deleter_context)
{
    shoal_tensor *tensor =
        tensor_from_memory(call, device, data, shape, n_dims, dtype, strides, deleter, deleter_context);
    if (tensor) {
        tensor->storage->is_handed_over = deleter != NULL;
    }
    return tensor;
}

shoal_tensor *shoal_from_memory(void *data, const int64_t *shape, int n_dims, shoal_dtype dtype,
                                const int64_t *strides, shoal_deleter deleter, void *deleter_context)
{
    return make_from_memory("from_memory", SHOAL_CPU, data, shape, n_dims, dtype, strides, deleter,
                            deleter_context);
}

shoal_tensor *shoal_from_device_memory(shoal_device device, void *data, const int64_t *shape, int n_dims,
                                       shoal_dtype dtype, const int64_t *strides, shoal_deleter deleter,
                                       void *deleter_context)
{
    return make_from_memory("from_device_memory", device, data, shape, n_dims, dtype, strides, deleter,
                            deleter_context);
}

shoal_tensor *tensor_from_memory(const char *call, shoal_device device, void *data, const int64_t *shape,
                                 int n_dims, shoal_dtype dtype, const int64_t *strides, shoal_deleter deleter,
                                 void *deleter_context)
{
    shoal_tensor *tensor;
    shoal_status status = scope_enter();
    if (status != SHOAL_OK) {
        return NULL;
    }
    /* The deleter is attached last: a failure before that leaves the memory with the caller. */
    status = create_from_memory(device, data, dtype, n_dims, shape, strides, &tensor);
    if (status != SHOAL_OK) {
        scope_fail(error_prefix(status, "%s", call));
        return NULL;
    }
    if (!scope_adopt(tensor)) {
        return NULL;
    }
    struct memory *memory = tensor->storage->memory;
    tensor->storage->is_of_traced = scope_current()->tracer != NULL;
    memory->deleter = deleter;
    memory->deleter_context = deleter_context;
    memory->waits_for_device = !device_is_host(device);
    memory->given = data;
    return tensor;
}

/* Memory, name ----------------------------------------------------------------------------------------- */

static shoal_status check_tensor(const char *function, const shoal_tensor *tensor)
{
    if (!tensor) {
        return scope_fail_null(function, "tensor");
    }
    error_clear();
    return handle_is_dead(tensor) ? error_prefix(handle_fail(tensor), "%s", function) : SHOAL_OK;
}

/* The memory of a read-only storage must not be replaced either. */
static shoal_status check_memory(const char *call, const shoal_tensor *tensor)
{
    TRY(check_tensor(call, tensor));
    shoal_status status = storage_check_writable(tensor->storage);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

shoal_status shoal_tensor_release_data(shoal_tensor *tensor)
{
    TRY(check_memory("release_data", tensor));
    return storage_release(tensor->storage);
}

shoal_status shoal_tensor_rebind_data(shoal_tensor *tensor, void *data, shoal_deleter deleter,
                                      void *deleter_context)
{
    TRY(check_memory("rebind_data", tensor));
    if ((uintptr_t)data % dtype_rows[tensor->dtype].alignment != 0) {
        return error_set(SHOAL_ERR_INVALID, "rebind_data: data: address %p is not aligned for %s", data,
                         shoal_dtype_name(tensor->dtype));
    }
    if (data && device_has_data(tensor->storage->device) && !device_is_host(tensor->storage->device)) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "rebind_data: data: memory of the host, but the tensor is on device %s",
                         device_name(tensor->storage->device));
    }
    return storage_rebind(tensor->storage, address_of(data), deleter, deleter_context);
}

shoal_status shoal_tensor_set_name(shoal_tensor *tensor, const char *name)
{
    TRY(check_tensor("set_name", tensor));
    return storage_set_name(tensor->storage, name);
}

/* Data ------------------------------------------------------------------------------------------------- */

static int64_t first_byte(const shoal_tensor *tensor)
{
    return tensor->layout.offset * (int64_t)dtype_bytes(tensor->dtype);
}

shoal_status tensor_address(const shoal_tensor *tensor, struct address *address_out)
{
    TRY(storage_base(tensor->storage, address_out));
    *address_out = address_add(*address_out, first_byte(tensor));
    return SHOAL_OK;
}

shoal_status tensor_host_address(const shoal_tensor *tensor, void **address_out)
{
    TRY(storage_host_base(tensor->storage, address_out));
    *address_out = (char *)*address_out + first_byte(tensor);
    return SHOAL_OK;
}

const void *shoal_data(const shoal_tensor *tensor)
{
    void *address;
    if (check_tensor("data", tensor) != SHOAL_OK || tensor_wait_readable(tensor) != SHOAL_OK ||
        tensor_host_address(tensor, &address) != SHOAL_OK) {
        return NULL;
    }
    return address;
}

void *shoal_mutable_data(shoal_tensor *tensor)
{
    void *address;
    if (check_tensor("mutable_data", tensor) != SHOAL_OK ||
        tensor_wait_writable(tensor, /*overwrites=*/false) != SHOAL_OK ||
        tensor_host_address(tensor, &address) != SHOAL_OK) {
        return NULL;
    }
    storage_bump_version(tensor->storage);
    return address;
}

static shoal_status device_address(const char *call, const shoal_tensor *tensor, void **data_out)
{
    struct address address;
    shoal_status status = tensor_address(tensor, &address);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", call);
    }
    *data_out = address_pointer(address);
    return SHOAL_OK;
}

shoal_status shoal_device_data(const shoal_tensor *tensor, const void **data_out)
{
    static const char call[] = "device_data";
    void *data = NULL;
    error_clear();
    TRY(check_tensor(call, tensor));
    TRY(data_out ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "%s: data_out is NULL", call));
    TRY(tensor_wait_readable(tensor));
    TRY(device_address(call, tensor, &data));
    *data_out = data;
    return SHOAL_OK;
}

shoal_status shoal_device_mutable_data(shoal_tensor *tensor, void **data_out)
{
    static const char call[] = "device_mutable_data";
    error_clear();
    TRY(check_tensor(call, tensor));
    TRY(data_out ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "%s: data_out is NULL", call));
    TRY(tensor_wait_writable(tensor, /*overwrites=*/false));
    TRY(device_address(call, tensor, data_out));
    storage_bump_version(tensor->storage);
    return SHOAL_OK;
}

shoal_status shoal_wait(const shoal_tensor *tensor)
{
    TRY(check_tensor("wait", tensor));
    return tensor_wait_readable(tensor);
}

/* Asking ----------------------------------------------------------------------------------------------- */

shoal_dtype shoal_tensor_dtype(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) ? tensor->dtype : (shoal_dtype)0;
}

shoal_device shoal_tensor_device(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) ? tensor->storage->device : SHOAL_CPU;
}

int shoal_tensor_n_dims(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) ? tensor->layout.n_dims : 0;
}

const int64_t *shoal_tensor_shape(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) ? tensor->layout.shape : NULL;
}

const int64_t *shoal_tensor_strides(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) ? tensor->layout.strides : NULL;
}

int64_t shoal_tensor_offset(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) ? tensor->layout.offset : 0;
}

int64_t shoal_tensor_count(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) ? tensor->count : 0;
}

bool shoal_tensor_is_contiguous(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) && tensor->is_contiguous;
}

bool shoal_tensor_is_complete(const shoal_tensor *tensor)
{
    if (!handle_is_alive(tensor) || (tensor->storage->traced_op && !tensor->storage->memory)) {
        return false;
    }
    return !storage_has_fences(tensor->storage) ||
           storage_test_readable_in(tensor->storage, tensor_span(tensor));
}

uint64_t shoal_tensor_version(const shoal_tensor *tensor)
{
    /* Relaxed: versions are compared by the thread that owns the tensor. */
    return handle_is_alive(tensor) ? atomic_load_explicit(&tensor->storage->version, memory_order_relaxed)
                                   : 0;
}

bool shoal_tensor_shares_storage(const shoal_tensor *a, const shoal_tensor *b)
{
    return handle_is_alive(a) && handle_is_alive(b) && a->storage == b->storage;
}

const char *shoal_tensor_name(const shoal_tensor *tensor)
{
    return handle_is_alive(tensor) && tensor->storage->name ? tensor->storage->name : "";
}

const char *tensor_format(char text[TENSOR_TEXT_BYTES], const shoal_tensor *tensor)
{
    char shape[LAYOUT_TEXT_BYTES];
    (void)snprintf(text, TENSOR_TEXT_BYTES, "%s %s", shoal_dtype_name(tensor->dtype),
                   layout_format(shape, tensor->layout.n_dims, tensor->layout.shape));
    return text;
}
