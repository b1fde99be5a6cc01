"""A GPU's energy counter (NVML), which the driver updates about ten times per second."""

import ctypes

import torch


class Energy:
    def __init__(self):
        """Raises OSError without NVML, RuntimeError if the GPU has no energy counter."""
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._device))
        self.joules()

    def joules(self):
        """Energy since the driver was loaded."""
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(millijoules))
        return millijoules.value * 1e-3

    def _call(self, name, *arguments):
        status = getattr(self._nvml, name)(*arguments)
        if status != 0:
            text = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)(("nvmlErrorString", self._nvml))(status)
            raise RuntimeError(f"{name}: {text.decode()}")
