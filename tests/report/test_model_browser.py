"""The report of a model in a real browser. Where there is no Chromium these tests are skipped."""

import pytest

from bagwise.report.model import write_model_report
from fakes.fitted import fit_votes
from reference.chromium import Chromium, find_chromium

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    fitted = fit_votes(num_bags=80, classes=("Green", "Liberal", HOSTILE), prefix=f"ward {HOSTILE} ")
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_model_report(path, fitted.classifier, fitted.X, fitted.bags, fitted.proportions, title=HOSTILE)
    return path


@pytest.fixture(scope="module")
def browser():
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium on this machine; Debian: apt-get install chromium")
    with Chromium(program) as browser:
        yield browser


# where the bag with this number is in the first panel, in the window
PLACE = """(bag => {{
    const panel = panels[0], box = panel.canvas.getBoundingClientRect();
    return [box.x + panel.x(panel.predicted[bag]), box.y + panel.y(panel.known[bag])];
}})({})"""


def picture(browser, panel=0):
    """What has been drawn in a panel, as the text of a PNG."""
    return browser.run(f"panels[{panel}].canvas.toDataURL()")


@pytest.mark.parametrize("width", [1100, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_renders_without_a_complaint_and_fits_the_window(browser, page, width, dark, tmp_path):
    browser.open(page, width=width, dark=dark)
    assert browser.complaints == []
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)"
    )
    for panel in range(3):
        assert len(picture(browser, panel)) > 5000  # an empty one is far smaller
    (tmp_path / "page.png").write_bytes(browser.screenshot())
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_nothing_of_the_data_runs_and_nothing_else_may(browser, page):
    browser.open(page)
    assert browser.run("document.querySelector('h1').textContent") == HOSTILE
    assert browser.run("document.scripts.length") == 2
    assert browser.run("window.hacked") is None
    injected = (
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s)"
    )
    browser.run(injected)
    assert browser.run("window.hacked") is None
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)


def test_pointing_at_a_bag_shows_it_in_every_panel(browser, page):
    browser.open(page)
    browser.run("panels[0].canvas.scrollIntoView({block: 'center'})")
    before = [picture(browser, panel) for panel in range(3)]
    # a bag that stands alone, so that no other is nearer
    alone = "data.bags.map((_, bag) => panels[0].predicted[bag])"
    bag = browser.run(f"(all => all.indexOf(Math.max(...all)))({alone})")
    browser.point(*browser.run(PLACE.format(bag)))
    assert browser.run("tip.hidden") is False
    shown = browser.run("[...tip.children].map(line => line.textContent)")
    size, held_out = browser.run(f"[data.sizes[{bag}], data.heldOut[{bag}]]")
    known, predicted = browser.run(f"[panels[0].known[{bag}], panels[0].predicted[{bag}]]")
    assert shown[0] == browser.run(f"data.bags[{bag}]")
    assert "<script>" in shown[0]
    assert shown[1] == f"{size} rows, {'held out' if held_out else 'trained on'}"
    assert [float(line.split()[1]) for line in shown[2:]] == pytest.approx([known / 100, predicted / 100], abs=0.051)
    assert all(picture(browser, panel) != before[panel] for panel in range(3))
    box = browser.run("(b => [b.left, b.top, b.right, b.bottom])(tip.getBoundingClientRect())")
    assert 0 <= box[0] < box[2] <= 1100
    assert 0 <= box[1] < box[3] <= 800

    browser.point(1, 1)
    assert browser.run("tip.hidden") is True
    assert [picture(browser, panel) for panel in range(3)] == before
    assert browser.complaints == []


def test_the_arrow_keys_go_from_bag_to_bag(browser, page):
    browser.open(page)
    browser.run("panels[1].canvas.focus()")
    names = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"):
        browser.press(key)
        names.append(browser.run("tip.firstChild.textContent"))
    bags = browser.run("data.bags")
    assert names == [bags[0], bags[1], bags[0], bags[-1]]
    browser.press("Escape")
    assert browser.run("tip.hidden") is True


def test_a_bag_can_be_found_by_a_part_of_its_name(browser, page):
    browser.open(page)
    everything = picture(browser)
    browser.click("#find")
    browser.type("-07")
    assert browser.run("document.getElementById('found').textContent") == "10 found"
    assert picture(browser) != everything
    browser.run("find.select()")
    browser.type("nowhere")
    assert browser.run("document.getElementById('found').textContent") == "0 found"
    assert browser.complaints == []


def test_the_theme_can_be_changed(browser, page):
    browser.open(page)
    light = picture(browser)
    assert browser.run("theme.textContent") == "Dark"
    browser.click("#theme")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
    assert browser.run("theme.textContent") == "Light"
    assert picture(browser) != light
    browser.click("#theme")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert picture(browser) == light


def test_the_worst_bags_can_be_sorted(browser, page):
    def column(number):
        return browser.run(f"[...document.querySelectorAll('#worst tbody tr')].map(r => r.cells[{number}].textContent)")

    browser.open(page)
    as_given = column(7)
    browser.click("#worst th:nth-child(2) button")
    sizes = [int(text) for text in column(1)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 1
    browser.click("#worst th:nth-child(2) button")
    assert [int(text) for text in column(1)] == sorted(sizes)
    assert browser.run("document.querySelector('#worst [aria-sort]').textContent") == "rows"
    browser.click("#worst th:nth-child(1) button")
    assert column(0) == sorted(column(0), reverse=True)
    browser.click("#worst th:nth-child(8) button")
    assert column(7) == as_given


def test_long_names_of_classes_leave_room_for_the_names_of_bags(browser, tmp_path):
    fitted = fit_votes(num_bags=30, classes=("SIMPSON, McGregor (Christian Heritage)", "SUTTON, Jim (Labour Party)"))
    write_model_report(tmp_path / "report.html", fitted.classifier, fitted.X, fitted.bags, fitted.proportions)
    browser.open(tmp_path / "report.html", width=1000)
    assert browser.run("worst.rows[1].cells[0].getBoundingClientRect().height") < 70  # two lines, not letter by letter
    assert browser.run("worst.scrollWidth <= worst.parentElement.clientWidth")


def test_it_prints_in_light_and_goes_back(browser, page):
    browser.open(page, dark=True)
    dark = picture(browser)
    assert browser.pdf().startswith(b"%PDF")
    assert browser.run("root.dataset.theme") is None
    assert picture(browser) == dark
    assert browser.complaints == []
