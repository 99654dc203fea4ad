"""The machine that figures are held against: its data sheet, and what simple kernels reach."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from smcprog.bench.accelerator import ACCELERATORS, Accelerator, parse_accelerator
from smcprog.errors import SettingError

__all__ = ["Machine", "find_machine", "sheet_of", "timed", "wanted_device"]

SHEETS = {
    "A100-SXM4-80GB": "a100",
    "H100 80GB HBM3": "h100",
    "H200": "h200",
    "B200": "b200",
}
"""Ends of device names as the driver tells them → data sheet. Boards with other memory, such as
the H100 PCIe, are not in the table: they are measured."""
COPIED = {"cuda": 1 << 30, "cpu": 1 << 24}  # bytes
MULTIPLIED = {"cuda": 8192, "cpu": 256}  # side of a square matrix


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a device allows.

    Attributes
    ----------
    accelerator : Accelerator
        Bandwidth and arithmetic that rooflines are made of.
    source : str
        Where they come from: "data sheet", "given" or "measured".
    copy, matmul : float
        Bytes a second of a large copy (read and written), and operations a second of a square
        product, measured here.
    """

    accelerator: Accelerator
    source: str
    copy: float
    matmul: float

    def report(self) -> dict[str, Any]:
        """For JSON."""
        a = self.accelerator
        return {
            "name": a.name,
            "source": self.source,
            "bandwidth": a.bandwidth,
            "flops": a.flops,
            "dtype": a.dtype,
            "measured_bandwidth": self.copy,
            "measured_flops": self.matmul,
        }


def wanted_device(device: str | None) -> torch.device:
    """The device to measure: CUDA unless another one is named.

    Raises
    ------
    SettingError
        If there is none, or it is neither CUDA nor the CPU.
    """
    chosen = torch.device("cuda") if device is None else _parsed(device)
    if chosen.type not in ("cuda", "cpu"):
        raise SettingError(f"--device must be cuda, cuda:1, … or cpu, got {device!r}")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(
            "bench gpu needs a CUDA device, and PyTorch sees none here; "
            "`--device cpu --shapes tiny` runs the same code on the CPU, to try it"
        )
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", torch.cuda.current_device())
    return chosen


def _parsed(device: str) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError:
        raise SettingError(f"--device must be cuda, cuda:1, … or cpu, got {device!r}") from None


def find_machine(device: torch.device, dtype: torch.dtype, given: str | None = None) -> Machine:
    """The machine of a device: as `given` (see `parse_accelerator`), by its name, or measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    copy, matmul = _copy_speed(device), _matmul_speed(device, dtype)
    label = str(dtype).removeprefix("torch.")
    if given is not None:
        return Machine(parse_accelerator(given), "given", copy, matmul)
    sheet = sheet_of(name)
    if sheet is not None and sheet.dtype == label:
        return Machine(dataclasses.replace(sheet, name=name), "data sheet", copy, matmul)
    return Machine(Accelerator(name, copy, matmul, label), "measured", copy, matmul)


def sheet_of(name: str) -> Accelerator | None:
    """The data sheet of a device by the name that its driver tells."""
    for end, key in SHEETS.items():
        if name.endswith(end):
            return ACCELERATORS[key]
    return None


def timed(device: torch.device, work: Callable[[], Any], repeats: int = 5) -> list[float]:
    """Seconds of each of several calls, on the device's own clock where it has one.

    One call more goes before, for warming up.
    """
    work()
    if device.type != "cuda":
        found = []
        for _ in range(repeats):
            begun = time.perf_counter()
            work()
            found.append(time.perf_counter() - begun)
        return found
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    for begin, end in marks:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize(device)
    return [begin.elapsed_time(end) / 1e3 for begin, end in marks]


def _copy_speed(device: torch.device) -> float:
    source = torch.ones(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = statistics.median(timed(device, lambda: target.copy_(source)))
    return 2 * source.numel() / seconds


def _matmul_speed(device: torch.device, dtype: torch.dtype) -> float:
    side = MULTIPLIED[device.type]
    a = torch.ones((side, side), dtype=dtype, device=device)
    seconds = statistics.median(timed(device, lambda: a @ a))
    return 2 * side**3 / seconds
