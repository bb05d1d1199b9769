/* SPDX-License-Identifier: MIT */
/* Floating-point numbers as text, with the fewest digits that read back exactly, in every locale. */
#ifndef GRAPH_TEXT_FLOAT_TEXT_H
#define GRAPH_TEXT_FLOAT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/dtype.h"

/* The bytes that a written number needs at most, and the most characters of a number that is read. */
#define FLOAT_TEXT_BYTES 64
#define FLOAT_TEXT_MAX_CHARS 512

/*
 * Writes a value of a floating dtype, which is given as a double: "0.1", "-0.0", "1e-7", "inf". There is always a
 * point, an exponent or a word, so that it is not taken for an integer. Every NaN becomes "nan". Returns `text`.
 */
const char *float_text_write(char text[FLOAT_TEXT_BYTES], shoal_dtype dtype, double value);

/* Whether a NaN has the bits that "nan" is read as. */
bool float_text_is_plain_nan(shoal_dtype dtype, const void *element);

enum float_text_result {
    FLOAT_TEXT_OK,
    FLOAT_TEXT_NO_NUMBER,
    FLOAT_TEXT_TOO_LARGE,
    FLOAT_TEXT_TOO_SMALL /* is not zero, but would become zero */
};

/* Reads a number without a sign, with or without a point and an exponent, as a value of a floating dtype; rounds to the
   nearest. */
enum float_text_result float_text_read(shoal_dtype dtype, const char *text, size_t length, double *value_out);

#endif
