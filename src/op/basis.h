/* SPDX-License-Identifier: MIT */
/* What the results of a process's kernels depend on beside their arguments, as libraries have stated it
   (shoal_op_set_basis). */
#ifndef OP_BASIS_H
#define OP_BASIS_H

#include <stddef.h>

enum {
    OP_BASIS_LIBRARIES = 8,
    OP_BASIS_NAME_BYTES = 32,
    OP_BASIS_TEXT_BYTES = 1024
};

/* Of a text that has all of it, with the 0 at the end. */
#define OP_BASIS_BYTES (OP_BASIS_LIBRARIES * (OP_BASIS_NAME_BYTES + OP_BASIS_TEXT_BYTES))

/* What ranks differ in, for texts. */
#define OP_BASIS_WORDS "what their kernels compute with (shoal_op_set_basis, SHOAL_PRODUCTS)"

/* Writes "NAME: TEXT", in the order of names, with "; " between libraries; "" if nothing was stated. */
void op_basis_write(char text[OP_BASIS_BYTES]);

#endif
