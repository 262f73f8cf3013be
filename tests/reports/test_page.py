"""The page in a real browser: quiet console, no request, sorting, dialogs, no overflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reports import cli
from tests.reports.build_grid import small_store
from tests.reports.build_store import RunSpec, sample_store

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Opened:
    """A page with everything that it complained about and asked for."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = sample_store(tmp_path_factory.mktemp("store"))
    small_store(store)
    (RunSpec("BasicMotions", "quest", 0).path(store) / "result.json").write_text("{")
    out = tmp_path_factory.mktemp("page") / "report"
    assert cli.main([f"results={store}", f"output={out}"]) == 0
    return out / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=executable, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(params=["light", "dark"])
def opened(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    page = browser.new_page(color_scheme=request.param, viewport={"width": 1280, "height": 900})
    found = Opened(page, report.as_uri())
    page.on(
        "console",
        lambda m: found.complaints.append(m.text) if m.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on("request", lambda r: found.requests.append(r.url))
    page.on("websocket", lambda w: found.requests.append(w.url))
    page.goto(found.address)
    page.wait_for_load_state("load")
    yield found
    page.close()
    assert found.complaints == []
    assert found.requests == [found.address]


def test_everything_is_there(opened: Opened) -> None:
    page = opened.page
    assert page.locator("h1").inner_text() == "Attention benchmark report"
    for name in ("quality", "difference", "selection_gap", "cost", "published", "metrics"):
        table = page.locator(f"#timeseries-tslib_{name} table")
        assert table.count() == 1, name
        assert table.locator("caption").text_content()
        assert table.locator("thead th:not([scope=col])").count() == 0
    assert page.locator("svg.plot[role=img][aria-label]").count() >= 8
    text = page.locator("main").inner_text()
    for words in (
        "quest − standard on JapaneseVowels",
        "not distinguishable",
        "selected on the test split",
        "diverged 1/3",
        "oom",
        "2/3 seeds",
        "1 run could not be read",
        "attention=qknorm_ds protocol=holdout recipe=tslib budget=full seed=0,1,2",
    ):  # fmt: skip
        assert words in text


def test_grid_studies_are_there(opened: Opened) -> None:
    page = opened.page
    for name in ("success", "by_lr", "readings", "cost", "runs"):
        assert page.locator(f"#toy-paper-grid_{name} table").count() == 1, name
    for name in ("success", "accuracies", "key_norms", "attention"):
        assert page.locator(f"#toy-paper-grid_{name}-figure svg.plot").count() == 1, name
    text = page.locator("main").inner_text()
    for words in (
        "quest − standard in success",
        "diverged 1/54, failed 1/54",
        "Success by query-key learning rate",
        "recipe.optimizer.lr=0.001 recipe.optimizer.weight_decay=0.01 dataset.seed=1 seed=1",
    ):
        assert words in text, words


def test_tables_sort_by_value_both_ways_and_keep_empty_cells_last(opened: Opened) -> None:
    table = opened.page.locator("#timeseries-holdout_quality table")
    heading = table.locator("thead th").nth(2)
    cells = table.locator("tbody tr td:nth-child(3)")

    def keys() -> list[str | None]:
        return cells.evaluate_all("cells => cells.map(c => c.dataset.sort ?? null)")

    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    numbers = [float(key) for key in keys() if key is not None]
    assert numbers == sorted(numbers)
    assert len(numbers) == 4
    assert keys()[-1] is None
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert [float(key) for key in keys() if key is not None] == sorted(numbers, reverse=True)
    assert keys()[-1] is None
    name = table.locator("thead th").nth(0)
    name.locator("button").click()
    names = table.locator("tbody th").all_inner_texts()
    assert names == sorted(names)
    assert heading.get_attribute("aria-sort") is None


def test_the_runs_behind_a_cell_are_one_click_away(opened: Opened) -> None:
    page = opened.page
    row = page.locator("#timeseries-holdout_quality tbody tr", has_text="qnorm").first
    row.locator("td button.cell").first.click()
    dialog = page.locator("dialog#runs")
    assert dialog.is_visible()
    assert dialog.locator("h2").inner_text() == "BasicMotions: qnorm"
    assert dialog.locator("article").count() == 3
    text = dialog.inner_text()
    for words in (
        "seed 1", "diverged", "loss is nan at step 70", "test/accuracy = ", "9, counted from 0",
        "timeseries/BasicMotions/qnorm/", "0123456789abcdef", "torch 2.13.0", "sha256:",
        "python run_all.py run domain=timeseries dataset=BasicMotions attention=qnorm",
    ):  # fmt: skip
        assert words in text, words
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    page.locator(".findings button.cell").first.click()
    assert dialog.is_visible()
    dialog.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()


def test_the_scheme_can_be_changed(opened: Opened) -> None:
    page = opened.page
    paper = "() => getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.locator("#scheme").click()
    assert page.evaluate(paper) != before


@pytest.mark.parametrize("width", [1280, 800, 420])
def test_nothing_is_wider_than_the_window(opened: Opened, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 900})
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width


def test_links_inside_the_page_lead_somewhere(opened: Opened) -> None:
    missing = opened.page.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.hash.slice(1))"
        ".filter(id => !document.getElementById(id))"
    )
    assert missing == []
    doubled = opened.page.evaluate(
        "(ids => ids.filter((id, i) => ids.indexOf(id) !== i))"
        "([...document.querySelectorAll('[id]')].map(e => e.id))"
    )
    assert doubled == []


def test_folded_tables_open_when_linked_to(opened: Opened) -> None:
    page = opened.page
    page.locator("nav a[href='#timeseries-holdout_metrics']").click()
    page.wait_for_function(
        "document.getElementById('timeseries-holdout_metrics').closest('details').open"
    )


def test_what_the_store_holds_is_text_never_markup(tmp_path: Path, browser: Any) -> None:
    from tests.reports.build_store import write_run

    evil = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    write_run(tmp_path / "store", RunSpec(state="failed", reason=evil))
    write_run(tmp_path / "store", RunSpec(attention="quest", result={"notes": [evil]}))
    out = tmp_path / "out"
    assert cli.main([f"results={tmp_path / 'store'}", f"output={out}"]) == 0
    page = browser.new_page()
    alerts: list[str] = []
    page.on("dialog", lambda d: (alerts.append(d.message), d.dismiss()))
    page.goto((out / "report.html").as_uri())
    page.locator("td button.cell").first.click()
    assert evil in page.locator("dialog#runs").inner_text()
    page.close()
    assert alerts == []
