/* SPDX-License-Identifier: MIT */
/* The images of kernels that this module holds, one per family: PTX, and machine code for one kind of GPU where the tool for
   that was there when Shoal was built. */
#ifndef CUDA_IMAGE_H
#define CUDA_IMAGE_H

struct cuda_image {
    const char *family;
    const char *ptx;   /* text, which the driver compiles */
    const void *cubin; /* NULL if it was not made */
};

enum cuda_family {
#define CUDA_FAMILY(name) CUDA_FAMILY_##name,
#include "cuda/kernels/families.def"
#undef CUDA_FAMILY
    CUDA_FAMILY_COUNT
};

extern const struct cuda_image cuda_images[CUDA_FAMILY_COUNT];

#endif
