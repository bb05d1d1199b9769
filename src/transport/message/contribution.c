/* SPDX-License-Identifier: MIT */
/* What one rank contributes to the result of another in a collective. */
#include "transport/message/channel.h"

struct contribution message_contribution(const struct collective *collective, int from, int to)
{
    struct contribution none = {.side = BLOCK_SEND};
    int block = from;
    switch (collective->kind) {
    case COLLECTIVE_BROADCAST:
        /* It has one buffer: the receive buffer, on the root too. */
        return from == collective->root
                   ? (struct contribution){BLOCK_RECV, from, block_elements(collective, BLOCK_RECV, from)}
                   : none;
    case COLLECTIVE_SCATTER:
        if (from != collective->root) {
            return none;
        }
        block = to;
        break;
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_GATHER:
        if (to != collective->root) {
            return none;
        }
        break;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        block = to;
        break;
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_ALL_GATHER:
        break;
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_WINDOW_GATHER:
    case COLLECTIVE_COUNT:
        return none;
    }
    return (struct contribution){BLOCK_SEND, block, block_elements(collective, BLOCK_SEND, block)};
}
