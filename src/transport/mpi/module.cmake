# SPDX-License-Identifier: MIT
# libshoal_mpi_<flavour>-<interface>.so, one for each MPI library that is here; none without mpicc. The compiler wrapper is asked for
# its flags, and the module is compiled with the same compiler as everything else.

# Flags of the compiler wrapper of an MPI: include folders, and what to link. Empty: it is not here, or is another MPI.
function(shoal_find_mpi flavour wrapper)
    find_program(SHOAL_MPICC_${flavour} NAMES "mpicc.${flavour}" "${wrapper}")
    set(mpicc "${SHOAL_MPICC_${flavour}}")
    set(includes "")
    set(links "")
    if(mpicc)
        execute_process(COMMAND "${mpicc}" -show OUTPUT_VARIABLE line RESULT_VARIABLE result ERROR_QUIET)
        separate_arguments(words UNIX_COMMAND "${line}")
        foreach(word IN LISTS words)
            if(word MATCHES "^-I(.*)")
                list(APPEND includes "${CMAKE_MATCH_1}")
            elseif(word MATCHES "^-(L|l|Wl,-rpath)")
                list(APPEND links "${word}")
            endif()
        endforeach()
        set(definition MPICH_VERSION)
        if(flavour STREQUAL openmpi)
            set(definition OPEN_MPI)
        endif()
        file(WRITE "${CMAKE_BINARY_DIR}/mpi/${flavour}.c"
            "#include <mpi.h>\n#ifndef ${definition}\n#error another MPI\n#endif\nint main(void) { return MPI_Finalize(); }\n")
        try_compile(is_good "${CMAKE_BINARY_DIR}/mpi/${flavour}" "${CMAKE_BINARY_DIR}/mpi/${flavour}.c"
            CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${includes}" LINK_LIBRARIES ${links})
        if(NOT is_good)
            set(mpicc "")
        endif()
    endif()
    set(SHOAL_MPI_FOUND "${mpicc}" PARENT_SCOPE)
    set(SHOAL_MPI_INCLUDES "${includes}" PARENT_SCOPE)
    set(SHOAL_MPI_LINKS "${links}" PARENT_SCOPE)
endfunction()

set(SHOAL_MPI_FLAVOURS "")
foreach(flavour openmpi mpich)
    shoal_find_mpi("${flavour}" mpicc)
    if(SHOAL_MPI_FOUND)
        list(APPEND SHOAL_MPI_FLAVOURS "${flavour}")
        # For tests, which have programs that use MPI themselves.
        set(SHOAL_MPI_INCLUDES_${flavour} "${SHOAL_MPI_INCLUDES}" CACHE INTERNAL "")
        set(SHOAL_MPI_LINKS_${flavour} "${SHOAL_MPI_LINKS}" CACHE INTERNAL "")
        shoal_add_transport_module("mpi_${flavour}" endpoint.c module.c process.c services.c start.c)
        shoal_name_module("shoal_transport_mpi_${flavour}" "shoal_mpi_${flavour}")
        # As system headers: their macros cast in ways that warnings forbid.
        target_include_directories("shoal_transport_mpi_${flavour}" SYSTEM PRIVATE ${SHOAL_MPI_INCLUDES})
        target_link_libraries("shoal_transport_mpi_${flavour}" PRIVATE ${SHOAL_MPI_LINKS})
    endif()
endforeach()
set(SHOAL_MPI_FLAVOURS "${SHOAL_MPI_FLAVOURS}" CACHE INTERNAL "MPI libraries for which there is a module")
message(STATUS "  mpi modules: ${SHOAL_MPI_FLAVOURS}")
