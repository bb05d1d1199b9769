/* SPDX-License-Identifier: MIT */
/* The assembler reads the files: CUDA_IMAGE_FOLDER is where the PTX lies in the tree, CUDA_CUBIN_FOLDER where the build has put
   machine code, if it has. */
#include "cuda/image.h"

#include <stddef.h>

#define EMBED(symbol, path)                     \
    __asm__(".pushsection .rodata\n"            \
            ".balign 16\n"                      \
            ".globl " symbol "\n"               \
            ".hidden " symbol "\n" symbol ":\n" \
            ".incbin \"" path "\"\n"            \
            ".byte 0\n"                         \
            ".popsection\n")

#define CUDA_FAMILY(name)                                         \
    EMBED("cuda_ptx_" #name, CUDA_IMAGE_FOLDER "/" #name ".ptx"); \
    extern const char cuda_ptx_##name[];
#include "cuda/kernels/families.def"
#undef CUDA_FAMILY

#ifdef CUDA_CUBIN_FOLDER
#define CUDA_FAMILY(name)                                             \
    EMBED("cuda_cubin_" #name, CUDA_CUBIN_FOLDER "/" #name ".cubin"); \
    extern const char cuda_cubin_##name[];
#include "cuda/kernels/families.def"
#undef CUDA_FAMILY
#define CUBIN(name) cuda_cubin_##name
#else
#define CUBIN(name) NULL
#endif

const struct cuda_image cuda_images[CUDA_FAMILY_COUNT] = {
#define CUDA_FAMILY(name) {#name, cuda_ptx_##name, CUBIN(name)},
#include "cuda/kernels/families.def"
#undef CUDA_FAMILY
};
