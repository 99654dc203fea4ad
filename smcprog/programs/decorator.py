"""`@smc.program`: a function of a population becomes a decoding program."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from smcprog.engine.linears import fixed_kernels
from smcprog.engine.parallel import Ranks
from smcprog.engine.prefix import without_sharing
from smcprog.errors import SettingError
from smcprog.programs.options import Options
from smcprog.programs.population import Population
from smcprog.programs.result import posterior_of
from smcprog.programs.run import ProgramEnded, Run
from smcprog.programs.task import ProgramTask
from smcprog.smc.call import seeds_of
from smcprog.smc.posterior import Posterior
from smcprog.smc.scheduler import RequestHandle, Scheduler, shared_scheduler
from smcprog.validate import real

__all__ = ["Program", "play", "program"]

OPTIONS = (*Options.__dataclass_fields__, "seed")
LONGEST_TIMEOUT = 1e9
RESERVED = (*OPTIONS, "scheduler", "timeout")


class Program:
    """A decoding program: Python that runs once and acts on a whole population.

    Parameters
    ----------
    function : callable
        Its first argument is a `Population`; it returns nothing that counts.

    Notes
    -----
    *Target.* A particle is a sequence of texts, and its γ is the product of what the verbs
    weigh: the target of each `extend` given the text before it, the models' probability of what
    was observed or chosen, and every potential weighed. `prompt`, `map`, `branch`, `fork`,
    `resample` and `finish` leave γ as it is. E[Ẑ] = Z = Σγ for every number of particles.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise SettingError(f"program takes a function, got {type(function).__name__}")
        kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if inspect.iscoroutinefunction(function) or any(is_one(function) for is_one in kinds):
            raise SettingError(
                "program takes a plain function: not an async one (to run a program beside others "
                "await its asample), and no generator"
            )
        names = list(inspect.signature(function).parameters)
        taken = [name for name in names if name in RESERVED]
        if not names or taken:
            what = f"its parameter {taken[0]!r} is a setting" if taken else "it has no parameter"
            raise SettingError(
                f"program: {getattr(function, '__name__', function)} must take a population "
                f"first, and its parameters must have other names than the settings "
                f"{', '.join(RESERVED)}; {what}"
            )
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the program, or, given a population first, run it on that population.

        Parameters
        ----------
        *args, **options
            Arguments of the function after the population, and the following settings.
        particles : int, default 8
            N at the start.
        seed : int, optional
        max_tokens : int, default 1024
            Longest text of a particle after the prompt, over all verbs. A particle that reaches
            it ends there, with ``finish_reason="length"``.
        truncate : bool, default True
            Whether such a particle counts; otherwise it has weight zero.
        max_steps : int, default 1000
            Most verbs.
        ess_threshold, resampling, deterministic, on_round
            As for `Potential.sample`.

        Returns
        -------
        Posterior
            Texts are all that came after the prompt. For a population: what the function
            returns.

        Raises
        ------
        StepLimitError
            The program took `max_steps` steps.
        AllDeadError
            Every particle has weight zero.
        SMCError
            What a verb raised. Whatever else the function raises comes out as it is.
        """
        if args and isinstance(args[0], Population):
            return self.function(*args, **options)
        arguments, settings, seed = self._split(options)
        if seed is None and Ranks.joined() is not None:
            raise SettingError(
                "a program that runs in all processes of a launcher needs seed=...: without one, "
                "each would draw its own"
            )
        (seed,) = seeds_of(seed, 1)
        run = Run(settings, seed)
        deterministic = settings.deterministic
        with without_sharing(deterministic), fixed_kernels(deterministic):
            return play(self.function, run, args, arguments)

    def map(
        self, inputs: Sequence[Any], *, scheduler: Scheduler | None = None, **options: Any
    ) -> Any:
        """Run the program once for each of many inputs, all in one batch.

        What the runs ask of a model at a time is done in one forward. Their Python takes turns
        in one thread, so a function that blocks outside of `Population.map` holds up all.

        Parameters
        ----------
        inputs : sequence
            A tuple is the arguments after the population; anything else is the only one.
        scheduler : Scheduler, optional
            By default one for this call.
        **options
            As for a single run; a list of seeds has one an input.

        Returns
        -------
        list of Posterior

        Raises
        ------
        BatchError
            When any run failed: the others were finished, and its ``results`` hold all.
        """
        if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Iterable):
            raise SettingError(
                f"map takes a list of inputs, one for each run, got {type(inputs).__name__}"
            )
        own = Scheduler() if scheduler is None else contextlib.nullcontext(scheduler)
        with own as chosen:
            return self._submit(list(inputs), True, chosen, options).result()

    def submit(self, scheduler: Scheduler, *args: Any, **options: Any) -> RequestHandle:
        """Queue a run in a scheduler, among other programs and requests.

        Parameters
        ----------
        scheduler : Scheduler
        *args, **options
            As for a call; also `timeout`, seconds after which it fails.

        Returns
        -------
        RequestHandle
            A future of the posterior.
        """
        return self._submit([args], False, scheduler, options)

    async def asample(
        self, *args: Any, scheduler: Scheduler | None = None, **options: Any
    ) -> Posterior:
        """Run the program without blocking the event loop; many at a time share one batch.

        Parameters
        ----------
        *args, **options
            As for `submit`.
        scheduler : Scheduler, optional
            By default one that all such calls share.
        """
        handle = self._submit([args], False, scheduler or shared_scheduler(), options)
        post: Posterior = await asyncio.wrap_future(handle)
        return post

    def _submit(
        self, inputs: list[Any], many: bool, scheduler: Scheduler, options: dict[str, Any]
    ) -> RequestHandle:
        timeout = options.pop("timeout", None)
        if timeout is not None:
            timeout = real("timeout", timeout, 0, LONGEST_TIMEOUT)
        arguments, settings, seed = self._split(options)
        seeds = seeds_of(seed, len(inputs))
        tasks = [
            ProgramTask(
                play,
                self.function,
                settings,
                seeds[i],
                one if isinstance(one, tuple) else (one,),
                dict(arguments),
                timeout,
            )
            for i, one in enumerate(inputs)
        ]
        return scheduler.enqueue(tasks, many)

    def __repr__(self) -> str:
        return f"<program {getattr(self.function, '__name__', self.function)}>"

    def _split(self, options: dict[str, Any]) -> tuple[dict[str, Any], Options, Any]:
        """Arguments of the function, checked settings, and the seed as given."""
        late = next((name for name in ("scheduler", "timeout") if name in options), None)
        if late is not None:
            raise SettingError(
                f"{late} is for runs under a scheduler: submit, asample and map take it, a call "
                "does not"
            )
        settings = {name: options.pop(name) for name in OPTIONS if name in options}
        seed: int | Sequence[int] | None = settings.pop("seed", None)
        return options, Options(**settings), seed


def play(
    function: Callable[..., Any], run: Run, args: Sequence[Any], arguments: dict[str, Any]
) -> Posterior:
    """One run, from its first verb to its posterior; all memory is given back."""
    begun = time.perf_counter()
    with run.closing():
        p = Population(run, run.options.particles)
        try:
            with contextlib.suppress(ProgramEnded):
                function(p, *args, **arguments)
        finally:
            p.busy = "belongs to a run that is over"
        run.check_alive(p)
        return posterior_of(p, {"total_s": time.perf_counter() - begun})


def program(function: Callable[..., Any]) -> Program:
    """Make a function of a population a program; see `Program`.

    Examples
    --------
    >>> import smcprog as smc
    >>> @smc.program
    ... def answer(p, question):
    ...     p.prompt(question)
    ...     p.extend(smc.Target(smc.LM()), until=".", max_tokens=40)
    >>> post = answer("Why is the sky blue?", particles=16, seed=0)  # doctest: +SKIP
    """
    return Program(function)
