# SPDX-License-Identifier: MIT
# Device `cuda`: libshoal_cuda-<interface>.so, in the folder "shoal" beside the library. It needs nothing of CUDA to be built: the
# PTX of its kernels lies in the tree (scripts/make_ptx.sh). Where ptxas is found, it holds machine code as well (below).
file(GLOB cuda_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.c")
file(GLOB cuda_ptx CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/ptx/*.ptx")
# What has a thread variable for which there may be no room any more when the module is loaded: base/callback.h.
set(cuda_copies "${CMAKE_CURRENT_LIST_DIR}/../base/callback.c" "${CMAKE_CURRENT_LIST_DIR}/../base/log.c")
add_library(shoal_cuda MODULE ${cuda_sources} ${cuda_copies})
target_compile_definitions(shoal_cuda PRIVATE CALLBACK_IN_MODULE)
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

# Machine code for one kind of GPU: the driver need not compile it. Another GPU gets the PTX.
find_program(CUDA_PTXAS ptxas HINTS /usr/local/cuda/bin DOC "assembler for PTX; OFF: no machine code for GPUs")
set(SHOAL_CUDA_ARCHITECTURE sm_90 CACHE STRING "kind of GPU that machine code is made for, if there is a ptxas")
if(CUDA_PTXAS)
    set(cuda_cubin_folder "${CMAKE_BINARY_DIR}/cuda")
    file(MAKE_DIRECTORY "${cuda_cubin_folder}")
    set(cuda_cubins "")
    foreach(ptx IN LISTS cuda_ptx)
        get_filename_component(family "${ptx}" NAME_WE)
        set(cubin "${cuda_cubin_folder}/${family}.cubin")
        add_custom_command(OUTPUT "${cubin}" DEPENDS "${ptx}" VERBATIM
            COMMAND "${CUDA_PTXAS}" "-arch=${SHOAL_CUDA_ARCHITECTURE}" "${ptx}" -o "${cubin}"
            COMMENT "Assembling ${family}.ptx for ${SHOAL_CUDA_ARCHITECTURE}")
        list(APPEND cuda_cubins "${cubin}")
    endforeach()
    add_custom_target(shoal_cuda_cubins DEPENDS ${cuda_cubins})
    add_dependencies(shoal_cuda shoal_cuda_cubins)
    set_property(SOURCE "${CMAKE_CURRENT_LIST_DIR}/image.c" APPEND PROPERTY
        COMPILE_DEFINITIONS "CUDA_CUBIN_FOLDER=\"${cuda_cubin_folder}\"")
    set_property(SOURCE "${CMAKE_CURRENT_LIST_DIR}/image.c" APPEND PROPERTY OBJECT_DEPENDS ${cuda_cubins})
endif()
install(TARGETS shoal_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/shoal")
