# SPDX-License-Identifier: MIT
# The target shoal_torch: the backend of torch.distributed, compiled as `python -m shoal.torch build` compiles it, for
# the torch of SHOAL_TORCH_PYTHON. The package takes it from there if SHOAL_TORCH_CACHE names the folder.
set(SHOAL_TORCH_PYTHON "" CACHE STRING "The Python whose torch the backend is for; by default the first that has torch")
set(shoal_torch_python "${SHOAL_TORCH_PYTHON}")
if(NOT shoal_torch_python)
    set(shoal_torch_python python3)
    foreach(candidate python3 /usr/bin/python3)
        execute_process(COMMAND ${candidate} -c "import importlib.util as i, sys; sys.exit(not i.find_spec('torch'))"
                        RESULT_VARIABLE shoal_torch_missing OUTPUT_QUIET ERROR_QUIET)
        if(shoal_torch_missing EQUAL 0)
            set(shoal_torch_python ${candidate})
            break()
        endif()
    endforeach()
endif()
set(shoal_torch_all "")
if(SHOAL_TORCH)
    set(shoal_torch_all ALL)
endif()
add_custom_target(shoal_torch ${shoal_torch_all}
    COMMAND ${CMAKE_COMMAND} -E env "PYTHONPATH=${CMAKE_SOURCE_DIR}/python" "SHOAL_LIBRARY=$<TARGET_FILE:shoal>"
            "PYTHONDONTWRITEBYTECODE=1" ${shoal_torch_python} -m shoal.torch build --folder "${CMAKE_BINARY_DIR}/torch-backend"
    VERBATIM)
add_dependencies(shoal_torch shoal)
