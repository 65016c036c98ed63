"""On a simulated machine: JAX looks for NVIDIA's devices in /dev, which has none, before it loads its plugin."""

import importlib.util
import sys


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "jax._src.hardware_utils":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.has_visible_nvidia_gpu = lambda: True

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
