/* SPDX-License-Identifier: MIT */
/* The files of a tokenizer beside an exported model. */
#ifndef EXPORT_TOKENIZER_H
#define EXPORT_TOKENIZER_H

#include "shoal/status.h"

#include <stdint.h>

/* Whether the directory has a tokenizer whose tokens a model with that vocabulary has. */
shoal_status export_check_tokenizer(const char *directory, int64_t vocabulary);

/* Writes vocab.json and merges.txt into `to`: those of `from`, or, if it is NULL, those of bytes. */
shoal_status export_tokenizer(const char *from, const char *to);

#endif
