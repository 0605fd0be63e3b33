"""The whole service in virtual time, with faults: some fixed seeds always, hundreds of fresh ones in the slow set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.campaign import Campaign, read, results, write
from tests.sim.faults import KINDS, excluded
from tests.sim.reached import SEEDS_MIN
from tests.sim.run import run_seed

ROOT = Path(__file__).parents[2]
FIXED = range(1, 21)
FRESH = 500


@pytest.mark.parametrize("seed", FIXED)
def test_a_fixed_seed(seed: int) -> None:
    """Everything that must hold holds after each step and at the end."""
    result = run_seed(seed)
    assert result.failure is None, result.message()
    assert result.samples > 0


@pytest.mark.parametrize(
    ("seed", "kind"), [(2, "damage_bit"), (12, "damage_gone"), (19, "damage_copy"), (20, "damage_missing")]
)
def test_damage_is_named(seed: int, kind: str) -> None:
    """A changed bit, a record that is gone, an older copy and a missing file: see tests/sim/damage.py."""
    result = run_seed(seed, naive=False)
    assert result.failure is None, result.message()
    assert result.hits[kind]


def test_a_seed_repeats_itself_whatever_the_process() -> None:
    """The trace is the same to the last line, in another process with other hashes."""
    here = run_seed(5).digest
    assert run_seed(5).digest == here
    code = "from tests.sim.run import run_seed; print(run_seed(5).digest)"
    environ = {**os.environ, "PYTHONHASHSEED": "12345"}
    there = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert there.stdout.strip() == here, there.stderr


def test_leaving_a_kind_of_fault_out_leaves_it_out() -> None:
    result = run_seed(3, without=KINDS)
    assert result.failure is None, result.message()
    assert result.hits == {}
    assert excluded(["crash"]) == {kind for kind in KINDS if kind.startswith("crash_")}
    with pytest.raises(ValueError, match="no kind of fault"):
        excluded(["crashes"])


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1728152516, id="who held the first life of a breaker that was made again elsewhere kept it"),
        pytest.param(2468242329, id="a first life that ended by a clock ahead counted as the second one's last move"),
        pytest.param(1142732367, id="a commit that came again from a former owner took back an override on the feed"),
        pytest.param(4202183126, id="the view in force was lost when all else was trimmed, and the log began anew"),
    ],
)
def test_a_seed_that_failed_once(seed: int) -> None:
    """Found by fresh seeds, and mended."""
    result = run_seed(seed)
    assert result.failure is None, result.message()


def seed_of_the_code() -> int:
    """Of the files as they were committed: new with every change, and the same again for who repeats a run."""
    command = ["git", "rev-parse", "HEAD^{tree}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(found.stdout[:8], 16) if found.returncode == 0 else int.from_bytes(os.urandom(4))


def test_a_campaign_goes_on_where_an_earlier_part_of_it_ended(tmp_path: Path) -> None:
    """What it came to is the same as that of one part."""
    whole, parts, kept = Campaign(), Campaign(), tmp_path / "kept.json"
    assert read(kept).seeds == 0
    for seed in (3, 4):
        result = run_seed(seed, naive=False)
        whole.add(result)
        parts.add(result)
        write(kept, parts)
        parts = read(kept)
    assert parts == whole
    assert whole.never() == [], "two seeds are too few to tell"
    parts.seeds = SEEDS_MIN
    assert "reader gets a state" not in parts.never()
    parts.reached.clear()
    assert "reader gets a state" in parts.never()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fresh_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """Other seeds for every state of the code (SIM_SEED: the first of them), and every kind of fault has struck often
    enough."""
    first = int(os.environ.get("SIM_SEED") or seed_of_the_code())
    seeds = f"seeds {first} to {first + FRESH - 1}"
    with capsys.disabled():
        print(f"\n{seeds}")
    campaign = Campaign()
    for result in results(range(first, first + FRESH), os.cpu_count() or 1):
        campaign.add(result)
    assert not campaign.failures, "\n\n".join(result.message() for result in campaign.failures[:3])
    assert (campaign.rare(), campaign.never()) == ([], []), seeds
