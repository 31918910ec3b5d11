"""Writes the sources of the book to a folder for mdBook: assemble.py TEALIGHT FOLDER

docs/book/src/SUMMARY.md lists the pages. They are files of the repository, whose links are resolved here, and stay
correct where they are. In pages of the book, a comment on a line of its own is replaced:

    <!-- output: COMMAND -->          what the command prints; it runs in FOLDER/work
    <!-- run: COMMAND -->             nothing; the command runs for those that follow
    <!-- picture: FILE | TEXT -->     a picture that a command has written, with its description
    <!-- report: FILE | TEXT -->      a page that a command has written, shown in a frame
    <!-- configurations: TASK -->     the table of shipped configurations of a task
    <!-- settings: TASK -->           a link to the keys of a task
    <!-- gallery -->                  a section for each kind of attention
    <!-- keys -->                     the table of tables; a page of keys is written for each
    {{#include FILE}}                 the file
"""

import posixpath
import re
import shutil
import sys
from pathlib import Path

import gallery
import keys
from work import Work

ROOT = Path(__file__).resolve().parents[2]
SOURCES = "docs/book/src"
SUMMARY = f"{SOURCES}/SUMMARY.md"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
PICTURES = (".png", ".svg", ".json")


def page_names():
    """The path in the book of each file of the repository that is a page."""
    names = {}
    for _, _, target in LINK.findall((ROOT / SUMMARY).read_text()):
        path = resolve(SUMMARY, target)
        assert (ROOT / path).is_file(), f"{SUMMARY}: {path} does not exist"
        if path.startswith(SOURCES):
            names[path] = posixpath.relpath(path, SOURCES)
        else:
            # mdBook renames pages called `readme`.
            stem = Path(path).stem.lower().replace(".", "_")
            names[path] = {"readme": "introduction"}.get(stem, stem) + ".md"
    return names


def resolve(page, target):
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


class Book:
    def __init__(self, work, folder):
        self.work, self.source = work, folder / "src"
        self.names = page_names()
        self.key_pages = keys.pages(work)

    def write(self, name, text):
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def build(self):
        shutil.rmtree(self.source, ignore_errors=True)
        for page, name in self.names.items():
            print(name, flush=True)
            self.write(name, self.page(page, name))
        for name, _, _, text in self.key_pages:
            self.write(name, text)
        self.write("SUMMARY.md", self.summary())

    def summary(self):
        text = (ROOT / SUMMARY).read_text()
        key_pages = "\n".join(f"    - [`{title}`]({name})" for name, title, _, _ in self.key_pages)
        text = text.replace("<!-- pages of keys -->", key_pages)
        return LINK.sub(lambda link: f"[{link[2]}]({self.names.get(resolve(SUMMARY, link[3]), link[3])})", text)

    def page(self, page, name):
        """The text of a page, outside of code with links of the book, and with what its comments stand for."""
        is_code, lines = False, []
        for line in (ROOT / page).read_text().split("\n"):
            if include := re.fullmatch(r"\{\{#include (\S+)\}\}", line):
                lines.append((ROOT / resolve(page, include[1])).read_text().rstrip("\n"))
                continue
            if line.startswith("```"):
                is_code = not is_code
            elif not is_code and (comment := re.fullmatch(r"<!-- (\w+)(?:: (.*))? -->", line)):
                line = self.replacement(name, comment[1], comment[2] or "")
            elif not is_code:
                line = LINK.sub(lambda link: self.link(page, name, *link.groups()), line)
            lines.append(line)
        return "\n".join(lines)

    def link(self, page, name, mark, text, target):
        if re.match(r"\w+:|#", target):
            return f"{mark}[{text}]({target})"
        path, _, anchor = target.partition("#")
        path = resolve(page, path)
        assert (ROOT / path).exists(), f"{page}: {target} does not exist"
        anchor = f"#{anchor}" if anchor else ""
        if path in self.names:
            return f"{mark}[{text}]({relative(name, self.names[path])}{anchor})"
        if path.endswith(PICTURES):
            return f"{mark}[{text}]({self.copy(ROOT / path, name)})"
        # Other files of the repository are named, and not linked.
        return text if "`" in text or text != posixpath.basename(path) else f"`{path}`"

    def copy(self, file, name):
        """Copies a file beside the pages, and returns its address from the page `name`."""
        root = self.work.folder if file.is_relative_to(self.work.folder) else ROOT
        to = "files/" + str(file.relative_to(root)).replace("/", "_")
        self.write(to, "")
        shutil.copyfile(file, self.source / to)
        return relative(name, to)

    def replacement(self, name, directive, argument):
        value, _, text = (part.strip() for part in argument.partition(" | "))
        if directive == "run":
            self.work.output(argument)
            return ""
        if directive == "output":
            return f"```text\n{self.work.output(argument).rstrip()}\n```"
        if directive == "picture":
            return f"![{text}]({self.copy(self.work.folder / value, name)})"
        if directive == "report":
            file = self.copy(self.work.folder / value, name)
            frame = f'<iframe class="report" src="{file}" title="{text}" loading="lazy"></iframe>'
            return f"[{text}]({file})\n\n{frame}"
        if directive == "configurations":
            return self.configurations(argument)
        if directive == "settings":
            return f"[All keys of this task]({relative(name, 'keys/task.md')}#task-{argument})"
        if directive == "gallery":
            return gallery.sections(ROOT, self.work, lambda file: self.copy(file, name))
        if directive == "keys":
            rows = [f"| [`{title}`]({relative(name, page)}) | {purpose} |"
                    for page, title, purpose, _ in self.key_pages]
            return "\n".join(["| table | |", "|---|---|", *rows])
        raise ValueError(f"{name}: unknown comment `{directive}`")

    def configurations(self, task):
        rows = ["| configuration | |", "|---|---|"]
        for line in self.work.output("tealight init --list").splitlines():
            configuration, purpose = line.split(None, 1)
            if configuration.startswith(f"{task}/"):
                rows.append(f"| `{configuration}` | {purpose} |")
        assert len(rows) > 2, f"no configurations of {task}"
        return "\n".join(rows)


def relative(page, target):
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def main():
    tealight, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("book.toml", "book.css"):
        shutil.copyfile(ROOT / "docs/book" / name, folder / name)
    Book(Work(ROOT, tealight, folder / "work"), folder).build()


if __name__ == "__main__":
    main()
