/* SPDX-License-Identifier: MIT */
/*
 * Binds a plan. First each rank does what it can do alone. Then ranks tell each other whether that succeeded, compare
 * their plans (compare.c), make the memory that they share, prepare their collectives, and tell each other whether all
 * of that succeeded.
 */
#include "graph/run/bind.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/completion.h"
#include "base/error.h"
#include "base/label.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/text.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "comm/call/prepared.h"
#include "graph/ir/captured.h"
#include "graph/run/compare.h"
#include "graph/ir/graph.h"
#include "graph/plan/need.h"
#include "op/op.h"
#include "tensor/block.h"

/* Memory ------------------------------------------------------------------------------------------------- */

/* The address of buffers without bytes. */
static _Alignas(MEM_DATA_ALIGNMENT) char no_bytes[MEM_DATA_ALIGNMENT];

/* Up to so many groups are listed without an allocation. */
#define FEW_GROUPS 8

/* Before the first run, inputs have addresses from here on, where nothing else can be and which do not overlap. These
   addresses are compared, never used. */
#define NOWHERE ((uintptr_t)1 << 60)

char *plan_address(const struct shoal_plan *plan, const struct plan_buffer *buffer)
{
    const struct plan_binding *binding = plan->binding;
    switch (buffer->place) {
    case PLAN_INPUT:
    case PLAN_CONSTANT:
        return NULL;
    case PLAN_POOL:
        return buffer->bytes > 0 ? binding->pool + buffer->offset : no_bytes;
    case PLAN_OUTPUT:
        return buffer->bytes > 0 ? binding->output + buffer->offset : no_bytes;
    case PLAN_COMM:
        return buffer->bytes > 0 ? plan->groups[buffer->index].comm + buffer->offset : no_bytes;
    case PLAN_WINDOW:
        return (char *)(uintptr_t)shoal_window_data(plan->windows[buffer->index].window) + buffer->offset;
    case PLAN_SLOT: {
        char *whole = plan_address(plan, &plan->buffers[buffer->index]);
        return whole ? whole + buffer->offset : NULL;
    }
    }
    return NULL;
}

static shoal_status allocate(const struct need *need, size_t bytes, char **memory_out)
{
    if (bytes > 0) {
        *memory_out = mem_alloc_aligned(bytes, MEM_DATA_ALIGNMENT);
    }
    if (bytes == 0 || *memory_out) {
        return SHOAL_OK;
    }
    char words[ERROR_TEXT_BYTES];
    struct text text = text_begin(words, sizeof words);
    text_add(&text, "of a plan that takes ");
    text_add_bytes(&text, need->bytes);
    need_add_largest(&text, need);
    return error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu bytes %s", bytes, words);
}

/* Says what the plan takes, before it takes it. */
static shoal_status allocate_own(struct shoal_plan *plan, const shoal_compile_options *options)
{
    struct need need;
    char words[ERROR_TEXT_BYTES];
    struct text text = text_begin(words, sizeof words);
    need_of_plan(plan, &need);
    text_add_bytes(&text, need.bytes);
    text_add(&text, ": ");
    need_add_parts(&text, &need);
    need_add_largest(&text, &need);
    LOG(SHOAL_LOG_INFO, "plan_create: takes %s", words);
    TRY(need_check_plan(&need, options->max_bytes));
    TRY(allocate(&need, plan->pool_bytes, &plan->binding->pool));
    return allocate(&need, plan->output_bytes, &plan->binding->output);
}

static void put_memory(struct shoal_plan *plan)
{
    uintptr_t nowhere = NOWHERE;
    for (size_t i = 0; i < plan->n_buffers; i++) {
        struct plan_buffer *buffer = &plan->buffers[i];
        struct memory *memory = &plan->binding->memories[i];
        if (buffer->place == PLAN_CONSTANT || buffer->place == PLAN_SLOT) {
            continue;
        }
        refcount_get(&plan->binding->memory_block->objects);
        memory_init(memory, plan->binding->memory_block, address_of(plan_address(plan, buffer)));
        if (buffer->place == PLAN_INPUT) {
            memory->base = address_of((void *)nowhere);
            nowhere += (buffer->bytes + 2 * MEM_DATA_ALIGNMENT) & ~(uintptr_t)(MEM_DATA_ALIGNMENT - 1);
        }
        buffer->storage->memory = memory_ref(memory); /* the first reference is the binding's */
    }
    for (size_t i = 0; i < plan->binding->n_sets; i++) {
        struct bound_set *set = &plan->binding->sets[i];
        set->data = plan_address(plan, &plan->buffers[set->buffer]) + set->offset;
    }
}

struct plan_memories {
    struct block block;
    struct memory memories[];
};

/*
 * One block holds all memories, and the last reference frees it. That reference may be a fence's: a thread that waits
 * for a work goes on as soon as the work is done, while the thread that ended it has not dropped its fences yet.
 */
static shoal_status make_memories(struct shoal_plan *plan)
{
    struct plan_binding *binding = plan->binding;
    size_t bytes;
    if (!mem_multiply(plan->n_buffers + 1, sizeof *binding->memories, &bytes) ||
        bytes > SIZE_MAX - sizeof(struct plan_memories)) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu buffers", plan->n_buffers);
    }
    struct plan_memories *memories =
        (struct plan_memories *)block_create_lasting(sizeof(struct plan_memories) + bytes);
    if (!memories) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&memories->block.objects, 1); /* the binding */
    memset(memories->memories, 0, bytes);
    binding->memory_block = &memories->block;
    binding->memories = memories->memories;
    return SHOAL_OK;
}

/* Takes the memory away from the storages of buffers, and drops the binding's references. */
static void take_memory(struct shoal_plan *plan)
{
    struct plan_binding *binding = plan->binding;
    for (size_t i = 0; i < plan->n_buffers; i++) {
        struct plan_buffer *buffer = &plan->buffers[i];
        struct memory *memory = &binding->memories[i];
        if (buffer->storage && buffer->storage->memory == memory) {
            memory_unref(buffer->storage->memory);
            buffer->storage->memory = NULL;
        }
        memory_unref(memory->block ? memory : NULL);
    }
    block_free(binding->memory_block, binding->memory_block);
    binding->memories = NULL;
}

/* Inputs ------------------------------------------------------------------------------------------------- */

/* Maps the storages of inputs to their indices. */
struct input_map {
    struct map map;
    struct shoal_plan *plan;
};

static bool find_input(const struct input_map *inputs, const shoal_tensor *tensor, size_t *index_out)
{
    return tensor && map_get(&inputs->map, map_key(tensor->storage), index_out);
}

static void note_written(const struct input_map *inputs, shoal_tensor *const *tensors, size_t count,
                         uint32_t step)
{
    for (size_t i = 0; i < count; i++) {
        size_t index;
        if (find_input(inputs, tensors[i], &index)) {
            struct bound_input *input = &inputs->plan->binding->inputs[index];
            input->first_write = input->is_written && input->first_write < step ? input->first_write : step;
            input->is_written = true;
        }
    }
}

/* Whether the step writes its outputs. Built-in eager ops give the tensors that they receive into; other ops may give
   an argument that they only read. */
static bool writes_outputs(const struct plan_step *step)
{
    return step->kind == PLAN_CALL ||
           (step->kind == PLAN_EAGER &&
            (op_is_builtin(step->op) || (step->op->flags & SHOAL_OP_IN_PLACE) != 0));
}

/* Notes which inputs steps write. Other writes of eager steps are found in each run by the storage's version. */
static void note_steps(const struct input_map *inputs)
{
    struct shoal_plan *plan = inputs->plan;
    for (size_t i = 0; i < plan->n_steps; i++) {
        const struct plan_step *step = &plan->steps[i];
        plan->binding->has_eager |= step->kind == PLAN_EAGER;
        if (writes_outputs(step)) {
            note_written(inputs, step->outputs, step->n_outputs, (uint32_t)i);
        }
    }
    for (size_t i = 0; i < plan->n_collectives; i++) {
        const struct plan_collective *collective = &plan->collectives[i];
        if (collective->receives) {
            note_written(inputs, collective->receives, collective->n_pieces,
                         0); /* at the first step or later */
        }
    }
}

/* Finds the pieces that lie in inputs. If binding->pieces is NULL, it only counts them. */
static void find_pieces(const struct input_map *inputs)
{
    struct shoal_plan *plan = inputs->plan;
    struct plan_binding *binding = plan->binding;
    binding->n_pieces = 0;
    for (size_t i = 0; i < plan->n_collectives; i++) {
        const struct plan_collective *collective = &plan->collectives[i];
        for (size_t k = 0; k < collective->n_pieces; k++) {
            size_t index;
            bool is_input = find_input(inputs, collective->sends[k], &index) ||
                            (collective->receives && find_input(inputs, collective->receives[k], &index));
            if (is_input && binding->pieces) {
                binding->pieces[binding->n_pieces] =
                    (struct bound_piece){.collective = (uint32_t)i, .piece = (uint32_t)k};
            }
            binding->n_pieces += is_input;
        }
    }
}

/* Notes the source of an input. For a sharded parameter, it is the shard, and the input is the padded shard. */
static void note_source(struct bound_input *input, const struct captured *captured, size_t index)
{
    const struct captured_input *of =
        captured && index < captured->n_inputs ? &captured->inputs[index] : NULL;
    if (of && of->tensor && of->source) {
        input->tensor = shoal_tensor_ref(of->tensor);
        input->source = shoal_tensor_ref(of->source);
    }
}

/* Finds the pairs of placeholders of which one is the source of the other. */
static shoal_status pair_twins(struct shoal_plan *plan, const struct captured *captured)
{
    struct bound_input *inputs = plan->binding->inputs;
    struct map by_storage = {.count = 0};
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < plan->n_inputs; i++) {
        const shoal_tensor *tensor = captured && i < captured->n_inputs ? captured->inputs[i].tensor : NULL;
        size_t other;
        inputs[i].twin = PLAN_NONE;
        if (status == SHOAL_OK && tensor) {
            status = map_get_or_add(&by_storage, map_key(tensor->storage), i, &other);
        }
    }
    for (size_t i = 0; i < plan->n_inputs && status == SHOAL_OK; i++) {
        size_t source;
        if (inputs[i].source && map_get(&by_storage, map_key(inputs[i].source->storage), &source)) {
            inputs[i].twin = (uint32_t)source;
            inputs[source].twin = (uint32_t)i;
        }
    }
    map_free(&by_storage);
    return status;
}

/*
 * A shard and its padded shard lie in the same memory, which passes and lowering do not know. In the captured step all
 * gathers of the padded shard come before the first write of the shard (parallel/fsdp/module/captured.c). Checks that
 * the gathers have ended before that write in the plan, too.
 */
static shoal_status check_twins(const struct shoal_plan *plan)
{
    const struct bound_input *inputs = plan->binding->inputs;
    for (size_t i = 0; i < plan->n_inputs; i++) {
        if (inputs[i].twin == PLAN_NONE || !inputs[i].source) {
            continue;
        }
        const struct bound_input *shard = &inputs[inputs[i].twin];
        if (inputs[i].is_written ||
            (shard->is_written && plan->buffers[plan->inputs[i]].last >= shard->first_write)) {
            return error_set(SHOAL_ERR_UNSUPPORTED,
                             "%%%s: passes or lowering have moved a write of this parameter before the end "
                             "of its last gather, which can happen where its shards have different sizes",
                             shard->name);
        }
    }
    return SHOAL_OK;
}

static shoal_status note_placeholders(struct shoal_plan *plan, const shoal_graph *graph)
{
    size_t index = 0;
    GRAPH_EACH(graph, node)
    {
        if (node->kind == SHOAL_NODE_PLACEHOLDER && index < plan->n_inputs) {
            struct bound_input *input = &plan->binding->inputs[index++];
            input->name = arena_string(&plan->arena, node->name);
            input->dtype = node->values[0]->dtype;
            input->layout = node->values[0]->layout;
            if (!input->name) {
                return SHOAL_ERR_NO_MEMORY;
            }
            note_source(input, graph->captured, index - 1);
        }
    }
    return index == plan->n_inputs
               ? pair_twins(plan, graph->captured)
               : error_set(SHOAL_ERR_INTERNAL, "the plan and the graph have different inputs");
}

static shoal_status study_inputs(struct input_map *inputs)
{
    struct shoal_plan *plan = inputs->plan;
    for (size_t i = 0; i < plan->n_inputs; i++) {
        TRY(map_add(&inputs->map, map_key(plan->buffers[plan->inputs[i]].storage), i));
    }
    note_steps(inputs);
    find_pieces(inputs);
    plan->binding->pieces = mem_alloc_zeroed(plan->binding->n_pieces + 1, sizeof *plan->binding->pieces);
    if (!plan->binding->pieces) {
        return SHOAL_ERR_NO_MEMORY;
    }
    find_pieces(inputs);
    return SHOAL_OK;
}

/* Does what needs no other rank. */
static shoal_status bind_alone(struct shoal_plan *plan, const shoal_graph *graph,
                               const shoal_compile_options *options)
{
    struct plan_binding *binding = plan->binding;
    TRY(make_memories(plan));
    binding->inputs = mem_alloc_zeroed(plan->n_inputs + 1, sizeof *binding->inputs);
    binding->by_address = mem_alloc_zeroed(plan->n_inputs + 1, sizeof *binding->by_address);
    binding->n_held = mem_alloc_zeroed(plan->n_gathers + 1, sizeof *binding->n_held);
    if (!binding->inputs || !binding->by_address || !binding->n_held) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < plan->n_inputs; i++) {
        binding->by_address[i] = (uint32_t)i;
    }
    TRY(allocate_own(plan, options));
    TRY(note_placeholders(plan, graph));
    struct input_map inputs = {.plan = plan};
    shoal_status status = study_inputs(&inputs);
    map_free(&inputs.map);
    TRY(status);
    TRY(check_twins(plan));
    return plan_find_outputs(plan);
}

/* Collectives ---------------------------------------------------------------------------------------------- */

static const void *find_address(const shoal_tensor *tensor)
{
    void *address = NULL;
    if (tensor && tensor_host_address(tensor, &address) != SHOAL_OK) {
        error_clear();
    }
    return address;
}

struct collective_piece plan_find_piece(const struct plan_collective *collective, size_t index)
{
    const shoal_tensor *recv = collective->receives ? collective->receives[index] : NULL;
    const shoal_tensor *send = collective->sends[index] ? collective->sends[index] : recv;
    return (struct collective_piece){.send = find_address(send),
                                     .recv = (void *)(uintptr_t)find_address(recv)};
}

/* Gives the collective a name for errors, such as "%all_reduce_3 of plan 2", and what ranks compare. */
static shoal_status name_collective(struct shoal_plan *plan, struct plan_collective *collective,
                                    uint32_t number)
{
    char words[PURPOSE_WORDS_BYTES];
    (void)snprintf(words, sizeof words, "%%%.128s of plan %" PRIu32, collective->node, number);
    collective->purpose.id = PURPOSE_PLAN;
    collective->purpose.root = number;
    collective->purpose.unit = collective->ordinal + 1;
    collective->purpose.words = arena_string(&plan->arena, words);
    collective->purpose.label = label_of(collective->unit ? collective->unit : collective->node);
    return collective->purpose.words ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status prepare(struct shoal_plan *plan, struct plan_collective *collective, uint32_t number)
{
    TRY(name_collective(plan, collective, number));
    struct collective call = collective->call;
    call.purpose = &collective->purpose;
    shoal_window *window = NULL;
    if (collective->window != PLAN_NONE) {
        window = plan->windows[collective->window].window;
        shoal_window_piece *pieces = (shoal_window_piece *)(uintptr_t)call.window_pieces;
        for (size_t i = 0; i < collective->n_pieces; i++) {
            pieces[i].data = find_address(collective->sends[i]);
        }
    } else {
        struct collective_piece *pieces = (struct collective_piece *)(uintptr_t)call.pieces;
        for (size_t i = 0; i < collective->n_pieces; i++) {
            struct collective_piece found = plan_find_piece(collective, i);
            pieces[i].send = found.send;
            pieces[i].recv = found.recv;
        }
        call.n_pieces = collective->n_pieces;
        call.single = collective->n_pieces > 0 ? pieces[0] : (struct collective_piece){.send = NULL};
    }
    shoal_status status =
        prepared_create(plan->groups[collective->group].group, &call, window, &collective->prepared);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%%%s", collective->node);
}

/* Fills in the groups among the arguments of steps. */
static void put_groups(struct shoal_plan *plan)
{
    for (size_t i = 0; i < plan->n_steps; i++) {
        struct plan_step *step = &plan->steps[i];
        for (size_t k = 0; step->group != PLAN_NONE && k < step->op->n_params; k++) {
            if (step->op->params[k].type == OP_PARAM_GROUP) {
                step->arguments[k].as.group = plan->groups[step->group].group;
            }
        }
    }
}

/* Together ------------------------------------------------------------------------------------------------- */

/* The first of several failures, with its text. */
struct outcome {
    shoal_status status;
    char text[ERROR_TEXT_BYTES];
};

static void note_outcome(struct outcome *outcome, shoal_status status)
{
    if (status != SHOAL_OK && outcome->status == SHOAL_OK) {
        outcome->status = status;
        (void)snprintf(outcome->text, sizeof outcome->text, "%s", shoal_error_text());
    }
}

/* Makes comm memory and windows. Each call is collective over its group: if one fails, the others are made all the
   same, because their members wait for this rank. */
static shoal_status share_memory(struct shoal_plan *plan)
{
    struct outcome outcome = {.status = SHOAL_OK};
    for (size_t i = 0; i < plan->n_groups; i++) {
        struct plan_group *group = &plan->groups[i];
        if (group->comm_bytes > 0) {
            note_outcome(&outcome, symmetric_create_if_possible(group->group, group->comm_bytes, SHOAL_CPU,
                                                                &group->symmetric));
            group->comm = shoal_symmetric_data(group->symmetric);
        }
        /* Group by group, because only members of a group have the same order of windows. */
        for (size_t k = 0; k < plan->n_windows; k++) {
            struct plan_window *window = &plan->windows[k];
            if (window->group == i) {
                note_outcome(&outcome, shoal_window_create(group->group, window->bytes, &window->window));
            }
        }
    }
    return outcome.status == SHOAL_OK ? SHOAL_OK : error_set(outcome.status, "%s", outcome.text);
}

static shoal_status prepare_all(struct shoal_plan *plan, const struct compared_group *compared)
{
    put_memory(plan);
    put_groups(plan);
    for (size_t i = 0; i < plan->n_collectives; i++) {
        struct plan_collective *collective = &plan->collectives[i];
        TRY(prepare(plan, collective, compared[collective->group].number));
    }
    return SHOAL_OK;
}

/*
 * Spreads failures from group to group: a rank that hears of a failure in one group tells its other groups, in this
 * round or the next. Rounds go through the groups backwards and forwards in turn, so that in a mesh all ranks know
 * after the first round. All members of a group have the same n_rounds, so they leave out the same rounds.
 */
static shoal_status tell_all(const struct compared_group *compared, size_t n_groups, shoal_status mine)
{
    bool goes_on = true;
    for (int64_t round = 0; goes_on; round++) {
        goes_on = false;
        for (size_t i = 0; i < n_groups; i++) {
            const struct compared_group *group = &compared[round % 2 == 0 ? n_groups - 1 - i : i];
            if (round < group->n_rounds) {
                mine = compare_outcomes(group, mine);
                goes_on = true;
            }
        }
    }
    return mine;
}

/* Returns `mine`, or the first failure that another rank tells. If there are options, plans are compared, too. */
static shoal_status agree(struct shoal_plan *plan, const struct compared_group *compared, size_t n_groups,
                          const shoal_compile_options *options, shoal_status mine)
{
    for (size_t i = 0; i < n_groups; i++) {
        mine = options ? compare_plans(&compared[i], plan, (uint32_t)i, options, mine)
                       : compare_outcomes(&compared[i], mine);
    }
    return tell_all(compared, n_groups, mine);
}

/* Finds what each group needs: the largest needs of its members, whose steps between collectives may differ. */
static shoal_status agree_on_needs(struct shoal_plan *plan, const struct compared_group *compared,
                                   size_t n_groups)
{
    struct outcome outcome = {.status = SHOAL_OK};
    for (size_t i = 0; i < n_groups; i++) {
        if (plan->groups[i].n_collectives > 0) {
            note_outcome(&outcome, compare_needs(&compared[i], &plan->groups[i]));
        }
    }
    if (outcome.status != SHOAL_OK) {
        return error_set(outcome.status, "%s", outcome.text);
    }
    plan_assign_windows(plan);
    return SHOAL_OK;
}

static bool have_same_ranks(const shoal_group *a, const shoal_group *b)
{
    int n_ranks = shoal_group_n_ranks(a);
    int i = 0;
    while (i < n_ranks && i < shoal_group_n_ranks(b) &&
           shoal_group_world_rank(a, i) == shoal_group_world_rank(b, i)) {
        i++;
    }
    return i == n_ranks && i == shoal_group_n_ranks(b);
}

/* A rank that compares no plan on one group, because it runs one or does something else, compares none on other groups
   of the same ranks either. These are poisoned: waiting there would only end at the deadline. */
static shoal_status agree_on_rounds(struct compared_group *compared, size_t n_groups, shoal_status mine)
{
    struct outcome outcome = {.status = SHOAL_OK};
    struct outcome failure = {.status = SHOAL_OK};
    const shoal_group *failed = NULL;
    note_outcome(&outcome, mine);
    for (size_t i = 0; i < n_groups; i++) {
        shoal_group *group = compared[i].group;
        if (failed && have_same_ranks(failed, group)) {
            group_poison(group, failure.status, failure.text);
            continue;
        }
        shoal_status status = compare_rounds(&compared[i]);
        note_outcome(&outcome, status);
        if (status != SHOAL_OK && !failed && group_failure(group) != SHOAL_OK) {
            note_outcome(&failure, status);
            failed = group;
        }
    }
    return outcome.status == SHOAL_OK ? SHOAL_OK : error_set(outcome.status, "%s", outcome.text);
}

static shoal_status bind_together(struct shoal_plan *plan, struct compared_group *compared, size_t n_groups,
                                  const shoal_compile_options *options, shoal_status mine)
{
    mine = agree_on_rounds(compared, n_groups, mine);
    TRY(agree(plan, compared, n_groups, options, mine));
    mine = agree_on_needs(plan, compared, n_groups);
    if (mine == SHOAL_OK) {
        struct need need; /* another member may need more comm memory than this one */
        need_of_plan(plan, &need);
        mine = need_check_plan(&need, options->max_bytes);
    }
    TRY(agree(plan, compared, n_groups, NULL, mine)); /* before anybody waits in share_memory */
    mine = share_memory(plan);
    if (mine == SHOAL_OK) {
        mine = prepare_all(plan, compared);
    }
    return agree(plan, compared, n_groups, NULL, mine);
}

/* Lists the groups that could be made: all of them, unless something has failed. A failure spreads over fewer groups
   than there are lists of ranks, which limits the number of rounds. */
static size_t list_groups(const shoal_graph *graph, shoal_group *const *groups, size_t n_groups,
                          struct compared_group *compared)
{
    size_t n_compared = 0;
    size_t index = 0;
    int64_t n_lists = 0;
    for (const struct graph_group *row = graph->groups; row; row = row->next) {
        n_lists += (int64_t)row->n_lists;
    }
    for (const struct graph_group *row = graph->groups; row && index < n_groups; row = row->next, index++) {
        if (groups[index]) {
            compared[n_compared++] = (struct compared_group){.name = row->name,
                                                             .group = groups[index],
                                                             .captured = graph->captured,
                                                             .machine = graph->machine,
                                                             .number = collectives_next_root(groups[index]),
                                                             .n_rounds = n_lists - 1};
        }
    }
    return n_compared;
}

static void end_with_world(struct owned *owned);

shoal_status plan_bind(struct shoal_plan *plan, const shoal_graph *graph, shoal_world *world,
                       const shoal_compile_options *options, shoal_group *const *groups, size_t n_groups,
                       shoal_status lowered)
{
    struct compared_group few[FEW_GROUPS]; /* a rank that has no memory left can still tell the others */
    struct compared_group *compared =
        n_groups <= FEW_GROUPS ? few : mem_alloc_zeroed(n_groups, sizeof *compared);
    if (!compared) {
        for (size_t i = 0; i < n_groups; i++) {
            if (groups[i]) {
                group_poison(groups[i], SHOAL_ERR_NO_MEMORY, "a rank has no memory to compare its plan");
            }
        }
        return SHOAL_ERR_NO_MEMORY;
    }
    size_t n_compared = list_groups(graph, groups, n_groups, compared);
    shoal_status status = lowered;
    if (status == SHOAL_OK) {
        plan->binding = mem_alloc_zeroed(1, sizeof *plan->binding);
        if (plan->binding) {
            plan->binding->plan = plan;
        }
        status = plan->binding ? bind_alone(plan, graph, options) : SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; status == SHOAL_OK && i < n_groups; i++) {
        plan->groups[i].group = group_ref(groups[i]);
        plan->groups[i].is_ours = true;
    }
    status = bind_together(plan, compared, n_compared, options, status);
    mem_free(compared != few ? compared : NULL);
    if (status == SHOAL_OK && world) {
        plan->world = world;
        plan->binding->owned.destroy = end_with_world;
        owned_list_add(world_owned(world), &plan->binding->owned);
        plan->binding->is_owned = true;
    }
    return status;
}

/* Freeing -------------------------------------------------------------------------------------------------- */

shoal_status plan_end_fences(struct shoal_plan *plan)
{
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < plan->n_buffers; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        bool is_own = buffer->place != PLAN_SLOT && buffer->place != PLAN_CONSTANT && buffer->storage;
        if (is_own && storage_has_fences(buffer->storage)) {
            shoal_status mine = storage_wait_writable(buffer->storage, /*overwrites=*/true);
            status = status == SHOAL_OK ? mine : status;
            if (mine == SHOAL_OK) {
                storage_forget_fences(buffer->storage);
            }
        }
    }
    return status;
}

/* Waits for everything in flight. Returns false if something could not be waited for, in a callback or a forked
   child. */
static bool end_flights(struct shoal_plan *plan)
{
    bool has_ended = plan_end_fences(plan) == SHOAL_OK;
    for (size_t i = 0; i < plan->n_collectives; i++) {
        struct prepared *prepared = plan->collectives[i].prepared;
        if (prepared && prepared_is_running(prepared)) {
            (void)prepared_wait(prepared);
            has_ended = has_ended && !prepared_is_running(prepared);
        }
        prepared_free(prepared);
        plan->collectives[i].prepared = NULL;
    }
    return has_ended;
}

/* Frees what belongs to the world: windows, symmetric memory, references to groups. Also frees the plan's own memory.
   What is still in flight keeps its memory, which is then lost. The plan cannot run any more. */
static bool is_given_out(void *context, const void *data, size_t bytes, bool is_written)
{
    const struct shoal_plan *plan = context;
    (void)is_written;
    return plan_has_given_out(plan, data, bytes);
}

/* Waits for works that the program has started on the memory of outputs. When the world is being closed, all works have
   ended, and in a forked child none goes on. Returns false if one could not be waited for. */
static bool end_works(struct shoal_plan *plan)
{
    shoal_work *work = NULL;
    bool has_works = plan->binding->is_owned && world_check(plan->world) == SHOAL_OK;
    bool has_ended = true;
    while (has_ended && has_works && (work = world_find_work(plan->world, is_given_out, plan)) != NULL) {
        (void)!shoal_work_wait(work, -1);
        has_ended = completion_is_finished(work_completion(work));
        shoal_work_free(work);
    }
    return has_ended;
}

static void end_shared(struct shoal_plan *plan)
{
    bool has_ended = end_flights(plan);
    has_ended = end_works(plan) && has_ended;
    has_ended = plan_end_outputs(plan) && has_ended;
    for (size_t i = 0; i < plan->n_windows; i++) {
        shoal_window_free(has_ended ? plan->windows[i].window : NULL);
        plan->windows[i].window = NULL;
    }
    for (size_t i = 0; i < plan->n_groups; i++) {
        struct plan_group *group = &plan->groups[i];
        shoal_symmetric_free(has_ended ? group->symmetric : NULL);
        group->symmetric = NULL;
        if (group->is_ours) {
            group_unref(group->group);
        }
        group->group = NULL;
        group->is_ours = false;
    }
    if (has_ended) {
        mem_free(plan->binding->pool);
        mem_free(plan->binding->output);
    }
    plan->binding->pool = NULL;
    plan->binding->output = NULL;
}

/* Called when the world is closed before the plan was freed. */
static void end_with_world(struct owned *owned)
{
    struct plan_binding *binding = (struct plan_binding *)owned;
    binding->is_owned = false;
    end_shared(binding->plan);
    binding->broken = SHOAL_ERR_STATE;
    (void)snprintf(binding->broken_text, sizeof binding->broken_text, "the world of the plan was closed");
}

void plan_unbind(struct shoal_plan *plan)
{
    struct plan_binding *binding = plan->binding;
    if (!binding) {
        return;
    }
    if (binding->is_owned) {
        owned_list_remove(world_owned(plan->world), &binding->owned);
    }
    end_shared(plan);
    if (binding->memories) {
        take_memory(plan);
    }
    for (size_t i = 0; binding->inputs && i < plan->n_inputs; i++) {
        shoal_tensor_unref(binding->inputs[i].tensor);
        shoal_tensor_unref(binding->inputs[i].source);
    }
    mem_free(binding->inputs);
    mem_free(binding->by_address);
    mem_free(binding->pieces);
    mem_free(binding->sets);
    mem_free(binding->outputs);
    mem_free(binding->n_held);
    mem_free(binding);
    plan->binding = NULL;
}
