"""What is known about claims that are missed or undecided: experiments/findings.toml with today's verdicts."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_jax.claims.catalog import ROOT
from attention_jax.claims.judged import JudgedClaim
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
    claims: Sequence[JudgedClaim]
    corrected: Sequence[JudgedClaim] = ()
    """The same claims under a corrected protocol."""
    contradicts: bool = False
    """Whether we take our result to be right, and the source or its transfer to our data to be wrong."""

    @property
    def status(self) -> str:
        """ "mended ..." with the verdict of the corrected runs, if there are any, or else the verdict of the claims."""
        if self.corrected:
            verdicts = {row.verdict for row in self.corrected}
            if verdicts <= {*MET}:
                return "mended and now met"
            if "missed" in verdicts:
                return "mended and still missed"
            if "undecided" in verdicts:
                return "mended, undecided"
            return "mended, not yet run" if verdicts == {"not run"} else "mended, not all run"
        verdicts = {row.verdict for row in self.claims}
        if self.contradicts and "missed" in verdicts:
            return "contradicts the source"
        return "missed" if "missed" in verdicts else "undecided" if "undecided" in verdicts else "met"

    @property
    def representative(self) -> JudgedClaim:
        """The claim whose numbers are shown: a corrected one if any has been run, preferably a missed one."""
        for claims in (self.corrected, self.claims):
            ran = [row for row in claims if row.verdict != "not run"]
            if ran:
                return next((row for bad in ("missed", "undecided") for row in ran if row.verdict == bad), ran[0])
        return (*self.claims, *self.corrected)[0]


def read_findings(path: Path = FINDINGS) -> dict:
    """The tables "systems", "headline" and "finding" of the file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def claims_by_prefix(rows: Sequence[JudgedClaim], experiment: str, prefixes: Sequence[str]) -> list[JudgedClaim]:
    """The claims of an experiment that begin with one of the prefixes, in the order of these.

    Raises InputError if a prefix matches none.
    """
    matches = []
    for prefix in prefixes:
        candidates = [row for row in rows if row.experiment == experiment and row.claim.text.startswith(prefix)]
        if not candidates:
            raise InputError(f"{FINDINGS.name}: no claim of {experiment} begins with {prefix!r}: name one that does")
        matches += [row for row in candidates if row not in matches]
    return matches


def load_findings(rows: Sequence[JudgedClaim], entries: Sequence[dict] | None = None) -> list[Finding]:
    """The findings about claims of `rows`, in the order of findings.toml, or of `entries`, its table "finding"."""
    result = []
    for entry in read_findings()["finding"] if entries is None else entries:
        corrected = claims_by_prefix(rows, entry["experiment"], entry.get("corrected", ()))
        former = [row for row in claims_by_prefix(rows, entry["experiment"], entry["claims"]) if row not in corrected]
        result.append(Finding(**entry | {"claims": former, "corrected": corrected}))
    return result


def claims_without_finding(rows: Sequence[JudgedClaim], findings: Sequence[Finding]) -> list[JudgedClaim]:
    """Claims that are missed or undecided and in no finding."""
    explained = [row for finding in findings for row in (*finding.claims, *finding.corrected)]
    return [row for row in rows if row.verdict in ("missed", "undecided") and row not in explained]
