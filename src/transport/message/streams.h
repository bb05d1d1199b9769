/* SPDX-License-Identifier: MIT */
/* Point to point by messages. */
#ifndef MESSAGE_STREAMS_H
#define MESSAGE_STREAMS_H

#include "transport/streams.h"

extern const struct transport_streams message_streams;

/* Does what message_streams.connect does, with a bell of the caller's, which outlives the streams. If it is NULL, the
   streams have their own. */
shoal_status message_streams_connect(const struct transport_peers *peers, struct doorbell *bell,
                                     int64_t deadline_ns, struct streams **streams_out);

#endif
