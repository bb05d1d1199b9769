/* SPDX-License-Identifier: MIT */
/* Finding a BLAS: what the environment says, what is loaded, how many threads. */
#include <stdlib.h>

#include "nn/blas.h"
#include "unit/nn/fixture.h"

static shoal_nn_blas get_info(void)
{
    shoal_nn_blas info = {.struct_size = sizeof(info), .library = "?", .core = "?"};
    CHECK_OK(shoal_nn_blas_info(&info));
    return info;
}

TEST(the_info_names_a_library)
{
    begin_nn();
    shoal_nn_blas info = get_info();
    CHECK(info.library[0] != '\0');
    CHECK(strcmp(info.library, "none") != 0 || info.n_threads == 1);
    CHECK(info.core != NULL);
    CHECK_STATUS(shoal_nn_blas_info(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_blas_info(&(shoal_nn_blas){.struct_size = 3}), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_blas_info: info_out: struct_size 3 is not");
}
