"""The report in a real browser: it draws, it answers, and it asks nobody for anything."""

import pytest

from browser import Browser, chromium
from run_records import SCRIPT, run
from secateur import report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("report"),
    pytest.mark.skipif(
        chromium() is None,
        reason="no chromium here; on Debian: apt-get install chromium",
    ),
]

CHARTS = {
    "regression": {"energy", "rounds", "network-before", "network-after", "layers", "scores",
                   "inputs", "coverage", "residuals"},
    "classification": {"energy", "rounds", "network-before", "network-after", "layers", "scores",
                       "inputs", "reliability"},
}  # fmt: skip
MARKS = "svg path, svg circle, svg rect, svg line"


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module", params=CHARTS)
def page(request, browser, tmp_path_factory):
    """The report of a real run, opened from disk."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    found = run(request.param)
    record = found.record()
    report.write_report(record, path)
    browser.resize(1100, 900)
    browser.open(path)
    return browser, record, path


def test_nothing_goes_wrong_and_nothing_is_asked_for(page):
    browser, _, path = page
    assert browser.troubles == []
    assert browser.requests == [path.as_uri()]
    assert not [e for e in browser.events if e.get("method") == "Page.javascriptDialogOpening"]


def test_every_chart_is_there_and_shows_something(page):
    browser, record, _ = page
    drawn = browser.run(f"""[...document.querySelectorAll('[data-chart]')].map((holder) => {{
        const svg = holder.querySelector('svg'), box = svg && svg.getBoundingClientRect();
        return svg && {{
            name: holder.dataset.chart, width: box.width, height: box.height,
            marks: [...holder.querySelectorAll('{MARKS}')].map((mark) => mark.getBBox())
                .filter((box) => box.width + box.height > 0).length,
            title: svg.querySelector('title').textContent,
            about: svg.querySelector('desc').textContent,
            odd: svg.outerHTML.includes('NaN') || svg.outerHTML.includes('undefined'),
        }};
    }})""")
    assert {chart["name"] for chart in drawn} == CHARTS[record["task"]]
    for chart in drawn:
        assert chart["width"] > 300
        assert chart["height"] > 100 or chart["name"] in ("inputs", "layers")
        assert chart["marks"] >= 3, chart
        assert chart["title"]
        assert chart["about"]
        assert not chart["odd"], chart


def test_all_surviving_weights_are_drawn(page):
    browser, record, _ = page
    for when in ("before", "after"):
        matrices = [leaf for leaf in record["leaves"] if len(leaf["shape"]) == 2]
        expected = sum(leaf[when]["live"] for leaf in matrices)
        lines = f"[data-chart=network-{when}] g line"
        assert browser.run(f"document.querySelectorAll('{lines}').length") == expected


def place_of(browser, selector):
    """The middle of an element, brought into view."""
    return browser.run(f"""(() => {{
        const element = document.querySelector({selector!r});
        element.scrollIntoView({{ block: 'center', behavior: 'instant' }});
        const box = element.getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2];
    }})()""")


def tip(browser):
    return browser.run("tip.hidden ? '' : [...tip.children].map((c) => c.textContent).join('|')")


def test_pointing_at_a_weight_shows_mean_deviation_and_delta_f(page):
    browser, record, _ = page
    # The strongest weight is drawn last, on top of the others.
    x, y = place_of(browser, "[data-chart=network-after] g line:last-of-type")
    browser.point(x, y)
    name, mean, deviation, delta_f = tip(browser).split("|")
    assert " → " in name
    told = [float(part.replace("−", "-").split()[-1 - part.endswith("nats")])
            for part in (mean, deviation, delta_f)]  # fmt: skip
    assert (mean[:5], deviation[:19], delta_f[:8]) == ("mean ", "standard deviation ", "delta_f ")
    weights = [
        values
        for leaf in record["leaves"]
        for values in zip(
            *(leaf["after"][k] for k in ("mean", "deviation", "delta_f")), strict=True
        )
        if values[2] is not None
    ]
    assert any(
        all(abs(a - b) <= 2e-3 * abs(b) for a, b in zip(told, w, strict=True)) for w in weights
    )
    browser.point(2, 2)
    assert tip(browser) == ""


@pytest.mark.parametrize("chart", ["scores", "rounds", "energy"])
def test_pointing_at_other_charts_answers_too(page, chart):
    browser, _, _ = page
    selector = f"[data-chart={chart}] " + ("svg" if chart == "energy" else "circle:last-of-type")
    browser.point(*place_of(browser, selector))
    said = {"scores": "delta_f", "rounds": "divergence", "energy": "free energy"}[chart]
    assert said in tip(browser)


def test_the_keyboard_goes_from_weight_to_weight(page):
    browser, _, _ = page
    browser.point(2, 2)
    browser.run("document.querySelector('[data-chart=network-after] svg').focus()")
    browser.press("Home")
    first = tip(browser)
    assert "delta_f" in first
    browser.press("ArrowRight")
    assert "delta_f" in tip(browser)
    assert tip(browser) != first
    browser.press("ArrowLeft")
    assert tip(browser) == first
    browser.press("Escape")
    assert tip(browser) == ""


def test_a_column_that_looks_like_a_script_is_shown_as_text(page):
    browser, _, _ = page
    assert SCRIPT in browser.run("document.body.innerText")
    labels = "document.querySelectorAll('[data-chart=network-before] text')"
    drawn = browser.run(f"[...{labels}].map((label) => label.textContent)")
    assert any(text.startswith("<script>") for text in drawn)
    assert browser.run("document.scripts.length") == 2


def test_it_fits_a_telephone_and_is_drawn_anew(page):
    browser, _, _ = page
    browser.resize(400, 800)
    browser.settle()
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") == 400
    widths = browser.run(
        "[...document.querySelectorAll('.plot svg')].map((s) => s.viewBox.baseVal.width)"
    )
    assert widths
    assert all(width <= 400 for width in widths)
    browser.resize(1100, 900)
    browser.settle()
    assert browser.troubles == []


def test_dark_where_dark_is_preferred_and_light_on_paper(page):
    browser, _, _ = page

    def brightness():
        colour = browser.run(
            "getComputedStyle(document.documentElement).getPropertyValue('--paper')"
        )
        return int(colour.strip()[1:3], 16)

    browser.prefer("dark")
    assert brightness() < 64
    browser.prefer("dark", media="print")
    assert brightness() > 192
    browser.prefer("light", media="")
    assert brightness() > 192
