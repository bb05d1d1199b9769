# SPDX-License-Identifier: MIT
# shoal_add_test(NAME name LABEL label COMMAND command...): one ctest entry. Exit status 77 means skipped.
# Tests get their folders through the environment, so that they run from any working directory.
# A test counts as two of the jobs of ctest (-j), one that mostly waits (tests/CMakeLists.txt) as one. The five of the
# presets are two tests and one that waits.
function(shoal_add_test)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;LABEL" "COMMAND")
    # The harness itself counts the library's memory after every test. Looking for lost memory of others takes 4 s for each
    # process on aarch64: it is done on other processors, where there is such memory, and for the examples.
    set(looks_for_leaks 0)
    if((arg_LABEL STREQUAL "examples" OR arg_NAME MATCHES "^unit/(base|checkpoint|nn)/") AND
            NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
        set(looks_for_leaks 1)
    endif()
    # gcc 13 puts vectors of 64 bytes on the stack that finds uses after return, without their alignment.
    set(asan_options "detect_leaks=${looks_for_leaks}:detect_stack_use_after_return=0")
    math(EXPR timeout_seconds "180 * ${SHOAL_TEST_TIME_SCALE}")
    add_test(NAME "${arg_NAME}" COMMAND ${arg_COMMAND})
    set_tests_properties("${arg_NAME}" PROPERTIES
        LABELS "${arg_LABEL}"
        TIMEOUT "${timeout_seconds}"
        PROCESSORS 2
        SKIP_RETURN_CODE 77
        ENVIRONMENT
            "SHOAL_TEST_SOURCE_DIR=${CMAKE_SOURCE_DIR};SHOAL_TEST_BUILD_DIR=${CMAKE_BINARY_DIR};SHOAL_TEST_RELEASE_DIR=${SHOAL_RELEASE_DIR};SHOAL_TEST_TOOL=${CMAKE_BINARY_DIR}/bin/shoal;SHOAL_TEST_TIME_SCALE=${SHOAL_TEST_TIME_SCALE};ASAN_OPTIONS=${asan_options};${SHOAL_TEST_ENVIRONMENT}")
    # The abi tests look at one release build, and one of them makes it.
    if(arg_LABEL STREQUAL "abi")
        set_tests_properties("${arg_NAME}" PROPERTIES RESOURCE_LOCK release COST 2)
    endif()
endfunction()
