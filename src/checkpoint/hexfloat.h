/* SPDX-License-Identifier: MIT */
/*
 * Doubles as text that says every bit: "0x1.8p+1", "-0x0p+0", "0x0.8p-1022", "inf", "-inf", "nan", "-nan(0x1)".
 * printf's %a says the same of numbers, but with the decimal point of the program's locale. Each double has exactly one
 * text. That of a NaN has its fraction in parentheses, unless that is a 1 with zeros behind it.
 */
#ifndef CHECKPOINT_HEXFLOAT_H
#define CHECKPOINT_HEXFLOAT_H

#include <stdbool.h>

#define HEXFLOAT_BYTES 32

/* Returns `text`. */
const char *hexfloat_format(char text[HEXFLOAT_BYTES], double value);

/* False: the text is not what hexfloat_format writes, and *value_out is not set. */
bool hexfloat_parse(const char *text, double *value_out);

#endif
