/* SPDX-License-Identifier: MIT */
/*
 * Doubles as text that says every bit: "0x1.8p+1", "-0x0p+0", "0x0.8p-1022", "inf", "-inf", "nan". printf's %a says the
 * same, but with the decimal point of the program's locale. Each double but NaN has exactly one text.
 */
#ifndef CHECKPOINT_HEXFLOAT_H
#define CHECKPOINT_HEXFLOAT_H

#include <stdbool.h>

#define HEXFLOAT_BYTES 32

/* Returns `text`. Every NaN is "nan". */
const char *hexfloat_format(char text[HEXFLOAT_BYTES], double value);

/* False: the text is not what hexfloat_format writes, and *value_out is not set. */
bool hexfloat_parse(const char *text, double *value_out);

#endif
