/* SPDX-License-Identifier: MIT */
/* What libraries state about their kernels. */
#include <stdio.h>
#include <string.h>

#include "harness/test.h"
#include "op/basis.h"
#include "shoal/op.h"

static void check_all(const char *expected)
{
    char text[OP_BASIS_BYTES];
    op_basis_write(text);
    CHECK_STRING(text, expected);
}

static void state_all(void *context)
{
    char name[OP_BASIS_NAME_BYTES + 1];
    char text[OP_BASIS_TEXT_BYTES + 1];
    check_all("");
    CHECK_OK(shoal_op_set_basis("nn", "blas 1"));
    CHECK_OK(shoal_op_set_basis("mine", "loops"));
    check_all("mine: loops; nn: blas 1");
    CHECK_OK(shoal_op_set_basis("nn", "blas 2"));
    check_all("mine: loops; nn: blas 2");
    CHECK_OK(shoal_op_set_basis("mine", ""));
    CHECK_OK(shoal_op_set_basis("unknown", ""));
    check_all("nn: blas 2");
    CHECK_STATUS(shoal_op_set_basis(NULL, "x"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("op_set_basis: library is NULL");
    CHECK_STATUS(shoal_op_set_basis("", "x"), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_op_set_basis("x", NULL), SHOAL_ERR_INVALID);
    memset(name, 'n', sizeof name - 1);
    memset(text, 't', sizeof text - 1);
    name[sizeof name - 1] = '\0';
    text[sizeof text - 1] = '\0';
    CHECK_STATUS(shoal_op_set_basis(name, "x"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("has more bytes, 1 to 31 expected");
    CHECK_STATUS(shoal_op_set_basis("x", text), SHOAL_ERR_INVALID);
    check_all("nn: blas 2");
    for (int i = 0; i < OP_BASIS_LIBRARIES - 1; i++) {
        (void)snprintf(name, sizeof name, "library %d", i);
        CHECK_OK(shoal_op_set_basis(name, text + 1 + i));
    }
    CHECK_STATUS(shoal_op_set_basis("one more", "x"), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("8 libraries have stated theirs, and there is no room for one more");
}

TEST(libraries_state_what_they_compute_with)
{
    test_in_child(state_all, NULL); /* the statements are the process's */
}
