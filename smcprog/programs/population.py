"""`Population`: the particles of a program, and the verbs that act on all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from smcprog.programs.state import PopulationState

if TYPE_CHECKING:
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.lm import LM
    from smcprog.potentials.base import Potential

__all__ = ["Population"]


class Population(PopulationState):
    """The particles of a program: texts with weights, and verbs that work on all at once.

    A program gets one as its first argument. Verbs pass by particles that are finished; where
    nobody goes on, the next verb ends the program, or the branch whose population it is.

    Attributes
    ----------
    log_w_N : Tensor, float64, [N]
        Log-weights since the beginning of the run; resampling makes them equal and leaves
        their sum as it is. −∞ is a dead particle.
    """

    def prompt(self, prompt: Any) -> None:
        """Say what all texts continue; later calls append a text that is not weighed.

        Parameters
        ----------
        prompt : str, list of messages or list of token ids
            As for `Potential.sample`. After anything was generated: a str.

        Raises
        ------
        SettingError
            For messages or ids once there is a prompt.
        """
        from smcprog.programs.append import set_prompt

        set_prompt(self, prompt)

    def extend(
        self,
        target: Potential,
        *,
        until: Any = None,
        max_tokens: int | None = None,
        draft: LM | FedDraft | None = None,
        draft_tokens: int | str = 4,
        draft_temperature: float | None = None,
        coupling: float = math.inf,
        draft_paths: int = 1,
        joint_draws: bool = True,
        truncate: bool | None = None,
        ess_threshold: float | None = None,
        resampling: str | None = None,
    ) -> None:
        """Let a target go on with every text, to its EOS, `until`, or `max_tokens`.

        The factors of the target see this extension only. An EOS is weighed; it is not part of
        the text that later verbs continue.

        Parameters
        ----------
        target : Potential
            A product with a language model in it.
        until : str, compiled pattern, int, or several of them, optional
            Ends the extension at the token with which its text holds one of the strings, or
            matches one of the patterns (`re.Pattern.search`), or which is one of the ids. The
            text stays. Masking factors must be complete there.
        max_tokens : int, optional
            Longest extension, EOS included; by default what the program has left.
        draft, draft_tokens, draft_temperature, coupling, draft_paths, joint_draws, truncate
            As for `Potential.sample`.
        ess_threshold, resampling : optional
            As for `Potential.sample`; by default those of the program.

        Raises
        ------
        SettingError, VocabularyMismatchError, PotentialError, PagesExhaustedError
            As `Potential.sample` does.
        AllDeadError
            If no particle is left.
        """
        from smcprog.programs.extend import extend

        options = {
            "draft": draft,
            "draft_tokens": draft_tokens,
            "draft_temperature": draft_temperature,
            "coupling": coupling,
            "draft_paths": draft_paths,
            "joint_draws": joint_draws,
            "truncate": truncate,
            "ess_threshold": ess_threshold,
            "resampling": resampling,
        }
        extend(self, target, until, max_tokens, options)

    def observe(self, text: str | Sequence[str], target: Potential | None = None) -> None:
        """Append a given text, and weigh it by what the target's models say of it.

        log w += Σ α log p over the tokens of the text. They are those that the tokenizer makes
        of the text alone, special tokens included: other spellings of it do not count.

        Parameters
        ----------
        text : str or sequence of str
            One for all, or one a particle.
        target : Potential, optional
            Its model factors are asked, the others are not. By default the last one that extended;
            in a branch that of the whole, until the branch extends.

        Raises
        ------
        SettingError
            If there is no target, or it has no model.
        AllDeadError
        """
        from smcprog.programs.observe import observe

        observe(self, text, target)

    def weigh(self, potential: Any) -> None:
        """Multiply every weight by φ of the text so far, taken as a complete output.

        The text is all that came after the prompt. Each call counts: weighing one potential at
        two points counts both values.

        Parameters
        ----------
        potential : Potential, or Tensor or sequence of float, [N]
            What to weigh by; or log-weights to add, one a particle.

        Raises
        ------
        PotentialError
            If the potential raised, or gave NaN or +∞.
        AllDeadError
        """
        from smcprog.programs.weigh import weigh

        weigh(self, potential)

    def resample(self, threshold: float | None = None) -> bool:
        """Copy particles in proportion to their weights, which are equal afterwards.

        Parameters
        ----------
        threshold : float, optional
            Only if ESS is below this share of N; by default always.

        Returns
        -------
        bool
            Whether it did.
        """
        from smcprog.programs.resample import resample_population

        return resample_population(self, threshold)

    def choose(self, options: Sequence[str], target: Potential | None = None) -> None:
        """Append one of some texts, drawn as the target's models say.

        Each particle draws option o with probability ∝ Π p^α over its tokens, and log w grows
        by the log of the sum over the options: as likely as the models go on with one of them.
        Whether they would stop there does not count. All options are scored in one pass.

        Parameters
        ----------
        options : sequence of str
            Different from each other. Tokenised as in `observe`.
        target : Potential, optional
            As for `observe`.

        Raises
        ------
        InputError, SettingError, AllDeadError
        """
        from smcprog.programs.choose import choose

        choose(self, options, target)

    def map(
        self,
        fn: Callable[[list[str]], Sequence[str | None]],
        *,
        time_limit: float = 60.0,
        retries: int = 0,
        on_failure: str = "raise",
    ) -> None:
        """Append what a function makes of each text: a tool's answer, say. It is not weighed.

        Parameters
        ----------
        fn : callable
            Takes a list of texts, each once however many particles have it, and returns as
            many strings; None where it has no answer. Special tokens in an answer are text.
        time_limit : float
            Seconds for one call. The call runs in a thread of its own, which is left behind
            when it takes longer.
        retries : int
            How often a call that raised or took too long is made again.
        on_failure : {"raise", "die"}
            Then: raise, or let particles die whose text has no answer. To find them, a list
            that failed is asked again text by text.

        Raises
        ------
        ToolError, ToolTimeoutError
        AllDeadError
        """
        from smcprog.programs.tools import map_texts

        map_texts(self, fn, time_limit, retries, on_failure)

    def branch(
        self,
        condition: Any,
        then: Callable[[Population], Any],
        otherwise: Callable[[Population], Any] | None = None,
    ) -> None:
        """Go on differently with particles for which something holds.

        Parameters
        ----------
        condition : callable, or Tensor or sequence of bool, [N]
            A function of a text, asked once for each different one; or one bool a particle.
        then, otherwise : callable
            Takes a population of the particles for which it does and does not hold; a
            program does. Resampling in it leaves the sum of its weights as it is.

        Raises
        ------
        InputError
            The condition is no bool.
        AllDeadError
        """
        from smcprog.programs.branch import branch

        branch(self, condition, then, otherwise)

    def fork(self, n: int) -> None:
        """Make `n` particles of each, side by side, which share its weight.

        Raises
        ------
        SettingError
            If they become too many.
        """
        from smcprog.programs.branch import fork

        fork(self, n)

    def finish(self) -> None:
        """These particles are complete: later verbs pass them by."""
        for i in self.living(self.begin("finish")):
            self.done[i] = self.finish_reason(i)
