"""What is known about claims that are missed or undecided: experiments/findings.toml with today's verdicts."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_jax.claims.catalog import ROOT
from attention_jax.claims.judged import Judged
from attention_jax.claims.verdicts import MET
from attention_jax.errors import InputError

FINDINGS = ROOT / "findings.toml"


@dataclass(frozen=True)
class Finding:
    """Claims with one cause, as they are judged today."""

    title: str
    experiment: str
    cause: str
    settles: str
    """What is left, or would decide the matter."""
    claims: Sequence[Judged]
    corrected: Sequence[Judged] = ()
    """The same claims under a corrected protocol."""
    contradicts: bool = False
    """Whether we take our result to be right, and the source or its transfer to our data to be wrong."""

    @property
    def status(self) -> str:
        """What has become of it: mended, with the verdict of the corrected runs, or the verdicts of its claims."""
        if self.corrected:
            verdicts = {one.verdict for one in self.corrected}
            if verdicts <= {*MET}:
                return "mended and now met"
            if "missed" in verdicts:
                return "mended and still missed"
            if "undecided" in verdicts:
                return "mended, undecided"
            return "mended, not yet run" if verdicts == {"not run"} else "mended, not all run"
        verdicts = {one.verdict for one in self.claims}
        if self.contradicts and "missed" in verdicts:
            return "contradicts the source"
        return "missed" if "missed" in verdicts else "undecided" if "undecided" in verdicts else "met"

    @property
    def shown(self) -> Judged:
        """The claim whose numbers represent it: of the corrected ones if one has been run, a missed one if there is."""
        for claims in (self.corrected, self.claims):
            ran = [one for one in claims if one.verdict != "not run"]
            if ran:
                return next((one for bad in ("missed", "undecided") for one in ran if one.verdict == bad), ran[0])
        return (*self.claims, *self.corrected)[0]


def read(path: Path = FINDINGS) -> dict:
    """The tables "systems", "headline" and "finding" of the file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def matching(rows: Sequence[Judged], experiment: str, prefixes: Sequence[str]) -> list[Judged]:
    """The claims of an experiment that begin with one of the prefixes, in the order of these.

    Raises InputError if a prefix matches none.
    """
    found = []
    for prefix in prefixes:
        begun = [one for one in rows if one.experiment == experiment and one.claim.text.startswith(prefix)]
        if not begun:
            raise InputError(f"{FINDINGS.name}: no claim of {experiment} begins with {prefix!r}: name one that does")
        found += [one for one in begun if one not in found]
    return found


def findings(rows: Sequence[Judged], listed: Sequence[dict] | None = None) -> list[Finding]:
    """The findings about claims of `rows`, in the order of the file, or of its table `listed`."""
    found = []
    for entry in read()["finding"] if listed is None else listed:
        corrected = matching(rows, entry["experiment"], entry.get("corrected", ()))
        former = [one for one in matching(rows, entry["experiment"], entry["claims"]) if one not in corrected]
        found.append(Finding(**entry | {"claims": former, "corrected": corrected}))
    return found


def unexplained(rows: Sequence[Judged], known: Sequence[Finding]) -> list[Judged]:
    """Claims that are missed or undecided and in no finding."""
    explained = [one for finding in known for one in (*finding.claims, *finding.corrected)]
    return [one for one in rows if one.verdict in ("missed", "undecided") and one not in explained]
