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

# Machine code of one kind of GPU, from the same PTX: nothing has to be compiled when it is loaded there. A ptxas that does not
# know that kind, or this PTX, is as good as none.
find_program(SHOAL_PTXAS ptxas HINTS /usr/local/cuda/bin DOC "Makes machine code of kernels; of CUDA")
set(SHOAL_CUDA_ARCHITECTURE sm_90 CACHE STRING "The kind of GPU that machine code is made for, where there is a ptxas")
set(cuda_cubins "")
if(SHOAL_PTXAS)
    execute_process(
        COMMAND "${SHOAL_PTXAS}" "-arch=${SHOAL_CUDA_ARCHITECTURE}" "${CMAKE_CURRENT_LIST_DIR}/ptx/sum.ptx"
            -o "${CMAKE_CURRENT_BINARY_DIR}/tried.cubin"
        RESULT_VARIABLE ptxas_result OUTPUT_QUIET ERROR_QUIET)
    if(ptxas_result EQUAL 0)
        file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/cubin")
        foreach(ptx IN LISTS cuda_ptx)
            get_filename_component(family "${ptx}" NAME_WE)
            set(cubin "${CMAKE_CURRENT_BINARY_DIR}/cubin/${family}.cubin")
            add_custom_command(OUTPUT "${cubin}"
                COMMAND "${SHOAL_PTXAS}" "-arch=${SHOAL_CUDA_ARCHITECTURE}" "${ptx}" -o "${cubin}"
                DEPENDS "${ptx}"
                COMMENT "Machine code of kernels ${family}"
                VERBATIM)
            list(APPEND cuda_cubins "${cubin}")
        endforeach()
        target_sources(shoal_cuda PRIVATE ${cuda_cubins})
        set_property(SOURCE "${CMAKE_CURRENT_LIST_DIR}/image.c" APPEND PROPERTY
            COMPILE_DEFINITIONS "CUDA_CUBIN_FOLDER=\"${CMAKE_CURRENT_BINARY_DIR}/cubin\"")
        set_property(SOURCE "${CMAKE_CURRENT_LIST_DIR}/image.c" APPEND PROPERTY OBJECT_DEPENDS ${cuda_cubins})
    endif()
endif()
install(TARGETS shoal_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/shoal")
