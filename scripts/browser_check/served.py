"""Uses the pages of `tealight serve` in a browser: the list, a run while it trains, and the playground.

python3 served.py FOLDER ADDRESS PICTURE TRAIN…; ADDRESS is the printed one, with its token; TRAIN is the command of a training of the run `live`, which is started here.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from browser import Browser
from expectations import LOOKS, check_log, check_names, check_width, expect, failures, wait

# How long after the line of a point was written the page shows it.
MAX_DELAY = 1.0
LAST_STEP = """
    const series = data.runs[0].series.find(one => one.split === "train" && one.metric === "loss");
    return series ? series.steps[series.steps.length - 1] : 0;"""


def last_logged(metrics):
    """The step and the time of the last line of training."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]
    steps = [line["step"] for line in lines if line["split"] == "train"]
    return (steps[-1] if steps else 0), time.monotonic()


def check_live(browser, folder, address, train):
    """The page of a run while it trains: points, the end, and what a new page would have."""
    runs = folder / "runs"
    with subprocess.Popen(train, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
        wait((runs / "live" / "resolved.toml").exists, "the run begins")
        browser.look(1280)
        browser.open(f"{address}/")
        wait(lambda: browser.js("return [...document.querySelectorAll('tbody th')].some(th => th.textContent === 'live')"),
             "the list shows a run that has just begun")
        browser.open(f"{address}/runs/live")
        wait(lambda: browser.js("return document.querySelectorAll('figure.chart canvas').length > 0"), "charts of a young run")
        metrics = runs / "live" / "metrics.jsonl"
        delays = []
        while training.poll() is None and len(delays) < 12:
            step, at = last_logged(metrics)
            end = at + 5
            while browser.js(LAST_STEP) < step and time.monotonic() < end:
                time.sleep(0.02)
            delays.append(time.monotonic() - at)
            time.sleep(0.3)
        if training.poll() is not None and len(delays) < 5:
            expect(False, "the training ended before the page could be watched")
        print(f"live: points shown after {max(delays, default=9):.2f} s at most, of {len(delays)}")
        expect(max(delays, default=9) <= MAX_DELAY, f"live: points come after {[round(one, 2) for one in delays]} s")
        expect(browser.js("return document.querySelector('[data-fact=\"0/status\"]').textContent") == "running", "live: it says running")
        expect(browser.js("return document.querySelector('[data-fact=\"0/left\"]').textContent") != "–", "live: the time left")
        wait(lambda: browser.js("return document.getElementById('samples') !== null"), "live: samples appear without a reload")
        wait(lambda: browser.js("return [...document.querySelectorAll('#results tbody th')].some(th => th.textContent.startsWith('validation'))"),
             "live: evaluations appear in the table")
        browser.js("const s = document.querySelector('#controls input[type=range]'); s.value = 0.6; s.dispatchEvent(new Event('input'))")
        browser.screenshot(folder / "live_running.png")
        training.wait()
    wait(lambda: browser.js("return document.querySelector('[data-fact=\"0/status\"]').textContent") == "finished", "live: it says finished")
    wait(lambda: browser.js("return document.getElementById('results').textContent.includes('Final evaluation')"), "live: results appear at the end")
    expect(browser.js("return view.smoothing") == 0.6, "live: the controls stay as they were")
    check_names(browser, "live")
    check_log(browser, address, "live")
    for look, width, scheme in LOOKS:
        browser.look(width, scheme)
        browser.open(f"{address}/runs/live")
        time.sleep(0.5)
        check_width(browser, f"live ({look})")
        browser.screenshot(folder / f"live_{look}.png")
        check_log(browser, address, f"live ({look})")


def choose(browser, place, name):
    """Chooses the model of the first or second column."""
    browser.js("""const select = document.querySelectorAll('select.model')[arguments[0]]; select.value = arguments[1];
        select.dispatchEvent(new Event('change'))""", place, name)


def text_of(browser, selector):
    return browser.js("return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)", selector)


def write(browser, text):
    browser.js("const t = document.getElementById('text'); t.focus(); t.select()")
    browser.type("#text", text)


def check_example(browser, name):
    """A held-out example of the run, one panel of full width, and another example."""
    if browser.js("return ofUser.has('text')"):  # What was written before stays until an example is asked for.
        wait(lambda: browser.js("return exampleOf.name === document.querySelector('select.model').value"), f"{name}: the model")
        browser.click("#another")
    wait(lambda: text_of(browser, "#about")[0].startswith("A held-out example of the run"), f"{name}: an example")
    panels = browser.js("return [...document.querySelectorAll('.panel')].filter(panel => !panel.hidden).length")
    expect(panels == 1, f"{name}: {panels} panels")
    before = browser.js("return document.getElementById('text').value + days + document.getElementById('about').textContent")
    browser.click("#another")
    wait(lambda: browser.js("return document.getElementById('text').value + days + document.getElementById('about').textContent") != before,
         f"{name}: another example")


def check_masked(browser):
    choose(browser, 0, "masked_lm")
    check_example(browser, "masked")
    wait(lambda: len(text_of(browser, ".panel .bar")) >= 5, "candidates of the token that is hidden at first")
    write(browser, "Monday was sunny. Tuesday was cloudy.")
    tokens = wait(lambda: text_of(browser, ".panel .tokens[role=group] button"), "the tokens of a text")
    wait(lambda: "cloudy" in text_of(browser, ".panel .tokens[role=group] button"), f"the typed text: {tokens}")
    at = text_of(browser, ".panel .tokens[role=group] button").index("cloudy") + 1
    browser.click(f".panel .tokens[role=group] button:nth-child({at})")
    wait(lambda: len(text_of(browser, ".panel .bar")) >= 5, "candidates of a hidden token")
    expect(all("%" in one for one in text_of(browser, ".panel .bar")), "candidates have probabilities")
    pressed = browser.js("return document.querySelectorAll('.panel [aria-pressed=true]').length")
    expect(pressed == 1, f"{pressed} hidden tokens")
    wait(lambda: "What the heads read" in text_of(browser, ".panel h2"), "what the heads read")
    browser.hover(".panel section .tokens span:nth-child(2)")
    lit = browser.js("return document.querySelector('.panel section .tokens span').title")
    expect(" reads " in lit, f"a token shows what it reads: {lit}")


def check_two(browser):
    choose(browser, 1, "masked_lm2")
    wait(lambda: browser.js("return [...document.querySelectorAll('.panel')].every(panel => panel.querySelectorAll('.bar').length >= 5)"),
         "two models side by side")


def check_causal(browser):
    choose(browser, 1, "")
    choose(browser, 0, "causal_lm")
    check_example(browser, "causal")
    wait(lambda: "likely" in "".join(text_of(browser, ".panel p.dim:not([hidden])")), "the legend of the shades")
    wait(lambda: browser.js("return [...document.querySelectorAll('.panel button')].some(one => one.textContent === 'Continue')"), "a button to continue")
    browser.js("const t = document.querySelector('.panel input[name=temperature]'); t.value = 0.5")
    browser.js("[...document.querySelectorAll('.panel button')].find(one => one.textContent === 'Continue').click()")
    wait(lambda: browser.js("return document.querySelectorAll('.written span[tabindex]').length > 5"), "a text that goes on")
    browser.hover(".written span[tabindex]:nth-of-type(6)")
    wait(lambda: len(text_of(browser, ".panel .bar")) >= 3, "what else was likely")


def check_weather(browser):
    choose(browser, 0, "weather")
    wait(lambda: len(text_of(browser, ".panel .bar")) == 3, "a forecast")
    before = text_of(browser, ".panel .bar")
    for day in (10, 9, 8):  # A day that the rule does not read changes nothing.
        browser.click(f".panel .tokens button:nth-child({day})")
        time.sleep(0.3)
    wait(lambda: text_of(browser, ".panel .bar") != before, "a changed day changes the forecast")


def check_classes(browser, picture):
    choose(browser, 0, "classify")
    write(browser, "The train to Lisbon left at ten.")
    wait(lambda: any("travel" in one for one in text_of(browser, ".panel .bar")), "labels of a text")
    choose(browser, 0, "images")
    wait(lambda: browser.js("return !document.getElementById('for-pictures').hidden"), "a field for a picture")
    browser.type("#picture", str(picture))
    wait(lambda: len(text_of(browser, ".panel .bar")) >= 5, "labels of a picture")
    wait(lambda: browser.js("return document.querySelector('.panel img')?.naturalWidth > 0"), "the chosen picture")


def check_playground(browser, folder, address, picture):
    for look, width, scheme in LOOKS:
        browser.look(width, scheme)
        browser.open(f"{address}/")
        wait(lambda: browser.js("return document.querySelectorAll('tbody th').length > 5"), "the list")
        check_names(browser, "list")
        check_width(browser, f"list ({look})")
        browser.screenshot(folder / f"list_{look}.png")
        browser.open(f"{address}/play?model=masked_lm")
        for name, use in (("masked", lambda: check_masked(browser)), ("two", lambda: check_two(browser)),
                          ("causal", lambda: check_causal(browser)), ("weather", lambda: check_weather(browser)),
                          ("classes", lambda: check_classes(browser, picture))):
            use()
            time.sleep(0.5)
            check_names(browser, f"play, {name}")
            check_width(browser, f"play, {name} ({look})")
            faults = text_of(browser, ".fault")
            expect(not faults, f"play, {name}: {faults}")
            browser.screenshot(folder / f"play_{name}_{look}.png")
        check_log(browser, address, f"play ({look})")
    browser.look(1280, scripts=False)
    browser.open(f"{address}/")
    browser.screenshot(folder / "list_noscript.png")
    browser.look(1280)
    expect(browser.js("return document.querySelectorAll('tbody th').length > 5"), "the list is there without scripts")


def main(folder, address, picture, train):
    folder, signed_in = Path(folder), address
    address = address.split("/?token=")[0]
    with Browser() as browser:
        browser.open(signed_in)
        check_live(browser, folder, address, train)
        print("looked at", f"{address}/runs/live")
        check_playground(browser, folder, address, Path(picture).resolve())
        print("looked at", f"{address}/play")
    sys.exit(f"{len(failures)} failed" if failures else 0)


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
