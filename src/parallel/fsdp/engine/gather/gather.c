/* SPDX-License-Identifier: MIT */
/* Chooses how a unit is gathered, and does what all ways to gather have in common. */
#include "parallel/fsdp/engine/gather/gather.h"

#include "base/options.h"
#include "comm/lane/handles.h"
#include "device/device.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/extension.h"
#include "parallel/fsdp/engine/gather/encoded.h"
#include "parallel/fsdp/engine/gather/full.h"
#include "parallel/fsdp/engine/gather/way.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "parallel/fsdp/engine/state/unit.h"

static const struct fsdp_gather_way *choose(const struct fsdp_unit *unit)
{
    if (unit->mesh->n_shards == 1) {
        return &fsdp_gather_alone;
    }
    if (unit->hooks.all_gather.call) {
        return &fsdp_gather_custom;
    }
    bool is_copied = option_choice(OPTION_FSDP_GATHER) == 1 || fsdp_has_whole_extension(unit);
    bool has_windows = group_has_windows(unit->mesh->gather, unit->device);
    return is_copied || !has_windows ? &fsdp_gather_copy : &fsdp_gather_window;
}

shoal_status fsdp_gather_start(struct fsdp_unit *unit)
{
    unit->gather.way = choose(unit);
    shoal_status status = unit->gather.way->start(unit);
    unit->gather.way = status == SHOAL_OK ? unit->gather.way : NULL;
    return status;
}

static shoal_status wait_for_work(struct fsdp_unit *unit)
{
    shoal_status status = unit->gather.work ? fsdp_common_wait(unit->context, unit->gather.work) : SHOAL_OK;
    shoal_work_free(unit->gather.work);
    unit->gather.work = NULL;
    return status;
}

static void drop(struct fsdp_unit *unit)
{
    const struct fsdp_gather_way *way = unit->gather.way;
    unit->gather.way = NULL;
    if (way && way->drop) {
        way->drop(unit);
    }
}

shoal_status fsdp_gather_finish(struct fsdp_unit *unit)
{
    const struct fsdp_gather_way *way = unit->gather.way;
    shoal_status status = wait_for_work(unit);
    if (status != SHOAL_OK) {
        drop(unit);
        return fsdp_encoded_tell(unit, status);
    }
    unit->gather.way = NULL;
    return way->finish ? way->finish(unit) : SHOAL_OK;
}

void fsdp_gather_drop(struct fsdp_unit *unit)
{
    shoal_status status = wait_for_work(unit);
    (void)status; /* nobody wants what was gathered */
    drop(unit);
}

struct address fsdp_gather_data(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    if (unit->gather.window) {
        struct address window = address_of(shoal_window_data(unit->gather.window->window));
        return address_add(window, (ptrdiff_t)param->window_offset);
    }
    return address_is_none(unit->gather.full) ? param->shard : fsdp_full_at(unit, param);
}

shoal_status fsdp_gather_give_up(struct fsdp_unit *unit)
{
    struct fsdp_block *window = unit->gather.window;
    unit->gather.window = NULL;
    fsdp_full_free(unit);
    return window ? fsdp_pool_release_window(window) : SHOAL_OK;
}
