# SPDX-License-Identifier: MIT
# Transports in libraries of their own, which libshoal loads. They see the headers of src/, and no symbol of the library:
# what they need of it comes through services (transport/module.h). The number of that interface is part of their names, so
# that those of several versions of the library can lie in one folder.
foreach(kind TRANSPORT DEVICE)
    set(header "${CMAKE_SOURCE_DIR}/src/transport/transport.h")
    if(kind STREQUAL DEVICE)
        set(header "${CMAKE_SOURCE_DIR}/src/device/row.h")
    endif()
    file(STRINGS "${header}" interface_line REGEX "^#define ${kind}_INTERFACE [0-9]+")
    if(NOT interface_line MATCHES "^#define ${kind}_INTERFACE ([0-9]+)")
        message(FATAL_ERROR "${header} does not define ${kind}_INTERFACE")
    endif()
    set(SHOAL_${kind}_SUFFIX "-${CMAKE_MATCH_1}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
endforeach()

# shoal_name_module(TARGET STEM [KIND]): the file of a module is lib<STEM>-<interface>.so. KIND is TRANSPORT or DEVICE.
function(shoal_name_module target stem)
    set(kind TRANSPORT)
    if(ARGC GREATER 2)
        set(kind "${ARGV2}")
    endif()
    set_target_properties("${target}" PROPERTIES
        PREFIX "lib"
        OUTPUT_NAME "${stem}${SHOAL_${kind}_SUFFIX}")
endfunction()

# shoal_add_transport_module(NAME SOURCE...): libshoal_transport_<NAME>-<interface>.so from sources beside the calling file, in
# the folder "shoal" beside the library, and installed there.
function(shoal_add_transport_module name)
    set(target "shoal_transport_${name}")
    list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
    add_library("${target}" MODULE ${ARGN})
    shoal_name_module("${target}" "${target}")
    set_target_properties("${target}" PROPERTIES
        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/shoal"
        C_VISIBILITY_PRESET hidden
        POSITION_INDEPENDENT_CODE ON)
    target_include_directories("${target}" PRIVATE
        "${CMAKE_SOURCE_DIR}/include"
        "${CMAKE_SOURCE_DIR}/src"
        "${DLPACK_INCLUDE_DIR}")
    target_link_libraries("${target}" PRIVATE shoal_flags Threads::Threads)
    install(TARGETS "${target}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/shoal")
endfunction()
