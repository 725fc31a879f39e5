"""What a speech run says: speed as always, then what a listener heard, and how sure the target is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmspec import Pipeline
from mmspec.benchmarks.certainty import mean_top
from mmspec.benchmarks.figures import HF, Figures, figures, long_enough
from mmspec.benchmarks.plot import draw_speed, legend_below, save_panels
from mmspec.benchmarks.rows import split
from mmspec.benchmarks.speaking.figures import Marked, SpokenFigures, spoken_figures
from mmspec.benchmarks.speaking.marking import Sentence
from mmspec.benchmarks.speaking.run import SpeechSettings, requests
from mmspec.benchmarks.tables import aligned, number, percent, span, speed_table

GAUGED = 24
"""Most sentences on which the certainty of the target is taken."""
HONEST = 0.5
"""Mean top probability of an honest task, at most (real models: about 0.25)."""
HEAD = ["method", "WER", "95 %", "added", "95 %", "wrong text", "voice", "other voice", "mel", "length", "ended"]
HEAD += ["NFE/s", "LM-RTF", "RTF", "TTFA"]
NO_LISTENER = "no listener lies beside the model: WER and voices were not measured (name one with --listener)"


@dataclass
class SpeechReport:
    """What a speech run says. certainty: temperature -> mean top probability. own_errors: those of the listener."""

    settings: SpeechSettings
    samples: int
    figures: list[Figures]
    spoken: list[SpokenFigures]
    certainty: dict[float, float | None]
    own_errors: dict[str, float] | None

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "settings": asdict(self.settings.speed),
            "samples": self.samples,
            "figures": [asdict(each) for each in self.figures],
            "spoken": [asdict(each) for each in self.spoken],
            "mean_top_probability": {f"{warmth:g}": value for warmth, value in self.certainty.items()},
            "listener": self.own_errors,
        }

    def text(self) -> str:
        """Everything, for people."""
        speed = self.settings.speed
        counts = {each.utterances for each in self.spoken}
        parts = [f"{speed.model}: {min(counts)} utterances per method", speed_table(self.figures, {}, None)]
        for temperature in speed.temperatures:
            chosen = [each for each in self.spoken if each.temperature == temperature]
            parts.append(f"temperature {temperature:g}, as it sounds\n{spoken_table(chosen)}")
        parts.append(self.notes())
        return "\n\n".join(parts)

    def notes(self) -> str:
        """What the figures stand on."""
        sure = ", ".join(f"{number(value)} at T={warmth:g}" for warmth, value in self.certainty.items())
        lines = [f"mean top-1 probability of the target's law: {sure} (honest: at most {HONEST:g})"]
        if self.own_errors is None:
            lines.append(NO_LISTENER)
        else:
            told = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in self.own_errors.items())
            lines.append(f"the listener's own figures: {told}")
        lines.append(
            "voice: cosine of the listener's voice embeddings, own and (control) another voice; mel: aligned log-mel "
            "distance to our AR loop; seconds of TTFA and RTF are those of streaming, with the codec"
        )
        return "\n".join(lines)

    def draw(self, path: Path) -> None:
        """The plot: S against tau, and what a tolerance costs in words."""
        panels = [
            lambda panel: draw_speed(panel, self.figures),
            lambda panel: draw_curve(panel, self.figures, self.spoken),
        ]
        save_panels(panels, f"{self.settings.speed.model}, {self.samples} utterances per method", path)


def speech_report(
    pipe: Pipeline, found: Sequence[Marked], settings: SpeechSettings, said: list[Sentence], judge: Any
) -> SpeechReport:
    """The report of a run, which `said` these sentences. Raises: InputError if no utterance is long enough to count."""
    speed = settings.speed
    samples = long_enough([sample for sample, _ in found], speed.min_tokens)
    sure = {warmth: mean_top(pipe, requests(said, speed, warmth, GAUGED)) for warmth in speed.temperatures}
    own = None if judge is None else judge.own_errors
    return SpeechReport(settings, len(found), figures(samples), spoken_figures(found), sure, own)


def spoken_table(found: Sequence[SpokenFigures]) -> str:
    """What was heard, and how soon, a row per method."""
    rows = [HEAD]
    for each in found:
        rows.append([
            each.method,
            number(each.wer, 3),
            span(each.wer_low, each.wer_high, 3, ".."),
            number(each.added, 3),
            span(each.added_low, each.added_high, 3, ".."),
            number(each.other),
            number(each.own_voice),
            number(each.other_voice),
            number(each.mel),
            number(each.length),
            percent(each.ended),
            number(each.nfe, 1),
            number(each.lm_rtf),
            number(each.rtf),
            number(each.ttfa),
        ])  # fmt: skip
    return aligned(rows)


def draw_curve(panel: Any, found: Sequence[Figures], spoken: Sequence[SpokenFigures]) -> None:
    """Speed against words lost: for every drafter a line per rule, from the exact rule along the knob that is written
    at its points. What stands left of the dashed line costs at most one point."""
    panel.set(xlabel="WER above that of AR (points)", ylabel="S (decode)", title="what a tolerance costs")
    speeds = {(each.method, each.temperature): each.speedup for each in found}
    points: dict[tuple[str, str, float], list[tuple[float, float, float | None]]] = {}
    for each in spoken:
        speed, (drafter, rule, knob) = speeds.get((each.method, each.temperature)), split(each.method)
        if speed is not None and each.added is not None and each.method != HF:
            points.setdefault((drafter, rule, each.temperature), []).append((100 * each.added, speed, knob))
    for (drafter, rule, warmth), own in points.items():
        start = points.get((drafter, "exact", warmth), []) if rule != "exact" else []
        line = [*start, *sorted(own, key=lambda point: point[1])]
        panel.plot(
            *zip(*(point[:2] for point in line), strict=True), marker="o", label=f"{drafter} @ {rule}, T={warmth:g}"
        )
        for x, y, knob in own:
            if knob is not None:
                panel.annotate(f"{knob:g}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize="small")
    panel.axvline(1.0, color="grey", linewidth=0.8, linestyle="dashed")
    if points:
        legend_below(panel)
