/* SPDX-License-Identifier: MIT */
/* Point to point over frames. */
#ifndef MESSAGE_STREAMS_H
#define MESSAGE_STREAMS_H

#include "transport/streams.h"

extern const struct transport_streams message_streams;

#endif
