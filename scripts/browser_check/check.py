"""Looks at pages in a browser: uses them, and fails if one logs an error or asks for anything.

python3 check.py FOLDER PAGE…; each PAGE is a file that `tealight report` wrote.
"""

import sys
from pathlib import Path

from browser import Browser
from expectations import LOOKS, check_log, check_names, check_width, expect, failures

ARROW_LEFT, HOME = "\ue012", "\ue011"


def check_labels(browser, name):
    """The last label of each x axis has room, and so do those of the y axes."""
    cut = browser.js("""
        return [...shown].filter(([, { plot }]) => {
            const right = plot.width - (plot.bbox.left + plot.bbox.width) / devicePixelRatio;
            const last = axisValues(plot, plot.data[0].slice(-1)), left = plot.bbox.left / devicePixelRatio;
            const steps = plot.axes[1]._values || [];
            return right < widest(last) / 2 || left < widest(steps);
        }).map(([metric]) => metric);""")
    expect(not cut, f"{name}: labels of axes are cut off: {cut}")


def check_groups(browser, name):
    """One legend for all charts of several runs: it hides the lines of a group, and hovering names the nearest line."""
    browser.hover("#chart-loss .u-over")
    said = browser.js("return document.querySelector('#chart-loss .nearest').textContent")
    expect(" at step " in said, f"{name}: hovering names the nearest line: {said}")
    browser.click(".groups li button")
    hides = """return [...shown.values()].every(entry => entry.lines.every(line =>
        entry.plot.series[line.series[0]].show !== (line.group === 0)))"""
    expect(browser.js(hides), f"{name}: the legend hides a group in all charts")
    browser.click(".groups li button")
    alone = "return [...shown.values()].every(entry => entry.legend.childElementCount === entry.chart.limits.length)"
    expect(browser.js(alone), f"{name}: charts have no legend of their own")


def check_charts(browser, name):
    """Hovering, keys, the controls and the legend of the charts."""
    if not browser.js("return document.querySelectorAll('figure.chart').length"):
        return
    check_labels(browser, name)
    if browser.js("return document.querySelector('.groups') !== null"):
        check_groups(browser, name)
        return
    over = "#chart-loss .u-over"
    browser.hover(over)
    values = "return [...document.querySelectorAll('#chart-loss .at-cursor')].map(v => v.textContent)"
    hovered = browser.js(values)
    expect(any("at step" in value for value in hovered), f"{name}: hovering shows values: {hovered}")
    others = browser.js("return [...document.querySelectorAll('#chart-lr .at-cursor')].map(v => v.textContent)")
    expect(any("at step" in value for value in others), f"{name}: cursors are synced: {others}")
    logged = browser.js("""
        const chart = data.charts.find(one => one.metric === "loss"), texts = arguments[0];
        return chart.lines.every((line, at) => {
            const step = Number(texts[at].split(" at step ")[1].replaceAll(",", ""));
            const series = seriesOf(line.run, line.split, "loss");
            const place = series.steps.indexOf(step);
            return place >= 0 && texts[at].startsWith(formatValue(series.values[place]));
        });""", hovered)
    expect(logged, f"{name}: values are logged ones: {hovered}")
    browser.type("#chart-loss .plot", HOME + ARROW_LEFT)
    at_start = browser.js(values)
    expect(at_start != hovered, f"{name}: keys move the cursor: {at_start}")
    said = browser.js("return document.querySelector('#chart-loss [aria-live]').textContent")
    expect("at step" in said, f"{name}: the values are announced: {said}")
    browser.js("const s = document.querySelector('#controls input[type=range]'); s.value = 0.8; s.dispatchEvent(new Event('input'))")
    expect(browser.js("return shown.get('loss').plot.series.length") > 1 + len(hovered) - 1, f"{name}: smoothing")
    for box in (1, 2):
        browser.click(f"#controls label:nth-of-type({box + 2}) input")
        expect(browser.js("return shown.get('loss').plot.scales[arguments[0]].distr", "xy"[box - 1]) == 3, f"{name}: logarithmic axis")
        browser.click(f"#controls label:nth-of-type({box + 2}) input")
    browser.js("""const s = document.querySelector('#controls select'); s.selectedIndex = s.options.length - 1;
        s.dispatchEvent(new Event('change'))""")
    expect(browser.js("return view.axis.name") == "time", f"{name}: time on the x axis")
    browser.js("const s = document.querySelector('#controls select'); s.selectedIndex = 0; s.dispatchEvent(new Event('change'))")
    browser.js("const s = document.querySelector('#controls input[type=range]'); s.value = 0; s.dispatchEvent(new Event('input'))")
    browser.click("#chart-loss .legend button")
    expect(browser.js("return shown.get('loss').plot.series[1].show") is False, f"{name}: the legend hides lines")
    browser.click("#chart-loss .legend button")
    zoomed = browser.js("""
        const plots = [...shown.values()].map(entry => entry.plot), xs = plots[0].data[0];
        const later = () => new Promise(done => setTimeout(done, 50));
        plots[0].setScale("x", {min: xs[1], max: xs[Math.floor(xs.length / 2)]});
        return later().then(() => {
            const all = plots.every(plot => plot.scales.x.min === xs[1]);
            resetZoom();
            return later().then(() => all && plots[0].scales.x.min === xs[0]);
        });""")
    expect(zoomed is True, f"{name}: zoom is shared and reset")


def check_attention(browser, name):
    """A head that opens, and a token that shows what it reads."""
    if not browser.js("return document.querySelectorAll('.heads').length"):
        return
    browser.click(".heads button")
    browser.hover(".queries li:nth-child(2) button")
    said = browser.js("return document.querySelector('.reads').textContent")
    expect(" reads " in said and "%" in said, f"{name}: a token shows what it reads: {said}")


def check(browser, folder, page):
    address = Path(page).resolve().as_uri()
    name = Path(page).stem
    for look, width, scheme in LOOKS:
        browser.look(width, scheme)
        browser.open(address)
        if not browser.js("return document.querySelector('main') !== null"):
            expect(False, f"{name}: there is no page")
            return
        if look == "light":
            check_charts(browser, name)
        check_attention(browser, name)
        check_names(browser, name)
        check_width(browser, f"{name} ({look})")
        browser.js("scrollTo(0, 0)")
        browser.screenshot(folder / f"{name}_{look}.png")
        check_log(browser, address, name)
    browser.print(folder / f"{name}.pdf")
    expect((folder / f"{name}.pdf").read_bytes().startswith(b"%PDF"), f"{name}: a PDF is printed")
    browser.look(1280, scripts=False)
    browser.open(address)
    browser.screenshot(folder / f"{name}_noscript.png")
    browser.look(1280)
    check_log(browser, address, name)


def main(folder, pages):
    with Browser() as browser:
        for page in pages:
            check(browser, Path(folder), page)
            print("looked at", page)
    sys.exit(f"{len(failures)} failed" if failures else 0)


main(sys.argv[1], sys.argv[2:])
