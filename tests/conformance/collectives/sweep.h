/* SPDX-License-Identifier: MIT */
/*
 * One case of the sweep: a collective with given counts, memory and algorithm, carried out by all ranks and checked
 * against what the definition says, bit for bit, with the memory around it.
 *
 * All ranks see all inputs, in memory that was shared before they were forked: a pool of elements per rank, and the
 * fold of all pools. A case takes its input from the beginning of the pools, so that one fold serves all counts,
 * alignments and algorithms of a dtype and operator.
 */
#ifndef CONFORMANCE_SWEEP_H
#define CONFORMANCE_SWEEP_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance/collectives/fold.h"
#include "fixtures/test_device.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "transport/shm/algorithm.h"

enum {
    SWEEP_MAX_RANKS = 9,
    SWEEP_MAX_COUNT = 65537,
    SWEEP_GUARD = 64, /* bytes around every buffer that must not change */
    SWEEP_MAX_SHIFT = 64,
    SWEEP_MAX_PARTS = 3,
    /* Elements of a rank's buffer: a block of the largest count for every rank, in a list once and a half. */
    SWEEP_MAX_ELEMENTS = SWEEP_MAX_RANKS * (SWEEP_MAX_COUNT + SWEEP_MAX_COUNT / 2 + SWEEP_MAX_RANKS + 4),
    SWEEP_MAX_BYTES = SWEEP_MAX_ELEMENTS * 16,
    SWEEP_PATTERN = 0xCB
};

enum sweep_op {
#define SWEEP_OP(name, text, kind, reduces, has_root, in_place, base, form) SWEEP_##name,
#include "conformance/collectives/sweep_ops.def"
#undef SWEEP_OP
    SWEEP_OP_COUNT
};

enum sweep_in_place {
    SWEEP_NEVER,
    SWEEP_SAME,
    SWEEP_SEND_IN_RECV,
    SWEEP_RECV_IN_SEND,
    SWEEP_ALWAYS
};

enum sweep_form {
    SWEEP_PLAIN,
    SWEEP_PARTS,
    SWEEP_BLOCKS
};

static const struct sweep_row {
    const char *name;
    enum collective_kind kind;
    bool reduces;
    bool has_root;
    enum sweep_in_place in_place;
    enum sweep_op base;
    enum sweep_form form;
    shoal_collective_kind call; /* by descriptor */
} sweep_rows[SWEEP_OP_COUNT] = {
#define SWEEP_OP(name_, text, kind_, reduces_, has_root_, in_place_, base_, form_)                         \
    [SWEEP_##name_] = {text,          COLLECTIVE_##kind_, reduces_,          has_root_, SWEEP_##in_place_, \
                       SWEEP_##base_, SWEEP_##form_,      SHOAL_KIND_##base_},
#include "conformance/collectives/sweep_ops.def"
#undef SWEEP_OP
};

/* Where a rank's buffers lie. */
enum sweep_memory {
    SWEEP_HEAP,
    SWEEP_SYMMETRIC,
    SWEEP_MIXED, /* symmetric on even ranks */
    SWEEP_MEMORY_COUNT
};

struct sweep_case {
    enum sweep_op op;
    shoal_dtype dtype;
    shoal_reduce_op reduce;
    double factor;
    size_t count;
    size_t send_shift; /* bytes off a multiple of 64 */
    size_t recv_shift;
    bool is_skewed; /* every rank adds its number to the shifts */
    bool is_in_place;
    bool is_started; /* with _start and wait */
    int root;
    enum sweep_memory memory;
};

/* Memory for the buffers of a case. */
struct sweep_arena {
    unsigned char *buffers[2]; /* send, recv; on a device, where the processor reaches its memory */
    ptrdiff_t to_device;       /* from there to the addresses that calls are given; 0 on the CPU */
};

/* A rank's side of a sweep. */
struct sweep {
    struct rank *self;
    shoal_group *group;
    shoal_symmetric *symmetric; /* NULL: the transport has none */
    struct sweep_arena block;   /* in it */
    struct sweep_arena heap;
    shoal_tensor *device_memory; /* that of the heap; NULL on the CPU */
    size_t n_cases;
};

/* One buffer pair of a case; a list has several. */
struct sweep_part {
    size_t count;
    size_t base; /* first element in the pools */
    unsigned char *send;
    unsigned char *recv; /* NULL where a rank has none */
    size_t n_send;
    size_t n_recv;
};

/* Shared memory -------------------------------------------------------------------------------------------- */

static unsigned char *sweep_pools[SWEEP_MAX_RANKS];
static unsigned char *sweep_folded;

/* Before main, and so before ranks are forked. Only pages that are written exist. */
__attribute__((constructor)) static void sweep_share_memory(void)
{
    size_t bytes = (size_t)SWEEP_MAX_BYTES * (SWEEP_MAX_RANKS + 1);
    int fd = harness_launched_size() > 0 ? harness_launched_file("sweep", bytes) : -1;
    int kind = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind, fd, 0);
    if (fd >= 0) {
        (void)close(fd);
    }
    if (memory == MAP_FAILED) {
        perror("no shared memory for the sweep");
        exit(2);
    }
    for (int r = 0; r < SWEEP_MAX_RANKS; r++) {
        sweep_pools[r] = (unsigned char *)memory + (size_t)r * SWEEP_MAX_BYTES;
    }
    sweep_folded = (unsigned char *)memory + (size_t)SWEEP_MAX_RANKS * SWEEP_MAX_BYTES;
    fold_prepare();
}

/* Values whose sums round, with the special ones among them; integers and bool are any bits. */
static inline void sweep_fill_pool(struct test_random *random, shoal_dtype dtype, unsigned char *pool,
                                   size_t n_elements)
{
    static const double specials[] = {
        0.0, -0.0, (double)INFINITY, -(double)INFINITY, (double)NAN, 0x1p-149, -0x1p-126, 65504.0, 1e38};
    bool is_complex = dtype_kind(dtype) == DTYPE_KIND_COMPLEX;
    shoal_dtype component = !is_complex ? dtype : dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
    size_t n_components = is_complex ? 2 * n_elements : n_elements;
    size_t bytes = dtype_bytes(component);
    for (size_t i = 0; i < n_components; i++) {
        uint64_t bits = test_random_u64(random);
        if (dtype_kind(component) != DTYPE_KIND_FLOAT) {
            memcpy(pool + i * bytes, &bits, bytes);
            continue;
        }
        double value = (double)(int64_t)bits * 0x1p-62;
        value = bits % 16 == 0 ? specials[(bits >> 8) % (sizeof specials / sizeof specials[0])] : value;
        if (component == SHOAL_F64) {
            memcpy(pool + i * bytes, &value, bytes);
        } else {
            fold_store_single(component, pool + i * bytes, (float)value);
        }
    }
}

/* Geometry ------------------------------------------------------------------------------------------------- */

/* Uneven counts with zeroes among them; the same on all ranks. */
static inline size_t sweep_uneven(size_t count, int i)
{
    static const size_t parts[] = {4, 0, 2, 3, 1};
    return count * parts[i % 5] / 4 + (i % 3 == 2 ? 1 : 0);
}

static inline size_t sweep_uneven_before(size_t count, int rank)
{
    size_t before = 0;
    for (int r = 0; r < rank; r++) {
        before += sweep_uneven(count, r);
    }
    return before;
}

/* Whether blocks have sweep_uneven elements. */
static inline bool sweep_is_uneven(enum sweep_op base)
{
    return base == SWEEP_ALL_GATHER_V || base == SWEEP_REDUCE_SCATTER_V || base == SWEEP_GATHER_V ||
           base == SWEEP_SCATTER_V;
}

/* What rank i sends to rank j in all_to_all_v. */
static inline size_t sweep_matrix(size_t count, int i, int j)
{
    return sweep_uneven(count, 2 * i + j);
}

static inline int sweep_n_parts(const struct sweep_case *one)
{
    return sweep_rows[one->op].form == SWEEP_PARTS ? SWEEP_MAX_PARTS : 1;
}

static inline size_t sweep_part_count(const struct sweep_case *one, int part)
{
    return part == 0 ? one->count : part == 1 ? one->count / 2 : one->count % 3;
}

static inline size_t sweep_n_send(const struct sweep_case *one, size_t count, int rank, int n_ranks)
{
    size_t n = (size_t)n_ranks;
    switch ((int)sweep_rows[one->op].base) {
    case SWEEP_REDUCE_SCATTER:
    case SWEEP_ALL_TO_ALL:
        return n * count;
    case SWEEP_REDUCE_SCATTER_V:
        return sweep_uneven_before(count, n_ranks);
    case SWEEP_ALL_GATHER_V:
    case SWEEP_GATHER_V:
        return sweep_uneven(count, rank);
    case SWEEP_SCATTER:
        return rank == one->root ? n * count : 0;
    case SWEEP_SCATTER_V:
        return rank == one->root ? sweep_uneven_before(count, n_ranks) : 0;
    case SWEEP_ALL_TO_ALL_V: {
        size_t sum = 0;
        for (int j = 0; j < n_ranks; j++) {
            sum += sweep_matrix(count, rank, j);
        }
        return sum;
    }
    case SWEEP_BROADCAST:
        return 0;
    default:
        return count;
    }
}

static inline size_t sweep_n_recv(const struct sweep_case *one, size_t count, int rank, int n_ranks)
{
    size_t n = (size_t)n_ranks;
    switch ((int)sweep_rows[one->op].base) {
    case SWEEP_ALL_GATHER:
    case SWEEP_ALL_TO_ALL:
        return n * count;
    case SWEEP_ALL_GATHER_V:
        return sweep_uneven_before(count, n_ranks);
    case SWEEP_REDUCE_SCATTER_V:
    case SWEEP_SCATTER_V:
        return sweep_uneven(count, rank);
    case SWEEP_GATHER:
        return rank == one->root ? n * count : 0;
    case SWEEP_GATHER_V:
        return rank == one->root ? sweep_uneven_before(count, n_ranks) : 0;
    case SWEEP_REDUCE:
        return rank == one->root ? count : 0;
    case SWEEP_ALL_TO_ALL_V: {
        size_t sum = 0;
        for (int i = 0; i < n_ranks; i++) {
            sum += sweep_matrix(count, i, rank);
        }
        return sum;
    }
    default:
        return count;
    }
}

/* The elements of the pools that a case reads. */
static inline size_t sweep_elements(const struct sweep_case *one, int n_ranks)
{
    return (one->count + one->count / 2 + (size_t)n_ranks + 4) * (size_t)n_ranks;
}

/* Where the smaller buffer lies in the larger one, in elements, in place. */
static inline size_t sweep_own_block(const struct sweep_case *one, size_t count, int rank)
{
    enum sweep_op base = sweep_rows[one->op].base;
    return sweep_is_uneven(base) ? sweep_uneven_before(count, rank) : (size_t)rank * count;
}

/* Expected ------------------------------------------------------------------------------------------------- */

/*
 * Copies what rank must have in recv at the end, n_recv elements; unless it is a reduction, where the place in the
 * fold is returned instead of a copy.
 */
static inline const unsigned char *sweep_expect(const struct sweep_case *one, const struct sweep_part *part,
                                                int rank, int n_ranks, unsigned char *out)
{
    size_t bytes = dtype_bytes(one->dtype);
    size_t first = part->base * bytes;
    size_t block = part->count * bytes;
    size_t to = 0;
    enum sweep_op base = sweep_rows[one->op].base;
    switch ((int)sweep_rows[one->op].base) {
    case SWEEP_ALL_REDUCE:
    case SWEEP_REDUCE:
        return sweep_folded + first;
    case SWEEP_REDUCE_SCATTER:
    case SWEEP_REDUCE_SCATTER_V:
        return sweep_folded + first + sweep_own_block(one, part->count, rank) * bytes;
    case SWEEP_BROADCAST:
        return sweep_pools[one->root] + first;
    case SWEEP_SCATTER:
    case SWEEP_SCATTER_V:
        return sweep_pools[one->root] + first + sweep_own_block(one, part->count, rank) * bytes;
    default:
        break;
    }
    for (int peer = 0; peer < n_ranks; peer++) {
        size_t offset = 0;
        size_t length = block;
        if (base == SWEEP_ALL_GATHER_V || base == SWEEP_GATHER_V) {
            length = sweep_uneven(part->count, peer) * bytes;
        } else if (base == SWEEP_ALL_TO_ALL) {
            offset = (size_t)rank * block;
        } else if (base == SWEEP_ALL_TO_ALL_V) {
            for (int j = 0; j < rank; j++) {
                offset += sweep_matrix(part->count, peer, j) * bytes;
            }
            length = sweep_matrix(part->count, peer, rank) * bytes;
        }
        memcpy(out + to, sweep_pools[peer] + first + offset, length);
        to += length;
    }
    return out;
}

/* Calls ---------------------------------------------------------------------------------------------------- */

#define SWEEP_CALL(form, ...)                                                \
    (one->is_started ? shoal_group_##form##_start(group, __VA_ARGS__, &work) \
                     : shoal_group_##form(group, __VA_ARGS__))

/* Counts per rank of a case that has them. */
struct sweep_counts {
    size_t send[SWEEP_MAX_RANKS];
    size_t recv[SWEEP_MAX_RANKS];
};

static inline struct sweep_counts sweep_count(const struct sweep_case *one, int rank, int n_ranks)
{
    struct sweep_counts counts;
    enum sweep_op base = sweep_rows[one->op].base;
    for (int r = 0; r < n_ranks; r++) {
        bool is_matrix = base == SWEEP_ALL_TO_ALL_V;
        size_t even = sweep_is_uneven(base) ? sweep_uneven(one->count, r) : one->count;
        counts.send[r] = is_matrix ? sweep_matrix(one->count, rank, r) : even;
        counts.recv[r] = is_matrix ? sweep_matrix(one->count, r, rank) : even;
    }
    return counts;
}

/* The places of blocks that lie one after the other. */
static inline void sweep_list_blocks(unsigned char *buffer, const size_t *counts, int n_ranks, size_t bytes,
                                     void **blocks)
{
    for (int r = 0; r < n_ranks; r++) {
        blocks[r] = buffer;
        buffer += counts[r] * bytes;
    }
}

static inline const struct sweep_arena *sweep_arena_of(const struct sweep *sweep,
                                                       const struct sweep_case *one)
{
    bool is_symmetric =
        one->memory == SWEEP_SYMMETRIC || (one->memory == SWEEP_MIXED && sweep->self->rank % 2 == 0);
    return is_symmetric && sweep->symmetric ? &sweep->block : &sweep->heap;
}

/* Addresses of the parts as calls are given them. */
static inline void sweep_give_parts(const struct sweep *sweep, const struct sweep_case *one,
                                    const struct sweep_part *parts, struct sweep_part *given)
{
    ptrdiff_t to_device = sweep_arena_of(sweep, one)->to_device;
    for (int p = 0; p < sweep_n_parts(one); p++) {
        given[p] = parts[p];
        given[p].send += to_device;
        given[p].recv = parts[p].recv ? parts[p].recv + to_device : NULL;
    }
}

static inline shoal_status sweep_call_descriptor(const struct sweep_case *one, shoal_group *group,
                                                 const struct sweep_part *parts, shoal_work **work_out)
{
    const struct sweep_row *row = &sweep_rows[one->op];
    int n_ranks = shoal_group_n_ranks(group);
    bool is_exchange = row->kind == COLLECTIVE_ALL_TO_ALL;
    bool is_gather = row->kind == COLLECTIVE_ALL_GATHER || row->kind == COLLECTIVE_GATHER;
    struct sweep_counts counts = sweep_count(one, shoal_group_rank(group), n_ranks);
    void *send_blocks[SWEEP_MAX_RANKS];
    void *recv_blocks[SWEEP_MAX_RANKS];
    shoal_part list[SWEEP_MAX_PARTS];
    shoal_collective call = {.struct_size = sizeof call,
                             .kind = row->call,
                             .dtype = one->dtype,
                             .reduce = row->reduces ? one->reduce : (shoal_reduce_op)0,
                             .root = row->has_root ? one->root : 0,
                             .factor = row->reduces && one->reduce == SHOAL_PREMUL_SUM ? one->factor : 0};
    if (row->form == SWEEP_PARTS) {
        for (size_t i = 0; i < SWEEP_MAX_PARTS; i++) {
            bool has_send = row->kind != COLLECTIVE_BROADCAST;
            list[i] = (shoal_part){.send = has_send ? parts[i].send : NULL,
                                   .recv = parts[i].recv,
                                   .count = parts[i].count,
                                   .device = test_device()};
        }
        call.parts = list;
        call.n_parts = SWEEP_MAX_PARTS;
    } else {
        call.send = row->kind == COLLECTIVE_BROADCAST ? NULL : parts->send;
        call.recv = parts->recv;
        call.device = test_device();
        if (row->base == SWEEP_ALL_TO_ALL_V) {
            call.send_counts = counts.send;
            call.recv_counts = counts.recv;
        } else if (sweep_is_uneven(row->base)) {
            call.counts = counts.send;
        } else {
            call.count = one->count;
        }
    }
    if (row->form == SWEEP_BLOCKS && (is_exchange || !is_gather) && parts->n_send > 0) {
        sweep_list_blocks(parts->send, counts.send, n_ranks, dtype_bytes(one->dtype), send_blocks);
        call.send = NULL;
        call.send_blocks = (const void *const *)send_blocks;
    }
    if (row->form == SWEEP_BLOCKS && (is_exchange || is_gather) && parts->recv) {
        sweep_list_blocks(parts->recv, counts.recv, n_ranks, dtype_bytes(one->dtype), recv_blocks);
        call.recv = NULL;
        call.recv_blocks = recv_blocks;
    }
    return one->is_started ? shoal_group_collective_start(group, &call, work_out)
                           : shoal_group_collective(group, &call);
}

static inline shoal_status sweep_call_plain(const struct sweep_case *one, shoal_group *group,
                                            const struct sweep_part *part, shoal_work **work_out)
{
    shoal_work *work = NULL;
    shoal_status status = SHOAL_ERR_INTERNAL;
    struct sweep_counts counts = sweep_count(one, shoal_group_rank(group), shoal_group_n_ranks(group));
    switch ((int)one->op) {
    case SWEEP_BROADCAST:
        status = SWEEP_CALL(broadcast, part->recv, part->count, one->dtype, one->root);
        break;
    case SWEEP_ALL_REDUCE:
        status = SWEEP_CALL(all_reduce, part->send, part->recv, part->count, one->dtype, one->reduce);
        break;
    case SWEEP_REDUCE:
        status = SWEEP_CALL(reduce, part->send, part->recv, part->count, one->dtype, one->reduce, one->root);
        break;
    case SWEEP_ALL_GATHER:
        status = SWEEP_CALL(all_gather, part->send, part->recv, part->count, one->dtype);
        break;
    case SWEEP_REDUCE_SCATTER:
        status = SWEEP_CALL(reduce_scatter, part->send, part->recv, part->count, one->dtype, one->reduce);
        break;
    case SWEEP_ALL_TO_ALL:
        status = SWEEP_CALL(all_to_all, part->send, part->recv, part->count, one->dtype);
        break;
    case SWEEP_GATHER:
        status = SWEEP_CALL(gather, part->send, part->recv, part->count, one->dtype, one->root);
        break;
    case SWEEP_SCATTER:
        status = SWEEP_CALL(scatter, part->send, part->recv, part->count, one->dtype, one->root);
        break;
    case SWEEP_ALL_GATHER_V:
        status = SWEEP_CALL(all_gather_v, part->send, part->recv, counts.send, one->dtype);
        break;
    case SWEEP_REDUCE_SCATTER_V:
        status = SWEEP_CALL(reduce_scatter_v, part->send, part->recv, counts.send, one->dtype, one->reduce);
        break;
    case SWEEP_ALL_TO_ALL_V:
        status = SWEEP_CALL(all_to_all_v, part->send, counts.send, part->recv, counts.recv, one->dtype);
        break;
    case SWEEP_GATHER_V:
        status = SWEEP_CALL(gather_v, part->send, part->recv, counts.send, one->dtype, one->root);
        break;
    case SWEEP_SCATTER_V:
        status = SWEEP_CALL(scatter_v, part->send, part->recv, counts.send, one->dtype, one->root);
        break;
    default:
        break;
    }
    *work_out = work;
    return status;
}

static inline shoal_status sweep_call(const struct sweep_case *one, shoal_group *group,
                                      const struct sweep_part *parts)
{
    shoal_work *work = NULL;
    shoal_status status;
    const struct sweep_row *row = &sweep_rows[one->op];
    if (row->form != SWEEP_PLAIN || (row->reduces && one->reduce == SHOAL_PREMUL_SUM) ||
        test_device() != SHOAL_CPU) {
        status = sweep_call_descriptor(one, group, parts, &work);
    } else {
        status = sweep_call_plain(one, group, parts, &work);
    }
    if (status == SHOAL_OK && one->is_started) {
        status = shoal_work_wait(work, /*timeout_s=*/-1);
        shoal_work_free(work);
    }
    return status;
}

/* Carrying out a case -------------------------------------------------------------------------------------- */

static inline const char *sweep_describe(const struct sweep_case *one, char *text, size_t text_bytes)
{
    static const char *const memories[] = {"heap", "symmetric", "mixed"};
    (void)snprintf(
        text, text_bytes, "%s %s %s count %zu root %d shifts %zu %zu%s %s%s%s", sweep_rows[one->op].name,
        shoal_dtype_name(one->dtype), sweep_rows[one->op].reduces ? shoal_reduce_op_name(one->reduce) : "-",
        one->count, one->root, one->send_shift, one->recv_shift, one->is_skewed ? " skewed" : "",
        memories[one->memory], one->is_in_place ? " in place" : "", one->is_started ? " started" : "");
    return text;
}

/* Lays the parts out in the arenas, one after the other, guards between them. */
static inline void sweep_place(const struct sweep *sweep, const struct sweep_case *one,
                               struct sweep_part *parts)
{
    int rank = sweep->self->rank;
    int n_ranks = sweep->self->n_ranks;
    size_t bytes = dtype_bytes(one->dtype);
    enum sweep_in_place in_place = one->is_in_place ? sweep_rows[one->op].in_place : SWEEP_NEVER;
    unsigned char *const *arenas = sweep_arena_of(sweep, one)->buffers;
    size_t skew = one->is_skewed ? (size_t)rank : 0;
    size_t offsets[2] = {SWEEP_GUARD + one->send_shift + skew, SWEEP_GUARD + one->recv_shift + skew};
    size_t base = 0;
    for (int p = 0; p < sweep_n_parts(one); p++) {
        struct sweep_part *part = &parts[p];
        part->count = sweep_part_count(one, p);
        part->base = base;
        part->n_send = sweep_n_send(one, part->count, rank, n_ranks);
        part->n_recv = sweep_n_recv(one, part->count, rank, n_ranks);
        part->send = arenas[0] + offsets[0];
        bool has_none = part->count == 0 && !sweep_is_uneven(sweep_rows[one->op].base);
        part->recv = part->n_recv > 0 || has_none ? arenas[1] + offsets[1] : NULL;
        bool has_both = part->recv && part->n_send > 0;
        if (in_place == SWEEP_SAME && part->recv) {
            part->send = part->recv;
        } else if (in_place == SWEEP_SEND_IN_RECV && has_both) {
            part->send = part->recv + sweep_own_block(one, part->count, rank) * bytes;
        } else if (in_place == SWEEP_RECV_IN_SEND && has_both) {
            part->recv = part->send + sweep_own_block(one, part->count, rank) * bytes;
        }
        offsets[0] += part->n_send * bytes + SWEEP_GUARD;
        offsets[1] += part->n_recv * bytes + SWEEP_GUARD;
        base += (part->count + 1) * (size_t)n_ranks;
    }
}

/* The buffers with patterns around and in them, then the input. */
static inline void sweep_load(const struct sweep *sweep, const struct sweep_case *one,
                              const struct sweep_part *part)
{
    int rank = sweep->self->rank;
    size_t bytes = dtype_bytes(one->dtype);
    if (part->recv) {
        memset(part->recv - SWEEP_GUARD, SWEEP_PATTERN, part->n_recv * bytes + 2 * SWEEP_GUARD);
    }
    if (part->n_send > 0) {
        bool is_inside = one->is_in_place && sweep_rows[one->op].in_place == SWEEP_SEND_IN_RECV && part->recv;
        if (!is_inside) {
            memset(part->send - SWEEP_GUARD, SWEEP_PATTERN, part->n_send * bytes + 2 * SWEEP_GUARD);
        }
        memcpy(part->send, sweep_pools[rank] + part->base * bytes, part->n_send * bytes);
    }
    if (sweep_rows[one->op].in_place == SWEEP_ALWAYS && rank == one->root) {
        memcpy(part->recv, sweep_pools[rank] + part->base * bytes, part->n_recv * bytes);
    }
}

static inline bool sweep_is_pattern(const unsigned char *bytes)
{
    for (int i = 0; i < SWEEP_GUARD; i++) {
        if (bytes[i] != SWEEP_PATTERN) {
            return false;
        }
    }
    return true;
}

/* The memory around recv, and the send buffer where it is apart. */
static inline const char *sweep_find_damage(const struct sweep *sweep, const struct sweep_case *one,
                                            const struct sweep_part *part)
{
    size_t bytes = dtype_bytes(one->dtype);
    enum sweep_in_place in_place = one->is_in_place ? sweep_rows[one->op].in_place : SWEEP_NEVER;
    bool is_inside = in_place == SWEEP_RECV_IN_SEND && part->n_send > 0;
    if (part->recv && !is_inside &&
        (!sweep_is_pattern(part->recv - SWEEP_GUARD) ||
         !sweep_is_pattern(part->recv + part->n_recv * bytes))) {
        return "the memory around recv was written";
    }
    bool is_apart = part->n_send > 0 && (in_place == SWEEP_NEVER || !part->recv);
    if (is_apart &&
        memcmp(part->send, sweep_pools[sweep->self->rank] + part->base * bytes, part->n_send * bytes)) {
        return "the send buffer was written";
    }
    if (is_apart && (!sweep_is_pattern(part->send - SWEEP_GUARD) ||
                     !sweep_is_pattern(part->send + part->n_send * bytes))) {
        return "the memory around send was written";
    }
    return NULL;
}

static inline void sweep_check(const struct sweep *sweep, const struct sweep_case *one,
                               const struct sweep_part *part, unsigned char *scratch)
{
    char text[256];
    int rank = sweep->self->rank;
    const char *damage = sweep_find_damage(sweep, one, part);
    if (damage) {
        test_failed(__FILE__, __LINE__, "%s: %s", sweep_describe(one, text, sizeof text), damage);
    }
    if (part->n_recv == 0) {
        return;
    }
    const unsigned char *expected = sweep_expect(one, part, rank, sweep->self->n_ranks, scratch);
    size_t first =
        fold_first_difference(one->dtype, part->recv, expected, part->n_recv, sweep_rows[one->op].reduces);
    if (first < part->n_recv) {
        test_failed(__FILE__, __LINE__, "%s: element %zu of %zu is wrong (part with %zu elements)",
                    sweep_describe(one, text, sizeof text), first, part->n_recv, part->count);
    }
}

/* All ranks call this with the same case. False once there is no use in going on. */
static inline bool sweep_run_case(struct sweep *sweep, const struct sweep_case *one, unsigned char *scratch)
{
    struct sweep_part parts[SWEEP_MAX_PARTS];
    sweep_place(sweep, one, parts);
    for (int p = 0; p < sweep_n_parts(one); p++) {
        sweep_load(sweep, one, &parts[p]);
    }
    struct sweep_part given[SWEEP_MAX_PARTS];
    sweep_give_parts(sweep, one, parts, given);
    shoal_status status = sweep_call(one, sweep->group, given);
    if (status != SHOAL_OK) {
        char text[256];
        test_failed(__FILE__, __LINE__, "%s: %s: %s", sweep_describe(one, text, sizeof text),
                    shoal_status_name(status), shoal_error_text());
        return false;
    }
    for (int p = 0; p < sweep_n_parts(one); p++) {
        sweep_check(sweep, one, &parts[p], scratch);
    }
    sweep->n_cases++;
    return !test_has_failed();
}

#endif
