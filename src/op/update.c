/* SPDX-License-Identifier: MIT */
/* Lists of tensors on one device: updates of parameters, scaling, the largest number. */
#include "shoal/update.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/lists.h"

/* Checks ----------------------------------------------------------------------------------------------- */

shoal_status op_check_listed(const shoal_tensor *tensor, shoal_device *device)
{
    if (handle_is_dead(tensor)) {
        return handle_fail(tensor);
    }
    shoal_device own = (shoal_device)tensor->device;
    if (!device_has_data(own)) {
        return error_set(SHOAL_ERR_STATE, "a tensor on device %s has no values", device_name(own));
    }
    if (*device == OP_NO_DEVICE) {
        *device = own;
    }
    return own == *device
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "it is on device %s, but tensors before it are on %s",
                           device_name(own), device_name(*device));
}

/* Lists ------------------------------------------------------------------------------------------------ */

shoal_status op_list_allocate(size_t capacity, struct op_list *list_out)
{
    *list_out = (struct op_list){.device = OP_NO_DEVICE};
    size_t bytes;
    if (__builtin_mul_overflow(capacity, sizeof list_out->entries[0], &bytes)) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for a list of %zu tensors", capacity);
    }
    list_out->entries = mem_alloc(bytes > 0 ? bytes : 1);
    list_out->pieces =
        list_out->entries ? mem_alloc(capacity > 0 ? capacity * sizeof list_out->pieces[0] : 1) : NULL;
    return list_out->pieces ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

shoal_status op_list_add(struct op_list *list, shoal_tensor *tensor, bool is_written)
{
    TRY(op_check_listed(tensor, &list->device));
    TRY(is_written ? tensor_wait_writable(tensor, /*overwrites=*/false) : tensor_wait_readable(tensor));
    struct op_list_entry *entry = &list->entries[list->n];
    TRY(op_flat_open(tensor, &entry->flat));
    entry->tensor = tensor;
    list->pieces[list->n] = (struct kernel_piece){
        .data = entry->flat.data, .count = (size_t)tensor->count, .dtype = tensor->dtype};
    list->n++;
    return SHOAL_OK;
}

shoal_status op_list_store(const struct op_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        TRY(op_flat_store(list->entries[i].tensor, &list->entries[i].flat));
        storage_bump_version(list->entries[i].tensor->storage);
    }
    return list->n > 0 ? op_check_device(list->device) : SHOAL_OK;
}

void op_list_free(struct op_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        op_flat_close(&list->entries[i].flat);
    }
    mem_free(list->entries);
    mem_free(list->pieces);
    *list = (struct op_list){.device = OP_NO_DEVICE};
}

/* op_list_free also when it failed. */
static shoal_status make_list(shoal_tensor *const *tensors, size_t n_tensors, bool is_written,
                              struct op_list *list)
{
    TRY(op_list_allocate(n_tensors, list));
    for (size_t i = 0; i < n_tensors; i++) {
        if (!tensors[i]) {
            return error_set(SHOAL_ERR_INVALID, "tensor %zu is NULL", i);
        }
        shoal_status status = op_list_add(list, tensors[i], is_written);
        if (status != SHOAL_OK) {
            return error_prefix(status, "tensor %zu", i);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_array(const char *name, const void *array, size_t count)
{
    return array || count == 0 ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "%s is NULL", name);
}

/* Numbers of lists ------------------------------------------------------------------------------------- */

static shoal_status scale(struct op_list *list, double factor)
{
    if (list->n == 0) {
        return SHOAL_OK;
    }
    TRY(kernel_of(list->device)->scale_list(list->pieces, list->n, factor));
    return op_list_store(list);
}

shoal_status shoal_scale_tensors(shoal_tensor *const *tensors, size_t n_tensors, double factor)
{
    struct op_list list = {.device = OP_NO_DEVICE};
    error_clear();
    shoal_status status = check_array("tensors", tensors, n_tensors);
    status = status == SHOAL_OK ? make_list(tensors, n_tensors, /*is_written=*/true, &list) : status;
    status = status == SHOAL_OK ? scale(&list, factor) : status;
    op_list_free(&list);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "scale_tensors");
}

shoal_status op_list_largest(const struct op_list *list, double *largest_out)
{
    struct memory *largest;
    *largest_out = 0.0;
    if (list->n == 0) {
        return SHOAL_OK;
    }
    TRY(memory_create(list->device, sizeof(double), &largest));
    const struct kernel_table *kernels = kernel_of(list->device);
    kernels->move(&(struct kernel_move){.dst = largest->base, .count = 1, .dst_dtype = SHOAL_F64}, 1);
    shoal_status status = kernels->largest_list(list->pieces, list->n, largest->base);
    if (status == SHOAL_OK) {
        status = op_read_bytes(list->device, largest_out, largest->base, sizeof *largest_out, 0.0);
    }
    memory_unref(largest);
    return status;
}

shoal_status shoal_find_largest(shoal_tensor *const *tensors, size_t n_tensors, double *largest_out)
{
    struct op_list list = {.device = OP_NO_DEVICE};
    double largest = 0.0;
    error_clear();
    shoal_status status = check_array("largest_out", largest_out, 1);
    status = status == SHOAL_OK ? check_array("tensors", tensors, n_tensors) : status;
    status = status == SHOAL_OK ? make_list(tensors, n_tensors, /*is_written=*/false, &list) : status;
    status = status == SHOAL_OK ? op_list_largest(&list, &largest) : status;
    op_list_free(&list);
    if (status != SHOAL_OK) {
        return error_prefix(status, "find_largest");
    }
    *largest_out = largest;
    return SHOAL_OK;
}

/* Updates ---------------------------------------------------------------------------------------------- */

static bool is_real(shoal_dtype dtype)
{
    return dtype_kind(dtype) == DTYPE_KIND_FLOAT;
}

static shoal_dtype computed_in(shoal_dtype dtype)
{
    return dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32;
}

/* A tensor of an update. `dtype` is the one that it must have, or 0. */
static shoal_status check_part(const char *name, const shoal_tensor *tensor, int64_t count, shoal_dtype dtype,
                               bool is_written, shoal_device *device)
{
    if (!tensor) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", name);
    }
    shoal_status status = op_check_listed(tensor, device);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", name);
    }
    if (!is_real(tensor->dtype)) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s: %s is not one of f64, f32, f16, bf16", name,
                         shoal_dtype_name(tensor->dtype));
    }
    if ((int)dtype != 0 && tensor->dtype != dtype) {
        return error_set(SHOAL_ERR_INVALID, "%s: %s, but it is computed in %s", name,
                         shoal_dtype_name(tensor->dtype), shoal_dtype_name(dtype));
    }
    if (tensor->count != count) {
        return error_set(SHOAL_ERR_INVALID, "%s: %lld elements, but the parameter has %lld", name,
                         (long long)tensor->count, (long long)count);
    }
    if (is_written && !tensor->is_contiguous) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s: it is not contiguous", name);
    }
    status = is_written ? tensor_wait_writable(tensor, /*overwrites=*/false) : tensor_wait_readable(tensor);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", name);
}

static shoal_status check_update(shoal_update_rule rule, const shoal_update *update, shoal_device *device)
{
    const shoal_tensor *parameter = update->parameter;
    if (!parameter) {
        return error_set(SHOAL_ERR_INVALID, "parameter is NULL");
    }
    const int64_t count = parameter->count;
    TRY(check_part("parameter", parameter, count, (shoal_dtype)0, /*is_written=*/true, device));
    TRY(check_part("gradient", update->gradient, count, (shoal_dtype)0, /*is_written=*/false, device));
    if (rule != SHOAL_UPDATE_ADAMW) {
        return SHOAL_OK;
    }
    const shoal_dtype real = computed_in(parameter->dtype);
    TRY(check_part("first_moment", update->first_moment, count, real, /*is_written=*/true, device));
    return check_part("second_moment", update->second_moment, count, real, /*is_written=*/true, device);
}

/* An update that was checked. `flat` becomes its gradient. */
static shoal_status describe(shoal_update_rule rule, const shoal_update *update, struct op_flat *flat,
                             struct kernel_update *described)
{
    *described = (struct kernel_update){.count = (size_t)update->parameter->count,
                                        .dtype = update->parameter->dtype,
                                        .gradient_dtype = update->gradient->dtype,
                                        .rates = {.lr = update->lr,
                                                  .decay = update->decay,
                                                  .beta1 = update->beta1,
                                                  .one_minus_beta1 = update->one_minus_beta1,
                                                  .beta2 = update->beta2,
                                                  .one_minus_beta2 = update->one_minus_beta2,
                                                  .step = update->step,
                                                  .root = update->root,
                                                  .eps = update->eps}};
    TRY(tensor_address(update->parameter, &described->data));
    if (rule == SHOAL_UPDATE_ADAMW) {
        TRY(tensor_address(update->first_moment, &described->moments[0]));
        TRY(tensor_address(update->second_moment, &described->moments[1]));
    }
    TRY(op_flat_open(update->gradient, flat));
    described->gradient = flat->data;
    return SHOAL_OK;
}

static void bump_versions(shoal_update_rule rule, const shoal_update *update)
{
    storage_bump_version(update->parameter->storage);
    if (rule == SHOAL_UPDATE_ADAMW) {
        storage_bump_version(update->first_moment->storage);
        storage_bump_version(update->second_moment->storage);
    }
}

/* Memory of one call: what kernels are told, and gradients one after the other. */
struct updating {
    struct kernel_update *described;
    struct op_flat *flats;
    size_t n; /* of both */
};

static shoal_status run_updates(shoal_update_rule rule, const shoal_update *updates, size_t n_updates,
                                struct updating *updating)
{
    shoal_device device = OP_NO_DEVICE;
    for (size_t i = 0; i < n_updates; i++) {
        shoal_status status = check_update(rule, &updates[i], &device);
        if (status != SHOAL_OK) {
            return error_prefix(status, "update %zu", i);
        }
    }
    for (; updating->n < n_updates; updating->n++) {
        TRY(describe(rule, &updates[updating->n], &updating->flats[updating->n],
                     &updating->described[updating->n]));
    }
    TRY(kernel_of(device)->update(rule == SHOAL_UPDATE_SGD ? KERNEL_SGD : KERNEL_ADAMW, updating->described,
                                  n_updates));
    for (size_t i = 0; i < n_updates; i++) {
        bump_versions(rule, &updates[i]);
    }
    return op_check_device(device);
}

static shoal_status update_all(shoal_update_rule rule, const shoal_update *updates, size_t n_updates)
{
    if (rule != SHOAL_UPDATE_SGD && rule != SHOAL_UPDATE_ADAMW) {
        return error_set(SHOAL_ERR_INVALID, "rule: %d is not a shoal_update_rule", (int)rule);
    }
    TRY(check_array("updates", updates, n_updates));
    if (n_updates == 0) {
        return SHOAL_OK;
    }
    if (n_updates > SIZE_MAX / sizeof(struct kernel_update)) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu updates", n_updates);
    }
    struct updating updating = {.described = mem_alloc(n_updates * sizeof updating.described[0]),
                                .flats = mem_alloc(n_updates * sizeof updating.flats[0])};
    shoal_status status = updating.described && updating.flats
                              ? run_updates(rule, updates, n_updates, &updating)
                              : SHOAL_ERR_NO_MEMORY;
    for (size_t i = 0; i < updating.n; i++) {
        op_flat_close(&updating.flats[i]);
    }
    mem_free(updating.described);
    mem_free(updating.flats);
    return status;
}

shoal_status shoal_update_parameters(shoal_update_rule rule, const shoal_update *updates, size_t n_updates)
{
    error_clear();
    shoal_status status = update_all(rule, updates, n_updates);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "update_parameters");
}
