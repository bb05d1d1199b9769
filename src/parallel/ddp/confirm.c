/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/confirm.h"

#include "base/error.h"
#include "base/try.h"
#include "comm/agree/agree.h"

shoal_status ddp_confirm(shoal_group *lane, shoal_status mine)
{
    const struct agreement agreement = agreement_on(lane);
    struct agree_failure failure;
    TRY(agree_outcome(&agreement, AGREE_STATUS_ONLY, mine, &failure));
    return failure.status == SHOAL_OK
               ? SHOAL_OK
               : error_set(failure.status, "another rank failed: %s", shoal_status_name(failure.status));
}
