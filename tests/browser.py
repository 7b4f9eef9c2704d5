"""A headless Chromium for tests, spoken to through a pipe in its own protocol: no package, no driver, no port."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions"]
_FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
_FLAGS += ["--remote-debugging-pipe"]
# The browser listens at descriptor 3 and answers at 4, whatever they are here.
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page of a browser; to be used in a with statement.

    Args:
        profile: an empty folder for its profile.
    """

    def __init__(self, profile):
        ours_out, theirs_in = os.pipe()[::-1]
        ours_in, theirs_out = os.pipe()
        start = [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), PROGRAM]
        self._process = subprocess.Popen(
            [*start, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in, self._rest, self._last = ours_out, ours_in, b"", 0
        self.events = []
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._session = None
            self.send("Browser.close")
            self._process.wait(10)
        except (TimeoutError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def send(self, method, **params):
        """Gives a command, and returns its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._last:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, url):
        self.events.clear()
        self.send("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def size(self, width, height, *, phone=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def dark(self, on):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, expression):
        """The value of a JavaScript expression."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def hover(self, selector):
        """Moves the pointer onto the first element found, scrolled into view."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])"
                       f"(document.querySelector({selector!r}).getBoundingClientRect())")  # fmt: skip
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
        )  # has scrolled
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def accessible(self):
        """What a screen reader is given of the page: a list of nodes."""
        self.send("Accessibility.enable")
        return [node for node in self.send("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]

    def screenshot(self, path):
        """The whole page, as PNG."""
        content = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": content["width"], "height": content["height"], "scale": 1}
        shot = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self):
        return base64.b64decode(self.send("Page.printToPDF", preferCSSPageSize=True)["data"])

    def problems(self):
        """Console messages, exceptions, and requests other than for the page itself."""
        found = [event for event in self.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        found += [event for event in self.events if event["method"] == "Runtime.consoleAPICalled"]
        requests = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        urls = [event["params"]["request"]["url"] for event in requests]
        return found, [url for url in urls if not url.startswith("data:")]

    def _receive(self, seconds=60):
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], end - time.monotonic())
            got = os.read(self._in, 1 << 20) if ready else b""
            if not got:
                raise TimeoutError("the browser says nothing")
            self._rest += got
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
