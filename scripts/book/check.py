"""Checks the built book: check.py FOLDER

Every relative link, picture and frame leads to a file, every anchor to an element; nothing is loaded from a network.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        for name in ("src", "srcset", "data", "poster"):
            if attributes.get(name) and tag != "a":
                self.loads.append(attributes[name])
        if tag == "link" and attributes.get("rel") != "canonical" and attributes.get("href"):
            self.loads.append(attributes["href"])


def main():
    folder = Path(sys.argv[1]).resolve()
    pages = {path: Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        # The page of an address that does not exist may stand in any folder.
        if path.name in ("404.html", "toc.html"):
            continue
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if link in page.loads:
                    faults.append(f"{path.name}: loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                faults.append(f"{path.relative_to(folder)}: {link} does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                faults.append(f"{path.relative_to(folder)}: {link}: no such anchor")
    for style in folder.rglob("*.css"):
        for address in re.findall(r"url\(['\"]?(\w+://[^)'\"]+)", style.read_text()):
            faults.append(f"{style.name}: loads {address}")
    print("\n".join(faults) or f"{len(pages)} pages: all links lead somewhere, nothing is loaded from a network")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
