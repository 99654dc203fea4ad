"""A posterior as a notebook shows it: one self-contained piece of HTML, no scripts.

Colours are translucent or inherited, so that it reads on a light and on a dark page.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smcprog.smc.posterior import Particle, Posterior

__all__ = ["posterior_html"]

SHOWN_PARTICLES = 10
SHOWN_SAMPLE_CHARS = 2000
SHOWN_PARTICLE_CHARS = 200

_MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
_LINE = "border:0;border-top:1px solid rgba(128,128,128,.3)"
_CELL = f"padding:3px 8px;vertical-align:top;{_LINE}"
_NUMBER = f"{_CELL};text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_HEAD = "padding:3px 8px;font-weight:600;opacity:.7;border:0;white-space:nowrap"
# Left-to-right and isolated, so that a text cannot reorder what stands around it.
_TEXT = f"{_MONO};white-space:pre-wrap;overflow-wrap:anywhere;text-align:left;unicode-bidi:isolate"

# Control characters as their pictures (U+2400 …); tab and line feed are kept. The direction
# overrides are shown by name, since they would turn round the rest of the line.
_VISIBLE = {code: 0x2400 + code for code in range(32) if code not in (9, 10)}
_VISIBLE[127] = 0x2421
_NAMED: dict[int, int | str] = {
    **_VISIBLE,
    **{code: f"⟨U+{code:04X}⟩" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def posterior_html(post: Posterior) -> str:
    """HTML of a posterior: the sample, its evidence and ESS, and the heaviest particles.

    Parameters
    ----------
    post : Posterior
        Any result, also one whose particles are all dead.

    Returns
    -------
    str
        One ``div``. Texts are escaped; long ones and long lists are cut, and say so.
    """
    if post.alive:
        sample = f'<div style="{_TEXT};{_BOX}">{_text(post.text, SHOWN_SAMPLE_CHARS)}</div>'
    else:
        sample = f'<div style="{_BOX};color:#d33">Every particle is dead.</div>'
    return (
        '<div style="font-family:system-ui,sans-serif;font-size:13px;line-height:1.4;'
        f'color:inherit;max-width:56em;text-align:left">{sample}{_facts(post)}{_table(post)}</div>'
    )


_BOX = (
    "padding:6px 10px;margin:0 0 6px;background:rgba(128,128,128,.12);"
    "border-left:3px solid #d95f02;border-radius:2px"
)


def _text(text: str, limit: int) -> str:
    shown = html.escape(text[:limit].translate(_NAMED))
    if not text:
        return '<span style="opacity:.6">(empty)</span>'
    if len(text) > limit:
        rest = len(text) - limit
        return f'{shown}<span style="opacity:.6">… ({rest:,} more characters)</span>'
    return shown


def _number(value: float, digits: str = ".4f") -> str:
    """A number for readers: a true minus sign, ∞ for inf, – for NaN."""
    if math.isnan(value):
        return "–"
    return f"{value:{digits}}".replace("-", "−").replace("inf", "∞")


def _facts(post: Posterior) -> str:
    evidence = _number(post.log_evidence)
    if not math.isnan(post.log_evidence_se):
        note = (
            '<span style="opacity:.6;font-weight:normal"> (approximate)</span>'
            if post.log_evidence_se_approximate
            else ""
        )
        evidence += f" ± {post.log_evidence_se:.2g}{note}"
    resamplings = sum(info.resampled for info in post.rounds)
    facts = [
        ("log evidence", evidence),
        ("ESS", f"{post.ess:.3g} of {len(post.particles)}"),
        ("rounds", f"{len(post.rounds)}, {resamplings} resampled"),
    ]
    if post.seed is not None:
        facts.append(("seed", str(post.seed)))
    cells = "".join(
        f'<span style="display:inline-block;margin-right:1.6em"><span style="opacity:.7">{name}'
        f"</span> <b>{value}</b></span>"
        for name, value in facts
    )
    return f'<div style="margin:0 0 6px">{cells}</div>'


def _table(post: Posterior) -> str:
    weights = post.weights.tolist()
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], -post.particles[i].log_target))
    shown, rest = order[:SHOWN_PARTICLES], order[SHOWN_PARTICLES:]
    top = max(weights) or 1.0
    rows = "".join(
        _row(i, post.particles[i], weights[i], weights[i] / top, i == post.sample_index)
        for i in shown
    )
    if rest:
        mass = sum(weights[i] for i in rest)
        rows += (
            f'<tr style="background:none"><td colspan="5" style="{_CELL};text-align:left;'
            f'opacity:.7">and {len(rest)} more, weight {mass:.3f} together</td></tr>'
        )
    names = ("", "weight", "log γ", "end", "text")
    heads = "".join(
        f'<th style="{_HEAD};text-align:{"right" if name == "log γ" else "left"}">{name}</th>'
        for name in names
    )
    return (
        '<table style="border-collapse:collapse;border:0;margin:0;width:100%;color:inherit;'
        f'font-size:12px"><thead><tr style="background:none">{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _row(index: int, particle: Particle, weight: float, share: float, drawn: bool) -> str:
    color = "#d95f02" if drawn else "rgba(60,140,210,.75)"
    bar = (
        '<span style="display:inline-block;width:90px;height:9px;margin-left:6px;'
        'background:rgba(128,128,128,.15)">'
        f'<span style="display:block;height:9px;width:{100 * share:.1f}%;background:{color}">'
        "</span></span>"
    )
    mark = '<span title="the drawn sample" style="color:#d95f02">▶</span> ' if drawn else ""
    dim = "" if particle.alive else "opacity:.55;"
    return (
        f'<tr style="background:none;{dim}"><td style="{_NUMBER}">{mark}{index}</td>'
        f'<td style="{_CELL};white-space:nowrap;text-align:left;'
        f'font-variant-numeric:tabular-nums">{weight:.3f}{bar}</td>'
        f'<td style="{_NUMBER}">{_number(particle.log_target, ".2f")}</td>'
        f'<td style="{_CELL};text-align:left">{html.escape(particle.finish_reason)}</td>'
        f'<td style="{_CELL};{_TEXT};width:100%">'
        f"{_text(particle.text, SHOWN_PARTICLE_CHARS)}</td></tr>"
    )
