/* SPDX-License-Identifier: MIT */
/*
 * Clips gradients, wherever they are stored: by a norm over all of them, or each element by itself. Whoever has the
 * gradients passes a list of them, or a function that visits them; all are on one device.
 *
 * The sum under a norm is kept in integer bins (kernel/squares.c), and the bins are added over the ranks that
 * gradients are cut among. Nothing is rounded until the end, so the result does not depend on the number of ranks.
 * For the 2-norm and the 1-norm the sum is exact; for other norms each power is rounded before it is added. The
 * infinity norm is a maximum, which needs no rounding.
 */
#ifndef PARALLEL_CLIP_H
#define PARALLEL_CLIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/address.h"
#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

struct kernel_piece; /* kernel/kernel.h */

/* Called with contiguous elements of a gradient. */
typedef shoal_status (*clip_visitor)(void *context, shoal_dtype dtype, struct address data, size_t count);

/*
 * Where the gradients are, in memory of `device`. `walk` visits each gradient of an owner once. `is_written`: they are
 * about to be changed. Otherwise they are added up over ranks, and gradients that another rank adds may be left out.
 * Without `walk` they are the pieces. Other devices than the host take all of them in one call of a kernel, and the host
 * reads one number, or the bins of a sum.
 */
struct clip_source {
    shoal_status (*walk)(void *owner, bool is_written, clip_visitor visit, void *context);
    void *owner;
    shoal_device device;
    double timeout_s; /* how long the host waits for the device; 0 means SHOAL_TIMEOUT */
    const struct kernel_piece *pieces;
    size_t n_pieces;
};

struct clip_norm {
    double max_norm;
    double power; /* p of the p-norm; infinity: the norm is the largest absolute value */
    bool must_be_finite;
};

/* How many numbers clip_say_norm and clip_say_value write: what ranks compare of a call (transport/purpose.h). */
enum {
    CLIP_NORM_DETAILS = 6,
    CLIP_VALUE_DETAILS = 2
};
void clip_say_norm(const struct clip_norm *norm, int64_t details[CLIP_NORM_DETAILS]);
void clip_say_value(double max_value, int64_t details[CLIP_VALUE_DETAILS]);

/* Whether the arguments of a call make sense; `call` begins the text. */
shoal_status clip_check_norm(const char *call, const struct clip_norm *norm);
shoal_status clip_check_value(const char *call, double max_value);

/*
 * Collective over `group` (NULL if no other rank has a part of the gradients). Scales all gradients by max_norm /
 * (norm + 1e-6) if that is below 1 or not a number. If the norm must be finite and is not, returns SHOAL_ERR_STATE
 * and changes nothing.
 */
shoal_status clip_by_norm(const struct clip_source *source, shoal_group *group, const struct clip_norm *norm,
                          double *norm_out);
/* Limits every element to the range from -max_value to max_value. */
shoal_status clip_by_value(const struct clip_source *source, double max_value);

#endif
