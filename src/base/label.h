/* SPDX-License-Identifier: MIT */
/*
 * Names as numbers that stay valid for the life of the process. They are for records that outlive what they name, such
 * as the unit of a collective in the flight record. The table is in static memory, so making a label never fails: when
 * the table is full, all further names get the same label, whose text says so.
 *
 * A label is the offset of its text in one block. The text is written before its offset is put into a slot of the hash
 * table (release), and read after the offset was found there (acquire); neither ever changes again.
 */
#ifndef BASE_LABEL_H
#define BASE_LABEL_H

#include <stdint.h>

/* Longer names are cut. */
#define LABEL_MAX_CHARS 127

/* The number of a name; the same for the same text. 0 for "" and NULL. Threads: any, without waiting. */
uint32_t label_of(const char *name);

/* "" for 0, and for a number that is none. */
const char *label_text(uint32_t label);

#endif
