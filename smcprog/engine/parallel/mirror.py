"""What an engine does to its pages and its model, told to followers before it is done.

The engine keeps working as ever; its attention is replaced by one that announces what happens
to pages and remembers the layout of each plan, so that a forward can be announced too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention import Layout, PagedAttention, PagedBatch
from smcprog.attention.packing import PackedAttention, Segment
from smcprog.errors import SettingError

if TYPE_CHECKING:
    from smcprog.engine.parallel.crew import Crew

__all__ = ["Mirror", "MirroredAttention", "read_batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class _Plan:
    """A plan, and what it was made from."""

    layout: Layout
    inner: Any

    @property
    def positions_M_T(self) -> Tensor:
        positions: Tensor = self.inner.positions_M_T
        return positions


class Mirror:
    """Tells the followers of a crew what one engine does.

    Parameters
    ----------
    crew : Crew
    number : int
        Of the model, among those of the crew.
    """

    def __init__(self, crew: Crew, number: int) -> None:
        self.crew = crew
        self.number = number

    def tell(self, op: str, *arrays: NDArray[Any], **head: Any) -> None:
        """Announce something that needs no answer."""
        with self.crew.turn():
            self.crew.send({"op": op, "model": self.number, **head}, arrays)

    @contextlib.contextmanager
    def forward(self, ids_M_T: Tensor, batch: PagedBatch, keep: int | Tensor) -> Iterator[None]:
        """The forward inside is run by all processes at once."""
        segments: Sequence[Segment] = batch.plan if isinstance(batch.plan, list) else ()
        plans: list[_Plan] = [s.plan for s in segments] or [batch.plan]
        arrays: list[NDArray[Any]] = []
        for plan in plans:
            arrays += [plan.layout.tables_M_W, plan.layout.stored_M, plan.layout.counts_M]
        columns = len(keep) if isinstance(keep, Tensor) else None
        head = {
            "op": "forward",
            "model": self.number,
            "widths": [plan.layout.width for plan in plans],
            "packed": bool(segments),
            "ids": list(ids_M_T.shape),
            "keep": keep if columns is None else None,
            "columns": columns,
        }
        with self.crew.turn():
            self.crew.send(head, arrays)
            # These are on the device, which is not waited for.
            self.crew.share(ids_M_T.contiguous())
            if isinstance(keep, Tensor):
                self.crew.share(keep.contiguous())
            yield


class MirroredAttention(PagedAttention):
    """The attention of an engine whose followers have one of their own.

    Parameters
    ----------
    inner : PagedAttention
        Of this process.
    mirror : Mirror
    """

    def __init__(self, inner: PagedAttention, mirror: Mirror) -> None:
        self._inner = inner
        self._mirror = mirror
        self.page_size = inner.page_size

    @property
    def num_pages(self) -> int:
        return self._inner.num_pages

    @num_pages.setter
    def num_pages(self, pages: int) -> None:
        self._mirror.tell("resize", pages=pages - 1)
        self._inner.num_pages = pages

    def forget(self) -> None:
        self._inner.forget()  # the followers forget when they are told the new number

    def plan(self, layout: Layout) -> _Plan:
        return _Plan(layout, self._inner.plan(layout))

    def attend(
        self,
        plan: _Plan,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        return self._inner.attend(
            plan.inner, layer, query, key, value, scaling=scaling, window=window, softcap=softcap
        )

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        self._mirror.tell("copy_pages", source, target)
        self._inner.copy_pages(source, target)

    def clear_pages(self, pages: NDArray[np.int32]) -> None:
        self._mirror.tell("clear_pages", pages)
        self._inner.clear_pages(pages)

    def static_plan(self, rows: int, width: int, pages: int, groups: int = 0) -> Any:
        """Refused: what a captured graph does cannot be announced.

        Raises
        ------
        SettingError
        """
        raise SettingError(
            "rounds of static shapes cannot be repeated by followers: start the script with "
            "torchrun for those"
        )

    def move_pages(self, source_M: Tensor, target_M: Tensor) -> None:
        """Refused, as `static_plan` is."""
        self.static_plan(0, 0, 0)

    @property
    def layers(self) -> frozenset[int]:
        return self._inner.layers

    @property
    def bytes_per_page(self) -> int:
        return self._inner.bytes_per_page


def read_batch(
    head: dict[str, Any], arrays: Sequence[NDArray[Any]], attention: PagedAttention
) -> tuple[PagedBatch, Tensor]:
    """What `Mirror.forward` announced, with the follower's own attention; and the positions."""
    layouts = [
        Layout(arrays[3 * i], arrays[3 * i + 1], arrays[3 * i + 2], width)
        for i, width in enumerate(head["widths"])
    ]
    if not head["packed"]:
        plan = attention.plan(layouts[0])
        return PagedBatch(attention, plan), plan.positions_M_T
    segments: list[Segment] = []
    begin = 0
    for layout in layouts:
        segments.append(Segment.of(attention, layout, begin))
        begin = segments[-1].end
    positions_S = torch.cat([s.positions_S for s in segments])
    return PagedBatch(PackedAttention(attention), segments), positions_S.unsqueeze(0)
