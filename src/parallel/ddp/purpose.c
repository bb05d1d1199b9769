/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/purpose.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "parallel/ddp/order.h"
#include "shoal/autograd.h"

struct purpose ddp_purpose(const struct ddp *ddp, enum purpose_id id)
{
    return (struct purpose){
        .id = id, .root = (uint32_t)ddp->lane.number + 1, .words = shoal_module_type(ddp->module)};
}

/* How many forward passes are newer than those of the running backward pass, and not reached by any. */
static size_t n_newer_forwards(const struct ddp *ddp)
{
    return ddp->forwards.backward == ddp->backward.number ? ddp->forwards.n_newer : 0;
}

/* "net for an older forward pass (1 newer left) with frozen 0.weight, 1.bias" */
static void write_words(const struct ddp *ddp, char *words)
{
    const char *between = " with frozen ";
    size_t n_newer = n_newer_forwards(ddp);
    struct text text = text_begin(words, PURPOSE_WORDS_BYTES);
    text_add(&text, "%.64s", shoal_module_type(ddp->module));
    if (n_newer > 0) {
        text_add(&text, " for an older forward pass (%zu newer left)", n_newer);
    }
    for (size_t i = 0; i < ddp->n_params; i++) {
        const struct ddp_param *param = &ddp->params[i];
        if (!shoal_requires_grad(param->tensor)) {
            text_add_name(&text, between, param->path);
            between = ", ";
        }
    }
}

shoal_status ddp_find_frozen(struct ddp *ddp)
{
    size_t n_words = (ddp->n_params + 63) / 64;
    bool has_frozen = false;
    if (!ddp->backward.frozen_set) {
        ddp->backward.frozen_set = mem_alloc_zeroed(2 + n_words, sizeof ddp->backward.frozen_set[0]);
    }
    if (!ddp->backward.words) {
        ddp->backward.words = mem_alloc_zeroed(PURPOSE_WORDS_BYTES, 1);
    }
    if (!ddp->backward.frozen_set || !ddp->backward.words) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(ddp->backward.frozen_set, 0, (2 + n_words) * sizeof ddp->backward.frozen_set[0]);
    ddp->backward.frozen_set[0] = DETAIL_SET;
    ddp->backward.frozen_set[1] = (int64_t)n_words;
    for (size_t i = 0; i < ddp->n_params; i++) {
        bool is_frozen = !shoal_requires_grad(ddp->params[i].tensor);
        int64_t *word = &ddp->backward.frozen_set[2 + i / 64];
        *word = (int64_t)((uint64_t)*word | (uint64_t)is_frozen << (i % 64));
        has_frozen = has_frozen || is_frozen;
    }
    ddp->backward.n_frozen_set = has_frozen ? 2 + n_words : 0;
    write_words(ddp, ddp->backward.words);
    return SHOAL_OK;
}

struct purpose ddp_backward_purpose(const struct ddp *ddp, enum purpose_id id)
{
    struct purpose purpose = ddp_purpose(ddp, id);
    purpose.details = ddp->backward.frozen_set;
    purpose.n_details = ddp->backward.n_frozen_set;
    purpose.argument = (uint32_t)n_newer_forwards(ddp);
    purpose.words = ddp->backward.words;
    return purpose;
}

shoal_status ddp_compare(const struct ddp *ddp, const struct purpose *purpose)
{
    return ddp->world ? ddp_order_compare(ddp->order.shared, purpose, NULL, 0) : SHOAL_OK;
}

shoal_status ddp_compare_ready(const struct ddp *ddp, const struct purpose *purpose, shoal_status mine,
                               const char *theirs)
{
    char text[ERROR_TEXT_BYTES];
    int64_t lowest = mine;
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    if (ddp->world) { /* the all-reduce has the purpose, so ranks compare that, too */
        TRY(ddp_order_find_lowest(ddp->order.shared, purpose, &lowest));
    }
    if (mine != SHOAL_OK) {
        return error_set(mine, "%s", text);
    }
    return lowest == SHOAL_OK ? SHOAL_OK : error_set((shoal_status)lowest, "%s", theirs);
}
