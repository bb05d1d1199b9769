/* SPDX-License-Identifier: MIT */
/* Lists of moves. */
#include "kernel/kernel.h"

#include <string.h>

#include "tensor/dtype.h"

void kernel_move(const struct kernel_move *moves, size_t n_moves)
{
    for (size_t i = 0; i < n_moves; i++) {
        const struct kernel_move *move = &moves[i];
        void *dst = address_pointer(move->dst);
        size_t bytes = move->count * dtype_bytes(move->dst_dtype);
        if (bytes == 0) {
            continue;
        }
        if (address_is_none(move->src)) {
            memset(dst, 0, bytes); /* all zero bits are zero in every dtype */
        } else if (move->dst_dtype == move->src_dtype) {
            kernel_copy(dst, address_pointer(move->src), bytes);
        } else {
            kernel_cast(move->dst_dtype, dst, move->src_dtype, address_pointer(move->src), move->count);
        }
    }
}
