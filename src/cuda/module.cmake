# SPDX-License-Identifier: MIT
# Device `cuda`: libshoal_cuda-<interface>.so, in the folder "shoal" beside the library. It needs nothing of CUDA to be built: the
# PTX of its kernels lies in the tree (scripts/make_ptx.sh). Where ptxas is found, it holds machine code as well.
file(GLOB cuda_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.c")
file(GLOB cuda_ptx CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/ptx/*.ptx")
add_library(shoal_cuda MODULE ${cuda_sources})
shoal_name_module(shoal_cuda shoal_cuda DEVICE)
set_target_properties(shoal_cuda PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/shoal"
    C_VISIBILITY_PRESET hidden)
# Its own copy of the CPU's kernels says what is refused, so that both refuse the same.
target_link_libraries(shoal_cuda PRIVATE shoal_internal shoal_flags)
target_link_options(shoal_cuda PRIVATE LINKER:--exclude-libs,ALL LINKER:-Bsymbolic LINKER:--gc-sections)
set_property(SOURCE "${CMAKE_CURRENT_LIST_DIR}/image.c" APPEND PROPERTY
    COMPILE_DEFINITIONS "CUDA_IMAGE_FOLDER=\"${CMAKE_CURRENT_LIST_DIR}/ptx\"")
set_property(SOURCE "${CMAKE_CURRENT_LIST_DIR}/image.c" APPEND PROPERTY OBJECT_DEPENDS ${cuda_ptx})
install(TARGETS shoal_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/shoal")
