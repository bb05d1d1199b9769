/* SPDX-License-Identifier: MIT */
#include "cases.h"

#include "driver.h"
#include "tensor/dtype.h"

#define BF16 SHOAL_BF16
#define F32 SHOAL_F32

#define LLAMA(name, kind, n_ranks, dst, src, aligned, bar, bound)                                    \
    {                                                                                                \
        name " Llama-8B " #n_ranks, kind, MODEL_LLAMA, n_ranks, dst, src, aligned, false, bar, bound \
    }
#define GPT2(name, kind, dst, src, warm, bar, bound)                 \
    {                                                                \
        name, kind, MODEL_GPT2, 8, dst, src, false, warm, bar, bound \
    }

/* The names are those of bench/gpu/torch_kernels.py, too. */
const struct case_row case_rows[] = {
    {"memcpy 4 GiB", CASE_MEMCPY, MODEL_NONE, 1, SHOAL_U8, SHOAL_U8, false, false, BAR_NONE, 0},
    {"flat copy 4 GiB", CASE_FLAT, MODEL_NONE, 1, SHOAL_U8, SHOAL_U8, false, false, BAR_NONE, 0},
    LLAMA("pack bf16->f32", CASE_PACK, 8, F32, BF16, false, BAR_CEILING, 0.95),
    LLAMA("pack bf16", CASE_PACK, 8, BF16, BF16, false, BAR_CEILING, 0.95),
    LLAMA("unpack bf16", CASE_UNPACK, 8, BF16, BF16, false, BAR_CEILING, 0.95),
    LLAMA("cast f32->bf16", CASE_CAST, 8, BF16, F32, false, BAR_CEILING, 0.92),
    LLAMA("pack bf16->f32 aligned", CASE_PACK, 1024, F32, BF16, true, BAR_CEILING, 0.92),
    LLAMA("pack bf16 aligned", CASE_PACK, 1024, BF16, BF16, true, BAR_CEILING, 0.92),
    LLAMA("unpack bf16 aligned", CASE_UNPACK, 1024, BF16, BF16, true, BAR_CEILING, 0.92),
    LLAMA("cast f32->bf16", CASE_CAST, 1024, BF16, F32, false, BAR_NONE, 0),
    LLAMA("pack bf16->f32", CASE_PACK, 1024, F32, BF16, false, BAR_NONE, 0),
    LLAMA("pack bf16", CASE_PACK, 1024, BF16, BF16, false, BAR_NONE, 0),
    LLAMA("unpack bf16", CASE_UNPACK, 1024, BF16, BF16, false, BAR_NONE, 0),
    GPT2("pack bf16->f32 GPT-2 cold", CASE_PACK, F32, BF16, false, BAR_FLAT, 1.1),
    GPT2("pack bf16 GPT-2 cold", CASE_PACK, BF16, BF16, false, BAR_FLAT, 1.1),
    GPT2("unpack bf16 GPT-2 cold", CASE_UNPACK, BF16, BF16, false, BAR_FLAT, 1.1),
    GPT2("pack bf16->f32 GPT-2 warm", CASE_PACK, F32, BF16, true, BAR_NONE, 0),
    GPT2("pack bf16 GPT-2 warm", CASE_PACK, BF16, BF16, true, BAR_NONE, 0),
    GPT2("unpack bf16 GPT-2 warm", CASE_UNPACK, BF16, BF16, true, BAR_NONE, 0),
    {"reduce 8 x 64 MB bf16", CASE_REDUCE, MODEL_NONE, 1, BF16, BF16, false, false, BAR_CEILING, 0.95},
    {"reduce 8 x 64 MB f32", CASE_REDUCE, MODEL_NONE, 1, F32, F32, false, false, BAR_CEILING, 0.95},
    {"AdamW GPT-2 124M", CASE_ADAMW, MODEL_GPT2_WHOLE, 1, F32, F32, false, false, BAR_BYTES, 1.15},
    {"squares GPT-2 124M", CASE_SQUARES, MODEL_GPT2_WHOLE, 1, F32, F32, false, false, BAR_NONE, 0},
};
const size_t case_n_rows = sizeof case_rows / sizeof case_rows[0];

#define LARGE(name, kind, n_ranks, dst, src)                                 \
    {                                                                        \
        name, kind, MODEL_LARGE, n_ranks, dst, src, false, true, BAR_NONE, 0 \
    }

const struct case_row case_large_rows[] = {
    LARGE("pack bf16, large", CASE_PACK, 3, BF16, BF16),
    LARGE("pack bf16->f32, large", CASE_PACK, 3, F32, BF16),
    LARGE("unpack bf16, large", CASE_UNPACK, 3, BF16, BF16),
    LARGE("cast f32->bf16, large", CASE_CAST, 1, BF16, F32),
    LARGE("SGD, large", CASE_SGD, 1, F32, F32),
    LARGE("squares, large", CASE_SQUARES, 1, F32, F32),
};
const size_t case_n_large_rows = sizeof case_large_rows / sizeof case_large_rows[0];

/* Models ------------------------------------------------------------------------------------------------- */

struct shape {
    int64_t rows;
    int64_t row_elems;
};

static const struct shape llama_layer[] = {{4096, 4096},  {1024, 4096},  {1024, 4096},
                                           {4096, 4096},  {14336, 4096}, {14336, 4096},
                                           {4096, 14336}, {4096, 1},     {4096, 1}};
static const struct shape gpt2_layer[] = {{2304, 768}, {2304, 1}, {768, 768},  {768, 1},
                                          {3072, 768}, {3072, 1}, {768, 3072}, {768, 1},
                                          {768, 1},    {768, 1},  {768, 1},    {768, 1}};
static const struct shape gpt2_ends[] = {{50257, 768}, {1024, 768}, {768, 1}, {768, 1}};
#define GPT2_LAYERS 12
static const struct shape large[] = {{65537, 35003}};     /* more than 2^31 elements */
static const struct shape large_f32[] = {{32771, 35003}}; /* more than 2^32 bytes */

static size_t align_up(size_t bytes)
{
    return (bytes + CASE_ALIGNMENT - 1) / CASE_ALIGNMENT * CASE_ALIGNMENT;
}

static void add_tensors(struct case_work *work, const struct shape *shapes, size_t n_shapes, int divisor)
{
    for (size_t i = 0; i < n_shapes; i++) {
        struct shape shape = shapes[i];
        if (shape.row_elems > 1) {
            shape.row_elems = shape.row_elems / divisor > 0 ? shape.row_elems / divisor : 1;
        }
        const int64_t chunk_rows = (shape.rows + work->row->n_ranks - 1) / work->row->n_ranks;
        work->tensors[work->n_tensors++] = (struct case_tensor){
            .rows = shape.rows, .row_elems = shape.row_elems, .chunk_elems = chunk_rows * shape.row_elems};
    }
}

#define ADD(work, shapes, divisor) add_tensors(work, shapes, sizeof(shapes) / sizeof((shapes)[0]), divisor)

static int64_t count_row_elems(const struct case_work *work)
{
    int64_t elems = 0;
    for (size_t i = 0; i < work->n_tensors; i++) {
        elems += work->tensors[i].chunk_elems;
    }
    return elems;
}

static void add_model(struct case_work *work, int divisor)
{
    if (work->row->model == MODEL_NONE) {
        return;
    }
    if (work->row->model == MODEL_LLAMA) {
        ADD(work, llama_layer, divisor);
    } else if (work->row->model == MODEL_GPT2) {
        ADD(work, gpt2_layer, divisor);
    } else if (work->row->model == MODEL_GPT2_WHOLE) {
        for (int i = 0; i < GPT2_LAYERS; i++) {
            ADD(work, gpt2_layer, divisor);
        }
        ADD(work, gpt2_ends, divisor);
    } else if (work->row->src_dtype == F32 || work->row->dst_dtype == F32) {
        ADD(work, large_f32, divisor);
    } else {
        ADD(work, large, divisor);
    }
    const int64_t elems_of_128_bytes = 128 / (int64_t)dtype_bytes(work->row->src_dtype);
    const int64_t over = count_row_elems(work) % elems_of_128_bytes;
    if (work->row->is_aligned && over > 0) {
        const struct shape padding = {work->row->n_ranks, elems_of_128_bytes - over};
        add_tensors(work, &padding, 1, 1);
    }
}

/* Sizes -------------------------------------------------------------------------------------------------- */

/* Whole tensors one behind the other, each of `elems` of its elements times `elem_bytes`. Returns the bytes of all. */
static size_t place(struct case_work *work, size_t elem_bytes,
                    int64_t elems_of(const struct case_work *work, const struct case_tensor *tensor))
{
    size_t at = 0;
    for (size_t i = 0; i < work->n_tensors; i++) {
        work->tensors[i].at = at;
        at += align_up((size_t)elems_of(work, &work->tensors[i]) * elem_bytes);
    }
    return at;
}

static int64_t whole_elems(const struct case_work *work, const struct case_tensor *tensor)
{
    (void)work;
    return tensor->rows * tensor->row_elems;
}

static int64_t padded_elems(const struct case_work *work, const struct case_tensor *tensor)
{
    return work->row->n_ranks * tensor->chunk_elems;
}

static int64_t shard_elems(const struct case_work *work, const struct case_tensor *tensor)
{
    (void)work;
    return tensor->chunk_elems;
}

static size_t count_elems(const struct case_work *work)
{
    size_t elems = 0;
    for (size_t i = 0; i < work->n_tensors; i++) {
        elems += (size_t)whole_elems(work, &work->tensors[i]);
    }
    return elems;
}

static void size_rows(struct case_work *work, size_t dst_bytes, size_t src_bytes)
{
    const size_t packed = (size_t)(work->row->n_ranks * count_row_elems(work));
    if (work->row->kind == CASE_PACK) {
        work->in_bytes = place(work, src_bytes, whole_elems);
        work->out_bytes = packed * dst_bytes;
        work->moved_bytes = count_elems(work) * src_bytes + packed * dst_bytes;
    } else {
        work->in_bytes = packed * src_bytes;
        work->out_bytes = place(work, dst_bytes, padded_elems);
        work->moved_bytes = packed * (src_bytes + dst_bytes);
    }
}

/* The parameters, then both moments of AdamW, each like the gradients. */
static void size_update(struct case_work *work)
{
    const bool has_moments = work->row->kind == CASE_ADAMW;
    const size_t bytes = place(work, sizeof(float), whole_elems);
    work->in_bytes = bytes;
    work->out_bytes = has_moments ? 3 * bytes : bytes;
    work->positive_at = has_moments ? 2 * bytes : bytes;
    work->is_out_read = true;
    work->moved_bytes = count_elems(work) * (has_moments ? 7 : 3) * sizeof(float);
}

void case_size(struct case_work *work, const struct case_row *row, int divisor)
{
    const size_t dst_bytes = dtype_bytes(row->dst_dtype);
    const size_t src_bytes = dtype_bytes(row->src_dtype);
    *work = (struct case_work){.row = row};
    add_model(work, divisor);
    switch (row->kind) {
    case CASE_MEMCPY:
    case CASE_FLAT:
        work->count = ((size_t)2 << 30) / (size_t)divisor;
        work->in_bytes = work->out_bytes = work->count;
        work->moved_bytes = 2 * work->count;
        break;
    case CASE_PACK:
    case CASE_UNPACK:
        size_rows(work, dst_bytes, src_bytes);
        break;
    case CASE_CAST:
        work->count = (size_t)count_row_elems(work);
        work->in_bytes = place(work, src_bytes, shard_elems);
        work->out_bytes = work->count * dst_bytes;
        work->moved_bytes = work->count * (src_bytes + dst_bytes);
        break;
    case CASE_REDUCE:
        work->count = ((size_t)64 << 20) / src_bytes / (size_t)divisor;
        work->in_bytes = CASE_SOURCES * align_up(work->count * src_bytes);
        work->out_bytes = work->count * dst_bytes;
        work->moved_bytes = work->count * (CASE_SOURCES * src_bytes + dst_bytes);
        break;
    case CASE_ADAMW:
    case CASE_SGD:
        size_update(work);
        break;
    case CASE_SQUARES:
        work->in_bytes = place(work, src_bytes, whole_elems);
        work->out_bytes = sizeof(struct kernel_squares);
        work->moved_bytes = count_elems(work) * src_bytes;
        work->is_out_read = true;
        break;
    }
    work->positive_at = work->positive_at > 0 ? work->positive_at : work->out_bytes;
}

/* Running ------------------------------------------------------------------------------------------------ */

static struct address at(struct address region, size_t bytes)
{
    return address_add(region, (ptrdiff_t)bytes);
}

static void run_flat(const struct case_work *work, const struct kernel_table *kernels, struct address in,
                     struct address out)
{
    const struct kernel_move move = {
        .dst = out, .src = in, .count = work->count, .dst_dtype = SHOAL_U8, .src_dtype = SHOAL_U8};
    kernels->move(&move, 1);
}

static void run_pack(const struct case_work *work, const struct kernel_table *kernels, struct address in,
                     struct address out)
{
    struct kernel_pack_item items[CASE_TENSORS_MOST];
    const int n_ranks = work->row->n_ranks;
    for (size_t i = 0; i < work->n_tensors; i++) {
        const struct case_tensor *tensor = &work->tensors[i];
        items[i] = (struct kernel_pack_item){
            .data = at(in, tensor->at), .rows = tensor->rows, .row_elems = tensor->row_elems};
    }
    kernels->pack(work->row->dst_dtype, out, work->row->src_dtype, items, work->n_tensors, n_ranks, 0,
                  n_ranks);
}

static void run_unpack(const struct case_work *work, const struct kernel_table *kernels, struct address in,
                       struct address out)
{
    struct kernel_unpack_item items[CASE_TENSORS_MOST];
    for (size_t i = 0; i < work->n_tensors; i++) {
        items[i] = (struct kernel_unpack_item){.data = at(out, work->tensors[i].at),
                                               .elems = work->tensors[i].chunk_elems};
    }
    kernels->unpack(work->row->dst_dtype, items, work->n_tensors, work->row->src_dtype, in,
                    work->row->n_ranks);
}

/* Shards of all tensors become one row, as before an all-gather. */
static void run_cast(const struct case_work *work, const struct kernel_table *kernels, struct address in,
                     struct address out)
{
    struct kernel_move moves[CASE_TENSORS_MOST];
    size_t done = 0;
    for (size_t i = 0; i < work->n_tensors; i++) {
        const size_t count = (size_t)work->tensors[i].chunk_elems;
        moves[i] = (struct kernel_move){.dst = at(out, done * dtype_bytes(work->row->dst_dtype)),
                                        .src = at(in, work->tensors[i].at),
                                        .count = count,
                                        .dst_dtype = work->row->dst_dtype,
                                        .src_dtype = work->row->src_dtype};
        done += count;
    }
    kernels->move(moves, work->n_tensors);
}

static void run_reduce(const struct case_work *work, const struct kernel_table *kernels, struct address in,
                       struct address out)
{
    const void *srcs[CASE_SOURCES];
    for (size_t i = 0; i < CASE_SOURCES; i++) {
        srcs[i] = address_pointer(at(in, i * (work->in_bytes / CASE_SOURCES)));
    }
    gpu_need(kernels->reduce(SHOAL_SUM, work->row->dst_dtype, address_pointer(out), srcs, CASE_SOURCES,
                             work->count, 1),
             "reduce");
}

static void run_update(const struct case_work *work, const struct kernel_table *kernels, struct address in,
                       struct address out)
{
    const struct kernel_rates rates = {.lr = 1e-3,
                                       .decay = 1e-5,
                                       .beta1 = 0.9,
                                       .one_minus_beta1 = 0.1,
                                       .beta2 = 0.999,
                                       .one_minus_beta2 = 0.001,
                                       .step = 1e-3,
                                       .root = 0.0316227766016838,
                                       .eps = 1e-8};
    struct kernel_update updates[CASE_TENSORS_MOST];
    for (size_t i = 0; i < work->n_tensors; i++) {
        const struct case_tensor *tensor = &work->tensors[i];
        updates[i] = (struct kernel_update){.data = at(out, tensor->at),
                                            .gradient = at(in, tensor->at),
                                            .moments = {ADDRESS_NONE, ADDRESS_NONE},
                                            .count = (size_t)whole_elems(work, tensor),
                                            .dtype = SHOAL_F32,
                                            .gradient_dtype = SHOAL_F32,
                                            .rates = rates};
        for (size_t k = 0; k < 2 && work->row->kind == CASE_ADAMW; k++) {
            updates[i].moments[k] = at(out, (k + 1) * work->in_bytes + tensor->at);
        }
    }
    gpu_need(
        kernels->update(work->row->kind == CASE_ADAMW ? KERNEL_ADAMW : KERNEL_SGD, updates, work->n_tensors),
        "update");
}

static void run_squares(const struct case_work *work, const struct kernel_table *kernels, struct address in,
                        struct address out)
{
    struct kernel_piece pieces[CASE_TENSORS_MOST];
    for (size_t i = 0; i < work->n_tensors; i++) {
        pieces[i] = (struct kernel_piece){.data = at(in, work->tensors[i].at),
                                          .count = (size_t)whole_elems(work, &work->tensors[i]),
                                          .dtype = SHOAL_F32};
    }
    gpu_need(kernels->powers_list(pieces, work->n_tensors, 2, out), "squares");
}

void case_run(const struct case_work *work, const struct kernel_table *kernels, struct address in,
              struct address out)
{
    switch (work->row->kind) {
    case CASE_MEMCPY:
        break;
    case CASE_FLAT:
        run_flat(work, kernels, in, out);
        break;
    case CASE_PACK:
        run_pack(work, kernels, in, out);
        break;
    case CASE_UNPACK:
        run_unpack(work, kernels, in, out);
        break;
    case CASE_CAST:
        run_cast(work, kernels, in, out);
        break;
    case CASE_REDUCE:
        run_reduce(work, kernels, in, out);
        break;
    case CASE_ADAMW:
    case CASE_SGD:
        run_update(work, kernels, in, out);
        break;
    case CASE_SQUARES:
        run_squares(work, kernels, in, out);
        break;
    }
}
