/* SPDX-License-Identifier: MIT */
/*
 * Names as numbers that stay good for the life of the process: for records that outlive what they name, such as the unit
 * of a collective in the flight record. The table lies in static memory, so that a name never fails: when it is full, all
 * further names are the one that says so.
 *
 * A number is the place of the text in one block. Texts are written before their place is put into a slot of the hash
 * table (release), and read after it was found there (acquire); neither ever changes again.
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
