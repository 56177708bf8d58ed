"""A stub: metadata, extras and the configuration of the tools are in setup.cfg."""

from setuptools import setup

setup()
