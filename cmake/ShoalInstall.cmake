# SPDX-License-Identifier: MIT
# What `make install` puts where: headers, what bindings read of them, the libraries, the tool, its manual, the documents,
# the examples, pkg-config files, a CMake package. All of it finds its parts relative to itself, so that the prefix may be
# chosen, and moved, after the build.
include(CMakePackageConfigHelpers)

install(DIRECTORY "${CMAKE_SOURCE_DIR}/include/shoal" "${CMAKE_SOURCE_DIR}/include/shoal_compat"
    "${CMAKE_SOURCE_DIR}/include/shoal_nn"
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
    FILES_MATCHING PATTERN "*.h")
install(FILES "${CMAKE_SOURCE_DIR}/include/shoal-api.json" DESTINATION "${CMAKE_INSTALL_DATADIR}/shoal")
install(TARGETS shoal shoal_compat shoal_nn EXPORT shoal-targets
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS shoal_tool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(FILES "${SHOAL_STATIC_LIBRARY}" "${SHOAL_COMPAT_STATIC_LIBRARY}" "${SHOAL_NN_STATIC_LIBRARY}"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${CMAKE_SOURCE_DIR}/docs/man/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1"
    FILES_MATCHING PATTERN "*.1")
if(NOT CMAKE_CROSSCOMPILING)
    set(completion "${CMAKE_BINARY_DIR}/completion")
    install(FILES "${completion}/shoal.bash" DESTINATION "${SHOAL_BASH_COMPLETIONS}" RENAME shoal)
    install(FILES "${completion}/shoal.zsh" DESTINATION "${SHOAL_ZSH_COMPLETIONS}" RENAME _shoal)
    install(FILES "${completion}/shoal.fish" DESTINATION "${SHOAL_FISH_COMPLETIONS}")
endif()
install(DIRECTORY "${CMAKE_SOURCE_DIR}/examples/" DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples"
    FILES_MATCHING PATTERN "*.c" PATTERN "*.graph")
install(DIRECTORY "${CMAKE_SOURCE_DIR}/python/examples/" DESTINATION "${CMAKE_INSTALL_DOCDIR}/python/examples"
    FILES_MATCHING PATTERN "*.py")

# Documents lie to each other as in the tree, so that their links hold; the headers lie elsewhere.
install(DIRECTORY "${CMAKE_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}/docs"
    FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "man" EXCLUDE)
# The page of figures links to the reports behind them.
install(DIRECTORY "${CMAKE_SOURCE_DIR}/bench/reports" DESTINATION "${CMAKE_INSTALL_DOCDIR}/bench")
install(FILES "${CMAKE_SOURCE_DIR}/CHANGELOG.md" "${CMAKE_SOURCE_DIR}/CONTRIBUTING.md" "${CMAKE_SOURCE_DIR}/LICENSE"
    DESTINATION "${CMAKE_INSTALL_DOCDIR}")
file(RELATIVE_PATH doc_to_include "/${CMAKE_INSTALL_DOCDIR}" "/${CMAKE_INSTALL_INCLUDEDIR}")
file(READ "${CMAKE_SOURCE_DIR}/README.md" readme)
string(REPLACE "](include/" "](${doc_to_include}/" readme "${readme}")
file(WRITE "${CMAKE_BINARY_DIR}/package/README.md" "${readme}")
set_property(DIRECTORY "${CMAKE_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/README.md")
install(FILES "${CMAKE_BINARY_DIR}/package/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/shoal")
install(EXPORT shoal-targets NAMESPACE shoal:: DESTINATION "${package_dir}")
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/shoal-config.cmake.in"
    "${CMAKE_BINARY_DIR}/package/shoal-config.cmake"
    INSTALL_DESTINATION "${package_dir}"
    PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/package/shoal-config-version.cmake"
    VERSION "${PROJECT_VERSION}" COMPATIBILITY SameMinorVersion)
install(FILES
    "${CMAKE_BINARY_DIR}/package/shoal-config.cmake"
    "${CMAKE_BINARY_DIR}/package/shoal-config-version.cmake"
    DESTINATION "${package_dir}")

file(RELATIVE_PATH SHOAL_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" SHOAL_PC_TO_PREFIX "${SHOAL_PC_TO_PREFIX}")
foreach(name shoal shoal_compat shoal_nn)
    configure_file("${CMAKE_SOURCE_DIR}/cmake/${name}.pc.in" "${CMAKE_BINARY_DIR}/package/${name}.pc" @ONLY)
    install(FILES "${CMAKE_BINARY_DIR}/package/${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endforeach()
