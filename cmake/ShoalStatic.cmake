# SPDX-License-Identifier: MIT
# shoal_add_static(TARGET NAME OBJECTS VARIABLE): lib<NAME>.a from an object library, its path in VARIABLE of the caller.
# It is one object whose hidden names were made local, so that a program that links it sees the same names as with the
# shared library, and may use our internal names for itself.
function(shoal_add_static target name objects variable)
    set(library "${CMAKE_ARCHIVE_OUTPUT_DIRECTORY}/lib${name}.a")
    set(joined "${CMAKE_CURRENT_BINARY_DIR}/lib${name}.o")
    add_custom_command(OUTPUT "${library}"
        COMMAND "${CMAKE_COMMAND}" -E make_directory "${CMAKE_ARCHIVE_OUTPUT_DIRECTORY}"
        COMMAND "${CMAKE_LINKER}" -r -o "${joined}" $<TARGET_OBJECTS:${objects}>
        COMMAND "${CMAKE_OBJCOPY}" --localize-hidden "${joined}"
        COMMAND "${CMAKE_COMMAND}" -E rm -f "${library}"
        COMMAND "${CMAKE_AR}" rcsD "${library}" "${joined}"
        DEPENDS ${objects} $<TARGET_OBJECTS:${objects}>
        COMMAND_EXPAND_LISTS VERBATIM
        COMMENT "Joining objects into lib${name}.a")
    add_custom_target(${target} ALL DEPENDS "${library}")
    set(${variable} "${library}" PARENT_SCOPE)
endfunction()
