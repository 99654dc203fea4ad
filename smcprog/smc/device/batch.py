"""Continuous batching of rounds of fixed shape: requests join and leave between two launches.

A batch is a program of so many *slots*, a request each. Who joins is loaded into a slot of its own
while the others' rounds are under way; who leaves makes its slot padding again. When slots run out,
or most are empty, all move to a program of another size.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from smcprog.smc.device import cache
from smcprog.smc.device.form import Form
from smcprog.smc.device.launch import Launcher
from smcprog.smc.device.program import RoundProgram
from smcprog.smc.device.reports import Report, Reports
from smcprog.smc.device.start import power_of_two

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["Batch", "Batches", "Member"]

MOST_ROWS = 256
"""Of one program: about as many as a pass over K + 1 tokens should have."""
MOST_UNREAD = 2
"""Reports that a member may have before nobody gets another round."""


class Member(Protocol):
    """A request in a batch."""

    inbox: collections.deque[Report | BaseException]
    """Reports of its rounds, the oldest first; or why there will be none."""

    @property
    def running(self) -> int:
        """Rows that go on, as far as it knows."""

    def foreseen(self) -> NDArray[np.int64]:
        """Tokens of its rows as the next round begins; they then grow."""


class Batch:
    """Requests of one form over one pair of models.

    Parameters
    ----------
    target : LM
    draft : LM or None
    form : Form
        Of one request, without factors on the host, with steps of fixed length.
    """

    def __init__(self, target: LM, draft: LM | None, form: Form) -> None:
        self._target, self._draft, self._form = target, draft, form
        self._slots: list[Member | None] = []
        self._launcher: Launcher | None = None
        self._reports: Reports | None = None
        self._pending: collections.deque[tuple[Report, list[tuple[int, Member]]]]
        self._pending = collections.deque()
        self._most = power_of_two(max(1, MOST_ROWS // form.particles) + 1) // 2

    @property
    def full(self) -> bool:
        """Whether nobody else can join."""
        return len(self.members) >= self._most

    @property
    def members(self) -> list[Member]:
        """Those who joined, and have not left."""
        return [m for m in self._slots if m is not None]

    def join(self, member: Member) -> None:
        """Have a slot; it is padding until the member fills it."""
        if None not in self._slots:
            self._move(max(1, 2 * len(self._slots)))
        self._slots[self._slots.index(None)] = member

    def leave(self, member: Member) -> None:
        """Give the slot back; what was held may be given to others once this returns."""
        at = self._slots.index(member)
        self._slots[at] = None
        assert self._launcher is not None
        with torch.inference_mode():
            self._launcher.program.part(at).clear()
        count = len(self.members)
        if not count:
            self._let_go()
        elif 4 * count <= len(self._slots):
            with contextlib.suppress(torch.OutOfMemoryError):  # they can as well stay
                self._move(power_of_two(count))

    def program_of(self, member: Member) -> RoundProgram:
        """The member's part of the program."""
        assert self._launcher is not None
        return self._launcher.program.part(self._slots.index(member))

    # ------------------------------------------------------------------ rounds

    def pump(self) -> None:
        """Hand out the reports that have come, and launch what can be launched. Never waits."""
        try:
            self._hand_out()
            while self._may_launch():
                self._launch()
                self._hand_out()
        except Exception as error:  # whoever asked must not be the only one to know
            for member in self.members:
                member.inbox.append(error)

    def rest(self) -> None:
        """Wait for the oldest report that is on its way, if any is."""
        if self._pending:
            self._pending[0][0].wait()

    def _hand_out(self) -> None:
        n = self._form.particles
        while self._pending and self._pending[0][0].there:
            report, members = self._pending.popleft()
            for slot, member in members:
                if member in self._slots:
                    member.inbox.append(report.rows(slot * n, (slot + 1) * n))

    def _may_launch(self) -> bool:
        launcher, members = self._launcher, self.members
        if launcher is None or not any(m.running for m in members):
            return False
        # One round may be under way while another waits for it; they are read late rather than
        # launched late.
        if len(self._pending) >= (2 if launcher.captured else 1):
            return False
        unread = max(len(m.inbox) for m in members)
        return unread + len(self._pending) < MOST_UNREAD

    def _launch(self) -> None:
        launcher, n = self._launcher, self._form.particles
        assert launcher is not None and self._reports is not None
        length_M = np.full(len(self._slots) * n, 2, dtype=np.int64)
        members = [(slot, m) for slot, m in enumerate(self._slots) if m is not None]
        for slot, member in members:
            length_M[slot * n : (slot + 1) * n] = member.foreseen()
        with torch.inference_mode():
            launcher.schedule(length_M)
            for launch in launcher.groups:
                launch()
            self._pending.append((self._reports.send(), members))

    # ------------------------------------------------------------------ sizes

    def _move(self, slots: int) -> None:
        """All members go on in a program of another size."""
        form = dataclasses.replace(self._form, requests=slots)
        launcher = cache.take(self._target, self._draft, form)
        old, members = self._launcher, [(i, m) for i, m in enumerate(self._slots) if m is not None]
        with torch.inference_mode():
            for to, (at, _) in enumerate(members):
                assert old is not None
                new_part, old_part = launcher.program.part(to), old.program.part(at)
                new_part.state.take_over(old_part.state)
                new_part.target.take_over(old_part.target)
                if new_part.draft is not None and old_part.draft is not None:
                    new_part.draft.take_over(old_part.draft)
        self._let_go()
        self._launcher, self._reports = launcher, Reports(launcher.program.report_X_M, 4)
        self._slots = [m for _, m in members] + [None] * (slots - len(members))

    def _let_go(self) -> None:
        if self._launcher is not None:
            cache.give_back(self._target, self._draft, self._launcher)
        self._launcher = self._reports = None
        self._slots = []


class Batches:
    """The batches of one thread."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int, Form], list[Batch]] = {}

    def join(self, member: Member, target: LM, draft: LM | None, form: Form) -> Batch:
        """A batch that the member is in from now on."""
        # Their models are held by their requests as long as these are in the batch.
        batches = self._of.setdefault((id(target), id(draft), form), [])
        batches[:] = [b for b in batches if b.members]
        batch = next((b for b in batches if not b.full), None)
        if batch is None:
            batch = Batch(target, draft, form)
        batch.join(member)
        if batch not in batches:
            batches.append(batch)
        return batch

    def leave(self, member: Member, batch: Batch) -> None:
        """The member goes; nobody keeps a batch without members."""
        batch.leave(member)
        if not batch.members:
            self._of = {key: [b for b in some if b.members] for key, some in self._of.items()}
            self._of = {key: some for key, some in self._of.items() if some}
