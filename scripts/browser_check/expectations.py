"""The looks of a page, what it must not do, and a list of what has failed."""

import json
import time

# Name, width in pixels, colour scheme.
LOOKS = (("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 390, "light"))
failures = []


def expect(is_so, what):
    if not is_so:
        failures.append(what)
        print("FAILED:", what)


def wait(condition, what, seconds=20):
    """Waits until `condition` gives something true, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = condition()
        except RuntimeError:  # An element may be replaced while it is looked for.
            found = None
        if found:
            return found
        time.sleep(0.1)
    expect(False, f"{what}: not within {seconds} s")
    return None


def check_log(browser, address, name):
    """No error, and no request but to the page's own server."""
    errors = [entry["message"] for entry in browser.log("browser")]
    expect(not errors, f"{name}: messages of the browser: {errors}")
    messages = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
    sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    origin = address if address.startswith("file:") else "/".join(address.split("/")[:3]) + "/"
    foreign = [url for url in sent if not url.startswith((origin, "data:", "blob:" + origin))]
    expect(not foreign, f"{name}: requests: {foreign[:5]}")


def check_names(browser, name):
    """What a screen reader says: every control and picture has a name, and every column a heading."""
    unnamed = browser.js("""
        const isNamed = element => element.getAttribute("aria-label") || element.getAttribute("title") || element.textContent.trim()
            || element.labels?.length || element.getAttribute("alt") !== null && element.tagName === "IMG";
        return [...document.querySelectorAll("button, input, select, textarea, img, a, [role=img], svg[role]")]
            .filter(element => element.checkVisibility() && !isNamed(element)).map(element => element.outerHTML.slice(0, 80));""")
    expect(not unnamed, f"{name}: without a name: {unnamed[:5]}")
    language = browser.js("return document.documentElement.lang")
    levels = browser.js("return [...document.querySelectorAll('h1, h2, h3, h4')].map(one => Number(one.tagName[1]))")
    jumps = [pair for pair in zip(levels, levels[1:]) if pair[1] > pair[0] + 1]
    expect(language == "en" and levels[:1] == [1] and not jumps, f"{name}: language {language}, headings {levels}")


def check_width(browser, name):
    wide = browser.js("return document.documentElement.scrollWidth - innerWidth")
    expect(wide <= 0, f"{name}: {wide} pixels too wide")
