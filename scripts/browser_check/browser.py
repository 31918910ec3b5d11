"""A headless Chromium, driven by WebDriver over plain HTTP."""

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --hide-scrollbars""".split()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Browser:
    """Ends with the `with` block that it is opened in."""

    def __enter__(self):
        self.profile = tempfile.mkdtemp()
        self.port = free_port()
        self.driver = subprocess.Popen(["chromedriver", f"--port={self.port}"], stdout=subprocess.DEVNULL)
        options = {"args": [*FLAGS, f"--user-data-dir={self.profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        for attempt in range(50):
            try:
                made = self._post("", {"capabilities": {"alwaysMatch": wanted}}, "session")
                break
            except OSError:
                if attempt == 49:
                    raise
                time.sleep(0.2)
        self.session = made["sessionId"]
        time.sleep(1)
        self.log("performance")  # of the empty page that the browser opens first
        return self

    def __exit__(self, *_):
        self._request("DELETE", f"session/{self.session}")
        self.driver.terminate()
        self.driver.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _request(self, method, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"].splitlines()[0]) from error

    def _post(self, path, body, start=None):
        return self._request("POST", (start or f"session/{self.session}/") + path, body)

    def open(self, address):
        self._post("url", {"url": address})

    def js(self, script, *arguments):
        """The value that `script` returns."""
        return self._post("execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        found = self._post("element", {"using": "css selector", "value": selector})
        return next(iter(found.values()))

    def center(self, selector):
        script = "document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})"
        self.js(script, selector)

    def click(self, selector):
        self.center(selector)
        self._post(f"element/{self.find(selector)}/click", {})

    def type(self, selector, keys):
        self._post(f"element/{self.find(selector)}/value", {"text": keys})

    def hover(self, selector, x=0, y=0):
        """Moves the mouse to the middle of an element, and from there by (x, y)."""
        self.center(selector)
        key = "element-6066-11e4-a52e-4f735466cecf"
        move = {"type": "pointerMove", "duration": 50, "origin": {key: self.find(selector)}, "x": x, "y": y}
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        self._post("actions", {"actions": [mouse]})

    def cdp(self, command, **parameters):
        return self._post("goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind):
        return self._post("se/log", {"type": kind})

    def look(self, width, scheme="light", scripts=True):
        """The width of the screen, the colour scheme, and whether scripts run, for pages opened next."""
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.cdp("Emulation.setEmulatedMedia", media="", features=features)
        self.cdp("Emulation.setScriptExecutionDisabled", value=not scripts)

    def screenshot(self, path):
        """The whole page as a PNG file."""
        time.sleep(0.2)
        picture = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def print(self, path):
        """The page as a PDF file."""
        path.write_bytes(base64.b64decode(self.cdp("Page.printToPDF", printBackground=False)["data"]))
