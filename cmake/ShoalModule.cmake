# SPDX-License-Identifier: MIT
# shoal_add_transport_module(NAME SOURCE...): libshoal_transport_<NAME>.so from sources beside the calling file, installed with the library. It sees
# the headers of src/, and no symbol of the library: what it needs of it comes through services (transport/module.h).
function(shoal_add_transport_module name)
    set(target "shoal_transport_${name}")
    list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
    add_library("${target}" MODULE ${ARGN})
    set_target_properties("${target}" PROPERTIES
        PREFIX "lib"
        C_VISIBILITY_PRESET hidden
        POSITION_INDEPENDENT_CODE ON)
    target_include_directories("${target}" PRIVATE
        "${CMAKE_SOURCE_DIR}/include"
        "${CMAKE_SOURCE_DIR}/src"
        "${DLPACK_INCLUDE_DIR}")
    target_link_libraries("${target}" PRIVATE shoal_flags Threads::Threads)
    install(TARGETS "${target}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endfunction()
