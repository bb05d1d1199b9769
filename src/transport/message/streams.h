/* SPDX-License-Identifier: MIT */
/* Point to point over frames. */
#ifndef MESSAGE_STREAMS_H
#define MESSAGE_STREAMS_H

#include "transport/streams.h"

extern const struct transport_streams message_streams;

/* The same as its connect; the bell is the caller's and outlives the streams. NULL: one of their own. */
shoal_status message_streams_connect(const struct transport_peers *peers, struct doorbell *bell,
                                     int64_t deadline_ns, struct streams **streams_out);

#endif
