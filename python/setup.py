# SPDX-License-Identifier: MIT
"""The wheel has compiled libraries, which any version of Python loads: py3-none, for one machine."""

from setuptools import setup
from wheel.bdist_wheel import bdist_wheel


class machine_wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"bdist_wheel": machine_wheel})
