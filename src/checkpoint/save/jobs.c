/* SPDX-License-Identifier: MIT */
/* Files of a save, and what this rank writes into them: what both formats need. */
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/safetensors/layout.h"
#include "checkpoint/save/save.h"
#include "tensor/dtype.h"

shoal_status save_add_file(struct save *save, const char *name, shoal_safetensors_layout *layout)
{
    struct save_file *file = &save->files[save->n_files];
    *file = (struct save_file){.layout = layout};
    save->n_files++; /* from here on save_end frees the layout */
    TRY(safetensors_layout_arrange(layout));
    file->bytes = layout->file_bytes;
    file->name = mem_copy_string(name);
    return file->name ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

shoal_status save_add_job(struct save *save, const struct save_job *job)
{
    TRY(mem_grow((void **)&save->jobs, &save->job_capacity, save->n_jobs + 1, sizeof(save->jobs[0])));
    save->jobs[save->n_jobs++] = *job;
    return SHOAL_OK;
}

shoal_status save_add_header_job(struct save *save, size_t file)
{
    const shoal_safetensors_layout *layout = save->files[file].layout;
    struct save_job job = {.file = file,
                           .bytes = layout->header_bytes,
                           .data = layout->header,
                           .dtype = SHOAL_U8,
                           .n_dims = 1,
                           .shape = {(int64_t)layout->header_bytes},
                           .strides = {1}};
    return save_add_job(save, &job);
}

/* Opens the part. A copy of what is on a device is made once, and kept until the jobs are done. */
static shoal_status open_part(struct save *save, size_t tensor, struct item_part *part_out)
{
    if (save->copies && save->copies[tensor].copy) {
        *part_out = save->copies[tensor];
        return SHOAL_OK;
    }
    TRY(items_part(save->items, tensor, shoal_group_timeout(save->group), part_out));
    if (!part_out->copy) {
        return SHOAL_OK;
    }
    if (!save->copies) {
        save->copies = mem_alloc_zeroed(save->table.n_tensors, sizeof save->copies[0]);
    }
    if (!save->copies) {
        items_part_close(part_out);
        return SHOAL_ERR_NO_MEMORY;
    }
    save->copies[tensor] = *part_out;
    return SHOAL_OK;
}

void save_drop_copies(struct save *save)
{
    for (size_t i = 0; save->copies && i < save->table.n_tensors; i++) {
        items_part_close(&save->copies[i]);
    }
    mem_free(save->copies);
    save->copies = NULL;
}

shoal_status save_find_source(struct save *save, size_t tensor, const struct region *region,
                              struct save_job *job_out)
{
    const struct table_tensor *row = &save->table.tensors[tensor];
    struct item_part part;
    TRY(open_part(save, tensor, &part));
    struct save_job job = {.dtype = row->dtype, .n_dims = row->n_dims};
    int64_t offset = 0;
    for (int i = 0; i < row->n_dims; i++) {
        offset += (region->begin[i] - part.region.begin[i]) * part.strides[i];
        job.shape[i] = region->length[i];
        job.strides[i] = part.strides[i];
    }
    job.data = (const char *)part.data + offset * (int64_t)dtype_bytes(row->dtype);
    job.bytes = (uint64_t)region_count(region, row->n_dims) * dtype_bytes(row->dtype);
    *job_out = job;
    return SHOAL_OK;
}

shoal_status save_add_piece_job(struct save *save, const struct split_piece *piece, size_t file, uint64_t at)
{
    struct save_job job;
    TRY(save_find_source(save, piece->tensor, &piece->region, &job));
    job.file = file;
    job.at = at;
    return save_add_job(save, &job);
}
