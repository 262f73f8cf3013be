"""The local launcher with groups of runs: one worker, one line, a state for each run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks.launch.display import PlainDisplay
from benchmarks.launch.local import LocalPool
from benchmarks.launch.perform import Member, Offer, perform
from benchmarks.launch.planned import PlannedRun
from benchmarks.store import Store
from tests.benchmarks.pool_bench import EXECUTOR, Bench, key, said, until


def lines(bench: Bench, word: str) -> list[str]:
    """What the display has said of what ended in that state."""
    return [line for line in bench.output.read_text().splitlines() if line.startswith(word)]


def test_a_group_is_executed_at_once_and_each_run_is_like_any_other(bench: Bench) -> None:
    summary = bench.run([*bench.group(range(3)), *bench.group([5, 6], "2"), bench.config(7)])
    assert (summary.counts, summary.executed) == ({"done": 6}, 6)
    assert bench.executed() == [
        *("together 0 1 2", "end of 0 1 2", "together 5 6", "end of 5 6"),
        *("begin 7 ok", "end 7 ok"),
    ]
    for seed in (0, 1, 2, 5, 6, 7):
        bench.assert_done(seed, 2)
        assert bench.get(seed).status()["attempts"] == 1
    first, second, third = lines(bench, "done")
    assert "parity · quest · 3 runs · group 1  test/accuracy 90.1 % on average" in first
    assert "[3/6 done" in first
    assert "parity · quest · 2 runs · group 2" in second
    assert "parity · quest · seed 7  test/accuracy 90.7 %" in third


def test_a_log_tells_where_the_output_of_the_group_is(bench: Bench) -> None:
    bench.run(bench.group([0, 1]))
    first, second = ((bench.get(seed).path / "log.txt").read_text() for seed in (0, 1))
    assert "2 runs together" in first
    assert "=== done" in first
    where = second.rpartition("see ")[2].strip()
    assert (bench.get(1).path / where).samefile(bench.get(0).path / "log.txt")


def test_what_is_settled_drops_out_and_the_rest_goes_on(bench: Bench) -> None:
    bench.run([bench.config(1), bench.config(2, "diverge")])
    summary = bench.run(bench.group(range(4)))
    assert summary.counts == {"done": 3, "diverged": 1}
    assert summary.executed == 2
    assert bench.executed()[-2:] == ["together 0 3", "end of 0 3"]


def test_what_another_runner_holds_drops_out_and_is_waited_for(bench: Bench) -> None:
    other = bench.program([bench.config(1, epochs=2, seconds=0.8)])
    until(lambda: bench.state(1) == "running")
    summary = bench.run(bench.group(range(3)))
    assert (summary.counts, summary.executed) == ({"done": 3}, 2)
    assert "together 0 2" in bench.executed()
    assert "by another runner" in bench.output.read_text()
    assert said(other)[1]["executed"] == 1


def test_a_run_that_another_runner_takes_before_the_worker_does_drops_out(bench: Bench) -> None:
    """The claim decides, not what the launcher saw when it made its offer."""
    bench.store.prepare(key(1), {})
    other = Store(bench.store.root).run(key(1)).claim()
    assert other is not None
    holders = iter([None])
    planned = [PlannedRun(key(one["seed"]), one, group="1") for one in bench.group([0, 1, 2])]
    with bench.output.open("a") as stream, pytest.MonkeyPatch.context() as patch:
        # The launcher looks once and sees nobody; from then on it sees what is there.
        real = type(bench.get(1)).holder
        patch.setattr(
            type(bench.get(1)),
            "holder",
            lambda run: next(holders, real(run)) if run.key == key(1) else real(run),
        )
        pool = LocalPool(
            bench.store, 1, 1, EXECUTOR, "tests.benchmarks.fake_executor:execute_together",
            display=ReleasingDisplay(stream, other),
        )  # fmt: skip
        summary = pool.run(planned)
    assert summary.counts == {"done": 3}
    assert bench.executed()[:2] == ["together 0 2", "end of 0 2"]
    assert "start       parity · quest · 2 runs · group 1" in bench.output.read_text()


def test_a_run_that_is_done_when_its_worker_claims_it_is_not_done_again(bench: Bench) -> None:
    """Symptom would be: two runners carry out the same run one after the other."""
    bench.run([bench.config(0)])

    def execute(*arguments: object) -> list[None]:
        raise AssertionError("it was carried out")

    members = (Member(key(0), bench.config(0)),)
    (outcome,) = perform(
        bench.store, Offer(members), execute,
        started=lambda *_: None, progress=lambda _: None, stopped=lambda: False,
    )  # fmt: skip
    assert (outcome.state, outcome.executed) == ("done", False)
    assert bench.get(0).holder() is None


def test_a_run_that_is_taken_over_leaves_its_group_going_on(bench: Bench) -> None:
    bench.store = Store(bench.store.root, stale_seconds=1.0)
    runner = bench.program(bench.group(range(3), epochs=4, seconds=0.5))
    until(lambda: len(bench.get(2).metrics()) >= 1)
    run = bench.get(1)
    claim = run.claim(presumed_dead=run.holder())
    assert claim is not None
    until(lambda: bench.state(2) == "done")
    claim.release()
    assert said(runner)[1]["counts"] == {"done": 3}
    assert [bench.get(seed).status()["attempts"] for seed in range(3)] == [1, 2, 1]
    assert bench.executed()[:2] == ["together 0 1 2", "end of 0 1 2"]
    bench.assert_done(0, 4)


class ReleasingDisplay(PlainDisplay):
    """Gives a claim back when the first line about an end is due."""

    def __init__(self, stream: object, claim: object) -> None:
        super().__init__(stream)  # type: ignore[arg-type]
        self._claim = claim

    def ended(self, label: str, state: str, note: str, seconds: float) -> None:
        self._claim.release()  # type: ignore[attr-defined]
        super().ended(label, state, note, seconds)


def test_one_that_diverges_ends_alone(bench: Bench) -> None:
    configs = bench.group(range(3))
    configs[1]["mode"] = "diverge"
    summary = bench.run(configs)
    assert summary.counts == {"done": 2, "diverged": 1}
    assert summary.reasons[key(1)] == "loss is nan"
    assert bench.get(1).status()["details"]["step"] == 11
    assert bench.get(1).result() is None
    for seed in (0, 2):
        bench.assert_done(seed, 2)
    (line,) = lines(bench, "done")
    assert "2 done, 1 diverged" in line
    assert "loss is nan" in line


@pytest.mark.parametrize(("mode", "state"), [("fail", "failed"), ("oom", "oom")])
def test_a_failure_is_that_of_all_and_names_the_way_out(
    bench: Bench, mode: str, state: str
) -> None:
    configs = [*bench.group(range(3)), bench.config(9)]
    configs[1]["mode"] = mode
    summary = bench.run(configs)
    assert summary.counts == {state: 3, "done": 1}
    for seed in range(3):
        assert "launcher.together=false" in summary.reasons[key(seed)]
        assert "Error" in bench.get(seed).status()["details"]["traceback"]
        assert bench.get(seed).holder() is None


def test_a_group_has_the_time_of_all_its_runs(bench: Bench) -> None:
    quick = bench.group([0, 1, 2], seconds=0.7)
    assert bench.run(quick, time_limit=0.7).counts == {"done": 3}
    slow = bench.group([3, 4], seconds=0.4, epochs=9)
    assert bench.run(slow, time_limit=0.5).counts == {"timeout": 2}
    stubborn = bench.group([5, 6])
    stubborn[1]["mode"] = "stubborn"
    summary = bench.run(stubborn, time_limit=0.3, grace=0.5)
    assert summary.counts == {"timeout": 2}
    assert "was killed" in summary.reasons[key(5)]


# Kills and signals


def test_a_worker_that_dies_starts_its_group_anew(bench: Bench) -> None:
    configs = bench.group(range(3))
    configs[2]["mode"] = "die_once"
    assert bench.run(configs).counts == {"done": 3}
    assert bench.executed() == ["together 0 1 2", "together 0 1 2", "end of 0 1 2"]
    for seed in range(3):
        bench.assert_done(seed, 2)
        assert bench.get(seed).status()["attempts"] == 2
    (again,) = lines(bench, "again")
    assert "3 runs · group 1  the worker died (signal 9" in again


def test_a_group_that_kills_its_workers_fails_and_names_the_way_out(bench: Bench) -> None:
    configs = [*bench.group(range(2)), bench.config(9)]
    configs[1]["mode"] = "die_always"
    summary = bench.run(configs)
    assert summary.counts == {"failed": 2, "done": 1}
    assert "3 attempts" in summary.reasons[key(0)]
    assert "launcher.together=false" in summary.reasons[key(0)]


def test_finished_groups_of_a_killed_runner_stay_and_the_others_start_anew(bench: Bench) -> None:
    configs = [*bench.group(range(3)), *bench.group(range(3, 6), "2", epochs=4, seconds=0.4)]
    runner = bench.program(configs)
    until(lambda: len(bench.get(3).metrics()) >= 2)
    pid = bench.get(3).status()["details"]["pid"]
    runner.send_signal(signal.SIGSTOP)  # so that neither can tidy up after the other
    os.kill(pid, signal.SIGKILL)
    runner.kill()
    runner.communicate()
    assert [bench.state(seed) for seed in range(6)] == ["done"] * 3 + ["running"] * 3
    start = time.monotonic()
    summary = bench.run(configs)
    assert time.monotonic() - start < 10
    assert (summary.counts, summary.executed) == ({"done": 6}, 3)
    for seed in range(3, 6):
        bench.assert_done(seed, 4)
        assert bench.get(seed).status()["attempts"] == 2


def test_workers_of_a_killed_runner_end_their_group(bench: Bench) -> None:
    runner = bench.program(bench.group(range(2), epochs=100, seconds=0.3))
    until(lambda: bench.state(0) == bench.state(1) == "running")
    pid = bench.get(0).status()["details"]["pid"]
    runner.kill()
    runner.communicate()
    until(lambda: not Path(f"/proc/{pid}").exists(), 5)
    assert bench.state(0) == bench.state(1) == "interrupted"
    assert bench.get(1).holder() is None


def test_ctrl_c_interrupts_all_of_a_group(bench: Bench) -> None:
    configs = [*bench.group(range(3), epochs=5, seconds=0.4), *bench.group([7, 8], "2")]
    runner = bench.program(configs)
    until(lambda: all(bench.state(seed) == "running" for seed in range(3)))
    runner.send_signal(signal.SIGINT)
    output, summary = said(runner)
    assert summary["interrupted"]
    assert summary["counts"] == {"interrupted": 3, "planned": 2}
    assert "Give the same command again to continue" in output
    assert bench.run(configs).counts == {"done": 5}
    for seed in range(3):
        bench.assert_done(seed, 5)


def test_two_runners_share_groups(bench: Bench) -> None:
    configs = [
        config
        for number in range(8)
        for config in bench.group(
            range(3 * number, 3 * number + 3), str(number), epochs=2, seconds=0.1
        )
    ]
    runners = [bench.program(configs), bench.program(configs)]
    results = [said(runner)[1] for runner in runners]
    assert all(result["counts"] == {"done": 24} for result in results)
    assert sum(result["executed"] for result in results) == 24
    assert all(result["executed"] > 0 for result in results), "one did all: nothing was shared"
    for seed in range(24):
        bench.assert_done(seed, 2)
        assert bench.get(seed).status()["attempts"] == 1


def test_a_suspended_worker_loses_its_group_and_gives_in(bench: Bench) -> None:
    bench.store = Store(bench.store.root, stale_seconds=1.0)
    configs = bench.group(range(2), epochs=3, seconds=0.4)
    runner = bench.program(configs)
    until(lambda: len(bench.get(1).metrics()) >= 1)
    pid = bench.get(0).status()["details"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert bench.run(configs).executed == 2
    finally:
        os.kill(pid, signal.SIGCONT)
    assert said(runner)[1] == {"counts": {"done": 2}, "executed": 0, "interrupted": False}
    for seed in range(2):
        bench.assert_done(seed, 3)
