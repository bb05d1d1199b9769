# SPDX-License-Identifier: MIT
# What `make uninstall` needs is noted when something is installed. Included before all that has rules for installing: they
# run in the order of their lines.
set(SHOAL_INSTALL_FOLDERS
    "${CMAKE_INSTALL_BINDIR}"
    "${CMAKE_INSTALL_DATADIR}/shoal"
    "${CMAKE_INSTALL_DOCDIR}"
    "${CMAKE_INSTALL_INCLUDEDIR}/shoal"
    "${CMAKE_INSTALL_INCLUDEDIR}/shoal_compat"
    "${CMAKE_INSTALL_INCLUDEDIR}/shoal_nn"
    "${CMAKE_INSTALL_LIBDIR}/cmake/shoal"
    "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
    "${CMAKE_INSTALL_LIBDIR}/shoal"
    "${CMAKE_INSTALL_MANDIR}/man1"
    "${SHOAL_BASH_COMPLETIONS}"
    "${SHOAL_FISH_COMPLETIONS}"
    "${SHOAL_ZSH_COMPLETIONS}")
list(TRANSFORM SHOAL_INSTALL_FOLDERS REPLACE "(.+)" "\"\\1\"" OUTPUT_VARIABLE quoted)
list(JOIN quoted "\n        " SHOAL_INSTALL_FOLDERS)
configure_file("${CMAKE_CURRENT_LIST_DIR}/record_install.cmake.in" "${CMAKE_BINARY_DIR}/record_install.cmake" @ONLY)
install(SCRIPT "${CMAKE_BINARY_DIR}/record_install.cmake")
