/* SPDX-License-Identifier: MIT */
/* The numbers of what servers answer: rows of requests.def. */
#ifndef COMM_REQUESTS_H
#define COMM_REQUESTS_H

enum request_number {
#define REQUEST(name, function, fields, doc) REQUEST_##name,
#include "comm/requests.def"
#undef REQUEST
    REQUEST_COUNT
};

#define STORE_KEY_BYTES_MAX ((size_t)255)
#define STORE_VALUE_BYTES_MAX ((size_t)1024 * 1024)
/* Names of segments hold the ranks of a group as text. */
#define SEGMENT_NAME_BYTES_MAX ((size_t)65535)

#endif
