/* SPDX-License-Identifier: MIT */
/*
 * Doubles as text, exact to the bit: "0x1.8p+1", "-0x0p+0", "0x0.8p-1022", "inf", "-inf", "nan", "-nan(0x1)". For
 * numbers this is printf's %a, but always with a point, whatever the program's locale. Each double has exactly one
 * text. The text of a NaN has its fraction in parentheses, unless only the highest bit of the fraction is set.
 */
#ifndef CHECKPOINT_IO_HEXFLOAT_H
#define CHECKPOINT_IO_HEXFLOAT_H

#include <stdbool.h>

#define HEXFLOAT_BYTES 32

/* Returns `text`. */
const char *hexfloat_format(char text[HEXFLOAT_BYTES], double value);

/* Returns false if the text is not what hexfloat_format writes, and *value_out is not set. */
bool hexfloat_parse(const char *text, double *value_out);

#endif
