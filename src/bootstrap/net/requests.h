/* SPDX-License-Identifier: MIT */
/* The numbers of what servers answer: rows of requests.def. */
#ifndef BOOTSTRAP_NET_REQUESTS_H
#define BOOTSTRAP_NET_REQUESTS_H

enum request_number {
#define REQUEST(name, function, fields, doc) REQUEST_##name,
#include "bootstrap/net/requests.def"
#undef REQUEST
    REQUEST_COUNT
};

#define STORE_KEY_BYTES_MAX ((size_t)255)
#define STORE_VALUE_BYTES_MAX ((size_t)1024 * 1024)
/* Names of segments may hold lists of ranks as text. */
#define SEGMENT_NAME_BYTES_MAX ((size_t)65535)

#endif
