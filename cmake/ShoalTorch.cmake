# SPDX-License-Identifier: MIT
# The target shoal_torch: the backend of torch.distributed for the torch of SHOAL_TORCH_PYTHON, compiled as
# `python -m shoal.torch build` compiles it. The package takes it from there if SHOAL_TORCH_CACHE names the folder.
set(SHOAL_TORCH_PYTHON python3 CACHE STRING "The Python whose torch the backend is for")
set(shoal_torch_all "")
if(SHOAL_TORCH)
    set(shoal_torch_all ALL)
endif()
add_custom_target(shoal_torch ${shoal_torch_all}
    COMMAND ${CMAKE_COMMAND} -E env "PYTHONPATH=${CMAKE_SOURCE_DIR}/python" "SHOAL_LIBRARY=$<TARGET_FILE:shoal>"
            "PYTHONDONTWRITEBYTECODE=1" ${SHOAL_TORCH_PYTHON} -m shoal.torch build --folder "${CMAKE_BINARY_DIR}/torch"
    VERBATIM)
add_dependencies(shoal_torch shoal)
